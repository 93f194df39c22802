//! Intake topics: records of Kafka are submits, replacements and cancels.

use std::collections::BTreeMap;
use std::path::Path;
use std::time::Duration;

use punctual::clock;
use punctual::domain::{NodeId, Timestamp, TopicName};
use punctual::postgres::PostgresSettings;
use punctual::postgres::inbound::{
    InboundStore, ItemKey, OffsetPrecondition, Position, StoreError, StorePrecondition, Submits,
};
use punctual::postgres::tasks::submit::Group;
use rdkafka::admin::{AdminClient, AdminOptions, NewPartitions};
use rdkafka::client::DefaultClientContext;
use rdkafka::message::{Header, OwnedHeaders};
use rdkafka::producer::{BaseProducer, BaseRecord, FutureProducer, FutureRecord, Producer as _};
use rdkafka::{ClientConfig, Offset, TopicPartitionList};
use sqlx::AssertSqlSafe;
use tokio::process::Command;
use uuid::Uuid;

use crate::support::{Cluster, Node, eventually, now_ms, page};
use crate::tokens::AuthFile;

pub const DEADLINE: Duration = Duration::from_secs(60);
pub const HOUR: (&str, &str) = ("punctual-delay", "1h");

/// An intake topic of a cluster.
pub struct Intake<'a> {
    pub cluster: &'a Cluster,
    pub topic: String,
    producer: FutureProducer,
}

impl<'a> Intake<'a> {
    /// Creates the topic, and its rejected topic.
    pub async fn open(cluster: &'a Cluster) -> Self {
        let intake = Self::without_rejected(cluster).await;
        cluster.topic("in.rejected").await;
        intake
    }

    pub async fn without_rejected(cluster: &'a Cluster) -> Self {
        let topic = cluster.topic("in").await;
        Self::at(cluster, topic)
    }

    /// Uses a topic that is there.
    pub fn at(cluster: &'a Cluster, topic: String) -> Self {
        let producer = config(cluster).create().unwrap();
        Self { cluster, topic, producer }
    }

    pub fn rejected_topic(&self) -> String {
        format!("{}.rejected", self.topic)
    }

    /// Appends a record to a partition.
    pub async fn append(
        &self,
        partition: i32,
        payload: Option<&str>,
        key: Option<&str>,
        headers: &[(&str, &str)],
    ) {
        let record = FutureRecord::<str, str> {
            topic: &self.topic,
            partition: Some(partition),
            payload,
            key,
            timestamp: None,
            headers: Some(owned(headers)),
        };
        self.producer.send(record, DEADLINE).await.unwrap();
    }

    /// Waits until all records are stored or rejected. The topic has had `count` records.
    pub async fn wait_read(&self, count: i64) {
        eventually("all records are read", DEADLINE, async || self.read_count().await == count)
            .await;
    }

    async fn read_count(&self) -> i64 {
        let query = "select coalesce(sum(next), 0)::bigint from intake_offset where topic = $1";
        sqlx::query_scalar(query).bind(&self.topic).fetch_one(&self.cluster.sql).await.unwrap()
    }

    pub async fn node(&self) -> Node {
        self.cluster.node_with(&["--intake-topic", &self.topic]).await
    }

    pub async fn metric(&self, node: &Node, name: &str) -> f64 {
        node.api().metric(&format!("{name}{{intake=\"{}\"}}", self.topic)).await
    }

    pub fn admin(&self) -> AdminClient<DefaultClientContext> {
        config(self.cluster).create().unwrap()
    }

    pub async fn execute(&self, statement: &str) {
        sqlx::raw_sql(AssertSqlSafe(statement.to_owned()))
            .execute(&self.cluster.sql)
            .await
            .unwrap();
    }
}

pub fn config(cluster: &Cluster) -> ClientConfig {
    let mut config = ClientConfig::new();
    config.set("bootstrap.servers", &cluster.stack.kafka);
    config
}

