//! Reads the records of topics and their append times, to measure a cluster from outside. A node
//! reads no records this way: see [`group`] for the reads of a consumer group.

pub mod group;

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use rdkafka::admin::{AdminClient, AdminOptions, ResourceSpecifier};
use rdkafka::client::DefaultClientContext;
use rdkafka::consumer::{BaseConsumer, Consumer as _};
use rdkafka::error::KafkaError;
use rdkafka::message::{BorrowedMessage, Headers as _, Message as _};
use rdkafka::{Offset, Timestamp, TopicPartitionList};
use thiserror::Error as ThisError;

use super::{ClientError, KafkaSettings};
use crate::clock;
use crate::domain::TopicName;

/// The deadline of one question to Kafka.
const DEADLINE: Duration = Duration::from_secs(10);
/// How long the thread waits for a record before it checks whether it must end.
const POLL_INTERVAL: Duration = Duration::from_millis(100);
/// The number of topics in one question about their settings.
const DESCRIBED_TOGETHER: usize = 100;
const THREAD: &str = "kafka-reader";

/// A record as it was appended.
#[derive(Clone, Copy, Debug)]
pub struct Appended<'a> {
    pub key: &'a [u8],
    /// The broker's append time, in milliseconds since the epoch.
    pub at: i64,
    /// The attempt of a tracked task. `None` with [`ReadMode::Bulk`].
    pub attempt: Option<AppendedAttempt<'a>>,
    /// The instant of a run of a schedule, as its header says. `None` with [`ReadMode::Bulk`].
    pub run_at: Option<&'a str>,
}

/// The attempt of a tracked task that a record is.
#[derive(Clone, Copy, Debug)]
pub struct AppendedAttempt<'a> {
    pub task_id: &'a str,
    pub number: u16,
}

/// How records are read.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ReadMode {
    /// In few and large fetches, which disturb the broker least.
    Bulk,
    /// The same, with their headers.
    BulkWithHeaders,
    /// With their headers, as soon as they are appended, as a consumer does.
    Prompt,
}

/// The reason why a topic cannot be read with its append times.
#[derive(Debug, ThisError)]
pub enum ReadError {
    #[error("Kafka has no topic {topic}")]
    Unknown { topic: TopicName },
    #[error(
        "the topic {topic} keeps the producer's times ({found}) instead of append times, so \
         lateness cannot be measured; set message.timestamp.type=LogAppendTime on it, or take \
         another topic"
    )]
    NotAppendTime { topic: TopicName, found: String },
    #[error("cannot ask Kafka about the topic {topic}")]
    Ask {
        topic: TopicName,
        #[source]
        source: KafkaError,
    },
    #[error("the thread that looks up the ends of the topics panicked")]
    Panicked,
    #[error(transparent)]
    Client(#[from] ClientError),
}

