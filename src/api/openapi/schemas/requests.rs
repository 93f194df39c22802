//! The schemas of requests: the bodies that [`crate::api::request::draft`] and
//! [`crate::api::handlers::tasks`] read.

use serde_json::{Map, Value, json};

use super::parts::{described, nullable, reference};
use crate::api::handlers::lists::{LIMIT, LIMIT_MAX};
use crate::api::request::draft::choice::FIELDS as CHOICES;
use crate::api::request::draft::{FIELDS, FIELDS_OF_MOVE, FIELDS_OF_NAMED};
use crate::api::request::fields::Array;
use crate::domain::task::headers::COUNT_MAX;
use crate::domain::{Choice, PendingState, When};

pub fn all() -> Vec<(&'static str, Value)> {
    vec![
        ("DueAt", due_at()),
        ("Delay", delay()),
        ("Headers", headers()),
        ("HeaderValue", header_value()),
        ("TaskRequest", new_task()),
        ("NamedTaskRequest", new_named_task()),
        ("MoveRequest", new_due()),
        ("BatchRequest", new_batch()),
        ("DeadRange", range()),
        ("RedriveRequest", redrive_request()),
        ("RedriveRange", redrive_range()),
        ("CancelRange", cancel_range()),
        ("MoveRange", move_range()),
        ("Span", span()),
        ("TaskIds", many_of("TaskId", "Ids of tasks.")),
        ("TaskNames", many_of("TaskName", "Names of tasks.")),
        ("NamePrefix", name_prefix()),
        ("KeyText", record_property("key")),
        ("PendingState", pending_state()),
        ("When", when()),
        ("Limit", limit()),
        ("Cursor", cursor()),
    ]
}

fn pending_state() -> Value {
    json!({
        "type": "string",
        "enum": PendingState::ALL.map(PendingState::as_str),
        "description": "The state of a pending task.",
    })
}

fn when() -> Value {
    json!({
        "type": "string",
        "enum": When::ALL.map(When::as_str),
        "description": "When a PUT replaces a pending task.",
    })
}

fn due_at() -> Value {
    json!({
        "description": "The time before which the task is not published: RFC 3339 with an offset \
                        (`2030-01-31T09:30:00+01:00`; seconds are optional), with the name of a \
                        zone (RFC 9557: `2030-01-31T09:30[Europe/Berlin]`), or with both if they \
                        agree; or whole milliseconds since the epoch. A time in the past is due at \
                        once.",
        "oneOf": [
            {
                "type": "string",
                "format": "date-time",
                "description": "From 1970 to 9999. Fractions of a millisecond are rounded up.",
            },
            {
                "type": "integer",
                "minimum": 100_000_000_000_i64,
                "maximum": 253_402_300_799_999_i64,
                "description": "Milliseconds. Numbers before March 1973 are refused, because they \
                                are seconds by mistake.",
            },
        ],
        "examples": ["2030-01-31T09:30:00.250+01:00", 1_896_082_200_000_i64],
    })
}

fn delay() -> Value {
    json!({
        "description": "The time from now, by the cluster's clock: in units, as ISO 8601, or in \
                        whole milliseconds. A day is 24 h; months and years are refused.",
        "oneOf": [
            {
                "type": "string",
                "format": "delay",
                "maxLength": 200,
                "description": "`30m`, `1h 30m`, `PT30M`.",
            },
            {
                "type": "integer",
                "minimum": 0,
                "maximum": 31_622_400_000_000_i64,
                "description": "Milliseconds.",
            },
        ],
        "examples": ["30m", "PT30M", 1_800_000],
    })
}

fn headers() -> Value {
    json!({
        "type": "object",
        "description": "The record's headers, in the given order. A list repeats a name with \
                        several values. At most 128; each value of a list counts. Names that begin \
                        with `punctual-` are reserved.",
        "maxProperties": COUNT_MAX,
        "propertyNames": {
            "minLength": 1,
            "pattern": "^(?![pP][uU][nN][cC][tT][uU][aA][lL]-)[^\\u0000]+$",
        },
        "additionalProperties": {
            "oneOf": [
                reference("HeaderValue"),
                {
                    "type": "array",
                    "minItems": 1,
                    "maxItems": COUNT_MAX,
                    "items": reference("HeaderValue"),
                },
            ],
        },
        "examples": [{
            "source": "orders",
            "retried": null,
            "tag": ["a", "b"],
            "trace": { "base64": "/w==" },
        }],
    })
}

fn header_value() -> Value {
    json!({
        "description": "The value of a header: text in UTF-8, bytes in base64, or null.",
        "oneOf": [
            { "type": "string" },
            { "type": "null" },
            {
                "type": "object",
                "required": ["base64"],
                "properties": { "base64": reference("Base64") },
                "additionalProperties": false,
            },
        ],
    })
}