pub fn owned(headers: &[(&str, &str)]) -> OwnedHeaders {
    headers.iter().fold(OwnedHeaders::new(), |headers, (key, value)| {
        headers.insert(Header { key, value: Some(*value) })
    })
}

pub const TASKS: &str = "select (select count(*) from task) + (select count(*) from task_far)";

#[tokio::test]
async fn a_record_is_a_task_and_takes_effect_in_the_order_of_its_partition() {
    let cluster = Cluster::start("intake").await;
    let intake = Intake::open(&cluster).await;
    let topic = cluster.topic("orders").await;
    let consumer = cluster.consumer(&topic);
    let node = intake.node().await;
    let to = ("punctual-topic", topic.as_str());
    let began_at = now_ms();
    let soon = ("punctual-delay", "1500ms");
    intake.append(0, Some("soon"), Some("k"), &[to, soon, ("own", "1")]).await;
    let due_at = (began_at + 2_000).to_string();
    intake.append(1, Some("exact"), None, &[to, ("punctual-due-at", &due_at)]).await;
    let name = |name| ("punctual-name", name);
    let operation = |operation| ("punctual-op", operation);
    intake.append(2, Some("1"), None, &[to, HOUR, name("a")]).await;
    intake.append(2, Some("1"), None, &[to, HOUR, name("b")]).await;
    intake.append(2, None, None, &[to, name("a"), operation("cancel")]).await;
    intake.append(2, Some("2"), None, &[to, HOUR, name("b"), operation("replace")]).await;
    intake.append(2, None, None, &[to, name("nobody"), operation("cancel")]).await;
    let scheduler =
        |epoch| [("scheduler-target-topic", topic.as_str()), ("scheduler-epoch", epoch)];
    let later = (now_ms() / 1000 + 3_600).to_string();
    intake.append(2, Some("3"), Some("c"), &scheduler(&later)).await;
    intake.append(2, None, Some("c"), &scheduler(&later)[..1]).await;
    let records = consumer.wait_count(2, DEADLINE).await;
    for (payload, due_after) in [("soon", 1_500), ("exact", 2_000)] {
        let record =
            records.iter().find(|record| record.payload.as_deref() == Some(payload.as_bytes()));
        let record = record.unwrap();
        let late = record.timestamp - (began_at + due_after);
        assert!((0..10_000).contains(&late), "{payload} {late} ms late");
    }
    let record = records.iter().find(|record| record.key.is_some()).unwrap();
    assert_eq!((record.key.as_deref(), record.header("own")), (Some(&b"k"[..]), Some(&b"1"[..])));
    assert_eq!(record.header("punctual-topic"), None);
    intake.wait_read(9).await;
    assert_eq!(cluster.count("select count(*) from execlog_cancelled").await, 3);
    let left = "select count(*) from (select payload, name from task
        union all select payload, name from task_far) t where (name, payload) = ('b', '2')";
    assert_eq!((cluster.count(left).await, cluster.count(TASKS).await), (1, 1));
    assert_eq!(intake.metric(&node, "punctual_intake_records_stored_total").await, 9.0);
    let metrics = node.metrics().await;
    for pages in
        [include_str!("../../docs/alerts.yml"), include_str!("../../docs/reference/metrics.md")]
    {
        let words = pages.split(|c: char| !c.is_ascii_lowercase() && c != '_');
        for name in words.filter(|word| word.starts_with("punctual_intake_")) {
            assert!(metrics.contains(&format!("\n{name}{{")), "{name}: {metrics}");
        }
    }
}

