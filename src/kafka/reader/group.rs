//! Reads one topic as a member of a consumer group.

use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use futures_util::FutureExt as _;
use parking_lot::Mutex;
use rdkafka::client::ClientContext;
use rdkafka::config::RDKafkaLogLevel;
use rdkafka::consumer::{BaseConsumer, Consumer as _, ConsumerContext, Rebalance, StreamConsumer};
use rdkafka::error::{KafkaError, RDKafkaErrorCode as Code};
use rdkafka::message::{BorrowedMessage, Message as _};
use rdkafka::statistics::{Partition, Statistics};
use thiserror::Error;

use crate::clock;
use crate::domain::task::intake_record::IntakeRecord;
use crate::domain::topic::group::ConsumerGroup;
use crate::domain::{Monotonic, TaskId, Timestamp, TopicName};
use crate::kafka::context::{shown_line, shown_reason, tells_of_a_lost_leader};
use crate::kafka::intake::ends::EndsClient;
use crate::kafka::intake::stalls::{Places, Stall, StallWatch};
use crate::kafka::intake::{end, record_of};
use crate::kafka::producer::{ATTEMPT, ATTEMPTS_MAX, DEAD_REASON, DUE_AT, TASK_ID, TTR_MS};
use crate::kafka::{ClientError, KafkaSettings};

/// Kilobytes (of 1,000 bytes) and records of all its partitions from which on the client fetches no
/// further ones. A fetch that was begun before is kept, too.
const QUEUED_KB_MAX: u64 = 4096;
const QUEUED_RECORDS_MAX: i64 = 40_000;
/// Maximum size of a fetch, apart from one large record. After a fetch that fills the queue, the
/// client would begin with the same partition again, and the others would wait.
const FETCH_BYTES_MAX: &str = "1048576";
/// How often the client looks for new partitions.
const REFRESH_INTERVAL_MS: &str = "10000";
/// How soon a member leaves its group that is not served, and the maximum wait of a group for its
/// members when they change. A reader whose records nobody takes ends after 30 s.
const POLL_INTERVAL_MAX_MS: &str = "60000";
/// How soon the group gives the partitions of a member that has died to others.
const SESSION_TIMEOUT_MS: &str = "10000";
/// The interval of commits of the offsets that were stored. The end of a member commits, too.
const COMMIT_INTERVAL_MS: &str = "1000";
/// The interval of the client's statistics, and of the probes for a stall.
const STATISTICS_INTERVAL_MS: &str = "5000";
const PROBE_INTERVAL: Duration = Duration::from_secs(5);
/// The maximum wait for a member to leave its group.
const LEAVE_DEADLINE: Duration = Duration::from_secs(10);

/// Kafka refuses to let the node read a topic for a group.
#[derive(Clone, PartialEq, Eq, Debug, Error)]
#[error("Kafka refuses to give records of the topic to the group: {reason}")]
pub struct GroupRefusal {
    pub reason: String,
}

/// A partition at this member, from the moment it was assigned until it is revoked.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Assignment {
    /// Distinguishes the assignments of this member.
    number: u64,
    /// When the partition came to this member. The group may have read earlier records before.
    pub since: Monotonic,
}

/// A record, and the assignment of its partition under which it was read.
#[derive(Debug)]
pub struct GroupRecord {
    pub partition: i32,
    pub assignment: Assignment,
    /// `None` for a record that is no attempt of a tracked task.
    pub attempt: Option<AttemptHeaders>,
    pub record: IntakeRecord,
}

/// The headers of Punctual about an attempt of a tracked task.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct AttemptHeaders {
    pub id: TaskId,
    pub number: u16,
    pub number_max: u16,
    pub ttr: Duration,
    /// The requested due time.
    pub due_at: Timestamp,
}

impl AttemptHeaders {
    /// Reads the headers of a record. The record of a dead task in a dead topic is no attempt.
    fn of(record: &IntakeRecord) -> Option<Self> {
        let all = record.headers.as_ref()?;
        let text = |wanted: &str| {
            let (_name, value) = all.iter().find(|(name, _value)| name == wanted)?;
            std::str::from_utf8(value.as_deref()?).ok()
        };
        if text(DEAD_REASON).is_some() {
            return None;
        }
        Some(Self {
            id: TaskId::from_uuid(text(TASK_ID)?.parse().ok()?),
            number: text(ATTEMPT)?.parse().ok()?,
            number_max: text(ATTEMPTS_MAX)?.parse().ok()?,
            ttr: Duration::from_millis(text(TTR_MS)?.parse().ok()?),
            due_at: Timestamp::from_millis(text(DUE_AT)?.parse().ok()?),
        })
    }
}

/// A member of a consumer group that reads one topic. New groups begin at the first record.
pub struct GroupMember {
    consumer: StreamConsumer<GroupContext>,
    topic: TopicName,
    properties: u64,
}

