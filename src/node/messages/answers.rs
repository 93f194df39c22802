//! The calls of consumers: for tasks, and their answers about tracked tasks with what became of
//! them.

use std::time::Duration;

use super::Due;
use super::permitted::TaskPermit;
use crate::access::permit::{Finish, Permit};
use crate::domain::task::feedback::Verdict;
use crate::domain::topic::callback::StoredCallback;
use crate::domain::topic::callback::policy::RefusedUrl;
use crate::domain::topic::group::ConsumerGroup;
use crate::domain::{PrincipalName, Record, TaskId, TaskName, TaskView, Timestamp, TopicName};

/// The task of a consumer's answer, with the proof of the right to answer.
#[derive(Clone, Debug)]
pub enum Target {
    Id(TaskPermit<Finish>),
    /// The task that has this name in the topic of the permit.
    Name(Permit<Finish>, TaskName),
}

impl Target {
    /// Returns the caller whose right was checked.
    pub fn principal(&self) -> &PrincipalName {
        match self {
            Self::Id(permit) => &permit.principal().name,
            Self::Name(permit, _name) => &permit.principal().name,
        }
    }

    /// Returns the topic for which the right was checked. `None`: the right is to every topic.
    pub fn topic(&self) -> Option<&TopicName> {
        match self {
            Self::Id(permit) => permit.topic(),
            Self::Name(permit, _name) => Some(permit.topic()),
        }
    }
}

/// The call of a consumer about a task.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum ConsumerCall {
    /// The work is done. An attempt need not be named, because done is done.
    Finish { attempt: Option<u16> },
    /// The attempt has failed.
    Fail {
        attempt: u16,
        /// When the next attempt is due, instead of the back-off of the task's retry policy.
        retry: Option<Due>,
        /// No further attempt: the task is dead.
        is_final: bool,
        /// At most [`REASON_MAX`](crate::domain::task::tracking::REASON_MAX) bytes.
        reason: Option<Box<str>>,
    },
    /// The work takes longer: the deadline is now + `by`, or now + the task's time to run.
    Extend { attempt: u16, by: Option<Duration> },
}

/// The result of a call.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Heard {
    /// The task is tracked. It is shown as it is after the call.
    Tracked(Verdict, Box<TaskView>),
    /// The task is untracked: it ends when it is published.
    NotTracked(Box<TaskView>),
    NotFound,
}

/// The call of a consumer that asks for tasks of a topic.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct PopCall {
    pub group: ConsumerGroup,
    /// The most tasks of the answer.
    pub count_max: usize,
    /// How long to wait for the first of them.
    pub wait: Duration,
}

/// An attempt of a tracked task whose record is in its topic.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Popped {
    pub id: TaskId,
    pub attempt: u16,
    pub attempts_max: u16,
    /// The requested due time of the task.
    pub due_at: Timestamp,
    /// The end of the consumer's time to run.
    pub finish_by: Timestamp,
    /// The whole time to run of an attempt that is not extended.
    pub ttr: Duration,
    pub partition: i32,
    pub offset: i64,
    /// The timestamp of the record.
    pub published_at: Timestamp,
    /// The record as it was submitted: without the headers of Punctual.
    pub record: Record,
}

/// The result of setting a callback.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum PutCallback {
    Stored(StoredCallback),
    /// The nodes do not call this URL.
    Refused(RefusedUrl),
    /// The cluster has as many callbacks as it can have.
    TooMany,
}
