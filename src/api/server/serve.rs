//! Accepts connections, within the limits per caller and in total, and ends them with the node.
//!
//! A draining node still accepts connections, so callers and probes learn its state. Only
//! `stopping` ends the connections, each after its current request.

use std::future::poll_fn;
use std::io;
use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::time::Duration;

use axum::http::{HeaderValue, header};
use axum::response::Response;
use futures_util::FutureExt as _;
use http_body_util::BodyExt as _;
use tokio::io::AsyncWriteExt as _;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;

use super::connection::converse;
use super::linger::{Linger, LingerLimits};
use super::router::Api;
use super::tls::Acceptor;
use crate::api::callers::Callers;
use crate::api::problems::problem::Problem;
use crate::api::request::request_id::{REQUEST_ID, RequestId};
use crate::clock;
use crate::domain::Throttle;
use crate::shutdown::{TaskFailure, Tasks};

/// The pause after accepting failed for lack of file descriptors. Descriptors become free when a
/// connection ends.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);
/// Rejected connections that linger at the same time, until the callers have their answers. Others
/// are closed at once.
const TURNED_AWAY_MAX: usize = 64;
const TURN_AWAY_MAX: Duration = Duration::from_secs(2);
/// The shortest interval between two log lines about a failed accept, which then fails at every
/// retry.
const LOG_ACCEPT_EVERY: Duration = Duration::from_secs(60);

/// Serves `api` at `listener` until the node stops, over TLS when there is an acceptor. Open
/// connections end by themselves, as tasks of `tasks`.
pub async fn serve(
    listener: TcpListener,
    api: Api,
    acceptor: Option<Acceptor>,
    tasks: Tasks,
) -> Result<(), TaskFailure> {
    let connections =
        Arc::new(Semaphore::new(api.settings().connections_max.min(Semaphore::MAX_PERMITS)));
    let (callers, turned_away) = (Callers::default(), TurnedAway::new(&api, &tasks));
    let is_secure = acceptor.is_some();
    let mut accept_log = Throttle::new(LOG_ACCEPT_EVERY);
    loop {
        let accepted = tokio::select! {
            accepted = listener.accept() => accepted,
            () = tasks.stopping.cancelled() => return Ok(()),
        };
        let (stream, peer) = match accepted {
            Ok(accepted) => accepted,
            Err(error) => {
                pause_after(&error, &mut accept_log).await;
                continue;
            }
        };
        let connections_max = api.settings().caller_connections_max;
        let Some(caller) = callers.enter(peer.ip(), connections_max) else {
            api.metrics().rejected("caller_connections");
            api.log_refused_caller("caller_connections", peer.ip());
            let problem = Problem::too_many_connections(peer.ip(), connections_max);
            turned_away.answer(stream, is_secure, &problem);
            continue;
        };
        let Ok(permit) = connections.clone().try_acquire_owned() else {
            api.metrics().rejected("connections");
            turned_away.answer(stream, is_secure, &Problem::busy("connections"));
            continue;
        };
        let (api, acceptor) = (api.clone(), acceptor.clone());
        let stopping = tasks.stopping.clone();
        tasks.spawn("connection", async move {
            // A request that meets a bug must not end the node.
            let conversation = converse(stream, caller, api, acceptor, stopping);
            if AssertUnwindSafe(conversation).catch_unwind().await.is_err() {
                tracing::error!("a connection is closed, because the code for it has panicked");
            }
            drop(permit);
            Ok(())
        });
    }
}

async fn pause_after(error: &io::Error, accept_log: &mut Throttle) {
    let is_of_one_connection = matches!(
        error.kind(),
        io::ErrorKind::ConnectionAborted
            | io::ErrorKind::ConnectionReset
            | io::ErrorKind::Interrupted
    );
    if !is_of_one_connection {
        if accept_log.lets_through(clock::monotonic()) {
            tracing::warn!(
                %error,
                "cannot accept a connection; the limit on open files may be too low (logged once a \
                 minute at most)"
            );
        }
        clock::sleep(ACCEPT_PAUSE).await;
    }
}

/// Answers connections beyond a limit.
struct TurnedAway {
    body_bytes_max: usize,
    places: Arc<Semaphore>,
    tasks: Tasks,
}

impl TurnedAway {
    fn new(api: &Api, tasks: &Tasks) -> Self {
        let places = Arc::new(Semaphore::new(TURNED_AWAY_MAX));
        Self { body_bytes_max: api.settings().body_bytes_max, places, tasks: tasks.clone() }
    }

    /// Answers at once, and closes the connection when the caller has finished sending. With TLS,
    /// an answer would cost the handshake that the limit saves, so the connection is closed.
    fn answer(&self, mut stream: TcpStream, is_secure: bool, problem: &Problem) {
        if is_secure {
            return;
        }
        // A fresh socket usually has room for this answer. If not, the caller sees a closed
        // connection.
        if let Err(error) = stream.try_write(&answer_of(problem)) {
            tracing::debug!(%error, "tell a caller that there are too many connections");
            return;
        }
        let Ok(place) = self.places.clone().try_acquire_owned() else { return };
        let (stopping, body_bytes_max) = (self.tasks.stopping.clone(), self.body_bytes_max);
        self.tasks.spawn("turned away", async move {
            let mut linger = Linger::new(LingerLimits::new(body_bytes_max, TURN_AWAY_MAX));
            let leave = async {
                stream.shutdown().await.ok()?;
                Some(poll_fn(|cx| linger.poll(&mut stream, cx)).await)
            };
            // The connection is closed afterwards, whatever the result.
            stopping.run_until_cancelled(leave).await;
            drop(place);
            Ok(())
        });
    }
}

/// Returns the raw answer for a connection beyond a limit. Its request is never read.
fn answer_of(problem: &Problem) -> Vec<u8> {
    let id = RequestId::new();
    let mut response = Response::default();
    problem.write(&mut response, id.as_str(), false);
    response.headers_mut().insert(REQUEST_ID, id.into_header());
    response.headers_mut().insert(header::CONNECTION, HeaderValue::from_static("close"));
    let (parts, body) = response.into_parts();
    let mut answer = format!("HTTP/1.1 {}\r\n", parts.status).into_bytes();
    for (name, value) in &parts.headers {
        answer.extend([name.as_str().as_bytes(), b": ", value.as_bytes(), b"\r\n"].concat());
    }
    answer.extend(b"\r\n");
    // The body of a problem is complete, so this never waits.
    if let Some(Ok(body)) = body.collect().now_or_never() {
        answer.extend(body.to_bytes());
    }
    answer
}
