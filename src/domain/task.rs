//! Tasks as they are submitted, and the views of their state.

pub mod expiry;
pub mod feedback;
pub mod headers;
pub mod intake_record;
pub mod name;
pub mod outbox_row;
pub mod precondition;
pub mod retry_policy;
pub mod seal_mark;
pub mod spread;
pub mod submit_order;
pub mod tracking;

use self::submit_order::ORDER_BITS;
use self::tracking::Tracking;
use super::{
    Headers, PrincipalId, PrincipalName, Receipt, ShardCount, SubmitOrder, TaskId, TaskName,
    Timestamp, TopicName,
};

/// A record as submitted. Punctual adds its own headers when it publishes (`kafka/producer.rs`).
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Record {
    pub topic: TopicName,
    pub key: Option<Box<[u8]>>,
    /// `None` is Kafka's null value: a tombstone.
    pub payload: Option<Box<[u8]>>,
    pub headers: Headers,
}

/// Maximum number of bytes that a record adds to its key, payload and headers on the wire: the
/// batch header (61), the record's own lengths (varints, at most 40), and the two headers of
/// Punctual that every record has, with their names and values (at most 80).
const OVERHEAD_MAX: usize = 192;

impl Record {
    /// Returns the size that counts against a topic's `max.message.bytes`. The size is an upper
    /// limit of the uncompressed record in bytes, with Punctual's headers.
    pub fn size(&self) -> usize {
        OVERHEAD_MAX.saturating_add(self.bytes())
    }

    /// Returns the bytes of key, payload and headers. They count against the memory limits.
    pub fn bytes(&self) -> usize {
        let length = |bytes: &Option<Box<[u8]>>| bytes.as_ref().map_or(0, |bytes| bytes.len());
        length(&self.key)
            .saturating_add(length(&self.payload))
            .saturating_add(self.headers.as_bytes().len())
    }
}

/// A task that was validated and has its id, but is not stored yet.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct NewTask {
    pub id: TaskId,
    pub name: Option<TaskName>,
    pub record: Record,
    /// `None` for an anonymous caller.
    pub submitted_by: Option<PrincipalId>,
    /// `None` for an untracked task: it ends when it is published.
    pub tracking: Option<Box<Tracking>>,
}

impl NewTask {
    /// Creates a task that is due at `due_at`. Its shard comes from the key, else from the name,
    /// else from `random`. Its place in the order of the submits is set when the task is stored.
    pub fn new(
        record: Record,
        name: Option<TaskName>,
        due_at: Timestamp,
        shards: ShardCount,
        random: (u64, u64),
    ) -> Self {
        let topic = record.topic.as_str();
        let id = match (&record.key, &name) {
            (Some(key), _) => {
                let (shard, place) = shards.slot_of(topic, key);
                TaskId::new(
                    due_at,
                    shard,
                    (u64::from(place) << ORDER_BITS) | (random.1 & ((1 << ORDER_BITS) - 1)),
                )
            }
            (None, Some(name)) => {
                TaskId::new(due_at, shards.slot_of(topic, name.as_str().as_bytes()).0, random.1)
            }
            (None, None) => TaskId::new(due_at, shards.pick(random.0), random.1),
        };
        Self { id, name, record, submitted_by: None, tracking: None }
    }

    /// Puts the task behind all tasks that were submitted before on this node. Of tasks with the
    /// same key and due time, it is published after them. The order of tasks without a key is
    /// random.
    pub fn put_behind_earlier(&mut self, order: &SubmitOrder, now: Timestamp, random: (u64, u64)) {
        self.id = match self.record.key {
            Some(_) => self.id.with_position(order.next(now, self.id.due_at(), random.0), random.1),
            None => self.id.drawn_again(random.1),
        };
    }

    /// Returns the bytes that the task takes in memory and in a statement.
    pub fn bytes(&self) -> usize {
        self.record.bytes().saturating_add(self.name.as_ref().map_or(0, |name| name.as_str().len()))
    }
}

/// The state of a task.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum TaskState {
    Scheduled,
    Claimed,
    /// An attempt is with its consumer.
    Awaiting,
    /// An attempt has failed, and the next one has a due time.
    Retrying,
    Published,
    /// Finished by its consumer.
    Finished,
    Cancelled,
    Dead,
    /// Not published before its expiry.
    Expired,
}

impl TaskState {
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Scheduled => "scheduled",
            Self::Claimed => "claimed",
            Self::Awaiting => "awaiting",
            Self::Retrying => "retrying",
            Self::Published => "published",
            Self::Finished => "finished",
            Self::Cancelled => "cancelled",
            Self::Dead => "dead",
            Self::Expired => "expired",
        }
    }
}

