//! Answers of consumers as records of an intake topic.

use std::collections::BTreeMap;
use std::time::Duration;

use punctual::clock;
use punctual::domain::task::feedback::Call;
use punctual::domain::{NodeId, Shard, TaskId, Timestamp, TopicName};
use punctual::postgres::PostgresSettings;
use punctual::postgres::inbound::{
    InboundStore, ItemKey, OffsetPrecondition, Position, StoreError, StorePrecondition,
};
use punctual::postgres::tasks::answers::{AnswerCall, AnswerTerms};
use uuid::Uuid;

use crate::intake_topics::Intake;
use crate::support::consumer::Record;
use crate::support::{Cluster, Node, eventually};
use crate::tokens::AuthFile;

const DEADLINE: Duration = Duration::from_secs(60);
const ATTEMPT_1: (&str, &str) = ("punctual-attempt", "1");

const fn operation(name: &str) -> (&str, &str) {
    ("punctual-op", name)
}

/// Submits a tracked task, due at once, whose payload is its name.
async fn submit(intake: &Intake<'_>, topic: &str, name: &str) {
    let headers = [
        ("punctual-topic", topic),
        ("punctual-name", name),
        ("punctual-delay", "0"),
        ("punctual-ttr", "1h"),
    ];
    intake.append(0, Some(name), None, &headers).await;
}

fn id_header(id: &str) -> (&str, &str) {
    ("punctual-id", id)
}

fn id_of(records: &[Record], name: &str) -> String {
    let record = records.iter().find(|record| record.payload.as_deref() == Some(name.as_bytes()));
    record.unwrap_or_else(|| panic!("no record of {name}")).task_id().to_string()
}

async fn state(node: &Node, id: &str) -> String {
    let task = node.api().get(&format!("/v1/tasks/{id}")).await.json();
    task["state"].as_str().unwrap_or_default().to_owned()
}

/// Returns the reasons of the rejected records, in their order.
async fn reasons(intake: &Intake<'_>, count: usize) -> Vec<String> {
    let consumer = intake.cluster.consumer(&intake.rejected_topic());
    let mut rejected = consumer.wait_count(count, DEADLINE).await;
    assert_eq!(rejected.len(), count);
    rejected.sort_by_key(|record| {
        let offset = record.header("punctual-rejected-offset").unwrap().to_vec();
        String::from_utf8(offset).unwrap().parse::<i64>().unwrap()
    });
    let reason = |record: &Record| record.header("punctual-rejected-reason").unwrap().to_vec();
    rejected.iter().map(|record| String::from_utf8(reason(record)).unwrap()).collect()
}

#[tokio::test]
async fn a_consumer_answers_by_records_with_the_verdicts_of_rest() {
    let cluster = Cluster::start("intake-answers").await;
    let intake = Intake::open(&cluster).await;
    let topic = cluster.topic("orders").await;
    let consumer = cluster.consumer(&topic);
    let node = intake.node().await;
    for name in ["a", "b", "c", "d"] {
        submit(&intake, &topic, name).await;
    }
    let records = consumer.wait_count(4, DEADLINE).await;
    let [a, b, c, d] = ["a", "b", "c", "d"].map(|name| id_of(&records, name));
    let answer = async |headers: &[(&str, &str)]| intake.append(0, None, None, headers).await;
    let named_b = [("punctual-topic", topic.as_str()), ("punctual-name", "b")];
    answer(&[operation("finish"), id_header(&a), ATTEMPT_1]).await;
    answer(&[operation("finish"), named_b[0], named_b[1]]).await;
    answer(&[operation("fail"), id_header(&c), ATTEMPT_1, ("punctual-retry-in", "1")]).await;
    answer(&[operation("extend"), id_header(&d), ATTEMPT_1, ("punctual-by", "2h")]).await;
    intake.wait_read(8).await;
    for id in [&a, &b] {
        assert_eq!(state(&node, id).await, "finished", "{id}");
    }
    let second = consumer.wait_count(5, DEADLINE).await.pop().unwrap();
    let attempt = second.header("punctual-attempt").unwrap();
    assert_eq!((second.task_id().to_string(), attempt), (c.clone(), &b"2"[..]));
    assert_eq!(node.api().metric("punctual_attempts_extended_total").await, 1.0);

    // Done is done. The others are refused, and those after them are taken.
    answer(&[operation("finish"), id_header(&a), ATTEMPT_1]).await;
    answer(&[operation("fail"), id_header(&a), ATTEMPT_1]).await;
    answer(&[operation("fail"), id_header(&c), ("punctual-attempt", "9")]).await;
    answer(&[operation("finish"), named_b[0], ("punctual-name", "nobody")]).await;
    let unknown = TaskId::new(Timestamp::EPOCH, Shard::new(0), 1).to_string();
    answer(&[operation("finish"), id_header(&unknown)]).await;
    answer(&[operation("finish"), id_header(&c), ("punctual-attempt", "2")]).await;
    intake.wait_read(14).await;
    assert_eq!(state(&node, &c).await, "finished");
    let reasons = reasons(&intake, 4).await;
    let wanted = ["has done the work", "that was published is number", "this name", "this id"];
    for (reason, wanted) in reasons.iter().zip(wanted) {
        assert!(reason.contains(wanted), "{reason:?} has not {wanted:?}");
    }
}

