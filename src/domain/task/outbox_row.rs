//! A row of an outbox: the request of an application, as it stands in its own database.

use std::fmt;
use std::time::Duration;

use uuid::Uuid;

use crate::domain::Timestamp;

/// The operation that a row asks for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum OutboxOperation {
    Submit,
    Replace,
    Cancel,
    /// The answer of a consumer.
    Finish,
}

/// A row of an outbox, not yet checked.
#[derive(Clone, PartialEq, Eq)]
pub struct OutboxRow {
    /// Rows take effect in the order of these numbers.
    pub seq: i64,
    pub id: Uuid,
    pub operation: OutboxOperation,
    /// By the clock of the user's database. A delay counts from here.
    pub called_at: Timestamp,
    pub topic: String,
    pub name: Option<String>,
    /// The task of a finish that has no name.
    pub task_id: Option<Uuid>,
    /// The attempt of a finish.
    pub attempt: Option<i32>,
    pub due_at: Option<Timestamp>,
    pub delay: Option<Duration>,
    /// JSON text.
    pub payload: Option<String>,
    pub payload_text: Option<String>,
    pub payload_bytes: Option<Vec<u8>>,
    pub is_tombstone: bool,
    pub key: Option<String>,
    pub key_bytes: Option<Vec<u8>>,
    /// A JSON object.
    pub headers: Option<String>,
    pub ttr: Option<Duration>,
    /// A JSON object.
    pub retry: Option<String>,
}

impl fmt::Debug for OutboxRow {
    /// Leaves out keys and payloads, which are never logged.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("OutboxRow")
            .field("seq", &self.seq)
            .field("id", &self.id)
            .field("operation", &self.operation)
            .finish_non_exhaustive()
    }
}

impl OutboxRow {
    /// Returns the due time by the cluster's clock, in whole milliseconds. A delay is never
    /// shortened: the distance between the clocks counts with its upper bound.
    pub fn due_at(&self, offset: ClockOffset) -> Option<Timestamp> {
        match (self.due_at, self.delay) {
            (Some(at), _) => Some(at.ceil_millis()),
            (None, Some(delay)) => Some(offset.at_most(self.called_at).plus(delay).ceil_millis()),
            (None, None) => None,
        }
    }
}

/// A refused row, or record of an intake topic, with the status that REST would have answered.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct RejectedRow {
    /// The number of the row, or the offset of the record.
    pub seq: i64,
    pub status: u16,
    pub reason: String,
}

/// How far the cluster's clock is ahead of the clock of a user's database, in microseconds: at
/// least `min`, and at most `max`. Negative when it is behind.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct ClockOffset {
    pub min: i64,
    pub max: i64,
}

impl ClockOffset {
    /// Takes a reading of the other clock, which was made between two readings of the cluster's.
    pub const fn measured(other: Timestamp, [before, after]: [Timestamp; 2]) -> Self {
        Self { min: before.micros_after(other), max: after.micros_after(other) }
    }

    /// Returns the latest time by the cluster's clock that a time of the other clock can be.
    pub const fn at_most(self, other: Timestamp) -> Timestamp {
        Timestamp::from_micros(other.as_micros().saturating_add(self.max))
    }

    /// Returns the middle of the two bounds.
    pub const fn middle_micros(self) -> i64 {
        self.min.saturating_add(self.max.saturating_sub(self.min) / 2)
    }
}

#[cfg(test)]
pub mod tests {
    use super::*;

    /// Returns a submit to `topic` with a delay of one second.
    pub fn row(seq: i64, topic: &str) -> OutboxRow {
        OutboxRow {
            seq,
            id: Uuid::from_u128(seq.unsigned_abs().into()),
            operation: OutboxOperation::Submit,
            called_at: Timestamp::from_millis(1_000_000),
            topic: topic.to_owned(),
            name: None,
            task_id: None,
            attempt: None,
            due_at: None,
            delay: Some(Duration::from_secs(1)),
            payload: Some("{}".to_owned()),
            payload_text: None,
            payload_bytes: None,
            is_tombstone: false,
            key: None,
            key_bytes: None,
            headers: None,
            ttr: None,
            retry: None,
        }
    }

    #[test]
    fn a_delay_is_never_shortened_by_the_distance_between_the_clocks() {
        let at = Timestamp::from_micros;
        // The other clock is 5 s behind. Its reading took 300 us.
        let offset = ClockOffset::measured(at(1_000_000), [at(6_000_000), at(6_000_300)]);
        assert_eq!(
            (offset.min, offset.max, offset.middle_micros()),
            (5_000_000, 5_000_300, 5_000_150)
        );
        let delayed = row(1, "orders");
        let latest = delayed.called_at.plus(Duration::from_micros(5_000_300 + 1_000_000));
        assert_eq!(delayed.due_at(offset), Some(latest.ceil_millis()));
        // The other clock is ahead: the delay has begun earlier by the cluster's clock.
        let ahead = ClockOffset::measured(at(6_000_000), [at(1_000_000), at(1_000_300)]);
        assert_eq!(
            delayed.due_at(ahead),
            Some(Timestamp::from_micros(1_000_000_000 - 4_999_700 + 1_000_000).ceil_millis())
        );
        let exact = OutboxRow { due_at: Some(at(7_000_001)), delay: None, ..delayed };
        assert_eq!(exact.due_at(offset), Some(at(7_001_000)), "a due time is taken as it is");
    }
}