/// Returns the schema of one field of a submitted task.
pub(super) fn record_property(name: &str) -> Value {
    match name {
        "topic" => described("TopicName", "The Kafka topic to publish to."),
        "name" => described(
            "TaskName",
            "Your idempotency key, which makes the submit repeatable: a known name is answered \
             with its first task. 1 to 255 bytes of UTF-8, unique within the topic.",
        ),
        "due_at" => reference("DueAt"),
        "delay" => reference("Delay"),
        "expires_at" => described(
            "DueAt",
            "The time from which the task is not published any more, after its due time. A task \
             that could not be published before ends as `expired`. A move does not change it.",
        ),
        "payload" => {
            json!({ "description": "Any JSON, including `null`. The record's value is this text, \
                                    byte for byte." })
        }
        "payload_text" => {
            json!({ "type": "string", "description": "The record's value as text in UTF-8." })
        }
        "payload_base64" => described("Base64", "The record's value as bytes in base64."),
        "tombstone" => json!({
            "type": "boolean",
            "description": "True, with a key and without a payload: the record's value is null. \
                            Such a record deletes the key from a compacted topic.",
        }),
        "key" => {
            json!({
                "type": "string",
                "description": "The record's key as text in UTF-8. Tasks with the same key go to \
                                the same partition. A compacted topic takes no record without a \
                                key.",
            })
        }
        "key_base64" => described("Base64", "The record's key as bytes in base64."),
        "headers" => reference("Headers"),
        "ttr" => described(
            "TimeToRun",
            "The time to run. It makes the task tracked: its consumer finishes it within this time \
             after each attempt, or it comes again.",
        ),
        "retry" => described("Retry", "How the task is tried again. Only with `ttr`."),
        _ => json!({}),
    }
}

fn new_task() -> Value {
    let description = "A task: a record, its topic, and its due time. Give one of `due_at` and \
                       `delay`; one of `payload`, `payload_text`, `payload_base64` and \
                       `\"tombstone\": true`; at most one of `key` and `key_base64`.";
    let mut schema = draft(description, &FIELDS);
    schema["required"] = json!(["topic"]);
    schema
}

fn new_named_task() -> Value {
    draft(
        "A task whose topic and name are in the path. The rest is as in `TaskRequest`.",
        &FIELDS_OF_NAMED,
    )
}

fn draft(description: &str, fields: &[&str]) -> Value {
    let properties: Map<String, Value> =
        fields.iter().map(|name| ((*name).to_owned(), record_property(name))).collect();
    let with_payload = |field: &str| {
        json!({
            "required": [field],
            "properties": { "tombstone": { "const": false } },
        })
    };
    json!({
        "type": "object",
        "description": description,
        "properties": properties,
        "additionalProperties": false,
        "allOf": [
            { "oneOf": [{ "required": ["due_at"] }, { "required": ["delay"] }] },
            {
                "oneOf": [
                    with_payload("payload"),
                    with_payload("payload_text"),
                    with_payload("payload_base64"),
                    {
                        "required": ["tombstone"],
                        "properties": {
                            "tombstone": { "const": true },
                            "payload": false,
                            "payload_text": false,
                            "payload_base64": false,
                        },
                        "anyOf": [{ "required": ["key"] }, { "required": ["key_base64"] }],
                    },
                ],
            },
            { "not": { "required": ["key", "key_base64"] } },
        ],
        "dependentRequired": { "retry": ["ttr"] },
    })
}

fn new_due() -> Value {
    let properties: Map<String, Value> =
        FIELDS_OF_MOVE.iter().map(|name| ((*name).to_owned(), record_property(name))).collect();
    json!({
        "type": "object",
        "description": "The new due time of a task. Give one of `due_at` and `delay`.",
        "properties": properties,
        "additionalProperties": false,
        "oneOf": [{ "required": ["due_at"] }, { "required": ["delay"] }],
    })
}

fn new_batch() -> Value {
    json!({
        "type": "object",
        "description": "Many tasks at once. Each gets its own result; bad tasks do not stop good \
                        ones.",
        "required": ["tasks"],
        "properties": {
            "tasks": {
                "type": "array",
                "maxItems": Array::ITEMS_MAX,
                "items": reference("TaskRequest"),
                "description": "The tasks. The results have the same order.",
            },
        },
        "additionalProperties": false,
    })
}

fn range() -> Value {
    let description = "The tasks of a topic, by due time: from the first one without `due_from`, \
                       to the last one without `due_to`. The topic is required, so that a \
                       forgotten field does not empty a cluster.";
    json!({
        "type": "object",
        "description": description,
        "required": ["topic"],
        "properties": {
            "topic": reference("TopicName"),
            "due_from": described("DueAt", "Only tasks due at or after this time: RFC 3339 with a \
                                            zone, or whole milliseconds since the epoch."),
            "due_to": described("DueAt", "Only tasks due before this time: RFC 3339 with a zone, \
                                          or whole milliseconds since the epoch."),
            "dry_run": { "type": "boolean", "description": "True: only count." },
            "cursor": nullable("Cursor", "The `cursor` of the previous answer to the same call, \
                                          with the same topic and times. A cursor of a dry run is \
                                          only for dry runs. Null or missing: from the beginning."),
        },
        "additionalProperties": false,
    })
}

