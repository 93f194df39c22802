//! The schemas of answers: the members that [`crate::api::json::answers`],
//! [`crate::api::problems::problem`] and the handlers write.

use serde_json::{Value, json};

use super::parts::{described, nullable, reference};
use crate::api::problems::problem_type::{ProblemType, TYPE_PREFIX};

pub fn all() -> Vec<(&'static str, Value)> {
    vec![
        ("Task", task()),
        ("TaskState", task_state()),
        ("Receipt", receipt()),
        ("BatchAnswer", batch_answer()),
        ("BatchResult", batch_result()),
        ("Cancelled", cancelled()),
        ("CancelledMany", many("cancelled", "Many tasks that were cancelled.")),
        ("Page", page()),
        ("Redriven", many("redriven", "Many dead letters that were put back.")),
        ("Dropped", many("dropped", "Many dead letters that were dropped.")),
        ("Counts", counts()),
        ("Cluster", cluster()),
        ("Node", node()),
        ("Backlog", backlog()),
        ("UnavailableTopic", unavailable_topic()),
        ("Health", health()),
        ("WhoAmI", who_am_i()),
        ("Interface", interface()),
        ("ProblemSlug", problem_slug()),
        ("Problem", problem()),
        ("NotReady", missing()),
    ]
}

fn object(description: &str, required: &[&str], properties: &Value) -> Value {
    json!({ "type": "object", "description": description, "required": required, "properties": properties })
}

fn task() -> Value {
    let description = "A task. `payload` is given when the bytes are JSON, else `payload_text` when they are UTF-8, else `payload_base64`: a task with \
                       what is answered is published with the same bytes. Headers and payload are given by GET while they are kept.";
    let properties = json!({
        "id": reference("TaskId"),
        "topic": reference("TopicName"),
        "name": reference("TaskName"),
        "key": { "type": "string", "description": "The record's key, when it is UTF-8." },
        "key_base64": described("Base64", "The record's key, when it is not UTF-8."),
        "due_at": described("Moment", "The due time that was asked for; if that was past, the moment of the submit."),
        "state": reference("TaskState"),
        "replaced_by": described("TaskId", "The task in its place, when a PUT by name has replaced it: the last one, if that was replaced as well. It is followed through 10,000 replacements; what is named then was replaced, too."),
        "attempt": { "type": "integer", "minimum": 1, "description": "Which attempt it is at. Missing when only the state is known." },
        "receipt": reference("Receipt"),
        "headers": described("Headers", "As submitted (bytes that are text are answered as text), and the `traceparent` of the request where the task brought none."),
        "payload": { "description": "The record's value, when it is JSON: byte for byte as submitted." },
        "payload_text": { "type": "string", "description": "The record's value, when it is UTF-8 and no JSON." },
        "payload_base64": described("Base64", "The record's value, when it is not UTF-8."),
        "tombstone": { "const": true, "description": "The record's value is null." },
        "reason": { "type": "string", "description": "Why it was given up, of a dead letter." },
        "died_at": described("Moment", "When it was given up, of a dead letter."),
        "redacted": { "const": true, "description": "Key, headers and payload are not shown: the caller lacks `read-payload` on the topic, or, after a submit, `read`." },
    });
    object(description, &["id", "topic", "due_at", "state"], &properties)
}

fn task_state() -> Value {
    json!({
        "type": "string",
        "enum": ["scheduled", "claimed", "published", "cancelled", "dead"],
        "description": "`scheduled`: it waits, and can be cancelled, unless an earlier attempt (`attempt` is over 1) may be in its topic. `claimed`: on its way, and can no longer be stopped. `published`: Kafka has acknowledged it. \
                        `cancelled`: it never was and never will be published. `dead`: given up on, a dead letter.",
    })
}

fn receipt() -> Value {
    let properties = json!({
        "partition": { "type": "integer", "format": "int32", "minimum": 0, "description": "The partition of the topic." },
        "offset": { "type": "integer", "format": "int64", "description": "The offset within it." },
        "published_at": described("Moment", "The broker's append time on topics with LogAppendTime, else when the acknowledgement came."),
        "lateness_ms": { "type": "integer", "format": "int64", "description": "`published_at` less `due_at`. Negative when the broker's clock is behind." },
    });
    object(
        "Where a task went, once it was published.",
        &["partition", "offset", "published_at", "lateness_ms"],
        &properties,
    )
}

fn batch_answer() -> Value {
    let results = json!({ "type": "array", "items": reference("BatchResult"), "description": "One for each task, in order." });
    object("What became of a batch.", &["results"], &json!({ "results": results }))
}

fn batch_result() -> Value {
    let properties = json!({
        "status": { "type": "integer", "description": "What a POST of this task alone would have been answered: 201 new, 200 known by its name, else a problem." },
        "task": described("Task", "Of 201 and 200. A task that was known is shown with its id and its state."),
        "problem": described("Problem", "Of all others."),
    });
    let mut schema = object("What became of one task of a batch.", &["status"], &properties);
    schema["oneOf"] = json!([{ "required": ["task"] }, { "required": ["problem"] }]);
    schema
}