/// Everything that is known about a task.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct TaskView {
    /// The first id, which the submitter knows.
    pub id: TaskId,
    pub topic: TopicName,
    pub name: Option<String>,
    pub state: TaskState,
    /// For a cancelled task that a PUT replaced: the last task in its chain of replacements.
    pub replaced_by: Option<TaskId>,
    pub attempt: i16,
    pub receipt: Option<Receipt>,
    /// Key, payload and headers. `None` when they are no longer kept.
    pub kept: Option<Kept>,
    /// The reason why the task is dead.
    pub reason: Option<String>,
    /// The time at which the task became dead.
    pub died_at: Option<Timestamp>,
    /// The due time that a caller has moved the task to.
    pub moved_to: Option<Timestamp>,
    /// The due time that was asked for, when the spread of the topic has made the task due later.
    pub requested_due_at: Option<Timestamp>,
    /// The time from which the task is not published any more. `None` also when it is no longer
    /// known, because the record is not kept any more.
    pub expires_at: Option<Timestamp>,
    pub actors: Actors,
    /// `None` for an untracked task.
    pub tracked: Option<Box<TrackedView>>,
}

impl TaskView {
    /// Returns the due time: the one that the task was moved to, else that of its id.
    pub fn due_at(&self) -> Timestamp {
        self.moved_to.unwrap_or_else(|| self.id.due_at())
    }

    /// Drops payload and headers, which may be large, for an answer with many tasks.
    pub fn forget_payload(&mut self) {
        if let Some(kept) = &mut self.kept {
            (kept.payload, kept.headers) = (None, Vec::new());
        }
    }

    /// Returns true while the task has not ended.
    pub fn is_pending(&self) -> bool {
        matches!(
            self.state,
            TaskState::Scheduled | TaskState::Claimed | TaskState::Awaiting | TaskState::Retrying
        )
    }

    /// Returns true for a finished task of which a record may still reach the topic.
    pub fn is_in_flight(&self) -> bool {
        let finished = self.tracked.as_ref().and_then(|tracked| tracked.finished.as_ref());
        finished.is_some_and(|finished| finished.in_flight)
    }
}

/// The attempts of a tracked task, as far as they are known.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct TrackedView {
    pub tracking: Tracking,
    /// The last attempt that was published or perhaps sent. 0: none.
    pub attempt: u16,
    /// The number of the last attempt that there can be. It grows with each redrive.
    pub attempts_max: u16,
    /// The end of the consumer's time to run, while the task awaits its consumer.
    pub finish_by: Option<Timestamp>,
    /// The due time of the next attempt after a failed one.
    pub next_at: Option<Timestamp>,
    pub finished: Option<Finished>,
    /// The attempts and the answers to them, the oldest first, for as long as receipts are kept.
    /// Only the look-up of one task has them.
    pub attempts: Vec<AttemptLine>,
}

impl TrackedView {
    /// Corrects the view of a dead letter whose last attempt was `attempt`. Its column is that of
    /// the row after a redrive, which grants as many attempts again.
    pub fn set_dead_after(&mut self, attempt: u16) {
        let granted = self.tracking.retry.attempts_max();
        self.attempt = attempt;
        self.attempts_max = self.attempts_max.saturating_sub(granted).max(granted);
    }
}

/// How a task was finished.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Finished {
    pub at: Timestamp,
    /// `None` for an anonymous caller.
    pub by: Option<PrincipalName>,
    /// An attempt had been claimed before, and may have reached the topic after the answer.
    pub in_flight: bool,
}

/// An attempt that was published, or an answer to one.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct AttemptLine {
    pub attempt: u16,
    pub event: AttemptEvent,
    pub at: Timestamp,
    /// The place of a published record.
    pub receipt: Option<Receipt>,
    /// The consumer's reason for a failure.
    pub reason: Option<String>,
}

/// The numbers are stored in `execlog_attempt`, so never change one.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum AttemptEvent {
    Published,
    Finished,
    Failed,
    Extended,
}

impl AttemptEvent {
    pub const fn code(self) -> i16 {
        match self {
            Self::Published => 1,
            Self::Finished => 2,
            Self::Failed => 3,
            Self::Extended => 4,
        }
    }

    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Published => "published",
            Self::Finished => "finished",
            Self::Failed => "failed",
            Self::Extended => "extended",
        }
    }

    pub const fn of_code(code: i16) -> Option<Self> {
        match code {
            1 => Some(Self::Published),
            2 => Some(Self::Finished),
            3 => Some(Self::Failed),
            4 => Some(Self::Extended),
            _ => None,
        }
    }
}

/// The callers who submitted and ended a task. Anonymous callers are not stored.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Actors {
    pub submitted: Option<Submitted>,
    pub cancelled_by: Option<PrincipalName>,
    /// Set for a dead letter that was dropped.
    pub dropped: Option<Dropped>,
}

#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Submitted {
    pub by: PrincipalName,
    /// When Postgres stored the task.
    pub at: Timestamp,
}

#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Dropped {
    pub by: Option<PrincipalName>,
    pub at: Timestamp,
}

#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Kept {
    pub key: Option<Vec<u8>>,
    pub payload: Option<Vec<u8>>,
    /// Encoded headers, see [`headers::decode`].
    pub headers: Vec<u8>,
}

/// The tasks that are due and in no batch.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Backlog {
    /// Number of tasks in leaves and in the far table. In each, the count stops at a limit.
    pub task_count: u64,
    /// False when there are more tasks than were counted.
    pub is_exact: bool,
    pub oldest_due_at: Option<Timestamp>,
}
