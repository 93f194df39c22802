//! The schemas of tracked tasks: the submitter's terms, the consumer's answers, and the verdicts.

use serde_json::{Value, json};

use super::parts::{described, object, reference};
use crate::api::request::fields::Array;
use crate::domain::task::retry_policy::{ATTEMPTS_MAX, FACTOR_MAX};
use crate::domain::task::tracking::REASON_MAX;

const SECOND_MILLIS: u32 = 1_000;
const WEEK_MILLIS: u32 = 7 * 24 * 60 * 60 * 1_000;

pub fn all() -> Vec<(&'static str, Value)> {
    vec![
        ("TimeToRun", time_to_run()),
        ("Wait", wait()),
        ("Retry", retry()),
        ("Finish", call("The work is done.", &["attempt"], &[])),
        ("Fail", fail()),
        ("Extend", call("The work takes longer.", &["attempt", "by"], &["attempt"])),
        ("Outcomes", outcomes()),
        ("Outcome", outcome()),
        ("Attempt", attempt()),
        ("AttemptReceipt", attempt_receipt()),
        ("Heeded", heeded()),
        ("OutcomesAnswer", outcomes_answer()),
        ("OutcomeResult", outcome_result()),
    ]
}

/// Returns the schema of a duration from `millis_min` to a week.
fn span(description: &str, (format, millis_min): (&str, u32), examples: &Value) -> Value {
    json!({
        "description": description,
        "oneOf": [
            {
                "type": "string",
                "format": format,
                "maxLength": 200,
                "description": "`30s`, `1h 30m`, `PT30M`. Answers are in this form.",
            },
            {
                "type": "integer",
                "minimum": millis_min,
                "maximum": WEEK_MILLIS,
                "description": "Milliseconds.",
            },
        ],
        "examples": examples,
    })
}

fn time_to_run() -> Value {
    span(
        "How long a consumer has for an attempt, from 1 s to 7 days: in units, as ISO 8601, or in \
         whole milliseconds.",
        ("time-to-run", SECOND_MILLIS),
        &json!(["30s", "PT5M", 90_000]),
    )
}

fn wait() -> Value {
    span(
        "A wait of up to 7 days: in units, as ISO 8601, or in whole milliseconds.",
        ("wait", 0),
        &json!(["0s", "10m", 90_000]),
    )
}

fn retry() -> Value {
    json!({
        "type": "object",
        "description": "How a task is tried again that its consumer fails, or does not finish in \
                        time. The wait after attempt n is `backoff_min` times `backoff_factor` to \
                        the power of n-1, at most `backoff_max`. A wait over 1 s is shortened at \
                        random by up to a quarter. After a failure it is at least 1 s.",
        "properties": {
            "attempts_max": {
                "type": "integer",
                "minimum": 1,
                "maximum": ATTEMPTS_MAX,
                "default": 16,
                "description": "The number of attempts after which the task is dead.",
            },
            "backoff_min": described("Wait", "The wait after the first attempt; 0s by default."),
            "backoff_max": described("Wait", "The longest wait; 1h by default. It may not be below \
                                              `backoff_min`."),
            "backoff_factor": {
                "type": "integer",
                "minimum": 1,
                "maximum": FACTOR_MAX,
                "default": 2,
                "description": "By how much each wait is longer than the one before.",
            },
            "dead_topic": described("TopicName", "The topic that gets the record of a task whose \
                                                  last attempt has failed, or that failed for \
                                                  good. It must exist, it is not that of the \
                                                  task, and the caller needs `submit` on it. None \
                                                  by default."),
        },
        "additionalProperties": false,
    })
}

/// Returns the schema of one member of a call.
fn property(name: &str) -> Value {
    match name {
        "attempt" => json!({
            "type": "integer",
            "minimum": 1,
            "maximum": u16::MAX,
            "description": "The attempt, from the header `punctual-attempt` of the record. A \
                            finish may leave it out.",
        }),
        "retry_in" => {
            described("Wait", "The wait until the next attempt, instead of the back-off.")
        }
        "retry_at" => described(
            "DueAt",
            "When the next attempt is due, instead of the back-off; \
                                          at most 7 days ahead.",
        ),
        "final" => json!({
            "type": "boolean",
            "description": "True: no further attempt. The task is dead.",
        }),
        "reason" => json!({
            "type": "string",
            "maxLength": REASON_MAX,
            "pattern": "^[^\\u0000]*$",
            "description": "Why the attempt has failed: at most 1024 bytes of UTF-8, without NUL. \
                            `attempts` of the task shows it to callers with `read-payload`.",
        }),
        "by" => described(
            "TimeToRun",
            "The new deadline is now plus this time; the time to run of \
                                        the task by default.",
        ),
        _ => json!({}),
    }
}

fn call(description: &str, members: &[&str], required: &[&str]) -> Value {
    let properties: serde_json::Map<String, Value> =
        members.iter().map(|name| ((*name).to_owned(), property(name))).collect();
    let mut schema = json!({
        "type": "object",
        "description": description,
        "properties": properties,
        "additionalProperties": false,
    });
    if !required.is_empty() {
        schema["required"] = json!(required);
    }
    schema
}

