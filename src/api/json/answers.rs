//! The bodies of answers, and a task in JSON.

mod readable;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::fmt;

use axum::body::Body;
use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use az::SaturatingAs as _;
use base64::display::Base64Display;
use base64::engine::general_purpose::STANDARD;
use serde::ser::SerializeMap;
use serde::{Serialize, Serializer};
use serde_json::value::RawValue;

use self::readable::is_readable;
use super::times::Rfc3339;
use super::tracked::TrackedJson;
use crate::api::dev_port::PublishedRecord;
use crate::domain::task::headers;
use crate::domain::task::tracking::reason_without_words;
use crate::domain::{
    Actors, Receipt, Record, TaskId, TaskName, TaskState, TaskView, Timestamp, Tracking,
};

/// Bytes in JSON: a string if they are UTF-8, base64 otherwise. The name of the member says which.
#[derive(Debug)]
enum Bytes<'a> {
    Json(&'a RawValue),
    Text(&'a str),
    Binary(&'a [u8]),
}

/// Which members of a task an answer has. There is no default: each answer decides.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Shows {
    /// All but key, headers and payload. The answer says that they are left out, so that nobody
    /// takes the task for a tombstone.
    Metadata,
    All,
}

/// A task in JSON. The payload is in `payload` if the bytes are JSON, in `payload_text` if they are
/// other UTF-8, and in `payload_base64` otherwise. A task that is submitted again from an answer is
/// published with the same bytes.
#[derive(Debug)]
pub struct TaskJson<'a> {
    id: TaskId,
    due_at: Timestamp,
    requested_due_at: Option<Timestamp>,
    expires_at: Option<Timestamp>,
    topic: &'a str,
    name: Option<&'a str>,
    key: Option<Bytes<'a>>,
    state: TaskState,
    replaced_by: Option<TaskId>,
    /// `None` for the first task of a name when only its id and its state are known.
    attempt: Option<u16>,
    receipt: Option<Receipt>,
    headers: Option<&'a [u8]>,
    payload: Option<Bytes<'a>>,
    is_tombstone: bool,
    reason: Option<&'a str>,
    died_at: Option<Timestamp>,
    actors: Option<&'a Actors>,
    tracked: Option<TrackedJson<'a>>,
    is_redacted: bool,
}

/// The fields of a submitted task that its answer repeats.
#[derive(Clone, Debug)]
pub struct Echo {
    pub topic: crate::domain::TopicName,
    pub name: Option<TaskName>,
    pub key: Option<Box<[u8]>>,
    pub tracking: Option<Box<Tracking>>,
    pub expires_at: Option<Timestamp>,
}

impl<'a> TaskJson<'a> {
    pub const fn id(&self) -> TaskId {
        self.id
    }

    /// Shows a task that was just stored.
    pub fn of_new(id: TaskId, state: TaskState, echo: &'a Echo) -> Self {
        Self {
            key: echo.key.as_deref().map(text_or_binary),
            expires_at: echo.expires_at,
            attempt: Some(u16::from(echo.tracking.is_none())),
            tracked: echo.tracking.as_deref().map(TrackedJson::of_new),
            ..Self::of_known(id, state, echo)
        }
    }

    /// Shows the first task of a name when only these fields are known.
    pub fn of_known(id: TaskId, state: TaskState, echo: &'a Echo) -> Self {
        Self {
            id,
            due_at: id.due_at(),
            requested_due_at: None,
            expires_at: None,
            topic: echo.topic.as_str(),
            name: echo.name.as_ref().map(TaskName::as_str),
            key: None,
            state,
            replaced_by: None,
            attempt: None,
            receipt: None,
            headers: None,
            payload: None,
            is_tombstone: false,
            reason: None,
            died_at: None,
            actors: None,
            tracked: None,
            is_redacted: false,
        }
    }

    /// Says that the other fields are known, and not for this caller.
    #[must_use]
    pub fn redacted(self) -> Self {
        Self { is_redacted: true, ..self }
    }

