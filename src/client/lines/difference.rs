//! Compares a line with the known task of the same name. Pure, so tests run on pairs of lines and
//! tasks.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::fmt;
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde::{Deserialize, Deserializer, Serialize};
use serde_json::Value;
use serde_json::value::RawValue;

use crate::domain::task::headers::{SUBMIT_TRACEPARENT, SUBMITTED_BY, TRACEPARENT, TRACESTATE};
use crate::domain::time::duration;
use crate::domain::{RetryPolicy, Timestamp};

/// A node moves a due time in the past to the moment of the submit. A due time further ahead of the
/// machine's clock than this cannot have been moved.
const CLOCKS_APART_MAX: Duration = Duration::from_secs(300);

/// A member in which a line and its task differ.
#[derive(Clone, Copy, PartialEq, Eq, Serialize, Debug)]
#[serde(rename_all = "snake_case")]
pub enum DifferingMember {
    DueAt,
    Payload,
    Key,
    Headers,
    Ttr,
    Retry,
}

impl fmt::Display for DifferingMember {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::DueAt => "due time",
            Self::Payload => "payload",
            Self::Key => "key",
            Self::Headers => "headers",
            Self::Ttr => "ttr",
            Self::Retry => "retry",
        })
    }
}

/// The members that a line and a task in an answer have in common. Other members are ignored.
#[derive(Deserialize, Default)]
#[serde(default)]
struct ComparedTask<'a> {
    due_at: Option<Value>,
    /// Of a stored task that is due later, by the spread of its topic.
    requested_due_at: Option<Value>,
    #[serde(borrow, deserialize_with = "given")]
    payload: Option<&'a RawValue>,
    #[serde(borrow)]
    payload_text: Option<Cow<'a, str>>,
    #[serde(borrow)]
    payload_base64: Option<Cow<'a, str>>,
    tombstone: bool,
    #[serde(borrow)]
    key: Option<Cow<'a, str>>,
    #[serde(borrow)]
    key_base64: Option<Cow<'a, str>>,
    headers: Option<BTreeMap<String, Value>>,
    ttr: Option<Value>,
    retry: Option<ComparedRetry>,
}

/// The members of `retry`. A missing one stands for its default.
#[derive(Deserialize, Default)]
#[serde(default)]
struct ComparedRetry {
    attempts_max: Option<f64>,
    backoff_min: Option<Value>,
    backoff_max: Option<Value>,
    backoff_factor: Option<f64>,
    dead_topic: Option<String>,
}

impl ComparedRetry {
    /// Returns the policy, or `None` if a span of it is unreadable.
    fn read(&self) -> Option<([f64; 2], [Duration; 2], Option<&str>)> {
        let default = RetryPolicy::DEFAULT;
        let number = |given: Option<f64>, default: u16| given.unwrap_or(f64::from(default));
        let span = |given: &Option<Value>, default| given.as_ref().map_or(Some(default), span_of);
        Some((
            [
                number(self.attempts_max, default.attempts_max()),
                number(self.backoff_factor, default.backoff_factor()),
            ],
            [
                span(&self.backoff_min, default.backoff_min())?,
                span(&self.backoff_max, default.backoff_max())?,
            ],
            self.dead_topic.as_deref(),
        ))
    }
}

/// Reads a span: text, or milliseconds.
fn span_of(value: &Value) -> Option<Duration> {
    match value {
        Value::String(text) => duration::parse(text).ok(),
        number => Duration::try_from_secs_f64(number.as_f64()? / 1000.0).ok(),
    }
}

/// An explicit null counts as a payload.
fn given<'de: 'a, 'a, D: Deserializer<'de>>(
    deserializer: D,
) -> Result<Option<&'a RawValue>, D::Error> {
    <&RawValue>::deserialize(deserializer).map(Some)
}

impl<'a> ComparedTask<'a> {
    fn due_at(&self) -> Option<Timestamp> {
        match self.requested_due_at.as_ref().or(self.due_at.as_ref())? {
            Value::String(text) => Timestamp::of_rfc3339(text),
            number => number.as_i64().map(Timestamp::from_millis),
        }
    }

