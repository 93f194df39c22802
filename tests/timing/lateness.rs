//! How late tasks are when nothing fails.

use std::sync::Arc;
use std::time::Duration;

use crate::support::traffic::Plan;
use crate::support::{Cluster, Ledger, NONE, Traffic};

const DEADLINE: Duration = Duration::from_secs(40);
/// Generous: a debug build, on a machine that runs Postgres, Kafka, the traffic and the consumer as well. Release figures are in the README.
const P99_MAX_MS: i64 = 50;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn at_500_tasks_a_second_they_are_on_time() {
    let cluster = Cluster::start("lateness").await;
    let node = cluster.node().await;
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
        let at = |share: f64| findings.lateness_at(share);
        eprintln!("{name}: p50 {} ms, p99 {} ms, p99.9 {} ms, max {} ms", at(0.5), at(0.99), at(0.999), at(1.0));
        assert!(name == "warm-up" || at(0.99) <= P99_MAX_MS, "p99 {} ms", at(0.99));
        assert_eq!(findings.duplicates, NONE);
    }
}
