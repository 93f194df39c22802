//! Computes the pause before a call is retried.

use std::time::Duration;

use crate::domain::{Backoff, Monotonic};

/// The first pause, before jitter. Each further failure doubles it.
const PAUSE_MIN: Duration = Duration::from_millis(100);
const PAUSE_MAX: Duration = Duration::from_secs(10);
/// Maximum `Retry-After` that is honoured: a server that asks for more is called sooner.
const RETRY_AFTER_MAX: Duration = Duration::from_secs(60);

/// The retry time that is left while no call succeeds.
#[derive(Clone, Debug)]
pub struct RetryBudget {
    limit: Duration,
    failing_since: Option<Monotonic>,
    backoff: Backoff,
}

impl RetryBudget {
    /// Allows retries for `limit` after the first failure. A limit of zero allows none.
    pub const fn new(limit: Duration) -> Self {
        Self { limit, failing_since: None, backoff: Backoff::new(PAUSE_MIN, PAUSE_MAX) }
    }

    /// Records a success: the next failure counts as a first one.
    pub const fn succeeded(&mut self) {
        self.failing_since = None;
        self.backoff.reset();
    }

    /// Records that another call succeeded at `at`. The limit counts from then at the earliest.
    pub fn others_succeeded(&mut self, at: Monotonic) {
        self.failing_since = self.failing_since.map(|since| since.max(at));
    }

    /// Returns the pause after a failure at `now`, or `None` when it would end beyond the limit.
    ///
    /// The pause is at least `retry_after` (up to `RETRY_AFTER_MAX`). The value of `chance` (any
    /// number) adds jitter, so callers that failed together do not retry together.
    pub fn pause(
        &mut self,
        now: Monotonic,
        retry_after: Option<Duration>,
        chance: u32,
    ) -> Option<Duration> {
        let since = *self.failing_since.get_or_insert(now);
        let doubled = self.backoff.next_pause();
        // From 50 % to 100 % of the pause.
        let spread = doubled / 2 + doubled / 2 * (chance % 1024) / 1024;
        let asked = retry_after.unwrap_or_default().min(RETRY_AFTER_MAX);
        let pause = if asked > spread { asked + spread / 4 } else { spread };
        (now.since(since).saturating_add(pause) <= self.limit).then_some(pause)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(millis: u64) -> Monotonic {
        Monotonic::from_start(Duration::from_millis(millis))
    }

    const fn ms(millis: u64) -> Duration {
        Duration::from_millis(millis)
    }

    #[test]
    fn pauses_grow_to_a_limit_and_are_spread() {
        let mut patience = RetryBudget::new(Duration::from_secs(3600));
        let pauses: Vec<Duration> =
            (0..40).map(|_| patience.pause(at(0), None, 0).unwrap()).collect();
        assert_eq!(pauses[..3], [ms(50), ms(100), ms(200)]);
        assert_eq!(pauses[39], ms(5000));
        let mut patience = RetryBudget::new(Duration::from_secs(3600));
        let pause = patience.pause(at(0), None, 1023).unwrap();
        assert!(pause > ms(99) && pause <= ms(100), "{pause:?}");
    }

    #[test]
    fn a_pause_is_never_shorter_than_the_node_asks_for() {
        for chance in [0, 512, u32::MAX] {
            let pause = RetryBudget::new(ms(90_000)).pause(at(0), Some(ms(2000)), chance).unwrap();
            assert!(pause >= ms(2000) && pause < ms(2100), "{pause:?}");
        }
        let pause = RetryBudget::new(ms(90_000)).pause(at(0), Some(ms(86_400_000)), 0).unwrap();
        assert!(pause <= RETRY_AFTER_MAX + PAUSE_MIN, "an absurd wish is cut: {pause:?}");
    }

    #[test]
    fn patience_ends_after_its_limit_and_begins_anew_with_a_success() {
        let mut patience = RetryBudget::new(ms(1000));
        assert!(patience.pause(at(5000), None, 0).is_some());
        assert!(patience.pause(at(5990), None, 0).is_none());
        patience.others_succeeded(at(5500));
        assert!(patience.pause(at(6000), None, 0).is_some());
        patience.others_succeeded(at(5000));
        assert!(patience.pause(at(6500), None, 0).is_none(), "what was before does not count");
        patience.succeeded();
        assert_eq!(patience.pause(at(9000), None, 0), Some(ms(50)));
        assert_eq!(RetryBudget::new(ms(0)).pause(at(0), None, 0), None);
    }
}
