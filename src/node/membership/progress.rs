//! Records whether the claim loops turn, whether claims and settles succeed, and whether the
//! adopter can work. A node whose loops stand still must send no heartbeats. A node that cannot
//! claim must give up its shards, because other nodes could claim. A node that cannot settle must
//! give up its shards, too. Otherwise its published batches would stay until the node is full, and
//! another node would publish them again after its death.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use az::SaturatingAs as _;
use parking_lot::{Mutex, MutexGuard};

use crate::clock;
use crate::domain::Monotonic;
use crate::engine::liveness::streak::{Failing, FailureCause, Streak};
use crate::error_chain::chain;
use crate::postgres::PostgresError;

/// Maximum time without a turn of a loop. Above the deadlines of a claim: 5 s to connect and 5 s
/// for the statement.
pub const STILL_MAX: Duration = Duration::from_secs(15);

const NOT_BEGUN: u64 = 0;
const ENDED: u64 = u64::MAX;

/// Shared by the loops, which record turns, and the heartbeat, which checks the records.
#[derive(Clone, Debug)]
pub struct LoopProgress {
    loops: Arc<[Loop]>,
    adopter: Arc<Mutex<AdopterRecord>>,
    settles: Arc<Mutex<Streak>>,
}

/// A loop that has not ended.
#[derive(Debug)]
pub struct RunningLoop {
    progress: LoopProgress,
    loop_index: usize,
}

impl Drop for RunningLoop {
    fn drop(&mut self) {
        self.progress.store(self.loop_index, ENDED);
    }
}

/// The part of the node that stands still.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Wedged {
    ClaimLoop(usize),
    /// The fenced node cannot find out its own batches, and publishes nothing until then.
    Adopter,
}

/// The record of the adopter.
#[derive(Debug, Default)]
struct AdopterRecord {
    streak: Streak,
    /// The node is fenced: it publishes nothing before the adopter succeeds.
    is_fenced: bool,
}

#[derive(Debug)]
struct Loop {
    /// Microseconds from the start of the process to the last turn, plus one.
    ticked_at: AtomicU64,
    streak: Mutex<Streak>,
}

impl LoopProgress {
    pub fn new(loop_count: usize) -> Self {
        let one = |_index| Loop { ticked_at: AtomicU64::new(NOT_BEGUN), streak: Mutex::default() };
        Self {
            loops: (0..loop_count).map(one).collect(),
            adopter: Arc::default(),
            settles: Arc::default(),
        }
    }

    /// Records a turn. A loop counts from its first turn on, and must make one every few seconds
    /// even when it has nothing to do.
    pub fn tick(&self, loop_index: usize) {
        self.tick_at(loop_index, clock::monotonic());
    }

    /// Returns the mark of a running loop. Once it is dropped, also by a panic, the loop has ended
    /// and no longer counts: the node drains then, and must go on with its heartbeats.
    pub fn begin(&self, loop_index: usize) -> RunningLoop {
        RunningLoop { progress: self.clone(), loop_index }
    }

    /// Returns false until every loop has made its first turn: until then, nobody would claim from
    /// the shards of the node.
    pub fn has_begun(&self) -> bool {
        self.loops.iter().all(|one| one.ticked_at.load(Ordering::Relaxed) != NOT_BEGUN)
    }

    /// Returns the part that has stood still for so long that the node counts as wedged.
    pub fn wedged(&self, now: Monotonic) -> Option<Wedged> {
        let oldest = micros(now).saturating_sub(micros(Monotonic::from_start(STILL_MAX)));
        let still = self.loops.iter().position(|one| {
            let tick = one.ticked_at.load(Ordering::Relaxed);
            tick != NOT_BEGUN && tick <= oldest
        });
        let is_stuck = || {
            let adopter = self.adopter();
            let is_alone = |failing: &Failing| {
                failing.cause == FailureCause::Unclear && now.since(failing.since) >= STILL_MAX
            };
            adopter.is_fenced && adopter.streak.failing(now).is_some_and(is_alone)
        };
        still.map(Wedged::ClaimLoop).or_else(|| is_stuck().then_some(Wedged::Adopter))
    }

    /// Records a success of the adopter.
    pub fn adopter_succeeded(&self) {
        *self.adopter() = AdopterRecord::default();
    }

    /// Records a failure of the adopter. `is_fenced` means that the node is fenced and publishes
    /// nothing until the adopter succeeds.
    pub fn adopter_failed(&self, error: &PostgresError, is_fenced: bool) {
        let mut adopter = self.adopter();
        adopter.streak.failed(chain(error), cause_of(error), clock::monotonic());
        adopter.is_fenced = is_fenced;
    }

    /// Returns why the adopter has failed for long, if it has.
    pub fn failing_adopter(&self, now: Monotonic) -> Option<Failing> {
        self.adopter().streak.failing(now).cloned()
    }

    /// Records a successful settle.
    pub fn settle_succeeded(&self) {
        *self.settles() = Streak::default();
    }

    /// Records a failed settle. A failure because of a value says nothing about this node: no other
    /// node could settle the batch either.
    pub fn settle_failed(&self, error: &PostgresError) {
        if !error.is_bad_data() {
            self.settles().failed(chain(error), cause_of(error), clock::monotonic());
        }
    }

