//! The clocks of the machine. No other module reads them.

use std::time::{Duration, SystemTime};

use rustix::time::{ClockId, clock_gettime};

use crate::domain::{Monotonic, Timestamp};
use crate::engine::cluster_clock::Moment;

/// Returns the monotonic time, which continues during a suspend: a node must notice its sleep.
pub fn monotonic() -> Monotonic {
    static START: std::sync::OnceLock<Duration> = std::sync::OnceLock::new();
    let now = since_boot();
    Monotonic::from_start(now.saturating_sub(*START.get_or_init(|| now)))
}

/// Returns the machine's wall clock, for log lines, the metric of its offset, and the validity of
/// certificates; never for a decision about tasks.
#[expect(clippy::disallowed_methods, reason = "this is the one exempt place")]
pub fn wall() -> Timestamp {
    let since_epoch = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    Timestamp::EPOCH.plus(since_epoch)
}

/// Waits for `span`. Tests wait for observable facts instead.
#[expect(clippy::disallowed_methods, reason = "this is the one exempt place")]
pub async fn sleep(span: Duration) {
    tokio::time::sleep(span).await;
}

fn since_boot() -> Duration {
    read(ClockId::Boottime)
}

/// Returns the current moment by both clocks.
pub(super) fn moment() -> Moment {
    Moment { at: monotonic(), raw: Monotonic::from_start(read(ClockId::MonotonicRaw)) }
}

fn read(clock: ClockId) -> Duration {
    let now = clock_gettime(clock);
    let (seconds, nanos) =
        (u64::try_from(now.tv_sec).unwrap_or(0), u32::try_from(now.tv_nsec).unwrap_or(0));
    Duration::new(seconds, nanos)
}
