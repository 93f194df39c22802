//! A socket that does not wait for ever: for the rest of a header, or for its other side to read.
//!
//! ```text
//! waits for                          held by
//! the first request, its header      `header_timeout`, here
//! the next request                   `idle_timeout`, by [`super::connection`]
//! the rest of a header (HTTP/1)      `header_timeout`, here
//! the rest of a body                 `request_deadline`, by [`crate::api::request::body`]
//! the other side to read             `answer_timeout`, here; of a stream of HTTP/2, by [`super::connection`]
//! ```
//!
//! A timer is made only when there is something to wait for; a request that comes whole and an answer that the socket takes at once make none.

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
    stream: TcpStream,
    api: Api,
    line: Arc<Line>,
    /// How many requests there had been when bytes came last outside of a request: those bytes are a header's, if no request has begun since.
    begun: Option<u64>,
    header: Option<Timer>,
    /// Runs from when the other side first fell behind until all was written.
    answer: Option<Timer>,
}

impl Watched {
    pub fn new(stream: TcpStream, api: Api, line: Arc<Line>) -> Self {
        Self { stream, api, line, begun: None, header: None, answer: None }
    }

    /// True while the header of a request is awaited that has begun, or must begin.
    fn awaits_header(&self) -> bool {
        let asked = self.line.asked();
        // Of HTTP/2 any byte may be a ping: half a header holds a connection there until it is idle for too long.
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

    fn cut_off(&self, deadline: &'static str) -> io::Error {
        self.api.metrics().cut_off(deadline);
        io::Error::new(io::ErrorKind::TimedOut, format!("the other side was too slow: {deadline}"))
    }
}

impl AsyncRead for Watched {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buffer: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        if let Poll::Ready(read) = Pin::new(&mut self.stream).poll_read(cx, buffer) {
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
        match Pin::new(&mut self.stream).poll_write(cx, bytes) {
            Poll::Pending => self.poll_answer(cx),
            written => written,
        }
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        pieces: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        match Pin::new(&mut self.stream).poll_write_vectored(cx, pieces) {
            Poll::Pending => self.poll_answer(cx),
            written => written,
        }
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    /// Called when all that there was is written.
    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let flushed = ready!(Pin::new(&mut self.stream).poll_flush(cx));
        self.answer = None;
        Poll::Ready(flushed)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}
