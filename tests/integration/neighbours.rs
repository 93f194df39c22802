//! One topic's trouble is not its neighbours'.

use std::time::Duration;

use punctual::domain::{Shard, TaskId, Timestamp};
use serde_json::{Value, json};
use uuid::Uuid;

use crate::support::{Cluster, OwnStack, Wishes, now_ms};

/// Tasks of the topic that takes its records.
const HEALTHY: i64 = 600;
const SILENT: i64 = 240;

/// What is claimed together is settled together, so a record without an answer keeps all of its batch unsettled until the publish deadline (30 s). What was
/// published beside it must not count against its own topic until then.
#[tokio::test(flavor = "multi_thread")]
async fn what_is_claimed_beside_records_without_an_answer_leaves_room_for_its_own_topic() {
    let own = OwnStack::start("neighbours").await;
    own.know_second_broker().await;
    let cluster = Cluster::at(&own.stack, "neighbours", Wishes::default()).await;
    let node = cluster.node_with(&["--claim-loops", "1", "--in-flight-tasks", "1000", "--topic-in-flight-tasks", "100"]).await;
    let (silent, healthy) = (cluster.topic_with_replica_away("silent").await, cluster.topic("healthy").await);
    // The broker takes nothing, and the producer tries again and again.
    cluster.alter_topic(&silent, &[("min.insync.replicas", "2")]).await;
    let consumer = cluster.consumer(&healthy);
    // Each claim takes some of both; within two seconds they come to more of the healthy topic than it may have in flight.
    let begin = now_ms() + 3_000;
    let task = |topic: &str, due_at: i64| json!({ "topic": topic, "due_at": due_at, "payload": due_at });
    let all_healthy = (0..HEALTHY).map(|number| task(&healthy, begin + number * 10));
    let tasks: Vec<Value> = all_healthy.chain((0..SILENT).map(|number| task(&silent, begin + number * 25))).collect();
    node.api().submit_all(&tasks).await;
    // Well before the first of the silent ones comes to its deadline.
    let deadline = Duration::from_millis(u64::try_from(begin + 24_000 - now_ms()).unwrap());
    consumer.wait_count(usize::try_from(HEALTHY).unwrap(), deadline).await;
    let metrics = node.metrics().await;
    let batches = metrics.lines().find_map(|line| line.strip_prefix("punctual_in_flight_batches ")).unwrap();
    assert!(batches.parse::<u32>().unwrap() >= 10, "they were claimed together: {batches} batches have something to come");
}

const CROWD: usize = 60_000;
const BESIDE: usize = 32;
/// Tasks of a topic that are claimed no later than the last one of another topic.
const CLAIMED_BEFORE: &str =
    "with claimed as (select claimed_at, unnest(topics) as topic from execlog_batch join execlog_payload using (batch))
  select count(*) from claimed where topic = $1 and claimed_at < (select max(claimed_at) from claimed where topic = $2)";

#[tokio::test(flavor = "multi_thread")]
async fn what_is_due_in_the_very_millisecond_of_a_crowd_is_claimed_before_most_of_it() {
    let cluster = Cluster::start("crowd").await;
    let (crowd, beside) = (cluster.topic("crowd").await, cluster.topic("beside").await);
    // A topic that has as much in flight as it may is passed by: this one never has.
    let _node = cluster.node_with(&["--in-flight-tasks", "200000", "--topic-in-flight-tasks", "100000"]).await;
    let consumers = [&crowd, &beside].map(|topic| cluster.consumer(topic));
    let due_at = now_ms() + 15_000;
    insert(&cluster, &crowd, due_at, CROWD).await;
    insert(&cluster, &beside, due_at, BESIDE).await;
    assert!(now_ms() < due_at - 1_000, "they are stored before their time");
    for (consumer, count) in consumers.iter().zip([CROWD, BESIDE]) {
        let mut ids: Vec<Uuid> = consumer
            .wait_count_while_they_come(count, Duration::from_secs(60))
            .await
            .iter()
            .map(|record| record.task_id())
            .collect();
        ids.sort_unstable();
        ids.dedup();
        assert_eq!(ids.len(), count, "each of them");
        assert!(consumer.look(|records| records.iter().all(|record| record.timestamp >= due_at)), "none is early");
    }
    let before: i64 = sqlx::query_scalar(CLAIMED_BEFORE).bind(&crowd).bind(&beside).fetch_one(&cluster.sql).await.unwrap();
    // Each of the two loops has half of both.
    assert!(before < i64::try_from(CROWD / 4 * 3).unwrap(), "{before} of the crowd were claimed before the last of the others");
}

/// Puts tasks into `task` as submits would, all due at one moment.
async fn insert(cluster: &Cluster, topic: &str, due_at: i64, count: usize) {
    let shard = |index: usize| Shard::new(u16::try_from(index % 16).unwrap());
    let ids: Vec<TaskId> =
        (0..count).map(|index| TaskId::new(Timestamp::from_millis(due_at), shard(index), rand::random())).collect();
    let query = "insert into task (shard, id, topic, payload) select shard, id, $3, 'p' from unnest($1::smallint[], $2::uuid[]) t (shard, id)";
    let inserted = sqlx::query(query)
        .bind(ids.iter().map(|id| id.shard().as_smallint()).collect::<Vec<_>>())
        .bind(ids.iter().map(|id| id.uuid()).collect::<Vec<Uuid>>())
        .bind(topic)
        .execute(&cluster.sql)
        .await
        .unwrap();
    assert_eq!(usize::try_from(inserted.rows_affected()), Ok(count));
}
