//! Decides what to do with a record that was not acknowledged, and when to replace a failed
//! producer.

use std::time::Duration;

use crate::domain::{Backoff, Failure, Monotonic};

/// The first pause between two new producers when the first of them got no acknowledgement. The
/// pause doubles from one to the next.
const PAUSE: Duration = Duration::from_secs(1);
const PAUSE_MAX: Duration = Duration::from_secs(30);
/// The pause between two new producers when each replaced one that was only in doubt.
const IN_DOUBT_PAUSE: Duration = Duration::from_secs(300);

/// The circumstances in which the record failed.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Circumstances {
    /// The batch is no longer the node's.
    pub is_given_up: bool,
    /// The topic is not to blame: the producer was replaced, no broker can be reached, or the
    /// record was taken back before its deadline.
    pub is_blameless: bool,
    /// The topic has been denied for so long that it is given up.
    pub is_topic_gone: bool,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Remedy {
    /// Hand the record over again, in a request of its own.
    Alone,
    /// Hand the record over again, a little later.
    Later,
    /// Give the task up: it becomes a dead letter.
    GiveUp,
    /// Defer the task: a follow-up is the next attempt.
    Defer,
}

/// Returns the remedy for a record that failed.
pub fn remedy(failure: Failure, circumstances: Circumstances) -> Remedy {
    match failure {
        _ if circumstances.is_given_up => Remedy::Defer,
        Failure::BatchRefused => Remedy::Alone,
        Failure::RefusedForGood => Remedy::GiveUp,
        _ if circumstances.is_blameless => Remedy::Later,
        Failure::Unavailable | Failure::Forbidden if circumstances.is_topic_gone => Remedy::GiveUp,
        Failure::Unavailable | Failure::Forbidden | Failure::NotSent | Failure::Unknown => {
            Remedy::Defer
        }
    }
}

/// Returns how long a task waits after `attempt`, counted from 1, before its next one: 1 s, doubled
/// with each attempt, at most 60 s. `jitter` (0 to 255) shortens the delay by up to a quarter, so
/// the tasks of an outage do not come back all at once.
pub fn retry_delay(attempt: i16, jitter: u8) -> Duration {
    let doublings = u32::try_from(attempt.max(1) - 1).unwrap_or(0).min(6);
    let full = Duration::from_secs(1_u64 << doublings).min(Duration::from_secs(60));
    full - full / 4 / 256 * u32::from(jitter)
}

/// The reason to replace a producer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ReplacementReason {
    /// The producer has failed for good, or has lost track of a partition. It delivers no more
    /// records.
    Failed,
    /// A record had no answer until the deadline, although Kafka is there and not slow. Either the
    /// partition is in trouble, or the producer is wrong about a partition that others can reach.
    /// No sign tells the two cases apart.
    InDoubt,
}

/// Decides when to replace a failed producer: normally at once. If the producer got no
/// acknowledgement at all, the cause of its failure (a missing right, for example) probably
/// persists, so the replacement waits for a growing pause. Replacements that are only in doubt
/// are throttled.
#[derive(Debug)]
pub struct Renewals {
    /// When the next producer that fails without an acknowledgement may be replaced.
    next_at: Monotonic,
    backoff: Backoff,
    in_doubt_at: Option<Monotonic>,
}

impl Default for Renewals {
    fn default() -> Self {
        let backoff = Backoff::new(PAUSE, PAUSE_MAX);
        Self { next_at: Monotonic::default(), backoff, in_doubt_at: None }
    }
}

impl Renewals {
    /// Returns true when a producer must be replaced for this reason now. `has_worked`: one of its
    /// records was acknowledged.
    pub fn is_due(&self, reason: ReplacementReason, has_worked: bool, now: Monotonic) -> bool {
        match reason {
            ReplacementReason::Failed => has_worked || now >= self.next_at,
            ReplacementReason::InDoubt => {
                self.in_doubt_at.is_none_or(|made_at| now.since(made_at) >= IN_DOUBT_PAUSE)
            }
        }
    }

