//! The messages between a node and its API.

pub mod answers;
pub mod permitted;
mod refusal;

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use crate::access::Principal;
use crate::access::permit::{BulkPermit, CancelManyPermit, Right};
use crate::domain::schedule::timing::SpecificationError;
use crate::domain::schedule::{RevisionCondition, Schedule};
use crate::domain::topic::policy::{Pause, StoredTopic, TopicChanged};
use crate::domain::{
    Backlog, Choice, Cursor, Expiry, NodeId, PrincipalName, Record, ScheduleName, Selection, Shard,
    TaskId, TaskName, TaskState, TaskView, Timestamp, TopicName, Tracking,
};

pub use self::refusal::Refusal;

/// A task as requested: well-formed, but not yet checked against the cluster's clock, the topic and
/// the limits.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Draft {
    pub record: Record,
    pub name: Option<TaskName>,
    pub due: Due,
    /// Set for a tracked task.
    pub tracking: Option<Box<Tracking>>,
    /// Set for a task that is not to be published after some time.
    pub expiry: Option<Expiry>,
    /// Up to how much later than requested the task is due.
    pub spread: Option<Duration>,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Due {
    At(Timestamp),
    After(Duration),
}

impl Due {
    /// Returns the due time, or `limit` if that is earlier. A delay counts from `arrived_at`; while
    /// the time is not known, nothing is stored.
    pub fn not_after(self, limit: Timestamp, arrived_at: Option<Timestamp>) -> Self {
        match self {
            Self::At(at) => Self::At(at.min(limit)),
            Self::After(delay) => match arrived_at {
                Some(now) if now.plus(delay) > limit => Self::At(limit),
                _ => self,
            },
        }
    }
}

/// A task that is stored.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Accepted {
    pub id: TaskId,
    /// `Scheduled`, or `Claimed` when the task was due within the window. For a known name: the
    /// state of the first task.
    pub state: TaskState,
    /// False when the name was known: this is the first task.
    pub is_new: bool,
}

/// The answer to the submit of one task.
pub type SubmitAnswer = Result<Accepted, Refusal>;

/// The answer to a replacement. The new task is scheduled.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Placed {
    /// The name was free, or its task was final.
    Created(TaskId),
    /// The task of this name was cancelled, and the new one takes its place.
    Replaced(TaskId),
    /// Nothing was changed: the task can no longer be stopped.
    TooLate(Box<TaskView>),
    /// Nothing was changed: the precondition does not allow the current task of the name.
    Unmet(Option<TaskId>),
}

/// The answer to a cancel.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum CancelVerdict {
    /// No record of the task exists, or ever will.
    Cancelled(TaskView),
    /// The task was published, is on its way, or is a dead letter.
    TooLate(TaskView),
    /// A PUT by name has replaced the task by another one, which was not cancelled.
    Replaced(TaskView),
    /// Nothing was changed: the precondition does not allow the current task of the name.
    Unmet(TaskId),
    NotFound,
}

impl CancelVerdict {
    /// Returns the verdict on a task that the cancel did not remove. `None` while it is moved.
    pub fn of_read(task: Option<TaskView>) -> Option<Self> {
        // The task was too late, cancelled before, or never there.
        let Some(task) = task else { return Some(Self::NotFound) };
        match task.state {
            TaskState::Cancelled if task.replaced_by.is_some() => Some(Self::Replaced(task)),
            TaskState::Cancelled => Some(Self::Cancelled(task)),
            TaskState::Claimed
            | TaskState::Awaiting
            | TaskState::Retrying
            | TaskState::Published
            | TaskState::Finished
            | TaskState::Dead
            | TaskState::Expired => Some(Self::TooLate(task)),
            // The task is in a table again: it was being moved, or an earlier attempt may be in the
            // topic.
            TaskState::Scheduled if task.attempt > 1 => Some(Self::TooLate(task)),
            TaskState::Scheduled => None,
        }
    }
}

/// The answer to a move of a task to another due time.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum MoveVerdict {
    /// The task is due at the new time, under the same id.
    Moved(Box<TaskView>),
    /// The task is unchanged: it is on its way or has ended, or an attempt may be in the topic.
    TooLate(Box<TaskView>),
    /// The task is unchanged: a PUT by name has replaced it by another one.
    Replaced(Box<TaskView>),
    /// The task is unchanged: the precondition does not allow the current task of the name.
    Unmet(TaskId),
    NotFound,
}

impl MoveVerdict {
    /// Returns the verdict on a task that this move did not move. `None` while another does.
    pub fn of_read(task: Option<TaskView>) -> Option<Self> {
        Some(match CancelVerdict::of_read(task)? {
            CancelVerdict::Cancelled(task) | CancelVerdict::TooLate(task) => {
                Self::TooLate(Box::new(task))
            }
            CancelVerdict::Replaced(task) => Self::Replaced(Box::new(task)),
            CancelVerdict::Unmet(current) => Self::Unmet(current),
            CancelVerdict::NotFound => Self::NotFound,
        })
    }
}

