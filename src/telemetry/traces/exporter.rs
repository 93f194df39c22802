//! Sends spans to the collector, and counts what becomes of them.

use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use opentelemetry_otlp::{
    ExporterBuildError, SpanExporter, WithExportConfig as _, WithHttpConfig as _,
};
use opentelemetry_sdk::Resource;
use opentelemetry_sdk::error::OTelSdkResult;
use opentelemetry_sdk::trace::{SpanData, SpanExporter as Exporter};

use crate::telemetry::{Counter, Registry};

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

/// The counters of spans. What was ended and neither exported nor failed waits, or was dropped.
#[derive(Clone, Debug, Default)]
pub(super) struct SpanMetrics {
    pub ended: Counter,
    exported: Counter,
    failed: Counter,
}

impl SpanMetrics {
    pub fn register(registry: &mut Registry) -> Self {
        let metrics = Self::default();
        let Self { ended, exported, failed } = metrics.clone();
        registry.register(
            "punctual_trace_spans_ended",
            "Spans that were recorded and have ended",
            ended,
        );
        registry.register(
            "punctual_trace_spans_exported",
            "Spans that the collector has taken",
            exported,
        );
        registry.register(
            "punctual_trace_spans_failed",
            "Spans in requests that the collector has not taken",
            failed,
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
    ) -> Result<Self, ExporterBuildError> {
        let inner = SpanExporter::builder()
            .with_http()
            .with_endpoint(&settings.url)
            .with_headers(settings.headers.iter().cloned().collect())
            .with_timeout(deadline)
            .build()?;
        Ok(Self { inner, metrics, is_failing: AtomicBool::new(false) })
    }
}

impl Exporter for CountingExporter {
    async fn export(&self, spans: Vec<SpanData>) -> OTelSdkResult {
        let count = u64::try_from(spans.len()).unwrap_or(u64::MAX);
        let exported = self.inner.export(spans).await;
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
