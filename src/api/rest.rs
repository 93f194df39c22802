//! The rest of a body: what is still to come of a request over HTTP/1 when its answer is made.
//!
//! The next request begins where a body ends. So a rest that is small and there is read, and the connection kept; else the answer says
//! `Connection: close`, and the connection lingers ([`super::linger`]). A stream of HTTP/2 has an end of its own: the library resets it
//! with `NO_ERROR` behind the answer (RFC 9113, 8.1).

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use axum::body::Bytes;
use http_body_util::BodyExt as _;
use hyper::body::{Body, Frame, Incoming, SizeHint};

use super::line::Line;

/// So much is read to keep a connection.
const BYTES_MAX: usize = 64 << 10;
/// So long an answer waits for it. A client that sends a header and its body in two packets sends them one right after the other.
const WAIT_MAX: Duration = Duration::from_millis(50);

/// The body of a request over HTTP/1: what nobody has read of it stays with its connection.
pub struct LinedBody {
    /// `None` once it cannot be read on, or was handed over.
    body: Option<Incoming>,
    line: Arc<Line>,
    is_at_end: bool,
}

impl LinedBody {
    pub const fn new(body: Incoming, line: Arc<Line>) -> Self {
        Self { body: Some(body), line, is_at_end: false }
    }
}

impl Body for LinedBody {
    type Data = Bytes;
    type Error = hyper::Error;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, hyper::Error>>> {
        let Some(body) = self.body.as_mut() else { return Poll::Ready(None) };
        let frame = ready!(Pin::new(body).poll_frame(cx));
        match &frame {
            None => self.is_at_end = true,
            Some(Err(_)) => self.body = None,
            Some(Ok(_)) => {}
        }
        Poll::Ready(frame)
    }

    fn is_end_stream(&self) -> bool {
        self.is_at_end || self.body.as_ref().is_some_and(Body::is_end_stream)
    }

    fn size_hint(&self) -> SizeHint {
        self.body.as_ref().map_or_else(SizeHint::default, Body::size_hint)
    }
}

impl Drop for LinedBody {
    fn drop(&mut self) {
        if !self.is_end_stream() {
            self.line.leave_rest(self.body.take());
        }
    }
}

/// Reads what is small and comes at once. True when that was all.
pub async fn is_read(mut rest: Incoming) -> bool {
    let is_small = |rest: &Incoming, read: usize| {
        let to_come = usize::try_from(rest.size_hint().lower()).unwrap_or(usize::MAX);
        read.saturating_add(to_come) <= BYTES_MAX
    };
    let reading = async {
        let mut read = 0;
        while is_small(&rest, read) {
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
