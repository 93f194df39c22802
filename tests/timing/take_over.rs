//! Tests how long a cluster is without a node that left or died.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use punctual::domain::TaskId;
use uuid::Uuid;

use crate::stalls::Stalls;
use crate::support::traffic::Plan;
use crate::support::{Cluster, Ledger, Record, Traffic, now_ms};

const DEADLINE: Duration = Duration::from_secs(120);
/// The default session TTL, plus 1 s that the take-over may add.
const TAKE_OVER_MS: i64 = 3000 + 1000;
/// An observation with a longer gap is void: half of the TTL.
const OBSERVED_ANEW_MS: i64 = 1500;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn after_kill_9_the_orphaned_shards_publish_again_within_the_ttl_and_a_second() {
    let cluster = Cluster::start("kill").await;
    let topic = cluster.topic("orders").await;
    let (survivor, mut victim) = tokio::join!(cluster.node(), cluster.node());
    let stalls = Stalls::watch(&cluster.database).await;
    let consumer = cluster.consumer(&topic);
    let ledger = Arc::new(Ledger::default());
    // Tasks are submitted only to the survivor, and not within the window, so the owner of their
    // shard must claim them.
    let plan = Plan { topic, tasks_per_second: 400, ahead: 1500..4000 };
    let traffic = Traffic::start(plan, &ledger, &[survivor.api().clone()]);
    consumer.wait_count(1000, DEADLINE).await;
    let victim_id = victim.id().await;
    let orphaned = survivor.assignment().await[&victim_id].clone();
    assert!(!orphaned.is_empty());
    let (killed_at, in_flight) = cluster.kill_with_unsettled_work(&mut victim).await;
    let is_after = |record: &Record| record.timestamp > killed_at + TAKE_OVER_MS + 3000;
    consumer
        .wait_for("records of after the take-over", DEADLINE, |records| {
            records.iter().any(is_after)
        })
        .await;
    traffic.stop().await;
    let findings = ledger.settle_up(&cluster, || consumer.records(), DEADLINE).await;
    assert!(findings.duplicates.iter().all(|id| in_flight.contains(id)));

    // The first task of each orphaned shard that fell due after the death.
    let mut first_at: HashMap<u64, i64> = HashMap::new();
    for record in
        consumer.records().iter().filter(|record| due_at(record.task_id()) > killed_at + 200)
    {
        let shard = u64::from(TaskId::from_uuid(record.task_id()).shard().number());
        let first = first_at.entry(shard).or_insert(record.timestamp);
        *first = record.timestamp.min(*first);
    }
    let firsts: Vec<i64> =
        orphaned.iter().filter_map(|shard| first_at.get(shard)).copied().collect();
    assert_eq!(firsts.len(), orphaned.len(), "each orphaned shard had a task due after the death");
    let taken_over_at = *firsts.iter().max().unwrap();
    // A node that could not look for half a TTL observes the dead node anew, from its next look on.
    let observed_from =
        stalls.last_end(killed_at, taken_over_at, OBSERVED_ANEW_MS).unwrap_or(killed_at);
    let stalled = stalls.total_ms(observed_from, taken_over_at);
    let waits: Vec<i64> = firsts.iter().map(|first| first - observed_from).collect();
    eprintln!(
        "orphaned shards published again after {waits:?} ms, of which the machine stood still for \
         {stalled}"
    );
    assert!(
        waits.iter().all(|wait| *wait <= TAKE_OVER_MS + stalled),
        "{waits:?} ms, {stalled} ms are the machine's"
    );
    // Later tasks are on time again.
    let late =
        consumer.records().into_iter().filter(|record| due_at(record.task_id()) > taken_over_at);
    let worst = late.map(|record| undisturbed_ms(&stalls, &record)).max().unwrap();
    assert!(worst < 1000, "{worst} ms late after the take-over");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn after_sigterm_no_task_is_later_than_a_second() {
    let cluster = Cluster::start("term").await;
    let topic = cluster.topic("orders").await;
    let (stayer, mut leaver) = tokio::join!(cluster.node(), cluster.node());
    let stalls = Stalls::watch(&cluster.database).await;
    let consumer = cluster.consumer(&topic);
    let ledger = Arc::new(Ledger::default());
    let traffic = Traffic::start(
        Plan { topic, tasks_per_second: 400, ahead: 0..2000 },
        &ledger,
        &[stayer.api().clone()],
    );
    consumer.wait_count(800, DEADLINE).await;
    let left_at = now_ms();
    leaver.terminate();
    assert_eq!(leaver.wait_exit(DEADLINE).await.code(), Some(0));
    let is_after = |record: &Record| record.timestamp > left_at + 4000;
    consumer
        .wait_for("records of after the leave", DEADLINE, |records| records.iter().any(is_after))
        .await;
    traffic.stop().await;
    let findings = ledger.settle_up(&cluster, || consumer.records(), DEADLINE).await;
    assert!(findings.duplicates.is_empty(), "{:?}", findings.duplicates);
    eprintln!(
        "lateness: p50 {} ms, p99 {} ms, max {} ms",
        findings.lateness_at(0.5),
        findings.lateness_at(0.99),
        findings.lateness_at(1.0)
    );
    let worst =
        consumer.records().iter().map(|record| undisturbed_ms(&stalls, record)).max().unwrap();
    assert!(worst <= 1000, "{worst} ms late");
}

/// Returns the lateness of a record, less the time that the machine stalled meanwhile.
fn undisturbed_ms(stalls: &Stalls, record: &Record) -> i64 {
    let due_at = due_at(record.task_id());
    record.timestamp - due_at - stalls.total_ms(due_at, record.timestamp)
}

fn due_at(id: Uuid) -> i64 {
    TaskId::from_uuid(id).due_at().as_millis()
}
