//! The state that all handlers share: settings, limits, metrics, the service.

use std::future::Future;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use axum::body::Bytes;
use az::SaturatingAs as _;
use parking_lot::Mutex;
use tokio::sync::Semaphore;
use tokio::time::Timeout;
use tokio::time::error::Elapsed;

use super::access::cursors::Cursors;
use super::access::denials::Denials;
use super::access::guard::Guard;
use super::access::hosts::Hosts;
use super::callers::PlacePurpose;
use super::dev_port::DevPort;
use super::metrics::ApiMetrics;
use super::problems::problem::Problem;
use super::problems::refusal::of_unavailable;
use crate::access::PolicyHandle;
use crate::access::permit::Grant;
use crate::clock;
use crate::console::rates::Samples;
use crate::domain::{List, Monotonic, Throttle, Timestamp};
use crate::node::messages::Unavailable;
use crate::node::requests::service::Service;
use crate::telemetry::Registry;

/// The port that an [`Api`](super::Api) answers at. Each port has its own routes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Port {
    /// The only port of the node.
    Sole,
    /// The port for callers, beside one for operators: without metrics, the state of the cluster
    /// and the reasons why the node is not ready.
    Public,
    /// Health with its reasons, metrics, and the state of the cluster.
    Operator,
}

impl Port {
    /// True when the port answers at this path.
    pub fn has(self, path: &str) -> bool {
        let is_internal = ["/metrics", "/v1/cluster"].contains(&path);
        match self {
            Self::Sole => true,
            Self::Public => !is_internal,
            Self::Operator => is_internal || ["/livez", "/readyz"].contains(&path),
        }
    }
}

/// The limits of the API, each with the status of a request that exceeds it.
/// docs/reference/limits.md lists them in one table. `/livez`, `/readyz` and `/metrics` obey only
/// the limits on connections and headers, and have a fixed number of places of their own.
#[derive(Clone, Debug)]
pub struct ApiSettings {
    pub port: Port,
    /// `None` for a node without the routes of a dev server.
    pub dev: Option<DevPort>,
    /// True for a port that has the console.
    pub has_console: bool,
    /// The hosts that a request may name: 421 for others.
    pub hosts: Hosts,
    /// Bytes of one body, both compressed and unpacked: 413. At most 4 GiB.
    pub body_bytes_max: usize,
    /// Total bytes of the bodies that are being read, unpacked, parsed or stored, and of answers
    /// beyond 64 KiB until they are written: 503. One uncompressed body of the largest size always
    /// fits. One caller (one address) gets half of it: 503. A proxy, which may have all requests,
    /// gets all of it.
    pub body_memory_max: usize,
    /// Bytes of a request's header, plus 32 for each field (RFC 9113, 6.5.2): 431. At most 64 KiB.
    pub header_bytes_max: usize,
    /// Tasks of one bulk submit: 413. At most 10,000.
    pub batch_tasks_max: usize,
    /// Requests in flight, from their header until their answer is written: 503.
    pub requests_in_flight_max: usize,
    /// Requests in flight of one caller (one address): 429.
    pub caller_requests_max: usize,
    /// Denied requests of one caller (one address) in a minute, without a valid credential: 429.
    pub caller_denials_max: u32,
    /// Requests in flight on one HTTP/2 connection. Streams beyond the limit are refused.
    pub streams_max: u32,
    /// Connections, idle ones included. A connection beyond the limit is answered 503 and closed.
    pub connections_max: usize,
    /// Connections of one caller, at least one. A connection beyond the limit is answered 429 and
    /// closed.
    pub caller_connections_max: usize,
    /// How long the header of a request may take from its first byte. The same limit applies to the
    /// first request of a connection, counted from the connection's beginning. Afterwards the
    /// connection is closed without an answer.
    pub header_timeout: Duration,
    /// How long a connection may be without a request before it is closed.
    pub idle_timeout: Duration,
    /// How long a request may take from the header to the answer: 408 while the body is awaited,
    /// 503 afterwards.
    pub request_deadline: Duration,
    /// How long a caller may take to read output that is ready, up to 64 KiB of it, before the
    /// connection is closed. An HTTP/2 stream is reset this long after `request_deadline`.
    pub answer_timeout: Duration,
}

