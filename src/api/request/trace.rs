//! W3C Trace Context: the trace of a request, which a task carries on to the consumer of its
//! record.

use axum::http::{Extensions, HeaderMap, HeaderName, Request};

use crate::domain::Headers;
use crate::domain::task::headers::{SUBMIT_TRACEPARENT, TRACEPARENT, TRACESTATE};
use crate::telemetry::traces::{STATE_BYTES_MAX, SubmitSpan};

const HEADER: HeaderName = HeaderName::from_static(TRACEPARENT);
const STATE_HEADER: HeaderName = HeaderName::from_static(TRACESTATE);

/// The bytes of a `traceparent` of version 00: `00-<32 hexadecimal digits>-<16>-<2>`.
const LENGTH: usize = 55;

/// The trace that tasks of a request carry on, unless they have a `traceparent` of their own.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct RequestTrace {
    /// A valid `traceparent` in version 00: that of the caller, or that of this node's span.
    parent: String,
    /// The caller's `tracestate`.
    state: Option<String>,
    /// True when the parent is a span of this node.
    is_ours: bool,
}

impl RequestTrace {
    /// Returns the trace of the caller, if the request has exactly one valid `traceparent`. The
    /// specification says to ignore invalid ones, and a task must not be refused because of
    /// tracing. For an unknown version, the known part is read as version 00.
    pub fn of_caller(headers: &HeaderMap) -> Option<Self> {
        let mut given = headers.get_all(HEADER).iter();
        let value = given.next()?;
        if given.next().is_some() {
            return None;
        }
        let parent = parse(value.to_str().ok()?)?;
        Some(Self { parent, state: state_of(headers), is_ours: false })
    }

    /// Returns the trace of this node's span for a request of this caller.
    pub fn of_span(span: &SubmitSpan, caller: Option<Self>) -> Self {
        let state = caller.and_then(|caller| caller.state);
        Self { parent: span.traceparent(), state, is_ours: true }
    }

    /// Returns the trace of a request: that of this node's span, if there is one, or that of the
    /// caller.
    pub fn of<B>(request: &Request<B>) -> Option<Self> {
        let of_span = |extensions: &Extensions| extensions.get::<Self>().cloned();
        of_span(request.extensions()).or_else(|| Self::of_caller(request.headers()))
    }

    /// True when the parent is a span of this node, about which the caller knows nothing.
    pub fn is_ours(&self) -> bool {
        self.is_ours
    }

    pub fn parent(&self) -> &str {
        &self.parent
    }

    pub fn state(&self) -> Option<&str> {
        self.state.as_deref()
    }

    /// Returns the headers that a task gets besides those that a submitter can give.
    pub fn own_headers(&self) -> Headers {
        match self.is_ours {
            true => Headers::own([(SUBMIT_TRACEPARENT, self.parent.clone())]),
            false => Headers::default(),
        }
    }
}

/// Returns the request's `tracestate`: its fields in their order, as one list.
fn state_of(headers: &HeaderMap) -> Option<String> {
    let fields = headers.get_all(STATE_HEADER).iter().map(|value| value.to_str());
    let state = fields.collect::<Result<Vec<&str>, _>>().ok()?.join(",");
    (!state.is_empty() && state.len() <= STATE_BYTES_MAX).then_some(state)
}

/// Returns a valid `traceparent` in version 00.
fn parse(text: &str) -> Option<String> {
    let (known, more) = text.split_at_checked(LENGTH)?;
    let mut parts = known.split('-');
    let [version, trace, parent, flags] =
        [parts.next()?, parts.next()?, parts.next()?, parts.next()?];
    let is_hex = |part: &str, length| {
        part.len() == length && part.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'))
    };
    let is_id = |part: &str, length| is_hex(part, length) && part.bytes().any(|byte| byte != b'0');
    let is_right = is_hex(version, 2)
        && is_id(trace, 32)
        && is_id(parent, 16)
        && is_hex(flags, 2)
        && parts.next().is_none();
    match version {
        _ if !is_right => None,
        "00" => more.is_empty().then(|| text.to_owned()),
        "ff" => None,
        _ if more.is_empty() || more.starts_with('-') => {
            // `sampled` is the only flag of version 00.
            let sampled = u8::from_str_radix(flags, 16).ok()? & 1;
            Some(format!("00-{trace}-{parent}-{sampled:02x}"))
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const RIGHT: &str = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";

    #[test]
    fn a_right_one_is_kept_as_it_is() {
        assert_eq!(parse(RIGHT).as_deref(), Some(RIGHT));
        let random = RIGHT.replace("-01", "-03");
        assert_eq!(parse(&random), Some(random));
    }

    #[test]
    fn of_a_later_version_the_known_part_is_taken() {
        for later in [
            RIGHT.replace("00-4", "cc-4"),
            RIGHT.replace("00-4", "01-4") + "-what-is-new",
            RIGHT.replace("00-4", "01-4").replace("-01", "-09"),
        ] {
            assert_eq!(parse(&later).as_deref(), Some(RIGHT), "{later}");
        }
    }

    #[test]
    fn wrong_ones_are_ignored() {
        for wrong in [
            "",
            "00",
            &RIGHT[..54],
            &RIGHT.to_uppercase(),
            &RIGHT.replace("00-4", "ff-4"),
            &RIGHT.replace("00-4", "0x-4"),
            &RIGHT.replace("00-4", "01-4").replace("-01", "-01x"),
            &(RIGHT.to_owned() + "-more"),
            &RIGHT.replace("4bf92f3577b34da6a3ce929d0e0e4736", &"0".repeat(32)),
            &RIGHT.replace("00f067aa0ba902b7", &"0".repeat(16)),
            &RIGHT.replace("-01", "-0g"),
            &RIGHT.replace('-', "_"),
            &RIGHT.replace("-00f067aa0ba902b7", "0-0f067aa0ba902b7"),
            &"\u{e4}".repeat(28),
        ] {
            assert_eq!(parse(wrong), None, "{wrong}");
        }
        let twice = [RIGHT, RIGHT]
            .map(|value| (HEADER, value.parse().unwrap()))
            .into_iter()
            .collect::<HeaderMap>();
        assert_eq!(RequestTrace::of_caller(&twice), None);
    }

    #[test]
    fn a_state_is_passed_on_as_one_list_unless_it_is_too_long() {
        let state = |values: &[&str]| {
            let values = values.iter().map(|value| (STATE_HEADER, value.parse().unwrap()));
            state_of(&values.collect())
        };
        assert_eq!(state(&["a=1", "b=2,c=3"]).as_deref(), Some("a=1,b=2,c=3"));
        assert_eq!(state(&[]), None);
        assert_eq!(state(&[&"x".repeat(STATE_BYTES_MAX)]).map(|state| state.len()), Some(512));
        assert_eq!(state(&[&"x".repeat(STATE_BYTES_MAX + 1)]), None);
    }
}
