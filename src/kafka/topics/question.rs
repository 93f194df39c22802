//! A question about a topic, and its answer.

use tokio::sync::watch;

use crate::domain::{Monotonic, TopicName};
use crate::kafka::compression::TopicCompression;

/// What is known of a topic.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct TopicFacts {
    /// The topic's `max.message.bytes`; Kafka's default where we may not read it.
    pub record_bytes_max: usize,
    /// It is compacted, and refuses a record without a key.
    pub needs_key: bool,
    /// The topic's `compression.type`; Kafka's default where we may not read it.
    pub compression: TopicCompression,
}

/// Why nothing is known of a topic.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum LookUpError {
    #[error("Kafka has no such topic")]
    Unknown,
    #[error("not allowed to see the topic: {reason}")]
    Denied { reason: String },
    #[error("Kafka did not say whether there is such a topic: {reason}")]
    Unavailable { reason: String },
    #[error("too many topics are being looked up")]
    Busy,
}

pub type Answer = Result<TopicFacts, LookUpError>;

/// What the thread is asked to do.
#[derive(Debug)]
pub enum Request {
    LookUp {
        topic: TopicName,
        until: Monotonic,
        answer: watch::Sender<Option<Answer>>,
    },
    /// Look at the flags.
    Wake,
}
