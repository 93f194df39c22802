//! A task from a node's answer, and its form for people.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::fmt::Write as _;

use serde::{Deserialize, Deserializer};
use serde_json::value::RawValue;

use crate::domain::text::escaped_where;

/// A task from an answer. The members that every task has are required: without them the answer is
/// not a node's.
#[derive(Deserialize, Debug)]
pub struct Task {
    pub id: String,
    pub topic: String,
    pub name: Option<String>,
    pub key: Option<String>,
    pub key_base64: Option<String>,
    pub due_at: String,
    pub requested_due_at: Option<String>,
    pub expires_at: Option<String>,
    pub state: String,
    /// The task in the place of a replaced one.
    pub replaced_by: Option<String>,
    pub attempt: Option<i64>,
    pub attempts_max: Option<i64>,
    pub ttr: Option<String>,
    pub finish_by: Option<String>,
    pub retry_at: Option<String>,
    pub finished_at: Option<String>,
    pub finished_by: Option<String>,
    #[serde(default)]
    pub in_flight: bool,
    #[serde(default)]
    pub attempts: Vec<AttemptLine>,
    pub receipt: Option<TaskReceipt>,
    #[serde(default)]
    pub headers: BTreeMap<String, Header>,
    #[serde(default, deserialize_with = "given")]
    pub payload: Option<Box<RawValue>>,
    pub payload_text: Option<String>,
    pub payload_base64: Option<String>,
    #[serde(default)]
    pub tombstone: bool,
    /// True when key, headers and payload were left out, for lack of the right `read-payload`.
    #[serde(default)]
    pub redacted: bool,
    pub reason: Option<String>,
    /// Only dead letters have it.
    pub died_at: Option<String>,
    pub submitted_by: Option<String>,
    pub submitted_at: Option<String>,
    pub cancelled_by: Option<String>,
    pub dropped_by: Option<String>,
    /// Only dropped dead letters have it.
    pub dropped_at: Option<String>,
}

/// An explicit null counts as a payload.
pub fn given<'de, D: Deserializer<'de>>(
    deserializer: D,
) -> Result<Option<Box<RawValue>>, D::Error> {
    Box::<RawValue>::deserialize(deserializer).map(Some)
}

/// All values of one header name.
#[derive(Deserialize, Debug)]
#[serde(untagged)]
pub enum Header {
    One(HeaderValue),
    Several(Vec<HeaderValue>),
}

#[derive(Deserialize, Debug)]
#[serde(untagged)]
pub enum HeaderValue {
    Text(String),
    Binary { base64: String },
    Null,
}

impl Header {
    fn values(&self) -> &[HeaderValue] {
        match self {
            Self::One(value) => std::slice::from_ref(value),
            Self::Several(values) => values,
        }
    }
}

/// An attempt that was published, or the consumer's answer to it.
#[derive(Deserialize, Debug)]
pub struct AttemptLine {
    pub attempt: i64,
    pub outcome: String,
    pub at: String,
    pub receipt: Option<AttemptReceipt>,
    pub reason: Option<String>,
}

impl AttemptLine {
    fn text(&self) -> String {
        let Self { attempt, outcome, at, receipt, reason } = self;
        let place =
            receipt.as_ref().map_or(String::new(), |AttemptReceipt { partition, offset }| {
                format!(", partition {partition}, offset {offset}")
            });
        let reason = reason.as_ref().map_or(String::new(), |reason| format!(": {reason}"));
        format!("{attempt}: {outcome} {at}{place}{reason}")
    }
}

#[derive(Deserialize, Debug)]
pub struct AttemptReceipt {
    pub partition: i64,
    pub offset: i64,
}

#[derive(Deserialize, Debug)]
pub struct TaskReceipt {
    pub partition: i64,
    pub offset: i64,
    pub published_at: String,
    pub lateness_ms: i64,
}