/// The reason why a call that submits no task has no answer.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Unavailable {
    Busy {
        limit: &'static str,
    },
    ServerAway {
        reason: String,
    },
    /// The answer to a change was lost. The change may have taken effect: repeat it.
    Unknown {
        reason: String,
    },
    Draining,
    /// More names than [`Choice::PREFIXED_MAX`] begin with the prefix of the request.
    TooManyNames,
}

impl Unavailable {
    /// Replaces the reason, if there is one.
    #[must_use]
    pub fn with_reason(self, replace: impl FnOnce(String) -> String) -> Self {
        match self {
            Self::ServerAway { reason } => Self::ServerAway { reason: replace(reason) },
            Self::Unknown { reason } => Self::Unknown { reason: replace(reason) },
            other => other,
        }
    }
}

/// The number of pending tasks. With a topic, all figures are of that topic.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct PendingCounts {
    pub as_of: Timestamp,
    pub pending: Figure,
    /// The topics with the most tasks first.
    pub topics: Vec<(TopicName, Figure)>,
    /// True when more topics have, or may have, pending tasks.
    pub has_more_topics: bool,
    /// The 120 minutes from the current one on, by their starts. The current minute counts only
    /// tasks that are still to come.
    pub minutes: Vec<(Timestamp, Figure)>,
    /// The 30 days from today on, by their starts in UTC. Today counts only tasks to come.
    pub days: Vec<(Timestamp, Figure)>,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Figure {
    pub task_count: u64,
    /// The figure is counted, not estimated.
    pub is_exact: bool,
}

/// A selection of many tasks: of one topic, or of a submitter, due in a range. The caller may
/// change the tasks, or for a dry run count the tasks.
#[derive(Clone, Debug)]
pub struct BulkSelection {
    principal: Arc<Principal>,
    /// `None` for all topics.
    topic: Option<TopicName>,
    submitted_by: Option<PrincipalName>,
    /// Only report what would be done.
    pub is_dry_run: bool,
    pub due_from: Option<Timestamp>,
    pub due_to: Option<Timestamp>,
    choice: Option<Choice>,
    /// The end of an earlier call.
    pub from: Option<Cursor>,
}

/// The place of a page in its list.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct PageRange {
    /// The end of the previous page.
    pub from: Option<Cursor>,
    /// The most tasks of the page.
    pub limit: usize,
}

/// A range of due times, and a choice, for a call for many tasks.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct BulkRange {
    pub due_from: Option<Timestamp>,
    pub due_to: Option<Timestamp>,
    pub choice: Option<Choice>,
    /// The end of an earlier call.
    pub from: Option<Cursor>,
}

impl BulkSelection {
    /// The maximum number of tasks that one call changes.
    pub const TASKS_MAX: u64 = 10_000;

    pub fn new<R: Right>(permit: &BulkPermit<R>, range: BulkRange) -> Self {
        let BulkRange { due_from, due_to, choice, from } = range;
        Self {
            principal: Arc::clone(permit.principal()),
            topic: Some(permit.topic().clone()),
            submitted_by: None,
            is_dry_run: permit.is_dry_run(),
            due_from,
            due_to,
            choice,
            from,
        }
    }

    /// Selects tasks to cancel: those of the topic of the permit, of a submitter, or of both.
    pub fn to_cancel(
        permit: &CancelManyPermit,
        submitted_by: Option<PrincipalName>,
        range: BulkRange,
    ) -> Self {
        let BulkRange { due_from, due_to, choice, from } = range;
        Self {
            principal: Arc::clone(permit.principal()),
            topic: permit.grant().map(|grant| grant.topic().clone()),
            submitted_by,
            is_dry_run: permit.is_dry_run(),
            due_from,
            due_to,
            choice,
            from,
        }
    }

    /// Returns the topic, or `*` for all topics.
    pub fn topic_or_all(&self) -> &str {
        self.topic.as_ref().map_or("*", TopicName::as_str)
    }

    pub fn submitted_by(&self) -> Option<&PrincipalName> {
        self.submitted_by.as_ref()
    }

    /// Returns the caller who may make the change.
    pub fn principal(&self) -> &Arc<Principal> {
        &self.principal
    }

    pub fn selection(&self) -> Selection {
        Selection {
            topic: self.topic.clone(),
            due_from: self.due_from,
            due_to: self.due_to,
            submitted_by: self.submitted_by.clone(),
            state: None,
            choice: self.choice.clone(),
        }
    }
}

/// The new due times of many tasks.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Shift {
    Later(Duration),
    Earlier(Duration),
    To(Timestamp),
}

impl Shift {
    /// Returns the new due time of a task that is due at `due_at`.
    pub fn of(self, due_at: Timestamp) -> Timestamp {
        match self {
            Self::Later(by) => due_at.plus(by).ceil_millis(),
            Self::Earlier(by) => due_at.minus(by).ceil_millis(),
            Self::To(at) => at,
        }
    }
}