/// Refuses a retry beside another one, and beside `final`.
fn one_retry() -> Value {
    json!([
        { "not": { "required": ["retry_in", "retry_at"] } },
        {
            "not": {
                "required": ["final"],
                "properties": { "final": { "const": true } },
                "anyOf": [{ "required": ["retry_in"] }, { "required": ["retry_at"] }],
            },
        },
    ])
}

fn fail() -> Value {
    let members = ["attempt", "retry_in", "retry_at", "final", "reason"];
    let mut schema = call("The attempt has failed.", &members, &["attempt"]);
    schema["allOf"] = one_retry();
    schema
}

fn outcomes() -> Value {
    json!({
        "type": "object",
        "description": "Many outcomes at once. Each gets its own result.",
        "required": ["outcomes"],
        "properties": {
            "outcomes": {
                "type": "array",
                "maxItems": Array::ITEMS_MAX,
                "items": reference("Outcome"),
                "description": "The outcomes. The results have the same order.",
            },
        },
        "additionalProperties": false,
    })
}

fn outcome() -> Value {
    let members = ["attempt", "retry_in", "retry_at", "final", "reason", "by"];
    let mut schema = call("", &members, &["outcome"]);
    schema["description"] = json!(
        "A finish, a fail or an extend of one task, which is named by `id`, or by `topic` and \
         `name`. The other members are those of that call."
    );
    schema["properties"]["id"] = reference("TaskId");
    schema["properties"]["topic"] = reference("TopicName");
    schema["properties"]["name"] = reference("TaskName");
    schema["properties"]["outcome"] = json!({
        "enum": ["finish", "fail", "extend"],
        "description": "The call.",
    });
    let without = |names: &[&str]| -> Value {
        names
            .iter()
            .map(|name| ((*name).to_owned(), json!(false)))
            .collect::<serde_json::Map<_, _>>()
            .into()
    };
    let kind = |name: &str, required: &[&str], names: &[&str]| {
        let mut properties = without(names);
        properties["outcome"] = json!({ "const": name });
        json!({ "required": required, "properties": properties })
    };
    schema["allOf"] = one_retry();
    if let Some(rules) = schema["allOf"].as_array_mut() {
        rules.push(json!({
            "oneOf": [
                { "required": ["id"], "properties": without(&["topic", "name"]) },
                { "required": ["topic", "name"], "properties": without(&["id"]) },
            ],
        }));
        rules.push(json!({
            "oneOf": [
                kind("finish", &[], &["retry_in", "retry_at", "final", "reason", "by"]),
                kind("fail", &["attempt"], &["by"]),
                kind("extend", &["attempt"], &["retry_in", "retry_at", "final", "reason"]),
            ],
        }));
    }
    schema
}

fn attempt() -> Value {
    let properties = json!({
        "attempt": { "type": "integer", "minimum": 1, "description": "The number of the attempt." },
        "outcome": {
            "enum": ["published", "finished", "failed", "extended"],
            "description": "What became of it: its record was published, or its consumer said so.",
        },
        "at": described("Moment", "When."),
        "receipt": reference("AttemptReceipt"),
        "reason": {
            "type": "string",
            "description": "The consumer's reason for a failure; only for callers with the right \
                            `read-payload`.",
        },
    });
    object("One event of an attempt.", &["attempt", "outcome", "at"], &properties)
}

fn attempt_receipt() -> Value {
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
    });
    object(
        "The place of the record of an attempt.",
        &["partition", "offset", "published_at"],
        &properties,
    )
}

fn verdict() -> Value {
    json!({
        "enum": ["finished", "retrying", "dead", "extended", "noted"],
        "description": "The effect of the call. `noted`: it takes effect once the node knows that \
                        the record was published.",
    })
}

fn in_flight() -> Value {
    json!({ "type": "boolean", "description": "True if the task is finished, and an attempt that \
        was claimed before may still reach its topic." })
}

fn superseded() -> Value {
    json!({ "type": "boolean", "description": "True if a later attempt was made before the finish \
        of this one." })
}

fn heeded() -> Value {
    let properties = json!({
        "verdict": verdict(),
        "in_flight": in_flight(),
        "superseded": superseded(),
        "task": described("Task", "The task, after the call."),
    });
    object(
        "A consumer's call that took effect, now or before.",
        &["verdict", "in_flight", "superseded", "task"],
        &properties,
    )
}

fn outcomes_answer() -> Value {
    let results = json!({
        "type": "array",
        "items": reference("OutcomeResult"),
        "description": "One result per outcome, in order.",
    });
    object("The results of many outcomes.", &["results"], &json!({ "results": results }))
}

fn outcome_result() -> Value {
    let properties = json!({
        "status": {
            "type": "integer",
            "description": "The status that the outcome alone would have got.",
        },
        "verdict": { "type": "string", "description": "The verdict, also that of the problem." },
        "in_flight": in_flight(),
        "superseded": superseded(),
        "task": described("Task", "With 200: the task, without headers, payload and attempts."),
        "problem": described("Problem", "With every other status."),
    });
    let mut schema = object("The result of one outcome.", &["status"], &properties);
    schema["oneOf"] = json!([{ "required": ["task"] }, { "required": ["problem"] }]);
    schema
}
