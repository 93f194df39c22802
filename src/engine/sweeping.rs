//! Decides when a sweep begins: at once after a start, every 15 s while sweeps are short, less
//! often while they are long.

use std::time::Duration;

use crate::domain::Monotonic;

const INTERVAL: Duration = Duration::from_secs(15);
/// A long sweep (past all tasks of an unavailable topic, for example) takes time from the
/// watermark. So the pause between two sweeps is at least this many times as long as a sweep.
const PAUSE_FACTOR: u32 = 10;
/// The longest pause: tasks that only a sweep finds wait for it.
const INTERVAL_MAX: Duration = Duration::from_secs(60);

/// The sweeps of one claim loop.
#[derive(Debug, Default)]
pub struct Sweeping {
    began_at: Option<Monotonic>,
    /// Duration of the last sweep, or of the running one so far.
    took: Duration,
}

impl Sweeping {
    /// Requests a sweep, because tasks left in place may be claimed now. It begins as soon as no
    /// sweep is running.
    pub fn ask(&mut self) {
        self.began_at = None;
    }

    pub fn began(&mut self, now: Monotonic) {
        *self = Self { began_at: Some(now), took: Duration::ZERO };
    }

    /// Returns true when a sweep should begin. It waits for a running one, which may have passed
    /// the tasks already.
    pub fn is_due(&mut self, now: Monotonic, is_under_way: bool) -> bool {
        let since = self.began_at.map(|at| now.since(at));
        if is_under_way {
            self.took = since.unwrap_or_default();
            return false;
        }
        since.is_none_or(|since| {
            since >= self.took.saturating_mul(PAUSE_FACTOR).clamp(INTERVAL, INTERVAL_MAX)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(seconds: u64) -> Monotonic {
        Monotonic::from_start(Duration::from_secs(seconds))
    }

    #[test]
    fn a_sweep_begins_at_once_and_then_each_15_seconds() {
        let mut sweeping = Sweeping::default();
        assert!(sweeping.is_due(at(0), false));
        sweeping.began(at(0));
        assert!(!sweeping.is_due(at(14), false));
        assert!(sweeping.is_due(at(15), false));
    }

    #[test]
    fn a_long_one_is_followed_by_a_long_rest_and_a_short_one_after_it_by_a_short_one() {
        let mut sweeping = Sweeping::default();
        sweeping.began(at(0));
        assert!(!sweeping.is_due(at(3), true));
        assert!(!sweeping.is_due(at(29), false) && sweeping.is_due(at(30), false));
        sweeping.began(at(30));
        assert!(
            !sweeping.is_due(at(44), false) && sweeping.is_due(at(45), false),
            "the next one took no time"
        );
        sweeping.began(at(45));
        assert!(!sweeping.is_due(at(85), true));
        assert!(
            !sweeping.is_due(at(104), false) && sweeping.is_due(at(105), false),
            "a minute at most"
        );
    }

    #[test]
    fn what_is_asked_for_during_a_sweep_comes_when_it_has_ended() {
        let mut sweeping = Sweeping::default();
        sweeping.began(at(0));
        sweeping.ask();
        assert!(!sweeping.is_due(at(5), true));
        assert!(sweeping.is_due(at(6), false));
    }
}
