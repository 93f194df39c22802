//! Whether the claim loops still turn, and whether their claims succeed: a node that is wedged must not go on saying that it lives, and one that cannot
//! claim must not go on owning shards that others could claim.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use crate::clock;
use crate::domain::Monotonic;
use crate::engine::liveness::streak::{Failing, Streak};

/// How long a loop may be without a turn: above the deadlines of a claim, 5 s to connect and 5 s for the statement.
pub const STILL_MAX: Duration = Duration::from_secs(15);

const NOT_RUNNING: u64 = 0;

/// Shared by the loops, which tick, and the heartbeat, which looks.
#[derive(Clone, Debug)]
pub struct Progress {
    loops: Arc<[Loop]>,
}

#[derive(Debug)]
struct Loop {
    /// Microseconds since the start of the process at its last turn, and one more.
    ticked_at: AtomicU64,
    streak: Mutex<Streak>,
}

impl Progress {
    pub fn new(loop_count: usize) -> Self {
        let one = |_index| Loop { ticked_at: AtomicU64::new(NOT_RUNNING), streak: Mutex::default() };
        Self { loops: (0..loop_count).map(one).collect() }
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
        self.loops.iter().position(|one| {
            let tick = one.ticked_at.load(Ordering::Relaxed);
            tick != NOT_RUNNING && tick <= oldest
        })
    }

    /// How the claims of the loop fare; `None` when there is no such loop.
    pub fn streak(&self, loop_index: usize) -> Option<MutexGuard<'_, Streak>> {
        Some(self.loops.get(loop_index)?.streak.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Postgres was away from `since` on: no loop is to blame for that.
    pub fn forgive(&self, since: Monotonic) {
        self.streaks().for_each(|mut streak| streak.forgive(since));
    }

    /// The claims that fail for long: of the loops with such claims, the one that may be alone with it, and then the one with the oldest failure.
    pub fn failing(&self, now: Monotonic) -> Option<Failing> {
        self.streaks().filter_map(|streak| streak.failing(now).cloned()).min_by_key(|failing| (failing.blame, failing.since))
    }

    fn streaks(&self) -> impl Iterator<Item = MutexGuard<'_, Streak>> {
        (0..self.loops.len()).filter_map(|index| self.streak(index))
    }

    fn tick_at(&self, loop_index: usize, now: Monotonic) {
        self.store(loop_index, micros(now).saturating_add(1));
    }

    fn store(&self, loop_index: usize, tick: u64) {
        if let Some(one) = self.loops.get(loop_index) {
            one.ticked_at.store(tick, Ordering::Relaxed);
        }
    }
}

fn micros(at: Monotonic) -> u64 {
    u64::try_from(at.since_start().as_micros()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::liveness::streak::Blame;

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
    fn the_loop_that_may_be_alone_with_its_failures_tells_for_the_node() {
        let progress = Progress::new(3);
        let fail = |index: usize, from: u64, blame: Blame| {
            (from..=from + 5).for_each(|second| progress.streak(index).unwrap().failed(format!("{blame:?}"), blame, at(second)));
        };
        fail(0, 10, Blame::Lock);
        assert_eq!(progress.failing(at(15)).unwrap().why, "Lock");
        fail(1, 13, Blame::Unclear);
        assert_eq!(progress.failing(at(18)).unwrap().why, "Unclear");
        progress.streak(1).unwrap().claimed(true, true, at(18));
        assert_eq!(progress.failing(at(18)).unwrap().why, "Lock", "the other loop's claims say nothing of this one's");
        progress.forgive(at(11));
        assert_eq!(progress.failing(at(18)), None);
        assert!(progress.streak(3).is_none());
    }

    #[test]
    fn a_loop_that_has_not_begun_or_has_ended_does_not_count() {
        let progress = Progress::new(2);
        progress.tick_at(1, at(0));
        progress.end(1);
        assert_eq!(progress.wedged(at(1_000)), None);
    }
}
