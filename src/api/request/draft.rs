//! A submitted task, read from JSON. All checks that need no other server are here.

pub mod choice;
pub mod policy;
pub mod schedule;
pub mod shift;

use std::borrow::Cow;

use axum::http::Request;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::value::RawValue;

use super::fields::{boolean, members, refuse_internal, string};
use super::trace::RequestTrace;
use super::{given_headers, tracking};
use crate::api::json::times;
use crate::api::problems::problem::Problem;
use crate::api::problems::problem_type::ProblemType;
use crate::api::problems::refusal::FieldOrigin;
use crate::domain::{Expiry, ExpiryTime, Record, TaskName, TopicName};
use crate::node::messages::{Draft, Due};

/// The fields of a task. A task whose topic and name are in the path has the same fields without
/// `topic` and `name`.
pub const FIELDS: [&str; 14] = [
    "topic",
    "name",
    "expires_at",
    "ttr",
    "retry",
    "due_at",
    "delay",
    "payload",
    "payload_text",
    "payload_base64",
    "tombstone",
    "key",
    "key_base64",
    "headers",
];
pub const FIELDS_OF_NAMED: [&str; 12] = {
    let [_topic, _name, of_named @ ..] = FIELDS;
    of_named
};

type RawMember<'a> = Option<&'a RawValue>;

/// The fields of a move.
pub const FIELDS_OF_MOVE: [&str; 2] = ["due_at", "delay"];

/// Reads the body of a move to another due time.
pub fn new_due_of(text: &str) -> Result<(Due, FieldOrigin), Problem> {
    let [due_at, delay] = members(text, &FIELDS_OF_MOVE)?;
    let (due, origin) = due_of(due_at, delay)?;
    Ok((due, FieldOrigin { due: origin, payload: origin }))
}

/// Reads the tasks of a request one after the other. Neighbours usually have the same topic, and
/// then share its memory.
#[derive(Debug, Default)]
pub struct DraftReader {
    last_topic: Option<TopicName>,
    trace: Option<RequestTrace>,
}

impl DraftReader {
    /// Makes a reader for the body of `request`. Tasks without a `traceparent` get that of the
    /// request.
    pub fn of<B>(request: &Request<B>) -> Self {
        Self { last_topic: None, trace: RequestTrace::of(request) }
    }

    pub fn read(&mut self, text: &str) -> Result<(Draft, FieldOrigin), Problem> {
        let [topic, name, rest @ ..] = members(text, &FIELDS)?;
        let topic = self.topic(topic)?;
        let (draft, origin) = draft_of(topic, rest, self.trace.as_ref())?;
        Ok((Draft { name: name.map(name_of).transpose()?, ..draft }, origin))
    }

    /// Reads a task whose topic and name are in the path.
    pub fn read_named(
        &self,
        text: &str,
        topic: TopicName,
        name: TaskName,
    ) -> Result<(Draft, FieldOrigin), Problem> {
        let (draft, origin) =
            draft_of(topic, members(text, &FIELDS_OF_NAMED)?, self.trace.as_ref())?;
        Ok((Draft { name: Some(name), ..draft }, origin))
    }

    fn topic(&mut self, topic: RawMember<'_>) -> Result<TopicName, Problem> {
        let Some(topic) = topic else {
            return Err(Problem::new(
                ProblemType::MissingField,
                "the name of the Kafka topic to publish to is required",
            )
            .at("topic"));
        };
        let name = string(topic, "topic")?;
        if let Some(last) = self.last_topic.as_ref().filter(|last| last.as_str() == name) {
            return Ok(last.clone());
        }
        let topic =
            TopicName::new(&name).map_err(|error| Problem::invalid("topic", error.to_string()))?;
        self.last_topic = Some(topic.clone());
        Ok(topic)
    }
}

