//! Requests to the nodes, and the meaning of their answers.

use std::sync::Arc;
use std::time::Duration;

use rand::seq::IndexedRandom as _;
use reqwest::Method;
use serde_json::Value;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use super::nodes::Slot;
use crate::support::api::client;
use crate::support::now_ms;

/// The request timeout of a client.
const PATIENCE: Duration = Duration::from_secs(6);
/// The limit on concurrent requests to one node. A node that hangs must not use up all the
/// requests.
const UNDER_WAY_MAX: usize = 40;

/// Sends requests to any node that listens.
#[derive(Clone, Debug)]
pub struct Caller {
    slots: Vec<Arc<Slot>>,
    room: Vec<Arc<Semaphore>>,
    http: reqwest::Client,
    token: Option<String>,
    /// A header with a precondition.
    condition: Option<(&'static str, String)>,
}

/// A reserved request to a node.
pub struct Seat {
    pub node: u8,
    address: String,
    _room: OwnedSemaphorePermit,
}

/// The result of a request.
pub struct Reply {
    pub sent_at: i64,
    pub answered_at: i64,
    pub answer: Answer,
}

pub enum Answer {
    Said {
        status: u16,
        has_retry_after: bool,
        body: Value,
    },
    /// The connection was refused.
    NotSent,
    /// The request may have been carried out.
    Lost(String),
}

/// The meaning of a refusal for the caller.
pub enum Refusal {
    /// The request certainly had no effect.
    Certain(String),
    Unknown(String),
    /// No request of this traffic should get this answer.
    Odd(String),
}

impl Caller {
    pub fn new(slots: &[Arc<Slot>], token: Option<String>) -> Self {
        let room = slots.iter().map(|_| Arc::new(Semaphore::new(UNDER_WAY_MAX))).collect();
        Self { slots: slots.to_vec(), room, http: client(PATIENCE), token, condition: None }
    }

    /// Returns a caller with another token, for the same seats.
    pub fn with_token(&self, token: &str) -> Self {
        Self { token: Some(token.to_owned()), ..self.clone() }
    }

    /// Returns a caller whose requests have this precondition.
    pub fn with_condition(&self, condition: (&'static str, String)) -> Self {
        Self { condition: Some(condition), ..self.clone() }
    }

    /// Reserves a seat at one of the nodes that listen and have room. Returns `None` when there is
    /// none.
    pub fn seat(&self) -> Option<Seat> {
        let open: Vec<Seat> = self
            .slots
            .iter()
            .zip(&self.room)
            .filter_map(|(slot, room)| {
                let address = slot.address()?;
                Some(Seat {
                    node: slot.number(),
                    address,
                    _room: Arc::clone(room).try_acquire_owned().ok()?,
                })
            })
            .collect();
        // The seats that are not chosen are free again at once.
        let chosen = open
            .iter()
            .map(|seat| seat.node)
            .collect::<Vec<_>>()
            .choose(&mut rand::rng())
            .copied()?;
        open.into_iter().find(|seat| seat.node == chosen)
    }

    /// Waits until every request has been answered or has timed out.
    pub async fn wait_idle(&self) {
        for room in &self.room {
            let all = room.acquire_many(u32::try_from(UNDER_WAY_MAX).unwrap());
            drop(all.await.expect("the room is never closed"));
        }
    }

    pub async fn send(
        &self,
        seat: &Seat,
        method: Method,
        path: &str,
        body: Option<&Value>,
    ) -> Reply {
        let mut request = self.http.request(method, format!("http://{}{path}", seat.address));
        if let Some(token) = &self.token {
            request = request.bearer_auth(token);
        }
        if let Some((name, value)) = &self.condition {
            request = request.header(*name, value);
        }
        if let Some(body) = body {
            request = request.header("content-type", "application/json").body(body.to_string());
        }
        let sent_at = now_ms();
        let answer = match request.send().await {
            Ok(response) => {
                let (status, has_retry_after) =
                    (response.status().as_u16(), response.headers().contains_key("retry-after"));
                match response.text().await.map(|text| serde_json::from_str(&text)) {
                    Ok(Ok(body)) => Answer::Said { status, has_retry_after, body },
                    Ok(Err(error)) => {
                        Answer::Lost(format!("status {status}, and not JSON: {error}"))
                    }
                    Err(error) => Answer::Lost(error.to_string()),
                }
            }
            Err(error) if error.is_connect() => Answer::NotSent,
            Err(error) if error.is_timeout() => Answer::Lost("timeout".to_owned()),
            Err(_) => Answer::Lost("broken".to_owned()),
        };
        Reply { sent_at, answered_at: now_ms(), answer }
    }
}

impl Refusal {
    /// Classifies a problem. `allowed` are the ends of the allowed problem types, besides those of
    /// a node in trouble.
    pub fn of(status: u16, problem: &Value, has_retry_after: bool, allowed: &[&str]) -> Self {
        let slug =
            problem["type"].as_str().and_then(|kind| kind.rsplit(':').next()).unwrap_or_default();
        let says_when = has_retry_after || problem["retry_after"].is_number();
        match (status, slug) {
            (503, "outcome-unknown") if says_when => Self::Unknown(slug.to_owned()),
            (503, "busy" | "draining" | "unavailable" | "not-ready") if says_when => {
                Self::Certain(slug.to_owned())
            }
            // The node was frozen while it read the body.
            (408, "request-timeout") => Self::Certain(slug.to_owned()),
            (_, slug) if allowed.contains(&slug) => Self::Certain(slug.to_owned()),
            _ => Self::Odd(format!("{status} {problem}")),
        }
    }
}
