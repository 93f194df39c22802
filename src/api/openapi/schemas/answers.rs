//! The schemas of answers: the members that [`crate::api::json::answers`],
//! [`crate::api::problems::problem`] and the handlers write.

use serde_json::{Value, json};

use super::parts::{PAYLOAD_TEXT, boolean, count, described, nullable, object, reference};
use crate::api::problems::problem_type::{ProblemType, TYPE_PREFIX};

pub fn all() -> Vec<(&'static str, Value)> {
    vec![
        ("Task", task()),
        ("TaskState", task_state()),
        ("Receipt", receipt()),
        ("BatchAnswer", batch_answer()),
        ("BatchResult", batch_result()),
        ("Cancelled", cancelled()),
        ("Moved", moved()),
        ("MovedMany", many("moved", "The result of a move of many tasks.")),
        ("CancelledMany", many("cancelled", "The result of a cancel of many tasks.")),
        ("Page", page()),
        ("Redriven", many("redriven", "The result of a redrive of many dead letters.")),
        ("Dropped", many("dropped", "The result of a drop of many dead letters.")),
        ("Counts", counts()),
        ("Count", figure(None, "A number of tasks.")),
        ("TopicCount", topic_count()),
        ("MinuteCount", minute_count()),
        ("DayCount", day_count()),
        ("Health", health()),
        ("WhoAmI", who_am_i()),
        ("Right", right()),
        ("OpenApiDocument", interface()),
        ("ProblemSlug", problem_slug()),
        ("Problem", problem()),
        ("NotReady", missing()),
    ]
}

fn task() -> Value {
    let description = "A task. The payload is in `payload` if it is JSON, else in `payload_text` \
                       if it is UTF-8, else in `payload_base64`; submitted again like this, it has \
                       the same bytes. GET returns headers and payload while they are kept.";
    let properties = json!({
        "id": reference("TaskId"),
        "topic": reference("TopicName"),
        "name": reference("TaskName"),
        "key": { "type": "string", "description": "The record's key, if it is UTF-8." },
        "key_base64": described("Base64", "The record's key, if it is not UTF-8."),
        "due_at": described("Moment", "The requested due time, or the time of the submit if that \
                                       was later."),
        "requested_due_at": described("Moment", "The due time that was asked for, if the `spread` \
                                                 of the topic has made the task due later. Missing \
                                                 in the answer to the submit."),
        "expires_at": described("Moment", "The time from which the task is not published any \
                                           more. Missing for a task that does not expire, and when \
                                           its record is no longer kept."),
        "state": reference("TaskState"),
        "replaced_by": described("TaskId", "The newest task in its place, if a PUT by name has \
                                            replaced it. At most 10,000 replacements are followed; \
                                            beyond that, the task named here was replaced, too."),
        "attempt": {
            "type": "integer",
            "minimum": 0,
            "description": "The number of its current attempt, from 1 on. For a tracked task: the \
                            last attempt that was published, or perhaps; 0 before the first one. \
                            Missing if only the state is known.",
        },
        "receipt": reference("Receipt"),
        "headers": described("Headers", "The headers as submitted (bytes that are text are shown \
                                         as text), and the `traceparent` of the request if the \
                                         task had none."),
        "payload": { "description": "The record's value, if it is JSON: byte for byte as \
                                     submitted." },
        "payload_text": { "type": "string", "description": PAYLOAD_TEXT },
        "payload_base64": described("Base64", "The record's value, if it is not UTF-8."),
        "tombstone": { "const": true, "description": "The record's value is null." },
        "reason": { "type": "string", "description": "For a dead letter: why Punctual gave the \
            task up." },
        "died_at": described("Moment", "For a dead letter: when Punctual gave the task up."),
        "submitted_by": described("Principal", "The principal that submitted the task. Missing \
                                                for an anonymous caller."),
        "submitted_at": described("Moment", "When the task was stored. Missing for an anonymous \
                                             caller."),
        "cancelled_by": described("Principal", "The principal that cancelled or replaced the task. \
                                                Missing for an anonymous caller."),
        "dropped_by": described("Principal", "The principal that dropped the dead letter. Missing \
                                              for an anonymous caller."),
        "dropped_at": described("Moment", "When the dead letter was dropped."),
        "ttr": described("TimeToRun", "For a tracked task: the time to run of each attempt."),
        "retry": described("Retry", "For a tracked task: how it is tried again, with all members \
                                     but a missing `dead_topic`."),
        "attempts_max": {
            "type": "integer",
            "minimum": 1,
            "description": "For a tracked task: the number of its last attempt. It grows with each \
                            redrive.",
        },
        "finish_by": described("Moment", "For an awaiting task: the end of its time to run."),
        "retry_at": described("Moment", "For a retrying task: the due time of the next attempt."),
        "finished_at": described("Moment", "For a finished task: when its consumer finished it."),
        "finished_by": described("Principal", "The principal that finished the task. Missing for \
                                               an anonymous caller."),
        "in_flight": {
            "const": true,
            "description": "For a finished task: an attempt that was claimed before may have \
                            reached the topic after that.",
        },
        "attempts": {
            "type": "array",
            "items": reference("Attempt"),
            "description": "For a tracked task: its attempts and the answers to them, the oldest \
                            first, while receipts are kept. Lists leave them out.",
        },
        "redacted": {
            "const": true,
            "description": "Key, headers and payload are not shown, and neither are words of a \
                            consumer, because the caller lacks the right `read-payload` on the \
                            topic, or, after a submit, `read`.",
        },
    });
    object(description, &["id", "topic", "due_at", "state"], &properties)
}

