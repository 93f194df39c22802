//! This node's estimate of the cluster's clock.
//!
//! Time in a cluster is Postgres's `clock_timestamp()`. A node keeps a lower bound of it, computed
//! from the timestamps in Postgres's answers and the monotonic time since they arrived
//! ([`crate::engine::cluster_clock`] decides). The wall clock of this machine decides nothing.

use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::{Mutex, MutexGuard};

use super::machine::moment;
use crate::domain::{Monotonic, Timestamp};
use crate::engine::cluster_clock::{Stamp, StampedClock, Step};

/// This node's knowledge of the cluster's clock, shared by all parts of the node that need the
/// time.
#[derive(Debug, Default)]
pub struct ClusterClock {
    stamped: Mutex<StampedClock>,
    followed: AtomicU64,
    ahead: AtomicU64,
    back: AtomicU64,
    /// True for the clock of a dev server, whose steps are no news.
    is_of_dev: bool,
}

/// Counts of observed steps of Postgres's clock by more than 500 ms, by the node's reaction.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct StepCounts {
    /// Steps forward that were followed at once.
    pub followed: u64,
    /// Steps forward with a pause of the claims.
    pub ahead: u64,
    /// Steps back with a pause of the claims.
    pub back: u64,
}

impl ClusterClock {
    /// Makes the clock of a dev server, which follows every step at once.
    pub fn of_dev() -> Self {
        let stamped = Mutex::new(StampedClock::following_every_step());
        Self { stamped, is_of_dev: true, ..Self::default() }
    }

    /// Returns a lower bound of Postgres's clock, which is never ahead of it. Returns `None` before
    /// the first timestamp.
    pub fn now(&self) -> Option<Timestamp> {
        self.lock().now(moment())
    }

    /// Returns [`Self::now`], or the time of this machine before the first timestamp.
    pub fn now_or_wall(&self) -> Timestamp {
        self.now().unwrap_or_else(super::wall)
    }

    /// Returns an upper bound of Postgres's clock. Relative due times count from it, so that a task
    /// submitted with a delay is not due sooner than after that delay. Returns `None` before the
    /// first timestamp.
    pub fn at_most(&self) -> Option<Timestamp> {
        self.lock().at_most(moment())
    }

    /// Returns the same upper bound, for a request that arrives now. Also returns `None` after the
    /// machine was suspended, until Postgres has told the time again, because the two bounds would
    /// be far apart.
    pub fn arrival(&self) -> Option<Timestamp> {
        let (clock, moment) = (self.lock(), moment());
        clock.at_most(moment).filter(|_at_most| !clock.is_behind(moment))
    }

    /// Records the timestamp of an answer that was requested at `asked_at` and has just arrived.
    pub fn take_in(&self, at: Timestamp, asked_at: Monotonic) {
        let mut stamped = self.lock();
        // Read under the lock, so that timestamps are recorded in the order of their arrival. A
        // later arrival makes the bound lower, never higher.
        let step = stamped.take_in(Stamp { at, asked_at, arrived_at: moment() });
        drop(stamped);
        if let Some(step) = step {
            self.tell_of(step);
        }
    }

    fn tell_of(&self, step: Step) {
        let (count, Step::Followed(by) | Step::Ahead(by) | Step::Back(by)) =
            (self.count_of(step), step);
        count.fetch_add(1, Ordering::Relaxed);
        let seconds = by.as_secs_f64();
        match step {
            Step::Followed(_) if self.is_of_dev => tracing::debug!(seconds, "the clock was set"),
            Step::Followed(_) => {
                tracing::warn!(seconds, "the clock of Postgres was set forward; following at once");
            }
            Step::Ahead(_) => tracing::error!(
                seconds,
                "the clock of Postgres was set forward by more than 10 s; claims pause for a minute"
            ),
            Step::Back(_) => tracing::error!(
                seconds,
                "the clock of Postgres was set back; claims pause until a minute without another \
                 step"
            ),
        }
    }

    const fn count_of(&self, step: Step) -> &AtomicU64 {
        match step {
            Step::Followed(_) => &self.followed,
            Step::Ahead(_) => &self.ahead,
            Step::Back(_) => &self.back,
        }
    }

    pub fn step_counts(&self) -> StepCounts {
        let read = |count: &AtomicU64| count.load(Ordering::Relaxed);
        StepCounts {
            followed: read(&self.followed),
            ahead: read(&self.ahead),
            back: read(&self.back),
        }
    }

    /// Returns false before the first timestamp, and in the pause after a step of Postgres's clock
    /// that is not followed at once. Claims must wait then.
    pub fn is_steady(&self) -> bool {
        self.lock().is_steady()
    }

    fn lock(&self) -> MutexGuard<'_, StampedClock> {
        self.stamped.lock()
    }
}
