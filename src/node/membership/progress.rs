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
/// A loop without shards, because its claims failed, tries one of nothing after so long; after each relapse twice as long, for such a claim proves little.
const PAUSE: Duration = Duration::from_secs(1);
const PAUSE_MAX: Duration = Duration::from_secs(60);

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
    claims: Mutex<Claims>,
}

#[derive(Debug)]
struct Claims {
    failing: Option<Failing>,
    /// How long a loop without shards waits before it tries again.
    pause: Duration,
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

impl Failing {
    /// One failure says little, however long ago: from the first to the last it must have been for long.
    fn lasts(&self) -> bool {
        self.last_at.since(self.since) >= FAILING_MAX
    }
}

impl Progress {
    pub fn new(loop_count: usize) -> Self {
        let claims = || Mutex::new(Claims { failing: None, pause: PAUSE });
        let one = |_index| Loop { ticked_at: AtomicU64::new(NOT_RUNNING), claims: claims() };
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

    /// A claim of the loop has succeeded, and taken something or not.
    pub fn claimed(&self, loop_index: usize, has_taken: bool) {
        let Some(mut claims) = self.claims_of(loop_index) else { return };
        claims.failing = None;
        if has_taken {
            claims.pause = PAUSE;
        }
    }

    /// A claim of the loop has failed.
    pub fn claim_failed(&self, loop_index: usize, why: String, is_locked_out: bool) {
        self.claim_failed_at(loop_index, why, is_locked_out, clock::monotonic());
    }

    /// True when the claims of the loop have failed, and one more is to be tried although it has no shards.
    pub fn is_to_try(&self, loop_index: usize, now: Monotonic) -> bool {
        let Some(claims) = self.claims_of(loop_index) else { return false };
        claims.failing.as_ref().is_some_and(|failing| now.since(failing.last_at) >= claims.pause)
    }

    /// The claims that have failed for longest, if that is longer than [`FAILING_MAX`].
    pub fn failing(&self, now: Monotonic) -> Option<Failing> {
        let lasting = |claims: &Claims| {
            let failing = claims.failing.as_ref().filter(|failing| failing.lasts())?;
            (now.since(failing.last_at) < claims.pause + APART_MAX).then(|| failing.clone())
        };
        (0..self.loops.len()).filter_map(|index| lasting(&*self.claims_of(index)?)).min_by_key(|failing| failing.since)
    }

    fn claim_failed_at(&self, loop_index: usize, why: String, is_locked_out: bool, now: Monotonic) {
        let Some(mut claims) = self.claims_of(loop_index) else { return };
        let apart = claims.pause + APART_MAX;
        let before = claims.failing.take().filter(|failing| now.since(failing.last_at) < apart);
        let lasted = before.as_ref().is_some_and(Failing::lasts);
        let failing = Failing { since: before.map_or(now, |failing| failing.since), last_at: now, why, is_locked_out };
        if failing.lasts() && !lasted {
            claims.pause = (claims.pause * 2).min(PAUSE_MAX);
        }
        claims.failing = Some(failing);
    }

    fn claims_of(&self, loop_index: usize) -> Option<MutexGuard<'_, Claims>> {
        Some(self.loops.get(loop_index)?.claims.lock().unwrap_or_else(PoisonError::into_inner))
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
        progress.claimed(0, true);
        for second in 10..=15 {
            assert_eq!(progress.failing(at(second)), None);
            progress.claim_failed_at(1, "too many connections".to_owned(), false, at(second));
        }
        let failing = progress.failing(at(15)).unwrap();
        assert_eq!((failing.since, failing.why.as_str()), (at(10), "too many connections"));
        progress.claimed(0, true);
        assert!(progress.failing(at(16)).is_some(), "the other loop's claims say nothing of this one's");
        progress.claimed(1, false);
        assert_eq!(progress.failing(at(16)), None);
    }

    #[test]
    fn a_failure_now_and_then_is_none_that_lasts() {
        let progress = Progress::new(1);
        progress.claim_failed_at(0, String::new(), true, at(10));
        assert_eq!(progress.failing(at(16)), None, "nothing was tried since");
        progress.claim_failed_at(0, String::new(), true, at(40));
        progress.claim_failed_at(0, String::new(), true, at(41));
        assert_eq!(progress.failing(at(41)), None);
    }

    #[test]
    fn whoever_relapses_waits_longer_until_it_has_taken_something() {
        let progress = Progress::new(1);
        let relapse = |second: u64| {
            (second..=second + 5).for_each(|at_second| progress.claim_failed_at(0, String::new(), false, at(at_second)))
        };
        let pause_from = |second: u64| (0..100).find(|pause| progress.is_to_try(0, at(second + pause)));
        let mut pauses = Vec::new();
        for second in (0..800).step_by(100) {
            relapse(second);
            pauses.push(pause_from(second + 5).unwrap());
            assert!(progress.failing(at(second + 5 + pauses.last().unwrap())).is_some(), "until it tries it goes on failing");
            progress.claimed(0, false);
        }
        assert_eq!(pauses, [2, 4, 8, 16, 32, 60, 60, 60]);
        progress.claimed(0, true);
        relapse(900);
        assert_eq!(pause_from(905), Some(2));
    }

    #[test]
    fn a_loop_that_has_not_begun_or_has_ended_does_not_count() {
        let progress = Progress::new(2);
        progress.tick_at(1, at(0));
        progress.end(1);
        assert_eq!(progress.wedged(at(1_000)), None);
    }
}
