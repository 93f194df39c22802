//! The limits of the API on the real program: each one is reported and counted, slow callers are
//! cut off, and all parts of a request reach the record.

use std::io::Write as _;
use std::time::Duration;

use reqwest::{Client, Method, RequestBuilder, StatusCode};
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;

use crate::support::{Cluster, Node, eventually, eventually_some};

const DEADLINE: Duration = Duration::from_secs(120);
const TRACE: &str = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";

fn gzip(bytes: &[u8]) -> Vec<u8> {
    let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::default());
    encoder.write_all(bytes).unwrap();
    encoder.finish().unwrap()
}

fn json_request(http: &Client, node: &Node, method: Method, path: &str) -> RequestBuilder {
    http.request(method, format!("{}{path}", node.api().base()))
        .header("content-type", "application/json")
}

async fn connect(node: &Node, bytes: &str) -> TcpStream {
    let mut stream =
        TcpStream::connect(node.api().base().trim_start_matches("http://")).await.unwrap();
    stream.write_all(bytes.as_bytes()).await.unwrap();
    stream
}

async fn rest_of(stream: &mut TcpStream) -> String {
    let mut bytes = Vec::new();
    tokio::time::timeout(DEADLINE, stream.read_to_end(&mut bytes)).await.unwrap().ok();
    String::from_utf8_lossy(&bytes).into_owned()
}

