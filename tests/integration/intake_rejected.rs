//! Records of an intake topic that are refused.

use punctual::failpoint::Failpoint;
use rdkafka::admin::AdminOptions;
use rdkafka::{Offset, TopicPartitionList};

use crate::intake_topics::{DEADLINE, HOUR, Intake, TASKS};
use crate::support::{Cluster, eventually};

const WAITING: &str = "select count(*) from intake_rejected where is_waiting";
const KEPT: &str = "select count(*) from intake_rejected where not is_waiting and payload is null";

#[tokio::test]
async fn of_a_thousand_records_the_bad_ones_are_rejected_and_all_others_are_tasks() {
    let cluster = Cluster::start("intake").await;
    let intake = Intake::open(&cluster).await;
    let small = [("max.message.bytes", "2000")];
    cluster.alter_topic(&intake.rejected_topic(), &small).await;
    let topic = cluster.topic("orders").await;
    let [large, larger] = [3_000, 70_000].map(|length| "x".repeat(length));
    let sends = (0..1_000).map(|n: i32| {
        let (partition, payload) = (n % 3, n.to_string());
        let large = if n == 951 { &larger } else { &large };
        let (topic, intake) = (&topic, &intake);
        async move {
            match n % 100 {
                // Later records have the same key and are no less tasks.
                50 => intake.append(partition, Some(&payload), Some("k"), &[HOUR]).await,
                51 => {
                    let to = ("punctual-topic", "no-such-topic");
                    intake.append(partition, Some(large), None, &[to, HOUR]).await;
                }
                _ => {
                    let to = ("punctual-topic", topic.as_str());
                    intake.append(partition, Some(&payload), Some("k"), &[to, HOUR]).await;
                }
            }
        }
    });
    futures_util::future::join_all(sends).await;
    let rejected = cluster.consumer(&intake.rejected_topic());
    let node = intake.node().await;
    intake.wait_read(1_000).await;
    assert_eq!(cluster.count(TASKS).await, 980);
    let records = rejected.wait_count(10, DEADLINE).await;
    for record in &records {
        let text = |name| String::from_utf8(record.header(name).unwrap().to_vec()).unwrap();
        assert!(text("punctual-rejected-reason").contains("punctual-topic"), "{record:?}");
        assert_eq!(text("punctual-rejected-topic"), intake.topic);
        let number: i32 =
            String::from_utf8(record.payload.clone().unwrap()).unwrap().parse().unwrap();
        assert_eq!(text("punctual-rejected-partition"), (number % 3).to_string());
        assert!(text("punctual-rejected-offset").parse::<i64>().is_ok());
        assert_eq!(
            (text("punctual-delay"), record.key.as_deref()),
            ("1h".to_owned(), Some(&b"k"[..]))
        );
    }
    // The rejected topic refuses the large ones.
    let kept = "select count(*) from intake_rejected
        where status = 422 and reason like '%no topic%' and octet_length(payload) = 3000";
    eventually("the others are kept", DEADLINE, async || cluster.count(kept).await == 9).await;
    eventually("and the place of the largest", DEADLINE, async || cluster.count(KEPT).await == 1)
        .await;
    eventually("all rejected records are counted", DEADLINE, async || {
        intake.metric(&node, "punctual_intake_records_rejected_total").await == 20.0
    })
    .await;
    assert_eq!(cluster.count(WAITING).await, 0);
}

#[tokio::test]
async fn without_a_rejected_topic_one_partition_waits_and_the_others_go_on() {
    let cluster = Cluster::start("intake").await;
    let intake = Intake::without_rejected(&cluster).await;
    let topic = cluster.topic("orders").await;
    let to = ("punctual-topic", topic.as_str());
    let node = intake.node().await;
    intake.append(0, Some("before"), None, &[to, HOUR]).await;
    intake.append(0, Some("bad"), None, &[HOUR]).await;
    intake.append(0, Some("after"), None, &[to, HOUR]).await;
    eventually("the partition waits", DEADLINE, async || {
        intake.metric(&node, "punctual_intake_rejected_topic_missing").await > 0.0
            && intake.metric(&node, "punctual_intake_waits_seconds").await > 0.0
    })
    .await;
    intake.append(1, Some("elsewhere"), None, &[to, HOUR]).await;
    intake.wait_read(2).await;
    assert_eq!(cluster.count(TASKS).await, 2, "the record before it, and the other partition");
    cluster.topic("in.rejected").await;
    intake.wait_read(4).await;
    assert_eq!(cluster.count(TASKS).await, 3);
    eventually("nothing waits", DEADLINE, async || {
        intake.metric(&node, "punctual_intake_rejected_topic_missing").await == 0.0
            && intake.metric(&node, "punctual_intake_waits_seconds").await == 0.0
    })
    .await;
}

