//! Popped tasks in JSON.

use serde::ser::SerializeMap as _;
use serde::{Serialize, Serializer};

use super::answers::{DisplayJson, RecordOf};
use super::times::Rfc3339;
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