    /// Shows a task with the known fields that the caller may see.
    pub fn of_view(view: &'a TaskView, shows: Shows) -> Self {
        let kept = view.kept.as_ref().filter(|_kept| shows == Shows::All);
        let tracked = view.tracked.as_deref();
        let reason = view.reason.as_deref().map(|reason| match shows {
            Shows::All => reason,
            Shows::Metadata => reason_without_words(reason),
        });
        let attempt =
            tracked.map_or_else(|| view.attempt.saturating_as::<u16>(), |tracked| tracked.attempt);
        Self {
            id: view.id,
            due_at: view.due_at(),
            requested_due_at: view.requested_due_at,
            expires_at: view.expires_at,
            topic: view.topic.as_str(),
            name: view.name.as_deref(),
            key: kept.and_then(|kept| kept.key.as_deref()).map(text_or_binary),
            state: view.state,
            replaced_by: view.replaced_by,
            attempt: Some(attempt),
            receipt: view.receipt,
            headers: kept.map(|kept| kept.headers.as_slice()).filter(|headers| !headers.is_empty()),
            payload: kept.and_then(|kept| kept.payload.as_deref()).map(json_or_other),
            is_tombstone: kept.is_some_and(|kept| kept.payload.is_none()),
            reason,
            died_at: view.died_at,
            actors: Some(&view.actors),
            tracked: tracked.map(|tracked| TrackedJson::of_view(tracked, shows == Shows::All)),
            is_redacted: shows == Shows::Metadata,
        }
    }

    /// Shows a task as in a list: without headers, payload and attempts, which may be large. A
    /// look-up shows those.
    pub fn of_listed(view: &'a TaskView, shows: Shows) -> Self {
        let all = Self::of_dead_letter(view, shows);
        let tracked = all.tracked.map(TrackedJson::without_attempts);
        Self { tracked, ..all }
    }

    /// Shows a dead letter as in a list: with the attempts, which say why the task is dead.
    pub fn of_dead_letter(view: &'a TaskView, shows: Shows) -> Self {
        let all = Self::of_view(view, shows);
        Self { headers: None, payload: None, is_tombstone: false, ..all }
    }
}

fn text_or_binary(bytes: &[u8]) -> Bytes<'_> {
    std::str::from_utf8(bytes).map_or(Bytes::Binary(bytes), Bytes::Text)
}

fn json_or_other(bytes: &[u8]) -> Bytes<'_> {
    let Ok(text) = std::str::from_utf8(bytes) else { return Bytes::Binary(bytes) };
    // White space around the JSON would be lost, so a payload with some is text.
    let json = serde_json::from_str::<&RawValue>(text).ok();
    let json = json.filter(|json| json.get().len() == text.len() && is_readable(text));
    json.map_or(Bytes::Text(text), Bytes::Json)
}

impl Serialize for TaskJson<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(None)?;
        map.serialize_entry("id", &DisplayJson(self.id))?;
        map.serialize_entry("topic", self.topic)?;
        if let Some(name) = self.name {
            map.serialize_entry("name", name)?;
        }
        if let Some(key) = &self.key {
            entry(&mut map, key, ["key", "key", "key_base64"])?;
        }
        map.serialize_entry("due_at", &Rfc3339(self.due_at))?;
        if let Some(requested_due_at) = self.requested_due_at {
            map.serialize_entry("requested_due_at", &Rfc3339(requested_due_at))?;
        }
        if let Some(expires_at) = self.expires_at {
            map.serialize_entry("expires_at", &Rfc3339(expires_at))?;
        }
        map.serialize_entry("state", self.state.as_str())?;
        if let Some(id) = self.replaced_by {
            map.serialize_entry("replaced_by", &DisplayJson(id))?;
        }
        if let Some(attempt) = self.attempt {
            map.serialize_entry("attempt", &attempt)?;
        }
        if let Some(receipt) = self.receipt {
            map.serialize_entry("receipt", &ReceiptJson::of(receipt, self.due_at))?;
        }
        if let Some(headers) = self.headers {
            map.serialize_entry("headers", &HeadersJson(headers))?;
        }
        if let Some(payload) = &self.payload {
            entry(&mut map, payload, ["payload", "payload_text", "payload_base64"])?;
        }
        if self.is_tombstone {
            map.serialize_entry("tombstone", &true)?;
        }
        if let Some(reason) = self.reason {
            map.serialize_entry("reason", reason)?;
        }
        if let Some(died_at) = self.died_at {
            map.serialize_entry("died_at", &Rfc3339(died_at))?;
        }
        if let Some(actors) = self.actors {
            actor_entries(&mut map, actors)?;
        }
        if let Some(tracked) = &self.tracked {
            tracked.entries(&mut map)?;
        }
        if self.is_redacted {
            map.serialize_entry("redacted", &true)?;
        }
        map.end()
    }
}

