//! Reads an intake topic: the partitions and offsets given by the node. There is no consumer group:
//! offsets are kept elsewhere.
//!
//! Memory is bounded: the client keeps [`QUEUED_KIB_MAX`] of each partition, and at most one fetch
//! more. Nothing here blocks, except the questions, which run on threads for blocking work.

pub(super) mod appender;
pub(super) mod ends;
pub(super) mod rejects;
pub(super) mod stalls;

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use rdkafka::client::ClientContext;
use rdkafka::config::RDKafkaLogLevel;
use rdkafka::consumer::base_consumer::PartitionQueue;
use rdkafka::consumer::{BaseConsumer, Consumer as _, ConsumerContext};
use rdkafka::error::{KafkaError, RDKafkaErrorCode as Code};
use rdkafka::message::{BorrowedMessage, Headers as _, Message as _};
use rdkafka::statistics::Statistics;
use rdkafka::{Offset, Timestamp as RecordTime, TopicPartitionList};
use thiserror::Error;
use tokio::sync::Notify;

use self::ends::{DEADLINE, EndsClient, EndsError, FoundPartitions, LogBounds};
use self::stalls::{Places, Stall, StallWatch};
use super::context::{shown_line, shown_reason, tells_of_a_lost_leader};
use super::{ClientError, KafkaSettings};
use crate::clock;
use crate::domain::task::intake_record::{IntakeHeaders, IntakeRecord};
use crate::domain::{Timestamp, TopicName};
use crate::error_chain::chain;
use crate::telemetry::logging;

/// KiB and records of one partition that the client keeps ready. A fetch that was begun before is
/// kept, too.
const QUEUED_KIB_MAX: &str = "4096";
const QUEUED_RECORDS_MIN: &str = "10000";
/// The most events of the client that one call of [`IntakeReader::serve`] serves.
const EVENTS_MAX: usize = 64;
/// How long the end of a client is waited for.
pub(in crate::kafka) const CLOSE_DEADLINE: Duration = Duration::from_secs(5);

/// The reason why a question about an intake topic has no answer.
#[derive(Clone, PartialEq, Eq, Debug, Error)]
pub enum IntakeError {
    #[error("cannot ask Kafka about the topic {topic}: {reason}")]
    Unanswered { topic: TopicName, reason: String },
}

/// The reason why no record of a partition can be read.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum ReadFailure {
    /// The log has no such offset. The partition is not read until it is assigned again.
    OutOfRange,
    /// Kafka refuses: a right is missing, or the topic.
    Refused { reason: String },
}

/// Reads partitions of one topic.
pub struct IntakeReader {
    consumer: Arc<BaseConsumer<IntakeContext>>,
    topic: TopicName,
    queues: BTreeMap<i32, PartitionQueue<IntakeContext>>,
    wake: Arc<Notify>,
    watch: StallWatch,
    ends_client: EndsClient,
    /// The number of partitions that the client knows.
    known_count: i32,
    properties: u64,
}

impl fmt::Debug for IntakeReader {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("IntakeReader").field("topic", &self.topic).finish_non_exhaustive()
    }
}

impl IntakeReader {
    /// Makes a reader, which reads nothing yet. It connects in the background.
    pub fn new(settings: &KafkaSettings, topic: &TopicName) -> Result<Self, ClientError> {
        let properties = settings.properties.version();
        let mut config = settings.consumer_config();
        config
            // The line about a lost leader is one of these.
            .set_log_level(RDKafkaLogLevel::Info)
            // librdkafka assigns partitions only to a member of a group. It never joins one.
            .set("group.id", "punctual-intake")
            .set("enable.auto.commit", "false")
            .set("enable.auto.offset.store", "false")
            .set("auto.offset.reset", "error")
            .set("isolation.level", "read_committed")
            .set("queued.max.messages.kbytes", QUEUED_KIB_MAX)
            .set("queued.min.messages", QUEUED_RECORDS_MIN)
            // The default, a second without a fetch after the queue was full, halves the rate.
            .set("fetch.queue.backoff.ms", "20")
            .set("statistics.interval.ms", "2000");
        let context = IntakeContext {
            topic: topic.clone(),
            ends: Mutex::default(),
            places: Mutex::default(),
            is_stuck: AtomicBool::new(false),
        };
        let create = |source| ClientError::Create { what: "Kafka consumer", source };
        let consumer = config.create_with_context(context).map_err(create)?;
        Ok(Self {
            consumer: Arc::new(consumer),
            topic: topic.clone(),
            queues: BTreeMap::new(),
            wake: Arc::default(),
            watch: StallWatch::default(),
            ends_client: EndsClient::new(settings),
            known_count: 0,
            properties,
        })
    }

