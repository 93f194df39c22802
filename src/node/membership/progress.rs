//! Whether the claim loops still turn, and whether their claims succeed: a node that is wedged must not go on saying that it lives, and one that cannot
//! claim must not go on owning shards that others could claim.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use crate::clock;
use crate::domain::Monotonic;

/// How long a loop may be without a turn: above the deadlines of a claim, 5 s to connect and 5 s for the statement.
pub const STILL_MAX: Duration = Duration::from_secs(15);

/// How long claims may fail one after the other before that counts: above the time-outs of locks, and what a server takes to restart a session.
pub const FAILING_MAX: Duration = Duration::from_secs(5);
/// Failures further apart than that have nothing to do with each other: a loop tries again within a second, and may wait 10 s for an answer.
const APART_MAX: Duration = Duration::from_secs(15);

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
    failing: Mutex<Option<Failing>>,
}

/// The claims of a loop that have failed one after the other.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Failing {
    pub since: Monotonic,
    last_at: Monotonic,
    /// Of the last one.
    pub why: String,
    /// They had to give way to somebody's lock, which other nodes must as well.
    pub is_locked_out: bool,
}

impl Progress {
    pub fn new(loop_count: usize) -> Self {
        let one = |_index| Loop { ticked_at: AtomicU64::new(NOT_RUNNING), failing: Mutex::default() };
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

    /// A claim of the loop has succeeded.
    pub fn claimed(&self, loop_index: usize) {
        if let Some(mut failing) = self.failing_of(loop_index) {
            *failing = None;
        }
    }

    /// A claim of the loop has failed.
    pub fn claim_failed(&self, loop_index: usize, why: String, is_locked_out: bool) {
        self.claim_failed_at(loop_index, why, is_locked_out, clock::monotonic());
    }

    /// True while the last claim of the loop has failed.
    pub fn is_failing(&self, loop_index: usize) -> bool {
        self.failing_of(loop_index).is_some_and(|failing| failing.is_some())
    }

    /// The claims that have failed for longest, if that is longer than [`FAILING_MAX`].
    pub fn failing(&self, now: Monotonic) -> Option<Failing> {
        let lasting = |failing: &Failing| now.since(failing.since) >= FAILING_MAX && now.since(failing.last_at) < APART_MAX;
        let all = (0..self.loops.len()).filter_map(|index| self.failing_of(index)?.clone());
        all.filter(lasting).min_by_key(|failing| failing.since)
    }

    fn claim_failed_at(&self, loop_index: usize, why: String, is_locked_out: bool, now: Monotonic) {
        let Some(mut failing) = self.failing_of(loop_index) else { return };
        let since =
            failing.as_ref().filter(|failing| now.since(failing.last_at) < APART_MAX).map_or(now, |failing| failing.since);
        *failing = Some(Failing { since, last_at: now, why, is_locked_out });
    }

    fn failing_of(&self, loop_index: usize) -> Option<MutexGuard<'_, Option<Failing>>> {
        Some(self.loops.get(loop_index)?.failing.lock().unwrap_or_else(PoisonError::into_inner))
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
    fn claims_that_fail_for_five_seconds_count_until_one_succeeds() {
        let progress = Progress::new(2);
        progress.claimed(0);
        for second in 10..15 {
            progress.claim_failed_at(1, "too many connections".to_owned(), false, at(second));
            assert_eq!(progress.failing(at(second)), None);
        }
        assert!(progress.is_failing(1) && !progress.is_failing(0));
        let failing = progress.failing(at(15)).unwrap();
        assert_eq!((failing.since, failing.why.as_str()), (at(10), "too many connections"));
        progress.claimed(0);
        assert!(progress.failing(at(16)).is_some(), "the other loop's claims say nothing of this one's");
        progress.claimed(1);
        assert_eq!(progress.failing(at(16)), None);
    }

    #[test]
    fn a_failure_now_and_then_is_none_that_lasts() {
        let progress = Progress::new(1);
        progress.claim_failed_at(0, String::new(), true, at(10));
        assert_eq!(progress.failing(at(26)), None, "nothing was to be claimed since");
        progress.claim_failed_at(0, String::new(), true, at(30));
        assert_eq!(progress.failing(at(31)), None);
    }

    #[test]
    fn a_loop_that_has_not_begun_or_has_ended_does_not_count() {
        let progress = Progress::new(2);
        progress.tick_at(1, at(0));
        progress.end(1);
        assert_eq!(progress.wedged(at(1_000)), None);
    }
}