fn task_state() -> Value {
    json!({
        "type": "string",
        "enum": [
            "scheduled", "claimed", "awaiting", "retrying", "published", "finished", "cancelled",
            "dead", "expired"
        ],
        "description": "`scheduled`: pending. It can be cancelled, unless an earlier attempt \
                        (`attempt` is over 1) may be in its topic. `claimed`: about to be \
                        published; it can no longer be stopped. `published`: acknowledged by \
                        Kafka, the end of a task without `ttr`. `awaiting`: an attempt of a \
                        tracked task is with its consumer. `retrying`: its attempt has failed, and \
                        the next one has a due time. `finished`: its consumer has done the work. \
                        `cancelled`: never was and never will be published. `dead`: given up, a \
                        dead letter. `expired`: could not be published before `expires_at`, and \
                        never will be.",
    })
}

fn receipt() -> Value {
    let properties = json!({
        "partition": {
            "type": "integer",
            "format": "int32",
            "minimum": 0,
            "description": "The partition of the topic.",
        },
        "offset": { "type": "integer", "format": "int64", "description": "The offset in the \
            partition." },
        "published_at": described("Moment", "The broker's append time on topics with \
                                             LogAppendTime, else the time of the acknowledgement."),
        "lateness_ms": {
            "type": "integer",
            "format": "int64",
            "description": "`published_at` minus `due_at`. Negative if the broker's clock is \
                            behind.",
        },
    });
    object(
        "The place of a published record.",
        &["partition", "offset", "published_at", "lateness_ms"],
        &properties,
    )
}

fn batch_answer() -> Value {
    let results = json!({
        "type": "array",
        "items": reference("BatchResult"),
        "description": "One result per task, in order.",
    });
    object("The results of a bulk submit.", &["results"], &json!({ "results": results }))
}

fn batch_result() -> Value {
    let properties = json!({
        "status": {
            "type": "integer",
            "description": "The status that a submit of this task alone would have got: 201 new, \
                            200 known by its name, else a problem.",
        },
        "task": described("Task", "With 201 and 200. A known task is shown with its id and its \
                                   state."),
        "problem": described("Problem", "With every other status."),
    });
    let mut schema = object("The result of one task of a bulk submit.", &["status"], &properties);
    schema["oneOf"] = json!([{ "required": ["task"] }, { "required": ["problem"] }]);
    schema
}