fn cancelled() -> Value {
    let properties = json!({
        "verdict": { "const": "cancelled", "description": "No record of the task exists, or ever will." },
        "task": reference("Task"),
    });
    object("A cancel that took effect, now or before.", &["verdict", "task"], &properties)
}

fn count(description: &str) -> Value {
    json!({ "type": "integer", "minimum": 0, "description": description })
}

fn boolean(description: &str) -> Value {
    json!({ "type": "boolean", "description": description })
}

fn topic_known() -> Value {
    json!({
        "type": ["boolean", "null"],
        "description": "Of a topic that was asked for and of which nothing was found. True: Kafka has the topic, or tasks or dead letters are for it. \
                        False: neither; is it misspelt? Null: something was found, no topic was asked for, or it cannot be told now.",
    })
}

/// Returns the schema of the answer to a change of many tasks. The member `done` counts them.
fn many(done: &str, description: &str) -> Value {
    let properties = json!({
        done: count("How many, exactly; with `dry_run` how many there are."),
        "more": boolean("There may be more: repeat the request, with the `cursor`."),
        "dry_run": boolean("Nothing was done."),
        "searched_to": nullable("Moment", "Where there is more: what is due before was looked at, all of it."),
        "cursor": nullable("Cursor", "Where the next request goes on, where there is more. Null: it begins anew."),
        "topic_known": topic_known(),
    });
    object(
        description,
        &[done, "more", "dry_run", "searched_to", "cursor", "topic_known"],
        &properties,
    )
}

fn page() -> Value {
    let properties = json!({
        "tasks": { "type": "array", "items": reference("Task"), "description": "In the order of their due times." },
        "cursor": nullable("Cursor", "Asks for the next page; null at the end of the list."),
        "topic_known": topic_known(),
    });
    object(
        "A page of tasks that wait, or of dead letters.",
        &["tasks", "cursor", "topic_known"],
        &properties,
    )
}

fn counts() -> Value {
    let figure = |name: &str, schema: Value, description: &str| {
        let mut properties = json!({
            "count": { "type": "integer", "minimum": 0, "description": "How many." },
            "exact": { "type": "boolean", "description": "False: an estimate." },
        });
        let mut required = vec!["count", "exact"];
        if !name.is_empty() {
            properties[name] = schema;
            required.push(name);
        }
        object(description, &required, &properties)
    };
    let properties = json!({
        "as_of": described("Moment", "When it was counted."),
        "pending": figure("", Value::Null, "All that wait."),
        "topics": {
            "type": "array",
            "items": figure("topic", reference("TopicName"), "Those of a topic."),
            "description": "By topic, the largest first.",
        },
        "more_topics": boolean("There may be topics that are not listed."),
        "minutes": {
            "type": "array",
            "items": figure("from", described("Moment", "The beginning of the minute."), "Those that are due within a minute."),
            "description": "By minute of the coming hour.",
        },
        "topic_known": topic_known(),
    });
    object(
        "How many tasks wait.",
        &["as_of", "pending", "topics", "more_topics", "minutes", "topic_known"],
        &properties,
    )
}

fn cluster() -> Value {
    let properties = json!({
        "node": { "type": "string", "format": "uuid", "description": "The node that answers. New at each start." },
        "now": nullable("Moment", "The cluster's clock, which is that of Postgres; null before Postgres has told it."),
        "shard_count": count("Shards of the cluster."),
        "window_ms": count("How far ahead of their due time tasks are claimed, in ms."),
        "horizon_ms": count("What is due later waits in a table of its own, in ms."),
        "leaf_ms": count("Width of a partition of the tasks that wait, in ms."),
        "nodes": { "type": "array", "items": reference("Node"), "description": "All nodes that are known." },
        "backlog": nullable("Backlog", "Tasks that are overdue, by the due time of their next attempt; null before they were counted."),
        "unavailable_topics": {
            "type": "array",
            "items": reference("UnavailableTopic"),
            "description": "Topics that take no records of the node that answers: their tasks wait. The longest first, at most 100.",
        },
        "throttled": boolean("True while Kafka brokers hold the records of the node that answers back by a quota. Records are late then, and nothing else is wrong."),
        "missing": { "type": "array", "items": reference("NotReady"), "description": "What the node that answers lacks to be ready." },
    });
    object(
        "The cluster as the node that answers sees it.",
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
            "missing",
        ],
        &properties,
    )
}

