//! The schemas of `GET /v1/cluster`.

use serde_json::{Value, json};

use super::parts::{boolean, count, described, nullable, object, reference};

pub fn all() -> Vec<(&'static str, Value)> {
    vec![
        ("Cluster", cluster()),
        ("Node", node()),
        ("Backlog", backlog()),
        ("UnavailableTopic", unavailable_topic()),
        ("PausedTopic", paused_topic()),
    ]
}

fn cluster() -> Value {
    let properties = json!({
        "node": {
            "type": "string",
            "format": "uuid",
            "description": "The id of the node that answers. A node gets a new id at each start.",
        },
        "now": nullable("Moment", "The cluster's clock, which is Postgres's; null until Postgres \
                                   has answered."),
        "shard_count": count("The number of shards."),
        "window_ms": count("How far ahead of their due time tasks are claimed, in ms."),
        "horizon_ms": count("Tasks due further ahead wait in a table of their own, in ms."),
        "leaf_ms": count("The width of a partition of pending tasks, in ms."),
        "nodes": { "type": "array", "items": reference("Node"), "description": "All known nodes." },
        "backlog": nullable("Backlog", "The overdue tasks, by the due time of their next attempt; \
                                        null until the first count."),
        "unavailable_topics": {
            "type": "array",
            "items": reference("UnavailableTopic"),
            "description": "Topics that accept no records from the node that answers. Their tasks \
                            wait. Longest first, at most 100.",
        },
        "throttled": boolean("True while Kafka throttles the node that answers, by a quota. \
                              Records are late then; nothing else is wrong."),
        "paused_topics": {
            "type": "array",
            "items": reference("PausedTopic"),
            "description": "Topics that an operator has paused, as the node that answers has last \
                            read them. Their tasks wait. Longest first, at most 100.",
        },
        "missing": {
            "type": "array",
            "items": reference("NotReady"),
            "description": "The reasons why the node that answers is not ready.",
        },
        "degraded": {
            "type": "array",
            "items": reference("NotReady"),
            "description": "What the node that answers lacks, and goes on without: etcd, once it \
                            was reached.",
        },
    });
    object(
        "The cluster, as seen by the node that answers.",
        &[
            "node",
            "now",
            "shard_count",
            "window_ms",
            "horizon_ms",
            "leaf_ms",
            "nodes",
            "backlog",
            "unavailable_topics",
            "throttled",
            "paused_topics",
            "missing",
            "degraded",
        ],
        &properties,
    )
}

fn node() -> Value {
    let properties = json!({
        "id": { "type": "string", "format": "uuid", "description": "The id of the node; new at \
            each start." },
        "name": { "type": "string", "description": "The name of the node, for people." },
        "address": { "type": "string", "description": "The address at which the node says that it \
            can be reached." },
        "version": { "type": "string", "description": "The version of the program." },
        "started_at": described("Moment", "The start time of the node."),
        "heartbeat_age_ms": {
            "type": "integer",
            "minimum": 0,
            "description": "Time since its last known heartbeat, in ms; 0 for a joining node.",
        },
        "has_broker": { "type": "boolean", "description": "True while a Kafka broker answers the \
            node." },
        "standing": {
            "type": "string",
            "enum": ["joining", "assigned", "suspected", "dead", "left"],
            "description": "The state of the node, as seen by the node that answers.",
        },
        "shards": {
            "type": "array",
            "items": { "type": "integer", "minimum": 0 },
            "description": "The shards that the node claims.",
        },
    });
    object(
        "One node.",
        &[
            "id",
            "name",
            "address",
            "version",
            "started_at",
            "heartbeat_age_ms",
            "has_broker",
            "standing",
            "shards",
        ],
        &properties,
    )
}

fn paused_topic() -> Value {
    object(
        "A topic that is paused.",
        &["topic", "since", "reason"],
        &json!({
            "topic": reference("TopicName"),
            "since": described("Moment", "When the pause began."),
            "reason": {
                "type": ["string", "null"],
                "description": "The reason that the operator gave; null without one, or if the \
                                caller lacks the right `read` on the topic.",
            },
            "by": described("Principal", "Who paused the topic. Missing for anonymous callers, and \
                                          without the right `read` on the topic."),
        }),
    )
}

fn unavailable_topic() -> Value {
    let properties = json!({
        "topic": reference("TopicName"),
        "gone": boolean("True if Kafka has denied the topic for so long that its tasks become dead \
                         letters."),
        "unavailable_ms": count("How long the topic has been unavailable, in ms. Probes do not end \
                                 this time."),
        "reason": {
            "type": ["string", "null"],
            "description": "The error of the last failed record, from Kafka or its client; null \
                            while records only wait.",
        },
    });
    object(
        "A topic that accepts no records.",
        &["topic", "gone", "unavailable_ms", "reason"],
        &properties,
    )
}

fn backlog() -> Value {
    let properties = json!({
        "count": count("The number of tasks."),
        "exact": boolean("False if there are more: the count stops at a limit."),
        "oldest_due_at": nullable("Moment", "The due time of the oldest one."),
    });
    object(
        "Tasks that are overdue and unclaimed.",
        &["count", "exact", "oldest_due_at"],
        &properties,
    )
}
