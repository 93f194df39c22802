//! A record of an intake topic: the request of an application, as it stands in Kafka.

use std::fmt;

use super::headers;
use crate::domain::Timestamp;

/// Headers with their values, in their order.
pub type IntakeHeaders = Vec<(String, Option<Box<[u8]>>)>;

/// The most characters of the reason of a rejection.
const REASON_CHARS_MAX: usize = 1_000;

/// A record of an intake topic, not yet checked.
#[derive(Clone, PartialEq, Eq)]
pub struct IntakeRecord {
    pub offset: i64,
    /// The timestamp of the record: its producer's clock, or the broker's. A delay counts from
    /// here.
    pub at: Timestamp,
    pub key: Option<Box<[u8]>>,
    pub payload: Option<Box<[u8]>>,
    /// `None` when the name of a header is not UTF-8.
    pub headers: Option<IntakeHeaders>,
}

impl IntakeRecord {
    /// Returns the bytes that the record takes in memory.
    pub fn bytes(&self) -> usize {
        let length = |bytes: &Option<Box<[u8]>>| bytes.as_ref().map_or(0, |bytes| bytes.len());
        let headers = self.headers.iter().flatten();
        let of_headers = headers.map(|(name, value)| name.len().saturating_add(length(value)));
        [length(&self.key), length(&self.payload)]
            .into_iter()
            .chain(of_headers)
            .fold(0, usize::saturating_add)
    }

    /// Returns the headers in the encoding of the tables.
    pub fn encoded_headers(&self) -> Vec<u8> {
        let headers = self.headers.iter().flatten();
        headers::encode_any(headers.map(|(name, value)| (name.as_str(), value.as_deref())))
    }
}

/// The rejection of a record: it is refused for good, and the offset is behind it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Rejection {
    /// The timestamp of the record. Another record at the same offset is of another log.
    pub record_at: Timestamp,
    /// The status that REST would have answered.
    pub status: u16,
    /// Up to [`REASON_CHARS_MAX`] characters.
    pub reason: String,
}

impl Rejection {
    pub fn new(record: &IntakeRecord, status: u16, reason: &str) -> Self {
        // Postgres keeps no NUL in a text.
        let reason = reason.chars().take(REASON_CHARS_MAX).map(|char| match char {
            '\0' => char::REPLACEMENT_CHARACTER,
            char => char,
        });
        Self { record_at: record.at, status, reason: reason.collect() }
    }
}

impl fmt::Debug for IntakeRecord {
    /// Leaves out keys, payloads and headers, which are never logged.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("IntakeRecord")
            .field("offset", &self.offset)
            .field("at", &self.at)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
pub mod tests {
    use super::*;

    /// Returns a record with these headers.
    pub fn record(offset: i64, headers: &[(&str, &str)]) -> IntakeRecord {
        let header = |(name, value): &(&str, &str)| {
            ((*name).to_owned(), Some(value.as_bytes().to_vec().into()))
        };
        IntakeRecord {
            offset,
            at: Timestamp::from_millis(1_000_000),
            key: Some(b"k".to_vec().into()),
            payload: Some(b"{}".to_vec().into()),
            headers: Some(headers.iter().map(header).collect()),
        }
    }

    #[test]
    fn headers_that_no_task_may_have_are_kept_all_the_same() {
        let record = record(1, &[("punctual-topic", "orders"), ("", "1"), ("a", "2")]);
        assert_eq!(record.bytes(), 1 + 2 + 14 + 6 + 1 + 1 + 1);
        let encoded = record.encoded_headers();
        let decoded: Vec<(&str, Option<&[u8]>)> = headers::decode(&encoded).collect();
        let value = |text: &'static str| Some(text.as_bytes());
        assert_eq!(
            decoded,
            [("punctual-topic", value("orders")), ("", value("1")), ("a", value("2"))]
        );
    }
}
