//! Partitions of an intake topic that no broker serves.

use rdkafka::admin::{AdminOptions, NewTopic, TopicReplication};

use crate::intake_topics::{DEADLINE, HOUR, Intake, TASKS};
use crate::support::{Cluster, OwnStack, Wishes, eventually};

const WAITS: &str = "punctual_intake_waits_seconds";
const PARTITIONS: &str = "punctual_intake_partitions";

/// The last partition is on the third broker alone, which is gone before a node sees it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_new_partition_without_a_leader_waits_and_the_others_go_on() {
    let own = OwnStack::start_three_brokers("intake-leaders").await;
    let cluster = Cluster::at(&own.stack, "intake-leaders", Wishes::default()).await;
    let intake = Intake::at(&cluster, format!("{}.in", cluster.name));
    let places = TopicReplication::Variable(&[&[1], &[2], &[3]]);
    let new = [&NewTopic::new(&intake.topic, 3, places)];
    let made = intake.admin().create_topics(new, &AdminOptions::new()).await.unwrap();
    assert!(made.iter().all(Result::is_ok), "{made:?}");
    let topic = cluster.topic("orders").await;
    own.stop("kafka3").await;
    let node = intake.node().await;
    let to = ("punctual-topic", topic.as_str());
    for partition in 0..2 {
        intake.append(partition, Some("1"), None, &[to, HOUR]).await;
    }
    intake.wait_read(2).await;
    assert_eq!(cluster.count(TASKS).await, 2);
    assert_eq!(intake.metric(&node, PARTITIONS).await, 2.0);
    eventually("the last one is said to wait", DEADLINE, async || {
        intake.metric(&node, WAITS).await > 5.0
    })
    .await;
    own.start_again("kafka3").await;
    eventually("the last one is read", DEADLINE, async || {
        intake.metric(&node, PARTITIONS).await == 3.0 && intake.metric(&node, WAITS).await == 0.0
    })
    .await;
    intake.append(2, Some("1"), None, &[to, HOUR]).await;
    intake.wait_read(3).await;
}
