//! Shared by the tests of the Kafka edge: topics, producers with their reports, and a consumer.

#![expect(clippy::unwrap_used, clippy::panic, reason = "a helper of tests fails the test")]

use std::collections::HashMap;
use std::num::NonZeroUsize;
use std::sync::Arc;
use std::time::Duration;

use prometheus_client::encoding::text::encode;
use punctual::domain::batch::TaskParts;
use punctual::domain::{
    Batch, BatchBuilder, BatchId, Failure, Headers, Shard, TaskId, Timestamp, TopicName,
};
use punctual::kafka::{
    DeliveryOutcome, DeliveryReport, Hooks, KafkaMetrics, KafkaSettings, Mode, Producer, TopicCache,
};
use punctual::telemetry::Registry;
use rdkafka::ClientConfig;
use rdkafka::admin::{AdminClient, AdminOptions, NewTopic, TopicReplication, TopicResult};
use rdkafka::client::DefaultClientContext;
use rdkafka::consumer::{BaseConsumer, Consumer};
use rdkafka::message::OwnedMessage;
use rdkafka::topic_partition_list::{Offset, TopicPartitionList};
use rdkafka::types::RDKafkaErrorCode;
use tokio::sync::mpsc::{Receiver, channel};

use crate::support::eventually;

/// Key, payload and headers of a record.
pub type Parts<'a> = (Option<&'a [u8]>, Option<&'a [u8]>, Headers);

pub const NOW: Timestamp = Timestamp::from_micros(1_234_567_000);
pub const REPORT_DEADLINE: Duration = Duration::from_secs(40);

/// The timestamp of test records: not this machine's time, but a time that no broker refuses or
/// deletes for its age.
pub fn stamp() -> Timestamp {
    punctual::clock::wall().minus(Duration::from_secs(3600))
}

/// Whether a record failed, and how.
pub trait Is {
    fn is(&self, failure: Failure) -> bool;
    fn is_maybe_sent(&self) -> bool;
}

impl Is for DeliveryOutcome {
    fn is(&self, failure: Failure) -> bool {
        matches!(self, Self::Failed(failed) if failed.failure == failure)
    }

    fn is_maybe_sent(&self) -> bool {
        matches!(self, Self::Failed(failed) if failed.maybe_sent)
    }
}

/// A Kafka edge with one producer.
pub struct Edge {
    pub topics: TopicCache,
    pub producer: Arc<Producer>,
    pub registry: Registry,
    pub metrics: KafkaMetrics,
    reports: Receiver<DeliveryReport>,
}

pub fn settings(bootstrap: &str, properties: &[(&str, &str)]) -> KafkaSettings {
    KafkaSettings {
        bootstrap: bootstrap.to_owned(),
        properties: properties
            .iter()
            .map(|(name, value)| ((*name).to_owned(), (*value).to_owned()))
            .collect::<Vec<_>>()
            .into(),
        client_id: "punctual-test".to_owned(),
        linger: Duration::from_micros(500),
        publish_deadline: Duration::from_secs(30),
        producers: NonZeroUsize::MIN,
        records_in_flight_max: 100_000,
        bytes_in_flight_max: 256 << 20,
    }
}

#[expect(clippy::disallowed_methods, reason = "where the servers are is told by the environment")]
pub fn bootstrap() -> String {
    std::env::var("PUNCTUAL_KAFKA").unwrap_or_else(|_| {
        panic!("PUNCTUAL_KAFKA is not set: scripts/stack up, then eval \"$(scripts/stack env)\"")
    })
}

impl Edge {
    pub fn new(settings: &KafkaSettings, mode: Mode) -> Self {
        let mut registry = Registry::default();
        let metrics = KafkaMetrics::register(&mut registry);
        let topics = TopicCache::start(settings, metrics.clone()).unwrap();
        let (producer, reports) = producer(settings, mode, &topics, &metrics);
        Self { topics, producer: Arc::new(producer), registry, metrics, reports }
    }

    /// Replaces this producer, as a node replaces a producer that librdkafka has confused.
    pub fn renew(&mut self, settings: &KafkaSettings, mode: Mode) {
        let (producer, reports) = producer(settings, mode, &self.topics, &self.metrics);
        (self.producer, self.reports) = (Arc::new(producer), reports);
    }

    pub fn send(&self, batch: &Batch) {
        for (correlation_id, task) in batch.tasks().enumerate() {
            let topic = batch.topics()[usize::from(task.topic)].as_str();
            assert_eq!(self.producer.send(correlation_id, topic, &task, stamp()), Ok(()));
        }
    }

    pub async fn outcomes(&mut self, count: usize) -> HashMap<usize, DeliveryOutcome> {
        outcomes(&mut self.reports, count).await
    }

    /// Returns all metrics in the format of Prometheus.
    pub fn text(&self) -> String {
        let mut text = String::new();
        encode(&mut text, &self.registry).unwrap();
        text
    }
}

pub fn producer(
    settings: &KafkaSettings,
    mode: Mode,
    topics: &TopicCache,
    metrics: &KafkaMetrics,
) -> (Producer, Receiver<DeliveryReport>) {
    let (sender, reports) = channel(200_000);
    let hooks = Hooks::new(move |report| sender.try_send(report).unwrap(), || NOW);
    (Producer::new(settings, mode, topics.contact(), metrics.clone(), hooks).unwrap(), reports)
}

