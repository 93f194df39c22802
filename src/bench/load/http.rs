//! A kept-alive HTTP/1 connection to a node. The client is as cheap as possible, because it shares
//! the machine with the measured program.

use std::time::Duration;

use bytes::Bytes;
use http_body_util::{BodyExt as _, Full};
use hyper::client::conn::http1;
use hyper::header::{CONTENT_TYPE, HOST};
use hyper::{Method, Request};
use hyper_util::rt::TokioIo;
use tokio::net::TcpStream;
use tokio::task::JoinSet;

/// Timeout of a call. A node itself answers within 30 s.
const DEADLINE: Duration = Duration::from_secs(35);

/// A node's answer.
#[derive(Debug)]
pub struct Answer {
    pub status: u16,
    pub body: Bytes,
}

/// A connection that opens on demand, and again after it broke.
#[derive(Debug)]
pub struct Http {
    /// `host:port`
    authority: String,
    open: Option<Open>,
}

#[derive(Debug)]
struct Open {
    sender: http1::SendRequest<Full<Bytes>>,
    /// Drives the connection, and ends with it.
    _driver: JoinSet<()>,
}

impl Http {
    /// # Errors
    /// Returns an error when `url` is not `http://host:port`.
    pub fn new(url: &str) -> Result<Self, String> {
        let wrong = || {
            // A URL that may hold a password is not repeated.
            let given = if url.contains('@') {
                "one with a user or password".to_owned()
            } else {
                format!("`{url}`")
            };
            format!(
                "{given} is no URL of a node that can be measured; write it like http://127.0.0.1:7070"
            )
        };
        let authority = url.trim_end_matches('/').strip_prefix("http://");
        let authority = authority.filter(|rest| !rest.is_empty() && !rest.contains(['/', '@']));
        let authority = authority.ok_or_else(wrong)?;
        let authority =
            if authority.contains(':') { authority.to_owned() } else { format!("{authority}:80") };
        Ok(Self { authority, open: None })
    }

    /// Makes a call. The body is JSON.
    ///
    /// # Errors
    /// Returns the reason as text when no answer came. The call may have taken effect.
    pub async fn call(
        &mut self,
        method: Method,
        path: &str,
        body: Bytes,
    ) -> Result<Answer, String> {
        let outcome = tokio::time::timeout(DEADLINE, self.exchange(method, path, body)).await;
        let outcome =
            outcome.unwrap_or_else(|_elapsed| Err(format!("no answer within {DEADLINE:?}")));
        if outcome.is_err() {
            self.open = None;
        }
        outcome
    }

    async fn exchange(
        &mut self,
        method: Method,
        path: &str,
        body: Bytes,
    ) -> Result<Answer, String> {
        let broke = |error: hyper::Error| format!("{}: {error}", self.authority);
        let request = Request::builder().method(method).uri(path).header(HOST, &self.authority);
        let request = if body.is_empty() {
            request
        } else {
            request.header(CONTENT_TYPE, "application/json")
        };
        let request = request.body(Full::new(body)).map_err(|error| format!("{path}: {error}"))?;
        if self.open.as_ref().is_none_or(|open| open.sender.is_closed()) {
            self.open = Some(connect(&self.authority).await?);
        }
        let Some(open) = &mut self.open else { return Err("no connection".to_owned()) };
        open.sender.ready().await.map_err(broke)?;
        let response = open.sender.send_request(request).await.map_err(broke)?;
        let status = response.status().as_u16();
        let body = response.into_body().collect().await.map_err(broke)?.to_bytes();
        Ok(Answer { status, body })
    }
}

async fn connect(authority: &str) -> Result<Open, String> {
    let failed = |error: &dyn std::error::Error| format!("cannot reach {authority}: {error}");
    let stream = TcpStream::connect(authority).await.map_err(|error| failed(&error))?;
    stream.set_nodelay(true).map_err(|error| failed(&error))?;
    let (sender, connection) =
        http1::handshake(TokioIo::new(stream)).await.map_err(|error| failed(&error))?;
    let mut driver = JoinSet::new();
    driver.spawn(async move {
        if let Err(error) = connection.await {
            tracing::debug!(%error, "a connection ended");
        }
    });
    Ok(Open { sender, _driver: driver })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_plain_urls_of_nodes_are_taken() {
        assert_eq!(Http::new("http://127.0.0.1:7070/").unwrap().authority, "127.0.0.1:7070");
        assert_eq!(Http::new("http://node").unwrap().authority, "node:80");
        for wrong in ["https://node:1", "node:1", "http://", "http://node/v1"] {
            assert!(Http::new(wrong).is_err(), "{wrong}");
        }
    }
}