fn actor_entries<M: SerializeMap>(map: &mut M, actors: &Actors) -> Result<(), M::Error> {
    let Actors { submitted, cancelled_by, dropped } = actors;
    if let Some(submitted) = submitted {
        map.serialize_entry("submitted_by", submitted.by.as_str())?;
        map.serialize_entry("submitted_at", &Rfc3339(submitted.at))?;
    }
    if let Some(name) = cancelled_by {
        map.serialize_entry("cancelled_by", name.as_str())?;
    }
    if let Some(dropped) = dropped {
        if let Some(name) = &dropped.by {
            map.serialize_entry("dropped_by", name.as_str())?;
        }
        map.serialize_entry("dropped_at", &Rfc3339(dropped.at))?;
    }
    Ok(())
}

fn entry<M: SerializeMap>(
    map: &mut M,
    bytes: &Bytes<'_>,
    [json, text, binary]: [&'static str; 3],
) -> Result<(), M::Error> {
    match bytes {
        Bytes::Json(value) => map.serialize_entry(json, value),
        Bytes::Text(value) => map.serialize_entry(text, value),
        Bytes::Binary(value) => {
            map.serialize_entry(binary, &DisplayJson(Base64Display::new(value, &STANDARD)))
        }
    }
}

/// A record of a topic in JSON. Key, headers and payload have the form of a task's.
#[derive(Debug)]
pub struct RecordJson<'a>(&'a PublishedRecord);

impl<'a> RecordJson<'a> {
    pub const fn of(record: &'a PublishedRecord) -> Self {
        Self(record)
    }
}

impl Serialize for RecordJson<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let Self(record) = self;
        let mut map = serializer.serialize_map(None)?;
        map.serialize_entry("partition", &record.partition)?;
        map.serialize_entry("offset", &record.offset)?;
        map.serialize_entry("timestamp", &Rfc3339(record.appended_at))?;
        if let Some(key) = &record.key {
            entry(&mut map, &text_or_binary(key), ["key", "key", "key_base64"])?;
        }
        let headers = record.headers.iter().map(|(name, value)| (name, ValueJson(Some(value))));
        map.serialize_entry("headers", &headers.collect::<BTreeMap<_, _>>())?;
        match &record.value {
            Some(payload) => entry(
                &mut map,
                &json_or_other(payload),
                ["payload", "payload_text", "payload_base64"],
            )?,
            None => map.serialize_entry("tombstone", &true)?,
        }
        map.end()
    }
}

/// The members of a record that is not a task's, such as that of a schedule.
#[derive(Debug)]
pub struct RecordOf<'a> {
    pub record: &'a Record,
    /// Headers and payload may be large, so a list has none.
    pub is_listed: bool,
}

impl RecordOf<'_> {
    /// Writes the members into the object that has the record.
    pub fn entries<M: SerializeMap>(&self, map: &mut M) -> Result<(), M::Error> {
        let Record { key, payload, headers, .. } = self.record;
        if let Some(key) = key {
            entry(map, &text_or_binary(key), ["key", "key", "key_base64"])?;
        }
        if self.is_listed {
            return Ok(());
        }
        if !headers.as_bytes().is_empty() {
            map.serialize_entry("headers", &HeadersJson(headers.as_bytes()))?;
        }
        match payload {
            Some(payload) => {
                entry(map, &json_or_other(payload), ["payload", "payload_text", "payload_base64"])
            }
            None => map.serialize_entry("tombstone", &true),
        }
    }
}

/// Serialises a value by its `Display`, without a string in between.
#[derive(Debug)]
pub struct DisplayJson<T>(pub T);

