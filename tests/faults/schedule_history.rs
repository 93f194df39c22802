//! The history of schedules: what was ordered, and the runs that were made.

use uuid::Uuid;

/// An order about a schedule that has taken effect between its first request and the last answer.
#[derive(Clone, Debug)]
pub struct Command {
    pub schedule: String,
    pub sent_at: i64,
    pub answered_at: i64,
    pub order: Order,
}

#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Order {
    /// Also ends a pause.
    Put(Put),
    Pause,
    Resume,
    /// With the task, unless there was no answer.
    Trigger(Option<Uuid>),
}

/// A schedule as it was put.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Put {
    /// The header `serial` of its runs.
    pub serial: u64,
    pub timing: Timing,
    /// No run while one before is not finished.
    pub skips: bool,
    pub payload_hash: u64,
}

/// The instants of a schedule: multiples of its period.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Timing {
    pub period_ms: i64,
    pub is_cron: bool,
}

/// The headers of the record of a run.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct RunHeaders {
    pub schedule: String,
    pub at: i64,
    /// `None` for a run that was triggered.
    pub number: Option<u64>,
    /// Instants right before this one that got no run.
    pub missed: i64,
}

/// A run that the table of runs has in the end.
#[derive(Clone, Debug)]
pub struct MadeRun {
    pub schedule: String,
    pub at: i64,
    pub id: Uuid,
}
