//! The schemas of consumers without Kafka.

use serde_json::{Value, json};

use super::parts::{PAYLOAD_TEXT, described, object, reference};
use crate::api::handlers::feedback::pop::{TASKS_MAX, WAIT_MAX};
use crate::domain::topic::callback::{
    CONCURRENCY, CONCURRENCY_MAX, HEADER_BYTES_MAX, HEADERS_MAX, PER_SECOND_MAX, TIMEOUT_MAX,
    TIMEOUT_MIN, URL_BYTES_MAX,
};

pub fn all() -> Vec<(&'static str, Value)> {
    vec![
        ("Pop", pop()),
        ("Popped", popped()),
        ("PoppedTask", popped_task()),
        ("CallbackRequest", callback_request()),
        ("Callback", callback()),
    ]
}

fn pop() -> Value {
    json!({
        "type": "object",
        "description": "Asks for tasks of a topic.",
        "required": ["group"],
        "properties": {
            "group": {
                "type": "string",
                "minLength": 1,
                "maxLength": 200,
                "pattern": "^[A-Za-z0-9._-]+$",
                "description": "The consumer group of Kafka that shares the tasks of the topic: \
                                each goes to one caller of the group.",
                "examples": ["mailer"],
            },
            "wait": {
                "oneOf": [
                    { "type": "string", "format": "pop-wait", "maxLength": 200,
                      "description": "`20s`, `1m`, `PT1M`." },
                    { "type": "integer", "minimum": 0, "maximum": WAIT_MAX.as_millis(),
                      "description": "Milliseconds." },
                ],
                "description": "How long to wait for the first task, up to 1m; 20s by default. An \
                                answer without tasks comes a second before `--request-timeout` of \
                                the node at the latest.",
                "examples": ["20s", 500],
            },
            "max": {
                "type": "integer",
                "minimum": 1,
                "maximum": TASKS_MAX,
                "default": 1,
                "description": "The most tasks of the answer.",
            },
        },
        "additionalProperties": false,
    })
}

fn popped() -> Value {
    let tasks = json!({
        "type": "array",
        "items": reference("PoppedTask"),
        "description": "The tasks, in the order of their records in each partition.",
    });
    object("The tasks that a pop has got.", &["tasks"], &json!({ "tasks": tasks }))
}

fn popped_task() -> Value {
    let properties = json!({
        "id": described("TaskId", "The task."),
        "topic": described("TopicName", "The topic."),
        "attempt": {
            "type": "integer",
            "minimum": 1,
            "description": "The number of this attempt, for `finish`, `fail` and `extend`.",
        },
        "attempts_max": {
            "type": "integer",
            "minimum": 1,
            "description": "The number of the last attempt that there can be.",
        },
        "due_at": described("Moment", "The due time of the task, with its spread."),
        "published_at": described("Moment", "The timestamp of the record."),
        "finish_by": described("Moment", "The end of the consumer's time to run: afterwards the \
                                         task comes again."),
        "partition": { "type": "integer", "description": "The partition of the record." },
        "offset": { "type": "integer", "description": "The offset of the record." },
        "key": { "type": "string", "description": "The record's key, if it is UTF-8." },
        "key_base64": described("Base64", "The record's key, if it is not UTF-8."),
        "headers": described("Headers", "The headers of the record, without those of Punctual."),
        "payload": { "description": "The record's value, if it is JSON: byte for byte as \
                                     submitted." },
        "payload_text": { "type": "string", "description": PAYLOAD_TEXT },
        "payload_base64": described("Base64", "The record's value, if it is not UTF-8."),
        "tombstone": { "const": true, "description": "The record's value is null." },
    });
    let required = [
        "id",
        "topic",
        "attempt",
        "attempts_max",
        "due_at",
        "published_at",
        "finish_by",
        "partition",
        "offset",
    ];
    object("An attempt of a tracked task, with its record.", &required, &properties)
}

fn callback_request() -> Value {
    json!({
        "type": "object",
        "description": "The callback of a topic, as a whole.",
        "required": ["url"],
        "properties": {
            "url": {
                "type": "string",
                "minLength": 1,
                "maxLength": URL_BYTES_MAX,
                "format": "callback-url",
                "description": "The service: an https URL without user, password and fragment, of \
                                a host that the nodes may call.",
                "examples": ["https://jobs.example.com/orders"],
            },
            "headers": {
                "type": "object",
                "maxProperties": HEADERS_MAX,
                "propertyNames": { "pattern": "^[a-z][a-z0-9-]*$", "maxLength": 100 },
                "additionalProperties": {
                    "type": "string",
                    "maxLength": HEADER_BYTES_MAX,
                    "pattern": "^[!-~]([ -~]*[!-~])?$",
                },
                "description": "Headers of each request, such as `authorization`. Their values are \
                                not shown again.",
                "examples": [{ "authorization": "Bearer abc" }],
            },
            "timeout": {
                "oneOf": [
                    { "type": "string", "format": "callback-timeout", "maxLength": 200,
                      "description": "`10s`, `1m`." },
                    { "type": "integer", "minimum": TIMEOUT_MIN.as_millis(),
                      "maximum": TIMEOUT_MAX.as_millis(), "description": "Milliseconds." },
                ],
                "description": "How long the service may take for an answer, from 100ms to 5m; 10s \
                                by default. The time to run of a task is a limit, too.",
                "examples": ["10s", 2000],
            },
            "concurrency": {
                "type": "integer",
                "minimum": 1,
                "maximum": CONCURRENCY_MAX,
                "default": CONCURRENCY,
                "description": "The most requests of all nodes that wait for an answer at the same \
                                time, but at least one of each node. A service in trouble gets \
                                fewer.",
            },
            "max_per_second": {
                "type": "integer",
                "minimum": 1,
                "maximum": PER_SECOND_MAX,
                "description": "The most requests of all nodes in a second. Missing: any number.",
            },
            "paused": {
                "type": "boolean",
                "default": false,
                "description": "True: nothing is sent. Tasks are published all the same, and their \
                                time to run counts.",
            },
        },
        "additionalProperties": false,
    })
}

fn callback() -> Value {
    let properties = json!({
        "topic": described("TopicName", "The topic."),
        "revision": { "type": "integer", "format": "int64", "minimum": 1,
                      "description": "Another one after each change, also the pause by 410." },
        "url": { "type": "string", "description": "The service." },
        "header_names": {
            "type": "array",
            "items": { "type": "string" },
            "description": "The names of the headers of each request.",
        },
        "timeout": { "type": "string", "description": "How long the service may take." },
        "concurrency": { "type": "integer", "minimum": 1,
                         "description": "The most requests that wait for an answer." },
        "max_per_second": { "type": "integer", "minimum": 1,
                            "description": "The most requests in a second." },
        "paused": { "type": "boolean", "description": "True while nothing is sent." },
        "pause_reason": { "type": "string", "description": "Why a node has paused it." },
    });
    let required = ["topic", "revision", "url", "header_names", "timeout", "concurrency", "paused"];
    object("The callback of a topic.", &required, &properties)
}
