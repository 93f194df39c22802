//! Problems of one topic do not affect other topics.

use std::time::Duration;

use punctual::domain::{Shard, TaskId, Timestamp};
use serde_json::{Value, json};
use uuid::Uuid;

use crate::support::{Cluster, Ledger, NONE, OwnStack, Record, Wishes, eventually, now_ms};

const DEADLINE: Duration = Duration::from_secs(120);

/// Tasks of the healthy topic.
const HEALTHY: i64 = 600;
const SILENT: i64 = 240;

/// A topic whose records the broker does not take, while the producer retries.
#[tokio::test(flavor = "multi_thread")]
async fn a_topic_that_takes_nothing_holds_up_no_other() {
    let own = OwnStack::start("neighbours").await;
    own.know_second_broker().await;
    tokio::join!(leaves_room(&own), comes_to_its_deadline(&own));
}

/// The tasks of one claim are settled together, so a record without an answer keeps its whole batch
/// unsettled until the publish deadline (30 s). The published records of the batch must not count
/// against their own topic meanwhile.
async fn leaves_room(own: &OwnStack) {
    let cluster = Cluster::at(&own.stack, "neighbours", Wishes::default()).await;
    let node = cluster
        .node_with(&[
            "--claim-loops",
            "1",
            "--in-flight-tasks",
            "1000",
            "--topic-in-flight-tasks",
            "100",
        ])
        .await;
    let (silent, healthy) =
        (cluster.topic_with_replica_away("silent").await, cluster.topic("healthy").await);
    cluster.alter_topic(&silent, &[("min.insync.replicas", "2")]).await;
    let consumer = cluster.consumer(&healthy);
    // Each claim takes tasks of both topics. Within two seconds, the healthy topic would exceed its
    // limit of tasks in flight.
    let begin = now_ms() + 3_000;
    let task =
        |topic: &str, due_at: i64| json!({ "topic": topic, "due_at": due_at, "payload": due_at });
    let all_healthy = (0..HEALTHY).map(|number| task(&healthy, begin + number * 10));
    let tasks: Vec<Value> =
        all_healthy.chain((0..SILENT).map(|number| task(&silent, begin + number * 25))).collect();
    node.api().submit_all(&tasks).await;
    // Well before the deadline of the first silent record.
    let deadline = Duration::from_millis(u64::try_from(begin + 24_000 - now_ms()).unwrap());
    consumer.wait_count(usize::try_from(HEALTHY).unwrap(), deadline).await;
    let batches = node.api().metric("punctual_in_flight_batches").await;
    assert!(
        batches >= 10.0,
        "they were claimed together: {batches} batches have something to come"
    );

    // The silent topic is unavailable by now. Its tasks stay in their table, however many are due,
    // and leave room for others.
    let begin = now_ms() + 2_000;
    let more: Vec<Value> = (0..2_000)
        .map(|_| task(&silent, begin))
        .chain((0..200).map(|number| task(&healthy, begin + number * 10)))
        .collect();
    node.api().submit_all(&more).await;
    consumer.wait_count(usize::try_from(HEALTHY).unwrap() + 200, Duration::from_secs(20)).await;
    let stays = "select count(*) from task where punctual_time(id) < clock_timestamp()";
    let count = cluster.count(stays).await;
    assert!(count >= 1_500, "{count} of 2,000 tasks of the unavailable topic stay in their table");
}

/// For longer than the publish deadline, the records of one topic fail again and again, and no
/// other topic is affected.
async fn comes_to_its_deadline(own: &OwnStack) {
    let cluster = Cluster::at(&own.stack, "deadline", Wishes::default()).await;
    let node = cluster.node_with(&["--publish-deadline", "3s"]).await;
    let (silent, healthy) =
        (cluster.topic_with_replica_away("silent").await, cluster.topic("healthy").await);
    cluster.alter_topic(&silent, &[("min.insync.replicas", "2")]).await;
    let (of_silent, of_healthy) = (cluster.consumer(&silent), cluster.consumer(&healthy));
    let begin = now_ms() + 3_000;
    let task = |topic: &str, due_at: i64| {
        json!({
            "topic": topic,
            "due_at": due_at,
            "payload_text": due_at.to_string(),
        })
    };
    let waiting: Vec<Value> = (0..50).map(|number| task(&silent, begin + number)).collect();
    let steady: Vec<Value> = (0..1_200).map(|number| task(&healthy, begin + number * 10)).collect();
    let ledger = Ledger::default();
    for tasks in [&waiting, &steady] {
        ledger.accept_all(&node.api().submit_all(tasks).await, tasks);
    }
    of_healthy.wait_count(steady.len(), DEADLINE).await;
    let was_deferred = async || node.api().metric("punctual_tasks_deferred_total").await >= 50.0;
    eventually("those of the silent topic came to their deadline", DEADLINE, was_deferred).await;
    // Between two probes, and while one is under way.
    eventually("it is named as unavailable, and why", DEADLINE, async || {
        let unavailable = node.api().cluster().await["unavailable_topics"].clone();
        unavailable[0]["topic"] == silent.as_str()
            && unavailable[0]["reason"].as_str().is_some_and(|reason| !reason.is_empty())
    })
    .await;
    eventually("the log says so, too", DEADLINE, async || {
        node.log().contains("a record was not acknowledged")
    })
    .await;
    cluster.alter_topic(&silent, &[("min.insync.replicas", "1")]).await;
    of_silent
        .wait_for("the silent ones arrive", DEADLINE, |records| {
            ledger.has_arrived(&[records, &of_healthy.records()].concat())
        })
        .await;
    let findings = ledger
        .settle_up(&cluster, || [of_silent.records(), of_healthy.records()].concat(), DEADLINE)
        .await;
    assert_eq!((findings.published_count, findings.dead), (1_250, NONE.to_vec()));
    // Records without an acknowledgement may be there twice. Acknowledged ones are not.
    let of_others: Vec<Uuid> = of_healthy.records().iter().map(Record::task_id).collect();
    assert!(
        findings.duplicates.iter().all(|id| !of_others.contains(id)),
        "{:?}",
        findings.duplicates
    );
    let again = "select count(*) from execlog where state = 'deferred'";
    assert!(
        cluster.count(again).await >= 50,
        "each has the line of an attempt that came to nothing"
    );
}