impl<T: fmt::Display> Serialize for DisplayJson<T> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(&self.0)
    }
}

#[derive(Serialize)]
struct ReceiptJson {
    partition: i32,
    offset: i64,
    published_at: Rfc3339,
    /// Negative when the broker's clock is behind Postgres's.
    lateness_ms: i64,
}

impl ReceiptJson {
    fn of(receipt: Receipt, due_at: Timestamp) -> Self {
        let lateness_ms = receipt.published_at.as_millis().saturating_sub(due_at.as_millis());
        Self {
            partition: receipt.partition,
            offset: receipt.offset,
            published_at: Rfc3339(receipt.published_at),
            lateness_ms,
        }
    }
}

/// Stored headers in JSON. Reading the result gives the same headers again.
struct HeadersJson<'a>(&'a [u8]);

impl Serialize for HeadersJson<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let all: Vec<(&str, Option<&[u8]>)> = headers::decode(self.0).collect();
        let mut map = serializer.serialize_map(None)?;
        for (index, (name, value)) in all.iter().enumerate() {
            if all[..index].iter().any(|(known, _)| known == name) {
                continue;
            }
            let more =
                all[index + 1..].iter().filter(|(other, _)| other == name).map(|(_, value)| *value);
            let values: Vec<ValueJson<'_>> =
                std::iter::once(*value).chain(more).map(ValueJson).collect();
            match values.as_slice() {
                [one] => map.serialize_entry(name, one)?,
                several => map.serialize_entry(name, several)?,
            }
        }
        map.end()
    }
}

struct ValueJson<'a>(Option<&'a [u8]>);

impl Serialize for ValueJson<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let Some(bytes) = self.0 else { return serializer.serialize_none() };
        match std::str::from_utf8(bytes) {
            Ok(text) => serializer.serialize_str(text),
            Err(_not_utf_8) => {
                let mut map = serializer.serialize_map(Some(1))?;
                map.serialize_entry("base64", &DisplayJson(Base64Display::new(bytes, &STANDARD)))?;
                map.end()
            }
        }
    }
}

/// The initial capacity of an answer in bytes. Most answers are one task.
const CAPACITY: usize = 512;

/// Returns an answer with a JSON body.
pub fn json(status: StatusCode, value: &impl Serialize) -> Response {
    json_of(status, value, CAPACITY)
}

/// Returns an answer with a task, and its tag.
pub fn task(status: StatusCode, task: &TaskJson<'_>) -> Response {
    let mut response = json(status, task);
    if let Some(tag) = tag_of(task.id()) {
        response.headers_mut().insert(header::ETAG, tag);
    }
    response
}

/// Returns an answer with the tag of a schedule: its revision in quotes.
pub fn with_revision(mut response: Response, revision: u64) -> Response {
    // The tag has only characters that a header may have.
    if let Ok(tag) = HeaderValue::try_from(format!("\"{revision}\"")) {
        response.headers_mut().insert(header::ETAG, tag);
    }
    response
}

/// Returns the tag of a task: its id in quotes.
fn tag_of(id: TaskId) -> Option<HeaderValue> {
    let mut tag = String::with_capacity(38);
    tag.push('"');
    tag.push_str(id.uuid().hyphenated().encode_lower(&mut [0; 36]));
    tag.push('"');
    // The tag has only characters that a header may have.
    HeaderValue::try_from(tag).ok()
}

/// Returns an answer with a JSON body of about `capacity` bytes.
pub fn json_of(status: StatusCode, value: &impl Serialize, capacity: usize) -> Response {
    let mut bytes = Vec::with_capacity(capacity);
    if let Err(error) = serde_json::to_writer(&mut bytes, value) {
        // Serialising fails only for maps whose keys are not strings, and none of our types has
        // one.
        tracing::error!(%error, "put an answer into JSON");
        return StatusCode::INTERNAL_SERVER_ERROR.into_response();
    }
    text(status, "application/json", bytes)
}

pub fn text(status: StatusCode, content_type: &'static str, bytes: impl Into<Body>) -> Response {
    let mut response = Response::new(bytes.into());
    *response.status_mut() = status;
    response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static(content_type));
    response
}
