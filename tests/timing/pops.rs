//! Tests that a consumer group without Kafka catches up.

use std::time::Duration;

use serde_json::{Value, json};

use crate::support::{Api, Cluster, eventually, now_ms};

const DEADLINE: Duration = Duration::from_secs(120);
const LATE_COUNT: usize = 6_000;
/// It takes 0.2 s, and 22 s if each record is looked up by itself (27 November 2026, 2 cores).
const CATCH_UP_MAX_MS: i64 = 8_000;

async fn pop(api: &Api, topic: &str, wait: &str) -> Vec<Value> {
    let call = json!({ "group": "late", "wait": wait, "max": 100 });
    let answer = api.post(&format!("/v1/topics/{topic}/pop"), call.to_string()).await;
    assert_eq!(answer.status, 200, "{}", answer.text);
    answer.json()["tasks"].as_array().unwrap().clone()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_group_that_is_later_than_the_time_to_run_catches_up() {
    let cluster = Cluster::start("late-group").await;
    let (topic, node) = (cluster.topic("orders").await, cluster.node().await);
    let api = node.api();
    // The node is a member of the group before there is a task.
    assert_eq!(pop(api, &topic, "5s").await, Vec::<Value>::new());
    let task = |n: usize| {
        json!({ "topic": topic, "delay": 0, "key": format!("k{n}"), "payload": n, "ttr": "1s",
                "retry": { "attempts_max": 1 } })
    };
    let tasks: Vec<Value> = (0..LATE_COUNT).map(task).collect();
    let ids: Vec<_> = api.submit_all(&tasks).await.iter().map(|task| task.id).collect();
    for id in ids.iter().rev().take(3) {
        let is_dead = async || api.task(*id).await.state == "dead";
        eventually("its time to run is over", DEADLINE, is_dead).await;
    }
    let mut fresh = task(LATE_COUNT);
    fresh["ttr"] = "60s".into();
    let id = api.submit(&fresh).await.id.to_string();
    let began = now_ms();
    let is_given =
        async || pop(api, &topic, "1s").await.iter().any(|task| task["id"] == id.as_str());
    eventually("the group catches up", DEADLINE, is_given).await;
    let took = now_ms() - began;
    eprintln!("{LATE_COUNT} late records were passed in {took} ms");
    assert!(took < CATCH_UP_MAX_MS, "{took} ms");
}
