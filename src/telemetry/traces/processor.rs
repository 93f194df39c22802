//! Hands ended spans over to the thread that sends them, up to a limit.

use std::time::Duration;

use opentelemetry::Context;
use opentelemetry_sdk::Resource;
use opentelemetry_sdk::error::OTelSdkResult;
use opentelemetry_sdk::trace::{
    BatchConfigBuilder, BatchSpanProcessor, Span, SpanData, SpanProcessor,
};

use super::exporter::{CountingExporter, SpanMetrics};

/// Ended spans that may wait for their request to the collector. Further ones are dropped, and
/// counted. A span has about half a KiB.
const WAITING_MAX: usize = 16_384;
/// The library drops without a count. So its queue is never full.
const QUEUE_MAX: usize = 2 * WAITING_MAX;
/// The most spans of one request to the collector.
const REQUEST_SPANS_MAX: usize = 2_048;
/// The interval of requests to the collector while fewer spans wait.
const INTERVAL: Duration = Duration::from_secs(1);

/// Counts the spans that wait, and drops those beyond the limit.
#[derive(Debug)]
pub(super) struct LimitedProcessor {
    inner: BatchSpanProcessor,
    metrics: SpanMetrics,
}

impl LimitedProcessor {
    /// Starts the thread that sends spans.
    pub fn start(exporter: CountingExporter, metrics: SpanMetrics) -> Self {
        let batches = BatchConfigBuilder::default()
            .with_max_queue_size(QUEUE_MAX)
            .with_max_export_batch_size(REQUEST_SPANS_MAX)
            .with_scheduled_delay(INTERVAL)
            .build();
        let inner = BatchSpanProcessor::builder(exporter).with_batch_config(batches).build();
        Self { inner, metrics }
    }
}

impl SpanProcessor for LimitedProcessor {
    fn on_start(&self, span: &mut Span, context: &Context) {
        self.inner.on_start(span, context);
    }

    fn on_end(&self, span: SpanData) {
        self.metrics.ended.inc();
        let waiting = usize::try_from(self.metrics.waiting.get()).unwrap_or(0);
        if waiting >= WAITING_MAX {
            self.metrics.dropped.inc();
            return;
        }
        self.metrics.waiting.inc();
        self.inner.on_end(span);
    }

    fn force_flush(&self) -> OTelSdkResult {
        self.inner.force_flush()
    }

    fn shutdown_with_timeout(&self, timeout: Duration) -> OTelSdkResult {
        self.inner.shutdown_with_timeout(timeout)
    }

    fn set_resource(&mut self, resource: &Resource) {
        self.inner.set_resource(resource);
    }
}
