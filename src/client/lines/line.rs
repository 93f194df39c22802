//! Turns a line of the input into a task: checks its shape, and adds a name so a retry is safe.

use std::fmt;

use serde::Deserialize;
use serde::de::{Deserializer, IgnoredAny, MapAccess, Visitor};

/// A valid line: a JSON object with a name.
#[derive(PartialEq, Eq, Debug)]
pub struct TaskLine {
    /// Counts from 1, as editors do. Empty lines count, too.
    pub number: u64,
    pub json: String,
}

/// An invalid line. It is not sent, because no node would accept it.
#[derive(PartialEq, Eq, Debug)]
pub struct WrongLine {
    pub number: u64,
    pub kind: WrongKind,
    pub detail: String,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum WrongKind {
    NotJson,
    /// The line is JSON, but not an object.
    NotATask,
    TooLong,
}

/// Defaults for members that lines do not have.
#[derive(Clone, Debug)]
pub struct Naming {
    run_id: String,
    topic: Option<String>,
}

impl Naming {
    pub fn new(run_id: &str, topic: Option<&str>) -> Self {
        Self {
            run_id: run_id.to_owned(),
            topic: topic.map(|topic| serde_json::Value::from(topic).to_string()),
        }
    }

    /// Returns the task of a line, or `None` for an empty line. The line's own members go to the
    /// node byte for byte: this function only adds members.
    pub fn line_of(&self, number: u64, bytes: &[u8]) -> Result<Option<TaskLine>, WrongLine> {
        let not_json = |detail| WrongLine { number, kind: WrongKind::NotJson, detail };
        let not_a_task = || WrongLine {
            number,
            kind: WrongKind::NotATask,
            detail: "a task must be a JSON object".to_owned(),
        };
        let text = std::str::from_utf8(bytes).map_err(|error| {
            not_json(format!("not UTF-8 from byte {}", error.valid_up_to() + 1))
        })?;
        // Some editors write a byte order mark at the start of a file.
        let text = if number == 1 { text.trim_start_matches('\u{feff}') } else { text };
        let text = text.trim_matches([' ', '\t', '\r', '\n']);
        if text.is_empty() {
            return Ok(None);
        }
        let shape: Shape = serde_json::from_str(text).map_err(|error| {
            if error.is_data() { not_a_task() } else { not_json(without_line(&error)) }
        })?;
        let members = text.strip_prefix('{').ok_or_else(not_a_task)?;
        let mut added = Vec::with_capacity(2);
        if !shape.has_name {
            added.push(format!(
                "\"name\":{}",
                serde_json::Value::from(format!("{}/{number}", self.run_id))
            ));
        }
        if let Some(topic) = self.topic.as_ref().filter(|_| !shape.has_topic) {
            added.push(format!("\"topic\":{topic}"));
        }
        let added = added.join(",");
        let comma = if added.is_empty() || shape.is_empty { "" } else { "," };
        let mut json = String::with_capacity(text.len() + added.len() + 1);
        json.push('{');
        json.push_str(&added);
        json.push_str(comma);
        json.push_str(members);
        Ok(Some(TaskLine { number, json }))
    }
}

/// Returns the error's text without its line number, which is always 1 here. The column is useful.
fn without_line(error: &serde_json::Error) -> String {
    let text = error.to_string();
    format!("{} at column {}", text.split(" at line ").next().unwrap_or_default(), error.column())
}

/// The facts about an object that decide its members.
#[derive(Default)]
struct Shape {
    is_empty: bool,
    has_name: bool,
    has_topic: bool,
}

#[derive(Deserialize)]
#[serde(field_identifier, rename_all = "lowercase")]
enum LineMember {
    Name,
    Topic,
    #[serde(other)]
    Other,
}

impl<'de> Deserialize<'de> for Shape {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Object;
        impl<'de> Visitor<'de> for Object {
            type Value = Shape;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
                let mut shape = Shape { is_empty: true, ..Shape::default() };
                while let Some((member, IgnoredAny)) = map.next_entry::<LineMember, IgnoredAny>()? {
                    shape.is_empty = false;
                    shape.has_name |= matches!(member, LineMember::Name);
                    shape.has_topic |= matches!(member, LineMember::Topic);
                }
                Ok(shape)
            }
        }
        deserializer.deserialize_map(Object)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn json(text: &str) -> String {
        Naming::new("r\"1", Some("t")).line_of(7, text.as_bytes()).unwrap().unwrap().json
    }

    #[test]
    fn a_line_gets_a_name_and_a_topic_if_it_brings_none() {
        assert_eq!(
            json(r#" {"delay": 1, "payload" : [1.0] } "#),
            r#"{"name":"r\"1/7","topic":"t","delay": 1, "payload" : [1.0] }"#
        );
        assert_eq!(json(r#"{"name":"n","topic":"u"}"#), r#"{"name":"n","topic":"u"}"#);
        assert_eq!(json(r#"{"n\u0061me":"n"}"#), r#"{"topic":"t","n\u0061me":"n"}"#);
        assert_eq!(
            json(r#"{"payload":{"name":1,"topic":2}}"#),
            r#"{"name":"r\"1/7","topic":"t","payload":{"name":1,"topic":2}}"#
        );
        assert_eq!(json("{ }"), r#"{"name":"r\"1/7","topic":"t" }"#);
        assert_eq!(
            Naming::new("r", None)
                .line_of(1, "\u{feff}{\"a\":1}\r".as_bytes())
                .unwrap()
                .unwrap()
                .json,
            r#"{"name":"r/1","a":1}"#
        );
    }

    #[test]
    fn what_is_sent_is_still_json() {
        for text in ["{}", "{\t}", r#"{"a":{}}"#, r#"{"name":null}"#] {
            let json = json(text);
            assert!(serde_json::from_str::<serde_json::Value>(&json).is_ok(), "{json}");
        }
    }

    #[test]
    fn empty_lines_are_no_tasks() {
        for text in ["", "  ", "\r"] {
            assert_eq!(Naming::new("r", None).line_of(1, text.as_bytes()), Ok(None));
        }
    }

    #[test]
    fn what_is_no_object_is_not_sent() {
        let kind_of = |text: &str| {
            let wrong = Naming::new("r", None).line_of(3, text.as_bytes()).unwrap_err();
            (wrong.number, wrong.kind)
        };
        for text in ["{", "{} {}", "{\"a\":}", "{'a':1}", "nonsense", "{\"a\":1}}"] {
            assert_eq!(kind_of(text), (3, WrongKind::NotJson), "{text}");
        }
        for text in ["5", "[]", "null", "\"{\""] {
            assert_eq!(kind_of(text), (3, WrongKind::NotATask), "{text}");
        }
        let wrong = Naming::new("r", None).line_of(1, b"{\"a\": nul}").unwrap_err();
        assert_eq!(wrong.detail, "expected ident at column 10");
        let wrong = Naming::new("r", None).line_of(1, b"{\"a\":\"\xff\"}").unwrap_err();
        assert_eq!(wrong.detail, "not UTF-8 from byte 7");
    }
}
