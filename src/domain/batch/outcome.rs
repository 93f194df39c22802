//! The outcome of a task of a batch.

use crate::domain::{TaskId, Timestamp};

/// The place of an appended record: its partition, its offset, and the time.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Receipt {
    pub partition: i32,
    pub offset: i64,
    /// The broker's append time on topics with LogAppendTime, otherwise the time of the
    /// acknowledgement, in milliseconds.
    pub published_at: Timestamp,
}

/// The outcome of one task of a batch. `cancelled` is not an outcome: a cancelled task is in no
/// batch, and has its own line in the execlog.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Outcome {
    Published(Receipt),
    /// An attempt of a tracked task was published. Unless its consumer has answered already, the
    /// row of the next attempt gets the id `next`.
    Attempted {
        receipt: Receipt,
        /// The upper bound of Postgres's clock at the acknowledgement. The consumer's time to run
        /// counts from here: Kafka's clock may be skewed.
        appended_at: Timestamp,
        next: TaskId,
    },
    /// Not published, as far as is known. A follow-up with the id `next` is due at `next.due_at()`.
    Deferred {
        next: TaskId,
        /// True if the record may be in the topic. False if it never left the producer, or the
        /// broker refused it.
        maybe_sent: bool,
    },
    /// Given up.
    Dead {
        reason: Box<str>,
        /// The place of the record in the dead topic, if the task has one.
        receipt: Option<Receipt>,
    },
    /// Not published before its expiry: no record of the task is in the topic, or will be.
    Expired {
        expires_at: Timestamp,
    },
}

/// The numbers in the column `outcomes`. They are stored, so never change one.
impl Outcome {
    pub const PUBLISHED: i16 = 1;
    pub const DEFERRED: i16 = 2;
    pub const DEAD: i16 = 3;
    pub const ATTEMPTED: i16 = 4;
    pub const EXPIRED: i16 = 5;
    /// An expired task in the column `outcome` of names, where 4 and 5 are a cancel and a finish.
    pub const EXPIRED_OF_NAME: i16 = 6;

    pub fn code(&self) -> i16 {
        match self {
            Self::Published(_) => Self::PUBLISHED,
            Self::Attempted { .. } => Self::ATTEMPTED,
            Self::Deferred { .. } => Self::DEFERRED,
            Self::Dead { .. } => Self::DEAD,
            Self::Expired { .. } => Self::EXPIRED,
        }
    }

    /// Returns the place of the record, if it was appended.
    pub fn receipt(&self) -> Option<Receipt> {
        match self {
            Self::Published(receipt) | Self::Attempted { receipt, .. } => Some(*receipt),
            Self::Dead { receipt, .. } => *receipt,
            Self::Deferred { .. } | Self::Expired { .. } => None,
        }
    }
}

/// The reason why a record was not acknowledged.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Failure {
    /// The record never left the producer, for a reason that has nothing to do with its topic.
    NotSent,
    /// No answer came. The record may be in the topic.
    Unknown,
    /// The broker refused the producer's batch with this record. The record may be valid, and can
    /// be sent alone.
    BatchRefused,
    /// The record is too large or malformed. The same record will be refused again.
    RefusedForGood,
    /// The topic or the partition does not accept records at the moment.
    Unavailable,
    /// This node is not allowed to write to the topic at the moment.
    Forbidden,
}
