//! W3C Trace Context: the header `traceparent` of a request, which carries the trace on to the
//! consumer of the record.

use axum::http::{HeaderMap, HeaderName};

/// The name of the header, in requests and in records.
pub const TRACEPARENT: &str = "traceparent";
const HEADER: HeaderName = HeaderName::from_static(TRACEPARENT);

/// The bytes of a `traceparent` of version 00: `00-<32 hexadecimal digits>-<16>-<2>`.
const LENGTH: usize = 55;

/// A valid `traceparent` in version 00.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct TraceParent(String);

impl TraceParent {
    /// Returns the request's `traceparent`, if it has exactly one and it is valid. The
    /// specification says to ignore invalid ones, and a task must not be refused because of
    /// tracing. For an unknown version, the known part is read as version 00.
    pub fn of(headers: &HeaderMap) -> Option<Self> {
        let mut given = headers.get_all(HEADER).iter();
        let value = given.next()?;
        if given.next().is_some() {
            return None;
        }
        Self::parse(value.to_str().ok()?)
    }

    pub fn as_str(&self) -> &str {
        &self.0
    }

    fn parse(text: &str) -> Option<Self> {
        let (known, more) = text.split_at_checked(LENGTH)?;
        let mut parts = known.split('-');
        let [version, trace, parent, flags] =
            [parts.next()?, parts.next()?, parts.next()?, parts.next()?];
        let is_hex = |part: &str, length| {
            part.len() == length
                && part.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'))
        };
        let is_id =
            |part: &str, length| is_hex(part, length) && part.bytes().any(|byte| byte != b'0');
        let is_right = is_hex(version, 2)
            && is_id(trace, 32)
            && is_id(parent, 16)
            && is_hex(flags, 2)
            && parts.next().is_none();
        match version {
            _ if !is_right => None,
            "00" => more.is_empty().then(|| Self(text.to_owned())),
            "ff" => None,
            _ if more.is_empty() || more.starts_with('-') => {
                // `sampled` is the only flag of version 00.
                let sampled = u8::from_str_radix(flags, 16).ok()? & 1;
                Some(Self(format!("00-{trace}-{parent}-{sampled:02x}")))
            }
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const RIGHT: &str = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";

    fn parsed(text: &str) -> Option<String> {
        TraceParent::parse(text).map(|parent| parent.0)
    }

    #[test]
    fn a_right_one_is_kept_as_it_is() {
        assert_eq!(parsed(RIGHT).as_deref(), Some(RIGHT));
        let random = RIGHT.replace("-01", "-03");
        assert_eq!(parsed(&random), Some(random));
    }

    #[test]
    fn of_a_later_version_the_known_part_is_taken() {
        for later in [
            RIGHT.replace("00-4", "cc-4"),
            RIGHT.replace("00-4", "01-4") + "-what-is-new",
            RIGHT.replace("00-4", "01-4").replace("-01", "-09"),
        ] {
            assert_eq!(parsed(&later).as_deref(), Some(RIGHT), "{later}");
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
            assert_eq!(parsed(wrong), None, "{wrong}");
        }
        let twice = [RIGHT, RIGHT]
            .map(|value| (HEADER, value.parse().unwrap()))
            .into_iter()
            .collect::<HeaderMap>();
        assert_eq!(TraceParent::of(&twice), None);
    }
}
