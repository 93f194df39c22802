//! Tasks due beyond the horizon wait in a table of their own, and come back through the mover.

use std::time::Duration;

use punctual::domain::{Shard, TaskId, Timestamp};
use serde_json::{Value, json};
use uuid::Uuid;

use crate::support::{Cluster, Wishes, eventually, now_ms};

const DEADLINE: Duration = Duration::from_secs(120);
const TASK_COUNT: usize = 200;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_task_a_year_ahead_waits_in_the_far_table_and_comes_through_the_mover() {
    let cluster =
        Cluster::with("far", Wishes { leaf: "5s", horizon: "10s", ..Wishes::default() }).await;
    let topic = cluster.topic("orders").await;
    let node = cluster.node().await;
    let consumer = cluster.consumer(&topic);
    let tasks: Vec<Value> = (0..TASK_COUNT)
        .map(|number| {
            json!({
                "topic": topic,
                "delay": "8760h",
                "payload_text": number.to_string(),
            })
        })
        .collect();
    let accepted = node.api().submit_all(&tasks).await;
    assert!(accepted.iter().all(|task| task.state == "scheduled"));
    assert_eq!(
        cluster.count("select count(*) from task_far").await,
        i64::try_from(TASK_COUNT).unwrap()
    );
    assert_eq!(cluster.count("select count(*) from task").await, 0);
    assert_eq!(node.api().task(accepted[0].id).await.state, "scheduled");

    // A year passes: all but ten are due a few seconds from now.
    let (stay, come) = accepted.split_at(10);
    let due_at = now_ms() + 6000;
    let mut expected = Vec::new();
    for (number, task) in come.iter().enumerate() {
        expected.push(
            bring_near(&cluster, task.id, due_at + i64::try_from(number).unwrap() * 10).await,
        );
    }
    expected.sort_unstable();
    eventually("the mover takes them into the leaves", DEADLINE, async || {
        cluster.count("select count(*) from task_far").await == i64::try_from(stay.len()).unwrap()
    })
    .await;
    let records = consumer.wait_count(expected.len(), DEADLINE).await;
    let mut arrived: Vec<Uuid> = records.iter().map(|record| record.task_id()).collect();
    arrived.sort_unstable();
    assert_eq!(arrived, expected);
    for record in &records {
        assert!(
            record.timestamp >= TaskId::from_uuid(record.task_id()).due_at().as_millis(),
            "early: {record:?}"
        );
    }
    cluster.wait_final(expected.len(), DEADLINE).await;
    assert_eq!(cluster.execlog().await.len(), expected.len());
    assert_eq!(node.api().task(stay[0].id).await.state, "scheduled");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_fell_due_in_the_far_table_while_no_node_ran_comes_when_one_does() {
    let cluster = Cluster::start("far-overdue").await;
    let topic = cluster.topic("orders").await;
    let consumer = cluster.consumer(&topic);
    let an_hour_ago = now_ms() - 3_600_000;
    let tasks: Vec<TaskId> = (0..50_u16)
        .map(|number| {
            let due_at = Timestamp::from_millis(an_hour_ago + i64::from(number) * 1000);
            TaskId::new(due_at, Shard::new(number % 16), rand::random())
        })
        .collect();
    let query = "insert into task_far (shard, id, topic, payload) select shard, id, $3, 'p' from \
                 unnest($1::smallint[], $2::uuid[]) t (shard, id)";
    let inserted = sqlx::query(query)
        .bind(tasks.iter().map(|id| id.shard().as_smallint()).collect::<Vec<_>>())
        .bind(tasks.iter().map(|id| id.uuid()).collect::<Vec<Uuid>>())
        .bind(&topic)
        .execute(&cluster.sql)
        .await
        .unwrap();
    assert_eq!(inserted.rows_affected(), 50);
    let _node = cluster.node().await;
    cluster.wait_final(tasks.len(), DEADLINE).await;
    let mut arrived: Vec<Uuid> = consumer
        .wait_count(tasks.len(), DEADLINE)
        .await
        .iter()
        .map(|record| record.task_id())
        .collect();
    arrived.sort_unstable();
    let mut expected: Vec<Uuid> = tasks.iter().map(|id| id.uuid()).collect();
    expected.sort_unstable();
    assert_eq!(arrived, expected);
    assert_eq!(cluster.count("select count(*) from task_far").await, 0);
}

/// Gives a far task an earlier due time, as if it had been submitted long ago. Returns the new id.
async fn bring_near(cluster: &Cluster, id: Uuid, due_at: i64) -> Uuid {
    let random = u64::try_from(id.as_u128() & u128::from(u64::MAX)).unwrap();
    let near =
        TaskId::new(Timestamp::from_millis(due_at), TaskId::from_uuid(id).shard(), random).uuid();
    let changed = sqlx::query("update task_far set id = $2 where id = $1")
        .bind(id)
        .bind(near)
        .execute(&cluster.sql)
        .await
        .unwrap();
    assert_eq!(changed.rows_affected(), 1);
    near
}
