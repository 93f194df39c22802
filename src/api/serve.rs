//! Connections: accepted within a bound, HTTP/1.1 and HTTP/2 by prior knowledge, ended when the node ends.
//!
//! While the node drains connections are still accepted, so that callers and probes are told; only `stopping` ends them, each after the request that
//! it is at.

use std::convert::Infallible;
use std::io;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use axum::body::Body;
use axum::http::Request;
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use hyper_util::server::conn::auto::Builder;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;
use tokio_util::sync::CancellationToken;

use super::front::Api;
use super::metrics::Counted;
use crate::clock;
use crate::shutdown::{Failure, Tasks};

/// What one connection of HTTP/2 may send before it is read, in bytes; the bound on bodies counts what is read.
const WINDOW_BYTES: u32 = 256 << 10;
const STREAMS_MAX: u32 = 256;
/// Bytes of a request's header, in all: 431 beyond.
const HEADER_BYTES_MAX: u32 = 64 << 10;
/// A connection of HTTP/2 that does not answer a ping is closed.
const PING_INTERVAL: Duration = Duration::from_secs(30);
/// When accepting fails for want of file descriptors: they come back when a connection ends.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// For a connection beyond the bound; there is nobody to read its request.
const TOO_MANY: &[u8] =
    b"HTTP/1.1 503 Service Unavailable\r\ncontent-type: application/problem+json\r\nretry-after: 1\r\nconnection: close\r\n\
content-length: 170\r\n\r\n{\"type\":\"urn:punctual:problem:busy\",\"title\":\"A bound of this node is reached\",\"status\":503,\
\"detail\":\"nothing was done: the bound connections is reached\",\"retry_after\":1}\n";

/// Serves `api` at `listener` until the node stops. Open connections end by themselves, as tasks of `tasks`.
pub async fn serve(listener: TcpListener, api: Api, tasks: Tasks) -> Result<(), Failure> {
    let connections = Arc::new(Semaphore::new(api.settings().connections_max.min(Semaphore::MAX_PERMITS)));
    loop {
        let accepted = tokio::select! {
            accepted = listener.accept() => accepted,
            () = tasks.stopping.cancelled() => return Ok(()),
        };
        let stream = match accepted {
            Ok((stream, _peer)) => stream,
            Err(error) => {
                pause_after(&error).await;
                continue;
            }
        };
        let Ok(permit) = connections.clone().try_acquire_owned() else {
            api.metrics().rejected("connections");
            turn_away(&stream);
            continue;
        };
        let (api, stopping) = (api.clone(), tasks.stopping.clone());
        tasks.spawn("connection", async move {
            converse(stream, api, stopping).await;
            drop(permit);
            Ok(())
        });
    }
}

async fn pause_after(error: &io::Error) {
    let is_of_one_connection =
        matches!(error.kind(), io::ErrorKind::ConnectionAborted | io::ErrorKind::ConnectionReset | io::ErrorKind::Interrupted);
    if !is_of_one_connection {
        tracing::warn!(%error, "accept a connection; is the limit on open files too low?");
        clock::sleep(ACCEPT_PAUSE).await;
    }
}

fn turn_away(stream: &TcpStream) {
    // A socket that was just opened has room for this; if it has not, the caller sees a closed connection.
    if let Err(error) = stream.try_write(TOO_MANY) {
        tracing::debug!(%error, "tell a caller that there are too many connections");
    }
}

async fn converse(stream: TcpStream, api: Api, stopping: CancellationToken) {
    // Without it an answer may wait 40 ms for the caller's delayed acknowledgement.
    if let Err(error) = stream.set_nodelay(true) {
        tracing::debug!(%error, "set TCP_NODELAY");
    }
    let metrics = api.metrics().clone();
    let _counted = Counted::new(&metrics.connections, 1);
    let header_read_timeout = api.settings().header_read_timeout;
    let builder = builder_of(header_read_timeout);
    let has_asked = Arc::new(AtomicBool::new(false));
    let asked = has_asked.clone();
    let answer = service_fn(move |request: Request<Incoming>| {
        asked.store(true, Ordering::Relaxed);
        let api = api.clone();
        async move { Ok::<_, Infallible>(api.answer(request.map(Body::new)).await) }
    });
    let mut connection = pin!(builder.serve_connection(TokioIo::new(stream), answer));
    // hyper's own timeout begins once the version of HTTP is known: who sends nothing, or half a preface, is not held by it.
    let mut first_request = pin!(clock::sleep(header_read_timeout));
    let (mut is_first, mut is_stopping) = (true, false);
    loop {
        tokio::select! {
            served = connection.as_mut() => {
                if let Err(error) = served {
                    tracing::debug!(error = error.as_ref(), "a connection ended early");
                }
                return;
            }
            () = stopping.cancelled(), if !is_stopping => {
                is_stopping = true;
                connection.as_mut().graceful_shutdown();
            }
            () = first_request.as_mut(), if is_first => {
                is_first = false;
                if !has_asked.load(Ordering::Relaxed) {
                    return;
                }
            }
        }
    }
}

fn builder_of(header_read_timeout: Duration) -> Builder<TokioExecutor> {
    let mut builder = Builder::new(TokioExecutor::new());
    builder.http1().timer(TokioTimer::new()).header_read_timeout(header_read_timeout).max_buf_size(128 << 10);
    builder
        .http2()
        .timer(TokioTimer::new())
        .keep_alive_interval(PING_INTERVAL)
        .max_concurrent_streams(STREAMS_MAX)
        .initial_stream_window_size(WINDOW_BYTES)
        .initial_connection_window_size(WINDOW_BYTES)
        .max_header_list_size(HEADER_BYTES_MAX);
    builder
}
