//! What will stand in the topic.

use crate::domain::{Headers, TopicName};

/// A record as its submitter gave it; Punctual adds two headers when it publishes.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Record {
    pub topic: TopicName,
    pub key: Option<Box<[u8]>>,
    /// `None` is Kafka's null value: a tombstone.
    pub payload: Option<Box<[u8]>>,
    pub headers: Headers,
}

/// Upper bound in bytes of what a record adds to its key, payload and headers on the wire: the batch header (61), the record's own lengths (varints,
/// at most 40), and our two headers with their names and values (at most 80).
const OVERHEAD_MAX: usize = 192;

impl Record {
    /// What the record counts against a topic's `max.message.bytes`: an upper bound of its uncompressed size in bytes, ours included.
    pub fn size(&self) -> usize {
        OVERHEAD_MAX.saturating_add(self.bytes())
    }

    /// Bytes of key, payload and headers: what the record counts against the bounds on memory.
    pub fn bytes(&self) -> usize {
        let length = |bytes: &Option<Box<[u8]>>| bytes.as_ref().map_or(0, |bytes| bytes.len());
        length(&self.key).saturating_add(length(&self.payload)).saturating_add(self.headers.as_bytes().len())
    }
}