#[tokio::test]
async fn an_aborted_transaction_is_never_submitted() {
    let cluster = Cluster::start("intake").await;
    let intake = Intake::open(&cluster).await;
    let topic = cluster.topic("orders").await;
    let producer: BaseProducer =
        config(&cluster).set("transactional.id", &intake.topic).create().unwrap();
    let (name, to) = (intake.topic.clone(), topic.clone());
    let write = move || {
        let append = |payload: &str| {
            let headers = owned(&[("punctual-topic", &to), HOUR]);
            let record = BaseRecord::<(), str>::to(&name).payload(payload).partition(0);
            producer.send(record.headers(headers)).map_err(|(error, _)| error).unwrap();
        };
        producer.init_transactions(DEADLINE).unwrap();
        for (payload, is_committed) in [("aborted", false), ("committed", true), ("2", false)] {
            producer.begin_transaction().unwrap();
            append(payload);
            producer.flush(DEADLINE).unwrap();
            if is_committed {
                producer.commit_transaction(DEADLINE).unwrap();
            } else {
                producer.abort_transaction(DEADLINE).unwrap();
            }
        }
        producer.begin_transaction().unwrap();
        append("open");
        producer.flush(DEADLINE).unwrap();
        producer
    };
    let open = tokio::task::spawn_blocking(write).await.unwrap();
    let _node = intake.node().await;
    eventually("one record is committed", DEADLINE, async || cluster.count(TASKS).await == 1).await;
    // Records of an open transaction, and all behind them, wait for its end.
    intake.append(0, Some("behind"), None, &[("punctual-topic", &topic), HOUR]).await;
    let commit = move || open.commit_transaction(DEADLINE).unwrap();
    tokio::task::spawn_blocking(commit).await.unwrap();
    eventually("all committed records", DEADLINE, async || cluster.count(TASKS).await == 3).await;
    let aborted = "select count(*) from (select payload from task
        union all select payload from task_far) t where payload in ('aborted', '2')";
    assert_eq!(cluster.count(aborted).await, 0);
}

#[tokio::test]
async fn records_have_the_rights_of_the_principal_of_their_topic() {
    let cluster = Cluster::start("intake").await;
    let intake = Intake::open(&cluster).await;
    let [own, other] = [cluster.topic("own").await, cluster.topic("other").await];
    for topic in [&own, &other] {
        intake.append(0, Some("1"), None, &[("punctual-topic", topic), HOUR]).await;
    }
    let file = AuthFile::new("intake", "version = 1\n[anonymous]\nroles = []\n");
    let flags = ["--intake-topic", &intake.topic, "--auth-file", file.path()];
    let node = cluster.node_with(&flags).await;
    eventually("the records wait for their principal", DEADLINE, async || {
        node.log().contains("the auth file has no principal")
    })
    .await;
    assert_eq!(intake.read_count().await, 0);
    let principal = format!(
        "version = 1\n[principals.{:?}]\n\
         allow = [ {{ actions = [\"submit\"], topics = [{own:?}] }} ]\n",
        intake.topic
    );
    std::fs::write(file.path(), principal).unwrap();
    intake.wait_read(2).await;
    let rejected = cluster.consumer(&intake.rejected_topic()).wait_count(1, DEADLINE).await;
    let reason = rejected[0].header("punctual-rejected-reason").unwrap();
    assert!(String::from_utf8_lossy(reason).contains("`submit`"));
    let submitted = "select count(*) from task t join principal p on p.id = t.submitted_by
        where p.name like '%.in'";
    assert_eq!(cluster.count(submitted).await, 1);
}

