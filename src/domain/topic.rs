//! Names of Kafka topics, and their policies.

pub mod callback;
pub mod group;
pub mod policy;

use std::fmt;
use std::sync::Arc;

use az::WrappingAs as _;
use thiserror::Error;
use xxhash_rust::xxh3::xxh3_64;

/// A topic name that Kafka accepts: 1 to 249 characters of `a-z A-Z 0-9 . _ -`, and neither `.` nor
/// `..`. Cheap to clone.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TopicName(Arc<str>);

/// Kafka's limit: a file name of 255 bytes, minus the suffix for the partition.
const LENGTH_MAX: usize = 249;

const INTERNAL: [&str; 4] =
    ["__consumer_offsets", "__transaction_state", "__share_group_state", "__cluster_metadata"];

#[derive(Debug, Error, PartialEq, Eq)]
pub enum TopicNameError {
    #[error("a topic name may not be empty")]
    Empty,
    #[error("a topic name may have {LENGTH_MAX} characters at most, but this one has {0}")]
    TooLong(usize),
    #[error("a topic name may have letters, digits, '.', '_' and '-', but not {0:?}")]
    Illegal(char),
    #[error("'.' and '..' are not topic names")]
    Dots,
}

impl TopicName {
    pub fn new(name: &str) -> Result<Self, TopicNameError> {
        if name.is_empty() {
            return Err(TopicNameError::Empty);
        }
        if let Some(illegal) =
            name.chars().find(|c| !matches!(c, 'a'..='z' | 'A'..='Z' | '0'..='9' | '.' | '_' | '-'))
        {
            return Err(TopicNameError::Illegal(illegal));
        }
        if name.len() > LENGTH_MAX {
            return Err(TopicNameError::TooLong(name.len()));
        }
        if name == "." || name == ".." {
            return Err(TopicNameError::Dots);
        }
        Ok(Self(name.into()))
    }

    /// Wraps a name checked before it was stored.
    pub fn stored(name: &str) -> Self {
        Self(name.into())
    }

    /// Returns true for Kafka's internal topics, to which no client may write.
    pub fn is_internal(&self) -> bool {
        INTERNAL.contains(&self.as_str())
    }

    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Returns a number that spreads topics evenly. It is the same in every process.
    pub fn spread(&self) -> usize {
        xxh3_64(self.0.as_bytes()).wrapping_as::<usize>()
    }
}

impl fmt::Display for TopicName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl fmt::Debug for TopicName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_that_kafka_accepts_are_accepted() {
        for name in ["a", "orders.paid_v2-eu", &"x".repeat(249)] {
            assert_eq!(TopicName::new(name).map(|t| t.to_string()), Ok(name.to_owned()));
        }
    }

    #[test]
    fn topics_spread_evenly_and_always_alike() {
        let mut counts = [0; 4];
        for number in 0..1_000 {
            let topic = TopicName::new(&format!("orders-{number}")).unwrap();
            assert_eq!(topic.spread(), TopicName::stored(topic.as_str()).spread());
            counts[topic.spread() % counts.len()] += 1;
        }
        assert!(counts.iter().all(|count| (200..300).contains(count)), "{counts:?}");
    }

    #[test]
    fn names_that_kafka_refuses_are_refused() {
        assert_eq!(TopicName::new(""), Err(TopicNameError::Empty));
        assert_eq!(TopicName::new(&"x".repeat(250)), Err(TopicNameError::TooLong(250)));
        assert_eq!(TopicName::new(".."), Err(TopicNameError::Dots));
        assert_eq!(TopicName::new("a b"), Err(TopicNameError::Illegal(' ')));
        assert_eq!(TopicName::new("a\0"), Err(TopicNameError::Illegal('\0')));
        assert_eq!(TopicName::new("ä"), Err(TopicNameError::Illegal('ä')));
    }
}