    /// Returns the record's value, with an inner `None` for a tombstone. Returns `None` if the
    /// value is missing or unreadable.
    fn payload(&self) -> Option<Option<Cow<'a, [u8]>>> {
        if self.tombstone {
            return Some(None);
        }
        let json = self.payload.map(|json| Cow::Borrowed(json.get().as_bytes()));
        json.or_else(|| bytes_of(&self.payload_text, &self.payload_base64)?).map(Some)
    }

    /// Returns the record's key, with an inner `None` for a record without a key. Returns `None` if
    /// the key is unreadable.
    fn key(&self) -> Option<Option<Cow<'a, [u8]>>> {
        bytes_of(&self.key, &self.key_base64)
    }

    /// Returns the headers, or `None` if they are unreadable.
    fn headers(&self) -> Option<BTreeMap<&str, Vec<Option<Vec<u8>>>>> {
        let headers = self.headers.iter().flatten();
        headers.map(|(name, value)| Some((name.as_str(), header_values(value)?))).collect()
    }
}

/// Decodes bytes given as text or in base64. Returns `None` if they are unreadable.
fn bytes_of<'a>(
    text: &Option<Cow<'a, str>>,
    base64: &Option<Cow<'a, str>>,
) -> Option<Option<Cow<'a, [u8]>>> {
    match (text, base64) {
        (Some(Cow::Borrowed(text)), _) => Some(Some(Cow::Borrowed(text.as_bytes()))),
        (Some(Cow::Owned(text)), _) => Some(Some(Cow::Owned(text.clone().into_bytes()))),
        (None, Some(base64)) => Some(Some(Cow::Owned(STANDARD.decode(base64.as_bytes()).ok()?))),
        (None, None) => Some(None),
    }
}

/// Returns the values of a header: a text, null, base64, or a list of these.
fn header_values(value: &Value) -> Option<Vec<Option<Vec<u8>>>> {
    match value {
        Value::String(text) => Some(vec![Some(text.clone().into_bytes())]),
        Value::Null => Some(vec![None]),
        Value::Array(values) => {
            values.iter().map(header_values).collect::<Option<Vec<_>>>().map(|lists| lists.concat())
        }
        Value::Object(members) => {
            let base64 = members.get("base64")?.as_str()?;
            Some(vec![Some(STANDARD.decode(base64).ok()?)])
        }
        Value::Bool(_) | Value::Number(_) => None,
    }
}

/// Returns the members in which the line `line` differs from `task`, a task from a node's answer.
/// Returns none if they are the same, as far as the answer shows.
///
/// A line with a delay has no fixed due time to compare. Members that the node has already deleted
/// cannot be compared, either. `now` is the machine's clock.
pub fn differences(line: &str, task: &str, now: Timestamp) -> Vec<DifferingMember> {
    let (Ok(line), Ok(task)) = (
        serde_json::from_str::<ComparedTask<'_>>(line),
        serde_json::from_str::<ComparedTask<'_>>(task),
    ) else {
        return Vec::new();
    };
    let mut members = Vec::new();
    if let (Some(asked), Some(stored)) = (line.due_at(), task.due_at()) {
        let may_be_moved = stored > asked && stored <= now.plus(CLOCKS_APART_MAX);
        if stored != asked && !may_be_moved {
            members.push(DifferingMember::DueAt);
        }
    }
    // A line without a time to run may have got that of its topic's policy. A task that ended long
    // ago is known without the time to run, as without the payload.
    if line.ttr.is_some() && (task.ttr.is_some() || task.payload().is_some()) {
        let spans = [&line, &task].map(|one| one.ttr.as_ref().map(span_of));
        if spans[0] != spans[1] && !spans.contains(&Some(None)) {
            members.push(DifferingMember::Ttr);
        }
    }
    if line.ttr.is_some() && task.ttr.is_some() {
        let default = ComparedRetry::default();
        let policies = [&line, &task].map(|one| one.retry.as_ref().unwrap_or(&default).read());
        if policies[0] != policies[1] && !policies.contains(&None) {
            members.push(DifferingMember::Retry);
        }
    }
    // An answer without the payload lacks the key and the headers as well.
    let Some(payload) = task.payload() else { return members };
    if line.payload().is_some_and(|asked| asked != payload) {
        members.push(DifferingMember::Payload);
    }
    if let (Some(asked), Some(stored)) = (line.key(), task.key())
        && asked != stored
    {
        members.push(DifferingMember::Key);
    }
    if let (Some(asked), Some(mut stored)) = (line.headers(), task.headers()) {
        // A node adds the trace of the request.
        for name in [TRACEPARENT, TRACESTATE].into_iter().filter(|name| !asked.contains_key(*name))
        {
            stored.remove(name);
        }
        stored.remove(SUBMIT_TRACEPARENT);
        stored.remove(SUBMITTED_BY);
        if asked != stored {
            members.push(DifferingMember::Headers);
        }
    }
    members
}

