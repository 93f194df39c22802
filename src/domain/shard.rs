//! Shards: the fixed slices of the tasks assigned to nodes.

use std::fmt;

use az::SaturatingAs as _;
use thiserror::Error;
use xxhash_rust::xxh3::Xxh3;

/// A slice of the tasks, 0 to 4095: a task id has 12 bits for its shard.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Shard(u16);

/// The number of shards in the cluster: a power of two from 1 to 4096, fixed by the first migration
/// of the database.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ShardCount(u16);

#[derive(Debug, Error, PartialEq, Eq)]
#[error("the number of shards must be a power of two from 1 to 4096, not {0}")]
pub struct ShardCountError(u64);

impl Shard {
    /// Creates the shard with this number.
    ///
    /// # Panics
    /// Above 4095. The number comes from a task id or from [`ShardCount`], and neither goes beyond
    /// that.
    pub const fn new(number: u16) -> Self {
        assert!(number < 4096, "a shard has 12 bits");
        Self(number)
    }

    pub const fn number(self) -> u16 {
        self.0
    }

    /// Returns the number as the column `shard` (a `smallint`) holds it.
    pub fn as_smallint(self) -> i16 {
        self.0.saturating_as::<i16>()
    }
}

impl fmt::Debug for Shard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.0)
    }
}

impl ShardCount {
    pub const DEFAULT: Self = Self(64);

    pub fn new(count: u64) -> Result<Self, ShardCountError> {
        match u16::try_from(count) {
            Ok(small) if small.is_power_of_two() && small <= 4096 => Ok(Self(small)),
            _ => Err(ShardCountError(count)),
        }
    }

    pub const fn get(self) -> u16 {
        self.0
    }

    pub fn all(self) -> impl Iterator<Item = Shard> {
        (0..self.0).map(Shard)
    }

    /// Returns the shard of a task with a key or a name, and the place of the key within the shard.
    /// Both come from the XXH3-64 hash of the topic, a zero byte, and the key (else the name). The
    /// shard is the hash modulo the number of shards, and the place is the upper six bits of the
    /// hash. So many keys are spread evenly in a shard, and the tasks of one key lie together.
    pub fn slot_of(self, topic: &str, key_or_name: &[u8]) -> (Shard, u8) {
        let mut hash = Xxh3::new();
        hash.update(topic.as_bytes());
        hash.update(&[0]);
        hash.update(key_or_name);
        let digest = hash.digest();
        (self.pick(digest), digest.to_be_bytes()[0] >> 2)
    }

    /// Returns the shard whose owner drains the outbox of this name.
    pub fn shard_of_outbox(self, name: &str) -> Shard {
        self.slot_of("outbox", name.as_bytes()).0
    }

    /// Returns the shard for a number (a hash, or a random number).
    pub fn pick(self, number: u64) -> Shard {
        Shard(u16::try_from(number % u64::from(self.0)).unwrap_or(0))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_powers_of_two_up_to_4096_are_counts() {
        for count in [1_u64, 2, 64, 4096] {
            assert!(ShardCount::new(count).is_ok());
        }
        for count in [0_u64, 3, 63, 8192, 65_536, u64::MAX] {
            assert_eq!(ShardCount::new(count), Err(ShardCountError(count)));
        }
    }

    #[test]
    fn a_key_has_the_same_shard_and_place_on_every_node_and_for_ever() {
        let keys = [
            "",
            "a",
            "b",
            "order-17",
            "order-18",
            "clé",
            "x y",
            "0",
            "\0",
            "longer than 64 bytes, which XXH3 hashes in another way: order-17/reminder",
        ];
        let slots = keys.map(|key| ShardCount::DEFAULT.slot_of("orders", key.as_bytes()));
        let slots = slots.map(|(shard, place)| (shard.number(), place));
        let pinned = [
            (8, 39),
            (5, 4),
            (15, 36),
            (4, 13),
            (1, 9),
            (26, 45),
            (9, 4),
            (5, 17),
            (33, 13),
            (20, 42),
        ];
        assert_eq!(slots, pinned);
    }

    #[test]
    fn the_places_of_many_keys_lie_evenly_in_a_shard() {
        let mut counts = [0_u32; 64];
        for number in 0..64_000 {
            let (shard, place) =
                ShardCount::DEFAULT.slot_of("orders", format!("key {number}").as_bytes());
            counts[usize::from(place)] += u32::from(shard.number() % 4 == 0);
        }
        assert!(counts.iter().all(|count| (170..330).contains(count)), "{counts:?}");
    }
}