#[tokio::test]
async fn a_run_of_answers_is_taken_together_and_a_bad_one_stops_nobody() {
    const COUNT: usize = 200;
    let cluster = Cluster::start("intake-answers").await;
    let intake = Intake::open(&cluster).await;
    let topic = cluster.topic("orders").await;
    let consumer = cluster.consumer(&topic);
    let mut node = intake.node().await;
    for number in 0..COUNT {
        submit(&intake, &topic, &number.to_string()).await;
    }
    let records = consumer.wait_count(COUNT, DEADLINE).await;
    // The answers wait for the next node, which reads all at once.
    node.kill().await;
    for (number, record) in records.iter().enumerate() {
        let id = record.task_id().to_string();
        let answer = [operation("finish"), ("punctual-id", &id), ATTEMPT_1];
        intake.append(0, None, None, &answer).await;
        if number == COUNT / 2 {
            intake.append(0, None, None, &answer).await;
            let attempt = ("punctual-attempt", "7");
            intake.append(0, None, None, &[operation("fail"), answer[1], attempt]).await;
        }
    }
    let node = intake.node().await;
    let count = i64::try_from(COUNT).unwrap();
    intake.wait_read(2 * count + 2).await;
    assert_eq!(cluster.count("select count(*) from execlog_finished").await, count);
    assert_eq!(intake.metric(&node, "punctual_intake_records_rejected_total").await, 1.0);
    assert_eq!(node.api().metric("punctual_tasks_finished_total").await, 200.0);
    eventually("the rejected record is there", DEADLINE, async || {
        reasons(&intake, 1).await[0].contains("done the work")
    })
    .await;
}

#[tokio::test]
async fn an_answer_needs_the_right_on_the_topic_of_its_task() {
    let cluster = Cluster::start("intake-answers").await;
    let intake = Intake::open(&cluster).await;
    let [own, other] = [cluster.topic("own").await, cluster.topic("other").await];
    let [own_consumer, other_consumer] = [cluster.consumer(&own), cluster.consumer(&other)];
    let file = AuthFile::new(
        "intake-answers",
        &format!(
            "version = 1\n[principals.{:?}]\n\
             allow = [ {{ actions = [\"submit\"], topics = [{own:?}, {other:?}] }},\n\
             {{ actions = [\"finish\"], topics = [{own:?}] }} ]\n",
            intake.topic
        ),
    );
    let flags = ["--intake-topic", &intake.topic, "--auth-file", file.path()];
    let _node = cluster.node_with(&flags).await;
    submit(&intake, &own, "a").await;
    submit(&intake, &other, "b").await;
    let a = id_of(&own_consumer.wait_count(1, DEADLINE).await, "a");
    let b = id_of(&other_consumer.wait_count(1, DEADLINE).await, "b");
    for id in [&a, &b] {
        intake.append(0, None, None, &[operation("finish"), ("punctual-id", id)]).await;
    }
    let named = [("punctual-topic", other.as_str()), ("punctual-name", "b")];
    intake.append(0, None, None, &[operation("finish"), named[0], named[1]]).await;
    intake.wait_read(5).await;
    let finished_by =
        "select count(*) from execlog_finished f join principal p on p.id = f.finished_by
        where p.name like '%.in'";
    assert_eq!(cluster.count(finished_by).await, 1);
    let reasons = reasons(&intake, 2).await;
    // For the principal, the task does not exist.
    assert!(reasons[0].contains("no task has this id"), "{reasons:?}");
    assert!(reasons[1].contains("`finish`"), "{reasons:?}");
}

/// Two nodes that believe in the same offset: the one that is behind changes no task.
#[tokio::test]
async fn an_answer_is_taken_with_its_offset_or_not_at_all() {
    let cluster = Cluster::start("intake-answers").await;
    let ours = PostgresSettings::new(&cluster.database.url).unwrap();
    let node = NodeId::new(clock::wall(), rand::random(), rand::random());
    let mut store = InboundStore::new(&ours, node, Duration::from_secs(60));
    let topic = TopicName::new("in").unwrap();
    store.begin_partitions(&topic, &[(0, 10)].into()).await.unwrap();
    let position = |next| Position { generation: 1, next, newest_at: None };
    let precondition = |next| {
        let (topic, position, read_at) = (topic.clone(), position(next), Timestamp::EPOCH);
        StorePrecondition::Records(OffsetPrecondition {
            topic,
            partition: 0,
            position,
            read_at,
            rejections: BTreeMap::new(),
        })
    };
    let call = AnswerCall {
        first: TaskId::new(clock::wall(), Shard::new(0), 1),
        topic: None,
        call: Call::Finish { attempt: None },
        retry_at: None,
        by: None,
        reason: None,
        principal: None,
    };
    let terms = AnswerTerms {
        now: clock::wall(),
        leaves_end: clock::wall(),
        window: Duration::from_millis(200),
    };
    let items = [ItemKey { id: Uuid::nil(), seq: 10 }];
    let behind = store.answer(&precondition(9), &items, &[&call], terms).await;
    assert!(matches!(behind, Err(StoreError::Overtaken)), "{behind:?}");
    // No such task: nothing is taken, and the offset stays.
    let none = store.answer(&precondition(10), &items, &[&call], terms).await.unwrap();
    assert!(!none.are_stored && none.answers.is_empty(), "{none:?}");
    let marks = "select count(*) from task_follow";
    assert_eq!(cluster.count(marks).await, 0);
    let positions = store.positions(&topic, &[0]).await.unwrap();
    assert_eq!(positions, [(0, position(10))].into());
}
