//! The messages about schedules. What a schedule is, and the results of changes, are in
//! `domain/schedule.rs`.

use crate::domain::schedule::{Schedule, ScheduleCondition};
use crate::domain::{TaskId, TaskName, TaskState};

/// A schedule to store under its name.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct PutSchedule {
    pub schedule: Schedule,
    /// What the revision of the schedule of this name must be.
    pub condition: ScheduleCondition,
    /// Check everything, and store nothing.
    pub is_dry_run: bool,
}

/// A place in the list of the schedules of a topic.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ScheduleRange {
    /// The name after which the page begins.
    pub after: Option<crate::domain::ScheduleName>,
    pub limit: usize,
}

/// The run that a caller has triggered: a task that is due now.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Triggered {
    pub id: TaskId,
    pub name: TaskName,
    pub state: TaskState,
    pub schedule: Schedule,
}
