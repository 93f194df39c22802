//! Much at once: memory stays bounded.

use std::time::Duration;

use punctual::domain::{Shard, TaskId, Timestamp};
use serde_json::json;
use uuid::Uuid;

use crate::support::{Cluster, Wishes, eventually, now_ms};

const DEADLINE: Duration = Duration::from_secs(90);
const TASK_COUNT: usize = 2000;
const PAYLOAD_BYTES: i32 = 1_000_000;
const SHARDS: u16 = 16;
/// The default limit on bytes in flight is 256 MiB. librdkafka and the answers of claims hold
/// copies.
const MEMORY_MAX: u64 = 1 << 30;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_thousand_tasks_of_1_mb_due_at_one_moment_go_through_in_bounded_memory() {
    let cluster = Cluster::with("large", Wishes { shards: SHARDS, ..Wishes::default() }).await;
    let topic = cluster.topic("large").await;
    let node = cluster.node().await;
    let consumer = cluster.consumer(&topic);
    let due_at = now_ms() + 10_000;
    // A few tasks go over the API, so the submit path carries large ones, too. The rest go straight
    // into the table, because two gigabytes of JSON would test only the test. On a slow machine,
    // the tasks are stored after their due time, and then become overdue at one moment, that of the
    // commit.
    let payload = "y".repeat(usize::try_from(PAYLOAD_BYTES).unwrap());
    let mut expected = Vec::with_capacity(TASK_COUNT);
    for _ in 0..20 {
        let task = json!({ "topic": topic, "due_at": due_at, "payload_text": payload });
        expected.push(node.api().submit(&task).await.id);
    }
    expected.extend(insert(&cluster, &topic, due_at, TASK_COUNT - expected.len()).await);
    eventually("the moment has come", DEADLINE, async || now_ms() > due_at).await;

    let mut arrived: Vec<Uuid> = consumer
        .wait_count_while_they_come(TASK_COUNT, DEADLINE)
        .await
        .iter()
        .map(|record| record.task_id())
        .collect();
    arrived.sort_unstable();
    expected.sort_unstable();
    assert_eq!(arrived, expected, "each of them once");
    assert!(consumer.records().iter().all(|record| record.timestamp >= due_at));
    let highest = node.memory("VmHWM");
    assert!(highest < MEMORY_MAX, "the node took {} MiB", highest >> 20);
    cluster.wait_final(TASK_COUNT, DEADLINE).await;
}

/// Inserts tasks into `task` as submits would, in one transaction. The payloads are copies of the
/// first one, so that Postgres does not compress each again.
async fn insert(cluster: &Cluster, topic: &str, due_at: i64, count: usize) -> Vec<Uuid> {
    let shard = |index: usize| Shard::new(u16::try_from(index % usize::from(SHARDS)).unwrap());
    let ids: Vec<Uuid> = (0..count)
        .map(|index| {
            TaskId::new(Timestamp::from_millis(due_at), shard(index), rand::random()).uuid()
        })
        .collect();
    let shards: Vec<i16> =
        ids.iter().map(|id| TaskId::from_uuid(*id).shard().as_smallint()).collect();
    let mut transaction = cluster.sql.begin().await.unwrap();
    let first = "insert into task (shard, id, topic, payload) values ($1, $2, $3, \
                 convert_to(repeat('x', $4), 'UTF8'))";
    let first = sqlx::query(first).bind(shards[0]).bind(ids[0]).bind(topic).bind(PAYLOAD_BYTES);
    assert_eq!(first.execute(&mut *transaction).await.unwrap().rows_affected(), 1);
    let others = "insert into task (shard, id, topic, payload)
        select t.shard, t.id, $3, (select payload from task where shard = $4 and id = $5)
        from unnest($1::smallint[], $2::uuid[]) t (shard, id)";
    let others = sqlx::query(others)
        .bind(&shards[1..])
        .bind(&ids[1..])
        .bind(topic)
        .bind(shards[0])
        .bind(ids[0]);
    assert_eq!(
        others.execute(&mut *transaction).await.unwrap().rows_affected(),
        u64::try_from(count - 1).unwrap()
    );
    transaction.commit().await.unwrap();
    ids
}
