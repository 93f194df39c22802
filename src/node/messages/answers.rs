//! The answers of consumers about tracked tasks, and what became of them.

use std::time::Duration;

use super::Due;
use super::permitted::TaskPermit;
use crate::access::permit::{Finish, Permit};
use crate::domain::task::feedback::Verdict;
use crate::domain::{PrincipalName, TaskName, TaskView};

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
