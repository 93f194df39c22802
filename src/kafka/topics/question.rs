//! A question about a topic, and its answer.

use tokio::sync::watch;

use crate::domain::{Monotonic, TopicName};
use crate::kafka::compression::TopicCompression;

/// The facts about a topic.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct TopicFacts {
    /// The topic's `max.message.bytes`, or Kafka's default where the node may not read it.
    pub record_bytes_max: usize,
    /// The topic is compacted, and refuses a record without a key.
    pub needs_key: bool,
    /// The topic's `compression.type`, or Kafka's default where the node may not read it.
    pub compression: TopicCompression,
}

/// The reason why the facts about a topic are unknown.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum LookUpError {
    #[error("Kafka has no such topic")]
    Unknown,
    #[error("this node may not see the topic: {reason}")]
    Denied { reason: String },
    #[error("Kafka did not say whether the topic exists: {reason}")]
    Unavailable { reason: String },
    #[error("too many topics are being looked up; retry")]
    Busy,
}

pub type TopicAnswer = Result<TopicFacts, LookUpError>;

/// A request to the thread.
#[derive(Debug)]
pub enum TopicRequest {
    LookUp {
        topic: TopicName,
        until: Monotonic,
        answer: watch::Sender<Option<TopicAnswer>>,
    },
    /// Check the flags.
    Wake,
}
