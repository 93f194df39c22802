//! Kafka withdraws the right to write: the topic is unavailable, and the tasks wait as long as
//! those of a missing topic.

use std::time::Duration;

use serde_json::{Value, json};

use crate::support::{Cluster, Ledger, Node, eventually, kafka_admin, now_ms};

const DEADLINE: Duration = Duration::from_secs(120);

/// Submits `count` tasks due over a second, 12 seconds from now.
async fn submit(
    node: &Node,
    topic: &str,
    count: i64,
) -> (Vec<Value>, Vec<crate::support::api::Task>) {
    let start = now_ms() + 12_000;
    let due_at = |number: i64| start + number * 1_000 / count;
    let tasks: Vec<Value> = (0..count)
        .map(|number| json!({ "topic": topic, "due_at": due_at(number), "payload": number }))
        .collect();
    let accepted = node.api().submit_all(&tasks).await;
    (tasks, accepted)
}

async fn is_unavailable(node: &Node, topic: &str, is_gone: bool) -> bool {
    let topics = node.api().cluster().await["unavailable_topics"].clone();
    topics.as_array().unwrap().iter().any(|one| one["topic"] == topic && one["gone"] == is_gone)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_right_that_is_denied_for_seconds_makes_no_dead_letter() {
    let cluster = Cluster::start("denied").await;
    let (denied, other) = (cluster.topic("denied").await, cluster.topic("other").await);
    let node = cluster.node().await;
    let consumers = [cluster.consumer(&denied), cluster.consumer(&other)];
    let ledger = Ledger::default();
    for topic in [&denied, &other] {
        let (tasks, accepted) = submit(&node, topic, 20).await;
        ledger.accept_all(&accepted, &tasks);
    }
    kafka_admin::deny_writes(&cluster.stack.kafka, &denied).await;
    eventually("the topic is unavailable", DEADLINE, async || {
        is_unavailable(&node, &denied, false).await
    })
    .await;
    consumers[1].wait_count(20, DEADLINE).await;
    assert_eq!(cluster.count("select count(*) from dead_letter").await, 0);
    kafka_admin::allow_all(&cluster.stack.kafka, &denied).await;
    let records = || consumers.iter().flat_map(|consumer| consumer.records()).collect::<Vec<_>>();
    let findings = ledger.settle_up(&cluster, records, DEADLINE).await;
    assert_eq!(
        (findings.published_count, findings.duplicates.len(), findings.dead.len()),
        (40, 0, 0)
    );
    eventually("the topic is available", DEADLINE, async || {
        !is_unavailable(&node, &denied, false).await
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_right_that_stays_denied_makes_dead_letters_after_the_time_for_a_missing_topic() {
    let cluster = Cluster::start("denied-for-good").await;
    let denied = cluster.topic("denied").await;
    let node = cluster.node_with(&["--topic-denial-max", "6s"]).await;
    submit(&node, &denied, 20).await;
    kafka_admin::deny_writes(&cluster.stack.kafka, &denied).await;
    eventually("all are dead letters", DEADLINE, async || {
        cluster.count("select count(*) from dead_letter where reason like '%uthoriz%'").await == 20
    })
    .await;
    assert!(is_unavailable(&node, &denied, true).await, "the topic is shown as given up");
}
