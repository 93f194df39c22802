//! One connection, from the first byte to the end: HTTP/1.1, or HTTP/2 by prior knowledge or by
//! ALPN.
//!
//! Slow callers are cut off (see [`super::watched`]). Idle connections are closed. An HTTP/2 stream
//! whose caller does not open its window is reset alone, because the rest of the connection may be
//! healthy.

use std::convert::Infallible;
use std::error::Error;
use std::future::{Future, poll_fn};
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use axum::body::Body;
use axum::http::{Request, Version};
use az::SaturatingAs as _;
use hyper::body::{Body as _, Incoming};
use hyper::rt::Executor;
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use hyper_util::server::conn::auto::Builder;
use tokio::io::{AsyncRead, AsyncWrite, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio_util::sync::CancellationToken;

use super::console;
use super::linger::{End, Linger, LingerLimits};
use super::router::Api;
use super::tls::Acceptor;
use super::tls::handshake::{Secured, VerifiedPeer, shake_hands};
use super::unread_body::{LeavingBody, Left};
use super::watched::WatchedStream;
use crate::api::callers::{Caller, CallerConnection};
use crate::api::handlers::feedback::pop;
use crate::api::shared::ApiSettings;
use crate::clock;
use crate::telemetry::CountGuard;

/// Bytes that one HTTP/2 connection may send ahead. The limit on bodies counts only read bytes.
const WINDOW_BYTES: u32 = 256 << 10;
/// Bytes per HTTP/1 connection that are read ahead of a request, or wait to be written; more if a
/// larger header is allowed.
const BUFFER_BYTES: usize = 64 << 10;
/// Headers up to this many times the limit are read, so the answer can be a problem. Beyond it
/// hyper answers.
const HEADER_SLACK: usize = 2;
/// The interval of pings. An HTTP/2 connection that does not answer a ping within [`PONG_TIMEOUT`]
/// is closed.
const PING_INTERVAL: Duration = Duration::from_secs(30);
const PONG_TIMEOUT: Duration = Duration::from_secs(20);
/// HTTP/2 streams that may be reset before the server has accepted them. A caller beyond this
/// number opens and resets streams in a loop, and is cut off.
const RESET_STREAMS_MAX: usize = 20;

/// How long a caller that goes on sending may delay the end of the node.
const LINGER_AT_END_MAX: Duration = Duration::from_secs(1);

/// Answers the requests of `stream` until it ends, then lingers if the other side may still be
/// sending. With an acceptor, the connection begins with a TLS handshake.
pub async fn converse(
    stream: TcpStream,
    caller: Caller,
    api: Api,
    acceptor: Option<Acceptor>,
    stopping: CancellationToken,
) {
    // With Nagle's algorithm an answer may wait 40 ms for the caller's delayed acknowledgement.
    if let Err(error) = stream.set_nodelay(true) {
        tracing::debug!(%error, "set TCP_NODELAY");
    }
    let _counted = CountGuard::new(&api.metrics().connections, 1);
    let connection = Arc::new(CallerConnection::new(caller, clock::monotonic()));
    let watched = WatchedStream::new(stream, api.clone(), connection.clone());
    match acceptor {
        None => serve(watched, None, &api, &connection, &stopping).await,
        // The state of TLS is large, and connections without it should not carry its size.
        Some(acceptor) => {
            let served = serve_securely(watched, &acceptor, &api, &connection, &stopping);
            Box::pin(served).await;
        }
    }
    if let Some(stream) = connection.take_left() {
        linger(stream, &api, &stopping).await;
    }
}

/// Discards the bytes of the other side until the answer was read.
async fn linger(mut stream: TcpStream, api: &Api, stopping: &CancellationToken) {
    let settings = api.settings();
    let is_ending = stopping.is_cancelled();
    let longest = if is_ending {
        LINGER_AT_END_MAX.min(settings.answer_timeout)
    } else {
        settings.answer_timeout
    };
    let mut linger = Linger::new(LingerLimits::new(settings.body_bytes_max, longest));
    if stream.shutdown().await.is_err() {
        // The other side is gone.
        return;
    }
    tokio::select! {
        end = poll_fn(|cx| linger.poll(&mut stream, cx)) => if end == End::CutOff {
            api.metrics().cut_off("rest");
        },
        () = stopping.cancelled(), if !is_ending => {}
    }
}

async fn serve_securely(
    stream: WatchedStream,
    acceptor: &Acceptor,
    api: &Api,
    connection: &Arc<CallerConnection>,
    stopping: &CancellationToken,
) {
    let shaken = stopping.run_until_cancelled(shake_hands(stream, acceptor)).await;
    match shaken {
        Some(Ok(Some(Secured { stream, peer }))) => {
            serve(stream, peer, api, connection, stopping).await
        }
        Some(Err(error)) => {
            api.metrics().handshake_failed();
            let caller = connection.caller.address();
            tracing::debug!(%error, %caller, "a TLS handshake failed");
        }
        Some(Ok(None)) | None => {}
    }
}

async fn serve<S>(
    stream: S,
    peer: Option<VerifiedPeer>,
    api: &Api,
    connection: &Arc<CallerConnection>,
    stopping: &CancellationToken,
) where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let (metrics, settings) = (api.metrics().clone(), api.settings().clone());
    let mut ending = pin!(ending_of(peer.clone(), stopping));
    let builder = builder_of(&settings, Streams { api: api.clone() });
    let (asked_on, api) = (connection.clone(), api.clone());
    let answer = service_fn(move |request: Request<Incoming>| {
        let is_multiplexed = request.version() >= Version::HTTP_2;
        let mut place = api.place(&asked_on, is_multiplexed);
        let api = api.clone();
        let mut request = request.map(|body| {
            if body.is_end_stream() {
                return Body::empty();
            }
            let left = Left::default();
            place.note_unread_rest(left.clone());
            Body::new(LeavingBody::new(body, left))
        });
        if let Some(peer) = &peer {
            request.extensions_mut().insert(Arc::clone(&peer.certificate));
        }
        // Only a pop asks for it, and an extension costs each request an allocation.
        if !is_multiplexed && pop::is_pop(request.uri()) {
            request.extensions_mut().insert(Arc::clone(&asked_on));
        }
        async move { Ok::<_, Infallible>(console::answer(&api, place, request).await) }
    });
    let mut http = pin!(builder.serve_connection(TokioIo::new(stream), answer));
    let mut look_again = pin!(clock::sleep(settings.idle_timeout));
    let (mut is_ending, mut is_leaving) = (false, false);
    loop {
        tokio::select! {
            served = http.as_mut() => {
                if let Err(error) = served {
                    if is_header_too_large(error.as_ref()) {
                        metrics.rejected("header_bytes");
                    }
                    tracing::debug!(error = error.as_ref(), "a connection ended early");
                }
                return;
            }
            () = ending.as_mut(), if !is_ending => {
                is_ending = true;
                http.as_mut().graceful_shutdown();
                if !is_leaving {
                    look_again.set(clock::sleep(longest_stream(&settings)));
                }
            }
            () = look_again.as_mut() => {
                // A caller of HTTP/2 may ignore the end that was announced, and go on. No stream
                // from before lasts longer.
                if is_leaving || (is_ending && connection.is_multiplexed()) {
                    return;
                }
                let idle = connection.idle_for(clock::monotonic());
                let left = idle.map(|idle| settings.idle_timeout.saturating_sub(idle));
                if left == Some(Duration::ZERO) {
                    // The graceful shutdown tells an HTTP/2 caller, so it can safely repeat a
                    // request which was already under way.
                    metrics.cut_off("idle");
                    is_leaving = true;
                    http.as_mut().graceful_shutdown();
                    look_again.set(clock::sleep(settings.answer_timeout));
                } else {
                    look_again.set(clock::sleep(left.unwrap_or(settings.idle_timeout)));
                }
            }
        }
    }
}