    /// Returns true when another reader must take the place of this one: the operator's properties
    /// have changed since it was made, or it cannot read some partition any more.
    pub fn is_outdated(&self, settings: &KafkaSettings) -> bool {
        self.is_stuck() || self.properties != settings.properties.version()
    }

    fn is_stuck(&self) -> bool {
        self.consumer.context().is_stuck.load(Ordering::Relaxed)
    }

    /// Reads these partitions from these offsets on, and no others.
    pub fn assign(&mut self, from: &BTreeMap<i32, i64>) -> Result<(), IntakeError> {
        // When an assignment ends, the library forgets the partitions of unknown topics, and their
        // queues with them. So the former assignment ends before the new queues are made.
        self.consumer.unassign().map_err(|error| self.unanswered(&error))?;
        self.queues.clear();
        let mut list = TopicPartitionList::new();
        for (partition, offset) in from {
            let offset = Offset::Offset(*offset);
            let added = list.add_partition_offset(self.topic.as_str(), *partition, offset);
            added.map_err(|error| self.unanswered(&error))?;
            // Before it is read: a failure in the queue of the whole client names no partition.
            let queue = self.consumer.split_partition_queue(self.topic.as_str(), *partition);
            let Some(mut queue) = queue else {
                let reason = format!("the client has no queue for the partition {partition}");
                return Err(IntakeError::Unanswered { topic: self.topic.clone(), reason });
            };
            let wake = Arc::clone(&self.wake);
            queue.set_nonempty_callback(move || wake.notify_one());
            self.queues.insert(*partition, queue);
        }
        self.consumer.assign(&list).map_err(|error| self.unanswered(&error))?;
        Ok(())
    }

    /// Waits until a record has come since the last call.
    pub async fn wait(&self) {
        self.wake.notified().await;
    }

    /// Takes records of a partition that are there, in their order: up to `count_max`, and no more
    /// after `bytes_max`. Records may have been taken before a failure.
    pub fn take(
        &self,
        partition: i32,
        records: &mut VecDeque<IntakeRecord>,
        (count_max, bytes_max): (usize, usize),
    ) -> Result<(), ReadFailure> {
        self.serve();
        if self.is_stuck() {
            return Ok(());
        }
        let mut bytes: usize = records.iter().map(IntakeRecord::bytes).sum();
        while records.len() < count_max && bytes < bytes_max {
            let Some(record) = self.next(partition)? else { return Ok(()) };
            bytes = bytes.saturating_add(record.bytes());
            records.push_back(record);
        }
        Ok(())
    }

    fn next(&self, partition: i32) -> Result<Option<IntakeRecord>, ReadFailure> {
        let Some(queue) = self.queues.get(&partition) else { return Ok(None) };
        match queue.poll(Duration::ZERO) {
            None => Ok(None),
            Some(Ok(message)) => Ok(Some(record_of(&message))),
            Some(Err(error)) if is_out_of_range(&error) => Err(ReadFailure::OutOfRange),
            Some(Err(error)) => match error.rdkafka_error_code() {
                Some(
                    code @ (Code::TopicAuthorizationFailed
                    | Code::UnknownTopicOrPartition
                    | Code::UnknownTopic
                    | Code::UnknownTopicId
                    | Code::UnknownPartition),
                ) => Err(ReadFailure::Refused { reason: code.to_string() }),
                // The client goes on by itself.
                _ => {
                    tracing::debug!(topic = %self.topic, partition, %error, "reading an intake");
                    Ok(None)
                }
            },
        }
    }

