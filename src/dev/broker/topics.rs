//! The topics of the broker, in memory.

use std::collections::{BTreeMap, VecDeque};

use bytes::{Bytes, BytesMut};
use uuid::Uuid;

use super::records::{self, StoredBatch};
use crate::domain::Timestamp;

/// Bytes that a partition keeps. Beyond this limit, the oldest batches are forgotten.
pub const PARTITION_BYTES_MAX: usize = 16 << 20;
/// Partitions of all topics together.
pub const PARTITIONS_MAX: usize = 1_000;

#[derive(Debug, Default)]
pub struct Topics {
    topics: BTreeMap<String, Topic>,
}

#[derive(Debug)]
pub struct Topic {
    pub id: Uuid,
    pub partitions: Vec<Partition>,
}

/// The log of a partition.
#[derive(Debug, Default)]
pub struct Partition {
    batches: VecDeque<StoredBatch>,
    bytes: usize,
    /// The offset of the next record.
    end: i64,
}

/// The reason why a topic was not created.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum NotCreated {
    Exists,
    InvalidName,
    InvalidPartitions,
}

impl Topics {
    pub fn create(&mut self, name: &str, partition_count: usize) -> Result<&Topic, NotCreated> {
        let is_legal = |byte: u8| byte.is_ascii_alphanumeric() || b"._-".contains(&byte);
        if !(1..=249).contains(&name.len()) || !name.bytes().all(is_legal) {
            return Err(NotCreated::InvalidName);
        }
        let existing: usize = self.topics.values().map(|topic| topic.partitions.len()).sum();
        if partition_count == 0 || existing.saturating_add(partition_count) > PARTITIONS_MAX {
            return Err(NotCreated::InvalidPartitions);
        }
        if self.topics.contains_key(name) {
            return Err(NotCreated::Exists);
        }
        let partitions = std::iter::repeat_with(Partition::default).take(partition_count).collect();
        let topic = Topic { id: Uuid::from_u128(rand::random()), partitions };
        Ok(self.topics.entry(name.to_owned()).or_insert(topic))
    }

    pub fn delete(&mut self, name: &str) -> bool {
        self.topics.remove(name).is_some()
    }

    pub fn get(&self, name: &str) -> Option<&Topic> {
        self.topics.get(name)
    }

    pub fn iter(&self) -> impl Iterator<Item = (&str, &Topic)> {
        self.topics.iter().map(|(name, topic)| (name.as_str(), topic))
    }

    pub fn partition(&self, topic: &str, index: i32) -> Option<&Partition> {
        self.topics.get(topic)?.partitions.get(usize::try_from(index).ok()?)
    }

    pub fn partition_mut(&mut self, topic: &str, index: i32) -> Option<&mut Partition> {
        self.topics.get_mut(topic)?.partitions.get_mut(usize::try_from(index).ok()?)
    }
}

impl Partition {
    /// Returns the offset of the oldest record that is kept.
    pub fn start(&self) -> i64 {
        self.batches.front().map_or(self.end, |batch| batch.first)
    }

    /// Returns the offset of the next record.
    pub fn end(&self) -> i64 {
        self.end
    }

    /// Appends a batch that [`records::cut`] returned.
    pub fn append(&mut self, batch: &[u8], now: Timestamp) {
        let stored = records::store(batch, self.end, now);
        self.end = stored.last + 1;
        self.bytes += stored.bytes.len();
        self.batches.push_back(stored);
        while self.bytes > PARTITION_BYTES_MAX && self.batches.len() > 1 {
            if let Some(oldest) = self.batches.pop_front() {
                self.bytes -= oldest.bytes.len();
            }
        }
    }

    /// Returns batches from the one that holds `offset` on: at least one, if there is any, and
    /// otherwise at most `bytes_max` bytes.
    pub fn read(&self, offset: i64, bytes_max: usize) -> Bytes {
        let mut read = BytesMut::new();
        for batch in self.batches_from(offset) {
            if !read.is_empty() && read.len() + batch.bytes.len() > bytes_max {
                break;
            }
            read.extend_from_slice(&batch.bytes);
        }
        read.freeze()
    }

    pub fn batches_from(&self, offset: i64) -> impl Iterator<Item = &StoredBatch> {
        let first = self.batches.partition_point(|batch| batch.last < offset);
        self.batches.range(first..)
    }

    /// Returns the first batch that was appended at `at` or later.
    pub fn first_since(&self, at: Timestamp) -> Option<&StoredBatch> {
        self.batches.iter().find(|batch| batch.appended_at >= at)
    }

    pub fn last(&self) -> Option<&StoredBatch> {
        self.batches.back()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_topic_is_created_once_and_within_the_limits() {
        let mut topics = Topics::default();
        assert_eq!(topics.create("demo", 4).unwrap().partitions.len(), 4);
        assert_eq!(topics.create("demo", 4).unwrap_err(), NotCreated::Exists);
        assert_eq!(topics.create("a b", 4).unwrap_err(), NotCreated::InvalidName);
        for count in [0, PARTITIONS_MAX - 3] {
            assert_eq!(topics.create("more", count).unwrap_err(), NotCreated::InvalidPartitions);
        }
        assert!(topics.partition("demo", 3).is_some() && topics.partition("demo", 4).is_none());
        assert!(topics.partition("demo", -1).is_none());
        assert!(topics.delete("demo") && !topics.delete("demo"));
    }

    #[test]
    fn a_partition_forgets_its_oldest_batches_at_its_limit() {
        let mut partition = Partition::default();
        let batch = vec![0; PARTITION_BYTES_MAX / 4];
        for count in 1..=6 {
            partition.append(&batch, Timestamp::from_millis(count));
            assert_eq!((partition.start(), partition.end()), ((count - 4).max(0), count));
        }
        assert_eq!(partition.read(2, 1).len(), batch.len());
        assert_eq!(partition.read(2, batch.len() * 2).len(), batch.len() * 2);
        assert_eq!(partition.read(6, usize::MAX).len(), 0);
        let since = |millis| partition.first_since(Timestamp::from_millis(millis));
        assert_eq!(since(5).map(|batch| batch.first), Some(4));
        assert!(since(7).is_none());
    }
}
