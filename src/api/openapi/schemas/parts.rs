//! The schemas that both requests and answers use, and references between schemas.

use serde_json::{Value, json};

/// The description of a member `payload_text` in answers.
pub(super) const PAYLOAD_TEXT: &str = "The record's value, if it is UTF-8 but no JSON, or JSON \
    that many parsers refuse: nested more than 127 times, with half of a surrogate pair, or with a \
    number beyond a double.";

pub fn reference(component: &str) -> Value {
    json!({ "$ref": format!("#/components/schemas/{component}") })
}

/// Returns a reference to a component, with a description for this use.
pub fn described(component: &str, description: &str) -> Value {
    json!({ "$ref": format!("#/components/schemas/{component}"), "description": description })
}

/// Returns a schema for a component or null, with a description for this use.
pub fn nullable(component: &str, description: &str) -> Value {
    json!({ "oneOf": [reference(component), { "type": "null" }], "description": description })
}

/// Returns the schema of an object in an answer.
pub fn object(description: &str, required: &[&str], properties: &Value) -> Value {
    json!({
        "type": "object",
        "description": description,
        "required": required,
        "properties": properties,
    })
}

pub fn all() -> Vec<(&'static str, Value)> {
    let mut all = formats();
    all.extend(header_values());
    all
}

/// Returns the values of headers that name a task.
fn header_values() -> Vec<(&'static str, Value)> {
    vec![
        (
            "EntityTag",
            json!({
                "type": "string",
                "pattern": "^\"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}\"$",
                "description": "The id of a task, in quotes.",
                "examples": ["\"01934b2e-7d3c-8017-9f2b-6a1c0e4d5b7f\""],
            }),
        ),
        (
            "EntityTags",
            json!({
                "type": "string",
                "pattern": "^(\\*|(W/)?\"[!#-~]*\"( *, *(W/)?\"[!#-~]*\")*)$",
                "description": "A list of entity tags, or `*` (RFC 9110, 13.1). The tag of a task \
                                is its id in quotes; weak tags never match `If-Match`.",
                "examples": ["\"01934b2e-7d3c-8017-9f2b-6a1c0e4d5b7f\"", "*"],
            }),
        ),
        (
            "IdempotencyKey",
            json!({
                "type": "string",
                "minLength": 1,
                "maxLength": 255,
                "pattern": "^(\"([ !#-\\[\\]-~]|\\\\[\"\\\\])+\"|[!#-~]([ -~]*[!-~])?)$",
                "description": "A name for the task: bare, or as a string of RFC 8941, in quotes, \
                                with `\\\"` and `\\\\` for `\"` and `\\`.",
                "examples": ["\"order-17\"", "order-17"],
            }),
        ),
    ]
}

fn formats() -> Vec<(&'static str, Value)> {
    vec![
        (
            "TaskId",
            json!({
                "type": "string",
                "format": "uuid",
                "description": "A UUID of version 8 that begins with the due time. It is the same \
                                for all attempts.",
                "examples": ["01934b2e-7d3c-8017-9f2b-6a1c0e4d5b7f"],
            }),
        ),
        (
            "TopicName",
            json!({
                "type": "string",
                "pattern": "^[a-zA-Z0-9._-]{1,249}$",
                "not": { "enum": [".", ".."] },
                "description": "A Kafka topic. It must exist: Punctual creates none.",
                "examples": ["demo"],
            }),
        ),
        (
            "Principal",
            json!({
                "type": "string",
                "pattern": "^[a-zA-Z0-9._@:/~|+=-]{1,300}$",
                "not": { "const": "anonymous" },
                "description": "The name of a principal, as the auth file has it.",
                "examples": ["order-service"],
            }),
        ),
        (
            "TaskName",
            json!({
                "type": "string",
                "minLength": 1,
                "maxLength": 255,
                "pattern": "^[^\\u0000]+$",
                "description": "The name of a task, your idempotency key, unique within its topic: \
                                1 to 255 bytes of UTF-8, without NUL.",
                "examples": ["order-17"],
            }),
        ),
        (
            "NameInPath",
            json!({
                "allOf": [reference("TaskName"), { "not": { "enum": [".", ".."] } }],
                "description": "A name in a path, percent-encoded.",
            }),
        ),
        (
            "Base64",
            json!({
                "type": "string",
                "contentEncoding": "base64",
                "pattern": concat!(
                    "^([A-Za-z0-9+/]{4})*",
                    "([A-Za-z0-9+/][AQgw]==|[A-Za-z0-9+/]{2}[AEIMQUYcgkosw048]=)?$",
                ),
                "description": "Bytes in base64 (RFC 4648, section 4, with padding).",
                "examples": ["/w=="],
            }),
        ),
        (
            "Moment",
            json!({
                "type": "string",
                "format": "date-time",
                "description": "RFC 3339 in UTC, with milliseconds.",
                "examples": ["2030-01-31T09:30:00.000Z"],
            }),
        ),
    ]
}

pub(super) fn count(description: &str) -> Value {
    json!({ "type": "integer", "minimum": 0, "description": description })
}

pub(super) fn boolean(description: &str) -> Value {
    json!({ "type": "boolean", "description": description })
}
