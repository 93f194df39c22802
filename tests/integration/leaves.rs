//! Leaves come and go under load, without losses.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use crate::support::traffic::Plan;
use crate::support::wait::throughout;
use crate::support::{Cluster, Ledger, NONE, Traffic, Wishes, eventually};

const DEADLINE: Duration = Duration::from_secs(120);
/// A leaf is dropped a minute after its end, at the earliest.
const RETIRE_DEADLINE: Duration = Duration::from_secs(100);
/// Design.md's own limit on leaves.
const LEAVES_MAX: usize = 300;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn leaves_come_and_go_under_load_and_nothing_is_lost() {
    let cluster =
        Cluster::with("leaves", Wishes { leaf: "4s", horizon: "20s", ..Wishes::default() }).await;
    let topic = cluster.topic("orders").await;
    let (first, second) = tokio::join!(cluster.node(), cluster.node());
    let consumer = cluster.consumer(&topic);
    let ledger = Arc::new(Ledger::default());
    let at_first = leaves(&cluster).await;
    let plan = Plan { topic, tasks_per_second: 100, ahead: 0..15_000 };
    let traffic = Traffic::start(plan, &ledger, &[first.api().clone(), second.api().clone()]);
    throughout("leaves stay bounded", Duration::from_secs(12), async || {
        leaves(&cluster).await.len() <= LEAVES_MAX
    })
    .await;
    traffic.stop().await;
    let with_tasks = leaves(&cluster).await;
    assert!(!with_tasks.is_subset(&at_first), "leaves are made ahead: {with_tasks:?}");
    let findings = ledger.settle_up(&cluster, || consumer.records(), DEADLINE).await;
    assert_eq!(findings.duplicates, NONE);
    assert_eq!(cluster.count("select count(*) from task").await, 0);
    // The first three leaves existed when the traffic began: they held tasks.
    let oldest: Vec<&String> = at_first.iter().take(3).collect();
    eventually("the oldest leaves go", RETIRE_DEADLINE, async || {
        let now = leaves(&cluster).await;
        assert!(now.len() <= LEAVES_MAX);
        oldest.iter().all(|leaf| !now.contains(*leaf))
    })
    .await;
    // The next leaf may be in the middle of its detach. An interrupted detach stays pending.
    eventually("no detach was cut off", DEADLINE, async || {
        cluster.count("select count(*) from pg_inherits where inhdetachpending").await == 0
    })
    .await;
}

/// The attached leaves, by name: so by time.
async fn leaves(cluster: &Cluster) -> BTreeSet<String> {
    let query =
        "select inhrelid::regclass::text from pg_inherits where inhparent = 'task'::regclass";
    sqlx::query_scalar(query).fetch_all(&cluster.sql).await.unwrap().into_iter().collect()
}
