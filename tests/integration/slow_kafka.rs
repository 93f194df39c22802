//! Slow is not dead: a Kafka that throttles, is far away or stalls gets each record once
//! (docs/decisions/0024).

use std::time::Duration;

use serde_json::{Value, json};

use crate::support::kafka_way::KafkaWay;
use crate::support::{Cluster, Consumer, Ledger, NONE, Node, eventually, kafka_admin, now_ms};

const DEADLINE: Duration = Duration::from_secs(120);

/// A node with a proxy to Kafka of its own.
async fn node(cluster: &Cluster, kafka: &str, more: &[&str]) -> Node {
    let arguments =
        ["--database-url", &cluster.database.url, "--kafka", kafka, "--cluster", &cluster.name];
    let mut node = cluster.spawn_bare(&[arguments.as_slice(), more].concat());
    node.wait_ready().await;
    node
}

/// Tasks of `bytes` bytes, one each `apart_ms`, from now on.
async fn submit(
    node: &Node,
    ledger: &Ledger,
    topic: &str,
    (count, bytes, apart_ms): (i64, usize, i64),
) {
    let begin = now_ms() + 1_000;
    let task = |number: i64| {
        let text = format!("{number:0>bytes$}");
        json!({
            "topic": topic,
            "due_at": begin + number * apart_ms,
            "payload_text": text,
            "key": number.to_string(),
        })
    };
    let tasks: Vec<Value> = (0..count).map(task).collect();
    ledger.accept_all(&node.api().submit_all(&tasks).await, &tasks);
}

/// All arrive, each once, and nobody was taken for dead.
async fn each_once(cluster: &Cluster, node: &Node, ledger: &Ledger, consumers: &[&Consumer]) {
    let records = || consumers.iter().flat_map(|consumer| consumer.records()).collect::<Vec<_>>();
    let findings = ledger.settle_up(cluster, records, DEADLINE).await;
    assert_eq!((findings.duplicates.as_slice(), findings.dead.as_slice()), (&NONE[..], &NONE[..]));
    let deferred = "select count(*) from execlog where state = 'deferred'";
    assert_eq!(cluster.count(deferred).await, 0, "no attempt came to nothing");
    assert_eq!(
        node.api().metric("punctual_kafka_producers_replaced_total").await,
        0.0,
        "no producer was replaced:\n{}",
        node.log_tail()
    );
    assert!(
        !node.log().contains("the topic is unavailable"),
        "no topic was unavailable:\n{}",
        node.log_tail()
    );
}

/// A quota of one second's traffic lasts for a second. Conclusions from silence would follow after
/// 2 s and 4 s.
#[tokio::test(flavor = "multi_thread")]
async fn a_quota_makes_records_late_and_nothing_else() {
    let cluster = Cluster::start("quota").await;
    let client = format!("quota-{:016x}", rand::random::<u64>());
    kafka_admin::set_quota(&cluster.stack.kafka, &client, 20_000.0).await;
    let client = format!("client.id={client}");
    let more = ["--kafka-property", &client, "--publish-deadline", "4s"];
    let node = node(&cluster, &cluster.stack.kafka, &more).await;
    let (large, small) = (cluster.topic("large").await, cluster.topic("small").await);
    let (of_large, of_small) = (cluster.consumer(&large), cluster.consumer(&small));
    let ledger = Ledger::default();
    submit(&node, &ledger, &large, (20, 14_000, 10)).await;
    submit(&node, &ledger, &small, (20, 100, 500)).await;
    eventually("the node says that it is throttled", DEADLINE, async || {
        node.api().cluster().await["throttled"] == json!(true)
            && node.api().metric("punctual_kafka_throttled").await == 1.0
    })
    .await;
    each_once(&cluster, &node, &ledger, &[&of_large, &of_small]).await;
    assert!(node.log().contains("Kafka throttles this node"));
    eventually("and that it is not any more", DEADLINE, async || {
        node.api().cluster().await["throttled"] == json!(false)
            && node.api().metric("punctual_kafka_throttled").await == 0.0
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_kafka_that_is_two_seconds_away_gets_each_record_once() {
    let cluster = Cluster::start("far-away").await;
    let way = KafkaWay::open(&cluster.stack.kafka, Duration::from_secs(2)).await;
    let topics = [cluster.topic("one").await, cluster.topic("two").await];
    let consumers = topics.each_ref().map(|topic| cluster.consumer(topic));
    let node = node(&cluster, &way.address(), &[]).await;
    let ledger = Ledger::default();
    for topic in &topics {
        submit(&node, &ledger, topic, (30, 1_000, 200)).await;
    }
    each_once(&cluster, &node, &ledger, &consumers.each_ref()).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_broker_that_stands_still_for_eight_seconds_gets_each_record_once() {
    let cluster = Cluster::start("still").await;
    let way = KafkaWay::open(&cluster.stack.kafka, Duration::ZERO).await;
    let topic = cluster.topic("records").await;
    let consumer = cluster.consumer(&topic);
    let node = node(&cluster, &way.address(), &[]).await;
    let ledger = Ledger::default();
    submit(&node, &ledger, &topic, (1_500, 100, 10)).await;
    consumer.wait_count(100, DEADLINE).await;
    way.hold();
    let since = now_ms();
    eventually("it stands still for 8 s", DEADLINE, async || now_ms() - since > 8_000).await;
    way.let_go();
    each_once(&cluster, &node, &ledger, &[&consumer]).await;
}
