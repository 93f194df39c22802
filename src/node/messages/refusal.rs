//! The reasons why a task is not stored.

use std::borrow::Cow;
use std::time::Duration;

use crate::domain::Timestamp;

/// The reason why a draft was not stored. Nothing of it is stored unless the variant says so.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Refusal {
    UnknownTopic,
    /// The size of the record as Kafka counts it, and the limit of the topic, in bytes.
    TooLarge {
        size: usize,
        size_max: usize,
    },
    /// The topic is compacted: it takes no record without a key.
    NoKey,
    /// The dead topic of the task is refused, for the reason inside.
    OfDeadTopic(Box<Self>),
    /// The due time is further ahead than `delay_max`: `--delay-max`, or that of the topic's
    /// policy. For the first run of a schedule, it is 36,500 days.
    TooFar {
        delay_max: Duration,
    },
    /// The task would expire when it is due, or before.
    ExpiresTooEarly {
        due_at: Timestamp,
    },
    /// The task has an expiry, and `node_count` nodes are of a version that does not know expiries.
    NodesWithoutExpiry {
        node_count: usize,
    },
    /// The topic has as many pending tasks as its policy allows.
    TooManyPending {
        task_count: u64,
        pending_max: u64,
    },
    /// The task is tracked, and `node_count` nodes are of a version that does not know tracked
    /// tasks.
    NodesWithoutTracking {
        node_count: usize,
    },
    /// A limit of this node is reached.
    Busy {
        limit: &'static str,
    },
    /// Postgres refused the values.
    BadValue {
        reason: String,
    },
    Draining,
    /// Kafka does not let this node see the topic. It says this of topics that do not exist, too.
    TopicDenied {
        reason: String,
    },
    /// A server is away. Nothing is stored.
    ServerAway {
        reason: String,
    },
    /// Postgres did not answer. The task may or may not be stored.
    Unknown {
        reason: Cow<'static, str>,
    },
}

impl Refusal {
    /// Replaces the reason of a server, if there is one.
    #[must_use]
    pub fn with_reason(self, replace: impl FnOnce(String) -> String) -> Self {
        match self {
            Self::TopicDenied { reason } => Self::TopicDenied { reason: replace(reason) },
            Self::ServerAway { reason } => Self::ServerAway { reason: replace(reason) },
            Self::Unknown { reason } => {
                Self::Unknown { reason: replace(reason.into_owned()).into() }
            }
            Self::BadValue { reason } => Self::BadValue { reason: replace(reason) },
            other => other,
        }
    }
}
