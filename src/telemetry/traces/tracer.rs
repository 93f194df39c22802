//! Makes the spans of submits, and sends all spans in the background.

use std::borrow::Cow;
use std::time::Duration;

use opentelemetry::trace::{
    Span as _, SpanBuilder, SpanKind, Status, TraceContextExt as _, Tracer as _,
    TracerProvider as _,
};
use opentelemetry::{Context, KeyValue};
use opentelemetry_sdk::Resource;
use opentelemetry_sdk::trace::{Sampler, SdkTracer, SdkTracerProvider, Span};

use super::context::{context_of, traceparent_of};
use super::exporter::{CountingExporter, SpanMetrics, TraceSettings, TracesError};
use super::processor::LimitedProcessor;
use crate::telemetry::Registry;

/// The deadline of a request to the collector.
const DEADLINE: Duration = Duration::from_secs(5);
/// The time that the end of a node gives the last request.
const END_DEADLINE: Duration = Duration::from_secs(2);
/// The name of the instrumentation in each span.
const SCOPE: &str = "punctual";

/// Makes spans, and sends them in the background. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Traces {
    pub(super) tracer: SdkTracer,
    provider: SdkTracerProvider,
}

impl Traces {
    /// Starts the thread that sends spans. It does not wait for the collector.
    ///
    /// # Errors
    /// When the URL or a header cannot be used.
    pub fn start(settings: &TraceSettings, registry: &mut Registry) -> Result<Self, TracesError> {
        let metrics = SpanMetrics::register(registry);
        let exporter = CountingExporter::new(settings, DEADLINE, metrics.clone())?;
        let resource = Resource::builder()
            .with_service_name("punctual")
            .with_attributes([
                KeyValue::new("service.version", settings.version),
                KeyValue::new("service.instance.id", settings.node.clone()),
                KeyValue::new("service.namespace", settings.cluster.clone()),
            ])
            .build();
        let own = Sampler::TraceIdRatioBased(f64::from(settings.per_million) / 1_000_000.0);
        let provider = SdkTracerProvider::builder()
            .with_span_processor(LimitedProcessor::start(exporter, metrics))
            .with_sampler(Sampler::ParentBased(Box::new(own)))
            .with_resource(resource)
            .build();
        Ok(Self { tracer: provider.tracer(SCOPE), provider })
    }

    /// Begins the span of a request that submits tasks: a child of the caller's span, which the
    /// request names by its headers `traceparent` (a valid one) and `tracestate`. `None` when it is
    /// not recorded.
    pub fn submit(
        &self,
        caller: Option<(&str, Option<&str>)>,
        (method, route): (&'static str, &'static str),
    ) -> Option<SubmitSpan> {
        let caller = caller.and_then(|(parent, state)| context_of(parent, state));
        let parent = match caller {
            Some(caller) => Context::new().with_remote_span_context(caller),
            None => Context::new(),
        };
        let builder = SpanBuilder::from_name(format!("{method} {route}"))
            .with_kind(SpanKind::Server)
            .with_attributes([
                KeyValue::new("http.request.method", method),
                KeyValue::new("http.route", route),
            ]);
        let span = self.tracer.build_with_context(builder, &parent);
        span.is_recording().then_some(SubmitSpan { span })
    }

    /// Sends the spans that wait, and ends the thread. Spans that end later are dropped. Blocks up
    /// to [`END_DEADLINE`].
    pub fn end(&self) {
        if let Err(error) = self.provider.shutdown_with_timeout(END_DEADLINE) {
            tracing::warn!(%error, "some spans may not have been sent");
        }
    }
}

/// The span of a request that submits tasks. A span that is dropped ends without a status.
#[derive(Debug)]
pub struct SubmitSpan {
    span: Span,
}

impl SubmitSpan {
    /// Returns the value of a header `traceparent` that names this span.
    pub fn traceparent(&self) -> String {
        traceparent_of(self.span.span_context())
    }

    /// Ends the span with the answer's status, and the id of the task if the answer names one.
    pub fn end(mut self, status: u16, request_id: &str, task_id: Option<&str>) {
        self.span.set_attribute(KeyValue::new("http.response.status_code", i64::from(status)));
        self.span.set_attribute(KeyValue::new("punctual.request.id", request_id.to_owned()));
        if let Some(id) = task_id {
            self.span.set_attribute(KeyValue::new("punctual.task.id", id.to_owned()));
        }
        if status >= 500 {
            self.span.set_status(Status::Error { description: Cow::Borrowed("") });
        }
    }
}
