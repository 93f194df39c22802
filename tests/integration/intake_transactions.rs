//! Intake topics whose producers have transactions, like the applications of Kafka Streams.

use std::time::Duration;

use rdkafka::consumer::{BaseConsumer, Consumer as _};
use rdkafka::message::Message as _;
use rdkafka::producer::{BaseProducer, BaseRecord, Producer as _};
use rdkafka::{ClientConfig, Offset, TopicPartitionList};

use crate::intake_topics::{HOUR, Intake, config, owned};
use crate::support::{Cluster, eventually};

const DEADLINE: Duration = Duration::from_secs(60);

/// A producer of an intake topic with transactions.
struct Transactional {
    producer: BaseProducer,
    intake: String,
    orders: String,
}

impl Transactional {
    /// Ends the open transaction of an earlier producer of this id, and starts none.
    fn open(config: &ClientConfig, id: &str, intake: &str, orders: &str) -> Self {
        let producer: BaseProducer = config.clone().set("transactional.id", id).create().unwrap();
        producer.init_transactions(DEADLINE).unwrap();
        Self { producer, intake: intake.to_owned(), orders: orders.to_owned() }
    }

    fn begin(&self) {
        self.producer.begin_transaction().unwrap();
    }

    /// Appends a record. Returns when the broker has it.
    fn append(&self, partition: i32, payload: Option<&str>, headers: &[(&str, &str)]) {
        let headers = [&[("punctual-topic", self.orders.as_str())], headers].concat();
        let record = BaseRecord::<(), str> {
            payload,
            ..BaseRecord::to(&self.intake).partition(partition).headers(owned(&headers))
        };
        self.producer.send(record).map_err(|(error, _)| error).unwrap();
        self.producer.flush(DEADLINE).unwrap();
    }

    fn end(&self, is_committed: bool) {
        if is_committed {
            self.producer.commit_transaction(DEADLINE).unwrap();
        } else {
            self.producer.abort_transaction(DEADLINE).unwrap();
        }
    }
}

/// The name and the payload of a pending task.
type Pending = (Option<String>, String);

/// Returns the pending tasks in the order of their names and payloads.
async fn pending(cluster: &Cluster) -> Vec<Pending> {
    let query = "select name, convert_from(payload, 'UTF8') from
        (select name, payload from task union all select name, payload from task_far) t
        order by name, 2";
    sqlx::query_as(query).fetch_all(&cluster.sql).await.unwrap()
}

/// Appends a last record to each of the first two partitions, and waits for their tasks. Returns
/// all others.
async fn others(intake: &Intake<'_>, orders: &str) -> Vec<Pending> {
    for partition in 0..2 {
        intake.append(partition, Some("last"), None, &[("punctual-topic", orders), HOUR]).await;
    }
    let is_last = |task: &&Pending| task.1 == "last";
    eventually("the last records are tasks", DEADLINE, async || {
        pending(intake.cluster).await.iter().filter(is_last).count() == 2
    })
    .await;
    pending(intake.cluster).await.into_iter().filter(|task| !is_last(&task)).collect()
}

