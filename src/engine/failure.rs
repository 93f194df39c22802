//! What is to be done about a record that was not acknowledged, and when a producer that has failed is made anew.

use std::time::Duration;

use crate::domain::Monotonic;

/// The first pause between two new producers of which the first got no acknowledgement; it doubles from one to the next.
const PAUSE: Duration = Duration::from_secs(1);
const PAUSE_MAX: Duration = Duration::from_secs(30);

/// What is known of it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Failure {
    /// It never left the producer, for a reason that is not its topic's.
    NotSent,
    /// It may stand in the topic: no answer came.
    Unknown,
    /// The batch in which it travelled was refused, which says nothing of this record.
    BatchRefused,
    /// It will not pass when repeated as it is.
    RefusedForGood,
    /// Its topic or partition does not take records just now.
    Unavailable,
}

/// In what the record failed.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Circumstances {
    /// Its batch is no longer this node's.
    pub is_given_up: bool,
    /// Its producer was replaced, or no broker can be reached: its topic is not to blame.
    pub is_blameless: bool,
    /// The topic has been denied for so long that it is given up on.
    pub is_topic_gone: bool,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Remedy {
    /// Hand it over once more, in a request of its own.
    Alone,
    /// Hand it over once more, a little later.
    Later,
    /// Give it up: it is a dead letter.
    GiveUp,
    /// Put it off: a follow-up is the next attempt.
    Defer,
}

/// What is to be done about a record that failed.
pub fn remedy(failure: Failure, circumstances: Circumstances) -> Remedy {
    match failure {
        _ if circumstances.is_given_up => Remedy::Defer,
        Failure::BatchRefused => Remedy::Alone,
        Failure::RefusedForGood => Remedy::GiveUp,
        _ if circumstances.is_blameless => Remedy::Later,
        Failure::Unavailable if circumstances.is_topic_gone => Remedy::GiveUp,
        Failure::Unavailable | Failure::NotSent | Failure::Unknown => Remedy::Defer,
    }
}

/// When a producer that has failed is made anew: at once. If it had no record acknowledged, whatever made it fail (a right that is missing, say) is likely still
/// so: then after a pause that grows.
#[derive(Debug, Default)]
pub struct Renewals {
    /// When the last one was made, and the pause until the next one.
    last: Option<(Monotonic, Duration)>,
}

impl Renewals {
    /// True when a producer that has failed is to be made anew now. `has_worked`: a record of it was acknowledged.
    pub fn is_due(&self, has_worked: bool, now: Monotonic) -> bool {
        has_worked || self.last.is_none_or(|(made_at, pause)| now.since(made_at) >= pause)
    }

    /// A producer was made in the place of one that has failed.
    pub fn made(&mut self, has_worked: bool, now: Monotonic) {
        let pause = match self.last {
            Some((_, pause)) if !has_worked => pause.saturating_mul(2).min(PAUSE_MAX),
            _ => PAUSE,
        };
        self.last = Some((now, pause));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PLAIN: Circumstances = Circumstances { is_given_up: false, is_blameless: false, is_topic_gone: false };

    #[test]
    fn only_what_is_refused_for_good_and_what_has_no_topic_any_more_is_given_up() {
        assert_eq!(remedy(Failure::RefusedForGood, PLAIN), Remedy::GiveUp);
        assert_eq!(remedy(Failure::Unavailable, Circumstances { is_topic_gone: true, ..PLAIN }), Remedy::GiveUp);
        for failure in [Failure::Unavailable, Failure::NotSent, Failure::Unknown] {
            assert_eq!(remedy(failure, PLAIN), Remedy::Defer);
        }
        for failure in [Failure::NotSent, Failure::Unknown] {
            assert_eq!(remedy(failure, Circumstances { is_topic_gone: true, ..PLAIN }), Remedy::Defer);
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
        for failure in [Failure::Unavailable, Failure::NotSent, Failure::Unknown, Failure::BatchRefused, Failure::RefusedForGood]
        {
            assert_eq!(remedy(failure, given_up), Remedy::Defer);
        }
    }

    fn at(seconds: u64) -> Monotonic {
        Monotonic::from_start(Duration::from_secs(seconds))
    }

    #[test]
    fn a_producer_that_fails_before_its_first_acknowledgement_is_made_anew_ever_more_rarely() {
        let mut renewals = Renewals::default();
        let mut made = Vec::new();
        for second in 100..250 {
            if renewals.is_due(false, at(second)) {
                renewals.made(false, at(second));
                made.push(second);
            }
        }
        assert_eq!(made, [100, 101, 103, 107, 115, 131, 161, 191, 221]);
    }

    #[test]
    fn a_producer_that_has_worked_is_made_anew_at_once() {
        let mut renewals = Renewals::default();
        renewals.made(false, at(100));
        renewals.made(false, at(101));
        assert!(!renewals.is_due(false, at(102)));
        assert!(renewals.is_due(true, at(102)));
        renewals.made(true, at(102));
        assert!(!renewals.is_due(false, at(102)));
        assert!(renewals.is_due(false, at(103)), "the pauses begin anew");
    }

    #[test]
    fn what_could_not_be_made_is_due_at_once() {
        let renewals = Renewals::default();
        assert!(renewals.is_due(false, at(100)));
        assert!(renewals.is_due(false, at(100)), "nothing was made meanwhile");
    }
}