/// The result of a call for many tasks, or of its dry run.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct BulkDone {
    pub task_count: u64,
    /// True when other tasks are left, or may be. The caller must then repeat the call.
    pub has_more: bool,
    /// When there is more: the search has covered everything up to here, and the next call may
    /// begin here.
    pub searched_to: Option<Cursor>,
}

/// A schedule to store under its name.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct PutSchedule {
    pub schedule: Schedule,
    /// The condition on the revision of the schedule of this name.
    pub condition: RevisionCondition,
    /// Check everything, and store nothing.
    pub is_dry_run: bool,
}

/// A place in the list of the schedules of a topic.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ScheduleRange {
    /// The name after which the page begins.
    pub after: Option<ScheduleName>,
    pub limit: usize,
}

/// A range of the past whose runs are to be made.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Backfill {
    pub from: Timestamp,
    /// Exclusive.
    pub to: Timestamp,
    /// The time of the request, which decides how far the range reaches back.
    pub asked_at: Timestamp,
    /// The caller has given the length of the range, up to the time of the request.
    pub is_last: bool,
    /// Only count the runs.
    pub is_dry_run: bool,
}

/// The answer to a backfill.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum BackfillAnswer {
    Done(BackfillDone),
    NotFound,
    /// The range is refused.
    Refused(SpecificationError),
}

/// The runs of a range of the past.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct BackfillDone {
    /// The instants of the schedule in the range.
    pub runs: Vec<Timestamp>,
    /// The number of runs that were made, or that a dry run would make.
    pub made: u64,
    /// The number of runs that had been made before.
    pub known: u64,
}

/// The run that a caller has triggered: a task that is due now.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Triggered {
    pub id: TaskId,
    /// `None` when another task had the name of the run.
    pub name: Option<TaskName>,
    pub state: TaskState,
    pub schedule: Schedule,
}

/// A topic: its policy, and the tasks for it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct TopicView {
    pub stored: StoredTopic,
    /// The number of pending tasks. `None` where a sample has seen none of the topic.
    pub pending: Option<Figure>,
    /// The number of claimed tasks that are not settled. `None` in a list.
    pub in_flight: Option<u64>,
    /// Why this node cannot publish to the topic, if it cannot.
    pub unavailable: Option<UnavailableTopic>,
}

impl From<StoredTopic> for TopicView {
    fn from(stored: StoredTopic) -> Self {
        Self { stored, pending: None, in_flight: None, unavailable: None }
    }
}

/// A change of a topic, and the number of tasks claimed before the change.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ChangedTopic {
    pub changed: TopicChanged,
    pub in_flight: Option<u64>,
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
    /// Overdue tasks that are not claimed, over all shards. They are counted up to a limit.
    pub backlog: Option<Backlog>,
    /// Topics that take no records of this node. The longest unavailable one comes first, at most
    /// [`TOPICS_SHOWN_MAX`].
    pub unavailable_topics: Vec<UnavailableTopic>,
    /// Brokers delay this node's records because of a quota.
    pub is_throttled: bool,
    /// The topics that are paused. The pause that has lasted longest comes first, at most
    /// [`TOPICS_SHOWN_MAX`].
    pub paused_topics: Vec<(TopicName, Pause)>,
    /// The requirements that this node lacks to be ready.
    pub missing: Vec<NotReady>,
    /// What this node lacks, and goes on without: etcd, once it was reached.
    pub degraded: Vec<NotReady>,
}

/// Further topics are counted, but not shown.
pub const TOPICS_SHOWN_MAX: usize = 100;

#[derive(Clone, PartialEq, Eq, Debug)]
pub struct UnavailableTopic {
    pub topic: TopicName,
    /// Kafka has denied the topic for so long that its tasks become dead letters.
    pub is_gone: bool,
    /// Probes do not reset this time. Only an acknowledgement does.
    pub unavailable_for: Duration,
    /// The reason of the last failed record, from Kafka or its client. `None` when no record has
    /// failed yet and records only wait.
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

/// A missing server, or a state that keeps the node from being ready.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct NotReady {
    pub what: Requirement,
    pub why: String,
}

/// All requirements that a node may lack to be ready.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Requirement {
    Postgres,
    Kafka,
    /// etcd counts only until it was seen once.
    Etcd,
    /// The cluster's clock is unknown, or was set back or far ahead within the last minute.
    Clock,
    /// This node has no valid heartbeat, or another node's must age first.
    Heartbeat,
    /// No claim succeeds.
    Claims,
    /// The node cannot look after its own batches.
    Batches,
    /// A connection for requests cannot be opened.
    Connections,
    Keys,
    Draining,
}

impl Requirement {
    pub const ALL: [Self; 10] = [
        Self::Postgres,
        Self::Kafka,
        Self::Etcd,
        Self::Clock,
        Self::Heartbeat,
        Self::Claims,
        Self::Batches,
        Self::Connections,
        Self::Keys,
        Self::Draining,
    ];

    /// Returns the name as `/readyz`, the log and the metrics show it.
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
            Self::Keys => "keys",
            Self::Draining => "draining",
        }
    }
}

impl fmt::Display for NotReady {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.what.name(), self.why)
    }
}