    /// Serves the client's events. Records and failures of partitions are in queues of their own. A
    /// poll also returns nothing when it has served an event of another kind, such as statistics.
    pub fn serve(&self) {
        for polled in (0..EVENTS_MAX).filter_map(|_poll| self.consumer.poll(Duration::ZERO)) {
            match polled {
                Ok(message) => {
                    let (partition, offset) = (message.partition(), message.offset());
                    self.consumer.context().is_stuck.store(true, Ordering::Relaxed);
                    tracing::error!(topic = %self.topic, partition, offset, "a record came astray");
                }
                Err(error) => {
                    // A failure of a partition that has lost its queue.
                    if is_out_of_range(&error) {
                        self.consumer.context().is_stuck.store(true, Ordering::Relaxed);
                    }
                    tracing::debug!(topic = %self.topic, %error, "the reader of an intake");
                }
            }
        }
    }

    /// Returns the ends of the partitions that are being read, as of about two seconds ago. The
    /// records of open transactions are behind them.
    pub fn ends(&self) -> HashMap<i32, i64> {
        self.consumer.context().ends.lock().clone()
    }

    /// Returns the partitions, or `None` when there is no such topic. Finds out, too, whether the
    /// client still reads the partitions that it was given: see [`Self::is_outdated`].
    pub async fn probe(&mut self) -> Result<Option<FoundPartitions>, IntakeError> {
        let partitions = {
            let places = self.consumer.context().places.lock();
            if let Some(stall) = self.watch.see_brokers(&places) {
                self.outdate(stall);
            }
            places.fetching(self.queues.keys())
        };
        let answer = match self.ends_client.ask(&self.topic, partitions).await {
            Ok(answer) => answer,
            Err(error) => {
                self.watch.clear();
                return Err(self.untold(&error));
            }
        };
        let Some(found) = answer.partitions else {
            self.watch.clear();
            return Ok(None);
        };
        let (places, now) = (&self.consumer.context().places, clock::monotonic());
        if let Some(stall) = self.watch.see(answer.ends.as_ref(), &places.lock(), now) {
            self.outdate(stall);
        }
        if found.count > self.known_count {
            self.learn_partitions().await?;
            self.known_count = found.count;
        }
        Ok(Some(found))
    }

    /// Has the client itself learn of new partitions, which it would do minutes later.
    async fn learn_partitions(&self) -> Result<(), IntakeError> {
        let (consumer, topic) = (Arc::clone(&self.consumer), self.topic.clone());
        let look = move || consumer.fetch_metadata(Some(topic.as_str()), DEADLINE).map(drop);
        match tokio::task::spawn_blocking(look).await {
            Ok(looked) => looked.map_err(|error| self.unanswered(&error)),
            Err(_panicked) => {
                let reason = "the question panicked".to_owned();
                Err(IntakeError::Unanswered { topic: self.topic.clone(), reason })
            }
        }
    }

    /// Marks the reader as outdated: see [`Self::is_outdated`].
    fn outdate(&self, stall: Stall) {
        self.consumer.context().is_stuck.store(true, Ordering::Relaxed);
        tracing::warn!(topic = %self.topic, %stall, "replacing the reader of an intake topic");
    }

    /// Returns the bounds of a partition's log.
    pub async fn bounds(&self, partition: i32) -> Result<LogBounds, IntakeError> {
        let bounds = self.ends_client.bounds(&self.topic, partition).await;
        bounds.map_err(|error| self.untold(&error))
    }

    /// Returns the offset of the first record with a later timestamp than `at`.
    pub async fn first_after(
        &self,
        partition: i32,
        at: Timestamp,
    ) -> Result<Option<i64>, IntakeError> {
        let offset = self.ends_client.first_after(&self.topic, partition, at).await;
        offset.map_err(|error| self.untold(&error))
    }