/// The name of the limit on bodies that are unpacked at the same time.
pub const UNPACKED_AT_ONCE: &str = "bodies_unpacked_at_once";
/// The name of the limit on large bodies that are parsed at the same time.
pub const PARSED_AT_ONCE: &str = "bodies_parsed_at_once";
/// The name of the limit on the bodies and large answers of one caller.
pub const BODY_MEMORY_SHARE: &str = "body_memory_share";
/// Parsing only uses the CPU, so more threads would not finish sooner, and would take its share
/// from the runtime.
const PARSED_AT_ONCE_MAX: usize = 4;
/// Each decoder may take a window of 8 MiB. Unpacking only uses the CPU, so more of them at a time
/// would not finish sooner.
const UNPACKED_AT_ONCE_MAX: usize = 8;

/// Metrics texts that may be read at the same time; each may have some hundred KiB. The number is
/// more than one caller can ask for.
const METRICS_AT_ONCE_MAX: usize = 128;

/// Maximum number of documents sent at the same time. The large one is shared, the pages of
/// problems have some 30 KiB.
const DOCUMENTS_AT_ONCE_MAX: usize = 128;

/// The state that the handlers share.
#[derive(Debug)]
pub struct ApiShared {
    pub service: Service,
    pub settings: ApiSettings,
    pub metrics: ApiMetrics,
    pub registry: Arc<Registry>,
    pub policy: PolicyHandle,
    pub cursors: Arc<Cursors>,
    pub denials: Denials,
    /// The OpenAPI document.
    pub document: Bytes,
    /// Bytes still free for bodies and large answers.
    pub body_memory: Arc<Semaphore>,
    pub body_memory_max: u32,
    /// Bytes of it that one caller may hold. [`u32::MAX`]: no limit of its own.
    pub body_memory_share: u32,
    /// Bytes still free for finished answers that wait for `body_memory`, or for the share of their
    /// caller: a quarter of it, or one answer.
    pub waiting_answers: Semaphore,
    pub waiting_answers_max: u32,
    /// Free slots for bodies that are being unpacked.
    pub unpacking: Semaphore,
    /// Free slots for large bodies that are being parsed.
    pub parsing: Arc<Semaphore>,
    /// Free places for requests.
    requests: Semaphore,
    /// Free places for requests of metrics.
    metrics_texts: Semaphore,
    documents: Semaphore,
    caller_log: Mutex<Throttle>,
    /// The latest samples of the metrics for the console.
    pub samples: Mutex<Samples>,
}

/// The shortest interval between two log lines about callers at their limit.
const LOG_CALLER_EVERY: Duration = Duration::from_secs(60);

impl ApiShared {
    /// Logs a caller that is at its limit. Further ones within a minute are counted, not logged.
    pub fn log_refused_caller(&self, limit: &'static str, caller: IpAddr) {
        if self.caller_log.lock().lets_through(clock::monotonic()) {
            tracing::warn!(
                %caller, limit,
                "a caller has reached its limit; its request was refused (logged once a minute at \
                 most; the metric counts all)"
            );
        }
    }

    pub fn new(
        service: Service,
        settings: ApiSettings,
        metrics: ApiMetrics,
        registry: Arc<Registry>,
        policy: PolicyHandle,
    ) -> Self {
        // One body of the largest size always fits, whatever the settings are.
        let body_memory_max = settings.body_memory_max.max(settings.body_bytes_max);
        let body_memory_max = body_memory_max.min(Semaphore::MAX_PERMITS).saturating_as::<u32>();
        let body_memory = Arc::new(Semaphore::new(
            usize::try_from(body_memory_max).unwrap_or(Semaphore::MAX_PERMITS),
        ));
        // A proxy has the requests of all callers, so only the limit on all of them counts.
        let is_proxied = settings.caller_requests_max >= settings.requests_in_flight_max;
        let body_memory_share = if is_proxied { u32::MAX } else { (body_memory_max / 2).max(1) };
        let waiting_answers_max = (body_memory_max / 4).max(1);
        let waiting_answers =
            Semaphore::new(usize::try_from(waiting_answers_max).unwrap_or(Semaphore::MAX_PERMITS));
        let unpacking = Semaphore::new(UNPACKED_AT_ONCE_MAX);
        let requests = Semaphore::new(settings.requests_in_flight_max.min(Semaphore::MAX_PERMITS));
        let denials = Denials::new(settings.caller_denials_max);
        Self {
            service,
            settings,
            metrics,
            registry,
            policy,
            cursors: Arc::default(),
            denials,
            document: Bytes::new(),
            body_memory,
            body_memory_max,
            body_memory_share,
            waiting_answers,
            waiting_answers_max,
            unpacking,
            parsing: Arc::new(Semaphore::new(PARSED_AT_ONCE_MAX)),
            requests,
            metrics_texts: Semaphore::new(METRICS_AT_ONCE_MAX),
            documents: Semaphore::new(DOCUMENTS_AT_ONCE_MAX),
            caller_log: Mutex::new(Throttle::new(LOG_CALLER_EVERY)),
            samples: Mutex::default(),
        }
    }