/// Makes a draft without a name.
fn draft_of(
    topic: TopicName,
    members: [RawMember<'_>; 12],
    trace: Option<&RequestTrace>,
) -> Result<(Draft, FieldOrigin), Problem> {
    refuse_internal(&topic, "topic")?;
    let [expires_at, ttr, retry, due_at, delay, rest @ ..] = members;
    let (due, due_origin) = due_of(due_at, delay)?;
    let (record, payload_origin) = record_of(topic, rest, trace)?;
    let tracking = tracking::of(ttr, retry, &record.topic)?.map(Box::new);
    let expiry = expires_at.map(expiry_of).transpose()?;
    let draft = Draft { record, name: None, due, tracking, expiry, spread: None };
    Ok((draft, FieldOrigin { due: due_origin, payload: payload_origin }))
}

fn expiry_of(expires_at: &RawValue) -> Result<Expiry, Problem> {
    let at = times::due_at(expires_at).map_err(|wrong| Problem::invalid("expires_at", wrong))?;
    Ok(Expiry::new(ExpiryTime::At(at)))
}

/// Makes a record. Returns the field of its payload, too.
fn record_of(
    topic: TopicName,
    members: [RawMember<'_>; 7],
    trace: Option<&RequestTrace>,
) -> Result<(Record, &'static str), Problem> {
    let [payload, payload_text, payload_base64, tombstone, key, key_base64, headers] = members;
    let key = key_of(key, key_base64)?;
    let is_tombstone =
        tombstone.map(|value| boolean(value, "tombstone")).transpose()?.unwrap_or(false);
    let (payload, payload_origin) = if is_tombstone {
        refuse_second_payload([payload, payload_text, payload_base64])?;
        if key.is_none() {
            return Err(Problem::new(
                ProblemType::MissingField,
                "a tombstone needs a key: give key or key_base64",
            )
            .at("key"));
        }
        (None, "key")
    } else {
        let (payload, origin) = payload_of(payload, payload_text, payload_base64)?;
        (Some(payload), origin)
    };
    let record = Record { topic, key, payload, headers: given_headers::read(headers, trace)? };
    Ok((record, payload_origin))
}

fn due_of(due_at: RawMember<'_>, delay: RawMember<'_>) -> Result<(Due, &'static str), Problem> {
    match (due_at, delay) {
        (Some(due_at), None) => {
            let at = times::due_at(due_at).map_err(|wrong| Problem::invalid("due_at", wrong))?;
            Ok((Due::At(at), "due_at"))
        }
        (None, Some(delay)) => {
            let span = times::delay(delay).map_err(|wrong| Problem::invalid("delay", wrong))?;
            Ok((Due::After(span), "delay"))
        }
        (None, None) => {
            Err(Problem::new(ProblemType::MissingField, "one of due_at and delay is required")
                .at("due_at"))
        }
        (Some(_), Some(_)) => {
            Err(Problem::new(ProblemType::ConflictingFields, "give due_at or delay, not both")
                .at("delay"))
        }
    }
}

fn key_of(key: RawMember<'_>, key_base64: RawMember<'_>) -> Result<Option<Box<[u8]>>, Problem> {
    match (key, key_base64) {
        (None, None) => Ok(None),
        (Some(key), None) => Ok(Some(bytes_of(string(key, "key")?))),
        (None, Some(key)) => base64_of(key, "key_base64").map(Some),
        (Some(_), Some(_)) => {
            Err(Problem::new(ProblemType::ConflictingFields, "give key or key_base64, not both")
                .at("key_base64"))
        }
    }
}

fn payload_of(
    json: RawMember<'_>,
    text: RawMember<'_>,
    base64: RawMember<'_>,
) -> Result<(Box<[u8]>, &'static str), Problem> {
    match (json, text, base64) {
        // The record's value is the JSON exactly as written, with its inner white space.
        (Some(json), None, None) => Ok((json.get().as_bytes().into(), "payload")),
        (None, Some(text), None) => Ok((bytes_of(string(text, "payload_text")?), "payload_text")),
        (None, None, Some(base64)) => Ok((base64_of(base64, "payload_base64")?, "payload_base64")),
        (None, None, None) => {
            let detail = "one of payload, payload_text and payload_base64 is required; for a null \
                          value, give \"tombstone\": true and a key";
            Err(Problem::new(ProblemType::MissingField, detail).at("payload"))
        }
        _ => {
            let field = if base64.is_some() { "payload_base64" } else { "payload_text" };
            let detail = "give only one of payload, payload_text and payload_base64; a payload of \
                          null counts, too";
            Err(Problem::new(ProblemType::ConflictingFields, detail).at(field))
        }
    }
}

fn refuse_second_payload(payloads: [RawMember<'_>; 3]) -> Result<(), Problem> {
    if payloads.iter().all(Option::is_none) {
        return Ok(());
    }
    Err(Problem::new(
        ProblemType::ConflictingFields,
        "a tombstone has no payload: give one or the other",
    )
    .at("tombstone"))
}

fn name_of(name: &RawValue) -> Result<TaskName, Problem> {
    TaskName::new(&string(name, "name")?)
        .map_err(|error| Problem::invalid("name", error.to_string()))
}

fn bytes_of(text: Cow<'_, str>) -> Box<[u8]> {
    match text {
        Cow::Borrowed(text) => text.as_bytes().into(),
        Cow::Owned(text) => text.into_bytes().into_boxed_slice(),
    }
}

fn base64_of(value: &RawValue, field: &'static str) -> Result<Box<[u8]>, Problem> {
    let text = string(value, field)?;
    let bytes = STANDARD.decode(text.as_bytes()).map_err(|error| {
        Problem::invalid(
            field,
            format!("this is not base64 (RFC 4648, section 4, with padding): {error}"),
        )
    })?;
    Ok(bytes.into_boxed_slice())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn read(text: &str) -> Result<Draft, Problem> {
        DraftReader::default().read(text).map(|(draft, _)| draft)
    }

    fn payload_of(text: &str) -> Option<Vec<u8>> {
        read(text).unwrap().record.payload.map(Vec::from)
    }

    #[test]
    fn a_payload_is_the_json_text_byte_for_byte() {
        for json in [
            r#"{"b" : 1,  "a":[1.50, 1e3 ,-0]}"#,
            "null",
            "\"\\u00e4\\/\"",
            "[\n1 ]",
            "12345678901234567890.000",
            "true",
        ] {
            let task = format!(r#"{{"topic":"t","delay":0,"payload": {json} }}"#);
            assert_eq!(payload_of(&task), Some(json.as_bytes().to_vec()));
        }
    }

    #[test]
    fn a_deeply_nested_payload_is_opaque() {
        let json = format!("{}{}", "[".repeat(100_000), "]".repeat(100_000));
        assert_eq!(
            payload_of(&format!(r#"{{"topic":"t","delay":0,"payload":{json}}}"#)),
            Some(json.into_bytes())
        );
    }

    #[test]
    fn a_tombstone_has_a_key_and_no_payload() {
        let draft = read(r#"{"topic":"t","delay":0,"tombstone":true,"key":""}"#).unwrap();
        assert_eq!((draft.record.key, draft.record.payload), (Some(Box::from([])), None));
    }

    #[test]
    fn names_of_fields_may_be_written_with_escapes() {
        let draft = read(r#"{"\u0074opic":"t","delay":0,"payload_text":"a\u0000b"}"#).unwrap();
        assert_eq!(draft.record.payload.as_deref(), Some(b"a\0b".as_slice()));
    }

    proptest! {
        #[test]
        fn payload_text_survives_exactly(text: String) {
            let task =
                serde_json::json!({"topic": "t", "delay": 0, "payload_text": text}).to_string();
            prop_assert_eq!(payload_of(&task), Some(text.into_bytes()));
        }

        #[test]
        fn payload_and_key_in_base64_survive_exactly(payload: Vec<u8>, key: Vec<u8>) {
            let task = serde_json::json!({
                "topic": "t",
                "delay": 0,
                "payload_base64": STANDARD.encode(&payload),
                "key_base64": STANDARD.encode(&key),
            });
            let record = read(&task.to_string()).unwrap().record;
            prop_assert_eq!(record.payload.map(Vec::from), Some(payload));
            prop_assert_eq!(record.key.map(Vec::from), Some(key));
        }

        #[test]
        fn no_text_makes_the_reader_panic(text in ".{0,200}") {
            prop_assert!(read(&text).is_err());
        }
    }
}