#[tokio::test]
async fn a_bad_record_is_skipped_without_a_rejected_topic_when_the_operator_says_so() {
    let cluster = Cluster::start("intake").await;
    let intake = Intake::without_rejected(&cluster).await;
    let topic = cluster.topic("orders").await;
    let skip = ["--intake-topic", &intake.topic, "--intake-on-error", "skip"];
    let node = cluster.node_with(&skip).await;
    intake.append(0, Some("bad"), None, &[HOUR]).await;
    intake.append(0, Some("good"), None, &[("punctual-topic", &topic), HOUR]).await;
    intake.wait_read(2).await;
    assert_eq!(cluster.count(TASKS).await, 1);
    assert_eq!(cluster.count(WAITING).await, 0);
    assert_eq!(intake.metric(&node, "punctual_intake_records_rejected_total").await, 1.0);
}

/// A record is refused, and its node dies. Another node would accept it by then.
#[tokio::test]
async fn a_rejected_record_is_never_a_task_although_its_node_dies() {
    for point in [Failpoint::IntakeStored, Failpoint::IntakeRejected] {
        let cluster = Cluster::start("intake").await;
        let intake = Intake::open(&cluster).await;
        let refused = format!("{}.orders", cluster.name);
        let to = ("punctual-topic", refused.as_str());
        let arguments = ["--intake-topic", &intake.topic];
        let mut dying = cluster.spawn_to_die_with(point.name(), &arguments);
        dying.wait_listening().await;
        intake.append(0, Some("refused"), None, &[to, HOUR]).await;
        dying.wait_exit(DEADLINE).await;
        assert_eq!(cluster.count(WAITING).await, 1, "{point:?}");
        cluster.topic("orders").await;
        let rejected = cluster.consumer(&intake.rejected_topic());
        let _node = intake.node().await;
        intake.append(0, Some("accepted"), None, &[to, HOUR]).await;
        intake.wait_read(2).await;
        eventually("the rejection is written", DEADLINE, async || {
            cluster.count("select count(*) from intake_rejected").await == 0
        })
        .await;
        let records = rejected.wait_count(1, DEADLINE).await;
        assert!(records.iter().all(|record| record.payload.as_deref() == Some(b"refused")));
        assert_eq!(cluster.count(TASKS).await, 1, "{point:?}");
    }
}

/// Has a node reject the first record of the topic, and die before it writes it.
async fn leave_a_rejection(intake: &Intake<'_>) {
    let arguments = ["--intake-topic", &intake.topic];
    let point = Failpoint::IntakeStored.name();
    let mut dying = intake.cluster.spawn_to_die_with(point, &arguments);
    dying.wait_listening().await;
    intake.append(0, Some("refused"), None, &[HOUR]).await;
    dying.wait_exit(DEADLINE).await;
    assert_eq!(intake.cluster.count(WAITING).await, 1);
}

/// Somebody holds the row of a rejection for longer than a statement waits for it.
#[tokio::test]
async fn a_rejected_record_is_written_once_while_its_row_is_locked() {
    let cluster = Cluster::start("intake").await;
    let intake = Intake::open(&cluster).await;
    leave_a_rejection(&intake).await;
    let mut holder = cluster.sql.begin().await.unwrap();
    sqlx::query("select from intake_rejected for update").execute(&mut *holder).await.unwrap();
    let rejected = cluster.consumer(&intake.rejected_topic());
    let node = intake.node().await;
    rejected.wait_count(1, DEADLINE).await;
    eventually("the delete has failed twice", DEADLINE, async || {
        intake.metric(&node, "punctual_intake_turn_failures_total").await >= 2.0
    })
    .await;
    holder.rollback().await.unwrap();
    eventually("the row is deleted", DEADLINE, async || {
        cluster.count("select count(*) from intake_rejected").await == 0
    })
    .await;
    eventually("it is counted once", DEADLINE, async || {
        intake.metric(&node, "punctual_intake_records_rejected_total").await == 1.0
    })
    .await;
    assert_eq!(rejected.records().len(), 1);
}

