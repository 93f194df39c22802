//! Time: moments of the two clocks, durations, and pauses.

use std::time::Duration;

pub mod backoff;
pub mod duration;
pub mod throttle;
pub mod timestamp;

/// Time since the process started. Steps of the wall clock do not affect it. In production only
/// `clock` creates values. Tests create their own.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Default)]
pub struct Monotonic(Duration);

impl Monotonic {
    pub const fn from_start(since_start: Duration) -> Self {
        Self(since_start)
    }

    pub const fn since_start(self) -> Duration {
        self.0
    }

    #[must_use]
    pub fn plus(self, span: Duration) -> Self {
        Self(self.0.saturating_add(span))
    }

    /// Returns the time from `earlier` to this moment, or zero when `earlier` is later.
    pub fn since(self, earlier: Self) -> Duration {
        self.0.saturating_sub(earlier.0)
    }
}
