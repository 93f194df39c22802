//! Names of consumer groups.

use std::fmt;
use std::sync::Arc;

use thiserror::Error;

use super::TopicName;

/// A consumer group of Kafka: 1 to 200 characters of `a-z A-Z 0-9 . _ -`. Kafka itself allows more,
/// and its tools read these everywhere. Cheap to clone.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ConsumerGroup(Arc<str>);

/// Bytes of a name.
const LENGTH_MAX: usize = 200;
/// The names of the groups of callbacks begin so.
const CALLBACK_PREFIX: &str = "punctual.callback.";

#[derive(Debug, Error, PartialEq, Eq)]
pub enum ConsumerGroupError {
    #[error("the name of a group may not be empty")]
    Empty,
    #[error("the name of a group may have {LENGTH_MAX} characters at most, but this one has {0}")]
    TooLong(usize),
    #[error("the name of a group may have letters, digits, '.', '_' and '-', but not {0:?}")]
    Illegal(char),
    #[error("names that begin with {CALLBACK_PREFIX} are for callbacks")]
    OfCallbacks,
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
        if name.starts_with(CALLBACK_PREFIX) {
            return Err(ConsumerGroupError::OfCallbacks);
        }
        Ok(Self(name.into()))
    }

    /// Returns the group of the callback of a topic. It may be longer than other names.
    pub fn of_callback(topic: &TopicName) -> Self {
        Self(format!("{CALLBACK_PREFIX}{topic}").into())
    }

    /// Returns true for a group of a callback. Callers cannot be members of it.
    pub fn is_of_callback(&self) -> bool {
        self.0.starts_with(CALLBACK_PREFIX)
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
        let of_callback = ConsumerGroup::of_callback(&TopicName::stored("orders"));
        assert_eq!(refused(of_callback.as_str()), ConsumerGroupError::OfCallbacks);
        assert!(of_callback.is_of_callback());
    }
}
