//! Spans of submits and publications, as a collector gets them.

use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::body::Bytes;
use axum::extract::State;
use axum::http::{HeaderMap, StatusCode};
use axum::routing::post;
use opentelemetry_proto::tonic::collector::trace::v1::ExportTraceServiceRequest;
use opentelemetry_proto::tonic::common::v1::KeyValue;
use opentelemetry_proto::tonic::common::v1::any_value::Value as AnyValue;
use opentelemetry_proto::tonic::trace::v1::Span;
use opentelemetry_proto::tonic::trace::v1::span::SpanKind;
use parking_lot::Mutex;
use prost::Message as _;
use reqwest::{Client, Method};
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpListener;

use crate::support::cluster::Cluster;
use crate::support::consumer::Record;
use crate::support::eventually;
use crate::support::node::Node;

const DEADLINE: Duration = Duration::from_secs(30);
const CALLER_TRACE: &str = "4bf92f3577b34da6a3ce929d0e0e4736";
const CALLER_SPAN: &str = "00f067aa0ba902b7";

/// A collector that keeps what it gets.
#[derive(Clone, Default)]
struct Collector {
    spans: Arc<Mutex<Vec<Span>>>,
    resources: Arc<Mutex<Vec<Vec<KeyValue>>>>,
    tokens: Arc<Mutex<Vec<String>>>,
}

impl Collector {
    async fn start() -> (Self, String) {
        let collector = Self::default();
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let router = Router::new().route("/v1/traces", post(take)).with_state(collector.clone());
        tokio::spawn(async move { axum::serve(listener, router).await.unwrap() });
        (collector, url)
    }

    /// Waits for `count` spans. Returns them by their names, sorted.
    async fn wait_count(&self, count: usize) -> Vec<(String, Span)> {
        eventually(&format!("the collector has {count} spans"), DEADLINE, async || {
            self.spans.lock().len() >= count
        })
        .await;
        let spans = self.spans.lock().clone();
        let mut named: Vec<(String, Span)> =
            spans.into_iter().map(|span| (span.name.clone(), span)).collect();
        named.sort_by(|(one, _), (other, _)| one.cmp(other));
        assert_eq!(named.len(), count, "{named:?}");
        named
    }
}

async fn take(State(to): State<Collector>, headers: HeaderMap, body: Bytes) -> StatusCode {
    let request = ExportTraceServiceRequest::decode(body).unwrap();
    let token = headers.get("authorization").and_then(|value| value.to_str().ok());
    to.tokens.lock().push(token.unwrap_or_default().to_owned());
    for part in request.resource_spans {
        to.resources.lock().push(part.resource.unwrap().attributes);
        to.spans.lock().extend(part.scope_spans.into_iter().flat_map(|scope| scope.spans));
    }
    StatusCode::OK
}

fn attribute(attributes: &[KeyValue], key: &str) -> Option<String> {
    let found = attributes.iter().find(|attribute| attribute.key == key)?;
    Some(match found.value.clone()?.value? {
        AnyValue::StringValue(text) => text,
        AnyValue::IntValue(number) => number.to_string(),
        other => panic!("{other:?}"),
    })
}

fn of(span: &Span, key: &str) -> Option<String> {
    attribute(&span.attributes, key)
}

fn header<'a>(record: &'a Record, name: &str) -> Option<&'a str> {
    record.header(name).map(|value| std::str::from_utf8(value).unwrap())
}

/// The `traceparent` of a recorded span.
fn traceparent(span: &Span) -> String {
    format!("00-{}-{}-01", hex::encode(&span.trace_id), hex::encode(&span.span_id))
}

async fn submit(node: &Node, body: &Value, headers: &[(&str, &str)]) {
    let path = if body.get("tasks").is_some() { "/v1/tasks/batch" } else { "/v1/tasks" };
    let request = Client::new().request(Method::POST, format!("{}{path}", node.api().base()));
    let request = request.header("content-type", "application/json").body(body.to_string());
    let request =
        headers.iter().fold(request, |request, (name, value)| request.header(*name, *value));
    assert!(request.send().await.unwrap().status().is_success());
}

async fn end(node: &mut Node) {
    node.terminate();
    assert!(node.wait_exit(DEADLINE).await.success(), "{}", node.log_tail());
}

