//! The words that pass between a node and its API.

use std::fmt;
use std::time::Duration;

use crate::domain::{
    Backlog, Cursor, NodeId, Record, Selection, Shard, TaskId, TaskName, TaskState, TaskView, Timestamp, TopicName,
};

/// A task as it was asked for: well-formed, but not yet held against the cluster's clock, the topic
/// and the bounds.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Draft {
    pub record: Record,
    pub name: Option<TaskName>,
    pub due: Due,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Due {
    At(Timestamp),
    After(Duration),
}

/// A task that is stored.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Accepted {
    pub id: TaskId,
    /// `Scheduled`, or `Claimed` when it was due within the window; of a known name, what the first
    /// task has come to.
    pub state: TaskState,
    /// False when the name was known: this is the first task.
    pub is_new: bool,
}

/// The answer to a replacement. A task that is there is scheduled.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Placed {
    /// The name was free, or its task was final.
    Created(TaskId),
    /// The task that the name stood for is cancelled, and this one is in its place.
    Replaced(TaskId),
    /// Nothing was changed: this is the task that can no longer be stopped.
    TooLate(Box<TaskView>),
    /// Nothing was changed: the precondition does not allow this, the task that the name stands
    /// for.
    Unmet(Option<TaskId>),
}

/// Why a draft was not stored. Nothing of it is stored unless it says so.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Refusal {
    UnknownTopic,
    /// Bytes of the record as Kafka counts it, and what the topic takes.
    TooLarge {
        size: usize,
        size_max: usize,
    },
    /// The topic is compacted: it takes no record without a key.
    NoKey,
    /// Further ahead than `--delay-max`.
    TooFar {
        delay_max: Duration,
    },
    /// A bound of this node is reached.
    Busy {
        bound: &'static str,
    },
    /// The values were refused by Postgres.
    BadValue {
        reason: String,
    },
    Draining,
    /// A server is away: nothing is stored.
    ServerAway {
        reason: String,
    },
    /// Postgres did not answer: whether the task is stored is unknown.
    Unknown {
        reason: String,
    },
}

impl Refusal {
    /// Each task that is submitted is answered; should one ever not be, it may be stored.
    pub fn lost() -> Self {
        Self::Unknown { reason: "the node lost the answer".to_owned() }
    }
}

/// The answer to a cancel.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Verdict {
    /// No record of the task exists, or ever will.
    Cancelled(TaskView),
    /// It was published, is on its way, or is a dead letter.
    TooLate(TaskView),
    /// A PUT by name has put another task in its place, which this did not cancel.
    Replaced(TaskView),
    /// Nothing was changed: the precondition does not allow this, the task that the name stands
    /// for.
    Unmet(TaskId),
    NotFound,
}

impl Verdict {
    /// What a cancel says of a task that it did not take out, by what a look-up says of it. `None`:
    /// it is being moved from one table to another.
    pub fn of_look(task: Option<TaskView>) -> Option<Self> {
        // Too late, cancelled before, or never there.
        let Some(task) = task else { return Some(Self::NotFound) };
        match task.state {
            TaskState::Cancelled if task.replaced_by.is_some() => Some(Self::Replaced(task)),
            TaskState::Cancelled => Some(Self::Cancelled(task)),
            TaskState::Claimed | TaskState::Published | TaskState::Dead => Some(Self::TooLate(task)),
            // It stands in a table again: it was being moved, or an earlier attempt may be in the
            // topic.
            TaskState::Scheduled if task.attempt > 1 => Some(Self::TooLate(task)),
            TaskState::Scheduled => None,
        }
    }
}

/// Why a call that submits nothing has no answer.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Unavailable {
    Busy {
        bound: &'static str,
    },
    ServerAway {
        reason: String,
    },
    /// A change whose answer was lost: it may have taken effect; repeat it.
    Unknown {
        reason: String,
    },
    Draining,
}

/// How many tasks are pending. With a topic, all of it is of that topic.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Counts {
    pub as_of: Timestamp,
    pub pending: Figure,
    /// The topics with most tasks first.
    pub topics: Vec<(TopicName, Figure)>,
    /// True when there are, or may be, topics with pending tasks beyond those.
    pub has_more_topics: bool,
    /// The 60 minutes from the current one on, by their starts. Of the current one, what is still
    /// to come.
    pub minutes: Vec<(Timestamp, Figure)>,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Figure {
    pub task_count: u64,
    /// Counted, not estimated.
    pub is_exact: bool,
}

