//! Connections: accepted within a bound, ended when the node ends.
//!
//! While the node drains connections are still accepted, so that callers and probes are told; only `stopping` ends them, each after the request that
//! it is at.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;

use super::connection::converse;
use super::front::Api;
use super::line::Callers;
use crate::clock;
use crate::shutdown::{Failure, Tasks};

/// When accepting fails for want of file descriptors: they come back when a connection ends.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// For a connection beyond the bound; there is nobody to read its request.
const TOO_MANY: &[u8] =
    b"HTTP/1.1 503 Service Unavailable\r\ncontent-type: application/problem+json\r\nretry-after: 1\r\nlink: </problems/busy>; rel=\"help\"\r\nconnection: close\r\n\
content-length: 170\r\n\r\n{\"type\":\"urn:punctual:problem:busy\",\"title\":\"A bound of this node is reached\",\"status\":503,\
\"detail\":\"nothing was done: the bound connections is reached\",\"retry_after\":1}\n";

/// Serves `api` at `listener` until the node stops. Open connections end by themselves, as tasks of `tasks`.
pub async fn serve(listener: TcpListener, api: Api, tasks: Tasks) -> Result<(), Failure> {
    let connections = Arc::new(Semaphore::new(api.settings().connections_max.min(Semaphore::MAX_PERMITS)));
    let callers = Callers::default();
    loop {
        let accepted = tokio::select! {
            accepted = listener.accept() => accepted,
            () = tasks.stopping.cancelled() => return Ok(()),
        };
        let (stream, peer) = match accepted {
            Ok(accepted) => accepted,
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
        let (caller, api, stopping) = (callers.enter(peer.ip()), api.clone(), tasks.stopping.clone());
        tasks.spawn("connection", async move {
            converse(stream, caller, api, stopping).await;
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
