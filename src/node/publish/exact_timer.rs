//! A timer with microsecond precision for the thread of the wheel. tokio's timer rounds up to the
//! next millisecond and adds about one.

use std::io;
use std::os::fd::OwnedFd;
use std::time::Duration;

use az::SaturatingAs as _;
use rustix::time::{
    Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, Timespec, timerfd_create,
    timerfd_settime,
};
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

/// A timer with one deadline at a time.
#[derive(Debug)]
pub struct ExactTimer {
    descriptor: AsyncFd<OwnedFd>,
}

impl ExactTimer {
    /// # Errors
    /// When the process has no file descriptor left.
    #[expect(
        deprecated,
        reason = "its successor is unsafe, because a type may return another descriptor each time; \
                  an OwnedFd has one descriptor for life"
    )]
    pub fn new() -> io::Result<Self> {
        let descriptor = timerfd_create(
            TimerfdClockId::Monotonic,
            TimerfdFlags::NONBLOCK | TimerfdFlags::CLOEXEC,
        )?;
        Ok(Self { descriptor: AsyncFd::with_interest(descriptor, Interest::READABLE)? })
    }

    /// Waits for at least `span`. Cancel-safe: the next call sets its own deadline.
    pub async fn wait(&self, span: Duration) -> io::Result<()> {
        // Zero would disarm the timer.
        let span = span.max(Duration::from_micros(1));
        let value = Timespec {
            tv_sec: span.as_secs().saturating_as::<i64>(),
            tv_nsec: i64::from(span.subsec_nanos()),
        };
        let once = Itimerspec { it_interval: Timespec { tv_sec: 0, tv_nsec: 0 }, it_value: value };
        timerfd_settime(self.descriptor.get_ref(), TimerfdTimerFlags::empty(), &once)?;
        loop {
            let mut ready = self.descriptor.readable().await?;
            // A read that would block means that the readiness came from an earlier deadline.
            match rustix::io::read(self.descriptor.get_ref(), &mut [0_u8; 8]) {
                Ok(_expirations) => return Ok(()),
                Err(rustix::io::Errno::AGAIN) => ready.clear_ready(),
                Err(error) => return Err(error.into()),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clock;

    #[tokio::test]
    async fn it_waits_as_long_as_it_was_told() {
        let timer = ExactTimer::new().unwrap();
        for micros in [200, 1_500, 0] {
            let began_at = clock::monotonic();
            timer.wait(Duration::from_micros(micros)).await.unwrap();
            assert!(clock::monotonic().since(began_at) >= Duration::from_micros(micros));
        }
    }

    #[tokio::test]
    async fn a_wait_that_was_given_up_does_not_shorten_the_next() {
        let timer = ExactTimer::new().unwrap();
        assert!(
            tokio::time::timeout(Duration::from_millis(1), timer.wait(Duration::from_secs(3)))
                .await
                .is_err()
        );
        let began_at = clock::monotonic();
        timer.wait(Duration::from_millis(10)).await.unwrap();
        assert!(clock::monotonic().since(began_at) >= Duration::from_millis(10));
    }
}
