//! Decides whether a due task is published, or has expired.
//!
//! The node asks right before handing a record to a producer, which is also the first moment after
//! a claim of an overdue task. The authority is the cluster's clock. A node knows a lower and an
//! upper bound of this clock. The upper bound counts here, as the lower one does for the due time:
//! no record is handed over after the expiry.
//!
//! "Expired" says that no record of the task is in the topic, or will be. The proof takes two
//! facts:
//!
//! - No earlier row of the task can have put a record there. A settle that defers a record of
//!   unknown outcome, or finds an attempt published, sets the flag "maybe sent" in the next row.
//! - No owner of this batch has handed the record over since the claim, or Kafka refused it. The
//!   node can know this only of batches from its own claims. An adopted batch, or a batch of a
//!   claim without an answer, counts as sent, and so does a record without an answer.
//!
//! Otherwise a late task becomes a dead letter: neither published late nor called expired. No other
//! node can publish the task afterwards: the outcome takes effect by the settle, and the settle
//! needs the unsettled batch and its owner. A settle undone by a crash is repeated with the same
//! outcome, or the batch is adopted, and then counts as sent.

use crate::domain::Timestamp;

/// The step for a task whose turn has come.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Turn {
    /// Hand its record over.
    Publish,
    /// End it: no record of it is in the topic, or will be.
    Expire,
    /// Give the task up: too late, and a record is or may be in the topic.
    GiveUp,
}

/// Returns what is to be done with a task that expires at `expires_at`. `latest` is an upper bound
/// of the cluster's clock. `is_maybe_sent`: a record of the task may be in the topic.
pub fn turn_of(expires_at: Timestamp, latest: Timestamp, is_maybe_sent: bool) -> Turn {
    match (latest >= expires_at, is_maybe_sent) {
        (false, _) => Turn::Publish,
        (true, false) => Turn::Expire,
        (true, true) => Turn::GiveUp,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_too_late_has_expired_unless_it_may_be_in_the_topic() {
        let at = Timestamp::from_millis;
        for is_maybe_sent in [false, true] {
            assert_eq!(turn_of(at(10), at(9), is_maybe_sent), Turn::Publish);
        }
        for latest in [10, 11] {
            assert_eq!(turn_of(at(10), at(latest), false), Turn::Expire);
            assert_eq!(turn_of(at(10), at(latest), true), Turn::GiveUp);
        }
    }
}