    /// Returns why settles have failed for long, if they have.
    pub fn failing_settles(&self, now: Monotonic) -> Option<Failing> {
        self.settles().failing(now).cloned()
    }

    fn settles(&self) -> MutexGuard<'_, Streak> {
        self.settles.lock()
    }

    fn adopter(&self) -> MutexGuard<'_, AdopterRecord> {
        self.adopter.lock()
    }

    /// Returns the streak of a loop, or `None` when there is no such loop.
    pub fn streak(&self, loop_index: usize) -> Option<MutexGuard<'_, Streak>> {
        Some(self.loops.get(loop_index)?.streak.lock())
    }

    /// Forgives failures since `since`, when an outage of Postgres began.
    pub fn forgive(&self, since: Monotonic) {
        self.streaks().for_each(|mut streak| streak.forgive(since));
        self.adopter().streak.forgive(since);
        self.settles().forgive(since);
    }

    /// Returns the claims that have failed for long. Among several loops, one perhaps alone with
    /// its failure comes first, then the one with the oldest failure.
    pub fn failing(&self, now: Monotonic) -> Option<Failing> {
        self.streaks()
            .filter_map(|streak| streak.failing(now).cloned())
            .min_by_key(|failing| (failing.cause, failing.since))
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

/// Returns which nodes a Postgres failure affects.
pub fn cause_of(error: &PostgresError) -> FailureCause {
    if error.is_lock_conflict() {
        FailureCause::Lock
    } else if error.is_disk_full() {
        FailureCause::Full
    } else if error.is_slow() {
        FailureCause::Slow
    } else {
        FailureCause::Unclear
    }
}

fn micros(at: Monotonic) -> u64 {
    at.since_start().as_micros().saturating_as::<u64>()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(seconds: u64) -> Monotonic {
        Monotonic::from_start(Duration::from_secs(seconds))
    }

    #[test]
    fn a_loop_that_stands_still_for_fifteen_seconds_is_wedged() {
        let progress = LoopProgress::new(2);
        progress.tick_at(0, at(5));
        progress.tick_at(1, at(1));
        assert_eq!(progress.wedged(at(15)), None);
        assert_eq!(progress.wedged(at(17)), Some(Wedged::ClaimLoop(1)));
        progress.tick_at(1, at(17));
        assert_eq!(progress.wedged(at(19)), None);
        assert_eq!(progress.wedged(at(21)), Some(Wedged::ClaimLoop(0)));
    }

    #[test]
    fn the_loop_that_may_be_alone_with_its_failures_tells_for_the_node() {
        let progress = LoopProgress::new(3);
        let fail = |index: usize, from: u64, cause: FailureCause| {
            (from..=from + 5).for_each(|second| {
                progress.streak(index).unwrap().failed(format!("{cause:?}"), cause, at(second))
            });
        };
        fail(0, 10, FailureCause::Lock);
        assert_eq!(progress.failing(at(15)).unwrap().why, "Lock");
        fail(1, 13, FailureCause::Unclear);
        assert_eq!(progress.failing(at(18)).unwrap().why, "Unclear");
        progress.streak(1).unwrap().claimed(true, true, at(18));
        assert_eq!(
            progress.failing(at(18)).unwrap().why,
            "Lock",
            "the other loop's claims say nothing of this one's"
        );
        progress.forgive(at(11));
        assert_eq!(progress.failing(at(18)), None);
        assert!(progress.streak(3).is_none());
    }

    #[test]
    fn a_loop_that_has_not_begun_or_has_ended_does_not_count() {
        let progress = LoopProgress::new(2);
        progress.tick_at(1, at(0));
        assert!(!progress.has_begun());
        drop(progress.begin(1));
        assert_eq!(progress.wedged(at(1_000)), None);
        progress.tick_at(0, at(1_000));
        assert!(progress.has_begun(), "what has ended has begun");
    }

    #[test]
    fn a_node_that_cannot_find_out_which_batches_are_its_own_is_wedged_after_fifteen_seconds() {
        let progress = LoopProgress::new(0);
        let fail = |seconds: std::ops::RangeInclusive<u64>, is_fenced: bool| {
            let mut adopter = progress.adopter();
            seconds.for_each(|second| {
                adopter.streak.failed("no session".to_owned(), FailureCause::Unclear, at(second))
            });
            adopter.is_fenced = is_fenced;
        };
        fail(10..=14, true);
        assert_eq!(progress.failing_adopter(at(14)), None);
        fail(15..=25, false);
        assert_eq!(progress.failing_adopter(at(25)).unwrap().why, "no session");
        assert_eq!(progress.wedged(at(25)), None, "it publishes what it claims");
        fail(24..=24, true);
        assert_eq!(progress.wedged(at(24)), None);
        fail(25..=25, true);
        assert_eq!(progress.wedged(at(25)), Some(Wedged::Adopter));
        progress.adopter().streak.failed("a lock".to_owned(), FailureCause::Lock, at(26));
        assert_eq!(progress.wedged(at(26)), None, "that meets all nodes");
        progress.adopter_succeeded();
        assert_eq!((progress.wedged(at(26)), progress.failing_adopter(at(26))), (None, None));
    }
}
