//! The cluster's clock as this node knows it.
//!
//! Time in a cluster is Postgres's `clock_timestamp()`. A node holds a lower bound of it, made of stamps in Postgres's answers and the monotonic time
//! since they arrived ([`crate::engine::cluster_clock`] decides); the wall clock of this machine decides nothing.

use std::sync::{Mutex, MutexGuard, PoisonError};

use super::machine::moment;
use crate::domain::{Monotonic, Timestamp};
use crate::engine::cluster_clock::{Stamp, StampedClock};

/// The cluster's clock as this node knows it: shared by everything that must tell the time.
#[derive(Debug, Default)]
pub struct ClusterClock {
    stamped: Mutex<StampedClock>,
}

impl ClusterClock {
    /// A lower bound of Postgres's clock: never ahead of it. `None` before the first stamp.
    pub fn now(&self) -> Option<Timestamp> {
        self.lock().now(moment())
    }

    /// The same, for what begins now: `None` as well after the machine was suspended, until Postgres has told the time again. The bound would be far behind.
    pub fn now_for_submits(&self) -> Option<Timestamp> {
        let (clock, moment) = (self.lock(), moment());
        clock.now(moment).filter(|_now| !clock.is_behind(moment))
    }

    /// Takes in the stamp of an answer that was asked for at `asked_at` and has just arrived.
    pub fn take_in(&self, at: Timestamp, asked_at: Monotonic) {
        let mut stamped = self.lock();
        // Read under the lock, so that stamps come in the order of their arrival; a later arrival makes the bound lower, never higher.
        let has_jumped = stamped.take_in(Stamp { at, asked_at, arrived_at: moment() });
        drop(stamped);
        if has_jumped {
            tracing::error!(
                "the clock of Postgres has jumped by more than 500 ms: nothing is claimed until it has held for a minute"
            );
        }
    }

    /// False before the first stamp, and until Postgres's clock has held for a minute after a jump: nothing may be claimed then.
    pub fn is_steady(&self) -> bool {
        self.lock().is_steady()
    }

    fn lock(&self) -> MutexGuard<'_, StampedClock> {
        // The state is whole after every statement that changes it: a panic elsewhere does not spoil it.
        self.stamped.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
