//! Postgres closes sessions that nobody uses just then: in a restart, a fail-over, at an operator's word. The next call is not the one that finds out.

use std::time::Duration;

use reqwest::Method;
use serde_json::json;

use crate::support::{Api, Cluster, eventually};

const DEADLINE: Duration = Duration::from_secs(120);

/// One call of each kind, each over a connection of its own; what was answered instead of 2xx.
async fn one_of_each(api: &Api, topic: &str, turn: u32) -> Vec<String> {
    let task = json!({ "topic": topic, "delay": "1h", "payload_text": "idle" });
    let named = json!({ "topic": topic, "delay": "1h", "payload_text": "idle", "name": format!("named {turn}") });
    let unnamed = api.post("/v1/tasks", task.to_string()).await;
    let id = unnamed.json()["id"].as_str().unwrap_or("00000000-0000-0000-0000-000000000000").to_owned();
    let by_name = format!("/v1/topics/{topic}/tasks/replaced");
    let replacement = json!({ "delay": "1h", "payload_text": "idle" }).to_string().into_bytes();
    let answers = [
        ("submit", unnamed),
        ("submit with a name", api.post("/v1/tasks", named.to_string()).await),
        ("replace", api.send(Method::PUT, &by_name, Some(("application/json", replacement))).await),
        ("look-up", api.get(&format!("/v1/tasks/{id}")).await),
        ("look-up by name", api.get(&by_name).await),
        ("list", api.get(&format!("/v1/tasks?topic={topic}")).await),
        ("counts", api.get("/v1/tasks/counts").await),
        ("dead letters", api.get("/v1/dead").await),
        ("cancel", api.send(Method::DELETE, &format!("/v1/tasks/{id}"), None).await),
    ];
    answers
        .iter()
        .filter(|(_, answer)| !(200..300).contains(&answer.status))
        .map(|(what, answer)| format!("{what}: {answer:?}"))
        .collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn calls_after_postgres_has_closed_idle_sessions_are_answered_at_once() {
    let cluster = Cluster::start("idle-sessions").await;
    let topic = cluster.topic("orders").await;
    let node = cluster.node().await;
    assert_eq!(one_of_each(node.api(), &topic, 1).await, Vec::<String>::new());
    eventually("the sessions that serve callers are idle for more than a second, and closed", DEADLINE, async || {
        let close = "select count(pg_terminate_backend(pid)) from pg_stat_activity
            where datname = current_database() and application_name like 'punctual %' and state = 'idle'
              and state_change < now() - interval '1.2 s'";
        let left = "select count(*) from pg_stat_activity where datname = current_database() and application_name = any(array['punctual submit',
            'punctual submit named', 'punctual replace', 'punctual look up', 'punctual names', 'punctual list', 'punctual counts',
            'punctual dead letters', 'punctual cancel'])";
        cluster.count(close).await;
        cluster.count(left).await == 0
    })
    .await;
    assert_eq!(one_of_each(node.api(), &topic, 2).await, Vec::<String>::new());
}