#[tokio::test]
async fn a_submit_is_a_child_of_its_caller_and_its_publication_a_trace_with_a_link_to_it() {
    let cluster = Cluster::start("spans").await;
    let topic = cluster.topic("orders").await;
    let (collector, url) = Collector::start().await;
    let file = cluster.folder().join("headers");
    std::fs::write(&file, "# the collector's\nauthorization: Bearer for-the-collector\n").unwrap();
    let file = file.to_str().unwrap();
    let flags = ["--otlp-endpoint", &url, "--otlp-headers-file", file];
    let mut node = cluster.node_with(&flags).await;
    let consumer = cluster.consumer(&topic);
    let caller = format!("00-{CALLER_TRACE}-{CALLER_SPAN}-01");
    let task = json!({"topic": topic, "delay": "5s", "payload_text": "one"});
    submit(&node, &task, &[("traceparent", &caller), ("tracestate", "vendor=1")]).await;
    let record = consumer.wait_count(1, DEADLINE).await.pop().unwrap();
    let spans = collector.wait_count(2).await;
    let [(_, submitted), (_, published)] = spans.as_slice() else { panic!("{spans:?}") };

    assert_eq!(submitted.name, "POST /v1/tasks");
    assert_eq!(submitted.kind, i32::from(SpanKind::Server));
    assert_eq!(hex::encode(&submitted.trace_id), CALLER_TRACE);
    assert_eq!(hex::encode(&submitted.parent_span_id), CALLER_SPAN);
    assert_eq!(of(submitted, "http.response.status_code").as_deref(), Some("201"));
    assert_eq!(published.name, format!("publish {topic}"));
    assert_eq!(published.kind, i32::from(SpanKind::Producer));
    assert!(published.parent_span_id.is_empty(), "a trace of its own");
    assert_ne!(published.trace_id, submitted.trace_id);
    let [link] = published.links.as_slice() else { panic!("{published:?}") };
    assert_eq!((&link.trace_id, &link.span_id), (&submitted.trace_id, &submitted.span_id));
    assert_eq!(link.trace_state, "vendor=1");
    let id = header(&record, "punctual-task-id").map(str::to_owned);
    assert_eq!(of(submitted, "punctual.task.id"), id);
    assert_eq!(of(published, "punctual.task.id"), id);
    assert_eq!(of(published, "messaging.kafka.offset").as_deref(), Some("0"));
    assert!(published.end_time_unix_nano >= published.start_time_unix_nano);
    assert!(published.start_time_unix_nano > submitted.end_time_unix_nano);

    assert_eq!(header(&record, "traceparent"), Some(traceparent(published).as_str()));
    assert_eq!(
        header(&record, "punctual-submit-traceparent"),
        Some(traceparent(submitted).as_str())
    );
    assert_eq!(header(&record, "tracestate"), Some("vendor=1"));
    assert!(collector.tokens.lock().iter().all(|token| token == "Bearer for-the-collector"));
    let resource = collector.resources.lock()[0].clone();
    assert_eq!(attribute(&resource, "service.name").as_deref(), Some("punctual"));
    assert_eq!(attribute(&resource, "service.instance.id").as_deref(), Some("node-1"));
    eventually("the node has the collector's answer", DEADLINE, async || {
        node.api().metric("punctual_trace_spans_exported_total").await == 2.0
    })
    .await;
    assert_eq!(node.api().metric("punctual_trace_spans_waiting").await, 0.0);
    assert!(!node.log().contains("for-the-collector"), "{}", node.log());

    // The tasks of a request share its span. A drain sends the spans that wait.
    let own = caller.replace("4bf9", "aaaa");
    let batch = json!({"tasks": [
        {"topic": topic, "delay": 0, "payload": 2},
        {"topic": topic, "delay": 0, "payload": 3},
        {"topic": topic, "delay": 0, "payload_text": "own", "headers": {"traceparent": own}},
    ]});
    submit(&node, &batch, &[]).await;
    // A caller that does not record its trace.
    let unrecorded = caller.replace("-01", "-00");
    let task = json!({"topic": topic, "delay": 0, "payload_text": "unrecorded"});
    submit(&node, &task, &[("traceparent", &unrecorded)]).await;
    let records = consumer.wait_count(5, DEADLINE).await;
    end(&mut node).await;
    let spans = collector.wait_count(5).await;
    let batch = spans.iter().find(|(name, _)| name == "POST /v1/tasks/batch").unwrap();
    assert!(batch.1.parent_span_id.is_empty());
    let linked = spans
        .iter()
        .filter(|(_, span)| span.links.iter().any(|link| link.span_id == batch.1.span_id));
    assert_eq!(linked.count(), 2);
    let with = |payload: &[u8]| {
        records.iter().find(|record| record.payload.as_deref() == Some(payload)).unwrap()
    };
    assert_eq!(header(with(b"own"), "traceparent"), Some(own.as_str()));
    assert_eq!(header(with(b"own"), "punctual-submit-traceparent"), None);
    assert_eq!(header(with(b"unrecorded"), "traceparent"), Some(unrecorded.as_str()));
    assert_eq!(header(with(b"unrecorded"), "punctual-submit-traceparent"), None);
}