const HOTSPOT: usize = 60_000;
const BESIDE: usize = 32;
/// Counts tasks of a topic that are claimed no later than the last task of another topic.
const CLAIMED_BEFORE: &str = "with claimed as (select claimed_at, unnest(topics) as topic
      from execlog_batch join execlog_payload using (batch))
  select count(*) from claimed where topic = $1
    and claimed_at < (select max(claimed_at) from claimed where topic = $2)";

/// Number of attempts on a machine on which a look past the hotspot exceeds its time
/// (`IN_THE_ORDER_OF_THE_HEAP` in `postgres::claim`).
const STAGED_MAX: usize = 4;

#[tokio::test(flavor = "multi_thread")]
async fn what_is_due_in_the_very_millisecond_of_a_hotspot_is_claimed_before_most_of_it() {
    let cluster = Cluster::start("hotspot").await;
    // A topic at its limit of tasks in flight is skipped. The topic never reaches the limit.
    let node = cluster
        .node_with(&["--in-flight-tasks", "200000", "--topic-in-flight-tasks", "100000"])
        .await;
    for staged in 1..=STAGED_MAX {
        let gave_way = node.api().metric("punctual_claim_failures_total").await;
        let before = claimed_before_the_last_of_the_others(&cluster, staged).await;
        let gave_way = node.api().metric("punctual_claim_failures_total").await - gave_way;
        eprintln!(
            "{before} of the hotspot were claimed before the last of the others; {gave_way} looks \
             gave way"
        );
        // Each of the two loops has half of both.
        if before < i64::try_from(HOTSPOT / 4 * 3).unwrap() {
            return;
        }
        assert!(
            gave_way > 0.0 && staged < STAGED_MAX,
            "{before} of the hotspot were claimed before the last of the others"
        );
    }
}

async fn claimed_before_the_last_of_the_others(cluster: &Cluster, staged: usize) -> i64 {
    let hotspot = cluster.topic(&format!("hotspot-{staged}")).await;
    let beside = cluster.topic(&format!("beside-{staged}")).await;
    let consumers = [&hotspot, &beside].map(|topic| cluster.consumer(topic));
    let due_at = now_ms() + 15_000;
    insert(cluster, &hotspot, due_at, HOTSPOT).await;
    insert(cluster, &beside, due_at, BESIDE).await;
    assert!(now_ms() < due_at - 1_000, "they are stored before their time");
    for (consumer, count) in consumers.iter().zip([HOTSPOT, BESIDE]) {
        let mut ids: Vec<Uuid> = consumer
            .wait_count_while_they_come(count, Duration::from_secs(60))
            .await
            .iter()
            .map(|record| record.task_id())
            .collect();
        ids.sort_unstable();
        ids.dedup();
        assert_eq!(ids.len(), count, "each of them");
        assert!(
            consumer.look(|records| records.iter().all(|record| record.timestamp >= due_at)),
            "none is early"
        );
    }
    sqlx::query_scalar(CLAIMED_BEFORE)
        .bind(&hotspot)
        .bind(&beside)
        .fetch_one(&cluster.sql)
        .await
        .unwrap()
}

/// Puts tasks into `task` as submits would, all due at one moment.
async fn insert(cluster: &Cluster, topic: &str, due_at: i64, count: usize) {
    let shard = |index: usize| Shard::new(u16::try_from(index % 16).unwrap());
    let ids: Vec<TaskId> = (0..count)
        .map(|index| TaskId::new(Timestamp::from_millis(due_at), shard(index), rand::random()))
        .collect();
    let query = "insert into task (shard, id, topic, payload) select shard, id, $3, 'p' from \
                 unnest($1::smallint[], $2::uuid[]) t (shard, id)";
    let inserted = sqlx::query(query)
        .bind(ids.iter().map(|id| id.shard().as_smallint()).collect::<Vec<_>>())
        .bind(ids.iter().map(|id| id.uuid()).collect::<Vec<Uuid>>())
        .bind(topic)
        .execute(&cluster.sql)
        .await
        .unwrap();
    assert_eq!(usize::try_from(inserted.rows_affected()), Ok(count));
}
