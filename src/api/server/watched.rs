//! A socket that does not wait for ever for a header, or for its other side to read.
//!
//! | wait for | limited by |
//! |---|---|
//! | the first request, its header, the TLS handshake before it | `header_timeout`, here |
//! | the next request | `idle_timeout`, by [`super::connection`] |
//! | the rest of a header (HTTP/1) | `header_timeout`, here |
//! | the rest of a body | `request_deadline`, by [`crate::api::request::body`] |
//! | the other side to read | `answer_timeout`, here; for HTTP/2 streams by [`super::connection`] |
//! | the end of unwanted input | `answer_timeout` and more, by [`super::linger`] |
//!
//! For a lingering close, [`super::linger`] takes over the socket. A timer exists only while the
//! socket waits. A request that arrives whole needs none, nor an answer that the socket takes at
//! once.

use std::future::{Future, poll_fn};
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;

use super::router::Api;
use crate::api::callers::CallerConnection;
use crate::clock;

type Timer = Pin<Box<dyn Future<Output = ()> + Send>>;

pub struct WatchedStream {
    /// `None` after the socket was left for a lingering close.
    stream: Option<TcpStream>,
    api: Api,
    connection: Arc<CallerConnection>,
    /// The number of requests at the time when bytes last came outside of a request. If no request
    /// has begun since, the bytes belong to a header.
    begun: Option<u64>,
    header: Option<Timer>,
    /// Runs from the moment when the other side fell behind until all output is written.
    answer: Option<Timer>,
    /// True when the other side has closed.
    is_at_end: bool,
    is_cut_off: bool,
}

impl WatchedStream {
    pub fn new(stream: TcpStream, api: Api, connection: Arc<CallerConnection>) -> Self {
        Self {
            stream: Some(stream),
            api,
            connection,
            begun: None,
            header: None,
            answer: None,
            is_at_end: false,
            is_cut_off: false,
        }
    }

    fn stream(&mut self) -> io::Result<&mut TcpStream> {
        self.stream.as_mut().ok_or_else(|| io::ErrorKind::NotConnected.into())
    }

    /// Waits for the first byte of the connection, and leaves it to be read again. Returns `None`
    /// when the other side closes instead.
    pub async fn first_byte(&mut self) -> io::Result<Option<u8>> {
        poll_fn(|cx| {
            let mut byte = [0];
            let mut buffer = ReadBuf::new(&mut byte);
            match self.stream()?.poll_peek(cx, &mut buffer) {
                Poll::Pending => self.poll_header(cx).map_ok(|()| None),
                Poll::Ready(peeked) => {
                    self.begun = Some(self.connection.asked());
                    self.is_at_end = buffer.filled().is_empty();
                    Poll::Ready(peeked.map(|_length| buffer.filled().first().copied()))
                }
            }
        })
        .await
    }

    /// True while the connection waits for a header, or for the first request.
    fn awaits_header(&self) -> bool {
        let asked = self.connection.asked();
        // On HTTP/2 any byte may be a ping. Half a header therefore keeps a connection until the
        // idle timeout.
        asked == 0 || (self.begun == Some(asked) && !self.connection.is_multiplexed())
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

    /// True when the other side may still be sending bytes that nobody reads. Closing now would
    /// reset the connection.
    fn must_linger(&self) -> bool {
        let has_begun =
            self.begun == Some(self.connection.asked()) && !self.connection.is_multiplexed();
        !self.is_at_end && !self.is_cut_off && (self.connection.has_rest() || has_begun)
    }

    fn cut_off(&mut self, deadline: &'static str) -> io::Error {
        self.is_cut_off = true;
        self.api.metrics().cut_off(deadline);
        io::Error::new(io::ErrorKind::TimedOut, format!("the other side was too slow: {deadline}"))
    }
}

impl AsyncRead for WatchedStream {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let filled = buffer.filled().len();
        if let Poll::Ready(read) = Pin::new(self.stream()?).poll_read(cx, buffer) {
            self.is_at_end |=
                read.is_err() || (buffer.filled().len() == filled && buffer.remaining() > 0);
            if !self.connection.is_open() {
                self.begun = Some(self.connection.asked());
            }
            return Poll::Ready(read);
        }
        self.poll_header(cx)
    }
}

impl AsyncWrite for WatchedStream {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
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

    /// hyper calls this when all its output is written.
    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let flushed = ready!(Pin::new(self.stream()?).poll_flush(cx));
        self.answer = None;
        if let Some(stream) = &self.stream {
            self.connection.hang_up.give(stream);
        }
        Poll::Ready(flushed)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(self.stream()?).poll_shutdown(cx)
    }
}

impl Drop for WatchedStream {
    /// The socket is left here and not in `poll_shutdown`: hyper does not call that for a
    /// connection whose request asked for an upgrade.
    fn drop(&mut self) {
        if self.must_linger()
            && let Some(stream) = self.stream.take()
        {
            self.connection.leave(stream);
        }
    }
}
