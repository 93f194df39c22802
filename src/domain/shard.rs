//! Shards: the fixed slices of the tasks that are assigned to nodes.

use std::fmt;

use thiserror::Error;
use xxhash_rust::xxh3::Xxh3;

/// One slice of the tasks; 0 to 4095, for a task id has 12 bits for it.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Shard(u16);

/// How many shards the cluster has: a power of two from 1 to 4096, fixed when the database is first migrated.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ShardCount(u16);

#[derive(Debug, Error, PartialEq, Eq)]
#[error("the number of shards is a power of two from 1 to 4096, not {0}")]
pub struct ShardCountError(u64);

impl Shard {
    /// # Panics
    /// Above 4095: the number comes from a task id or from [`ShardCount`], which both end there.
    pub const fn new(number: u16) -> Self {
        assert!(number < 4096, "a shard has 12 bits");
        Self(number)
    }

    pub const fn number(self) -> u16 {
        self.0
    }

    /// The number as the column `shard` (a `smallint`) holds it.
    pub fn as_smallint(self) -> i16 {
        i16::try_from(self.0).unwrap_or(i16::MAX)
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

    /// The shard of a task with a name or a key: XXH3-64 of the topic, a zero byte, and the name (else the key), modulo the number of shards. The same
    /// on every node and for ever: tasks that are already stored rely on it.
    pub fn shard_of(self, topic: &str, name_or_key: &[u8]) -> Shard {
        let mut hash = Xxh3::new();
        hash.update(topic.as_bytes());
        hash.update(&[0]);
        hash.update(name_or_key);
        self.pick(hash.digest())
    }

    /// The shard that a number (a hash, or a random number) falls on.
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
}
