//! Throttles repeated log lines.

use std::time::Duration;

use crate::domain::Monotonic;

/// Lets one event through per interval.
#[derive(Debug)]
pub struct Throttle {
    every: Duration,
    last_at: Option<Monotonic>,
}

impl Throttle {
    pub const fn new(every: Duration) -> Self {
        Self { every, last_at: None }
    }

    /// Returns true when no event was let through within the interval.
    pub fn lets_through(&mut self, now: Monotonic) -> bool {
        let is_time = self.last_at.is_none_or(|at| now.since(at) >= self.every);
        if is_time {
            self.last_at = Some(now);
        }
        is_time
    }

    /// Resets the throttle. Returns true when an event was let through before.
    pub fn reset(&mut self) -> bool {
        self.last_at.take().is_some()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_is_let_through_in_so_long_and_at_once_after_a_reset() {
        let mut throttle = Throttle::new(Duration::from_secs(30));
        let at = |second| Monotonic::from_start(Duration::from_secs(second));
        assert!(!throttle.reset());
        assert_eq!(
            [0, 29, 30, 31, 60].map(|second| throttle.lets_through(at(second))),
            [true, false, true, false, true]
        );
        assert!(throttle.reset() && !throttle.reset());
        assert!(throttle.lets_through(at(61)));
    }
}