#[tokio::test]
async fn records_before_one_that_waits_for_a_limit_are_stored() {
    let cluster = Cluster::start("intake").await;
    let intake = Intake::open(&cluster).await;
    let [slow, other] = [cluster.topic("slow").await, cluster.topic("other").await];
    let text = format!(
        "version = 1\n[anonymous]\noperate = true\n[principals.{:?}]\n\
         allow = [ {{ actions = [\"submit\"], topics = [\"*\"] }} ]\n\
         [topics.{slow:?}]\nlimits = {{ tasks_per_second = 1 }}\n",
        intake.topic
    );
    let file = AuthFile::new("intake-waits", &text);
    let limits = ["--auth-file", file.path(), "--batch-max", "1"];
    let flags = [&["--intake-topic", intake.topic.as_str()][..], &limits].concat();
    let node = cluster.node_with(&flags).await;
    let to_slow = [("punctual-topic", slow.as_str()), HOUR];
    let to_other = [("punctual-topic", other.as_str()), HOUR];
    // Together, so that one turn may have all of them: more than the limit lets through at once.
    let append = async |headers: &[(&str, &str)]| intake.append(0, Some("1"), None, headers).await;
    futures_util::future::join_all((0..200).map(|_| append(&to_slow))).await;
    eventually("the limit is reached", DEADLINE, async || intake.read_count().await > 0).await;
    tokio::join!(append(&to_other), append(&to_slow));
    let of_other =
        "select count(*) from (select topic from task union all select topic from task_far)
        t where topic like '%other'";
    eventually("the record before is stored", DEADLINE, async || {
        cluster.count(of_other).await == 1
    })
    .await;
    assert_eq!(intake.metric(&node, "punctual_intake_records_rejected_total").await, 0.0);
}

/// Two nodes that believe in the same offset: one stores its records.
#[tokio::test]
async fn two_nodes_at_one_partition_store_each_record_once() {
    let cluster = Cluster::start("intake").await;
    let ours = PostgresSettings::new(&cluster.database.url).unwrap();
    let node = || NodeId::new(clock::wall(), rand::random(), rand::random());
    let store = || InboundStore::new(&ours, node(), Duration::from_secs(60));
    let (mut old, mut new) = (store(), store());
    let topic = TopicName::new("in").unwrap();
    old.begin_partitions(&topic, &[(0, 10)].into()).await.unwrap();
    new.begin_partitions(&topic, &[(0, 5)].into()).await.unwrap();
    let position = new.positions(&topic, &[0, 1]).await.unwrap();
    let begun = Position { generation: 1, next: 10, newest_at: None };
    assert_eq!(position, [(0, begun)].into(), "a partition keeps its first offset");
    let read_at = Timestamp::from_millis(7);
    let precondition = |position| {
        StorePrecondition::Records(OffsetPrecondition {
            topic: topic.clone(),
            partition: 0,
            position,
            read_at,
            rejections: BTreeMap::new(),
        })
    };
    let items = [10, 12].map(|seq| ItemKey { id: Uuid::nil(), seq });
    let submits = || Submits { items: &items, plain: Group::default(), named: None };
    let mut held = precondition(begun);
    new.submit(&held, &submits()).await.unwrap();
    held.stored(&items);
    for late in [
        old.submit(&precondition(begun), &submits()).await,
        new.submit(&precondition(begun), &submits()).await,
    ] {
        assert!(matches!(late, Err(StoreError::Overtaken)), "{late:?}");
    }
    let moved = Position { generation: 1, next: 13, newest_at: Some(read_at) };
    assert_eq!(held, precondition(moved));
    assert_eq!(new.positions(&topic, &[0]).await.unwrap(), [(0, moved)].into());
    // An offset that was set elsewhere is another one, even if it comes to the same number.
    let StorePrecondition::Records(at) = precondition(moved) else { unreachable!() };
    assert!(new.set_offset(&at, 10).await.unwrap());
    assert!(!old.set_offset(&at, 11).await.unwrap());
    let late = old.submit(&precondition(begun), &submits()).await;
    assert!(matches!(late, Err(StoreError::Overtaken)), "{late:?}");
}