fn cancelled() -> Value {
    let properties = json!({
        "verdict": { "const": "cancelled", "description": "No record of the task exists or ever \
            will." },
        "task": reference("Task"),
    });
    object("The task is cancelled, by this request or before.", &["verdict", "task"], &properties)
}

fn moved() -> Value {
    let properties = json!({
        "verdict": { "const": "moved", "description": "The task is due at the new time." },
        "task": reference("Task"),
    });
    object("The task is moved: it has another `due_at`.", &["verdict", "task"], &properties)
}

fn topic_known() -> Value {
    json!({
        "type": ["boolean", "null"],
        "description": "Whether the topic of the request is known, if nothing was found for it. \
                        True: Kafka has the topic, or there are tasks or dead letters for it. \
                        False: neither, so it may be misspelt. Null: something was found, the \
                        request had no topic, or Punctual cannot tell now.",
    })
}

/// Returns the schema of the answer to a change of many tasks. The member `done` counts them.
fn many(done: &str, description: &str) -> Value {
    let properties = json!({
        done: count("The exact number of changed tasks; with `dry_run`, of matching ones."),
        "more": boolean("True if there may be more: repeat the request with the `cursor`."),
        "dry_run": boolean("True if the request only counted."),
        "searched_to": nullable("Moment", "If `more` is true: everything due before this time is \
                                           done. Of dead letters, everything first due before it."),
        "cursor": nullable("Cursor", "If `more` is true: where the next request goes on. Null: \
                                      from the beginning."),
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
        "tasks": {
            "type": "array",
            "items": reference("Task"),
            "description": "The tasks, in order of due time.",
        },
        "cursor": nullable("Cursor", "Returns the next page; null at the end of the list."),
        "topic_known": topic_known(),
    });
    object(
        "A page of pending tasks, or of dead letters.",
        &["tasks", "cursor", "topic_known"],
        &properties,
    )
}

/// Returns the schema of a number of tasks, and of whom or when they are.
fn figure(of: Option<(&str, Value)>, description: &str) -> Value {
    let mut properties = json!({
        "count": count("The number of tasks."),
        "exact": boolean("False if `count` is an estimate."),
    });
    let mut required = vec!["count", "exact"];
    if let Some((name, schema)) = of {
        properties[name] = schema;
        required.push(name);
    }
    object(description, &required, &properties)
}

fn counts() -> Value {
    let properties = json!({
        "as_of": described("Moment", "The time of the count."),
        "pending": described("Count", "All pending tasks."),
        "topics": {
            "type": "array",
            "items": reference("TopicCount"),
            "description": "The counts by topic, largest first.",
        },
        "more_topics": boolean("True if there may be topics that are not listed."),
        "minutes": {
            "type": "array",
            "items": reference("MinuteCount"),
            "description": "The counts by minute of the next two hours.",
        },
        "days": {
            "type": "array",
            "items": reference("DayCount"),
            "description": "The counts by day of the next 30 days, in UTC. Today counts tasks that \
                            are still to come.",
        },
        "topic_known": topic_known(),
    });
    object(
        "The numbers of pending tasks.",
        &["as_of", "pending", "topics", "more_topics", "minutes", "days", "topic_known"],
        &properties,
    )
}

fn topic_count() -> Value {
    figure(Some(("topic", reference("TopicName"))), "The pending tasks of a topic.")
}

fn minute_count() -> Value {
    let from = described("Moment", "The beginning of the minute.");
    figure(Some(("from", from)), "The tasks due within a minute.")
}

fn day_count() -> Value {
    let from = described("Moment", "The beginning of the day, in UTC.");
    figure(Some(("from", from)), "The tasks due within a day.")
}

fn who_am_i() -> Value {
    let properties = json!({
        "principal": { "type": "string", "description": "The name of the principal." },
        "credential": { "type": "string", "description": "The public id of the token, or \
            `anonymous`." },
        "operate": boolean("True when the caller may see the state of the cluster."),
        "rights": {
            "type": "array",
            "items": reference("Right"),
            "description": "The actions that are allowed on some topic.",
        },
    });
    object(
        "The caller of the request.",
        &["principal", "credential", "operate", "rights"],
        &properties,
    )
}

