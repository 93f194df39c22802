//! JSON objects in which no member is given twice. Two readers could each take another one.

use std::fmt;

use serde::de::{Deserialize, Deserializer, Error, MapAccess, Visitor};
use serde_json::Value;

/// The members of an object, in their order.
#[derive(Clone, Default, Debug)]
pub struct Members(Vec<(String, Value)>);

impl Members {
    /// Reads an object. Returns `None` for other values, and when a member is given twice.
    pub fn read(json: &[u8]) -> Option<Self> {
        serde_json::from_slice(json).ok()
    }

    pub fn get(&self, name: &str) -> Option<&Value> {
        self.0.iter().find(|(own, _)| own == name).map(|(_, value)| value)
    }

    /// Returns a member that is a string.
    pub fn text(&self, name: &str) -> Option<&str> {
        self.get(name).and_then(Value::as_str)
    }
}

impl<'de> Deserialize<'de> for Members {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_map(MembersVisitor)
    }
}

struct MembersVisitor;

impl<'de> Visitor<'de> for MembersVisitor {
    type Value = Members;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Members, A::Error> {
        let mut members = Members::default();
        while let Some((name, value)) = map.next_entry::<String, Value>()? {
            if members.get(&name).is_some() {
                return Err(A::Error::custom("a member is given twice"));
            }
            members.0.push((name, value));
        }
        Ok(members)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_member_that_is_given_twice_is_refused_in_every_spelling() {
        for wrong in [
            r#"{"alg":"ES256","alg":"none"}"#,
            r#"{"alg":"ES256","\u0061lg":"none"}"#,
            r#"{"alg":"ES256"} {}"#,
            r#"["alg"]"#,
            "{",
            "",
            "{\"exp\":1e400}",
        ] {
            assert!(Members::read(wrong.as_bytes()).is_none(), "{wrong}");
        }
        let read = Members::read(br#"{"a":"b","c":{"a":1}}"#).unwrap();
        assert_eq!((read.text("a"), read.text("c"), read.text("d")), (Some("b"), None, None));
    }
}
