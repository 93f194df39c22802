//! The requests of a dev server's own routes, on the way from the API to the server.

use std::time::Duration;

use axum::body::Bytes;
use tokio::sync::{mpsc, oneshot};

use crate::domain::{Timestamp, TopicName};

/// Requests of each kind that wait for the server.
const QUEUE_MAX: usize = 16;

/// A change of the clock.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ClockChange {
    /// Lets this time pass, and publishes all that is due until then.
    Advance(Duration),
    /// Returns to the real time.
    Reset,
}

/// The state after a change of the clock.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ClockState {
    pub now: Timestamp,
    /// How far the clock is ahead of the real time.
    pub ahead: Duration,
}

/// A record as it stands in a topic.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct PublishedRecord {
    pub partition: i32,
    pub offset: i64,
    pub appended_at: Timestamp,
    pub key: Option<Bytes>,
    pub value: Option<Bytes>,
    pub headers: Vec<(String, Bytes)>,
}

/// The reason why the records of a topic cannot be shown.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Unpublished {
    UnknownTopic,
    Unreadable(String),
}

/// A change of the clock. The error says what is still to be published, and why.
#[derive(Debug)]
pub struct ClockRequest {
    pub change: ClockChange,
    pub answer: oneshot::Sender<Result<ClockState, String>>,
}

/// A question for the records of a topic, the latest `count_max`.
#[derive(Debug)]
pub struct PublishedRequest {
    pub topic: TopicName,
    pub count_max: usize,
    pub answer: oneshot::Sender<Result<Vec<PublishedRecord>, Unpublished>>,
}

/// The entrance to a dev server. Cheap to clone.
#[derive(Clone, Debug)]
pub struct DevPort {
    pub clock: mpsc::Sender<ClockRequest>,
    pub published: mpsc::Sender<PublishedRequest>,
}

/// The requests that a dev server has to answer.
#[derive(Debug)]
pub struct DevRequests {
    pub clock: mpsc::Receiver<ClockRequest>,
    pub published: mpsc::Receiver<PublishedRequest>,
}

impl DevPort {
    /// Makes an entrance, and the queues behind it.
    pub fn new() -> (Self, DevRequests) {
        let (clock, clock_requests) = mpsc::channel(QUEUE_MAX);
        let (published, published_requests) = mpsc::channel(QUEUE_MAX);
        let requests = DevRequests { clock: clock_requests, published: published_requests };
        (Self { clock, published }, requests)
    }
}
