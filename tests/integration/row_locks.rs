//! A row that somebody has locked, an open transaction for example, holds up nobody else.

use std::time::Duration;

use serde_json::{Value, json};
use sqlx::{Connection as _, PgConnection};
use uuid::Uuid;

use crate::support::{Cluster, Ledger, NONE, eventually, now_ms};

const DEADLINE: Duration = Duration::from_secs(120);

/// A transaction that has locked the row of a task, until it is dropped.
async fn lock(cluster: &Cluster, id: Uuid) -> PgConnection {
    let mut holder = cluster.database.connect().await;
    sqlx::raw_sql("begin").execute(&mut holder).await.unwrap();
    let locked = sqlx::query("select from task where id = $1 for update").bind(id).fetch_all(&mut holder).await.unwrap();
    assert_eq!(locked.len(), 1, "the task is no longer there to be locked");
    holder
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_overdue_behind_a_locked_row_is_published_and_the_row_when_it_is_free() {
    let cluster = Cluster::start("locked-claim").await;
    let topic = cluster.topic("orders").await;
    let mut first = cluster.node().await;
    let start = now_ms() + 8000;
    let tasks: Vec<Value> = (0..50)
        .map(|number| json!({ "topic": topic, "due_at": start + number * 20, "payload_text": format!("task {number}") }))
        .collect();
    let accepted = first.api().submit_all(&tasks).await;
    let ledger = Ledger::default();
    ledger.accept_all(&accepted, &tasks);
    let holder = lock(&cluster, accepted[10].id).await;
    first.terminate();
    assert!(first.wait_exit(DEADLINE).await.success());
    eventually("all are overdue", DEADLINE, async || now_ms() > start + 2000).await;

    let _second = cluster.node().await;
    let consumer = cluster.consumer(&topic);
    let records = consumer.wait_count(49, DEADLINE).await;
    assert!(records.iter().all(|record| record.task_id() != accepted[10].id), "its row is locked");
    holder.close().await.unwrap();
    let findings = ledger.settle_up(&cluster, || consumer.records(), DEADLINE).await;
    assert_eq!(findings.published_count, 50);
    assert_eq!(findings.duplicates, NONE);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn cancels_beside_a_locked_row_take_effect() {
    let cluster = Cluster::start("locked-cancel").await;
    let topic = cluster.topic("orders").await;
    let node = cluster.node().await;
    let tasks: Vec<Value> =
        (0..200).map(|number| json!({ "topic": topic, "delay": "1h", "payload_text": format!("task {number}") })).collect();
    let accepted = node.api().submit_all(&tasks).await;
    let holder = lock(&cluster, accepted[100].id).await;
    let cancels = accepted.iter().map(|task| {
        let (api, id) = (node.api().clone(), task.id);
        tokio::spawn(async move { api.cancel(id).await })
    });
    let mut refused = Vec::new();
    for (cancel, task) in cancels.collect::<Vec<_>>().into_iter().zip(&accepted) {
        let answer = cancel.await.unwrap();
        match answer.status {
            200 => assert_eq!(answer.verdict(), "cancelled"),
            _ => refused.push((task.id, answer.status)),
        }
    }
    assert!(refused.contains(&(accepted[100].id, 503)), "it is locked");
    assert!(refused.iter().all(|(_, status)| *status == 503), "{refused:?}");
    // On a busy machine the time may be up before the halves have come down to one. The others are told to come again, and the lock does not keep them.
    for (id, _) in refused.iter().filter(|(id, _)| *id != accepted[100].id) {
        eventually("a cancel beside the lock takes effect", DEADLINE, async || node.api().cancel(*id).await.status == 200).await;
    }
    holder.close().await.unwrap();
    assert_eq!(node.api().cancel(accepted[100].id).await.verdict(), "cancelled");
}
