//! The header `traceparent` and the context of a span.

use opentelemetry::trace::{SpanContext, SpanId, TraceFlags, TraceId, TraceState};

/// The bytes up to which the specification asks to pass a `tracestate` on. The header of a task may
/// be longer.
pub const STATE_BYTES_MAX: usize = 512;

/// Returns the value of a header `traceparent`.
pub(super) fn traceparent_of(span: &SpanContext) -> String {
    let flags = span.trace_flags().to_u8();
    format!("00-{}-{}-{flags:02x}", span.trace_id(), span.span_id())
}

/// Reads a header `traceparent` in version 00, and the `tracestate` beside it. A state that is
/// wrong or too long is left out. `None` when the parent cannot be read.
pub(super) fn context_of(traceparent: &str, state: Option<&str>) -> Option<SpanContext> {
    let mut parts = traceparent.split('-').skip(1);
    let trace = TraceId::from_hex(parts.next()?).ok()?;
    let span = SpanId::from_hex(parts.next()?).ok()?;
    let flags = TraceFlags::new(u8::from_str_radix(parts.next()?, 16).ok()?);
    let state = state.filter(|state| state.len() <= STATE_BYTES_MAX);
    let state = state.and_then(|state| state.parse::<TraceState>().ok()).unwrap_or_default();
    Some(SpanContext::new(trace, span, flags, true, state))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_context_is_written_as_it_was_read() {
        let parent = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";
        let context = context_of(parent, Some("vendor=1")).unwrap();
        assert!(context.is_valid() && context.is_sampled() && context.is_remote());
        assert_eq!(context.trace_state().get("vendor"), Some("1"));
        assert_eq!(traceparent_of(&context), parent);
        // A state that cannot be read is left out.
        let context = context_of(&parent.replace("-01", "-00"), Some("no list")).unwrap();
        assert_eq!((context.is_sampled(), context.trace_state().header()), (false, String::new()));
        let long = "a=1,".repeat(200);
        assert_eq!(context_of(parent, Some(&long)).unwrap().trace_state().header(), "");
        for wrong in ["", "00-1-2", "00-x-y-z"] {
            assert!(context_of(wrong, None).is_none(), "{wrong}");
        }
    }
}
