//! Members of the policy of a topic that runs of its schedules have.

use reqwest::Method;
use serde_json::{Value, json};
use uuid::Uuid;

use super::{DEADLINE, header, one_pending, put, run_at};
use crate::support::{Api, Cluster, eventually, now_ms};

const EXPIRES_AFTER_MS: i64 = 3_600_000;

async fn set_policy(api: &Api, topic: &str, policy: &Value) {
    let path = format!("/v1/topics/{topic}/policy");
    let answer = api.send_with(Method::PUT, &path, &[], Some(policy.clone())).await;
    assert_eq!(answer.status, 200, "{}", answer.text);
}

fn millis(shown: &Value, member: &str) -> i64 {
    let text = shown[member].as_str().unwrap_or_else(|| panic!("no {member} in {shown}"));
    text.parse::<jiff::Timestamp>().unwrap().as_millisecond()
}

/// Returns the time from the due time of a run to its expiry, and its `ttr`.
async fn terms(api: &Api, id: Uuid) -> (i64, Value) {
    let shown = api.task(id).await.shown;
    (millis(&shown, "expires_at") - millis(&shown, "due_at"), shown["ttr"].clone())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn runs_have_the_expiry_and_the_time_to_run_of_the_policy() {
    let cluster = Cluster::start("schedule-policy").await;
    let topic = cluster.topic("orders").await;
    let node = cluster.node().await;
    let (api, path) = (node.api(), format!("/v1/schedules/{topic}/poll"));
    set_policy(api, &topic, &json!({ "expire_after": "1h", "ttr": "2m", "spread": "10m" })).await;
    let own_ttr = json!({ "every": "300d", "payload": 1, "ttr": "45s" });
    put(api, &path, &own_ttr).await;
    let (_name, id) = one_pending(&cluster).await;
    assert_eq!(terms(api, id.parse().unwrap()).await, (EXPIRES_AFTER_MS, json!("45s")));
    // With a spread of the schedule, both times are stored.
    let spread = json!({ "every": "300d", "payload": 1, "spread": "1h", "headers": {"h": "1"} });
    put(api, &path, &spread).await;
    let (_name, id) = one_pending(&cluster).await;
    let id = id.parse().unwrap();
    assert_eq!(terms(api, id).await, (EXPIRES_AFTER_MS, json!("2m")));
    let shown = api.task(id).await.shown;
    let later = millis(&shown, "due_at") - millis(&shown, "requested_due_at");
    assert!((1..3_600_000).contains(&later), "{shown}");
    assert_eq!(shown["headers"]["h"], "1", "{shown}");

    let triggered = api.post(&format!("{path}/trigger"), "").await.json();
    let id = triggered["id"].as_str().unwrap().parse().unwrap();
    assert_eq!(terms(api, id).await, (EXPIRES_AFTER_MS, json!("2m")));
    assert!(millis(&triggered, "due_at") <= now_ms(), "due now, without spread: {triggered}");
    let hourly = json!({ "every": "1h", "payload": 1 });
    let path = format!("/v1/schedules/{topic}/hourly");
    put(api, &path, &hourly).await;
    let filled = api.post(&format!("{path}/backfill"), r#"{"last":"2h"}"#).await;
    assert_eq!(filled.status, 200, "{}", filled.text);
    let backfilled = "select first_id from schedule_run where is_backfill";
    let ids: Vec<Uuid> = sqlx::query_scalar(backfilled).fetch_all(&cluster.sql).await.unwrap();
    assert!(!ids.is_empty());
    for id in ids {
        assert_eq!(terms(api, id).await, (EXPIRES_AFTER_MS, json!("2m")));
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_triggered_run_has_no_submitter_as_other_runs_have_none() {
    let cluster = Cluster::start("schedule-submitter").await;
    let topic = cluster.topic("orders").await;
    let consumer = cluster.consumer(&topic);
    let node = cluster.node().await;
    let (api, path) = (node.api(), format!("/v1/schedules/{topic}/poll"));
    set_policy(api, &topic, &json!({ "submitted_by_header": true })).await;
    put(api, &path, &json!({ "every": "300d", "payload": 1 })).await;
    assert_eq!(api.post(&format!("{path}/trigger"), "").await.status, 201);
    api.submit(&json!({ "topic": topic, "delay": 0, "payload": 2 })).await;
    let records = consumer.wait_count(2, DEADLINE).await;
    for record in &records {
        let is_run = header(record, "punctual-schedule").is_some();
        assert_eq!(header(record, "punctual-submitted-by").is_none(), is_run);
    }
}

/// A run has the headers of a tracked task and of its expiry, and its topic must take it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_record_that_is_too_large_with_the_terms_of_the_policy_is_refused() {
    let cluster = Cluster::start("schedule-large").await;
    let topic = cluster.topic_with("small", &[("max.message.bytes", "1000")]).await;
    let node = cluster.node().await;
    let (api, path) = (node.api(), format!("/v1/schedules/{topic}/poll"));
    let body =
        |note: &str| json!({ "every": "300d", "payload_text": "x".repeat(650), "note": note });
    put(api, &path, &body("without a policy")).await;
    set_policy(api, &topic, &json!({ "expire_after": "1h", "ttr": "2m" })).await;
    let other = Some(body("with a policy"));
    let filled = Some(json!({ "last": "1h" }));
    for refused in [
        api.send_with(Method::PUT, &path, &[], other).await,
        api.send_with(Method::POST, &format!("{path}/backfill"), &[], filled).await,
        api.send_with(Method::POST, &format!("{path}/trigger"), &[], None).await,
    ] {
        let problem = refused.json();
        let shown = (refused.status, problem["type"].as_str());
        assert_eq!(shown, (422, Some("urn:punctual:problem:record-too-large")), "{problem}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_run_that_is_too_late_expires() {
    let cluster = Cluster::start("schedule-expiry").await;
    let topic = cluster.topic("orders").await;
    let consumer = cluster.consumer(&topic);
    let node = cluster.node().await;
    let api = node.api();
    set_policy(api, &topic, &json!({ "expire_after": "1s" })).await;
    assert_eq!(api.post(&format!("/v1/topics/{topic}/pause"), "").await.status, 200);
    let body = json!({ "every": "1s", "missed": { "policy": "none" }, "payload": 1 });
    put(api, &format!("/v1/schedules/{topic}/tick"), &body).await;
    let overdue = "select count(*) from schedule_run where instant
        < (extract(epoch from clock_timestamp()) * 1000)::bigint - 3000";
    eventually("runs have waited", DEADLINE, async || cluster.count(overdue).await > 0).await;
    let resumed_at = now_ms();
    assert_eq!(api.post(&format!("/v1/topics/{topic}/resume"), "").await.status, 200);
    let records = consumer.wait_count(2, DEADLINE).await;
    for record in &records {
        assert!(run_at(record) > resumed_at - 1_500, "{} at {resumed_at}", run_at(record));
    }
    let expired = "select count(*) from execlog where state = 'expired'";
    eventually("runs have expired", DEADLINE, async || cluster.count(expired).await > 0).await;
}
