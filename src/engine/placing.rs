//! Where a new task goes.

use std::time::Duration;

use xxhash_rust::xxh3::xxh3_64;

use crate::domain::{Timestamp, TopicName};

/// A topic with a partition of this number is wide: its records go out by all lines to Kafka. Fewer partitions keep one line: there is nothing to be gained, and
/// each line more makes requests smaller.
pub const WIDE_FROM_PARTITION: i32 = 32;

/// The line to Kafka that takes the records of a topic, of so many; of a wide topic, those of one key. Always the same one, so that their order is kept.
///
/// # Panics
/// When there are no lines.
pub fn line_of(topic: &TopicName, key: Option<&[u8]>, line_count: usize) -> usize {
    assert!(line_count > 0, "records go out by a line");
    let hash = xxh3_64(topic.as_str().as_bytes()) ^ key.map_or(0, xxh3_64);
    usize::try_from(hash & 0xffff_ffff).unwrap_or(0) % line_count
}

/// Where a new task goes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Place {
    /// Due within the leaves.
    Near,
    /// Due beyond the last leaf.
    Far,
    /// Due within the window: straight into a batch of this node.
    Claimed,
}

/// What decides about the tasks of one group.
#[derive(Clone, Copy, Debug)]
pub struct Rule {
    /// What is due up to here is within the window.
    soon: Timestamp,
    /// Leaves are attached up to here.
    end: Timestamp,
}

impl Rule {
    pub fn new(now: Timestamp, window: Duration, end: Timestamp) -> Self {
        Self { soon: now.plus(window), end }
    }

    /// `may_claim`: whether this node has room and takes records of the task's topic; asked only of what is due within the window.
    pub fn place_of(&self, due_at: Timestamp, may_claim: impl FnOnce() -> bool) -> Place {
        if due_at <= self.soon && may_claim() { Place::Claimed } else { self.table_of(due_at) }
    }

    /// The table that a task belongs in when it is not claimed.
    pub fn table_of(&self, due_at: Timestamp) -> Place {
        if due_at < self.end { Place::Near } else { Place::Far }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn within_the_window_it_is_claimed_within_the_leaves_it_is_near_and_beyond_them_it_is_far() {
        let at = Timestamp::from_millis;
        let sorter = Rule::new(at(1_000), Duration::from_millis(200), at(5_000));
        let places = |may_claim| [0, 1_200, 1_201, 4_999, 5_000].map(|due_at| sorter.place_of(at(due_at), || may_claim));
        assert_eq!(places(true), [Place::Claimed, Place::Claimed, Place::Near, Place::Near, Place::Far]);
        assert_eq!(places(false), [Place::Near, Place::Near, Place::Near, Place::Near, Place::Far]);
    }

    #[test]
    fn a_topic_keeps_its_line_a_wide_one_has_all_and_a_key_keeps_its_own() {
        let topics: Vec<TopicName> = (0..1_000).map(|number| TopicName::stored(&format!("orders-{number}"))).collect();
        let mut counts = [0; 4];
        for topic in &topics {
            assert_eq!(line_of(topic, None, 4), line_of(topic, None, 4));
            counts[line_of(topic, None, 4)] += 1;
        }
        assert!(counts.iter().all(|count| (200..300).contains(count)), "{counts:?}");
        let mut counts = [0; 4];
        for key in 0_u32..1_000 {
            let key = key.to_be_bytes();
            assert_eq!(line_of(&topics[0], Some(&key), 4), line_of(&topics[0], Some(&key), 4));
            counts[line_of(&topics[0], Some(&key), 4)] += 1;
        }
        assert!(counts.iter().all(|count| (200..300).contains(count)), "{counts:?}");
        assert_eq!(line_of(&topics[0], Some(b"k"), 1), 0);
    }
}
