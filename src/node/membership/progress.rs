//! Whether the claim loops still turn: a node that is wedged must not go on saying that it lives.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use crate::clock;
use crate::domain::Monotonic;

/// How long a loop may be without a turn: above the deadlines of a claim, 5 s to connect and 5 s for the statement.
pub const STILL_MAX: Duration = Duration::from_secs(15);

const NOT_RUNNING: u64 = 0;

/// Shared by the loops, which tick, and the heartbeat, which looks.
#[derive(Clone, Debug)]
pub struct Progress {
    /// Of each loop, the microseconds since the start of the process at its last turn, and one more.
    ticks: Arc<[AtomicU64]>,
}

impl Progress {
    pub fn new(loop_count: usize) -> Self {
        Self { ticks: (0..loop_count).map(|_| AtomicU64::new(NOT_RUNNING)).collect() }
    }

    /// The loop has made a turn. It counts from its first one on, and must make one each few seconds, with nothing to do as well.
    pub fn tick(&self, loop_index: usize) {
        self.tick_at(loop_index, clock::monotonic());
    }

    /// The loop has ended in good order and does not count any more.
    pub fn end(&self, loop_index: usize) {
        self.store(loop_index, NOT_RUNNING);
    }

    /// A loop that has stood still for so long that it counts as wedged.
    pub fn wedged(&self, now: Monotonic) -> Option<usize> {
        let oldest = micros(now).saturating_sub(micros(Monotonic::from_start(STILL_MAX)));
        self.ticks.iter().position(|tick| {
            let tick = tick.load(Ordering::Relaxed);
            tick != NOT_RUNNING && tick <= oldest
        })
    }

    fn tick_at(&self, loop_index: usize, now: Monotonic) {
        self.store(loop_index, micros(now).saturating_add(1));
    }

    fn store(&self, loop_index: usize, tick: u64) {
        if let Some(slot) = self.ticks.get(loop_index) {
            slot.store(tick, Ordering::Relaxed);
        }
    }
}

fn micros(at: Monotonic) -> u64 {
    u64::try_from(at.since_start().as_micros()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(seconds: u64) -> Monotonic {
        Monotonic::from_start(Duration::from_secs(seconds))
    }

    #[test]
    fn a_loop_that_stands_still_for_fifteen_seconds_is_wedged() {
        let progress = Progress::new(2);
        progress.tick_at(0, at(5));
        progress.tick_at(1, at(1));
        assert_eq!(progress.wedged(at(15)), None);
        assert_eq!(progress.wedged(at(17)), Some(1));
        progress.tick_at(1, at(17));
        assert_eq!(progress.wedged(at(19)), None);
        assert_eq!(progress.wedged(at(21)), Some(0));
    }

    #[test]
    fn a_loop_that_has_not_begun_or_has_ended_does_not_count() {
        let progress = Progress::new(2);
        progress.tick_at(1, at(0));
        progress.end(1);
        assert_eq!(progress.wedged(at(1_000)), None);
    }
}
