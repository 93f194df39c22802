//! The only reader of this machine's clocks, and the cluster's clock as this node knows it.
//!
//! Time in a cluster is Postgres's `clock_timestamp()`. A node holds a lower bound of it, made of stamps in Postgres's answers and the monotonic time
//! since they arrived ([`crate::engine::cluster_clock`] decides); the wall clock of this machine decides nothing.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime};

use rustix::time::{ClockId, clock_gettime};

use crate::domain::{Monotonic, Timestamp};
use crate::engine::cluster_clock::{Moment, Stamp, StampedClock};

/// The monotonic time now. It goes on while the machine is suspended: a node that slept must know that it did.
pub fn monotonic() -> Monotonic {
    static START: std::sync::OnceLock<Duration> = std::sync::OnceLock::new();
    let now = since_boot();
    Monotonic::from_start(now.saturating_sub(*START.get_or_init(|| now)))
}

/// This machine's wall clock: for log lines and the metric of its offset, never for a decision.
#[expect(clippy::disallowed_methods, reason = "this is the one exempt place")]
pub fn wall() -> Timestamp {
    let since_epoch = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    Timestamp::EPOCH.plus(since_epoch)
}

/// Waits for `span`. Tests wait for facts instead.
#[expect(clippy::disallowed_methods, reason = "this is the one exempt place")]
pub async fn sleep(span: Duration) {
    tokio::time::sleep(span).await;
}

fn since_boot() -> Duration {
    read(ClockId::Boottime)
}

/// Now, by both clocks.
fn moment() -> Moment {
    Moment { at: monotonic(), raw: Monotonic::from_start(read(ClockId::MonotonicRaw)) }
}

fn read(clock: ClockId) -> Duration {
    let now = clock_gettime(clock);
    let (seconds, nanos) = (u64::try_from(now.tv_sec).unwrap_or(0), u32::try_from(now.tv_nsec).unwrap_or(0));
    Duration::new(seconds, nanos)
}

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