fn right() -> Value {
    let patterns = |description: &str| {
        let text = json!({ "type": "string" });
        json!({ "type": "array", "items": text, "description": description })
    };
    let properties = json!({
        "action": { "type": "string", "description": "The action, such as `submit`." },
        "topics": patterns("Patterns of topics: a name, a prefix with `*`, or `*`."),
        "except": patterns("Denied patterns. They take precedence."),
    });
    object("The topics of one action.", &["action", "topics", "except"], &properties)
}

fn health() -> Value {
    object(
        "The node is alive, or ready.",
        &["status"],
        &json!({ "status": { "enum": ["alive", "ready"], "description": "The state that was asked \
            for." } }),
    )
}

fn interface() -> Value {
    let properties = json!({
        "openapi": { "const": "3.0.3", "description": "The version of OpenAPI." },
        "info": { "type": "object", "description": "The parts that hold for all operations." },
        "servers": { "type": "array", "description": "The address of a node." },
        "tags": { "type": "array", "description": "Groups of operations." },
        "paths": { "type": "object", "description": "The operations." },
        "components": { "type": "object", "description": "The schemas." },
    });
    object("An OpenAPI document.", &["openapi", "info", "paths", "components"], &properties)
}

fn problem_slug() -> Value {
    let slugs: Vec<&str> = ProblemType::ALL.iter().map(|kind| kind.slug()).collect();
    json!({
        "type": "string",
        "enum": slugs,
        "description": "The last part of the `type` of a problem.",
        "examples": ["too-late"],
    })
}

fn problem() -> Value {
    let types: Vec<String> =
        ProblemType::ALL.iter().map(|kind| format!("{TYPE_PREFIX}{}", kind.slug())).collect();
    let properties = json!({
        "type": {
            "type": "string",
            "enum": types,
            "description": "The type of the problem. Its meaning never changes, so decide by it. \
                            More types may be added. docs/problems.md lists all of them.",
        },
        "title": { "type": "string", "description": "The type in words." },
        "status": {
            "type": "integer",
            "minimum": 400,
            "maximum": 599,
            "description": "The status of the answer.",
        },
        "detail": {
            "type": "string",
            "description": "The error in this request, and a correct value, for people.",
        },
        "field": {
            "type": "string",
            "description": "The wrong field, as a path from the top of the body, such as \
                            `tasks[3].due_at`.",
        },
        "retry_after": {
            "type": "integer",
            "minimum": 1,
            "description": "Seconds to wait before the next attempt; with all 429 and 503.",
        },
        "request_id": {
            "type": "string",
            "description": "The `x-request-id` of the request. The node's log has it at level \
                            debug. Missing in the results of a bulk submit.",
        },
        "verdict": {
            "enum": [
                "too_late", "replaced", "not_found", "not_published_yet", "attempt_too_high",
                "attempt_superseded", "already_failed", "already_finished", "dead", "cancelled",
                "not_tracked"
            ],
            "description": "Why a cancel, a replacement or a consumer's call had no effect.",
        },
        "replaced_by": described("TaskId", "With `replaced`: the newest task in the place of the \
                                            requested one."),
        "current_id": described("TaskId", "With `precondition-failed`: the current task of the \
                                           name. Missing if there is none."),
        "action": { "type": "string", "description": "With `forbidden`: the missing right." },
        "topic": described("TopicName", "With `forbidden`: the topic, as given."),
        "task": described("Task", "The task that could not be stopped or answered for, or that was \
                                   replaced."),
        "missing": {
            "type": "array",
            "items": reference("NotReady"),
            "description": "With `/readyz`: the reasons why the node is not ready.",
        },
    });
    object("A problem (RFC 9457).", &["type", "title", "status", "detail"], &properties)
}

fn missing() -> Value {
    let properties = json!({
        "what": { "type": "string", "description": "The missing part, such as `postgres` or \
            `kafka`." },
        "why": {
            "type": "string",
            "description": "The details; only for callers with the right `operate`.",
        },
    });
    object("A reason why a node is not ready.", &["what"], &properties)
}
