//! kill -9 of a node with unsettled batches: another node publishes their tasks.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use punctual::domain::TaskId;
use serde_json::{Value, json};
use uuid::Uuid;

use crate::support::traffic::Plan;
use crate::support::{Cluster, Ledger, NONE, Record, Traffic, eventually, now_ms};

const DEADLINE: Duration = Duration::from_secs(120);
const TASKS_PER_SECOND: usize = 400;
const WINDOW_MS: i64 = 200;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn after_kill_9_everything_arrives_and_only_what_was_in_flight_may_arrive_twice() {
    let cluster = Cluster::start("kill").await;
    let topic = cluster.topic("orders").await;
    let (survivor, mut victim) = tokio::join!(cluster.node(), cluster.node());
    let consumer = cluster.consumer(&topic);
    let ledger = Arc::new(Ledger::default());
    let plan = Plan { topic, tasks_per_second: TASKS_PER_SECOND, ahead: 0..4000 };
    let traffic = Traffic::start(plan, &ledger, &[survivor.api().clone(), victim.api().clone()]);
    consumer.wait_count(500, DEADLINE).await;
    let (_, orphans) = cluster.kill_with_unsettled_work(&mut victim).await;
    let killed_at = now_ms();
    // No node claims tasks due after the window.
    assert!(
        orphans
            .iter()
            .all(|id| TaskId::from_uuid(*id).due_at().as_millis() <= killed_at + WINDOW_MS),
        "claimed before its window: {orphans:?}"
    );
    let orphans: HashSet<Uuid> = orphans.into_iter().collect();
    let is_after = |record: &Record| record.timestamp > killed_at + 5000;
    consumer
        .wait_for("records of after the take-over", DEADLINE, |records| {
            records.iter().any(is_after)
        })
        .await;
    traffic.stop().await;
    let findings = ledger.settle_up(&cluster, || consumer.records(), DEADLINE).await;
    assert_eq!(findings.dead, NONE);
    let strange: Vec<&Uuid> =
        findings.duplicates.iter().filter(|id| !orphans.contains(id)).collect();
    assert!(strange.is_empty(), "twice in the topic without having been in flight: {strange:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_node_that_wakes_after_it_was_declared_dead_settles_nothing_twice() {
    let cluster = Cluster::start("zombie").await;
    let topic = cluster.topic("orders").await;
    let (survivor, zombie) = tokio::join!(cluster.node(), cluster.node());
    let consumer = cluster.consumer(&topic);
    let ledger = Ledger::default();
    let zombie_id = zombie.id().await;
    let start = now_ms();
    let tasks: Vec<Value> = (0..1000)
        .map(|number| {
            json!({
                "topic": topic,
                "due_at": start + 500 + number * 5,
                "payload_text": number.to_string(),
                "key": number.to_string(),
            })
        })
        .collect();
    ledger.accept_all(&survivor.api().submit_all(&tasks).await, &tasks);
    consumer.wait_count(100, DEADLINE).await;
    zombie.freeze();
    // A claim in progress at the freeze may still finish. The batches are counted when the death is
    // known.
    let mut held: HashSet<Uuid> = HashSet::new();
    eventually("the survivor has adopted all of it", DEADLINE, async || {
        let unsettled = cluster.unsettled(zombie_id).await;
        held.extend(&unsettled);
        unsettled.is_empty()
            && survivor.assignment().await.get(&zombie_id).is_none_or(Vec::is_empty)
    })
    .await;
    zombie.thaw();
    // Otherwise all batches may be settled before the node runs again.
    eventually("the zombie has shards again", DEADLINE, async || {
        survivor.assignment().await.get(&zombie_id).is_some_and(|shards| !shards.is_empty())
    })
    .await;
    let findings = ledger.settle_up(&cluster, || consumer.records(), DEADLINE).await;
    assert_eq!((findings.published_count, findings.dead.len()), (1000, 0));
    let strange: Vec<&Uuid> = findings.duplicates.iter().filter(|id| !held.contains(id)).collect();
    assert!(strange.is_empty(), "twice in the topic without having been in flight: {strange:?}");
}