/// The order of the records counts, and not that of the commits.
#[tokio::test]
async fn interleaved_transactions_take_effect_in_the_order_of_their_records() {
    let cluster = Cluster::start("intake").await;
    let intake = Intake::open(&cluster).await;
    let orders = cluster.topic("orders").await;
    let _node = intake.node().await;
    let (config, topic, to) = (config(&cluster), intake.topic.clone(), orders.clone());
    let write = move || {
        let [a, b] = ["a", "b"]
            .map(|id| Transactional::open(&config, &format!("{topic}-{id}"), &topic, &to));
        for round in 0..8 {
            let [a_commits, b_commits, a_first] = [4, 2, 1].map(|bit| round & bit != 0);
            let name = format!("{a_commits}-{b_commits}-{a_first}");
            let named = ("punctual-name", name.as_str());
            let operation = |operation| ("punctual-op", operation);
            a.begin();
            b.begin();
            a.append(0, Some("a1"), &[named, HOUR]);
            b.append(0, Some("b1"), &[named, HOUR, operation("replace")]);
            a.append(0, Some("a2"), &[named, HOUR, operation("replace")]);
            b.append(0, None, &[named, operation("cancel")]);
            a.append(1, Some(&format!("a {name}")), &[HOUR]);
            b.append(1, Some(&format!("b {name}")), &[HOUR]);
            let mut ends = [(&a, a_commits), (&b, b_commits)];
            if !a_first {
                ends.reverse();
            }
            for (producer, is_committed) in ends {
                producer.end(is_committed);
            }
        }
    };
    tokio::task::spawn_blocking(write).await.unwrap();
    let all = others(&intake, &orders).await;
    let named = all.iter().filter_map(|(name, payload)| Some((name.as_deref()?, payload.as_str())));
    let left: Vec<(&str, &str)> = named.collect();
    assert_eq!(left, [("true-false-false", "a2"), ("true-false-true", "a2")]);
    let unnamed = all.iter().filter(|(name, _)| name.is_none()).map(|(_, payload)| payload);
    let unnamed: Vec<&str> = unnamed.map(String::as_str).collect();
    let expected = [
        "a true-false-false",
        "a true-false-true",
        "a true-true-false",
        "a true-true-true",
        "b false-true-false",
        "b false-true-true",
        "b true-true-false",
        "b true-true-true",
    ];
    assert_eq!(unnamed, expected);
    // Two rounds each: a1, b1 and a2 with both; b1 with b alone; a1 with a alone.
    assert_eq!(cluster.count("select count(*) from execlog_cancelled").await, 2 * (3 + 1 + 1));
}

/// The end of the second transaction of an application.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Second {
    Dies,
    Aborts,
    Commits,
}

/// Reads orders, and submits a task for each. A transaction has three of both, the offset of the
/// orders included.
fn application(config: &ClientConfig, [source, intake, orders]: [&str; 3], second: Second) {
    const RECORDS: i64 = 3;
    let output = Transactional::open(config, source, intake, orders);
    let mut config = config.clone();
    config.set("group.id", source).set("enable.auto.commit", "false");
    let input: BaseConsumer = config.set("auto.offset.reset", "earliest").create().unwrap();
    let mut offsets = TopicPartitionList::new();
    offsets.add_partition_offset(source, 0, Offset::Stored).unwrap();
    input.assign(&offsets).unwrap();
    for transaction in 1..=2 {
        output.begin();
        let mut next = 0;
        for _ in 0..RECORDS {
            let order = input.poll(DEADLINE).unwrap().unwrap();
            let payload = std::str::from_utf8(order.payload().unwrap()).unwrap();
            output.append(0, Some(payload), &[HOUR]);
            next = order.offset() + 1;
        }
        if transaction == 2 && second == Second::Dies {
            return;
        }
        offsets.set_partition_offset(source, 0, Offset::Offset(next)).unwrap();
        let group = input.group_metadata().unwrap();
        output.producer.send_offsets_to_transaction(&offsets, &group, DEADLINE).unwrap();
        output.end(transaction == 1 || second == Second::Commits);
    }
}

#[tokio::test]
async fn an_application_that_dies_and_aborts_in_its_transactions_submits_each_order_once() {
    let cluster = Cluster::start("intake").await;
    let intake = Intake::open(&cluster).await;
    let [source, orders] = [cluster.topic("source").await, cluster.topic("orders").await];
    let _node = intake.node().await;
    let (config, topics) = (config(&cluster), [source, intake.topic.clone(), orders.clone()]);
    let names: Vec<String> = (10..22).map(|n| format!("order-{n}")).collect();
    let written = names.clone();
    let run = move || {
        let producer: BaseProducer = config.create().unwrap();
        for name in &written {
            let record = BaseRecord::<(), str>::to(&topics[0]).payload(name).partition(0);
            producer.send(record).map_err(|(error, _)| error).unwrap();
        }
        producer.flush(DEADLINE).unwrap();
        // Each commits three orders, and the last one three more. Six orders are read twice.
        for second in [Second::Dies, Second::Aborts, Second::Commits] {
            application(&config, topics.each_ref().map(String::as_str), second);
        }
    };
    tokio::task::spawn_blocking(run).await.unwrap();
    let submitted: Vec<String> =
        others(&intake, &orders).await.into_iter().map(|(_, payload)| payload).collect();
    assert_eq!(submitted, names);
}