#[tokio::test]
async fn a_collector_that_is_away_or_hangs_delays_nothing() {
    let cluster = Cluster::start("no-spans").await;
    let topic = cluster.topic("orders").await;
    // It accepts connections, and nobody answers.
    let silent = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let hangs = format!("http://{}", silent.local_addr().unwrap());
    let gone = TcpListener::bind("127.0.0.1:0").await.unwrap().local_addr().unwrap();
    let consumer = cluster.consumer(&topic);
    for (number, url) in [hangs, format!("http://{gone}")].into_iter().enumerate() {
        let mut node = cluster.node_with(&["--otlp-endpoint", &url]).await;
        for _ in 0..20 {
            submit(&node, &json!({"topic": topic, "delay": 0, "payload": number}), &[]).await;
        }
        let records = consumer.wait_count(20 * (number + 1), DEADLINE).await;
        assert!(records.iter().all(|record| header(record, "traceparent").is_some()));
        eventually("the spans count as failed", DEADLINE, async || {
            node.api().metric("punctual_trace_spans_failed_total").await >= 20.0
        })
        .await;
        let lines = node.log().matches("the collector has not taken spans").count();
        assert_eq!(lines, 1, "one line, however long it lasts: {}", node.log_tail());
        end(&mut node).await;
    }
}

/// A task of a node with tracing has its trace when a node without publishes it.
#[tokio::test]
async fn a_node_without_tracing_publishes_the_trace_of_the_submit() {
    let cluster = Cluster::start("mixed-spans").await;
    let topic = cluster.topic("orders").await;
    let (collector, url) = Collector::start().await;
    let mut node = cluster.node_with(&["--otlp-endpoint", &url]).await;
    submit(&node, &json!({"topic": topic, "delay": "20s", "payload": 1}), &[]).await;
    end(&mut node).await;
    let spans = collector.wait_count(1).await;
    let _plain = cluster.node_with(&[]).await;
    let record = cluster.consumer(&topic).wait_count(1, DEADLINE).await.pop().unwrap();
    let submitted = traceparent(&spans[0].1);
    assert_eq!(header(&record, "traceparent"), Some(submitted.as_str()));
    assert_eq!(header(&record, "punctual-submit-traceparent"), Some(submitted.as_str()));
}

/// A collector that answers the first request with a body without an end. Returns its URL, and the
/// number of bytes that were written once the node has closed the connection.
async fn endless_collector() -> (String, Arc<Mutex<Option<u64>>>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    let written = Arc::new(Mutex::new(None));
    let told = Arc::clone(&written);
    tokio::spawn(async move {
        let (mut stream, _) = listener.accept().await.unwrap();
        let mut request = vec![0; 64 << 10];
        assert!(stream.read(&mut request).await.unwrap() > 0);
        let head = b"HTTP/1.1 200 OK\r\ncontent-length: 17179869184\r\n\r\n";
        stream.write_all(head).await.unwrap();
        let (piece, mut count) = (vec![b'x'; 64 << 10], 0_u64);
        while stream.write_all(&piece).await.is_ok() {
            count += 64 << 10;
        }
        *told.lock() = Some(count);
    });
    (url, written)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_answer_of_a_collector_is_read_only_in_part() {
    let cluster = Cluster::start("spans-endless").await;
    let topic = cluster.topic("orders").await;
    let (url, written) = endless_collector().await;
    let mut node = cluster.node_with(&["--otlp-endpoint", &url]).await;
    submit(&node, &json!({ "topic": topic, "delay": 0, "payload": 1 }), &[]).await;
    eventually("the node closes the connection", DEADLINE, async || written.lock().is_some()).await;
    let count = written.lock().unwrap();
    // Both sockets have buffers.
    assert!(count < 64 << 20, "{count} bytes");
    end(&mut node).await;
}