fn to_topic() -> Value {
    described("TopicName", "The topic to which the tasks go: another one than theirs.")
}

fn redrive_request() -> Value {
    json!({
        "type": "object",
        "description": "How a dead letter is redriven.",
        "properties": { "to_topic": to_topic() },
        "additionalProperties": false,
    })
}

fn redrive_range() -> Value {
    let mut schema = range();
    schema["properties"]["to_topic"] = to_topic();
    schema
}

/// The range of a cancel: the submitter may take the place of the topic.
fn cancel_range() -> Value {
    let mut schema = range();
    schema["description"] = json!(
        "The tasks of a topic, of a submitter, or of both, by due time: from the first one without \
         `due_from`, to the last one without `due_to`. The topic or the submitter is required, so \
         that a forgotten field does not empty a cluster."
    );
    if let Some(members) = schema.as_object_mut() {
        members.remove("required");
    }
    schema["anyOf"] = json!([{ "required": ["topic"] }, { "required": ["submitted_by"] }]);
    schema["properties"]["submitted_by"] =
        described("Principal", "Only tasks that this principal has submitted.");
    add_choice(&mut schema);
    schema
}

/// The range of a move.
fn move_range() -> Value {
    let mut schema = range();
    schema["description"] = json!(
        "The tasks of a topic, by due time or by a choice, and their new due times: give one of \
         `by` and `to`. The new times lie outside of the range, so that no task is moved twice. \
         `to` needs no range with `ids` or `names`, and with `name_prefix` or `key` if it lies in \
         the future."
    );
    schema["properties"]["by"] = described(
        "Span",
        "By how much the tasks are due later, or with a minus earlier: at least as long as the \
         range, of which both ends are required.",
    );
    schema["properties"]["to"] = described("DueAt", "The new due time of all tasks.");
    schema["oneOf"] = json!([{ "required": ["by", "due_from", "due_to"] }, { "required": ["to"] }]);
    add_choice(&mut schema);
    schema
}

fn span() -> Value {
    json!({
        "description": "A span with a sign: in units, as ISO 8601, or in whole milliseconds.",
        "oneOf": [
            {
                "type": "string",
                "format": "delay",
                "maxLength": 200,
                "description": "`1h`, `-30m`, `-PT30M`.",
            },
            { "type": "integer", "description": "Milliseconds." },
        ],
        "examples": ["1h", "-30m", 3_600_000],
    })
}

/// Adds the members that choose among the tasks of a topic.
fn add_choice(schema: &mut Value) {
    let properties = &mut schema["properties"];
    properties["ids"] = described("TaskIds", "Only the tasks with these ids.");
    properties["names"] = described("TaskNames", "Only the tasks with these names.");
    properties["name_prefix"] = described(
        "NamePrefix",
        "Only tasks whose names begin with this text. At most 10,000 names of the topic may begin \
         with it.",
    );
    properties["key"] = described("KeyText", "Only tasks with this key.");
    properties["key_base64"] = described("Base64", "Only tasks with this key, in base64.");
    let mut pairs = Vec::new();
    for (index, field) in CHOICES.iter().enumerate() {
        schema["dependentRequired"][*field] = json!(["topic"]);
        pairs.extend(CHOICES[..index].iter().map(|other| json!({ "required": [other, field] })));
    }
    schema["not"] = json!({ "anyOf": pairs });
}

fn many_of(item: &str, description: &str) -> Value {
    json!({
        "type": "array",
        "minItems": 1,
        "maxItems": Choice::COUNT_MAX,
        "items": reference(item),
        "description": description,
    })
}

fn name_prefix() -> Value {
    json!({
        "type": "string",
        "minLength": 1,
        "maxLength": 255,
        "pattern": "^[^\\u0000]+$",
        "description": "The beginning of names, 1 to 255 bytes.",
        "examples": ["order-17/"],
    })
}

fn limit() -> Value {
    json!({
        "type": "integer",
        "minimum": 1,
        "maximum": LIMIT_MAX,
        "default": LIMIT,
        "description": "The maximum number of tasks of a page.",
    })
}

fn cursor() -> Value {
    json!({
        "type": "string",
        "format": "cursor",
        "description": "The beginning of the next page. Valid only for the same list with the same \
                        filters.",
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_schema_has_the_fields_that_are_read() {
        for (schema, fields) in
            [(new_task(), FIELDS.as_slice()), (new_named_task(), FIELDS_OF_NAMED.as_slice())]
        {
            let properties = schema["properties"].as_object().unwrap();
            assert_eq!(properties.len(), fields.len());
            for field in fields {
                assert_ne!(properties[*field], json!({}), "{field} has no schema");
            }
        }
    }
}
