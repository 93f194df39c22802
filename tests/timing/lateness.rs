//! How late tasks are when nothing fails.

use std::sync::Arc;
use std::time::Duration;

use punctual::domain::TaskId;

use crate::stalls::Stalls;
use crate::support::traffic::Plan;
use crate::support::{Cluster, Ledger, NONE, Record, Traffic};

const DEADLINE: Duration = Duration::from_secs(40);
/// Generous: a debug build, on a machine that runs Postgres, Kafka, the traffic and the consumer as well. Release figures are in the README.
const P99_MAX_MS: i64 = 50;
/// What is due so soon may still have to be claimed.
const WINDOW_MS: i64 = 200;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn at_500_tasks_a_second_they_are_on_time() {
    let cluster = Cluster::start("lateness").await;
    let node = cluster.node().await;
    let stalls = Stalls::watch(&cluster.database).await;
    // The first second is the worst: it is not measured.
    for (name, count) in [("warm-up", 1000), ("measured", 5000)] {
        let topic = cluster.topic(name).await;
        let consumer = cluster.consumer(&topic);
        let ledger = Arc::new(Ledger::default());
        let plan = Plan { topic, tasks_per_second: 500, ahead: 0..3000 };
        let traffic = Traffic::start(plan, &ledger, &[node.api().clone()]);
        consumer.wait_count(count, DEADLINE).await;
        traffic.stop().await;
        let findings = ledger.settle_up(&cluster, || consumer.records(), DEADLINE).await;
        assert_eq!(findings.duplicates, NONE);
        let at = |share: f64| findings.lateness_at(share);
        eprintln!("{name}: p50 {} ms, p99 {} ms, p99.9 {} ms, max {} ms", at(0.5), at(0.99), at(0.999), at(1.0));
        if name == "measured" {
            let due_at = |record: &Record| TaskId::from_uuid(record.task_id()).due_at().as_millis();
            let records = consumer.records();
            let undisturbed = records.iter().filter(|record| !stalls.meets(due_at(record) - WINDOW_MS, record.timestamp));
            let lateness: Vec<i64> = undisturbed.map(|record| record.timestamp - due_at(record)).collect();
            assert!(lateness.len() >= count / 4 * 3, "this machine stands still for a quarter of the time: nothing can be said");
            let late = lateness.iter().filter(|late| **late > P99_MAX_MS).count();
            assert!(late * 100 <= lateness.len(), "{late} of {} tasks are over {P99_MAX_MS} ms late", lateness.len());
        }
    }
}
