//! The schemas of consumers without Kafka.

use serde_json::{Value, json};

use super::parts::{described, object, reference};
use crate::api::handlers::feedback::pop::{TASKS_MAX, WAIT_MAX};

pub fn all() -> Vec<(&'static str, Value)> {
    vec![("Pop", pop()), ("Popped", popped()), ("PoppedTask", popped_task())]
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
        "due_at": described("Moment", "The requested due time of the task."),
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
        "payload_text": { "type": "string", "description": "The record's value, if it is UTF-8 but \
            not JSON." },
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
