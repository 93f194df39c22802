//! What became of a task of a batch.

use super::{TaskId, Timestamp};

/// Where a task went.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Receipt {
    pub partition: i32,
    pub offset: i64,
    /// The broker's append time on topics with LogAppendTime, else when the acknowledgement came. Milliseconds.
    pub published_at: Timestamp,
}

/// The outcome of one task of a batch. `cancelled` is a line of its own in the execlog: a cancelled task is in no batch.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Outcome {
    Published(Receipt),
    /// Not published, as far as is known: a follow-up with the id `next` is due at `next.due_at()`.
    Deferred {
        next: TaskId,
        /// True unless the record never left the producer, or the broker refused it: it may stand in the topic.
        maybe_sent: bool,
    },
    /// Refused for good, with the reason.
    Dead {
        reason: Box<str>,
    },
}

/// The column `outcomes` holds these numbers. They are stored: never change one.
impl Outcome {
    pub const PUBLISHED: i16 = 1;
    pub const DEFERRED: i16 = 2;
    pub const DEAD: i16 = 3;

    pub fn code(&self) -> i16 {
        match self {
            Self::Published(_) => Self::PUBLISHED,
            Self::Deferred { .. } => Self::DEFERRED,
            Self::Dead { .. } => Self::DEAD,
        }
    }
}

/// What is known of a record that was not acknowledged.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Failure {
    /// It never left the producer, for a reason that is not its topic's.
    NotSent,
    /// It may stand in the topic: no answer came.
    Unknown,
    /// The batch in which it travelled was refused, which says nothing of this record: it can be sent alone.
    BatchRefused,
    /// Too large or malformed: it will not pass when repeated as it is.
    RefusedForGood,
    /// Its topic or partition does not take records just now.
    Unavailable,
    /// This node may not write to its topic, just now.
    Forbidden,
}
