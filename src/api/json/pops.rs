//! Popped tasks, and callbacks, in JSON.

use serde::ser::SerializeMap as _;
use serde::{Serialize, Serializer};

use super::answers::{DisplayJson, RecordOf};
use super::times::Rfc3339;
use crate::domain::time::duration::spelled;
use crate::domain::topic::callback::StoredCallback;
use crate::node::messages::answers::Popped;

/// The answer to a pop.
#[derive(Serialize, Debug)]
pub struct PopsJson<'a> {
    tasks: Vec<PoppedJson<'a>>,
}

impl<'a> PopsJson<'a> {
    pub fn of(popped: &'a [Popped]) -> Self {
        Self { tasks: popped.iter().map(PoppedJson).collect() }
    }
}

/// A popped task. Key, headers and payload have the form of a task's.
#[derive(Debug)]
struct PoppedJson<'a>(&'a Popped);

impl Serialize for PoppedJson<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let Self(task) = self;
        let mut map = serializer.serialize_map(None)?;
        map.serialize_entry("id", &DisplayJson(task.id))?;
        map.serialize_entry("topic", task.record.topic.as_str())?;
        map.serialize_entry("attempt", &task.attempt)?;
        map.serialize_entry("attempts_max", &task.attempts_max)?;
        map.serialize_entry("due_at", &Rfc3339(task.due_at))?;
        map.serialize_entry("published_at", &Rfc3339(task.published_at))?;
        map.serialize_entry("finish_by", &Rfc3339(task.finish_by))?;
        map.serialize_entry("partition", &task.partition)?;
        map.serialize_entry("offset", &task.offset)?;
        RecordOf { record: &task.record, is_listed: false }.entries(&mut map)?;
        map.end()
    }
}

/// A callback. The values of its headers are secrets: they are not shown.
#[derive(Debug, Serialize)]
pub struct CallbackJson<'a> {
    topic: &'a str,
    revision: u64,
    url: &'a str,
    header_names: Vec<&'a str>,
    timeout: String,
    concurrency: u16,
    #[serde(skip_serializing_if = "Option::is_none")]
    max_per_second: Option<u16>,
    paused: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    pause_reason: Option<&'a str>,
}

impl<'a> CallbackJson<'a> {
    pub fn of(stored: &'a StoredCallback) -> Self {
        let callback = &stored.callback;
        Self {
            topic: stored.topic.as_str(),
            revision: stored.revision,
            url: &callback.url,
            header_names: callback.headers.iter().map(|(name, _value)| name.as_str()).collect(),
            timeout: spelled(callback.timeout),
            concurrency: callback.concurrency,
            max_per_second: callback.max_per_second,
            paused: callback.is_paused,
            pause_reason: stored.pause_reason.as_deref(),
        }
    }
}