impl fmt::Debug for GroupMember {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("GroupMember").field("topic", &self.topic).finish_non_exhaustive()
    }
}

impl GroupMember {
    /// Makes a member, which joins in the background.
    ///
    /// # Errors
    /// When the settings are wrong, or files named there (certificates) cannot be used.
    pub fn join(
        settings: &KafkaSettings,
        topic: &TopicName,
        group: &ConsumerGroup,
    ) -> Result<Self, ClientError> {
        let properties = settings.properties.version();
        let mut config = settings.consumer_config();
        config
            // The line about a lost leader is one of these.
            .set_log_level(RDKafkaLogLevel::Info)
            .set("group.id", group.as_str())
            .set("partition.assignment.strategy", "cooperative-sticky")
            .set("session.timeout.ms", SESSION_TIMEOUT_MS)
            .set("max.poll.interval.ms", POLL_INTERVAL_MAX_MS)
            .set("topic.metadata.refresh.interval.ms", REFRESH_INTERVAL_MS)
            .set("enable.auto.commit", "true")
            .set("auto.commit.interval.ms", COMMIT_INTERVAL_MS)
            .set("enable.auto.offset.store", "false")
            .set("auto.offset.reset", "earliest")
            .set("isolation.level", "read_committed")
            .set("queued.max.messages.kbytes", QUEUED_KB_MAX.to_string())
            .set("queued.min.messages", QUEUED_RECORDS_MAX.to_string())
            .set("fetch.max.bytes", FETCH_BYTES_MAX)
            // The default is a second without a fetch after the queue was full.
            .set("fetch.queue.backoff.ms", "20")
            .set("statistics.interval.ms", STATISTICS_INTERVAL_MS);
        let context = GroupContext {
            topic: topic.clone(),
            progress: Arc::default(),
            count: AtomicU64::new(0),
            is_stuck: AtomicBool::new(false),
        };
        let create = |source| ClientError::Create { what: "Kafka consumer of a group", source };
        let consumer: StreamConsumer<GroupContext> =
            config.create_with_context(context).map_err(create)?;
        consumer.subscribe(&[topic.as_str()]).map_err(create)?;
        Ok(Self { consumer, topic: topic.clone(), properties })
    }

    /// Returns true when another member must take the place of this one: the operator's properties
    /// have changed since it was made, such as a password, or it cannot read some partition any
    /// more.
    pub fn is_outdated(&self, settings: &KafkaSettings) -> bool {
        let is_stuck = self.consumer.context().is_stuck.load(Ordering::Relaxed);
        is_stuck || self.properties != settings.properties.version()
    }

    /// Waits for the next record. A wait that is given up loses no record.
    ///
    /// # Errors
    /// When Kafka refuses to serve this member. The next call asks again.
    pub async fn next(&self) -> Result<GroupRecord, GroupRefusal> {
        loop {
            match self.consumer.recv().await {
                Ok(message) => {
                    if let Some(record) = self.record_of(&message) {
                        return Ok(record);
                    }
                }
                Err(error) if is_refusal(&error) => {
                    return Err(GroupRefusal { reason: error.to_string() });
                }
                // The client goes on by itself.
                Err(error) => {
                    tracing::debug!(topic = %self.topic, %error, "reading for a consumer group");
                }
            }
        }
    }

    /// Returns the next record if it is there already.
    pub fn ready(&self) -> Option<Result<GroupRecord, GroupRefusal>> {
        self.next().now_or_never()
    }

    /// Returns `None` for a record whose partition was revoked meanwhile.
    fn record_of(&self, message: &BorrowedMessage<'_>) -> Option<GroupRecord> {
        let partition = message.partition();
        let assignment = self.assignment_of(partition)?;
        let record = record_of(message);
        let attempt = AttemptHeaders::of(&record);
        Some(GroupRecord { partition, assignment, attempt, record })
    }

    fn assignment_of(&self, partition: i32) -> Option<Assignment> {
        self.consumer.context().progress.assignments.lock().get(&partition).copied()
    }

    /// Returns true when the partition has been at this member since it was assigned so.
    pub fn has(&self, partition: i32, assignment: Assignment) -> bool {
        self.assignment_of(partition) == Some(assignment)
    }

    /// Notes that the group is done with this record and those before it. The offset is committed
    /// within a second, and when the member leaves.
    pub fn pass(&self, partition: i32, offset: i64) {
        let stored = self.consumer.store_offset(self.topic.as_str(), partition, offset);
        if let Err(error) = stored {
            // The partition was revoked. Its next reader begins at the last commit.
            tracing::debug!(topic = %self.topic, partition, %error, "store an offset of a group");
        }
    }

