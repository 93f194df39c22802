//! What bad input gets: a reason, in one form, and nothing else.

use std::time::Duration;

use reqwest::Method;
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use uuid::Uuid;

use crate::support::{Answer, Cluster, NONE, Node};

const DEADLINE: Duration = Duration::from_secs(20);
const JSON: &str = "application/json";

/// One bad request, and what it gets.
struct Bad {
    what: &'static str,
    method: Method,
    path: String,
    content_type: &'static str,
    body: Vec<u8>,
    status: u16,
    /// What the answer must name.
    names: &'static str,
}

fn post(what: &'static str, body: impl Into<Vec<u8>>, status: u16, names: &'static str) -> Bad {
    Bad { what, method: Method::POST, path: "/v1/tasks".to_owned(), content_type: JSON, body: body.into(), status, names }
}

/// A task that is good but for the fields that are put in (or, when null, taken out).
fn changed(topic: &str, changes: &Value) -> String {
    let mut task = json!({ "topic": topic, "delay": "1h", "payload_text": "x" });
    for (field, value) in changes.as_object().unwrap() {
        if value.is_null() {
            task.as_object_mut().unwrap().remove(field);
        } else {
            task[field] = value.clone();
        }
    }
    task.to_string()
}

/// Requests that are wrong on any cluster.
fn malformed(topic: &str) -> Vec<Bad> {
    let with = |changes: Value| changed(topic, &changes);
    let mut not_utf8 = with(json!({"payload_text": "?"})).into_bytes();
    let at = not_utf8.iter().position(|byte| *byte == b'?').unwrap();
    not_utf8[at] = 0xff;
    vec![
        post("JSON that ends early", r#"{"topic":"#, 400, "JSON"),
        post("no JSON at all", "", 400, "JSON"),
        post("bytes that are no UTF-8", not_utf8, 400, "UTF-8"),
        post("an array", "[]", 400, "object"),
        post("a number", "7", 400, "object"),
        post("an unknown field", with(json!({"colour": "red"})), 400, "colour"),
        post("a field twice", format!(r#"{{"topic":"{topic}","topic":"{topic}","delay":1,"payload":1}}"#), 400, "topic"),
        post("no topic", with(json!({"topic": null})), 400, "topic"),
        post("a topic that is no text", with(json!({"topic": 7})), 400, "topic"),
        post("an illegal topic name", with(json!({"topic": "a b"})), 400, "topic"),
        post("a topic name with NUL", with(json!({"topic": "a\u{0}"})), 400, "topic"),
        post("both due_at and delay", with(json!({"due_at": 1_800_000_000_000_i64})), 400, "due_at"),
        post("neither due_at nor delay", with(json!({"delay": null})), 400, "delay"),
        post("a negative delay", with(json!({"delay": -1})), 400, "delay"),
        post("a negative delay in words", with(json!({"delay": "-5s"})), 400, "delay"),
        post("a delay in months", with(json!({"delay": "1 month"})), 400, "delay"),
        post("a delay that is none", with(json!({"delay": "soon"})), 400, "delay"),
        post("a negative due_at", with(json!({"delay": null, "due_at": -5})), 400, "due_at"),
        post("a due_at without a zone", with(json!({"delay": null, "due_at": "2030-01-01T00:00:00"})), 400, "due_at"),
        post("a due_at that is none", with(json!({"delay": null, "due_at": "tomorrow"})), 400, "due_at"),
        post("two payloads", with(json!({"payload": 1})), 400, "payload"),
        post("no payload", with(json!({"payload_text": null})), 400, "payload"),
        post("a payload in bad base64", with(json!({"payload_text": null, "payload_base64": "%%%"})), 400, "payload_base64"),
        post("a key in bad base64", with(json!({"key_base64": "a"})), 400, "key_base64"),
        post("two keys", with(json!({"key": "a", "key_base64": "YQ=="})), 400, "key"),
        post("a tombstone with a payload", with(json!({"tombstone": true, "key": "a"})), 400, "tombstone"),
        post("a tombstone without a key", with(json!({"tombstone": true, "payload_text": null})), 400, "key"),
        post("a reserved header", with(json!({"headers": {"punctual-task-id": "x"}})), 400, "punctual-"),
        post("a header that is no text", with(json!({"headers": {"a": 1}})), 400, "headers"),
        post("a header without a name", with(json!({"headers": {"": "x"}})), 400, "headers"),
        Bad { content_type: "text/plain", ..post("another content type", with(json!({})), 415, "application/json") },
        Bad { path: "/v1/tasks/batch".to_owned(), ..post("a batch that is no object", "[]", 400, "object") },
        Bad { path: "/v1/tasks/batch".to_owned(), ..post("a batch without tasks", "{}", 400, "tasks") },
    ]
}

/// Requests that this cluster refuses, and paths and methods that there are not.
fn refused(topic: &str, small_topic: &str) -> Vec<Bad> {
    let with = |changes: Value| changed(topic, &changes);
    let small = changed(small_topic, &json!({ "payload_text": "x".repeat(20_000) }));
    let many = json!({ "tasks": vec![serde_json::from_str::<Value>(&with(json!({}))).unwrap(); 10_001] }).to_string();
    let at = |what, method, path: &str, status, names| Bad { method, path: path.to_owned(), ..post(what, "", status, names) };
    vec![
        post("an unknown topic", with(json!({"topic": format!("{topic}.nowhere")})), 422, "topic"),
        post("a due time past the longest delay", with(json!({"delay": "60000h"})), 422, "delay"),
        post("a record that its topic does not take", small, 422, "max.message.bytes"),
        Bad { path: "/v1/tasks/batch".to_owned(), ..post("a batch over 10,000", many, 413, "10") },
        at("an id that is none", Method::GET, "/v1/tasks/nonsense", 404, "id"),
        at("an id of another version", Method::DELETE, &format!("/v1/tasks/{}", Uuid::from_u128(7)), 404, "id"),
        at("a wrong method", Method::PUT, "/v1/tasks", 405, "method"),
        at("a path that there is not", Method::GET, "/v1/nothing", 404, "path"),
    ]
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn bad_input_is_refused_with_a_reason_and_nothing_of_it_is_stored() {
    let cluster = Cluster::start("bad-input").await;
    let topic = cluster.topic("orders").await;
    let small_topic = cluster.topic_with("small", &[("max.message.bytes", "10000")]).await;
    let node = cluster.node().await;
    let mut bad = malformed(&topic);
    bad.extend(refused(&topic, &small_topic));
    for row in &bad {
        let answer = node.api().send(row.method.clone(), &row.path, Some((row.content_type, row.body.clone()))).await;
        check_problem(row.what, &answer, row.status, row.names);
    }
    for absurd in ["1e300", "99999999999999999999", "9223372036854775807", "1e999", "0.5"] {
        for field in ["due_at", "delay"] {
            let body = format!(r#"{{"topic":"{topic}","{field}":{absurd},"payload_text":"x"}}"#);
            let answer = node.api().post("/v1/tasks", body).await;
            assert!(matches!(answer.status, 400 | 422), "{field} {absurd}: {} {}", answer.status, answer.text);
            assert!(answer.status == 400 || answer.text.contains(field), "{field} {absurd}: {}", answer.text);
        }
    }
    // The good ones in between are all that there is.
    let pending = node.api().submit(&json!({ "topic": topic, "delay": "1h", "payload_text": "x" })).await;
    let far = node.api().submit(&json!({ "topic": topic, "delay": "8760h", "payload_text": "x" })).await;
    let soon = node.api().submit(&json!({ "topic": topic, "delay": 0, "payload_text": "x" })).await;
    cluster.wait_final(1, DEADLINE).await;
    holds_exactly(&cluster, [pending.id], [far.id], [soon.id]).await;
    assert!(node.api().is_ready().await);
    assert_eq!(node.api().get("/livez").await.status, 200);
}

fn check_problem(what: &str, answer: &Answer, status: u16, names: &str) {
    assert_eq!(answer.status, status, "{what}: {}", answer.text);
    assert_eq!(answer.header("content-type"), Some("application/problem+json"), "{what}: {}", answer.text);
    let problem = answer.json();
    assert!(problem["type"].as_str().is_some_and(|kind| !kind.is_empty()), "{what}: {problem}");
    assert_eq!(problem["status"], status, "{what}: {problem}");
    assert!(problem.to_string().contains(names), "{what}: the answer should name {names:?}: {problem}");
}

async fn holds_exactly(cluster: &Cluster, pending: [Uuid; 1], far: [Uuid; 1], done: [Uuid; 1]) {
    let ids = async |query: &'static str| -> Vec<Uuid> { sqlx::query_scalar(query).fetch_all(&cluster.sql).await.unwrap() };
    assert_eq!(ids("select id from task").await, pending);
    assert_eq!(ids("select id from task_far").await, far);
    assert_eq!(ids("select id from execlog").await, done);
    for table in ["select id from dead_letter", "select id from task_name", "select first_id from task_follow"] {
        assert_eq!(ids(table).await, NONE, "{table}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_body_over_the_limit_is_refused_before_it_is_read() {
    let cluster = Cluster::start("body-limit").await;
    let node = cluster.node_with(&["--body-max", "64KiB"]).await;
    // It says how much it is going to send, and is told not to.
    let answer = raw(
        &node,
        "POST /v1/tasks HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\ncontent-length: 1099511627776\r\n\r\n{",
    )
    .await;
    assert!(answer.starts_with("HTTP/1.1 413 "), "{answer}");
    assert!(answer.contains("application/problem+json"), "{answer}");
    // It does not say: the limit holds all the same.
    let chunk = format!("{:x}\r\n{}\r\n", 16 << 10, " ".repeat(16 << 10));
    let head = "POST /v1/tasks HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\ntransfer-encoding: chunked\r\n\r\n";
    let answer = raw(&node, &format!("{head}{}", chunk.repeat(5))).await;
    assert!(answer.starts_with("HTTP/1.1 413 "), "{answer}");
    assert!(node.api().is_ready().await);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn bytes_that_are_no_http_do_not_harm_the_node() {
    let cluster = Cluster::start("no-http").await;
    let node = cluster.node().await;
    for bytes in ["\0\u{1}\u{2}\r\n\r\n", "GET / HTTP/9.9\r\n\r\n", "POST /v1/tasks HTTP/1.1\r\ncontent-length: -1\r\n\r\n"] {
        let answer = raw(&node, bytes).await;
        assert!(answer.is_empty() || answer.contains(" 40") || answer.contains(" 505"), "{bytes:?}: {answer}");
    }
    assert!(node.api().is_ready().await);
}

/// Sends bytes as they are, and returns what comes back until the end of the first answer's head or of the connection.
async fn raw(node: &Node, request: &str) -> String {
    let address = node.api().base().trim_start_matches("http://");
    let mut stream = TcpStream::connect(address).await.unwrap();
    stream.write_all(request.as_bytes()).await.unwrap();
    let mut answer = Vec::new();
    let mut buffer = [0; 4096];
    let read = tokio::time::timeout(DEADLINE, async {
        while !answer.windows(4).any(|window| window == b"\r\n\r\n") {
            match stream.read(&mut buffer).await {
                Ok(count) if count > 0 => answer.extend_from_slice(&buffer[..count]),
                _ended => break,
            }
        }
    });
    read.await.expect("an answer, or the end of the connection");
    String::from_utf8_lossy(&answer).into_owned()
}
