//! The calls of consumers, and what became of them.

use std::time::Duration;

use crate::domain::task::feedback::{Call, Verdict};
use crate::domain::{PrincipalId, Sent, TaskId, TaskView, Timestamp, TopicName, TrackedRow};

/// The call of a consumer about one task.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct AnswerCall {
    pub first: TaskId,
    /// The topic on which the caller has the right. The task of another topic is not found. `None`:
    /// any topic.
    pub topic: Option<TopicName>,
    pub call: Call,
    /// When the next attempt after a failure is due. `None`: the back-off of the task decides.
    pub retry_at: Option<Timestamp>,
    /// How much longer an extended attempt takes from now on. `None`: the time to run.
    pub by: Option<Duration>,
    pub reason: Option<Box<str>>,
    /// The caller.
    pub principal: Option<PrincipalId>,
}

impl AnswerCall {
    /// Returns true when the call may change tasks of `topic`.
    pub fn is_for(&self, topic: &str) -> bool {
        self.topic.as_ref().is_none_or(|wanted| wanted.as_str() == topic)
    }
}

/// The result of a call about a task that was found.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Answered {
    pub verdict: Verdict,
    /// The task after the call. `None` when nothing has changed: a look-up tells.
    pub view: Option<Box<TaskView>>,
    /// The id of the new row, if it is in `task`.
    pub row: Option<TaskId>,
    /// The time from the append of the attempt that is finished.
    pub ran_for: Option<Duration>,
}

/// The facts that a call does not have in the database.
#[derive(Clone, Copy, Debug)]
pub struct AnswerTerms {
    /// An upper bound of Postgres's clock.
    pub now: Timestamp,
    /// Leaves are attached up to here.
    pub leaves_end: Timestamp,
    pub window: Duration,
}

/// A pending row, or a task of an unsettled batch.
pub(super) struct FoundRow {
    pub(super) id: TaskId,
    pub(super) first: TaskId,
    pub(super) topic: String,
    pub(super) name: Option<String>,
    pub(super) tracking: TrackedRow,
    pub(super) submitted: (Option<i16>, Option<i64>),
    /// The due time that the task was moved to, in ms since the epoch.
    pub(super) moved_to: Option<i64>,
    /// Key, payload and headers of a row that was taken.
    pub(super) record: [Option<Vec<u8>>; 3],
}

impl FoundRow {
    /// Returns what is known of the record of the answered attempt. A row that is this same attempt
    /// once more has the record of the attempt before.
    pub(super) fn sent(&self, is_again: bool) -> Option<Sent> {
        self.tracking.sent.filter(|_sent| !is_again)
    }
}
