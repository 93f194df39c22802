//! A lingering close: reads and discards input for a while after the last answer of a connection.
//!
//! Closing a socket with unread bytes resets it, and the reset overtakes the answer. A caller that
//! is still sending would see a broken pipe and never learn the reason. So the server first closes
//! its sending side, then reads until the caller has closed its own side, or until a limit. The
//! bytes are not kept: a lingering connection takes [`PIECE_BYTES`] while polled, and no place
//! among the requests.

use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use az::SaturatingAs as _;
use tokio::io::{AsyncRead, ReadBuf};

use crate::clock;

type Timer = Pin<Box<dyn Future<Output = ()> + Send>>;

/// Bytes read at a time, on the stack.
const PIECE_BYTES: usize = 8 << 10;
/// The smallest limit on discarded bytes, however small the limit on bodies is. A caller that sends
/// several times too much can still read the answer.
const BYTES_MIN: u64 = 64 << 20;
/// The limit on discarded bytes, as a multiple of the largest body.
const BODIES_MAX: u64 = 4;
/// How long a caller may neither send anything nor close its side. nginx waits as long
/// (`lingering_timeout`).
const QUIET_MAX: Duration = Duration::from_secs(5);

/// The result of a lingering close.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum End {
    /// The caller has closed its side, or is gone.
    Closed,
    /// The caller sent too much, sent for too long, or paused for too long.
    CutOff,
}

/// The limits of a lingering close.
#[derive(Clone, Copy, Debug)]
pub struct LingerLimits {
    pub bytes_max: u64,
    pub longest: Duration,
    pub quiet_max: Duration,
}

impl LingerLimits {
    /// Returns limits for a close that takes `longest` at most; `body_bytes_max` is the limit on
    /// bodies.
    pub fn new(body_bytes_max: usize, longest: Duration) -> Self {
        let bodies = body_bytes_max.saturating_as::<u64>().saturating_mul(BODIES_MAX);
        Self { bytes_max: bodies.max(BYTES_MIN), longest, quiet_max: QUIET_MAX }
    }
}

pub struct Linger {
    bytes_left: u64,
    quiet_max: Duration,
    longest: Timer,
    quiet: Option<Timer>,
}

impl Linger {
    pub fn new(limits: LingerLimits) -> Self {
        let longest = Box::pin(clock::sleep(limits.longest));
        Self { bytes_left: limits.bytes_max, quiet_max: limits.quiet_max, longest, quiet: None }
    }

    /// Reads and discards the bytes that `stream` has ready.
    pub fn poll(
        &mut self,
        stream: &mut (impl AsyncRead + Unpin),
        cx: &mut Context<'_>,
    ) -> Poll<End> {
        if self.longest.as_mut().poll(cx).is_ready() {
            return Poll::Ready(End::CutOff);
        }
        loop {
            let mut piece = [0; PIECE_BYTES];
            let mut buffer = ReadBuf::new(&mut piece);
            let Poll::Ready(read) = Pin::new(&mut *stream).poll_read(cx, &mut buffer) else {
                break;
            };
            if read.is_err() || buffer.filled().is_empty() {
                return Poll::Ready(End::Closed);
            }
            self.quiet = None;
            self.bytes_left =
                self.bytes_left.saturating_sub(buffer.filled().len().saturating_as::<u64>());
            if self.bytes_left == 0 {
                return Poll::Ready(End::CutOff);
            }
        }
        let quiet_max = self.quiet_max;
        let quiet = self.quiet.get_or_insert_with(|| Box::pin(clock::sleep(quiet_max)));
        quiet.as_mut().poll(cx).map(|()| End::CutOff)
    }
}

#[cfg(test)]
mod tests {
    use std::future::{pending, poll_fn};

    use tokio::io::{AsyncWriteExt as _, duplex};

    use super::*;

    const SOON: Duration = Duration::from_millis(50);
    const LONG: Duration = Duration::from_secs(60);

    #[tokio::test]
    async fn a_caller_that_closes_its_side_is_waited_for() {
        let (mut caller, mut node) = duplex(64 << 10);
        let mut linger = Linger::new(LingerLimits::new(1, LONG));
        caller.write_all(&[b'x'; 60 << 10]).await.unwrap();
        drop(caller);
        assert_eq!(poll_fn(|cx| linger.poll(&mut node, cx)).await, End::Closed);
    }

    #[tokio::test]
    async fn a_silent_caller_is_cut_off() {
        let (_caller, mut node) = duplex(64);
        let mut linger =
            Linger::new(LingerLimits { bytes_max: 10, longest: LONG, quiet_max: SOON });
        assert_eq!(poll_fn(|cx| linger.poll(&mut node, cx)).await, End::CutOff);
    }

    #[tokio::test]
    async fn a_caller_that_trickles_is_cut_off() {
        let (mut caller, mut node) = duplex(64);
        let mut linger =
            Linger::new(LingerLimits { bytes_max: 1 << 20, longest: 4 * SOON, quiet_max: LONG });
        let trickle = async {
            loop {
                caller.write_all(b"x").await.unwrap();
                tokio::time::timeout(SOON / 10, pending::<()>()).await.ok();
            }
        };
        tokio::select! {
            end = poll_fn(|cx| linger.poll(&mut node, cx)) => assert_eq!(end, End::CutOff),
            () = trickle => {}
        }
    }

    #[tokio::test]
    async fn a_caller_that_never_stops_is_cut_off_at_so_many_bytes() {
        let (mut caller, mut node) = duplex(256 << 10);
        let mut linger = Linger::new(LingerLimits::new(20 << 20, LONG));
        let mut sent: usize = 0;
        let send = async {
            loop {
                sent += caller.write(&[b'x'; 64 << 10]).await.unwrap();
            }
        };
        tokio::select! {
            end = poll_fn(|cx| linger.poll(&mut node, cx)) => assert_eq!(end, End::CutOff),
            () = send => {}
        }
        assert!((80 << 20..81 << 20).contains(&sent), "{sent}");
    }
}
