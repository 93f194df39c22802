//! Moves of tasks over REST: a moved task keeps its id and its name, and is published at its new
//! time; each state of a task has its verdict.

use std::time::Duration;

use reqwest::Method;
use serde_json::{Value, json};
use uuid::Uuid;

use crate::names::ByName as _;
use crate::support::{Answer, Api, Cluster, Wishes, eventually, now_ms};

const DEADLINE: Duration = Duration::from_secs(120);

/// Moves a task. A busy 503 is repeated.
async fn move_to(api: &Api, id: Uuid, body: Value) -> Answer {
    let body = body.to_string();
    loop {
        let sent = Some(("application/json", body.clone().into_bytes()));
        let answer = api.send(Method::PATCH, &format!("/v1/tasks/{id}"), sent).await;
        if answer.status != 503 {
            return answer;
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_moved_task_is_published_once_at_its_new_time_with_its_id() {
    let cluster = Cluster::start("moves").await;
    let topic = cluster.topic("orders").await;
    let (node, consumer) = (cluster.node().await, cluster.consumer(&topic));
    let api = node.api();
    let task = |name: &str, delay: &str| {
        let (text, key) = (name, "k");
        json!({ "topic": topic, "name": name, "delay": delay, "payload_text": text, "key": key })
    };
    let tasks =
        api.submit_all(&[task("sooner", "1h"), task("later", "10m"), task("far", "30d")]).await;
    let [sooner, later, far] = [tasks[0].id, tasks[1].id, tasks[2].id];
    let due_at = now_ms() + 6_000;
    for id in [sooner, later, far] {
        let moved = move_to(api, id, json!({ "due_at": due_at })).await;
        assert_eq!((moved.status, moved.verdict()), (200, "moved".to_owned()), "{}", moved.text);
        assert_eq!(moved.json()["task"]["id"], id.to_string());
    }
    let named = api.by_name(Method::GET, &topic, "later", None).await.json();
    assert_eq!((&named["id"], &named["state"]), (&json!(later.to_string()), &json!("scheduled")));
    let listed = api.get(&format!("/v1/tasks?topic={topic}")).await.json();
    let listed: Vec<&Value> =
        listed["tasks"].as_array().unwrap().iter().map(|task| &task["due_at"]).collect();
    assert_eq!(listed, [&named["due_at"]; 3]);
    let records = consumer.wait_count(3, DEADLINE).await;
    for record in &records {
        assert_eq!(record.header("punctual-due-at"), Some(due_at.to_string().as_bytes()));
        assert!(record.timestamp >= due_at, "never early");
    }
    cluster.wait_final(3, DEADLINE).await;
    let order: Vec<Uuid> = records.iter().map(|record| record.task_id()).collect();
    assert_eq!(order, [sooner, later, far], "of one key, in the order of the moves");
    for id in [sooner, later, far] {
        let shown = api.task(id).await.shown;
        assert_eq!((&shown["state"], &shown["due_at"]), (&json!("published"), &named["due_at"]));
        assert!((0..60_000).contains(&shown["receipt"]["lateness_ms"].as_i64().unwrap()));
    }
    assert_eq!(cluster.count("select count(*) from task_follow").await, 0);
    assert!(api.metric("punctual_tasks_moved_total").await >= 3.0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn each_state_of_a_task_has_its_verdict_on_a_move() {
    let cluster = Cluster::with("moves", Wishes { window: "10s", ..Wishes::default() }).await;
    let topic = cluster.topic("orders").await;
    let node = cluster.node().await;
    let api = node.api();
    let task = |name: &str, delay: &str, ttr: Option<&str>| {
        let mut task =
            json!({ "topic": topic, "name": name, "delay": delay, "payload_text": name });
        ttr.into_iter().for_each(|ttr| task["ttr"] = ttr.into());
        task
    };
    let submit = async |name: &str, delay: &str, ttr| api.submit(&task(name, delay, ttr)).await.id;
    let published = submit("published", "0s", None).await;
    let awaiting = submit("awaiting", "0s", Some("1h")).await;
    let cancelled = submit("cancelled", "1h", None).await;
    let replaced = submit("replaced", "1h", None).await;
    let scheduled = submit("scheduled", "1h", None).await;
    assert_eq!(api.cancel(cancelled).await.verdict(), "cancelled");
    let new = json!({ "delay": "2h", "payload_text": "new" });
    assert_eq!(api.put(&topic, "replaced", new).await.status, 200);
    for (id, state) in [(published, "published"), (awaiting, "awaiting")] {
        eventually("the record is in the topic", DEADLINE, async || {
            api.task(id).await.shown["state"] == state
        })
        .await;
    }
    let claimed = submit("claimed", "9s", None).await;
    let unknown: Uuid = "01b977ea-f4c0-8003-8000-000000000007".parse().unwrap();
    for (id, status, verdict, state) in [
        (scheduled, 200, "moved", "scheduled"),
        (claimed, 409, "too_late", "claimed"),
        (published, 409, "too_late", "published"),
        (awaiting, 409, "too_late", "awaiting"),
        (cancelled, 409, "too_late", "cancelled"),
        (replaced, 409, "replaced", "cancelled"),
        (unknown, 404, "not_found", ""),
    ] {
        let answer = move_to(api, id, json!({ "delay": "3h" })).await;
        let shown = answer.json()["task"]["state"].as_str().unwrap_or_default().to_owned();
        assert_eq!(
            (answer.status, answer.verdict().as_str(), shown.as_str()),
            (status, verdict, state),
            "{}",
            answer.text
        );
        if id != unknown && status != 200 {
            let due_at = &api.task(id).await.shown["due_at"];
            assert_eq!(due_at, &answer.json()["task"]["due_at"], "nothing was changed");
        }
    }
}