    fn untold(&self, error: &EndsError) -> IntakeError {
        IntakeError::Unanswered { topic: self.topic.clone(), reason: chain(error) }
    }

    fn unanswered(&self, error: &KafkaError) -> IntakeError {
        IntakeError::Unanswered { topic: self.topic.clone(), reason: error.to_string() }
    }

    /// Ends the reader: see [`end`].
    pub async fn close(self) {
        let topic = self.topic.clone();
        end(self, "reader of an intake topic", &topic, CLOSE_DEADLINE).await;
    }
}

/// Ends a client, away from the async threads. One that takes longer than `deadline` ends in the
/// background: its threads may wait for a name server, or for a server of tokens.
pub(in crate::kafka) async fn end(
    client: impl Send + 'static,
    kind: &'static str,
    topic: &TopicName,
    deadline: Duration,
) {
    let ending = tokio::task::spawn_blocking(move || drop(client));
    match tokio::time::timeout(deadline, ending).await {
        Ok(Ok(())) => {}
        Ok(Err(_panicked)) => tracing::warn!(%topic, kind, "a Kafka client did not end cleanly"),
        Err(_elapsed) => tracing::warn!(%topic, kind, "a Kafka client takes long to end"),
    }
}

fn is_out_of_range(error: &KafkaError) -> bool {
    matches!(error.rdkafka_error_code(), Some(Code::AutoOffsetReset | Code::OffsetOutOfRange))
}

pub(super) fn record_of(message: &BorrowedMessage<'_>) -> IntakeRecord {
    let millis = match message.timestamp() {
        RecordTime::CreateTime(millis) | RecordTime::LogAppendTime(millis) => millis.max(0),
        RecordTime::NotAvailable => 0,
    };
    IntakeRecord {
        offset: message.offset(),
        at: Timestamp::from_millis(millis),
        key: message.key().map(Into::into),
        payload: message.payload().map(Into::into),
        // The library panics at a name that is not UTF-8, and any producer may write one.
        headers: logging::catch_panic(|| headers_of(message)),
    }
}

fn headers_of(message: &BorrowedMessage<'_>) -> IntakeHeaders {
    let headers = message.headers().map(|headers| {
        headers.iter().map(|header| (header.key.to_owned(), header.value.map(Into::into))).collect()
    });
    headers.unwrap_or_default()
}

/// The callbacks of a consumer.
struct IntakeContext {
    topic: TopicName,
    /// The ends of the partitions, from the statistics.
    ends: Mutex<HashMap<i32, i64>>,
    /// The places of the client, from the statistics.
    places: Mutex<Places>,
    /// Set when librdkafka has lost track of a partition for good, or given a record to nobody.
    is_stuck: AtomicBool,
}

impl ClientContext for IntakeContext {
    fn log(&self, _level: RDKafkaLogLevel, facility: &str, line: &str) {
        if tells_of_a_lost_leader(facility, line) {
            self.is_stuck.store(true, Ordering::Relaxed);
        }
        // A broker that is away is told by the contact to Kafka.
        let line = shown_line(facility, line);
        tracing::debug!(target: "librdkafka", topic = %self.topic, facility, "{line}");
    }

    fn error(&self, error: KafkaError, reason: &str) {
        let reason = shown_reason(&error, reason);
        tracing::debug!(target: "librdkafka", topic = %self.topic, %reason, "{error}");
    }

    fn stats(&self, statistics: Statistics) {
        *self.places.lock() =
            Places::new(&statistics, &self.topic, clock::monotonic(), |one| one.fetchq_cnt == 0);
        let Some(topic) = statistics.topics.get(self.topic.as_str()) else { return };
        let known = topic.partitions.iter().filter(|(_, partition)| partition.ls_offset >= 0);
        *self.ends.lock() =
            known.map(|(number, partition)| (*number, partition.ls_offset)).collect();
    }
}

impl ConsumerContext for IntakeContext {}
