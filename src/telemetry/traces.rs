//! Spans of submits and publications, sent to an OpenTelemetry collector by OTLP over HTTP. Off by
//! default.
//!
//! A publication is a trace of its own, with a link to its submit. Days may lie between the two,
//! and one trace of both would break the sampling and the durations of usual collectors.

mod context;
mod exporter;
mod processor;
mod publications;
mod tracer;

pub use self::context::STATE_BYTES_MAX;
pub use self::exporter::{TraceSettings, TracesError};
pub use self::publications::{Publication, Publications};
pub use self::tracer::{SubmitSpan, Traces};