/// Many tasks at once: of one topic, due in a range.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Bulk {
    pub topic: TopicName,
    pub due_from: Option<Timestamp>,
    pub due_to: Option<Timestamp>,
    /// Only say what would be done.
    pub is_dry_run: bool,
    /// Where an earlier call has ended.
    pub from: Option<Cursor>,
}

impl Bulk {
    /// A call does this many tasks at most.
    pub const TASKS_MAX: u64 = 10_000;

    pub fn selection(&self) -> Selection {
        Selection { topic: Some(self.topic.clone()), due_from: self.due_from, due_to: self.due_to }
    }
}

/// What was done to many tasks at once, or would be.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct BulkDone {
    pub task_count: u64,
    /// True when others are left, or may be: then the call is to be repeated.
    pub has_more: bool,
    /// Where there is more: up to here all was looked at, and the next call may begin there.
    pub searched_to: Option<Cursor>,
}

/// The cluster as this node sees it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ClusterView {
    /// The node that answers.
    pub node: NodeId,
    pub now: Option<Timestamp>,
    pub shard_count: u16,
    pub window: Duration,
    pub horizon: Duration,
    pub leaf: Duration,
    pub nodes: Vec<NodeView>,
    /// Tasks that are overdue and unclaimed, over all shards; counted up to a bound.
    pub backlog: Option<Backlog>,
    /// Topics that take no records of this node's; the longest first, at most
    /// [`UNAVAILABLE_SHOWN_MAX`].
    pub unavailable_topics: Vec<UnavailableTopic>,
    /// Brokers hold this node's records back by a quota.
    pub is_throttled: bool,
    /// What this node lacks to be ready.
    pub missing: Vec<NotReady>,
}

/// More are counted, not shown.
pub const UNAVAILABLE_SHOWN_MAX: usize = 100;

#[derive(Clone, PartialEq, Eq, Debug)]
pub struct UnavailableTopic {
    pub topic: TopicName,
    /// Kafka has denied it for so long that its tasks become dead letters.
    pub is_gone: bool,
    /// Probes do not end it, only an acknowledgement does.
    pub unavailable_for: Duration,
    /// Kafka's or its client's reason why the last record that failed did. Nothing: none has failed
    /// yet, they wait.
    pub reason: Option<String>,
}

#[derive(Clone, PartialEq, Eq, Debug)]
pub struct NodeView {
    pub id: NodeId,
    pub name: String,
    pub address: String,
    pub version: String,
    pub started_at: Timestamp,
    pub heartbeat_age: Duration,
    pub has_broker: bool,
    /// `assigned`, `joining`, `suspected`, `dead`, `left`.
    pub standing: &'static str,
    pub shards: Vec<Shard>,
}

/// A server that is missing, or a state that keeps the node from being ready.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct NotReady {
    pub what: Requirement,
    pub why: String,
}

/// All that a node may lack to be ready.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Requirement {
    Postgres,
    Kafka,
    /// Until it was seen once.
    Etcd,
    /// The cluster's clock is unknown, or was set back or far ahead within the last minute.
    Clock,
    /// None of this node's vouches for it: none was written for too long, or another node's must
    /// age first.
    Heartbeat,
    /// None succeeds.
    Claims,
    /// The node cannot look after its own.
    Batches,
    /// One that a caller's request needs cannot be opened.
    Connections,
    Draining,
}

impl Requirement {
    pub const ALL: [Self; 9] = [
        Self::Postgres,
        Self::Kafka,
        Self::Etcd,
        Self::Clock,
        Self::Heartbeat,
        Self::Claims,
        Self::Batches,
        Self::Connections,
        Self::Draining,
    ];

    /// As `/readyz`, the log and the metrics show it.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Postgres => "postgres",
            Self::Kafka => "kafka",
            Self::Etcd => "etcd",
            Self::Clock => "clock",
            Self::Heartbeat => "heartbeat",
            Self::Claims => "claims",
            Self::Batches => "batches",
            Self::Connections => "connections",
            Self::Draining => "draining",
        }
    }
}

impl fmt::Display for NotReady {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.what.name(), self.why)
    }
}
