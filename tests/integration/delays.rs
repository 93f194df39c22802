//! A delay is never shorter than asked, and hardly longer.

use std::time::Duration;

use serde_json::json;

use crate::support::proxy::{Proxy, Target};
use crate::support::{Cluster, Wishes, now_ms};

/// The delay of Postgres's answers on their way back. A node's lower bound of the clock is late by
/// this much.
const WAY_BACK: Duration = Duration::from_millis(60);
const DELAY_MS: i64 = 400;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_delay_counts_from_the_arrival_of_the_request_however_far_behind_the_clock_is() {
    let cluster = Cluster::with("delays", Wishes { has_etcd: false, ..Wishes::default() }).await;
    let topic = cluster.topic("orders").await;
    let mut proxy = Proxy::closed(Target::postgres(&cluster.stack)).await;
    proxy.slow_answers(WAY_BACK);
    proxy.open().await;
    let url = cluster.database.url_by(proxy.address());
    let mut node = cluster.spawn_by(&url, &[]);
    node.wait_ready().await;
    let task = json!({ "topic": topic, "delay": DELAY_MS, "payload": 1 });
    let check = |what: &str, began: i64, due_at: i64| {
        let ended = now_ms();
        assert!(due_at >= began + DELAY_MS, "{what}: shorter by {} ms", began + DELAY_MS - due_at);
        // The answer took longer than the distance between the limits.
        assert!(
            due_at <= ended + DELAY_MS + 1,
            "{what}: longer by {} ms",
            due_at - ended - DELAY_MS
        );
    };
    for round in 0..3 {
        let began = now_ms();
        check("a task", began, node.api().submit(&task).await.due_at);
        let began = now_ms();
        let tasks = vec![task.clone(); 20];
        node.api()
            .submit_all(&tasks)
            .await
            .iter()
            .for_each(|task| check("a task of many", began, task.due_at));
        let (began, path) = (now_ms(), format!("/v1/topics/{topic}/tasks/{round}"));
        let body = json!({ "delay": DELAY_MS, "payload": 1 }).to_string().into_bytes();
        let answer =
            node.api().send(reqwest::Method::PUT, &path, Some(("application/json", body))).await;
        assert_eq!(answer.status, 201, "{}", answer.text);
        check("a replacement", began, crate::support::api::Task::new(answer.json()).due_at);
    }
}
