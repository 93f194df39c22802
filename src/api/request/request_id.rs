//! The request id, which connects a request, the answer and the log lines.

use std::fmt;

use axum::http::{HeaderMap, HeaderName, HeaderValue};

pub const REQUEST_ID: HeaderName = HeaderName::from_static("x-request-id");
/// The longest id. A longer one is replaced by a new id.
const CHARS_MAX: usize = 128;

/// A caller's id, or a new one: 1 to 128 of `A-Z a-z 0-9 . _ ~ : / + = @ -`. None of these
/// characters can break a line, a quote or a field of a log.
#[derive(Clone, Debug)]
pub struct RequestId(HeaderValue);

impl RequestId {
    /// Returns the request's own id when it has exactly one, and a valid one. Otherwise makes one
    /// of 32 random hexadecimal digits.
    pub fn of(headers: &HeaderMap) -> Self {
        let mut given = headers.get_all(&REQUEST_ID).iter();
        match (given.next(), given.next()) {
            (Some(id), None) if is_id(id.as_bytes()) => Self(id.clone()),
            _ => Self::new(),
        }
    }

    pub fn new() -> Self {
        let mut digits = [0; 32];
        let digits = uuid::Uuid::from_u128(rand::random()).simple().encode_lower(&mut digits);
        HeaderValue::from_str(digits)
            .map_or_else(|_never| Self(HeaderValue::from_static("-")), Self)
    }

    pub fn as_str(&self) -> &str {
        self.0.to_str().unwrap_or_default()
    }

    pub fn into_header(self) -> HeaderValue {
        self.0
    }
}

impl fmt::Display for RequestId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

fn is_id(id: &[u8]) -> bool {
    (1..=CHARS_MAX).contains(&id.len())
        && id.iter().all(|byte| byte.is_ascii_alphanumeric() || b"._~:/+=@-".contains(byte))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn id_of(given: &[&str]) -> String {
        let headers =
            given.iter().map(|id| (REQUEST_ID, id.parse().unwrap())).collect::<HeaderMap>();
        RequestId::of(&headers).to_string()
    }

    #[test]
    fn a_callers_id_is_kept() {
        let longest = "i".repeat(128);
        for id in ["7", "01J9ZK-4_x.y~z:/+=@", "00000000-0000-0000-0000-000000000000", &longest] {
            assert_eq!(id_of(&[id]), id);
        }
    }

    #[test]
    fn what_is_no_id_is_replaced() {
        let long = "i".repeat(129);
        for given in [&[][..], &[""], &["a b"], &["a\""], &["\u{e4}"], &[&long], &["a", "b"]] {
            let made = id_of(given);
            assert!(
                made.len() == 32 && made.bytes().all(|byte| byte.is_ascii_hexdigit()),
                "{given:?}: {made}"
            );
            assert_ne!(made, id_of(given));
        }
    }
}
