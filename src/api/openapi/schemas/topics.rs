//! The schemas of topics: what [`crate::api::request::draft::policy`] reads and
//! [`crate::api::json::topics`] writes.

use serde_json::{Value, json};

use super::parts::{described, object, reference};
use super::requests::record_property;
use crate::api::request::draft::policy::PENDING_MAX_MAX;

pub fn all() -> Vec<(&'static str, Value)> {
    vec![
        ("TopicPolicyRequest", request()),
        ("TopicReason", reason()),
        ("Topic", topic()),
        ("TopicPolicy", policy()),
        ("TopicPause", pause()),
        ("TopicUnavailable", unavailable()),
        ("Topics", topics()),
    ]
}

fn request() -> Value {
    json!({
        "type": "object",
        "description": "The policy of a topic, as a whole. Tasks that name a `ttr` take neither \
                        `ttr` nor `retry` from it.",
        "properties": {
            "paused": {
                "type": "boolean",
                "description": "True pauses the topic, false resumes it. Missing: it stays as it \
                                is.",
            },
            "ttr": record_property("ttr"),
            "retry": record_property("retry"),
            "delay_max": described("Delay", "How far ahead tasks may be due. The node has a limit, \
                                             too."),
            "expire_after": described("Delay", "How long after its due time a task is published at \
                                                the latest, unless it names `expires_at`. From 1 \
                                                s to 100 years."),
            "spread": described("Delay", "Up to how much later than requested tasks are due, at \
                                          most 1 day. The name of a task decides its part, else \
                                          its key."),
            "pending_max": {
                "type": "integer",
                "format": "int64",
                "minimum": 1,
                "maximum": PENDING_MAX_MAX,
                "description": "While the topic has as many pending tasks, submits are refused. \
                                The limit is soft: it is compared with a count that may be an \
                                estimate, and some seconds old.",
            },
            "submitted_by_header": {
                "type": "boolean",
                "description": "True: records carry the name of the principal that submitted \
                                them, as the header `punctual-submitted-by`. Submitters cannot \
                                set it.",
            },
        },
        "additionalProperties": false,
        "dependentRequired": { "retry": ["ttr"] },
    })
}

fn reason() -> Value {
    json!({
        "type": "object",
        "description": "Why a topic is paused or resumed.",
        "properties": {
            "reason": {
                "type": "string",
                "maxLength": 1024,
                "pattern": "^[^\\u0000]*$",
                "description": "A text for people, at most 1,024 bytes.",
            },
        },
        "additionalProperties": false,
    })
}

fn policy() -> Value {
    object(
        "The policy of a topic.",
        &[],
        &json!({
            "ttr": { "type": "string", "description": "In units, such as `30s`." },
            "retry": record_property("retry"),
            "delay_max": { "type": "string", "description": "In units, such as `90d`." },
            "expire_after": { "type": "string", "description": "In units, such as `1h`." },
            "spread": { "type": "string", "description": "In units, such as `30s`." },
            "pending_max": {
                "type": "integer",
                "format": "int64",
                "minimum": 1,
                "description": "The most pending tasks.",
            },
            "submitted_by_header": {
                "type": "boolean",
                "description": "True: records carry the name of their submitter.",
            },
        }),
    )
}

fn pause() -> Value {
    object(
        "The pause of a topic.",
        &["since", "reason"],
        &json!({
            "since": described("Moment", "When it began."),
            "reason": {
                "oneOf": [{ "type": "string" }, { "type": "null" }],
                "description": "The reason that the operator gave; null without one.",
            },
            "by": described("Principal", "Who paused the topic. Missing for anonymous callers."),
        }),
    )
}

fn unavailable() -> Value {
    object(
        "Why the node that answers cannot publish to a topic, although no operator has paused it.",
        &["gone", "unavailable_ms", "reason"],
        &json!({
            "gone": {
                "type": "boolean",
                "description": "True if Kafka has denied the topic for so long that its tasks \
                                become dead letters.",
            },
            "unavailable_ms": {
                "type": "integer",
                "format": "int64",
                "minimum": 0,
                "description": "For how long.",
            },
            "reason": {
                "oneOf": [{ "type": "string" }, { "type": "null" }],
                "description": "The reason of the last failed record. Null while records only \
                                wait, and for callers who do not operate the cluster.",
            },
        }),
    )
}

fn topic() -> Value {
    object(
        "A topic: its policy and its tasks.",
        &["topic", "revision"],
        &json!({
            "topic": reference("TopicName"),
            "revision": {
                "type": "integer",
                "format": "int64",
                "minimum": 0,
                "description": "Counts the changes of the policy and the pauses. In quotes, it is \
                                the `ETag`.",
            },
            "policy": described("TopicPolicy", "Missing without a policy."),
            "paused": described("TopicPause", "Missing for a topic that is not paused."),
            "pending": described("Count", "The pending tasks. Missing in answers to changes, and \
                                           where an estimate has found none."),
            "in_flight": {
                "type": "integer",
                "format": "int64",
                "minimum": 0,
                "description": "Tasks that are claimed and not settled. A pause does not stop \
                                them. Missing in lists.",
            },
            "unavailable": described(
                "TopicUnavailable",
                "Missing while the node that answers can publish to the topic, or has not tried.",
            ),
        }),
    )
}

fn topics() -> Value {
    object(
        "A page of topics, in the order of their names.",
        &["topics", "next_after"],
        &json!({
            "topics": {
                "type": "array",
                "items": reference("Topic"),
                "description": "The topics.",
            },
            "next_after": {
                "oneOf": [reference("TopicName"), { "type": "null" }],
                "description": "The parameter `after` of the next page; null at the end.",
            },
        }),
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::request::draft::policy::FIELDS;

    #[test]
    fn the_schema_has_the_members_that_are_read() {
        let properties = request()["properties"].as_object().cloned().unwrap();
        assert_eq!(properties.len(), FIELDS.len());
        assert!(FIELDS.iter().all(|field| properties.contains_key(*field)));
    }
}
