//! Runs that must not come again after a change, and runs in the shard of a former key.

use std::time::Duration;

use punctual::domain::time::duration;
use reqwest::Method;
use serde_json::{Value, json};

use super::{DEADLINE, instant_of, next_run_at, one_pending, pending, put};
use crate::support::{Api, Cluster, eventually, now_ms};

const HOUR_MS: i64 = 3_600_000;
const MINUTE_MS: i64 = 60_000;

fn hourly(phase: i64, spread: Option<&str>) -> Value {
    let mut body = json!({ "every": "1h", "phase": phase, "payload": 1 });
    if let Some(spread) = spread {
        body["spread"] = spread.into();
    }
    body
}

/// Returns a phase whose instants are half an hour away: none falls into the test.
fn distant_phase() -> i64 {
    (now_ms() + HOUR_MS / 2) % HOUR_MS
}

/// Returns the path of a schedule whose runs are over five hours late with a spread of a day.
async fn late_path(api: &Api, topic: &str) -> String {
    let mut number = 0;
    loop {
        let path = format!("/v1/schedules/{topic}/report-{number}");
        let shown = put(api, &format!("{path}?dry_run=true"), &hourly(0, Some("1d"))).await;
        let shift = duration::parse(shown["shift"].as_str().unwrap()).unwrap();
        if shift > Duration::from_secs(5 * 3600) {
            return path;
        }
        number += 1;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn another_timing_repeats_no_run_that_was_made_with_a_smaller_spread() {
    let cluster = Cluster::start("schedule-more-spread").await;
    let topic = cluster.topic("orders").await;
    let node = cluster.node().await;
    let api = node.api();
    let (path, phase) = (late_path(api, &topic).await, distant_phase());
    put(api, &path, &hourly(phase, None)).await;
    let next = instant_of(&one_pending(&cluster).await);
    // As if the schedule were a day old, with the runs of the last six hours.
    for text in [
        "insert into schedule_run (schedule_id, instant, first_id)
         select schedule_id, instant - n * 3600000::bigint,
           punctual_due_again(first_id, instant - n * 3600000::bigint)
         from schedule_run cross join generate_series(1, 6) n",
        "update schedule set created_at = created_at - interval '1 day'",
    ] {
        sqlx::query(text).execute(&cluster.sql).await.unwrap();
    }
    put(api, &path, &hourly(phase, Some("1d"))).await;
    let other = (phase + MINUTE_MS) % HOUR_MS;
    let changed = put(api, &path, &hourly(other, Some("1d"))).await;
    assert_eq!(next_run_at(&changed), next - HOUR_MS + MINUTE_MS, "after the last run: {changed}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn another_timing_makes_no_run_of_before_the_creation() {
    let cluster = Cluster::start("schedule-corrected").await;
    let topic = cluster.topic("orders").await;
    let node = cluster.node().await;
    let api = node.api();
    let (path, phase) = (late_path(api, &topic).await, distant_phase());
    put(api, &path, &hourly(phase, Some("1d"))).await;
    let next = instant_of(&one_pending(&cluster).await);
    let other = (phase + MINUTE_MS) % HOUR_MS;
    let corrected = put(api, &path, &hourly(other, Some("1d"))).await;
    assert_eq!(next_run_at(&corrected), next + MINUTE_MS, "{corrected}");
}

/// Replaces a schedule until its runs are in another shard. `body` makes it with a key.
async fn put_in_another_shard(
    (cluster, api): (&Cluster, &Api),
    path: &str,
    body: impl Fn(&str) -> Value,
) {
    let shard = async || cluster.count("select shard::bigint from schedule").await;
    let former = shard().await;
    let mut number = 0;
    while shard().await == former {
        put(api, path, &body(&format!("key-{number}"))).await;
        number += 1;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_deleted_schedule_leaves_no_backfilled_run_of_a_former_key() {
    let cluster = Cluster::start("schedule-former-key").await;
    let topic = cluster.topic("orders").await;
    let node = cluster.node().await;
    let (api, path) = (node.api(), format!("/v1/schedules/{topic}/report"));
    let body = |key: &str| json!({ "every": "1h", "payload": 1, "key": key });
    assert_eq!(api.post(&format!("/v1/topics/{topic}/pause"), "").await.status, 200);
    put(api, &path, &body("a")).await;
    let filled = api.post(&format!("{path}/backfill"), r#"{"last":"3h"}"#).await;
    assert_eq!((filled.status, &filled.json()["made"]), (200, &json!(3)), "{}", filled.text);
    put_in_another_shard((&cluster, api), &path, body).await;
    let waiting = "select count(*) from task t join schedule_run r on r.first_id = t.id
        join schedule s on s.id = r.schedule_id where r.is_backfill and t.shard <> s.shard";
    assert_eq!(cluster.count(waiting).await, 3, "a change leaves them");
    assert_eq!(api.send(Method::DELETE, &path, None).await.status, 200);
    assert_eq!(pending(&cluster).await, []);
    assert_eq!(cluster.count("select count(*) from schedule_run").await, 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_schedule_that_skips_waits_for_a_backfilled_run_of_a_former_key() {
    let cluster = Cluster::start("schedule-former-run").await;
    let topic = cluster.topic("orders").await;
    let node = cluster.node().await;
    let (api, path) = (node.api(), format!("/v1/schedules/{topic}/tick"));
    let body = |key: &str| {
        json!({ "every": "1s", "overlap": "skip", "ttr": "1h", "payload": 1, "key": key,
            "paused": true })
    };
    assert_eq!(api.post(&format!("/v1/topics/{topic}/pause"), "").await.status, 200);
    put(api, &path, &body("a")).await;
    let filled = api.post(&format!("{path}/backfill"), r#"{"last":"5s"}"#).await;
    assert_eq!(filled.status, 200, "{}", filled.text);
    put_in_another_shard((&cluster, api), &path, body).await;
    assert_eq!(api.post(&format!("{path}/resume"), "").await.status, 200);
    let skipped = "select coalesce(max(skipped), 0)::bigint from schedule";
    eventually("instants are skipped", DEADLINE, async || cluster.count(skipped).await >= 3).await;
    let own = "select count(*) from schedule_run where not is_backfill";
    assert_eq!(cluster.count(own).await, 0, "the backfilled runs wait");
}