/// Waits until the node stops, the certificate of the caller has expired, or other authorities or
/// revocation lists count. The caller then needs another connection, with a valid certificate.
async fn ending_of(peer: Option<VerifiedPeer>, stopping: &CancellationToken) {
    let Some(VerifiedPeer { certificate, is_outdated }) = peer else {
        return stopping.cancelled().await;
    };
    tokio::select! {
        () = clock::sleep(certificate.until.since(clock::wall())) => {}
        () = is_outdated.cancelled() => {}
        () = stopping.cancelled() => {}
    }
}

/// Returns the longest time of a stream of HTTP/2: of a request, and of writing its answer.
fn longest_stream(settings: &ApiSettings) -> Duration {
    settings.request_deadline.saturating_add(settings.answer_timeout)
}

/// True when hyper has answered 431 itself.
fn is_header_too_large(error: &(dyn Error + Send + Sync + 'static)) -> bool {
    error.downcast_ref::<hyper::Error>().is_some_and(hyper::Error::is_parse_too_large)
}

fn builder_of(settings: &ApiSettings, streams: Streams) -> Builder<Streams> {
    let header_bytes = settings.header_bytes_max.saturating_mul(HEADER_SLACK);
    let mut builder = Builder::new(streams);
    builder
        .http1()
        // hyper's own timeout would apply to the wait for the next request, too.
        .header_read_timeout(None)
        .max_buf_size(header_bytes.max(BUFFER_BYTES))
        // hyper's own limit of 100 fields stays: it is an array on the stack, while room for any
        // other number is filled for each request, 5 % of the CPU of a small submit.
        // A caller may close the sending side after a request. A vanished caller looks the same
        // until the node writes, so the request runs to the end or the deadline. Only a pop looks
        // for it: see [`super::hang_up`].
        .half_close(true);
    builder
        .http2()
        .timer(TokioTimer::new())
        .keep_alive_interval(PING_INTERVAL)
        .keep_alive_timeout(PONG_TIMEOUT)
        .max_concurrent_streams(settings.streams_max)
        .max_pending_accept_reset_streams(RESET_STREAMS_MAX)
        .initial_stream_window_size(WINDOW_BYTES)
        .initial_connection_window_size(WINDOW_BYTES)
        // hyper takes the next piece of a stream's answer only when the piece before is with the
        // connection: see [`super::answer`].
        .max_send_buf_size(1)
        .max_header_list_size(header_bytes.saturating_as::<u32>());
    builder
}

/// Runs the streams of HTTP/2, each for [`longest_stream`] at most.
#[derive(Clone)]
struct Streams {
    api: Api,
}

impl<F> Executor<F> for Streams
where
    F: Future<Output = ()> + Send + 'static,
{
    fn execute(&self, stream: F) {
        let api = self.api.clone();
        let longest = longest_stream(api.settings());
        TokioExecutor::new().execute(async move {
            // Dropping a stream resets it.
            if tokio::time::timeout(longest, stream).await.is_err() {
                api.metrics().cut_off("answer");
            }
        });
    }
}
