//! JSON that every usual parser can read.
//!
//! An answer has the payloads of several submitters. A parser that stops at one of them would fail
//! for all. Payloads beyond these limits are shown as text.

use std::fmt;

use serde::de::{Deserialize, Deserializer, MapAccess, SeqAccess, Visitor};

/// Returns true for JSON that nests at most 127 times, without half of a surrogate pair (`\ud800`)
/// and numbers beyond a double. PHP's parser stops at a depth of 512 and at half of a pair, that of
/// Python at about 1,000.
pub fn is_readable(json: &str) -> bool {
    serde_json::from_str::<Readable>(json).is_ok()
}

/// Any JSON, of which nothing is kept. The limits are serde_json's own.
struct Readable;

impl<'de> Deserialize<'de> for Readable {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(Self)
    }
}

impl<'de> Visitor<'de> for Readable {
    type Value = Self;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("JSON")
    }

    fn visit_unit<E>(self) -> Result<Self, E> {
        Ok(self)
    }

    fn visit_bool<E>(self, _value: bool) -> Result<Self, E> {
        Ok(self)
    }

    fn visit_i64<E>(self, _value: i64) -> Result<Self, E> {
        Ok(self)
    }

    fn visit_u64<E>(self, _value: u64) -> Result<Self, E> {
        Ok(self)
    }

    fn visit_f64<E>(self, _value: f64) -> Result<Self, E> {
        Ok(self)
    }

    fn visit_str<E>(self, _value: &str) -> Result<Self, E> {
        Ok(self)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<Self, A::Error> {
        while items.next_element::<Self>()?.is_some() {}
        Ok(self)
    }

    fn visit_map<A: MapAccess<'de>>(self, mut members: A) -> Result<Self, A::Error> {
        while members.next_entry::<Self, Self>()?.is_some() {}
        Ok(self)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_some_parser_refuses_is_not_readable() {
        let nested = |depth: usize| "[".repeat(depth) + &"]".repeat(depth);
        for json in [
            "null",
            "[1, -2, 3.5, true, {}]",
            r#"{"a": {"a": "\ud83d\ude00"}}"#,
            "18446744073709551616",
            &nested(127),
        ] {
            assert!(is_readable(json), "{json}");
        }
        for json in
            [r#""\ud800""#, r#"{"\udc00": 1}"#, "1e999", "{", &nested(128), &nested(100_000)]
        {
            assert!(!is_readable(json), "{:.20}", json);
        }
    }
}
