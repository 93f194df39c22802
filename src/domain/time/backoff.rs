//! The pauses between retries.

use std::time::Duration;

/// The pauses of a loop that retries: first a short one, then each twice as long as the one before,
/// up to a maximum.
#[derive(Clone, Copy, Debug)]
pub struct Backoff {
    first: Duration,
    max: Duration,
    /// The last pause. `None` until the first failure, and after a reset.
    last: Option<Duration>,
}

impl Backoff {
    /// Creates the pauses from `first` to `max`.
    pub const fn new(first: Duration, max: Duration) -> Self {
        Self { first, max, last: None }
    }

    /// Returns the pause after a failure.
    pub fn next_pause(&mut self) -> Duration {
        let pause = self.last.map_or(self.first, |last| last.saturating_mul(2).min(self.max));
        self.last = Some(pause);
        pause
    }

    /// Notes a success: the next pause is the first one.
    pub const fn reset(&mut self) {
        self.last = None;
    }

    /// Returns true when a pause was taken since the last reset.
    pub const fn is_failing(&self) -> bool {
        self.last.is_some()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_double_up_to_the_maximum_and_begin_anew_after_a_reset() {
        let mut backoff = Backoff::new(Duration::from_millis(100), Duration::from_secs(1));
        assert!(!backoff.is_failing());
        let pauses = [(); 6].map(|()| backoff.next_pause().as_millis());
        assert_eq!(pauses, [100, 200, 400, 800, 1_000, 1_000]);
        assert!(backoff.is_failing());
        backoff.reset();
        assert!(!backoff.is_failing());
        assert_eq!(backoff.next_pause(), Duration::from_millis(100));
    }

    #[test]
    fn pauses_of_any_length_do_not_overflow() {
        let mut backoff = Backoff::new(Duration::MAX, Duration::MAX);
        assert_eq!([(); 2].map(|()| backoff.next_pause()), [Duration::MAX; 2]);
    }
}
