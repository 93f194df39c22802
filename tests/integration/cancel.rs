//! A cancel has a verdict, and the verdict is true, also during claims.

use std::collections::{BTreeSet, HashMap};
use std::sync::atomic::{AtomicI64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use serde_json::{Value, json};
use uuid::Uuid;

use crate::support::api::Task;
use crate::support::wait::until;
use crate::support::{Api, Cluster, Ledger, NONE, now_ms};

const DEADLINE: Duration = Duration::from_secs(120);
const TASK_COUNT: usize = 3000;
const SPAN_MS: i64 = 24_000;
const VERDICTS_MIN: usize = 150;
const CANCELLERS: usize = 16;
const WINDOW_MS: i64 = 200;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn verdicts_are_true_while_claims_run() {
    let cluster = Cluster::start("verdicts").await;
    let topic = cluster.topic("orders").await;
    let (first, second) = tokio::join!(cluster.node(), cluster.node());
    let consumer = cluster.consumer(&topic);
    let ledger = Arc::new(Ledger::default());
    let start = now_ms() + 6_000;
    let tasks: Vec<Value> = (0..TASK_COUNT)
        .map(|number| {
            json!({
                "topic": topic,
                "due_at": start + rand::random_range(0..SPAN_MS),
                "payload_text": format!("task {number}"),
            })
        })
        .collect();
    let accepted = first.api().submit_all(&tasks).await;
    ledger.accept_all(&accepted, &tasks);
    let verdicts =
        cancel_around_the_claims(&accepted, &[first.api().clone(), second.api().clone()], &ledger)
            .await;
    let count = |verdict: &str| verdicts.get(verdict).map_or(0, Vec::len);
    let (cancelled, too_late) = (count("cancelled"), count("too_late"));
    eprintln!("cancelled: {cancelled}, too late: {too_late}");
    assert!(
        cancelled >= VERDICTS_MIN && too_late >= VERDICTS_MIN,
        "too one-sided: {cancelled} cancelled, {too_late} too late"
    );
    assert_eq!(count("not_found"), 0, "every task is known");
    // The ledger fails for a cancelled task in Kafka, and for a task that was too late and is not
    // in Kafka.
    let findings = ledger.settle_up(&cluster, || consumer.records(), DEADLINE).await;
    assert_eq!(
        (findings.cancelled_count, findings.published_count),
        (cancelled, TASK_COUNT - cancelled)
    );
    assert_eq!(findings.duplicates, NONE);
    // A verdict is for ever.
    for (verdict, ids) in &verdicts {
        for id in ids.iter().step_by(50) {
            assert_eq!(&second.api().verdict(*id).await, verdict);
        }
    }
}

/// Cancels as fast as the nodes answer, always a task that is about to be claimed or was just
/// claimed. Returns the ids by verdict.
async fn cancel_around_the_claims(
    tasks: &[Task],
    nodes: &[Api],
    ledger: &Arc<Ledger>,
) -> HashMap<String, Vec<Uuid>> {
    let left: BTreeSet<(i64, Uuid)> = tasks.iter().map(|task| (task.due_at, task.id)).collect();
    let left = Arc::new(Mutex::new(left));
    // The current time of a cancel. On a busy machine a cancel takes 300 ms and more, and all
    // cancels aimed at claims would be too late.
    let took_ms = Arc::<AtomicI64>::default();
    let cancellers = (0..CANCELLERS).map(|number| {
        let (api, ledger, left) =
            (nodes[number % nodes.len()].clone(), Arc::clone(ledger), Arc::clone(&left));
        let took_ms = Arc::clone(&took_ms);
        tokio::spawn(async move {
            let mut verdicts = Vec::new();
            loop {
                let offset = rand::random_range(-150..150) - took_ms.load(Ordering::Relaxed);
                let Some((due_at, id)) = take_near(&left, now_ms() + WINDOW_MS - offset) else {
                    break;
                };
                until(due_at - WINDOW_MS + offset).await;
                let asked_at = now_ms();
                let verdict = api.verdict(id).await;
                took_ms.store(now_ms() - asked_at, Ordering::Relaxed);
                ledger.cancel(id, verdict.clone());
                verdicts.push((verdict, id));
            }
            verdicts
        })
    });
    let mut by_verdict: HashMap<String, Vec<Uuid>> = HashMap::new();
    for canceller in cancellers.collect::<Vec<_>>() {
        for (verdict, id) in canceller.await.unwrap() {
            by_verdict.entry(verdict).or_default().push(id);
        }
    }
    by_verdict
}

/// Takes the first task due at `due_at` or later.
fn take_near(left: &Mutex<BTreeSet<(i64, Uuid)>>, due_at: i64) -> Option<(i64, Uuid)> {
    let mut left = left.lock().unwrap();
    let found = *left.range((due_at, Uuid::nil())..).next()?;
    left.remove(&found);
    Some(found)
}

/// A task that is due just after the window when its group is stored is inside the window at the
/// commit. A claim looks for the task at once, and takes no later ones.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_nearly_due_takes_nothing_along_that_can_still_be_cancelled() {
    let cluster = Cluster::start("neighbours").await;
    let topic = cluster.topic("orders").await;
    let node = cluster.node().await;
    let mut in_time_count = 0;
    for _round in 0..10 {
        let now = now_ms();
        let due =
            |after: i64| json!({ "topic": topic, "due_at": now + after, "payload_text": "x" });
        // One of the first tasks is at the end of the window, whenever the node sorts the group.
        let mut tasks: Vec<Value> = (0..80).map(|after| due(WINDOW_MS - 20 + after)).collect();
        tasks.extend((4_000..4_100).step_by(10).map(due));
        let accepted = node.api().submit_all(&tasks).await;
        // Claims of late tasks are done by then.
        until(now + 400).await;
        for task in accepted.iter().filter(|task| task.due_at >= now + 4_000) {
            let asked_at = now_ms();
            let verdict = node.api().verdict(task.id).await;
            let was_in_time = now_ms() < task.due_at - WINDOW_MS - 50;
            in_time_count += u32::from(was_in_time);
            assert!(
                verdict == "cancelled" || !was_in_time,
                "{verdict}, {} ms before it is due",
                task.due_at - asked_at
            );
        }
    }
    assert!(in_time_count > 0, "no cancel was in time on this machine");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_cancel_can_be_repeated_and_says_the_same() {
    let cluster = Cluster::start("repeated").await;
    let topic = cluster.topic("orders").await;
    let node = cluster.node().await;
    let api = node.api();
    let consumer = cluster.consumer(&topic);
    let pending = api.submit(&json!({ "topic": topic, "delay": "1h", "payload_text": "x" })).await;
    let far = api.submit(&json!({ "topic": topic, "delay": "5000h", "payload_text": "x" })).await;
    assert_eq!(
        cluster.count("select count(*) from task_far").await,
        1,
        "beyond the horizon a task waits in the far table"
    );
    for task in [&pending, &far] {
        for _ in 0..3 {
            let answer = api.cancel(task.id).await;
            assert_eq!(answer.verdict(), "cancelled");
            assert_eq!(Task::new(answer.json()["task"].clone()).state, "cancelled");
        }
    }
    let fired = api.submit(&json!({ "topic": topic, "delay": 0, "payload_text": "x" })).await;
    let record = &consumer.wait_count(1, DEADLINE).await[0];
    cluster.wait_final(3, DEADLINE).await;
    for _ in 0..2 {
        let answer = api.cancel(fired.id).await;
        assert_eq!(answer.verdict(), "too_late");
        assert_eq!(answer.header("content-type"), Some("application/problem+json"));
        assert_eq!(
            Task::new(answer.json()["task"].clone()).position(),
            Some((record.partition, record.offset))
        );
    }
    assert_eq!(api.cancel(Uuid::from_u128(fired.id.as_u128() ^ 1)).await.verdict(), "not_found");
    let left =
        cluster.count("select (select count(*) from task) + (select count(*) from task_far)").await;
    assert_eq!((left, cluster.execlog().await.len()), (0, 3));
}