    /// Watches the member, and returns when it has stopped reading one of its partitions, does not
    /// join its group, or knows no broker any more. Another member must take its place.
    pub fn stalled(
        &self,
        ends_client: &EndsClient,
    ) -> impl Future<Output = Stall> + Send + 'static {
        let progress = Arc::clone(&self.consumer.context().progress);
        let (ends_client, topic) = (ends_client.clone(), self.topic.clone());
        async move {
            let mut watch = StallWatch::default();
            loop {
                clock::sleep(PROBE_INTERVAL).await;
                if let Some(stall) = find_stall(&ends_client, &topic, &progress, &mut watch).await {
                    return stall;
                }
            }
        }
    }

    /// Leaves the group and commits: see [`end`].
    pub async fn leave(self) {
        let topic = self.topic.clone();
        end(self, "member of a group", &topic, LEAVE_DEADLINE).await;
    }
}

/// Asks for the ends of the member's partitions, and compares its places with them. Asks nothing
/// once two statistics in a row have named no broker.
async fn find_stall(
    ends_client: &EndsClient,
    topic: &TopicName,
    progress: &Progress,
    watch: &mut StallWatch,
) -> Option<Stall> {
    let lost = watch.see_brokers(&progress.places.lock());
    if lost.is_some() {
        return lost;
    }
    let partitions = progress.places.lock().fetching(progress.assignments.lock().keys());
    let answer = match ends_client.ask(topic, partitions).await {
        // Without the topic, the member gets a refusal.
        Ok(answer) if answer.partitions.is_some() => answer,
        Ok(_) | Err(_) => {
            watch.clear();
            return None;
        }
    };
    let (places, now) = (progress.places.lock(), clock::monotonic());
    let outside = watch.see_group(&places, now);
    watch.see(answer.ends.as_ref(), &places, now).or(outside)
}

fn is_refusal(error: &KafkaError) -> bool {
    matches!(
        error.rdkafka_error_code(),
        Some(
            Code::TopicAuthorizationFailed
                | Code::GroupAuthorizationFailed
                | Code::UnknownTopicOrPartition
                | Code::UnknownTopic
                | Code::InvalidGroupId
                | Code::InconsistentGroupProtocol
        )
    )
}

/// The partitions of a member, and how far it is.
#[derive(Debug, Default)]
struct Progress {
    assignments: Mutex<HashMap<i32, Assignment>>,
    /// The places of the client, from the statistics.
    places: Mutex<Places>,
}

/// The callbacks of a member.
struct GroupContext {
    topic: TopicName,
    progress: Arc<Progress>,
    count: AtomicU64,
    /// Set when librdkafka has lost track of a partition for good.
    is_stuck: AtomicBool,
}

impl ClientContext for GroupContext {
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
        // All partitions of a member share one queue, whose size each of them tells. Below its
        // limits, the client fetches from all of them.
        let should_fetch = |one: &Partition| {
            one.fetchq_cnt < QUEUED_RECORDS_MAX && one.fetchq_size < QUEUED_KB_MAX * 1000
        };
        *self.progress.places.lock() =
            Places::new(&statistics, &self.topic, clock::monotonic(), should_fetch);
    }
}

impl ConsumerContext for GroupContext {
    fn post_rebalance(&self, _consumer: &BaseConsumer<Self>, rebalance: &Rebalance<'_>) {
        let mut assignments = self.progress.assignments.lock();
        match rebalance {
            Rebalance::Assign(list) => {
                for element in list.elements() {
                    let number = self.count.fetch_add(1, Ordering::Relaxed);
                    let assignment = Assignment { number, since: clock::monotonic() };
                    assignments.insert(element.partition(), assignment);
                }
            }
            Rebalance::Revoke(list) => {
                for element in list.elements() {
                    assignments.remove(&element.partition());
                }
            }
            Rebalance::Error(_) => assignments.clear(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::domain::task::intake_record::tests::record;

    const ID: &str = "01934b2e-7d3c-8017-9f2b-6a1c0e4d5b7f";
    const ALL: [(&str, &str); 5] = [
        (TASK_ID, ID),
        (DUE_AT, "1700000000000"),
        (ATTEMPT, "2"),
        (ATTEMPTS_MAX, "5"),
        (TTR_MS, "30000"),
    ];

    #[test]
    fn a_record_with_all_headers_is_an_attempt_and_any_other_is_none() {
        let read = AttemptHeaders::of(&record(0, &ALL)).unwrap();
        assert_eq!((read.id.to_string().as_str(), read.number, read.number_max), (ID, 2, 5));
        assert_eq!(read.ttr, Duration::from_secs(30));
        assert_eq!(read.due_at, Timestamp::from_millis(1_700_000_000_000));
        for missing in 0..ALL.len() {
            let mut headers = ALL.to_vec();
            headers.remove(missing);
            assert_eq!(AttemptHeaders::of(&record(0, &headers)), None, "{missing}");
        }
        let mut dead = ALL.to_vec();
        dead.push((DEAD_REASON, "failed"));
        assert_eq!(AttemptHeaders::of(&record(0, &dead)), None);
        assert_eq!(AttemptHeaders::of(&IntakeRecord { headers: None, ..record(0, &ALL) }), None);
    }
}
