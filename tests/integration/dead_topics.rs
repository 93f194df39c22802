//! A dead topic that took records when the task was submitted, and does not any more.

use std::time::Duration;

use serde_json::json;
use uuid::Uuid;

use crate::support::{Cluster, Node, eventually_some, kafka_admin};

const DEADLINE: Duration = Duration::from_secs(120);
const NOT_FINISHED: &str = "attempt 1 of 1 was not finished in its time to run";

/// Submits a task with one attempt, which nobody finishes.
async fn submit(node: &Node, topic: &str, ttr: &str, dead_topic: Option<&str>) -> Uuid {
    let mut task = json!({
        "topic": topic, "delay": 0, "payload_text": "x".repeat(2000), "ttr": ttr,
        "retry": { "attempts_max": 1 }
    });
    if let Some(dead_topic) = dead_topic {
        task["retry"]["dead_topic"] = dead_topic.into();
    }
    node.api().submit(&task).await.id
}

async fn dead_reason(node: &Node, id: Uuid) -> String {
    eventually_some("the task is a dead letter", DEADLINE, async || {
        let shown = node.api().task(id).await.shown;
        let is_dead = shown["state"] == "dead" && shown["died_at"].is_string();
        is_dead.then(|| shown["reason"].as_str().unwrap_or_default().to_owned())
    })
    .await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_dead_topic_that_is_gone_too_small_or_denied_is_named_with_its_refusal() {
    let cluster = Cluster::start("dead-topics").await;
    let node = cluster.node_with(&["--topic-denial-max", "3s"]).await;
    let topic = cluster.topic("orders").await;
    let gone = cluster.topic("gone").await;
    let small = cluster.topic("small").await;
    let denied = cluster.topic("denied").await;
    let mut ids = Vec::new();
    for dead_topic in [&gone, &small, &denied] {
        ids.push(submit(&node, &topic, "15s", Some(dead_topic)).await);
    }
    cluster.delete_topic(&gone).await;
    cluster.alter_topic(&small, &[("max.message.bytes", "1000")]).await;
    kafka_admin::deny_writes(&cluster.stack.kafka, &denied).await;
    for (id, dead_topic, refusal) in [
        (ids[0], &gone, "the topic does not exist"),
        (ids[1], &small, "size"),
        (ids[2], &denied, "uthoriz"),
    ] {
        let reason = dead_reason(&node, id).await;
        let both = format!("{NOT_FINISHED}; the dead topic {dead_topic} did not take the record: ");
        let said = reason.strip_prefix(&both).unwrap_or_else(|| panic!("{reason}"));
        assert!(said.contains(refusal), "{reason}");
    }
    kafka_admin::allow_all(&cluster.stack.kafka, &denied).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_task_is_not_redriven_to_its_own_dead_topic() {
    let cluster = Cluster::start("dead-topics").await;
    let node = cluster.node().await;
    let topic = cluster.topic("orders").await;
    let dead_topic = cluster.topic("dead").await;
    let id = submit(&node, &topic, "1s", Some(&dead_topic)).await;
    assert_eq!(dead_reason(&node, id).await, NOT_FINISHED);
    let to = json!({ "to_topic": dead_topic }).to_string();
    let refused = node.api().post(&format!("/v1/dead/{id}/redrive"), to).await;
    let problem = refused.json();
    assert_eq!((refused.status, &problem["field"]), (400, &json!("to_topic")), "{problem}");
    assert!(problem["detail"].as_str().unwrap().contains("dead topic"), "{problem}");
}

/// The verdict on a task without a dead topic needs no Kafka.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_reason_of_a_task_without_a_dead_topic_names_none_when_its_own_topic_is_gone() {
    let cluster = Cluster::start("dead-topics").await;
    let node = cluster.node_with(&["--topic-denial-max", "3s"]).await;
    let topic = cluster.topic("orders").await;
    let consumer = cluster.consumer(&topic);
    let failed = submit(&node, &topic, "1h", None).await;
    consumer.wait_count(1, DEADLINE).await;
    // The topic must be gone before the task is due.
    let later = json!({ "topic": topic, "delay": "20s", "payload": 1 });
    let unsent = node.api().submit(&later).await.id;
    cluster.delete_topic(&topic).await;
    assert_eq!(dead_reason(&node, unsent).await, "the topic does not exist");
    let call = json!({ "attempt": 1, "reason": "no stock" });
    let answer = node.api().post(&format!("/v1/tasks/{failed}/fail"), call.to_string()).await;
    assert_eq!(answer.json()["verdict"], "dead", "{}", answer.text);
    assert_eq!(dead_reason(&node, failed).await, "attempt 1 of 1 failed: no stock");
}