fn node() -> Value {
    let properties = json!({
        "id": { "type": "string", "format": "uuid", "description": "New at each start." },
        "name": { "type": "string", "description": "For people." },
        "address": { "type": "string", "description": "Where it can be reached, as it says." },
        "version": { "type": "string", "description": "Of the program." },
        "started_at": described("Moment", "When it started."),
        "heartbeat_age_ms": { "type": "integer", "minimum": 0, "description": "Since its last heartbeat that the node which answers knows of; 0 for one that joins." },
        "has_broker": { "type": "boolean", "description": "True while a broker of Kafka answers it." },
        "standing": {
            "type": "string",
            "enum": ["joining", "assigned", "suspected", "dead", "left"],
            "description": "What the node that answers takes it for.",
        },
        "shards": { "type": "array", "items": { "type": "integer", "minimum": 0 }, "description": "The shards that it should claim." },
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

fn unavailable_topic() -> Value {
    let properties = json!({
        "topic": reference("TopicName"),
        "gone": boolean("True when Kafka has denied it for so long that its tasks become dead letters."),
        "unavailable_ms": count("For how long it has taken none, in ms; probes do not end it."),
        "reason": {
            "type": ["string", "null"],
            "description": "Why the last record that failed did, in the words of Kafka or its client; null while records only wait.",
        },
    });
    object(
        "A topic that takes no records.",
        &["topic", "gone", "unavailable_ms", "reason"],
        &properties,
    )
}

fn backlog() -> Value {
    let properties = json!({
        "count": count("How many."),
        "exact": boolean("False when there are more: counting stops at a limit."),
        "oldest_due_at": { "oneOf": [reference("Moment"), { "type": "null" }], "description": "The due time of the oldest." },
    });
    object(
        "Tasks that are overdue and unclaimed.",
        &["count", "exact", "oldest_due_at"],
        &properties,
    )
}

fn who_am_i() -> Value {
    let patterns = |description: &str| json!({ "type": "array", "items": { "type": "string" }, "description": description });
    let right = object(
        "The topics of one action.",
        &["action", "topics", "except"],
        &json!({
            "action": { "type": "string", "description": "The action, such as `submit`." },
            "topics": patterns("Patterns of topics: a name, a prefix with `*`, or `*`."),
            "except": patterns("Patterns that are denied. They win."),
        }),
    );
    let properties = json!({
        "principal": { "type": "string", "description": "The name of the principal." },
        "credential": { "type": "string", "description": "The public id of the token, or `anonymous`." },
        "operate": boolean("True when the caller may see the state of the cluster."),
        "rights": { "type": "array", "items": right, "description": "The actions that are allowed on some topic." },
    });
    object(
        "The caller of the request.",
        &["principal", "credential", "operate", "rights"],
        &properties,
    )
}

fn health() -> Value {
    object(
        "Well.",
        &["status"],
        &json!({ "status": { "enum": ["alive", "ready"], "description": "What was asked for." } }),
    )
}

fn interface() -> Value {
    let properties = json!({
        "openapi": { "const": "3.1.0", "description": "The version of OpenAPI." },
        "info": { "type": "object", "description": "What holds for all operations." },
        "servers": { "type": "array", "description": "The node itself." },
        "tags": { "type": "array", "description": "Groups of operations." },
        "paths": { "type": "object", "description": "The operations." },
        "components": { "type": "object", "description": "The schemas." },
    });
    object("A document of OpenAPI.", &["openapi", "info", "paths", "components"], &properties)
}

fn problem_slug() -> Value {
    let slugs: Vec<&str> = ProblemType::ALL.iter().map(|kind| kind.slug()).collect();
    json!({ "type": "string", "enum": slugs, "description": "A type of problem, by the end of its `type`.", "examples": ["too-late"] })
}

fn problem() -> Value {
    let types: Vec<String> =
        ProblemType::ALL.iter().map(|kind| format!("{TYPE_PREFIX}{}", kind.slug())).collect();
    let properties = json!({
        "type": { "type": "string", "enum": types, "description": "What to decide by: it keeps its meaning. More may be added. docs/problems.md has all of them." },
        "title": { "type": "string", "description": "The type, for people." },
        "status": { "type": "integer", "minimum": 400, "maximum": 599, "description": "The status of the answer." },
        "detail": { "type": "string", "description": "What is wrong here, and what would be right, for people." },
        "field": { "type": "string", "description": "The field that it is about, as a path from the top of the body, such as `tasks[3].due_at`." },
        "retry_after": { "type": "integer", "minimum": 1, "description": "Seconds after which it is worth to ask again; of all 429 and 503." },
        "request_id": { "type": "string", "description": "That of the header `x-request-id`, for the operator: the log has it at level debug. Not of a task of a batch." },
        "verdict": { "enum": ["too_late", "replaced", "not_found"], "description": "Of a cancel, or a replacement, that did not take effect." },
        "replaced_by": described("TaskId", "Of `replaced`: the task that stands in the place of the one that was meant."),
        "current_id": described("TaskId", "Of `precondition-failed`: the task that the name stands for. Missing when it stands for none."),
        "action": { "type": "string", "description": "Of `forbidden`: the right that is missing." },
        "topic": described("TopicName", "Of `forbidden`: the topic, as it was given."),
        "task": described("Task", "The task that could not be stopped, or that was replaced."),
        "missing": { "type": "array", "items": reference("NotReady"), "description": "Of `/readyz`: what is missing." },
    });
    object("What is wrong (RFC 9457).", &["type", "title", "status", "detail"], &properties)
}

fn missing() -> Value {
    let properties = json!({
        "what": { "type": "string", "description": "What is missing, such as `postgres` or `kafka`." },
        "why": { "type": "string", "description": "What is known of it; only for callers with the right `operate`." },
    });
    object("Something that a node lacks to be ready.", &["what"], &properties)
}