/// Kafka deletes a rejected record before it is written.
#[tokio::test]
async fn the_place_of_a_rejected_record_is_kept_when_the_log_has_it_no_more() {
    let cluster = Cluster::start("intake").await;
    let intake = Intake::open(&cluster).await;
    let topic = cluster.topic("orders").await;
    let to = ("punctual-topic", topic.as_str());
    leave_a_rejection(&intake).await;
    for _ in 0..3 {
        intake.append(0, Some("deleted"), None, &[to, HOUR]).await;
    }
    let mut before = TopicPartitionList::new();
    before.add_partition_offset(&intake.topic, 0, Offset::Offset(1)).unwrap();
    intake.admin().delete_records(&before, &AdminOptions::new()).await.unwrap();
    let node = intake.node().await;
    eventually("its place is kept", DEADLINE, async || cluster.count(KEPT).await == 1).await;
    intake.wait_read(4).await;
    assert_eq!(cluster.count(TASKS).await, 3);
    assert_eq!(intake.metric(&node, "punctual_intake_records_lost_total").await, 0.0);
    assert_eq!(intake.metric(&node, "punctual_intake_records_rejected_total").await, 1.0);
}

/// The topic is made anew: another record has the offset of the rejected one.
#[tokio::test]
async fn a_record_of_another_log_is_not_rejected_for_one_at_its_offset() {
    let cluster = Cluster::start("intake").await;
    let intake = Intake::open(&cluster).await;
    let topic = cluster.topic("orders").await;
    let to = ("punctual-topic", topic.as_str());
    leave_a_rejection(&intake).await;
    intake.execute("update intake_offset set next = 5 where partition = 0").await;
    cluster.delete_topic(&intake.topic).await;
    cluster.create_topic(&intake.topic, &[]).await;
    for _ in 0..2 {
        intake.append(0, Some("new"), None, &[to, HOUR]).await;
    }
    let node = intake.node().await;
    eventually("the new records are stored", DEADLINE, async || cluster.count(TASKS).await == 2)
        .await;
    assert_eq!(cluster.count(KEPT).await, 1);
    assert_eq!(intake.metric(&node, "punctual_intake_resets_total").await, 1.0);
    // A partition that begins once more has a generation of its own.
    drop(node);
    intake.execute("delete from intake_offset").await;
    let _node = intake.node().await;
    eventually("both are read again", DEADLINE, async || cluster.count(TASKS).await == 4).await;
    intake.append(0, Some("refused"), None, &[HOUR]).await;
    let rejected = cluster.consumer(&intake.rejected_topic()).wait_count(1, DEADLINE).await;
    assert_eq!(rejected[0].header("punctual-rejected-offset"), Some(&b"2"[..]));
    assert_eq!(cluster.count(KEPT).await, 1);
}

/// The operator sets the offset back before a rejected record is written.
#[tokio::test]
async fn a_rejected_record_that_is_read_again_is_checked_again() {
    let cluster = Cluster::start("intake").await;
    let intake = Intake::open(&cluster).await;
    let topic = cluster.topic("orders").await;
    let to = ("punctual-topic", topic.as_str());
    leave_a_rejection(&intake).await;
    intake
        .execute("update intake_offset set next = 0; update intake_rejected set status = 400")
        .await;
    intake.append(0, Some("accepted"), None, &[to, HOUR]).await;
    let _node = intake.node().await;
    intake.wait_read(2).await;
    let rejected = cluster.consumer(&intake.rejected_topic()).wait_count(1, DEADLINE).await;
    assert_eq!(rejected.len(), 1);
    eventually("no row is left", DEADLINE, async || {
        cluster.count("select count(*) from intake_rejected").await == 0
    })
    .await;
    assert_eq!(cluster.count(TASKS).await, 1);
}

/// The operator lets go of rejected records after one was stored.
#[tokio::test]
async fn a_rejected_record_is_dropped_once_when_its_topic_has_gone() {
    let cluster = Cluster::start("intake").await;
    let intake = Intake::open(&cluster).await;
    leave_a_rejection(&intake).await;
    cluster.delete_topic(&intake.rejected_topic()).await;
    let skip = ["--intake-topic", &intake.topic, "--intake-on-error", "skip"];
    let node = cluster.node_with(&skip).await;
    eventually("no rejection waits", DEADLINE, async || cluster.count(WAITING).await == 0).await;
    eventually("it is counted once", DEADLINE, async || {
        intake.metric(&node, "punctual_intake_records_rejected_total").await == 1.0
    })
    .await;
    assert!(node.log().contains("were dropped"), "{}", node.log_tail());
    assert!(!node.log().contains("were rejected"), "{}", node.log_tail());
}