#[cfg(test)]
mod tests {
    use super::*;

    /// 2030-01-31T09:30:00Z.
    const DUE_AT: i64 = 1_896_082_200_000;
    const TASK: &str = concat!(
        r#"{"id":"i","topic":"t","due_at":"2030-01-31T09:30:00.000Z","state":"scheduled","#,
        r#""attempt":1,"key":"k","headers":{"a":"1"},"payload":{"n": 1}}"#,
    );

    fn differ(line: &str, task: &str) -> Vec<DifferingMember> {
        differences(line, task, Timestamp::from_millis(DUE_AT - 3_600_000))
    }

    #[test]
    fn a_line_that_was_stored_is_the_task_that_is_answered() {
        for line in [
            concat!(
                r#"{"due_at":"2030-01-31T10:30:00+01:00","key":"k","headers":{"a":"1"},"#,
                r#""payload":{"n": 1},"name":"x"}"#,
            ),
            concat!(
                r#"{"due_at":1896082200000,"key_base64":"aw==","headers":{"a":["1"]},"#,
                r#""payload_text":"{\"n\": 1}"}"#,
            ),
            concat!(
                r#"{"delay":"1h","k\u0065y":"k","headers":{"a":{"base64":"MQ=="}},"#,
                r#""payload_base64":"eyJuIjogMX0="}"#,
            ),
        ] {
            assert_eq!(differ(line, TASK), [], "{line}");
        }
        for (line, task) in [
            (r#"{"payload":null}"#, r#"{"payload":null}"#),
            (r#"{"key":"k","tombstone":true}"#, r#"{"key":"k","tombstone":true}"#),
            (r#"{"payload":1}"#, r#"{"payload":1,"headers":{"traceparent":"of a request"}}"#),
            (
                r#"{"payload":1}"#,
                concat!(
                    r#"{"payload":1,"headers":{"traceparent":"a","tracestate":"b","#,
                    r#""punctual-submit-traceparent":"a"}}"#,
                ),
            ),
            (
                r#"{"payload":1,"headers":{"a":"1"}}"#,
                r#"{"payload":1,"headers":{"a":"1","punctual-submitted-by":"ann"}}"#,
            ),
            (r#"{"payload":1,"headers":{}}"#, r#"{"payload":1}"#),
            (r#"{"payload":1,"headers":{"n":null}}"#, r#"{"payload":1,"headers":{"n":null}}"#),
        ] {
            assert_eq!(differ(line, task), [], "{line} {task}");
        }
    }

    #[test]
    fn every_member_that_differs_is_named() {
        use DifferingMember::{DueAt, Headers, Key, Payload};
        for (line, members) in [
            (
                r#"{"due_at":1896082200001,"key":"k","headers":{"a":"1"},"payload":{"n": 1}}"#,
                &[DueAt][..],
            ),
            (
                r#"{"due_at":1896082199999,"key":"k","headers":{"a":"1"},"payload":{"n": 1}}"#,
                &[DueAt],
            ),
            (r#"{"delay":"1h","key":"k","headers":{"a":"1"},"payload":{"n":1}}"#, &[Payload]),
            (r#"{"delay":"1h","key":"k","headers":{"a":"1"},"tombstone":true}"#, &[Payload]),
            (r#"{"delay":"1h","headers":{"a":"1"},"payload":{"n": 1}}"#, &[Key]),
            (r#"{"delay":"1h","key":"k","headers":{"a":"2"},"payload":{"n": 1}}"#, &[Headers]),
            (
                r#"{"delay":"1h","key":"k","headers":{"a":["1","1"]},"payload":{"n": 1}}"#,
                &[Headers],
            ),
            (r#"{"due_at":5,"payload":null}"#, &[DueAt, Payload, Key, Headers]),
        ] {
            assert_eq!(differ(line, TASK), members, "{line}");
        }
    }

    #[test]
    fn a_time_to_run_and_a_policy_are_compared_by_what_they_mean() {
        use DifferingMember::{Key, Retry, Ttr};
        const TRACKED: &str = concat!(
            r#"{"id":"i","due_at":"2030-01-31T09:30:00.000Z","payload":1,"ttr":"1m 30s","#,
            r#""retry":{"attempts_max":16,"backoff_min":"2s","backoff_max":"1h","#,
            r#""backoff_factor":2,"dead_topic":"d"},"attempts_max":16}"#,
        );
        const POLICY: &str = r#""retry":{"backoff_min":2000,"dead_topic":"d"}"#;
        for (ttr, retry, members) in [
            (r#""ttr":"90s""#, POLICY, &[][..]),
            (r#""ttr":9e4"#, r#""retry":{"backoff_min":"PT2S","dead_topic":"d"}"#, &[]),
            (r#""ttr":"soon""#, POLICY, &[]),
            (r#""ttr":"91s""#, POLICY, &[Ttr]),
            (r#""ttr":"90s""#, r#""key":"k""#, &[Key, Retry]),
            (r#""ttr":"90s""#, r#""retry":{"backoff_min":2000}"#, &[Retry]),
            (r#""ttr":1"#, r#""retry":{"attempts_max":3,"dead_topic":"d"}"#, &[Ttr, Retry]),
            (r#""delay":1"#, r#""headers":{}"#, &[]),
        ] {
            let line = format!(r#"{{"payload":1,{ttr},{retry}}}"#);
            let mut found = differ(&line, TRACKED);
            found.sort_by_key(|member| *member != Key);
            assert_eq!(found, members, "{line}");
        }
        assert_eq!(differ(r#"{"payload":1,"ttr":"1s"}"#, r#"{"payload":1}"#), [Ttr]);
        assert_eq!(differ(r#"{"payload":1,"ttr":"1s"}"#, r#"{"id":"i","state":"published"}"#), []);
    }

    #[test]
    fn what_cannot_be_told_is_no_difference() {
        // Only these members are known of a task that was published long ago.
        let old = r#"{"id":"i","due_at":"2030-01-31T09:30:00.000Z","state":"published"}"#;
        assert_eq!(differ(r#"{"due_at":1896082200000,"key":"other","payload":2}"#, old), []);
        // The due time was in the past at the submit, so the node moved it to that moment.
        let line = r#"{"due_at":1896000000000,"payload":1}"#;
        let task = r#"{"due_at":"2030-01-31T09:30:00.000Z","payload":1}"#;
        assert_eq!(differences(line, task, Timestamp::from_millis(DUE_AT)), []);
        assert_eq!(differ(line, task), [DifferingMember::DueAt]);
        for line in [
            r#"{"due_at":"soon","payload":{"n": 1},"key":"k","headers":{"a":"1"}}"#,
            r#"{"key":7}"#,
            "no JSON",
        ] {
            assert_eq!(differ(line, TASK), [], "{line}");
        }
    }
}