async fn metric(node: &Node, line: &str) -> Option<String> {
    let metrics = node.metrics().await;
    metrics.lines().find_map(|found| found.strip_prefix(line)).map(|value| value.trim().to_owned())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_trace_reaches_the_record_and_a_request_id_the_answer_and_the_log() {
    let cluster = Cluster::start("traces").await;
    let topic = cluster.topic("orders").await;
    let node = cluster.node_with(&["--log", "info,punctual::api=debug"]).await;
    let consumer = cluster.consumer(&topic);
    let http = Client::new();
    let own = TRACE.replace("4bf9", "aaaa");
    let task = |text: &str| json!({"topic": topic, "delay": 300, "payload_text": text});
    let with_own = |text: &str| {
        json!({
            "topic": topic,
            "delay": 300,
            "payload_text": text,
            "headers": {"traceparent": own},
        })
    };
    let send = async |method: Method, path: &str, body: Vec<u8>, encoding: &str| {
        let request = json_request(&http, &node, method, path).header("traceparent", TRACE);
        let request =
            request.header("content-encoding", encoding).header("x-request-id", "check-out/17");
        let response = request.body(body).send().await.unwrap();
        assert!(response.status().is_success(), "{path}: {}", response.status());
        assert_eq!(response.headers()["x-request-id"], "check-out/17");
    };
    send(Method::POST, "/v1/tasks", task("one").to_string().into(), "identity").await;
    send(Method::POST, "/v1/tasks", gzip(with_own("own").to_string().as_bytes()), "gzip").await;
    let batch = json!({"tasks": [task("first"), with_own("own"), task("third")]}).to_string();
    send(Method::POST, "/v1/tasks/batch", zstd::encode_all(batch.as_bytes(), 0).unwrap(), "zstd")
        .await;
    let named = json!({"delay": 300, "payload_text": "named"}).to_string();
    send(Method::PUT, &format!("/v1/topics/{topic}/tasks/n"), named.into(), "identity").await;
    for record in consumer.wait_count(6, DEADLINE).await {
        let wanted = if record.payload.as_deref() == Some(b"own") { own.as_str() } else { TRACE };
        assert_eq!(record.header("traceparent"), Some(wanted.as_bytes()), "{record:?}");
    }
    let wrong = json_request(&http, &node, Method::POST, "/v1/tasks")
        .header("x-request-id", "wrong-18")
        .body("{")
        .send()
        .await;
    let problem: Value = wrong.unwrap().json().await.unwrap();
    assert_eq!(problem["request_id"], "wrong-18");
    for id in ["check-out/17", "wrong-18"] {
        eventually("the log names the request", DEADLINE, async || {
            node.log().lines().any(|line| line.contains(id) && line.contains("answered"))
        })
        .await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn each_limit_has_its_status_its_problem_and_its_metric() {
    let cluster = Cluster::start("limits").await;
    let mut limits = vec![
        "--header-max",
        "1KiB",
        "--batch-max",
        "2",
        "--body-max",
        "64KiB",
        "--requests-max",
        "2",
    ];
    limits.extend(["--caller-requests-max", "1", "--caller-connections-max", "8"]);
    let node = cluster.node_with(&limits).await;
    let http = Client::new();
    let check = async |request: RequestBuilder, status: u16, kind: &str, limit: &str| {
        let response = request.send().await.unwrap();
        assert_eq!(response.status(), StatusCode::from_u16(status).unwrap(), "{kind}");
        assert_eq!(
            response.headers().contains_key("retry-after"),
            matches!(status, 429 | 503),
            "{kind}"
        );
        let problem: Value = response.json().await.unwrap();
        assert_eq!(problem["type"], format!("urn:punctual:problem:{kind}"));
        assert_eq!(
            metric(&node, &format!("punctual_api_rejected_total{{limit=\"{limit}\"}}"))
                .await
                .as_deref(),
            Some("1")
        );
    };
    let post = |path: &str| json_request(&http, &node, Method::POST, path);
    check(
        post("/v1/tasks").header("x-large", "x".repeat(1024)),
        431,
        "header-too-large",
        "header_bytes",
    )
    .await;
    check(
        post("/v1/tasks/batch").body(r#"{"tasks":[1,2,3]}"#),
        413,
        "batch-too-large",
        "batch_tasks",
    )
    .await;
    let bomb = gzip(&vec![b' '; 32 << 20]);
    assert!(bomb.len() < 64 << 10);
    check(
        post("/v1/tasks").header("content-encoding", "gzip").body(bomb),
        413,
        "body-too-large",
        "body_bytes",
    )
    .await;
    let head = "POST /v1/tasks HTTP/1.1\r\n\
                host: localhost\r\n\
                content-type: application/json\r\n\
                content-length: 9\r\n\
                expect: 100-continue\r\n\r\n";
    let mut half = connect(&node, head).await;
    // The node asks for the body: so the request is in progress.
    assert_eq!(half.read(&mut [0; 100]).await.unwrap(), "HTTP/1.1 100 Continue\r\n\r\n".len());
    let cluster_path = json_request(&http, &node, Method::GET, "/v1/cluster");
    check(cluster_path, 429, "too-many-requests", "caller_requests").await;
    drop(half);
    eventually("the place is free again", DEADLINE, async || {
        node.api().get("/v1/cluster").await.status == 200
    })
    .await;
    // At least one connection is already open, so the last of these is over the limit.
    let mut open = Vec::new();
    for _ in 0..8 {
        open.push(connect(&node, "").await);
    }
    let turned_away = rest_of(open.last_mut().unwrap()).await;
    assert!(
        turned_away.starts_with("HTTP/1.1 429 ")
            && turned_away.contains("problem:too-many-requests"),
        "{turned_away}"
    );
    drop(open);
    let count = metric(&node, r#"punctual_api_rejected_total{limit="caller_connections"}"#).await;
    assert!(count.is_some_and(|count| count.parse::<u64>().unwrap() >= 1));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn slow_callers_are_cut_off_and_leave_nothing_behind() {
    let cluster = Cluster::start("slow-callers").await;
    let topic = cluster.topic("orders").await;
    let deadlines = [
        "--header-timeout",
        "1s",
        "--idle-timeout",
        "5s",
        "--request-timeout",
        "2s",
        "--answer-timeout",
        "1s",
    ];
    let node = cluster.node_with(&deadlines).await;
    let large = json!({"topic": topic, "delay": "1h", "payload_text": "x".repeat(900_000)});
    // Within two seconds, also on a machine with a slow start. A task that was stored twice does no
    // harm.
    let id = eventually_some("a large task is stored", DEADLINE, async || {
        let answer = node.api().post("/v1/tasks", large.to_string()).await;
        (answer.status == 201).then(|| answer.json()["id"].as_str().unwrap().to_owned())
    });
    let path = format!("/v1/tasks/{}", id.await);
    let mut idle = connect(&node, "GET /livez HTTP/1.1\r\nhost: localhost\r\n\r\n").await;
    let mut nothing = connect(&node, "").await;
    let mut half_header = connect(&node, "GET /livez HTTP/1.1\r\nhost:").await;
    let half_body = "POST /v1/tasks HTTP/1.1\r\n\
                     host: localhost\r\n\
                     content-type: application/json\r\n\
                     content-length: 9\r\n\r\n\
                     {";
    let mut half_body = connect(&node, half_body).await;
    // Repeated often enough, the request fills every buffer on its way.
    let unread =
        connect(&node, &format!("GET {path} HTTP/1.1\r\nhost: localhost\r\n\r\n").repeat(40)).await;
    assert_eq!(rest_of(&mut nothing).await, "");
    assert_eq!(rest_of(&mut half_header).await, "");
    assert!(rest_of(&mut half_body).await.starts_with("HTTP/1.1 408 "));
    // Repeated, so the connection for this request is never idle for long.
    for (line, least) in [
        (r#"punctual_api_cut_off_total{deadline="header"}"#, 2),
        (r#"punctual_api_cut_off_total{deadline="idle"}"#, 1),
        (r#"punctual_api_cut_off_total{deadline="answer"}"#, 1),
        (r#"punctual_api_rejected_total{limit="request_deadline"}"#, 1),
    ] {
        eventually(line, DEADLINE, async || {
            metric(&node, line).await.is_some_and(|count| count.parse::<u64>().unwrap() >= least)
        })
        .await;
    }
    assert!(rest_of(&mut idle).await.starts_with("HTTP/1.1 200 "));
    eventually("nothing is held any more", DEADLINE, async || {
        metric(&node, "punctual_api_body_memory_bytes").await.as_deref() == Some("0")
            && metric(&node, "punctual_api_requests_in_flight").await.as_deref() == Some("1")
    })
    .await;
    drop(unread);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn bombs_take_no_more_memory_than_is_set_aside_for_bodies() {
    let cluster = Cluster::start("bombs").await;
    let node = cluster.node_with(&["--body-max", "8MiB", "--body-memory", "32MiB"]).await;
    let http = Client::new();
    let zeros = vec![b' '; 256 << 20];
    let bombs = [("gzip", gzip(&zeros)), ("zstd", zstd::encode_all(zeros.as_slice(), 0).unwrap())];
    drop(zeros);
    let before = node.memory("VmHWM");
    let sends = (0..64).map(|number| {
        let (encoding, bomb) = &bombs[number % 2];
        let request = json_request(&http, &node, Method::POST, "/v1/tasks")
            .header("content-encoding", *encoding);
        request.body(bomb.clone()).send()
    });
    for response in futures_util::future::join_all(sends).await {
        let status = response.unwrap().status().as_u16();
        assert!(matches!(status, 413 | 503), "{status}");
    }
    let grown = node.memory("VmHWM") - before;
    assert!(grown < 160 << 20, "{} MiB more", grown >> 20);
    eventually("the node is ready", DEADLINE, async || node.api().is_ready().await).await;
}
