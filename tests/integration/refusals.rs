//! Refusals by Kafka stop no other tasks.

use std::time::Duration;

use serde_json::{Value, json};

use crate::support::{Cluster, Ledger, eventually, now_ms};

const DEADLINE: Duration = Duration::from_secs(120);
/// The time for a topic that was missing: a publish deadline, and the back-off of a deferral or
/// two.
const RETURN_DEADLINE: Duration = Duration::from_secs(120);
/// A task behind a refused record waits 10 s for its answer, or for the publish deadline.
const HELD_UP_MS: i64 = 9_000;

/// `count` small tasks for `topic`, due over two seconds from `start`.
fn small_tasks(topic: &str, start: i64, count: i64) -> Vec<Value> {
    let due_at = |number: i64| start + number * 2000 / count;
    (0..count)
        .map(|number| {
            json!({
                "topic": topic,
                "due_at": due_at(number),
                "payload_text": format!("small {number}"),
            })
        })
        .collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_record_that_the_broker_refuses_for_good_is_a_dead_letter_and_stops_nobody() {
    let cluster = Cluster::start("refused").await;
    let (strict, other) = (cluster.topic("strict").await, cluster.topic("other").await);
    let node = cluster.node().await;
    let (of_strict, of_other) = (cluster.consumer(&strict), cluster.consumer(&other));
    let ledger = Ledger::default();
    node.api().learn(&strict).await;
    cluster.alter_topic(&strict, &[("max.message.bytes", "20000")]).await;
    let start = now_ms() + 3000;
    // Accepted, because the node uses its cached metadata.
    let large: Vec<Value> = (0..20)
        .map(|number| {
            json!({
                "topic": strict,
                "due_at": start + number * 100,
                "payload_text": "x".repeat(100_000),
            })
        })
        .collect();
    let mut doomed = node.api().submit_all(&large).await;
    ledger.accept_all(&doomed, &large);
    for topic in [&strict, &other] {
        let tasks = small_tasks(topic, start, 200);
        ledger.accept_all(&node.api().submit_all(&tasks).await, &tasks);
    }
    let stored_at = now_ms();
    let records = || [of_strict.records(), of_other.records()].concat();
    let mut findings = ledger.settle_up(&cluster, records, DEADLINE).await;
    assert_eq!((findings.published_count, findings.duplicates.len()), (400, 0));
    doomed.sort_unstable_by_key(|task| task.id);
    findings.dead.sort_unstable();
    assert_eq!(findings.dead, doomed.iter().map(|task| task.id).collect::<Vec<_>>());
    assert_eq!(cluster.count("select count(*) from dead_letter where reason <> ''").await, 20);
    let is_counted = async || node.api().metric("punctual_tasks_dead_total").await == 20.0;
    eventually("they are counted", DEADLINE, is_counted).await;
    let dead = node.api().task(doomed[0].id).await;
    assert_eq!(dead.state, "dead");
    assert!(
        dead.shown["reason"].as_str().is_some_and(|reason| !reason.is_empty()),
        "{}",
        dead.shown
    );
    assert_eq!(node.api().cancel(doomed[0].id).await.verdict(), "too_late");
    let worst = worst_of(&of_other.records(), stored_at);
    assert!(worst < HELD_UP_MS, "a task of another topic was {worst} ms late");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_topic_that_was_deleted_holds_nobody_up_and_its_tasks_arrive_when_it_is_back() {
    let cluster = Cluster::start("deleted").await;
    let (gone, other) = (cluster.topic("gone").await, cluster.topic("other").await);
    let node = cluster.node().await;
    let of_other = cluster.consumer(&other);
    let ledger = Ledger::default();
    node.api().learn(&gone).await;
    cluster.delete_topic(&gone).await;
    let start = now_ms() + 3000;
    for topic in [&gone, &other] {
        let tasks = small_tasks(topic, start, 200);
        ledger.accept_all(&node.api().submit_all(&tasks).await, &tasks);
    }
    let stored_at = now_ms();
    let records = of_other.wait_count(200, DEADLINE).await;
    let worst = worst_of(&records, stored_at);
    assert!(worst < HELD_UP_MS, "a task of another topic was {worst} ms late");
    eventually("the tasks of the deleted topic are due", DEADLINE, async || {
        now_ms() > start + 2000
    })
    .await;
    assert_eq!(cluster.count("select count(*) from dead_letter").await, 0, "a topic may come back");

    cluster.create_topic(&gone, &[]).await;
    let of_gone = cluster.consumer(&gone);
    let records = || [of_gone.records(), of_other.records()].concat();
    eventually("all arrive", RETURN_DEADLINE, async || ledger.has_arrived(&records())).await;
    let findings =
        ledger.settle_up(&cluster, || of_other_first(&of_other, &of_gone), RETURN_DEADLINE).await;
    assert_eq!((findings.published_count, findings.dead.len()), (400, 0));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_waits_for_a_topic_that_is_given_up_on_becomes_dead_letters() {
    let cluster = Cluster::start("given-up").await;
    let gone = cluster.topic("gone").await;
    let node = cluster.node_with(&["--topic-denial-max", "6s"]).await;
    node.api().learn(&gone).await;
    cluster.delete_topic(&gone).await;
    let now = now_ms();
    // One task tells the node that the topic is gone. The others become due while the topic is
    // unavailable, and none of them is in flight.
    let mut tasks = small_tasks(&gone, now + 12_000, 30);
    tasks.push(json!({ "topic": gone, "due_at": now + 2000, "payload_text": "the first" }));
    node.api().submit_all(&tasks).await;
    let is_unavailable = async |is_gone: bool| {
        let unavailable = node.api().cluster().await["unavailable_topics"].clone();
        unavailable
            .as_array()
            .unwrap()
            .iter()
            .any(|one| one["topic"] == gone && one["gone"] == is_gone)
    };
    eventually("it is named as unavailable", RETURN_DEADLINE, async || is_unavailable(false).await)
        .await;
    eventually("it is counted as unavailable", RETURN_DEADLINE, async || {
        node.api().metric("punctual_unavailable_topics").await == 1.0
    })
    .await;
    eventually("all are dead letters", RETURN_DEADLINE, async || {
        cluster.count("select count(*) from dead_letter").await == 31
    })
    .await;
    assert!(is_unavailable(true).await, "it is named as gone");

    // A topic that is created again is tried at once. Tasks accepted since then do not become dead
    // letters because of the past.
    cluster.create_topic(&gone, &[]).await;
    let consumer = cluster.consumer(&gone);
    let task = json!({ "topic": gone, "delay": 0, "payload_text": "again" });
    eventually("it is taken again", RETURN_DEADLINE, async || {
        node.api().post("/v1/tasks", task.to_string()).await.status == 201
    })
    .await;
    consumer.wait_count(1, RETURN_DEADLINE).await;
    let redriven = node.api().post("/v1/dead/redrive", json!({ "topic": gone }).to_string()).await;
    assert_eq!(redriven.json()["redriven"], 31, "{}", redriven.text);
    consumer.wait_count(32, RETURN_DEADLINE).await;
    assert_eq!(cluster.count("select count(*) from dead_letter").await, 0);
}

/// A node's cache of a topic lasts for minutes, but refuses no submit.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_a_topic_takes_by_now_is_not_refused_by_what_it_took_before() {
    let cluster = Cluster::start("raised").await;
    let topic = cluster
        .topic_with("raised", &[("max.message.bytes", "1000"), ("cleanup.policy", "compact")])
        .await;
    let node = cluster.node().await;
    let submit = async |task: &Value| node.api().post("/v1/tasks", task.to_string()).await;
    let large =
        json!({ "topic": topic, "delay": "1h", "key": "k", "payload_text": "x".repeat(2000) });
    let keyless = json!({ "topic": topic, "delay": "1h", "payload_text": "x" });
    node.api().learn(&topic).await;
    let refused = submit(&large).await;
    assert!(refused.status == 422 && refused.text.contains("record-too-large"), "{}", refused.text);
    let refused = submit(&keyless).await;
    assert!(refused.status == 422 && refused.text.contains("key-required"), "{}", refused.text);
    cluster
        .alter_topic(&topic, &[("max.message.bytes", "1000000"), ("cleanup.policy", "delete")])
        .await;
    for task in [large, keyless] {
        eventually("it is taken", Duration::from_secs(20), async || {
            submit(&task).await.status == 201
        })
        .await;
    }
}

fn of_other_first(
    other: &crate::support::Consumer,
    gone: &crate::support::Consumer,
) -> Vec<crate::support::Record> {
    [other.records(), gone.records()].concat()
}

/// Returns the maximum lateness of the tasks stored in time.
fn worst_of(records: &[crate::support::Record], stored_at: i64) -> i64 {
    records.iter().map(|record| record.timestamp - due_at(record).max(stored_at)).max().unwrap()
}

fn due_at(record: &crate::support::Record) -> i64 {
    std::str::from_utf8(record.header("punctual-due-at").unwrap()).unwrap().parse().unwrap()
}
