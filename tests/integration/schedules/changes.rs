//! Changes of schedules with runs that are far away, many, or of older rules.

use reqwest::Method;
use serde_json::json;

use super::{DEADLINE, one_pending, pending, put};
use crate::support::{Cluster, eventually, now_ms};

const RUNS: &str = "select count(*) from schedule_run";

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_changed_timing_begins_now_although_a_far_run_was_cancelled() {
    let cluster = Cluster::start("schedule-far-run").await;
    let topic = cluster.topic("orders").await;
    let node = cluster.node().await;
    let (api, path) = (node.api(), format!("/v1/schedules/{topic}/report"));
    put(api, &path, &json!({ "cron": "0 0 1 1 *", "time_zone": "UTC", "payload": 1 })).await;
    let run = one_pending(&cluster).await;
    assert_eq!(api.cancel(run.1.parse().unwrap()).await.status, 200);
    let hourly = json!({ "cron": "0 * * * *", "time_zone": "UTC", "payload": 1 });
    let changed = put(api, &path, &hourly).await;
    let next = changed["next_run_at"].as_str().unwrap().parse::<jiff::Timestamp>().unwrap();
    let after = next.as_millisecond() - now_ms();
    assert!((0..=3_600_000).contains(&after), "{changed}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_schedule_with_many_runs_is_paused_and_deleted() {
    let cluster = Cluster::start("schedule-many-runs").await;
    let topic = cluster.topic("orders").await;
    let node = cluster.node().await;
    let (api, path) = (node.api(), format!("/v1/schedules/{topic}/report"));
    put(api, &path, &json!({ "cron": "0 0 1 1 *", "time_zone": "UTC", "payload": 1 })).await;
    one_pending(&cluster).await;
    let many = "insert into schedule_run (schedule_id, instant, first_id)
        select s.id, n, gen_random_uuid() from schedule s cross join generate_series(1, 30000) n";
    sqlx::query(many).execute(&cluster.sql).await.unwrap();
    assert_eq!(api.post(&format!("{path}/pause"), "").await.status, 200);
    assert_eq!(pending(&cluster).await, []);
    assert_eq!(api.send(Method::DELETE, &path, None).await.status, 200);
    assert_eq!(api.send(Method::GET, &path, None).await.status, 404);
    assert!(cluster.count(RUNS).await > 20_000, "most runs are deleted later");
    eventually("all runs are deleted", DEADLINE, async || cluster.count(RUNS).await == 0).await;
    eventually("the schedule is forgotten", DEADLINE, async || {
        cluster.count("select count(*) from schedule_deleted").await == 0
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_change_moves_the_runs_of_older_rules() {
    let cluster = Cluster::start("schedule-older-rules").await;
    let topic = cluster.topic("orders").await;
    let node = cluster.node().await;
    let (api, path) = (node.api(), format!("/v1/schedules/{topic}/report"));
    let body = |payload: u8| json!({ "cron": "0 0 1 1 *", "time_zone": "Europe/Berlin", "payload": payload });
    put(api, &path, &body(1)).await;
    one_pending(&cluster).await;
    // As if other rules had made the run an hour later.
    for text in [
        "delete from task_name",
        "update schedule_run set instant = instant + 3600000",
        "update schedule set next_run_at = next_run_at + 3600000, tzdata = '1999a'",
    ] {
        sqlx::query(text).execute(&cluster.sql).await.unwrap();
    }
    let changed = put(api, &path, &body(2)).await;
    assert!(
        changed["next_run_at"].as_str().unwrap().ends_with("-12-31T23:00:00.000Z"),
        "{changed}"
    );
    assert_ne!(changed["tzdata"], "1999a");
}
