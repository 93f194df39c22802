//! The cluster's clock as this node knows it.
//!
//! Time in a cluster is Postgres's `clock_timestamp()`. A node holds a lower bound of it, made of
//! stamps in Postgres's answers and the monotonic time since they arrived
//! ([`crate::engine::cluster_clock`] decides); the wall clock of this machine decides nothing.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use super::machine::moment;
use crate::domain::{Monotonic, Timestamp};
use crate::engine::cluster_clock::{Stamp, StampedClock, Step};

/// The cluster's clock as this node knows it: shared by everything that must tell the time.
#[derive(Debug, Default)]
pub struct ClusterClock {
    stamped: Mutex<StampedClock>,
    followed: AtomicU64,
    ahead: AtomicU64,
    back: AtomicU64,
}

/// The steps of Postgres's clock by more than 500 ms that were seen, by what followed.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct StepCounts {
    /// Forward, and followed at once.
    pub followed: u64,
    /// Forward, with a pause of the claims.
    pub ahead: u64,
    /// Back, with a pause of the claims.
    pub back: u64,
}

impl ClusterClock {
    /// A lower bound of Postgres's clock: never ahead of it. `None` before the first stamp.
    pub fn now(&self) -> Option<Timestamp> {
        self.lock().now(moment())
    }

    /// An upper bound of Postgres's clock, from which relative times count: what is asked for in so
    /// long is not due sooner. `None` before the first stamp.
    pub fn at_most(&self) -> Option<Timestamp> {
        self.lock().at_most(moment())
    }

    /// The same, for a request that arrives now: `None` as well after the machine was suspended,
    /// until Postgres has told the time again. The bounds would be far apart.
    pub fn arrival(&self) -> Option<Timestamp> {
        let (clock, moment) = (self.lock(), moment());
        clock.at_most(moment).filter(|_at_most| !clock.is_behind(moment))
    }

    /// Takes in the stamp of an answer that was asked for at `asked_at` and has just arrived.
    pub fn take_in(&self, at: Timestamp, asked_at: Monotonic) {
        let mut stamped = self.lock();
        // Read under the lock, so that stamps come in the order of their arrival; a later arrival
        // makes the bound lower, never higher.
        let step = stamped.take_in(Stamp { at, asked_at, arrived_at: moment() });
        drop(stamped);
        if let Some(step) = step {
            self.tell_of(step);
        }
    }

    fn tell_of(&self, step: Step) {
        let (count, Step::Followed(by) | Step::Ahead(by) | Step::Back(by)) = (self.count_of(step), step);
        count.fetch_add(1, Ordering::Relaxed);
        let seconds = by.as_secs_f64();
        match step {
            Step::Followed(_) => {
                tracing::warn!(seconds, "the clock of Postgres was set forward; it is followed at once");
            }
            Step::Ahead(_) => tracing::error!(
                seconds,
                "the clock of Postgres was set forward by more than 10 s: nothing is claimed for a minute"
            ),
            Step::Back(_) => tracing::error!(
                seconds,
                "the clock of Postgres was set back: nothing is claimed until it has not been for a minute"
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
        StepCounts { followed: read(&self.followed), ahead: read(&self.ahead), back: read(&self.back) }
    }

    /// False before the first stamp, and in the pause after a step of Postgres's clock that is not
    /// followed at once: nothing may be claimed then.
    pub fn is_steady(&self) -> bool {
        self.lock().is_steady()
    }

    fn lock(&self) -> MutexGuard<'_, StampedClock> {
        // The state is whole after every statement that changes it: a panic elsewhere does not
        // spoil it.
        self.stamped.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
