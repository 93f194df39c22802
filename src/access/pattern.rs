//! Patterns of topic names in the auth file.

use std::fmt;

use thiserror::Error;

use crate::domain::TopicName;

/// A pattern of topic names: one name, `prefix*`, or `*`. Bytes are compared, so case matters.
///
/// `*` and prefixes allow nothing on topics whose names begin with `_`, such as `_schemas`: such
/// a name must be written out. A pattern that denies has no such exception.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Pattern {
    Exact(TopicName),
    /// The part before the `*`. It is not empty.
    Prefix(Box<str>),
    All,
}

#[derive(Debug, Error, PartialEq, Eq)]
pub enum PatternError {
    #[error("`{0}` has a `*` that is not its last character")]
    Star(String),
    #[error("`{0}` matches no topic: {1}")]
    Illegal(String, String),
    #[error("`{0}` matches no topic: internal topics of Kafka cannot be written to")]
    Internal(String),
    #[error("`{0}` matches no topic: names that begin with `_` must be written out")]
    Underscore(String),
}

impl Pattern {
    pub fn new(text: &str) -> Result<Self, PatternError> {
        let illegal =
            |reason: &dyn fmt::Display| PatternError::Illegal(text.to_owned(), reason.to_string());
        let Some(prefix) = text.strip_suffix('*') else {
            if text.contains('*') {
                return Err(PatternError::Star(text.to_owned()));
            }
            let name = TopicName::new(text).map_err(|error| illegal(&error))?;
            if name.is_internal() {
                return Err(PatternError::Internal(text.to_owned()));
            }
            return Ok(Self::Exact(name));
        };
        if prefix.contains('*') {
            return Err(PatternError::Star(text.to_owned()));
        }
        if prefix.is_empty() {
            return Ok(Self::All);
        }
        if prefix.starts_with('_') {
            return Err(PatternError::Underscore(text.to_owned()));
        }
        // `.` and `..` are no topics, but names may begin with them.
        if !prefix.bytes().all(|byte| byte == b'.') {
            TopicName::new(prefix).map_err(|error| illegal(&error))?;
        }
        Ok(Self::Prefix(prefix.into()))
    }

    /// Returns true when the pattern covers the name as a rule that allows.
    pub fn allows(&self, topic: &TopicName) -> bool {
        match self {
            Self::Exact(name) => name == topic,
            Self::Prefix(_) | Self::All => !topic.as_str().starts_with('_') && self.denies(topic),
        }
    }

    /// Returns true when the pattern covers the name as a rule that denies.
    pub fn denies(&self, topic: &TopicName) -> bool {
        match self {
            Self::Exact(name) => name == topic,
            Self::Prefix(prefix) => topic.as_str().starts_with(&**prefix),
            Self::All => true,
        }
    }

    /// Returns true for a prefix ending in a letter or digit: `orders*` covers `orders-secret`,
    /// which its author may not have meant.
    pub fn is_ragged(&self) -> bool {
        let Self::Prefix(prefix) = self else { return false };
        prefix.ends_with(|c: char| c.is_ascii_alphanumeric())
    }
}

impl fmt::Display for Pattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Exact(name) => write!(f, "{name}"),
            Self::Prefix(prefix) => write!(f, "{prefix}*"),
            Self::All => f.write_str("*"),
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn topic(name: &str) -> TopicName {
        TopicName::new(name).unwrap()
    }

    #[test]
    fn a_prefix_covers_what_begins_with_it_and_nothing_else() {
        let pattern = Pattern::new("orders.*").unwrap();
        for name in ["orders.a", "orders.", "orders.a.b", "orders.audit"] {
            assert!(pattern.allows(&topic(name)), "{name}");
        }
        for name in ["orders", "ordersX", "Orders.a", "order", "x.orders.a"] {
            assert!(!pattern.allows(&topic(name)), "{name}");
        }
        assert!(!Pattern::new("orders").unwrap().allows(&topic("orders.a")));
    }

    #[test]
    fn names_that_begin_with_an_underscore_are_allowed_only_when_written_out() {
        let schemas = topic("_schemas");
        assert!(!Pattern::All.allows(&schemas));
        assert!(Pattern::All.denies(&schemas));
        assert!(Pattern::new("_schemas").unwrap().allows(&schemas));
    }

    #[test]
    fn patterns_that_match_nothing_legal_are_refused() {
        for text in
            ["", "a b", "a*b", "**", "*a", "orders/*", "ä*", ".", "..", "__consumer_offsets", "_s*"]
        {
            assert!(Pattern::new(text).is_err(), "{text}");
        }
        assert!(Pattern::new(&format!("{}*", "x".repeat(249))).is_ok());
        assert!(Pattern::new(&format!("{}*", "x".repeat(250))).is_err());
    }

    #[test]
    fn a_prefix_that_ends_within_a_word_is_ragged() {
        let is_ragged = |text: &str| Pattern::new(text).unwrap().is_ragged();
        assert!(is_ragged("orders*") && is_ragged("v1*"));
        assert!(!is_ragged("orders.*") && !is_ragged("orders") && !is_ragged("*"));
    }

    /// The rule in other words: the pattern's bytes up to its star.
    fn reference(pattern: &str, name: &str) -> bool {
        let mut name_bytes = name.bytes();
        for byte in pattern.bytes() {
            if byte == b'*' {
                return !name.starts_with('_');
            }
            if name_bytes.next() != Some(byte) {
                return false;
            }
        }
        name_bytes.next().is_none()
    }

    proptest! {
        #[test]
        fn patterns_match_as_the_reference_does(
            pattern in "[ab._-]{0,3}\\*?", name in "[ab._-]{1,4}",
        ) {
            if let (Ok(parsed), Ok(name)) = (Pattern::new(&pattern), TopicName::new(&name)) {
                prop_assert_eq!(parsed.allows(&name), reference(&pattern, name.as_str()));
                prop_assert_eq!(parsed.to_string(), pattern);
            }
        }
    }
}
