//! Tests how late tasks are without faults.

use std::sync::Arc;
use std::time::Duration;

use punctual::domain::TaskId;

use crate::stalls::Stalls;
use crate::support::traffic::Plan;
use crate::support::{Cluster, Ledger, NONE, Node, Record, Traffic};

const DEADLINE: Duration = Duration::from_secs(180);
/// A generous limit, for a debug build on a machine that also runs Postgres, Kafka, the traffic and
/// the consumer. The README has the figures of a release build.
const P99_MAX_MS: i64 = 50;
/// Claims are slow where bare commits are slow. A task waits for the commits of its submit and its
/// claim, and for the commits ahead of them.
const COMMITS: i64 = 5;
/// A task that is due this soon may still have to be claimed.
const WINDOW_MS: i64 = 200;
/// The number of tasks that must not have met a stall of the machine. The test publishes at most
/// [`ROUNDS_MAX`] rounds of [`ROUND`] tasks to reach it.
const UNDISTURBED_MIN: usize = 3750;
const ROUND: usize = 5000;
const ROUNDS_MAX: usize = 4;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn at_500_tasks_a_second_they_are_on_time() {
    let cluster = Cluster::start("lateness").await;
    let node = cluster.node().await;
    let stalls = Stalls::watch(&cluster.database).await;
    // The first second is the slowest and is not measured.
    publish(&cluster, &node, "warm-up", 1000).await;
    let mut lateness = Vec::new();
    for round in 1..=ROUNDS_MAX {
        let records = publish(&cluster, &node, &format!("measured-{round}"), ROUND).await;
        let due_at = |record: &Record| TaskId::from_uuid(record.task_id()).due_at().as_millis();
        let undisturbed = records
            .iter()
            .filter(|record| !stalls.meets(due_at(record) - WINDOW_MS, record.timestamp));
        lateness.extend(undisturbed.map(|record| record.timestamp - due_at(record)));
        if lateness.len() >= UNDISTURBED_MIN {
            break;
        }
    }
    assert!(
        lateness.len() >= UNDISTURBED_MIN,
        "this machine stands still too often: nothing can be said"
    );
    let limit = P99_MAX_MS.max(COMMITS * stalls.p99_ms());
    let late = lateness.iter().filter(|late| **late > limit).count();
    assert!(
        late * 100 <= lateness.len(),
        "{late} of {} tasks are over {limit} ms late",
        lateness.len()
    );
}

/// Publishes `count` tasks, each of which must arrive once.
async fn publish(cluster: &Cluster, node: &Node, name: &str, count: usize) -> Vec<Record> {
    let topic = cluster.topic(name).await;
    let consumer = cluster.consumer(&topic);
    let ledger = Arc::new(Ledger::default());
    let plan = Plan { topic, tasks_per_second: 500, ahead: 0..3000 };
    let traffic = Traffic::start(plan, &ledger, &[node.api().clone()]);
    consumer.wait_count(count, DEADLINE).await;
    traffic.stop().await;
    let findings = ledger.settle_up(cluster, || consumer.records(), DEADLINE).await;
    assert_eq!(findings.duplicates, NONE);
    let at = |share: f64| findings.lateness_at(share);
    eprintln!(
        "{name}: p50 {} ms, p99 {} ms, p99.9 {} ms, max {} ms",
        at(0.5),
        at(0.99),
        at(0.999),
        at(1.0)
    );
    consumer.records()
}