#[tokio::test]
async fn partitions_are_taken_over_and_new_ones_are_noticed() {
    let cluster = Cluster::start("intake").await;
    let intake = Intake::open(&cluster).await;
    let topic = cluster.topic("orders").await;
    let to = ("punctual-topic", topic.as_str());
    let mut first = intake.node().await;
    let second = intake.node().await;
    eventually("both nodes read partitions, or one all", DEADLINE, async || {
        let count = intake.metric(&first, "punctual_intake_partitions").await
            + intake.metric(&second, "punctual_intake_partitions").await;
        count == 3.0
    })
    .await;
    for n in 0..300 {
        intake.append(n % 3, Some("1"), None, &[to, HOUR]).await;
        if n == 100 {
            first.kill().await;
        }
    }
    intake.wait_read(300).await;
    assert_eq!(cluster.count(TASKS).await, 300);
    let more = NewPartitions::new(&intake.topic, 5);
    let made = intake.admin().create_partitions([&more], &AdminOptions::new()).await.unwrap();
    assert!(made.iter().all(Result::is_ok), "{made:?}");
    eventually("the node reads the new partitions", DEADLINE, async || {
        intake.metric(&second, "punctual_intake_partitions").await == 5.0
    })
    .await;
    // The first producer does not know the new partitions yet.
    let intake = Intake::at(&cluster, intake.topic.clone());
    intake.append(4, Some("1"), None, &[to, HOUR]).await;
    intake.wait_read(301).await;
}

#[tokio::test]
async fn a_rewound_offset_is_read_again_and_lost_records_are_told() {
    let cluster = Cluster::start("intake").await;
    let intake = Intake::open(&cluster).await;
    let topic = cluster.topic("orders").await;
    let to = ("punctual-topic", topic.as_str());
    let node = intake.node().await;
    for _ in 0..4 {
        intake.append(0, Some("1"), None, &[to, HOUR]).await;
    }
    intake.wait_read(4).await;
    intake.execute("update intake_offset set next = 1 where partition = 0").await;
    eventually("three records again", DEADLINE, async || cluster.count(TASKS).await == 7).await;
    // Records are deleted before they are read: the offset points before the log.
    let mut offsets = TopicPartitionList::new();
    offsets.add_partition_offset(&intake.topic, 0, Offset::Offset(3)).unwrap();
    intake.admin().delete_records(&offsets, &AdminOptions::new()).await.unwrap();
    intake.execute("update intake_offset set next = 1 where partition = 0").await;
    eventually("the last record again", DEADLINE, async || cluster.count(TASKS).await == 8).await;
    assert_eq!(intake.metric(&node, "punctual_intake_records_lost_total").await, 2.0);
    assert_eq!(intake.metric(&node, "punctual_intake_resets_total").await, 1.0);
    assert_eq!(intake.read_count().await, 4);
}

#[tokio::test]
async fn a_topic_that_was_made_anew_is_read_from_its_beginning() {
    let cluster = Cluster::start("intake").await;
    let intake = Intake::open(&cluster).await;
    let topic = cluster.topic("orders").await;
    let to = ("punctual-topic", topic.as_str());
    for _ in 0..5 {
        intake.append(0, Some("old"), None, &[to, HOUR]).await;
    }
    let mut node = intake.node().await;
    intake.wait_read(5).await;
    node.kill().await;
    cluster.delete_topic(&intake.topic).await;
    cluster.create_topic(&intake.topic, &[]).await;
    for _ in 0..2 {
        intake.append(0, Some("new"), None, &[to, HOUR]).await;
    }
    let node = intake.node().await;
    eventually("the new records are stored", DEADLINE, async || cluster.count(TASKS).await == 7)
        .await;
    assert_eq!(intake.metric(&node, "punctual_intake_resets_total").await, 1.0);
    assert!(node.log().contains("made anew"), "{}", node.log_tail());
    assert_eq!(intake.read_count().await, 2);
    // Now it has more records than were read. Only a node that saw it missing knows.
    cluster.delete_topic(&intake.topic).await;
    eventually("the node sees that there is no topic", DEADLINE, async || {
        node.log().contains("Kafka has no topic of this name")
    })
    .await;
    eventually("it has looked twice", DEADLINE, async || {
        intake.metric(&node, "punctual_intake_waits_seconds").await > 6.0
    })
    .await;
    cluster.create_topic(&intake.topic, &[]).await;
    for _ in 0..3 {
        intake.append(0, Some("third"), None, &[to, HOUR]).await;
    }
    eventually("all records of the third", DEADLINE, async || cluster.count(TASKS).await == 10)
        .await;
}

