//! Nodes that stop cleanly, and single nodes that start again.

use std::sync::Arc;
use std::time::Duration;

use serde_json::json;
use sqlx::migrate::{Migration, MigrationType, Migrator};
use sqlx::{AssertSqlSafe, SqlSafeStr as _};

use crate::support::traffic::Plan;
use crate::support::{Cluster, Ledger, NONE, Traffic, Wishes, eventually, eventually_some, now_ms};

const DEADLINE: Duration = Duration::from_secs(120);

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_node_that_is_told_to_end_leaves_nothing_behind() {
    let cluster = Cluster::start("drain").await;
    let topic = cluster.topic("orders").await;
    let (mut leaver, stayer) = tokio::join!(cluster.node(), cluster.node());
    let consumer = cluster.consumer(&topic);
    let ledger = Arc::new(Ledger::default());
    let leaver_id = leaver.id().await;
    let plan = Plan { topic, tasks_per_second: 400, ahead: 0..3000 };
    let traffic = Traffic::start(plan, &ledger, &[leaver.api().clone(), stayer.api().clone()]);
    consumer.wait_count(400, DEADLINE).await;
    leaver.terminate();
    let status = leaver.wait_exit(DEADLINE).await;
    assert_eq!(status.code(), Some(0), "{}", leaver.log());
    assert_eq!(cluster.unsettled(leaver_id).await, NONE, "it settles what it held before it ends");
    traffic.stop().await;
    let findings = ledger.settle_up(&cluster, || consumer.records(), DEADLINE).await;
    assert_eq!((findings.duplicates, findings.dead), (Vec::new(), Vec::new()));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_a_drain_has_not_done_in_time_is_adopted_and_published_once() {
    // A wide window: the node holds the tasks for longer than the drain timeout.
    let cluster =
        Cluster::with("drain-timeout", Wishes { window: "10s", ..Wishes::default() }).await;
    let topic = cluster.topic("orders").await;
    let (mut leaver, stayer) =
        tokio::join!(cluster.node_with(&["--drain-timeout", "500ms"]), cluster.node());
    let consumer = cluster.consumer(&topic);
    let ledger = Ledger::default();
    let tasks: Vec<_> =
        (0..50).map(|_| json!({ "topic": topic, "delay": 9500, "payload_text": "held" })).collect();
    let accepted = leaver.api().submit_all(&tasks).await;
    assert!(accepted.iter().all(|task| task.state == "claimed"));
    ledger.accept_all(&accepted, &tasks);
    leaver.terminate();
    let status = leaver.wait_exit(DEADLINE).await;
    assert_eq!(status.code(), Some(0), "{}", leaver.log());
    assert!(leaver.log().contains("the drain timeout has passed"), "{}", leaver.log());
    let left_in_time = now_ms() < accepted[0].due_at;
    let heir = stayer.id().await;
    let findings = ledger.settle_up(&cluster, || consumer.records(), DEADLINE).await;
    assert_eq!(
        (findings.published_count, findings.duplicates, findings.dead),
        (50, Vec::new(), Vec::new())
    );
    // On a machine that stalls, the node may have left only when the tasks were due.
    let by_heir = cluster.execlog().await.iter().all(|line| line.node == Some(heir));
    assert!(by_heir || !left_in_time, "published by the one that stayed");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_request_that_arrives_while_the_node_drains_is_sent_elsewhere() {
    // A wide window: the node holds a task for seconds, and drains as long.
    let cluster =
        Cluster::with("draining", Wishes { window: "10s", has_etcd: false, ..Wishes::default() })
            .await;
    let topic = cluster.topic("orders").await;
    let mut node = cluster.node().await;
    let consumer = cluster.consumer(&topic);
    let held =
        node.api().submit(&json!({ "topic": topic, "delay": 9500, "payload_text": "held" })).await;
    assert_eq!(held.state, "claimed");
    // The node drains as at a SIGTERM.
    node.hang_up();
    let late = json!({ "topic": topic, "delay": "1h", "payload_text": "late" }).to_string();
    let answer = eventually_some("the node says that it drains", DEADLINE, async || {
        let answer = node.api().post("/v1/tasks", late.clone()).await;
        (answer.status == 503).then_some(answer)
    })
    .await;
    assert_eq!(answer.header("content-type"), Some("application/problem+json"), "{}", answer.text);
    assert!(
        answer.header("retry-after").is_some_and(|seconds| seconds.parse::<u32>().is_ok()),
        "{:?}",
        answer.headers
    );
    assert_eq!(node.api().get("/readyz").await.status, 503);
    assert_eq!(node.wait_exit(DEADLINE).await.code(), Some(0));
    let records = consumer.wait_count(1, DEADLINE).await;
    assert_eq!(records[0].task_id(), held.id, "what it held is published at its time");
    assert!(records[0].timestamp >= held.due_at);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_single_node_takes_up_again_what_it_held_when_it_was_killed() {
    let cluster = Cluster::with("alone", Wishes { has_etcd: false, ..Wishes::default() }).await;
    let topic = cluster.topic("orders").await;
    let mut node = cluster.node().await;
    let consumer = cluster.consumer(&topic);
    let ledger = Arc::new(Ledger::default());
    let traffic = Traffic::start(
        Plan { topic, tasks_per_second: 200, ahead: 0..3000 },
        &ledger,
        &[node.api().clone()],
    );
    consumer.wait_count(200, DEADLINE).await;
    let (_, orphans) = cluster.kill_with_unsettled_work(&mut node).await;
    traffic.stop().await;
    let _again = cluster.node().await;
    let findings = ledger.settle_up(&cluster, || consumer.records(), DEADLINE).await;
    assert_eq!(findings.dead, NONE);
    assert!(
        findings.duplicates.iter().all(|id| orphans.contains(id)),
        "{:?} / {orphans:?}",
        findings.duplicates
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_single_node_that_was_told_to_end_is_replaced_at_once_and_without_a_duplicate() {
    let cluster = Cluster::with("replaced", Wishes { has_etcd: false, ..Wishes::default() }).await;
    let topic = cluster.topic("orders").await;
    let mut node = cluster.node().await;
    let consumer = cluster.consumer(&topic);
    let ledger = Arc::new(Ledger::default());
    let traffic = Traffic::start(
        Plan { topic, tasks_per_second: 200, ahead: 0..3000 },
        &ledger,
        &[node.api().clone()],
    );
    consumer.wait_count(100, DEADLINE).await;
    node.terminate();
    assert_eq!(node.wait_exit(DEADLINE).await.code(), Some(0));
    traffic.stop().await;
    let _again = cluster.node().await;
    let findings = ledger.settle_up(&cluster, || consumer.records(), DEADLINE).await;
    assert_eq!((findings.duplicates, findings.dead), (Vec::new(), Vec::new()));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn without_etcd_a_second_node_does_not_start_beside_a_living_one() {
    let cluster = Cluster::with("second", Wishes { has_etcd: false, ..Wishes::default() }).await;
    let first = cluster.node().await;
    let mut second = cluster.spawn(&[]);
    second.wait_listening().await;
    let api = second.api().clone();
    eventually("the second node gives up", DEADLINE, async || {
        let status = second.has_ended();
        assert!(
            status.is_none_or(|status| !status.success()),
            "it did not do what it was started for"
        );
        assert!(status.is_some() || !api.is_ready().await, "two single nodes are ready");
        status.is_some()
    })
    .await;
    let log = second.log();
    assert!(log.contains("etcd") || log.contains("another node"), "it says why: {log}");
    eventually("the node is ready", DEADLINE, async || first.api().is_ready().await).await;
}

/// The next version adds these columns to tables that nodes of this one use.
const NEXT: &str = "alter table task add column later text;
    alter table task_far add column later text;
    alter table execlog_batch add column later text[];
    alter table heartbeat add column later integer not null default 0;
    create table later (id uuid primary key)";

/// Migrates the schema as the next version of the program does, with a migration on which this one
/// can run.
async fn migrate_as_the_next_version(cluster: &Cluster) {
    let ours = sqlx::migrate!().migrations.to_vec();
    let newest = ours.iter().map(|migration| migration.version).max().unwrap();
    let description = format!("from {newest:04} later");
    let sql = AssertSqlSafe(NEXT.to_owned()).into_sql_str();
    let next = Migration::new(newest + 1, description.into(), MigrationType::Simple, sql, false);
    let mut sql = cluster.database.connect().await;
    let all = Migrator::with_migrations(ours.into_iter().chain([next]).collect());
    all.run_direct(None, &mut sql, false).await.unwrap();
}

/// An upgrade migrates the schema first. A node of this version that ends early, for whatever
/// reason, starts again.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_killed_node_starts_again_on_the_schema_of_the_next_version() {
    let cluster = Cluster::start("next-schema").await;
    let topic = cluster.topic("orders").await;
    let (mut victim, stayer) = tokio::join!(cluster.node(), cluster.node());
    let consumer = cluster.consumer(&topic);
    let ledger = Arc::new(Ledger::default());
    let plan = Plan { topic, tasks_per_second: 200, ahead: 0..3000 };
    let traffic = Traffic::start(plan, &ledger, &[victim.api().clone(), stayer.api().clone()]);
    consumer.wait_count(300, DEADLINE).await;
    migrate_as_the_next_version(&cluster).await;
    victim.kill().await;
    let (again, migrating) = tokio::join!(cluster.node(), cluster.node_with(&["--auto-migrate"]));
    let back_at = now_ms();
    consumer
        .wait_for("records of after the restart", DEADLINE, |records| {
            records.iter().any(|record| record.timestamp > back_at + 2000)
        })
        .await;
    for node in [&again, &migrating] {
        let id = node.id().await;
        eventually("the node has shards", DEADLINE, async || {
            node.assignment().await.get(&id).is_some_and(|shards| !shards.is_empty())
        })
        .await;
    }
    traffic.stop().await;
    let findings = ledger.settle_up(&cluster, || consumer.records(), DEADLINE).await;
    assert_eq!(findings.dead, NONE);
}