    /// Sets the OpenAPI document.
    pub fn with_document(self, document: Bytes) -> Self {
        Self { document, ..self }
    }

    /// Returns the places that all callers together have for `purpose`, and the name of their
    /// limit. Health checks are limited by the connections alone.
    pub fn places(&self, purpose: PlacePurpose) -> Option<(&Semaphore, &'static str)> {
        match purpose {
            PlacePurpose::Work => Some((&self.requests, "requests_in_flight")),
            PlacePurpose::Health => None,
            PlacePurpose::Metrics => Some((&self.metrics_texts, "metrics_in_flight")),
            PlacePurpose::Documents => Some((&self.documents, "documents_in_flight")),
        }
    }

    /// Returns the result if it came in time. Otherwise returns `problem`, which is given the
    /// reason.
    pub fn in_time<T>(
        &self,
        held: Result<T, Elapsed>,
        problem: impl FnOnce(&str) -> Problem,
    ) -> Result<T, Problem> {
        held.map_err(|_elapsed| {
            self.metrics.rejected("request_deadline");
            problem("the deadline of the request has passed")
        })
    }

    /// Calls the service, within the deadline. `unknown` makes the problem for a call whose effect
    /// is unknown.
    pub fn ask<T>(
        &self,
        guard: &Guard,
        deadline: Deadline,
        call: impl Future<Output = Result<T, Unavailable>>,
        unknown: impl Fn(&str) -> Problem,
    ) -> impl Future<Output = Result<T, Problem>> {
        // The large future is on the heap: otherwise every awaiting future would be as large.
        let call = Box::pin(call);
        let guard = guard.clone();
        async move {
            let answer = self.in_time(deadline.hold(call).await, &unknown)?;
            answer.map_err(|unavailable| {
                of_unavailable(unavailable.with_reason(|reason| guard.tells(reason)), unknown)
            })
        }
    }

    /// Returns whether the topic of `grant` exists, for an answer without tasks of the topic;
    /// `None` when unknown. For `searched` see [`Service::knows_topic`].
    pub async fn knows_topic(
        &self,
        deadline: Deadline,
        grant: &Grant,
        searched: Option<List>,
    ) -> Option<bool> {
        deadline.hold(Box::pin(self.service.knows_topic(grant, searched))).await.ok().flatten()
    }

    /// Returns whether Kafka has the topic of `grant`; `None` when unknown.
    pub async fn kafka_has_topic(&self, deadline: Deadline, grant: &Grant) -> Option<bool> {
        deadline.hold(Box::pin(self.service.kafka_has_topic(grant))).await.ok().flatten()
    }

    /// Returns true when Kafka has no topic of `grant`, and nothing else is known of it. A topic
    /// that was deleted in Kafka can be paused, because its tasks wait.
    pub async fn lacks_topic(&self, deadline: Deadline, grant: &Grant) -> bool {
        self.kafka_has_topic(deadline, grant).await == Some(false)
            && self.knows_topic(deadline, grant, None).await != Some(true)
            && !deadline.hold(Box::pin(self.service.may_have_topic(grant))).await.unwrap_or(true)
    }

    /// Returns the cluster's time for a request that arrives now. Until Postgres has answered, only
    /// the machine's clock is known, and nothing but the state of the node can be asked for.
    pub fn now(&self) -> Timestamp {
        self.service.arrival().unwrap_or_else(clock::wall)
    }

    /// Returns the deadline of a request that has just arrived.
    pub fn deadline(&self) -> Deadline {
        Deadline::after(self.settings.request_deadline)
    }
}

/// The time by which a request must be answered.
#[derive(Clone, Copy, Debug)]
pub struct Deadline(Monotonic);

impl Deadline {
    pub fn after(span: Duration) -> Self {
        Self(clock::monotonic().plus(span))
    }

    /// Waits for `future`, until the deadline at most. An `async fn` would store the future twice,
    /// and the futures that handlers wait for are large.
    pub fn hold<F: Future>(self, future: F) -> Timeout<F> {
        tokio::time::timeout(self.0.since(clock::monotonic()), future)
    }
}
