//! The spans of records on their way to Kafka.

use std::borrow::Cow;
use std::collections::HashMap;
use std::fmt;
use std::time::SystemTime;

use opentelemetry::trace::{
    Link, SamplingDecision, SamplingResult, Span as _, SpanBuilder, SpanContext, SpanId, SpanKind,
    Status, TraceFlags, TraceId, TraceState, Tracer as _,
};
use opentelemetry::{Context, KeyValue};
use opentelemetry_sdk::trace::{IdGenerator as _, RandomIdGenerator};
use parking_lot::Mutex;

use super::context::{context_of, traceparent_of};
use super::tracer::Traces;

/// The records of one producer that were submitted in a recorded trace and have no report yet.
#[derive(Debug)]
pub struct Publications {
    traces: Traces,
    open: Mutex<HashMap<usize, Open>>,
}

#[derive(Debug)]
struct Open {
    ids: (TraceId, SpanId),
    submit: SpanContext,
    topic: String,
    task_id: String,
    began_at: SystemTime,
}

/// The outcome of a publication: where the record is, or why it may not be there.
pub type Publication<'a> = Result<(i32, i64), &'a dyn fmt::Display>;

impl Publications {
    pub fn new(traces: Traces) -> Self {
        Self { traces, open: Mutex::default() }
    }

    /// Begins the span of a record. Returns the value of its header `traceparent`, or `None` when
    /// the submit was not recorded. `submitted` is the `traceparent` of the submit.
    pub fn begin(
        &self,
        correlation_id: usize,
        (submitted, state): (&str, Option<&str>),
        (topic, task_id): (&str, &str),
    ) -> Option<String> {
        let submit = context_of(submitted, state).filter(SpanContext::is_sampled)?;
        let generator = RandomIdGenerator::default();
        let (trace, span) = (generator.new_trace_id(), generator.new_span_id());
        let own = SpanContext::new(trace, span, TraceFlags::SAMPLED, false, TraceState::default());
        let open = Open {
            ids: (trace, span),
            submit,
            topic: topic.to_owned(),
            task_id: task_id.to_owned(),
            began_at: opentelemetry::time::now(),
        };
        self.open.lock().insert(correlation_id, open);
        Some(traceparent_of(&own))
    }

    /// Forgets the span of a record that was not handed over.
    pub fn forget(&self, correlation_id: usize) {
        self.open.lock().remove(&correlation_id);
    }

    /// Ends the span of a record with its report.
    pub fn end(&self, correlation_id: usize, outcome: Publication<'_>) {
        let Some(open) = self.open.lock().remove(&correlation_id) else { return };
        let sampled = SamplingResult {
            decision: SamplingDecision::RecordAndSample,
            attributes: Vec::new(),
            trace_state: TraceState::default(),
        };
        let (trace, span) = open.ids;
        let attributes = [
            KeyValue::new("messaging.system", "kafka"),
            KeyValue::new("messaging.operation.name", "publish"),
            KeyValue::new("messaging.operation.type", "send"),
            KeyValue::new("messaging.destination.name", open.topic.clone()),
            KeyValue::new("punctual.task.id", open.task_id),
        ];
        let builder = SpanBuilder::from_name(format!("publish {}", open.topic))
            .with_trace_id(trace)
            .with_span_id(span)
            .with_kind(SpanKind::Producer)
            .with_start_time(open.began_at)
            .with_attributes(attributes)
            .with_links(vec![Link::with_context(open.submit)])
            .with_sampling_result(sampled);
        let mut span = self.traces.tracer.build_with_context(builder, &Context::new());
        match outcome {
            Ok((partition, offset)) => {
                let partition = KeyValue::new(
                    "messaging.destination.partition.id",
                    i64::from(partition).to_string(),
                );
                span.set_attribute(partition);
                span.set_attribute(KeyValue::new("messaging.kafka.offset", offset));
            }
            Err(reason) => {
                span.set_status(Status::Error { description: Cow::Owned(reason.to_string()) });
            }
        }
        span.end();
    }
}
