//! Postgres's clock is set under a running node.

use std::time::Duration;

use serde_json::json;

use crate::support::{Cluster, Node, eventually};

/// Less than the minute for which a node would pause its claims.
const SOON: Duration = Duration::from_secs(30);

/// From now on, sessions of the database read the time from a function, which adds the value in a
/// table.
pub async fn take_over_the_clock(cluster: &Cluster) {
    let text = format!(
        "create table step (ahead interval not null);
        insert into step values ('0');
        create function public.clock_timestamp() returns timestamptz language sql volatile
          as 'select pg_catalog.clock_timestamp() + ahead from public.step';
        alter database {} set search_path = public, pg_catalog",
        cluster.database.name
    );
    sqlx::raw_sql(sqlx::AssertSqlSafe(text)).execute(&cluster.sql).await.unwrap();
}

/// A node of the cluster whose sessions see that function: only the URL can make them.
pub async fn node_with_that_clock(cluster: &Cluster, more: &[&str]) -> Node {
    let url = format!("{}&options[search_path]=public,pg_catalog", cluster.database.url);
    let mut words = vec!["--database-url", &url, "--kafka", &cluster.stack.kafka];
    words.extend(["--etcd", &cluster.stack.etcd, "--cluster", &cluster.name]);
    words.extend(more);
    let mut node = cluster.spawn_bare(&words);
    node.wait_ready().await;
    node
}

pub async fn step(cluster: &Cluster, by: &str) {
    let done = sqlx::query("update public.step set ahead = ahead + $1::text::interval")
        .bind(by)
        .execute(&cluster.sql)
        .await;
    assert_eq!(done.unwrap().rows_affected(), 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn steps_forward_are_followed_at_once_and_only_a_large_one_stops_the_claims() {
    let cluster = Cluster::start("steps").await;
    take_over_the_clock(&cluster).await;
    let topic = cluster.topic("orders").await;
    let node = node_with_that_clock(&cluster, &[]).await;
    let (api, consumer) = (node.api(), cluster.consumer(&topic));
    api.learn(&topic).await;
    let steps = async |kind: &str| {
        api.metric(&format!("punctual_clock_steps_total{{step=\"{kind}\"}}")).await
    };
    for (round, by) in ["0.6s", "0.7s", "2s", "9s", "0.6s"].into_iter().enumerate() {
        step(&cluster, by).await;
        eventually("the step is seen", SOON, async || {
            steps("followed").await == (round + 1) as f64
        })
        .await;
        // After the window, so that the task has to be claimed.
        let task = api.submit(&json!({ "topic": topic, "delay": 3000, "payload": round })).await;
        assert_eq!(task.state, "scheduled");
        consumer.wait_count(round + 1, SOON).await;
        eventually("the node is ready", SOON, || api.is_ready()).await;
    }
    step(&cluster, "20s").await;
    eventually("the step is seen", SOON, async || steps("ahead").await == 1.0).await;
    eventually("the node says so", SOON, async || {
        api.metric("punctual_missing{what=\"clock\"}").await == 1.0
    })
    .await;
    assert_eq!((steps("followed").await, steps("back").await), (5.0, 0.0));
    assert!(node.log().contains("was set forward by more than 10 s"), "{}", node.log());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_search_path_of_the_database_is_not_followed() {
    let cluster = Cluster::start("path").await;
    take_over_the_clock(&cluster).await;
    let topic = cluster.topic("orders").await;
    let node = cluster.node().await;
    let consumer = cluster.consumer(&topic);
    step(&cluster, "9s").await;
    for count in 1..=3 {
        node.api().submit(&json!({ "topic": topic, "delay": 400, "payload": count })).await;
        consumer.wait_count(count, SOON).await;
    }
    let followed = node.api().metric("punctual_clock_steps_total{step=\"followed\"}").await;
    assert_eq!(followed, 0.0);
}