/// Reads topics from their present ends, in a thread of its own, until dropped.
pub struct TopicReader {
    is_done: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl TopicReader {
    /// Starts to read `topics`. The reader's thread calls `on_record` for each record with a key,
    /// in the order of each partition.
    ///
    /// # Errors
    /// When Kafka cannot be asked, or a topic has no append times.
    pub async fn start(
        settings: &KafkaSettings,
        topics: &[TopicName],
        mode: ReadMode,
        on_record: impl FnMut(Appended<'_>) + Send + 'static,
    ) -> Result<Self, ReadError> {
        check_append_times(settings, topics).await?;
        let (settings, names) = (settings.clone(), topics.to_vec());
        let opened = tokio::task::spawn_blocking(move || open(&settings, &names, mode)).await;
        let consumer = opened.unwrap_or(Err(ReadError::Panicked))?;
        let is_done = Arc::new(AtomicBool::new(false));
        let thread = std::thread::Builder::new().name(THREAD.to_owned()).spawn({
            let is_done = Arc::clone(&is_done);
            move || read(&consumer, mode, on_record, &is_done)
        });
        let thread = thread.map_err(|source| ClientError::Thread { name: THREAD, source })?;
        Ok(Self { is_done, thread: Some(thread) })
    }
}

impl fmt::Debug for TopicReader {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("TopicReader")
    }
}

impl Drop for TopicReader {
    fn drop(&mut self) {
        self.is_done.store(true, Ordering::Relaxed);
        if self.thread.take().is_some_and(|thread| thread.join().is_err()) {
            tracing::warn!("the thread that reads a topic has panicked");
        }
    }
}

async fn check_append_times(
    settings: &KafkaSettings,
    topics: &[TopicName],
) -> Result<(), ReadError> {
    let create = |source| ClientError::Create { what: "Kafka admin client", source };
    let admin: AdminClient<DefaultClientContext> =
        settings.admin_config(DEADLINE).create().map_err(create)?;
    let options = AdminOptions::new().request_timeout(Some(DEADLINE));
    for some in topics.chunks(DESCRIBED_TOGETHER) {
        let resources: Vec<ResourceSpecifier<'_>> =
            some.iter().map(|topic| ResourceSpecifier::Topic(topic.as_str())).collect();
        let answers = admin.describe_configs(&resources, &options).await;
        let ask = |source| ReadError::Ask { topic: some[0].clone(), source };
        let mut answers = answers.map_err(ask)?.into_iter();
        for topic in some {
            let Some(Ok(resource)) = answers.next() else {
                return Err(ReadError::Unknown { topic: topic.clone() });
            };
            let entry =
                resource.get("message.timestamp.type").and_then(|entry| entry.value.clone());
            if let Some(found) = entry.filter(|found| found != "LogAppendTime") {
                return Err(ReadError::NotAppendTime { topic: topic.clone(), found });
            }
        }
    }
    Ok(())
}

/// Makes a consumer at the present end of all partitions.
fn open(
    settings: &KafkaSettings,
    topics: &[TopicName],
    mode: ReadMode,
) -> Result<BaseConsumer, ReadError> {
    let mut config = settings.consumer_config();
    config
        .set("group.id", "punctual-reader")
        .set("enable.auto.commit", "false")
        .set("fetch.message.max.bytes", "8388608")
        .set("queued.min.messages", "1000000")
        .set("check.crcs", "false");
    if mode != ReadMode::Prompt {
        config.set("fetch.wait.max.ms", "250").set("fetch.min.bytes", "1000000");
    }
    let create = |source| ClientError::Create { what: "Kafka consumer", source };
    let consumer: BaseConsumer = config.create().map_err(create)?;
    let begun_at = clock::monotonic();
    let mut assignment = TopicPartitionList::new();
    for topic in topics {
        let ask = |source| ReadError::Ask { topic: topic.clone(), source };
        let ends = loop {
            match ends(&consumer, topic.as_str()) {
                Ok(ends) => break ends,
                // A topic that was created a moment ago has no leaders yet. Each attempt asks for
                // fresh metadata.
                Err(error) if clock::monotonic().since(begun_at) < DEADLINE => {
                    tracing::debug!(%error, "cannot read the end offsets of a topic")
                }
                Err(error) => return Err(ask(error)),
            }
        };
        if ends.is_empty() {
            return Err(ReadError::Unknown { topic: topic.clone() });
        }
        for (partition, end) in ends {
            let added = assignment.add_partition_offset(topic.as_str(), partition, end);
            added.map_err(ask)?;
        }
    }
    let ask = |source| ReadError::Ask { topic: topics[0].clone(), source };
    consumer.assign(&assignment).map_err(ask)?;
    Ok(consumer)
}

/// Returns the present end of each partition. There are none when the topic does not exist.
fn ends(consumer: &BaseConsumer, topic: &str) -> Result<Vec<(i32, Offset)>, KafkaError> {
    let metadata = consumer.fetch_metadata(Some(topic), DEADLINE)?;
    let partitions =
        metadata.topics().first().map(|topic| topic.partitions().len()).unwrap_or_default();
    let end_of = |partition| {
        let (_, end) = consumer.fetch_watermarks(topic, partition, DEADLINE)?;
        Ok((partition, Offset::Offset(end)))
    };
    (0..i32::try_from(partitions).unwrap_or(0)).map(end_of).collect()
}

fn read(
    consumer: &BaseConsumer,
    mode: ReadMode,
    mut on_record: impl FnMut(Appended<'_>),
    is_done: &AtomicBool,
) {
    while !is_done.load(Ordering::Relaxed) {
        match consumer.poll(POLL_INTERVAL) {
            Some(Ok(message)) => {
                if let (Some(key), Timestamp::LogAppendTime(at)) =
                    (message.key(), message.timestamp())
                {
                    let (attempt, run_at) = match mode {
                        ReadMode::Bulk => (None, None),
                        ReadMode::BulkWithHeaders | ReadMode::Prompt => {
                            (attempt_of(&message), header_of(&message, "punctual-run-at"))
                        }
                    };
                    on_record(Appended { key, at, attempt, run_at });
                }
            }
            // The client reconnects by itself.
            Some(Err(error)) => tracing::debug!(%error, "the reader of a topic has an error"),
            None => {}
        }
    }
}

fn attempt_of<'a>(message: &'a BorrowedMessage<'_>) -> Option<AppendedAttempt<'a>> {
    let number = header_of(message, "punctual-attempt")?.parse().ok()?;
    Some(AppendedAttempt { task_id: header_of(message, "punctual-task-id")?, number })
}

fn header_of<'a>(message: &'a BorrowedMessage<'_>, name: &str) -> Option<&'a str> {
    let header = message.headers()?.iter().find(|header| header.key == name)?;
    std::str::from_utf8(header.value?).ok()
}
