//! Names of consumer groups.

use std::fmt;
use std::sync::Arc;

use thiserror::Error;

/// A consumer group of Kafka: 1 to 200 characters of `a-z A-Z 0-9 . _ -`. Kafka itself allows more,
/// and its tools read these everywhere. Cheap to clone.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ConsumerGroup(Arc<str>);

/// Bytes of a name.
const LENGTH_MAX: usize = 200;

#[derive(Debug, Error, PartialEq, Eq)]
pub enum ConsumerGroupError {
    #[error("the name of a group may not be empty")]
    Empty,
    #[error("the name of a group may have {LENGTH_MAX} characters at most, but this one has {0}")]
    TooLong(usize),
    #[error("the name of a group may have letters, digits, '.', '_' and '-', but not {0:?}")]
    Illegal(char),
}

impl ConsumerGroup {
    pub fn new(name: &str) -> Result<Self, ConsumerGroupError> {
        if name.is_empty() {
            return Err(ConsumerGroupError::Empty);
        }
        let is_legal = |c: &char| c.is_ascii_alphanumeric() || matches!(c, '.' | '_' | '-');
        if let Some(illegal) = name.chars().find(|c| !is_legal(c)) {
            return Err(ConsumerGroupError::Illegal(illegal));
        }
        if name.len() > LENGTH_MAX {
            return Err(ConsumerGroupError::TooLong(name.len()));
        }
        Ok(Self(name.into()))
    }

    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for ConsumerGroup {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl fmt::Debug for ConsumerGroup {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&self.0, f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_group_has_the_characters_of_a_topic() {
        let longest = "g".repeat(LENGTH_MAX);
        for name in ["g", "billing-workers.v2_A", &longest] {
            assert_eq!(ConsumerGroup::new(name).unwrap().as_str(), name);
        }
        let refused = |name: &str| ConsumerGroup::new(name).unwrap_err();
        assert_eq!(refused(""), ConsumerGroupError::Empty);
        assert_eq!(refused("a b"), ConsumerGroupError::Illegal(' '));
        assert_eq!(refused("ä"), ConsumerGroupError::Illegal('ä'));
        assert_eq!(refused(&"g".repeat(201)), ConsumerGroupError::TooLong(201));
    }
}
