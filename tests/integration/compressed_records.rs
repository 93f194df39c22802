//! Records that fit into their topic only after compression.

use std::time::Duration;

use punctual::domain::{Failure, Headers, Record, TopicName};
use punctual::kafka::{DeliveryOutcome, Mode};
use serde_json::{Value, json};

use crate::kafka_support::{Edge, Is as _, batch, bootstrap, settings, topic};
use crate::support::{Cluster, Wishes};

const DEADLINE: Duration = Duration::from_secs(60);
const LIMIT: &str = "1000000";

/// Rows of an export, which compress to about a fifth.
fn rows(count: u64) -> Vec<u8> {
    let mut state = 7_u64;
    let mut text = String::new();
    for number in 0..count {
        state =
            state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        let (sum, customer) = (state >> 44, (state >> 20) % 10_000);
        text.push_str(&format!(
            r#"{{"order":{number},"customer":"c-{customer}","sum":{sum},"currency":"EUR"}}"#
        ));
    }
    text.into_bytes()
}

fn record(topic: &TopicName, payload: &[u8]) -> Record {
    Record {
        topic: topic.clone(),
        key: Some(b"key".as_slice().into()),
        payload: Some(payload.into()),
        headers: Headers::default(),
    }
}

/// Returns the broker's answer to `payload` in a topic with this limit in bytes.
async fn outcome(edge: &mut Edge, payload: &[u8], limit: usize) -> DeliveryOutcome {
    let topic =
        topic(&bootstrap(), "compressed", 1, &[("max.message.bytes", &limit.to_string())]).await;
    edge.send(&batch(&topic, &[(Some(b"key"), Some(payload), Headers::default())]));
    edge.outcomes(1).await.remove(&0).unwrap()
}

/// The size used at submit is an upper bound, and not far above the size of the produced record.
#[tokio::test(flavor = "multi_thread")]
async fn what_is_counted_for_a_compressed_record_is_what_its_topic_must_take() {
    let bootstrap = bootstrap();
    let source = include_bytes!("../../LICENSE").repeat(12);
    for (codec, level) in [
        ("gzip", "-1"),
        ("gzip", "9"),
        ("snappy", "-1"),
        ("lz4", "-1"),
        ("zstd", "-1"),
        ("zstd", "1"),
        ("zstd", "12"),
    ] {
        let properties = [("compression.type", codec), ("compression.level", level)];
        let mut edge = Edge::new(&settings(&bootstrap, &properties), Mode::Alone);
        for (what, payload) in
            [("rows", rows(3_000)), ("letters", vec![b'x'; 300_000]), ("text", source.clone())]
        {
            let small = topic(&bootstrap, "small", 1, &[("max.message.bytes", "1000")]).await;
            let facts = edge.topics.look_up(&small).await.unwrap();
            let size = edge.topics.size(&record(&small, &payload), facts).await;
            let taken = outcome(&mut edge, &payload, size).await;
            assert!(
                matches!(taken, DeliveryOutcome::Acknowledged(_)),
                "{codec} {level} of {what}, {size} bytes: {taken:?}"
            );
            // Smaller records consist mostly of headers.
            let Some(less) = (size * 9 / 10).checked_sub(200) else { continue };
            let refused = outcome(&mut edge, &payload, less).await;
            assert!(
                refused.is(Failure::RefusedForGood),
                "{codec} {level} of {what} in {less} bytes: {refused:?}"
            );
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_record_over_the_limit_is_taken_when_it_is_not_once_it_is_compressed() {
    let cluster =
        Cluster::with("compressed", Wishes { has_etcd: false, ..Wishes::default() }).await;
    let topic = cluster.topic_with("t", &[("max.message.bytes", LIMIT)]).await;
    let plain = cluster
        .topic_with("plain", &[("max.message.bytes", LIMIT), ("compression.type", "uncompressed")])
        .await;
    let node = cluster.node_with(&["--kafka-property", "compression.type=zstd"]).await;
    let consumer = cluster.consumer(&topic);
    let letters = "x".repeat(3_000_000);
    let task = |topic: &str, text: &str| {
        json!({
            "topic": topic,
            "delay": "0s",
            "payload_text": text,
            "name": "n",
        })
    };

    let sent = node.api().submit(&task(&topic, &letters)).await;
    let records = consumer.wait_count(1, DEADLINE).await;
    assert_eq!(records[0].task_id(), sent.id);

    // The broker decompresses the records of the topic, and checks the result against the limit.
    let refused = node.api().post("/v1/tasks", task(&plain, &letters).to_string()).await;
    assert_eq!(
        (refused.status, serde_json::from_str::<Value>(&refused.text).unwrap()["type"].clone()),
        (422, Value::from("urn:punctual:problem:record-too-large"))
    );
    let noise: String =
        (0..1_500_000).map(|_| char::from(rand::random_range(b' '..=b'~'))).collect();
    let noise = json!({ "topic": topic, "delay": "0s", "payload_text": noise }).to_string();
    let refused = node.api().post("/v1/tasks", noise).await;
    assert_eq!(refused.status, 422, "what stays too large: {}", refused.text);
    let path = format!("/v1/topics/{topic}/tasks/n");
    let body = json!({ "delay": "0s", "payload_text": letters }).to_string().into_bytes();
    let replaced =
        node.api().send(reqwest::Method::PUT, &path, Some(("application/json", body))).await;
    assert_eq!(replaced.status, 201, "{}", replaced.text);
    assert_eq!(consumer.wait_count(2, DEADLINE).await.len(), 2);
}
