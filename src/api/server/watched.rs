//! A socket that does not wait for ever: for the rest of a header, or for its other side to read.
//!
//! ```text
//! waits for                          held by
//! the first request, its header      `header_timeout`, here
//! the next request                   `idle_timeout`, by [`super::connection`]
//! the rest of a header (HTTP/1)      `header_timeout`, here
//! the rest of a body                 `request_deadline`, by [`crate::api::request::body`]
//! the other side to read             `answer_timeout`, here; of a stream of HTTP/2, by [`super::connection`]
//! the end of what nobody reads       `answer_timeout` and more limits, by [`super::linger`], to which the socket is left
//! ```
//!
//! A timer is made only when there is something to wait for; a request that comes whole and an
//! answer that the socket takes at once make none.

use std::future::Future;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;

use super::router::Api;
use crate::api::line::Line;
use crate::clock;

type Timer = Pin<Box<dyn Future<Output = ()> + Send>>;

pub struct Watched {
    /// Taken when it is left to whoever reads on.
    stream: Option<TcpStream>,
    api: Api,
    line: Arc<Line>,
    /// How many requests there had been when bytes came last outside of a request: those bytes are
    /// a header's, if no request has begun since.
    begun: Option<u64>,
    header: Option<Timer>,
    /// Runs from when the other side first fell behind until all was written.
    answer: Option<Timer>,
    /// True when the other side has closed.
    is_at_end: bool,
    is_cut_off: bool,
}

impl Watched {
    pub fn new(stream: TcpStream, api: Api, line: Arc<Line>) -> Self {
        Self { stream: Some(stream), api, line, begun: None, header: None, answer: None, is_at_end: false, is_cut_off: false }
    }

    fn stream(&mut self) -> io::Result<&mut TcpStream> {
        self.stream.as_mut().ok_or_else(|| io::ErrorKind::NotConnected.into())
    }

    /// True while the header of a request is awaited that has begun, or must begin.
    fn awaits_header(&self) -> bool {
        let asked = self.line.asked();
        // Of HTTP/2 any byte may be a ping: half a header holds a connection there until it is idle
        // for too long.
        asked == 0 || (self.begun == Some(asked) && !self.line.is_multiplexed())
    }

    fn poll_header(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        if !self.awaits_header() {
            self.header = None;
            return Poll::Pending;
        }
        let timeout = self.api.settings().header_timeout;
        let timer = self.header.get_or_insert_with(|| Box::pin(clock::sleep(timeout)));
        ready!(timer.as_mut().poll(cx));
        Poll::Ready(Err(self.cut_off("header")))
    }

    fn poll_answer(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<usize>> {
        let timeout = self.api.settings().answer_timeout;
        let timer = self.answer.get_or_insert_with(|| Box::pin(clock::sleep(timeout)));
        ready!(timer.as_mut().poll(cx));
        Poll::Ready(Err(self.cut_off("answer")))
    }

    /// True when the other side has not been heard to its end: it sends what nobody reads, and a
    /// close now would reset the connection.
    fn must_linger(&self) -> bool {
        let has_begun = self.begun == Some(self.line.asked()) && !self.line.is_multiplexed();
        !self.is_at_end && !self.is_cut_off && (self.line.has_rest() || has_begun)
    }

    fn cut_off(&mut self, deadline: &'static str) -> io::Error {
        self.is_cut_off = true;
        self.api.metrics().cut_off(deadline);
        io::Error::new(io::ErrorKind::TimedOut, format!("the other side was too slow: {deadline}"))
    }
}

impl AsyncRead for Watched {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buffer: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let filled = buffer.filled().len();
        if let Poll::Ready(read) = Pin::new(self.stream()?).poll_read(cx, buffer) {
            self.is_at_end |= read.is_err() || (buffer.filled().len() == filled && buffer.remaining() > 0);
            if !self.line.is_open() {
                self.begun = Some(self.line.asked());
            }
            return Poll::Ready(read);
        }
        self.poll_header(cx)
    }
}

impl AsyncWrite for Watched {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        match Pin::new(self.stream()?).poll_write(cx, bytes) {
            Poll::Pending => self.poll_answer(cx),
            written => written,
        }
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        pieces: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        match Pin::new(self.stream()?).poll_write_vectored(cx, pieces) {
            Poll::Pending => self.poll_answer(cx),
            written => written,
        }
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.as_ref().is_some_and(AsyncWrite::is_write_vectored)
    }

    /// Called when all that there was is written.
    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let flushed = ready!(Pin::new(self.stream()?).poll_flush(cx));
        self.answer = None;
        Poll::Ready(flushed)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(self.stream()?).poll_shutdown(cx)
    }
}

impl Drop for Watched {
    /// Here and not in `poll_shutdown`, which the library does not call of a connection whose
    /// request asked for an upgrade.
    fn drop(&mut self) {
        if self.must_linger()
            && let Some(stream) = self.stream.take()
        {
            self.line.leave(stream);
        }
    }
}
