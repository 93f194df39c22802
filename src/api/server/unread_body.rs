//! The rest of a body: the part of a request that has not arrived when its answer is made.
//!
//! - A rest that is small and arrives at once is read. The connection goes on as usual.
//! - Over HTTP/1 the answer says `Connection: close`, because the next request begins where a body
//!   ends. Then the connection lingers ([`super::linger`]).
//! - Over HTTP/2 the rest is read beside the answer, within the same limits. Then hyper resets the
//!   stream with `NO_ERROR` (RFC 9113, 8.1), which some clients take for a failure.

use std::mem;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use axum::body::Bytes;
use az::SaturatingAs as _;
use http_body_util::BodyExt as _;
use hyper::body::{Body, Frame, Incoming, SizeHint};
use parking_lot::Mutex;

use super::linger::LingerLimits;

/// Bytes of a rest read before the answer is sent.
const BYTES_MAX: usize = 64 << 10;
/// How long an answer waits for the rest of the body. A client that sends a header and its body in
/// two packets sends the second right after the first.
const WAIT_MAX: Duration = Duration::from_millis(50);

/// The unread part of a body.
#[derive(Debug, Default)]
pub enum UnreadBody {
    #[default]
    Nothing,
    /// The body failed and cannot be read further.
    Broken,
    Unread(Incoming),
}

/// The slot in which a dropped body leaves its rest.
#[derive(Clone, Debug, Default)]
pub struct Left(Arc<Mutex<UnreadBody>>);

impl Left {
    pub fn take(&self) -> UnreadBody {
        mem::take(&mut *self.0.lock())
    }

    fn put(&self, rest: UnreadBody) {
        *self.0.lock() = rest;
    }
}

/// The body of a request. When dropped, it leaves its unread rest in `left`.
pub struct LeavingBody {
    rest: UnreadBody,
    is_at_end: bool,
    left: Left,
}

impl LeavingBody {
    pub const fn new(body: Incoming, left: Left) -> Self {
        Self { rest: UnreadBody::Unread(body), is_at_end: false, left }
    }
}

impl Body for LeavingBody {
    type Data = Bytes;
    type Error = hyper::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, hyper::Error>>> {
        let UnreadBody::Unread(body) = &mut self.rest else { return Poll::Ready(None) };
        let frame = ready!(Pin::new(body).poll_frame(cx));
        match &frame {
            None => self.is_at_end = true,
            Some(Err(_)) => self.rest = UnreadBody::Broken,
            Some(Ok(_)) => {}
        }
        Poll::Ready(frame)
    }

    fn is_end_stream(&self) -> bool {
        self.is_at_end || matches!(&self.rest, UnreadBody::Unread(body) if body.is_end_stream())
    }

    fn size_hint(&self) -> SizeHint {
        match &self.rest {
            UnreadBody::Unread(body) => body.size_hint(),
            UnreadBody::Nothing | UnreadBody::Broken => SizeHint::default(),
        }
    }
}

impl Drop for LeavingBody {
    fn drop(&mut self) {
        if !self.is_end_stream() {
            self.left.put(mem::take(&mut self.rest));
        }
    }
}

/// Reads a rest that is small and arrives at once. Returns true when the body came to its end.
pub async fn is_read(rest: &mut Incoming) -> bool {
    let reading = async {
        let mut read = 0;
        while is_small(rest, read) {
            match rest.frame().await {
                None => return true,
                Some(Err(_)) => return false,
                Some(Ok(frame)) => read += frame.data_ref().map_or(0, Bytes::len),
            }
        }
        false
    };
    tokio::time::timeout(WAIT_MAX, reading).await.unwrap_or(false)
}

/// True while the bytes read, plus those known to come, stay within [`BYTES_MAX`].
fn is_small(rest: &Incoming, read: usize) -> bool {
    let to_come = rest.size_hint().lower().saturating_as::<usize>();
    read.saturating_add(to_come) <= BYTES_MAX
}

/// Reads and discards the rest, within `limits` and while `goes_on` is true. Returns false when a
/// limit or a timeout stopped it.
pub async fn read_on(mut rest: Incoming, limits: LingerLimits, goes_on: impl Fn() -> bool) -> bool {
    let reading = async {
        let mut bytes_left = limits.bytes_max;
        while goes_on() {
            let Ok(frame) = tokio::time::timeout(limits.quiet_max, rest.frame()).await else {
                return false;
            };
            let Some(Ok(frame)) = frame else { return true };
            let read = frame.data_ref().map_or(0, Bytes::len);
            bytes_left = bytes_left.saturating_sub(read.saturating_as::<u64>());
            if bytes_left == 0 {
                return false;
            }
        }
        true
    };
    tokio::time::timeout(limits.longest, reading).await.unwrap_or(false)
}