impl Task {
    /// Describes a task, with one line for each known member.
    pub fn lines(&self) -> String {
        let mut lines = String::new();
        let mut line = |name: &str, value: Option<&str>| {
            if let Some(value) = value {
                // A write to a string cannot fail.
                writeln!(lines, "{name:<12}{}", printable(value).replace('\n', CONTINUED)).ok();
            }
        };
        line("id", Some(&self.id));
        line("topic", Some(&self.topic));
        line("name", self.name.as_deref());
        line("due", Some(&self.due_at));
        line("requested", self.requested_due_at.as_deref());
        line("expires", self.expires_at.as_deref());
        line("state", Some(&self.state));
        line("replaced by", self.replaced_by.as_deref());
        line("attempt", self.attempt_of_all().as_deref());
        line("ttr", self.ttr.as_deref());
        line("finish by", self.finish_by.as_deref());
        line("retry", self.retry_at.as_deref());
        line("finished", moment_and_name(&self.finished_at, &self.finished_by).as_deref());
        line("in flight", self.in_flight.then_some("an attempt may have come after that"));
        line("reason", self.reason.as_deref());
        line("died", self.died_at.as_deref());
        line("submitted", moment_and_name(&self.submitted_at, &self.submitted_by).as_deref());
        line("cancelled", moment_and_name(&None, &self.cancelled_by).as_deref());
        line("dropped", moment_and_name(&self.dropped_at, &self.dropped_by).as_deref());
        if let Some(receipt) = &self.receipt {
            line(
                "published",
                Some(&format!(
                    "{} ({} ms after its due time)",
                    receipt.published_at, receipt.lateness_ms
                )),
            );
            line("partition", Some(&receipt.partition.to_string()));
            line("offset", Some(&receipt.offset.to_string()));
        }
        for attempt in &self.attempts {
            line("  attempt", Some(&attempt.text()));
        }
        line("key", self.key.as_deref());
        line("key base64", self.key_base64.as_deref());
        for (name, header) in &self.headers {
            for value in header.values() {
                match value {
                    HeaderValue::Text(text) => line("header", Some(&format!("{name}={text}"))),
                    HeaderValue::Binary { base64 } => {
                        line("  in base64", Some(&format!("{name}={base64}")))
                    }
                    HeaderValue::Null => line("  null", Some(name)),
                }
            }
        }
        line(
            "payload",
            self.payload.as_deref().map(|payload| payload.get()).or(self.payload_text.as_deref()),
        );
        line("  in base64", self.payload_base64.as_deref());
        line("payload", self.tombstone.then_some("none: a tombstone"));
        let is_redacted = "key, headers and payload: they need the right read-payload";
        line("redacted", self.redacted.then_some(is_redacted));
        lines.truncate(lines.trim_end().len());
        lines
    }

    fn attempt_of_all(&self) -> Option<String> {
        let attempt = self.attempt?;
        Some(match self.attempts_max {
            Some(attempts_max) => format!("{attempt} of {attempts_max}"),
            None => attempt.to_string(),
        })
    }
}

fn moment_and_name(at: &Option<String>, by: &Option<String>) -> Option<String> {
    match (at, by) {
        (Some(at), Some(by)) => Some(format!("{at} by {by}")),
        (at, None) => at.clone(),
        (None, Some(by)) => Some(format!("by {by}")),
    }
}

/// Indents the further lines of a value, so that none of them can look like another member.
const CONTINUED: &str = "\n            ";

/// Returns true for a character that could control a terminal, begin a line, or change the order of
/// the text: control characters, separators of lines and paragraphs, and the bidirectional controls
/// of Unicode.
pub fn is_steering(c: char) -> bool {
    let is_separator = matches!(c, '\u{2028}' | '\u{2029}');
    let is_bidirectional = matches!(
        c,
        '\u{61c}' | '\u{200e}' | '\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}'
    );
    c.is_control() || is_separator || is_bidirectional
}

/// Escapes the steering characters of foreign text, but for line breaks and tabs.
pub fn printable(text: &str) -> Cow<'_, str> {
    escaped_where(text, |c| is_steering(c) && !matches!(c, '\n' | '\t'))
}

/// Escapes the steering characters of foreign text, which stays on one line.
pub fn one_line(text: &str) -> String {
    printable(text).replace(['\n', '\t'], " ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_character_steers_the_terminal_or_turns_the_text() {
        let steering = [
            '\0', '\u{7}', '\u{1b}', '\r', '\u{7f}', '\u{9b}', '\u{61c}', '\u{200e}', '\u{200f}',
            '\u{2028}', '\u{2029}', '\u{202a}', '\u{202e}', '\u{2066}', '\u{2069}',
        ];
        for c in steering {
            let text = format!("a{c}b");
            assert_eq!(printable(&text), format!("a{}b", c.escape_default()));
        }
        for text in ["a\tb\nc", "ä €\u{a0}", "\u{200d}\u{2027}\u{202f}\u{2065}\u{206a}"] {
            assert_eq!(printable(text), text);
        }
        assert_eq!(one_line("a\tb\nc\u{1b}"), "a b c\\u{1b}");
    }

    #[test]
    fn a_payload_that_was_left_out_is_not_shown_as_absent() {
        let json = r#"{"id":"i","topic":"t","due_at":"d","state":"scheduled","redacted":true}"#;
        let lines = serde_json::from_str::<Task>(json).unwrap().lines();
        assert!(lines.contains("redacted    key, headers and payload"), "{lines}");
        let lines = serde_json::from_str::<Task>(&json.replace("true", "false")).unwrap().lines();
        assert!(!lines.contains("redacted"), "{lines}");
    }
}
