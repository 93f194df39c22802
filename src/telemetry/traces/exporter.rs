//! Sends spans to the collector, and counts what becomes of them.

use std::fmt;
use std::io::Read as _;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use az::SaturatingAs as _;
use opentelemetry_http::{Bytes, HttpClient, HttpError, Request, Response};
use opentelemetry_otlp::{
    ExporterBuildError, SpanExporter, WithExportConfig as _, WithHttpConfig as _,
};
use opentelemetry_sdk::Resource;
use opentelemetry_sdk::error::OTelSdkResult;
use opentelemetry_sdk::trace::{SpanData, SpanExporter as Exporter};
use reqwest::blocking::Client;
use reqwest::header::{HeaderMap, HeaderName, HeaderValue};
use reqwest::redirect::Policy as Redirects;
use thiserror::Error;

use crate::telemetry::{Counter, Gauge, Registry};

/// Bytes of a collector's answer that are read. A longer one ends there, and is then not
/// understood.
const ANSWER_BYTES_MAX: u64 = 64 << 10;

/// Where spans go, and which.
#[derive(Clone, PartialEq, Eq)]
pub struct TraceSettings {
    /// The URL that takes the spans.
    pub url: String,
    /// Headers of the requests to it, which may hold secrets.
    pub headers: Vec<(String, String)>,
    /// How many of a million traces that begin at this node are recorded. The trace of a caller is
    /// recorded when the caller records it.
    pub per_million: u32,
    /// The attributes of the resource: the version of the program, the name of the node and of its
    /// cluster.
    pub version: &'static str,
    pub node: String,
    pub cluster: String,
}

impl fmt::Debug for TraceSettings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TraceSettings").field("url", &self.url).finish_non_exhaustive()
    }
}

/// Why spans cannot be exported.
#[derive(Debug, Error)]
pub enum TracesError {
    /// Does not show the value, which may be a secret.
    #[error("the header {0:?} for the collector cannot be sent")]
    Header(String),
    #[error("cannot make the client for the collector: {0}")]
    Client(String),
    #[error(transparent)]
    Exporter(#[from] ExporterBuildError),
}

/// The metrics of spans.
#[derive(Clone, Debug, Default)]
pub(super) struct SpanMetrics {
    pub ended: Counter,
    pub waiting: Gauge,
    pub dropped: Counter,
    exported: Counter,
    failed: Counter,
}

impl SpanMetrics {
    pub fn register(registry: &mut Registry) -> Self {
        let metrics = Self::default();
        let Self { ended, waiting, dropped, exported, failed } = metrics.clone();
        let mut counter = |name: &str, help: &str, counter| registry.register(name, help, counter);
        counter("punctual_trace_spans_ended", "Spans that were recorded and have ended", ended);
        counter(
            "punctual_trace_spans_dropped",
            "Spans that were dropped because too many waited",
            dropped,
        );
        counter(
            "punctual_trace_spans_exported",
            "Spans in requests that the collector has answered with success",
            exported,
        );
        counter(
            "punctual_trace_spans_failed",
            "Spans in requests that the collector has not taken; they are not sent again",
            failed,
        );
        registry.register(
            "punctual_trace_spans_waiting",
            "Spans that wait for their request to the collector, or for its answer",
            waiting,
        );
        metrics
    }
}

/// An exporter that counts spans, and says when the collector stops taking them.
#[derive(Debug)]
pub(super) struct CountingExporter {
    inner: SpanExporter,
    metrics: SpanMetrics,
    is_failing: AtomicBool,
}

impl CountingExporter {
    pub fn new(
        settings: &TraceSettings,
        deadline: Duration,
        metrics: SpanMetrics,
    ) -> Result<Self, TracesError> {
        let inner = SpanExporter::builder()
            .with_http()
            .with_endpoint(&settings.url)
            .with_http_client(CollectorClient(client(settings, deadline)?))
            .with_timeout(deadline)
            .build()?;
        Ok(Self { inner, metrics, is_failing: AtomicBool::new(false) })
    }
}

/// Sends requests to the collector. The library's own client would keep an answer of any size in
/// memory.
#[derive(Debug)]
struct CollectorClient(Client);

type Sent<'a> = Pin<Box<dyn Future<Output = Result<Response<Bytes>, HttpError>> + Send + 'a>>;

impl HttpClient for CollectorClient {
    fn send_bytes<'a, 'b>(&'a self, request: Request<Bytes>) -> Sent<'b>
    where
        'a: 'b,
    {
        Box::pin(async move {
            let answer = self.0.execute(request.try_into()?)?.error_for_status()?;
            let mut sent = Response::builder().status(answer.status());
            if let Some(headers) = sent.headers_mut() {
                headers.clone_from(answer.headers());
            }
            let mut body = Vec::new();
            answer.take(ANSWER_BYTES_MAX).read_to_end(&mut body)?;
            Ok(sent.body(Bytes::from(body))?)
        })
    }
}

/// Makes the client for the collector. Its headers go to no other host: there are no redirects and
/// no proxies.
fn client(settings: &TraceSettings, deadline: Duration) -> Result<Client, TracesError> {
    let mut headers = HeaderMap::new();
    for (name, value) in &settings.headers {
        let wrong = || TracesError::Header(name.clone());
        let mut secret = HeaderValue::try_from(value).map_err(|_invalid| wrong())?;
        secret.set_sensitive(true);
        headers.insert(HeaderName::try_from(name).map_err(|_invalid| wrong())?, secret);
    }
    let build = move || {
        Client::builder()
            .default_headers(headers)
            .redirect(Redirects::none())
            .no_proxy()
            .timeout(deadline)
            .build()
            .map_err(|error| TracesError::Client(error.to_string()))
    };
    // A client that blocks cannot be made on a thread for async work.
    let thread = std::thread::Builder::new().name("spans client".to_owned()).spawn(build);
    let thread = thread.map_err(|error| TracesError::Client(error.to_string()))?;
    thread.join().unwrap_or_else(|_panic| Err(TracesError::Client("it panicked".to_owned())))
}

impl Exporter for CountingExporter {
    async fn export(&self, spans: Vec<SpanData>) -> OTelSdkResult {
        let count = spans.len().saturating_as::<u64>();
        let exported = self.inner.export(spans).await;
        self.metrics.waiting.dec_by(count.saturating_as());
        let was_failing = self.is_failing.swap(exported.is_err(), Ordering::Relaxed);
        match &exported {
            Ok(()) => {
                self.metrics.exported.inc_by(count);
                if was_failing {
                    tracing::info!("the collector takes spans again");
                }
            }
            Err(error) => {
                self.metrics.failed.inc_by(count);
                if !was_failing {
                    tracing::warn!(%error, spans = count, "the collector has not taken spans");
                }
            }
        }
        exported
    }

    fn shutdown_with_timeout(&mut self, timeout: Duration) -> OTelSdkResult {
        self.inner.shutdown_with_timeout(timeout)
    }

    fn force_flush(&mut self) -> OTelSdkResult {
        self.inner.force_flush()
    }

    fn set_resource(&mut self, resource: &Resource) {
        self.inner.set_resource(resource);
    }
}
