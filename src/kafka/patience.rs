//! Decides how long an answer of Kafka may take before it counts as missing.
//!
//! Patience is three times the duration of the last answer. A Kafka whose answers take two seconds
//! thus counts as answering. Without an answer, patience doubles from question to question, because
//! the distance of Kafka is unknown. Existing contact is lost after its earned patience.

use std::time::Duration;

const MIN: Duration = Duration::from_secs(1);
const MAX: Duration = Duration::from_secs(15);

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct KafkaPatience(Duration);

impl Default for KafkaPatience {
    fn default() -> Self {
        Self(MIN)
    }
}

impl KafkaPatience {
    pub(super) const fn span(self) -> Duration {
        self.0
    }

    /// Returns the patience after an answer that took this time.
    pub(super) fn answered(took: Duration) -> Self {
        Self(took.saturating_mul(3).clamp(MIN, MAX))
    }

    /// Returns the patience after a question without an answer.
    pub(super) fn unanswered(self) -> Self {
        Self(self.0.saturating_mul(2).min(MAX))
    }

    /// Returns true when a client made for `self` must be replaced for `other`: it would give up
    /// its connections too early, or far too late.
    pub(super) fn is_far_from(self, other: Self) -> bool {
        other.0 > self.0 || other.0.saturating_mul(4) <= self.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn seconds(count: u64) -> Duration {
        Duration::from_secs(count)
    }

    #[test]
    fn patience_grows_until_there_is_an_answer_and_then_follows_it() {
        let mut patience = KafkaPatience::default();
        let mut spans = Vec::new();
        for _ in 0..6 {
            spans.push(patience.span().as_secs());
            patience = patience.unanswered();
        }
        assert_eq!(spans, [1, 2, 4, 8, 15, 15]);
        assert_eq!(KafkaPatience::answered(seconds(2)).span(), seconds(6));
        assert_eq!(KafkaPatience::answered(Duration::from_millis(3)).span(), seconds(1));
        assert_eq!(KafkaPatience::answered(seconds(60)).span(), seconds(15));
    }

    #[test]
    fn a_client_is_made_anew_for_more_patience_and_for_much_less() {
        let (little, some, much) =
            (KafkaPatience(seconds(1)), KafkaPatience(seconds(3)), KafkaPatience(seconds(4)));
        assert!(little.is_far_from(some) && much.is_far_from(little));
        assert!(!much.is_far_from(some) && !some.is_far_from(little) && !some.is_far_from(some));
    }
}