/// The limit that the page for users names, and its remedy.
#[tokio::test]
async fn a_topic_made_anew_with_more_records_than_before_needs_its_offsets_deleted() {
    let cluster = Cluster::start("intake").await;
    let intake = Intake::open(&cluster).await;
    let topic = cluster.topic("orders").await;
    let to = ("punctual-topic", topic.as_str());
    for _ in 0..3 {
        intake.append(0, Some("old"), None, &[to, HOUR]).await;
    }
    let mut node = intake.node().await;
    intake.wait_read(3).await;
    node.kill().await;
    cluster.delete_topic(&intake.topic).await;
    cluster.create_topic(&intake.topic, &[]).await;
    for _ in 0..5 {
        intake.append(0, Some("new"), None, &[to, HOUR]).await;
    }
    // Nobody saw the topic missing, so the node goes on at the offset.
    let mut node = intake.node().await;
    intake.wait_read(5).await;
    assert_eq!(cluster.count(TASKS).await, 5);
    assert_eq!(intake.metric(&node, "punctual_intake_resets_total").await, 0.0);
    node.kill().await;
    intake.execute("delete from intake_offset").await;
    let _node = intake.node().await;
    eventually("all new records are stored", DEADLINE, async || cluster.count(TASKS).await == 10)
        .await;
}

/// The code on the page for users runs as it is printed.
#[tokio::test]
async fn the_page_about_kafka_says_what_happens() {
    const PAGE: &str = "docs/how-to/submit-from-kafka.md";
    let cluster = Cluster::start("intake").await;
    let intake = Intake::open(&cluster).await;
    let topic = cluster.topic("orders").await;
    let _node = intake.node().await;
    let code = [page::block(PAGE, "code: submit"), page::block(PAGE, "code: cancel")].concat();
    let code = code
        .replace("localhost:9092", &cluster.stack.kafka)
        .replace("\"punctual.in\"", &format!("{:?}", intake.topic))
        .replace("\"orders\"", &format!("{topic:?}"));
    let program = Path::new(env!("CARGO_MANIFEST_DIR")).join(".stack/examples/python/bin/python");
    assert!(program.exists(), "{} is not built: run scripts/examples", program.display());
    let run = Command::new(program).arg("-c").arg(&code).kill_on_drop(true).output();
    let output = tokio::time::timeout(DEADLINE, run).await.unwrap().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    eventually("the task is cancelled", DEADLINE, async || {
        cluster.count("select count(*) from execlog_cancelled").await == 1
    })
    .await;
    // A record as Debezium's router of outbox events writes it, with the placement of the page.
    let text = std::fs::read_to_string(PAGE).unwrap();
    let placed = text.lines().find(|line| line.contains("fields.additional.placement")).unwrap();
    let headers: Vec<&str> = placed
        .split(',')
        .filter_map(|field| field.split(":header:").nth(1))
        .map(str::trim)
        .collect();
    assert_eq!(headers, ["punctual-topic", "punctual-delay", "punctual-name"]);
    let values = [topic.as_str(), "30m", "order-18"];
    let given: Vec<(&str, &str)> = headers.into_iter().zip(values).collect();
    let event = ("id", "5f2a6b5e-0000-4000-8000-000000000000");
    let given = [given, vec![event]].concat();
    intake.append(0, Some("{\"remind\": 18}"), Some("order-18"), &given).await;
    eventually("the event is a task", DEADLINE, async || {
        cluster.count("select count(*) from task_name where name = 'order-18'").await == 1
    })
    .await;
}