/// Returns the outcomes of `count` correlation ids. Each must be reported once.
pub async fn outcomes(
    reports: &mut Receiver<DeliveryReport>,
    count: usize,
) -> HashMap<usize, DeliveryOutcome> {
    let mut outcomes = HashMap::new();
    let all = async {
        while outcomes.len() < count {
            let report = reports.recv().await.unwrap();
            assert_eq!(
                outcomes.insert(report.correlation_id, report.outcome),
                None,
                "correlation_id {} was reported twice",
                report.correlation_id
            );
        }
    };
    let is_complete = tokio::time::timeout(REPORT_DEADLINE, all).await.is_ok();
    assert!(is_complete, "{} of {count} were reported", outcomes.len());
    outcomes
}

/// Creates a topic with a unique name.
pub async fn topic(
    bootstrap: &str,
    name: &str,
    partitions: i32,
    config: &[(&str, &str)],
) -> TopicName {
    let name = TopicName::new(&format!("{name}-{:016x}", rand::random::<u64>())).unwrap();
    create(bootstrap, &name, partitions, config).await;
    name
}

pub async fn create(bootstrap: &str, name: &TopicName, partitions: i32, config: &[(&str, &str)]) {
    let admin: AdminClient<DefaultClientContext> =
        ClientConfig::new().set("bootstrap.servers", bootstrap).create().unwrap();
    let mut new = NewTopic::new(name.as_str(), partitions, TopicReplication::Fixed(1));
    for (key, value) in config {
        new = new.set(key, value);
    }
    // A controller that stalled may have created the topic without an answer.
    let mut tries = 0;
    eventually("the topic is made", REPORT_DEADLINE, async || {
        let results = admin.create_topics([&new], &AdminOptions::new()).await;
        tries += 1;
        let is_there = |result: &TopicResult| {
            tries > 1 && matches!(result, Err((_, RDKafkaErrorCode::TopicAlreadyExists)))
        };
        results.is_ok_and(|results| results.iter().all(|result| result.is_ok() || is_there(result)))
    })
    .await;
    // The controller has answered; brokers learn of the topic a moment later.
    eventually("the topic has leaders", REPORT_DEADLINE, async || {
        let metadata = admin.inner().fetch_metadata(Some(name.as_str()), Duration::from_secs(5));
        metadata.is_ok_and(|all| {
            let mut topics = all.topics().iter();
            topics.all(|topic| {
                topic.error().is_none()
                    && topic.partitions().iter().all(|partition| partition.leader() >= 0)
            })
        })
    })
    .await;
}

/// Deletes a topic.
pub async fn delete(bootstrap: &str, name: &TopicName) {
    let admin: AdminClient<DefaultClientContext> =
        ClientConfig::new().set("bootstrap.servers", bootstrap).create().unwrap();
    let answers = admin.delete_topics(&[name.as_str()], &AdminOptions::new()).await.unwrap();
    assert!(answers.iter().all(Result::is_ok), "{answers:?}");
}

pub fn task_id(number: usize) -> TaskId {
    TaskId::new(
        Timestamp::from_millis(1_700_000_000_000),
        Shard::new(3),
        u64::try_from(number).unwrap(),
    )
}

/// A batch of records (key, payload, headers) for one topic.
pub fn batch(topic: &TopicName, records: &[Parts<'_>]) -> Batch {
    let mut builder = BatchBuilder::new(BatchId::new(NOW, 0, 0), records.len(), 0);
    for (number, (key, payload, headers)) in records.iter().enumerate() {
        builder.push(TaskParts {
            id: task_id(number),
            first_id: None,
            attempt: None,
            topic: topic.as_str(),
            key: *key,
            payload: *payload,
            headers: Some(headers.as_bytes()).filter(|headers| !headers.is_empty()),
            name: None,
            tracking: None,
            moved_to: None,
        });
    }
    builder.build()
}

/// A batch of `count` records of `bytes` bytes, without key and headers.
pub fn plain_batch(topic: &TopicName, count: usize, bytes: usize) -> Batch {
    let payload = vec![b'x'; bytes];
    batch(topic, &vec![(None, Some(payload.as_slice()), Headers::default()); count])
}

/// The first `count` records of all partitions.
pub async fn consume(
    bootstrap: &str,
    topic: &TopicName,
    partitions: i32,
    count: usize,
) -> Vec<OwnedMessage> {
    let (bootstrap, topic) = (bootstrap.to_owned(), topic.to_string());
    let read = move || {
        let consumer: BaseConsumer = ClientConfig::new()
            .set("bootstrap.servers", &bootstrap)
            .set("group.id", "none")
            .create()
            .unwrap();
        let mut from = TopicPartitionList::new();
        for partition in 0..partitions {
            from.add_partition_offset(&topic, partition, Offset::Beginning).unwrap();
        }
        consumer.assign(&from).unwrap();
        let mut read = Vec::new();
        while read.len() < count {
            let message = consumer
                .poll(Duration::from_secs(20))
                .unwrap_or_else(|| panic!("only {} of {count}", read.len()));
            read.push(message.unwrap().detach());
        }
        read
    };
    tokio::task::spawn_blocking(read).await.unwrap()
}
