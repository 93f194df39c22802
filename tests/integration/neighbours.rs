//! One topic's trouble is not its neighbours'.

use std::time::Duration;

use serde_json::{Value, json};

use crate::support::{Cluster, OwnStack, Wishes, now_ms};

/// Tasks of the topic that takes its records.
const HEALTHY: i64 = 600;
const SILENT: i64 = 240;

/// What is claimed together is settled together, so a record without an answer keeps all of its batch unsettled until the publish deadline (30 s). What was
/// published beside it must not count against its own topic until then.
#[tokio::test(flavor = "multi_thread")]
async fn what_is_claimed_beside_records_without_an_answer_leaves_room_for_its_own_topic() {
    let own = OwnStack::start("neighbours").await;
    own.know_second_broker().await;
    let cluster = Cluster::at(&own.stack, "neighbours", Wishes::default()).await;
    let node = cluster.node_with(&["--claim-loops", "1", "--in-flight-tasks", "1000", "--topic-in-flight-tasks", "100"]).await;
    let (silent, healthy) = (cluster.topic_with_replica_away("silent").await, cluster.topic("healthy").await);
    // The broker takes nothing, and the producer tries again and again.
    cluster.alter_topic(&silent, &[("min.insync.replicas", "2")]).await;
    let consumer = cluster.consumer(&healthy);
    // Each claim takes some of both; within two seconds they come to more of the healthy topic than it may have in flight.
    let begin = now_ms() + 3_000;
    let task = |topic: &str, due_at: i64| json!({ "topic": topic, "due_at": due_at, "payload": due_at });
    let all_healthy = (0..HEALTHY).map(|number| task(&healthy, begin + number * 10));
    let tasks: Vec<Value> = all_healthy.chain((0..SILENT).map(|number| task(&silent, begin + number * 25))).collect();
    node.api().submit_all(&tasks).await;
    // Well before the first of the silent ones comes to its deadline.
    let deadline = Duration::from_millis(u64::try_from(begin + 24_000 - now_ms()).unwrap());
    consumer.wait_count(usize::try_from(HEALTHY).unwrap(), deadline).await;
    let metrics = node.metrics().await;
    let batches = metrics.lines().find_map(|line| line.strip_prefix("punctual_in_flight_batches ")).unwrap();
    assert!(batches.parse::<u32>().unwrap() >= 10, "they were claimed together: {batches} batches have something to come");
}
