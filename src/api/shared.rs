//! What the handlers share.

use std::future::Future;
use std::net::IpAddr;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use axum::body::Bytes;
use tokio::sync::Semaphore;
use tokio::time::error::Elapsed;

use super::line::Purpose;
use super::metrics::Metrics;
use super::problems::problem::Problem;
use super::problems::refusal::of_trouble;
use crate::clock;
use crate::domain::{List, Monotonic, Seldom, TopicName};
use crate::node::messages::Trouble;
use crate::node::requests::service::Service;
use crate::telemetry::Registry;

/// Each bound with its status when it is reached; docs/reference/limits.md has them in one table. `/livez`, `/readyz` and `/metrics` are held by those on
/// connections and headers, and have places of their own, which are no setting.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Settings {
    /// Bytes of one body, as it comes and unpacked: 413. At most 4 GiB.
    pub body_bytes_max: usize,
    /// Bytes of all bodies that are being read, unpacked, parsed or stored, and of answers beyond 64 KiB until they are written: 503. At least one of
    /// the largest always fits, if it is not compressed.
    pub body_memory_max: usize,
    /// Bytes of a request's header, with 32 for each field (RFC 9113, 6.5.2): 431. At most 64 KiB.
    pub header_bytes_max: usize,
    /// Tasks of one batch: 413. At most 10,000.
    pub batch_tasks_max: usize,
    /// Requests from their header until their answer is written: 503.
    pub requests_in_flight_max: usize,
    /// Of these, requests of one caller, which is an address: 429.
    pub caller_requests_max: usize,
    /// Of these, requests of one connection of HTTP/2: those beyond it are refused as streams.
    pub streams_max: u32,
    /// Connections, idle ones included: those beyond it are answered 503 and closed.
    pub connections_max: usize,
    /// Of these, connections of one caller, at least one: those beyond it are answered 429 and closed.
    pub caller_connections_max: usize,
    /// How long the header of a request may take from its first byte, and the first request of a connection from its beginning: closed without an
    /// answer.
    pub header_timeout: Duration,
    /// How long a connection may be without a request: closed.
    pub idle_timeout: Duration,
    /// How long a request may take from its header to its answer: 408 while its body is awaited, 503 after.
    pub request_deadline: Duration,
    /// How long a caller may take to read what is ready to be written, up to 64 KiB of it: closed. A stream of HTTP/2 is reset this long after
    /// `request_deadline`.
    pub answer_timeout: Duration,
}

/// The bound on bodies that are unpacked at a time.
pub const UNPACKED_AT_ONCE: &str = "bodies_unpacked_at_once";
/// Each may take a window of 8 MiB, and unpacking is the CPU's work alone: more of them at a time would make none quicker.
const UNPACKED_AT_ONCE_MAX: usize = 8;

/// Texts of metrics that may be read at a time; each may have some hundred KiB. More than one caller can ask for.
const METRICS_AT_ONCE_MAX: usize = 128;

/// What the handlers share.
#[derive(Debug)]
pub struct Shared {
    pub service: Service,
    pub settings: Settings,
    pub metrics: Metrics,
    pub registry: Arc<Registry>,
    /// The OpenAPI document.
    pub document: Bytes,
    /// Bytes that bodies, and large answers, may still take.
    pub body_memory: Arc<Semaphore>,
    pub body_memory_max: u32,
    /// Bytes that answers may still have which wait for such memory although they are made: a quarter of it, or one answer.
    pub waiting_answers: Semaphore,
    pub waiting_answers_max: u32,
    /// Bodies that may still be unpacked at the same time.
    pub unpacking: Semaphore,
    /// Requests that may still be taken in.
    requests: Semaphore,
    /// Texts of metrics that may still be asked for.
    metrics_texts: Semaphore,
    caller_said: Mutex<Seldom>,
}

/// Which caller is at its bound is said so often.
const SAY_CALLER_EVERY: Duration = Duration::from_secs(60);

