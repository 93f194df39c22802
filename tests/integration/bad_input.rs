//! Bad input gets a problem (RFC 9457) that names its fault, and changes nothing.

use std::time::Duration;

use reqwest::Method;
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use crate::support::{Answer, Call, Cluster, Node, Oracle, eventually, now_ms};

#[path = "../../src/api/tests/wrong_requests/rows.rs"]
mod rows;

use rows::{
    BATCHES, BULKS, ITEMS, NO_FIELD, OUTCOMES, REPLACEMENTS, REQUESTS, TASK, TASKS, WantedProblem,
};

const DEADLINE: Duration = Duration::from_secs(120);

/// A request that must be refused.
struct Wrong {
    method: Method,
    path: String,
    content_type: Option<&'static str>,
    body: String,
    wanted: WantedProblem,
}

fn wrong(method: Method, path: &str, body: impl Into<String>, wanted: WantedProblem) -> Wrong {
    Wrong {
        method,
        path: path.to_owned(),
        content_type: Some("application/json"),
        body: body.into(),
        wanted,
    }
}

/// The whole table, except tasks within bulk submits, which get 200.
fn table() -> Vec<Wrong> {
    let mut all = Vec::new();
    all.extend(TASKS.iter().map(|(body, status, kind, field)| {
        wrong(Method::POST, "/v1/tasks", *body, (*status, kind, field))
    }));
    all.extend(BATCHES.iter().map(|(body, status, kind, field)| {
        wrong(Method::POST, "/v1/tasks/batch", *body, (*status, kind, field))
    }));
    all.extend(REQUESTS.iter().map(|(method, path, content_type, wanted)| Wrong {
        content_type: *content_type,
        ..wrong(method.parse().unwrap(), path, TASK, *wanted)
    }));
    for path in ["/v1/tasks/cancel", "/v1/dead/redrive", "/v1/dead/drop"] {
        all.extend(BULKS.iter().map(|(body, status, kind, field)| {
            wrong(Method::POST, path, *body, (*status, kind, field))
        }));
    }
    all.extend(REPLACEMENTS.iter().map(|(topic, body, status, kind, field)| {
        wrong(Method::PUT, &format!("/v1/topics/{topic}/tasks/n"), *body, (*status, kind, field))
    }));
    all
}