    /// Records that a producer was replaced for this reason.
    pub fn made(&mut self, reason: ReplacementReason, has_worked: bool, now: Monotonic) {
        match reason {
            ReplacementReason::Failed => {
                if has_worked {
                    self.backoff.reset();
                }
                self.next_at = now.plus(self.backoff.next_pause());
            }
            ReplacementReason::InDoubt => self.in_doubt_at = Some(now),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PLAIN: Circumstances =
        Circumstances { is_given_up: false, is_blameless: false, is_topic_gone: false };

    #[test]
    fn only_what_is_refused_for_good_and_what_has_no_topic_any_more_is_given_up() {
        assert_eq!(remedy(Failure::RefusedForGood, PLAIN), Remedy::GiveUp);
        for failure in [Failure::Unavailable, Failure::Forbidden] {
            assert_eq!(
                remedy(failure, Circumstances { is_topic_gone: true, ..PLAIN }),
                Remedy::GiveUp
            );
        }
        for failure in
            [Failure::Unavailable, Failure::Forbidden, Failure::NotSent, Failure::Unknown]
        {
            assert_eq!(remedy(failure, PLAIN), Remedy::Defer);
        }
        for failure in [Failure::NotSent, Failure::Unknown] {
            assert_eq!(
                remedy(failure, Circumstances { is_topic_gone: true, ..PLAIN }),
                Remedy::Defer
            );
        }
    }

    #[test]
    fn while_no_topic_is_to_blame_nothing_is_put_off() {
        let blameless = Circumstances { is_blameless: true, is_topic_gone: true, ..PLAIN };
        for failure in [Failure::Unavailable, Failure::NotSent, Failure::Unknown] {
            assert_eq!(remedy(failure, blameless), Remedy::Later);
        }
        assert_eq!(remedy(Failure::BatchRefused, blameless), Remedy::Alone);
        assert_eq!(remedy(Failure::RefusedForGood, blameless), Remedy::GiveUp);
    }

    #[test]
    fn what_is_no_longer_this_nodes_is_not_handed_over_again() {
        let given_up = Circumstances { is_given_up: true, is_blameless: true, is_topic_gone: true };
        for failure in [
            Failure::Unavailable,
            Failure::NotSent,
            Failure::Unknown,
            Failure::BatchRefused,
            Failure::RefusedForGood,
        ] {
            assert_eq!(remedy(failure, given_up), Remedy::Defer);
        }
    }

    #[test]
    fn retries_wait_longer_each_time_up_to_a_minute() {
        let seconds: Vec<u64> = (1..=9).map(|attempt| retry_delay(attempt, 0).as_secs()).collect();
        assert_eq!(seconds, [1, 2, 4, 8, 16, 32, 60, 60, 60]);
        assert!(retry_delay(1, 255) >= Duration::from_millis(750));
        assert_eq!(retry_delay(i16::MAX, 0), Duration::from_secs(60));
    }

    fn at(seconds: u64) -> Monotonic {
        Monotonic::from_start(Duration::from_secs(seconds))
    }

    #[test]
    fn a_producer_that_fails_before_its_first_acknowledgement_is_made_anew_ever_more_rarely() {
        let mut renewals = Renewals::default();
        let mut made = Vec::new();
        for second in 100..250 {
            if renewals.is_due(ReplacementReason::Failed, false, at(second)) {
                renewals.made(ReplacementReason::Failed, false, at(second));
                made.push(second);
            }
        }
        assert_eq!(made, [100, 101, 103, 107, 115, 131, 161, 191, 221]);
    }

    #[test]
    fn a_producer_that_has_worked_is_made_anew_at_once() {
        let mut renewals = Renewals::default();
        renewals.made(ReplacementReason::Failed, false, at(100));
        renewals.made(ReplacementReason::Failed, false, at(101));
        assert!(!renewals.is_due(ReplacementReason::Failed, false, at(102)));
        assert!(renewals.is_due(ReplacementReason::Failed, true, at(102)));
        renewals.made(ReplacementReason::Failed, true, at(102));
        assert!(!renewals.is_due(ReplacementReason::Failed, false, at(102)));
        assert!(
            renewals.is_due(ReplacementReason::Failed, false, at(103)),
            "the pauses begin anew"
        );
    }

    #[test]
    fn replacements_of_producers_in_doubt_are_throttled() {
        let mut renewals = Renewals::default();
        assert!(renewals.is_due(ReplacementReason::InDoubt, true, at(100)));
        renewals.made(ReplacementReason::InDoubt, true, at(100));
        assert!(!renewals.is_due(ReplacementReason::InDoubt, true, at(399)));
        assert!(
            renewals.is_due(ReplacementReason::Failed, false, at(101)),
            "a failure does not wait for that pause"
        );
        assert!(renewals.is_due(ReplacementReason::InDoubt, true, at(400)));
    }
}