impl Shared {
    /// Says who is at a caller's bound; others within a minute are counted, not said.
    pub fn say_caller(&self, bound: &'static str, caller: IpAddr) {
        if self.caller_said.lock().unwrap_or_else(PoisonError::into_inner).lets_through(clock::monotonic()) {
            tracing::warn!(%caller, bound, "a caller is at its bound and is turned away; others within a minute are counted, not said");
        }
    }

    pub fn new(service: Service, settings: Settings, metrics: Metrics, registry: Arc<Registry>, document: Bytes) -> Self {
        // One body of the largest size always fits, whatever the settings say.
        let body_memory_max = settings.body_memory_max.max(settings.body_bytes_max);
        let body_memory_max = u32::try_from(body_memory_max.min(Semaphore::MAX_PERMITS)).unwrap_or(u32::MAX);
        let body_memory = Arc::new(Semaphore::new(usize::try_from(body_memory_max).unwrap_or(Semaphore::MAX_PERMITS)));
        let waiting_answers_max = (body_memory_max / 4).max(1);
        let waiting_answers = Semaphore::new(usize::try_from(waiting_answers_max).unwrap_or(Semaphore::MAX_PERMITS));
        let unpacking = Semaphore::new(UNPACKED_AT_ONCE_MAX);
        let requests = Semaphore::new(settings.requests_in_flight_max.min(Semaphore::MAX_PERMITS));
        Self {
            service,
            settings,
            metrics,
            registry,
            document,
            body_memory,
            body_memory_max,
            waiting_answers,
            waiting_answers_max,
            unpacking,
            requests,
            metrics_texts: Semaphore::new(METRICS_AT_ONCE_MAX),
            caller_said: Mutex::new(Seldom::new(SAY_CALLER_EVERY)),
        }
    }

    /// The places that all callers together have for `purpose`, and the name of their bound. Those for health are bounded by the connections.
    pub fn places(&self, purpose: Purpose) -> Option<(&Semaphore, &'static str)> {
        match purpose {
            Purpose::Work => Some((&self.requests, "requests_in_flight")),
            Purpose::Health => None,
            Purpose::Metrics => Some((&self.metrics_texts, "metrics_in_flight")),
        }
    }

    /// What came in time; else `problem` is what the caller is told, and it is given the reason.
    pub fn in_time<T>(&self, held: Result<T, Elapsed>, problem: impl FnOnce(&str) -> Problem) -> Result<T, Problem> {
        held.map_err(|_elapsed| {
            self.metrics.rejected("request_deadline");
            problem("the deadline of the request has passed")
        })
    }

    /// What the service answers in time; `unknown` is what the caller is told when it is not known what was done.
    pub fn ask<T>(
        &self,
        deadline: Deadline,
        call: impl Future<Output = Result<T, Trouble>>,
        unknown: impl Fn(&str) -> Problem,
    ) -> impl Future<Output = Result<T, Problem>> {
        // On the heap, for it is large, and so would be whatever waits for it.
        let call = Box::pin(call);
        async move {
            let answer = self.in_time(deadline.hold(call).await, &unknown)?;
            answer.map_err(|trouble| of_trouble(trouble, unknown))
        }
    }

    /// What an answer that found nothing of `topic` says of it: whether it is there, or null when that cannot be told. `searched`:
    /// see [`Service::knows_topic`].
    pub async fn knows_topic(&self, deadline: Deadline, topic: &TopicName, searched: Option<List>) -> Option<bool> {
        deadline.hold(Box::pin(self.service.knows_topic(topic, searched))).await.ok().flatten()
    }

    /// When a request that has just arrived must be answered.
    pub fn deadline(&self) -> Deadline {
        Deadline::after(self.settings.request_deadline)
    }
}

/// When a request must be answered.
#[derive(Clone, Copy, Debug)]
pub struct Deadline(Monotonic);

impl Deadline {
    pub fn after(span: Duration) -> Self {
        Self(clock::monotonic().plus(span))
    }

    /// Waits for `future` no longer than that.
    pub async fn hold<F: Future>(self, future: F) -> Result<F::Output, Elapsed> {
        tokio::time::timeout(self.0.since(clock::monotonic()), future).await
    }
}