/// Cases that need a topic with a limit, a compacted topic, or very much input.
fn with_topics_of_their_own(small_topic: &str, compacted_topic: &str) -> Vec<Wrong> {
    let post = |body: String, wanted: WantedProblem| wrong(Method::POST, "/v1/tasks", body, wanted);
    let long = "x".repeat(20_000);
    let batch = format!(r#"{{"tasks":[{}0]}}"#, "0,".repeat(10_000));
    vec![
        post(
            json!({"topic": small_topic, "delay": 1, "payload_text": long}).to_string(),
            (422, "record-too-large", "payload_text"),
        ),
        post(
            json!({"topic": small_topic, "delay": 1, "tombstone": true, "key": long}).to_string(),
            (422, "record-too-large", "key"),
        ),
        post(
            json!({"topic": compacted_topic, "delay": 1, "payload": 1}).to_string(),
            (422, "key-required", "key"),
        ),
        post(
            json!({"topic": "t", "delay": 1, "payload": 1, "name": "n".repeat(256)}).to_string(),
            (400, "invalid-value", "name"),
        ),
        wrong(Method::POST, "/v1/tasks/batch", batch, (413, "batch-too-large", "tasks")),
        wrong(
            Method::DELETE,
            "/v1/topics/t/tasks/n",
            format!(r#"{}{{"dry_run":true}}"#, " ".repeat(5_000)),
            (400, "unknown-field", NO_FIELD),
        ),
    ]
}

/// Sends requests one after the other, and tells the oracle their answers.
struct Caller<'a> {
    node: &'a Node,
    /// The topic that is named `t` in the cases.
    topic: &'a str,
    oracle: Oracle,
}

impl Caller<'_> {
    async fn send(
        &mut self,
        method: Method,
        path: &str,
        content_type: Option<&str>,
        body: &str,
    ) -> Answer {
        let path = path.replace("/topics/t/", &format!("/topics/{}/", self.topic));
        let body = body.replace(r#"topic":"t""#, &format!(r#"topic":"{}""#, self.topic));
        let content = content_type.map(|content_type| (content_type, body.into_bytes()));
        let answer = self.node.api().send(method.clone(), &path, content.clone()).await;
        let body = content.map(|(_, body)| body).unwrap_or_default();
        let call = Call {
            method: method.to_string(),
            path,
            body,
            key: None,
            status: answer.status,
            answer: answer.text.clone().into_bytes(),
            at: now_ms(),
        };
        self.oracle.take_in(&call);
        answer
    }

    async fn post(&mut self, path: &str, body: &str) -> Answer {
        self.send(Method::POST, path, Some("application/json"), body).await
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn bad_input_is_refused_with_a_reason_and_nothing_of_it_is_stored() {
    let cluster = Cluster::start("bad-input").await;
    let topic = cluster.topic("orders").await;
    let small_topic = cluster.topic_with("small", &[("max.message.bytes", "10000")]).await;
    let compacted_topic =
        cluster.topic_with("compacted", &[("cleanup.policy", "compact,delete")]).await;
    let node = cluster.node().await;
    let mut caller = Caller { node: &node, topic: &topic, oracle: Oracle::default() };
    let mut rows = table();
    rows.extend(with_topics_of_their_own(&small_topic, &compacted_topic));
    for row in &rows {
        let what = format!("{} {} {:?} {:.200}", row.method, row.path, row.content_type, row.body);
        let answer = caller.send(row.method.clone(), &row.path, row.content_type, &row.body).await;
        check_answer(&what, &answer, row.wanted);
    }
    for (item, status, kind, field) in ITEMS {
        let answer =
            caller.post("/v1/tasks/batch", &format!(r#"{{"tasks":[{TASK},{item},{TASK}]}}"#)).await;
        let results = answer.json()["results"].clone();
        assert_eq!(
            (&results[0]["status"], &results[2]["status"]),
            (&json!(201), &json!(201)),
            "{item}: {results}"
        );
        check_problem(item, &results[1]["problem"], (*status, kind, field));
    }
    for (item, status, kind, field) in OUTCOMES {
        let body = format!(r#"{{"outcomes":[{{}},{item}]}}"#);
        let results = node.api().post("/v1/outcomes", body).await.json()["results"].clone();
        assert_eq!(results[0]["status"], 400, "{item}: {results}");
        check_problem(item, &results[1]["problem"], (*status, kind, field));
    }
    eprintln!("{} wrong requests, each with its status, type and field", rows.len() + ITEMS.len());
    assert!(rows.len() + ITEMS.len() >= 100);
    let no_text = node.api().post("/v1/tasks", b"{\"topic\":\"\xff\"}".as_slice()).await;
    check_answer("bytes that are no UTF-8", &no_text, (400, "malformed-json", NO_FIELD));
    // Only the good tasks between the bad ones exist.
    for due in ["1h", "8760h", "0ms"] {
        let task = format!(
            r#"{{"topic":"t","delay":"{due}","payload_text":"x","key":"k","headers":{{"a":"b"}}}}"#
        );
        assert_eq!(caller.post("/v1/tasks", &task).await.status, 201);
    }
    let keyed =
        json!({"topic": compacted_topic, "delay": "1h", "payload": 1, "key": ""}).to_string();
    assert_eq!(caller.post("/v1/tasks", &keyed).await.status, 201);
    caller.oracle.check(&cluster, DEADLINE).await;
    assert_eq!(caller.oracle.task_count(), 2 * ITEMS.len() + 4);
    eventually("the node is ready", DEADLINE, async || node.api().is_ready().await).await;
    assert_eq!(node.api().get("/livez").await.status, 200);
}

fn check_answer(what: &str, answer: &Answer, wanted: WantedProblem) {
    assert_eq!(answer.status, wanted.0, "{what}: {}", answer.text);
    assert_eq!(
        answer.header("content-type"),
        Some("application/problem+json"),
        "{what}: {}",
        answer.text
    );
    let help = format!("</problems/{}>; rel=\"help\"", wanted.1);
    assert_eq!(answer.header("link"), Some(help.as_str()), "{what}");
    check_problem(what, &answer.json(), wanted);
}

fn check_problem(what: &str, problem: &Value, (status, kind, field): WantedProblem) {
    let found = (
        problem["status"].as_u64(),
        problem["type"].as_str(),
        problem["field"].as_str().unwrap_or(NO_FIELD),
    );
    let kind = format!("urn:punctual:problem:{kind}");
    assert_eq!(found, (Some(u64::from(status)), Some(kind.as_str()), field), "{what}: {problem}");
    assert!(
        problem["detail"].as_str().is_some_and(|detail| detail.len() > 10),
        "{what}: {problem}"
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_body_over_the_limit_is_refused_before_it_is_read() {
    let cluster = Cluster::start("body-limit").await;
    let node = cluster.node_with(&["--body-max", "64KiB"]).await;
    // The request announces its size, and is refused before the body.
    let answer = raw(
        &node,
        "POST /v1/tasks HTTP/1.1\r\n\
         host: localhost\r\n\
         content-type: application/json\r\n\
         content-length: 1099511627776\r\n\r\n\
         {",
    )
    .await;
    assert!(answer.starts_with("HTTP/1.1 413 "), "{answer}");
    assert!(answer.contains("application/problem+json"), "{answer}");
    // The request announces no size. The limit holds, too.
    let chunk = format!("{:x}\r\n{}\r\n", 16 << 10, " ".repeat(16 << 10));
    let head = "POST /v1/tasks HTTP/1.1\r\n\
                host: localhost\r\n\
                content-type: application/json\r\n\
                transfer-encoding: chunked\r\n\r\n";
    let answer = raw(&node, &format!("{head}{}", chunk.repeat(5))).await;
    assert!(answer.starts_with("HTTP/1.1 413 "), "{answer}");
    eventually("the node is ready", DEADLINE, async || node.api().is_ready().await).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn bytes_that_are_no_http_do_not_harm_the_node() {
    let cluster = Cluster::start("no-http").await;
    let node = cluster.node().await;
    for bytes in [
        "\0\u{1}\u{2}\r\n\r\n",
        "GET / HTTP/9.9\r\n\r\n",
        "POST /v1/tasks HTTP/1.1\r\ncontent-length: -1\r\n\r\n",
    ] {
        let answer = raw(&node, bytes).await;
        assert!(
            answer.is_empty() || answer.contains(" 40") || answer.contains(" 505"),
            "{bytes:?}: {answer}"
        );
    }
    // An answer must not suggest a retry when a retry cannot succeed.
    let head = "POST /v1/tasks HTTP/1.1\r\n\
                host: localhost\r\n\
                content-type: application/json\r\n\
                transfer-encoding: chunked\r\n\r\n";
    for chunks in ["zz\r\n{}\r\n0\r\n\r\n", "2\r\n{}XX0\r\n\r\n"] {
        let answer = raw(&node, &format!("{head}{chunks}")).await;
        assert!(
            answer.starts_with("HTTP/1.1 400 ") && answer.contains("malformed-encoding"),
            "{chunks:?}: {answer}"
        );
    }
    for name in ["50%off", "%zz", "a%", "a%2"] {
        let answer = raw(
            &node,
            &format!(
                "GET /v1/topics/t/tasks/{name} HTTP/1.1\r\n\
                 host: localhost\r\n\
                 connection: close\r\n\r\n"
            ),
        )
        .await;
        assert!(
            answer.starts_with("HTTP/1.1 400 ") && answer.contains("invalid-value"),
            "{name}: {answer}"
        );
    }
    eventually("the node is ready", DEADLINE, async || node.api().is_ready().await).await;
}

/// Sends raw bytes. Returns the response until the end of the first head or of the connection.
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
