//! The schemas of schedules: what [`crate::api::request::draft::schedule`] reads and
//! [`crate::api::json::schedules`] writes.

use serde_json::{Map, Value, json};

use super::parts::{described, object, reference};
use super::requests::record_property;
use crate::api::handlers::schedules::NEXT_MAX;
use crate::api::request::draft::schedule::FIELDS;
use crate::domain::schedule::backfill::RUNS_MAX;
use crate::domain::schedule::plan::MISSED_MAX;
use crate::domain::schedule::timing::EXCLUDED_MAX;

pub fn all() -> Vec<(&'static str, Value)> {
    vec![
        ("ScheduleRequest", request()),
        ("DaylightSaving", daylight_saving()),
        ("MissedRuns", missed()),
        ("Schedule", schedule()),
        ("Schedules", schedules()),
        ("BackfillRequest", backfill_request()),
        ("Backfill", backfill()),
        (
            "ScheduleName",
            json!({
                "type": "string",
                "minLength": 1,
                "maxLength": 200,
                "pattern": "^[^\\u0000]+$",
                "description": "The name of a schedule, unique within its topic.",
                "examples": ["nightly"],
            }),
        ),
        (
            "RevisionTag",
            json!({
                "type": "string",
                "pattern": "^(\\*|\"[0-9]{1,19}\")$",
                "description": "The revision of a schedule in quotes, or `*`.",
                "examples": ["\"3\""],
            }),
        ),
        ("AnyRevision", json!({ "type": "string", "enum": ["*"], "description": "Any revision." })),
        (
            "NextCount",
            json!({
                "type": "integer",
                "minimum": 1,
                "maximum": NEXT_MAX,
                "description": "A number of upcoming runs.",
            }),
        ),
        ("DryRun", json!({ "type": "boolean", "description": "True: change nothing." })),
    ]
}

/// Returns the schema of one member that requests and answers have.
fn property(name: &str) -> Value {
    match name {
        "cron" => json!({
            "type": "string",
            "description": "Five fields: minute, hour, day of the month, month, day of the week, \
                            with names, lists, ranges, steps, `L`, `W` and `#`; or `@hourly`, \
                            `@daily`, `@weekly`, `@monthly`, `@yearly`. If both fields for days \
                            are restricted, either is enough.",
            "examples": ["30 2 * * 1-5"],
        }),
        "seconds" => json!({
            "type": "boolean",
            "description": "True: `cron` has six fields, the first one for seconds.",
        }),
        "time_zone" => json!({
            "type": "string",
            "description": "The zone of `cron`, by its IANA name, such as `Europe/Berlin`, or \
                            `UTC`. Abbreviations and fixed offsets are refused.",
            "examples": ["Europe/Berlin"],
        }),
        "dst" => reference("DaylightSaving"),
        "every" => described(
            "Delay",
            "The period, at least 1 s, instead of `cron`. `24h` is not \
                                       daily: it counts the time that passes.",
        ),
        "phase" => described(
            "Delay",
            "Moves the instants of `every`, which count from the epoch. \
                                       Less than the period.",
        ),
        "starts_at" => described("DueAt", "No run before this time."),
        "ends_at" => described("DueAt", "No run at or after this time."),
        "exclude" => json!({
            "type": "array",
            "maxItems": EXCLUDED_MAX,
            "items": { "type": "string", "format": "date" },
            "description": "Days without runs, in the zone of `cron`, or in UTC.",
            "examples": [["2026-12-25"]],
        }),
        "runs_max" => json!({
            "type": "integer",
            "format": "int64",
            "minimum": 1,
            "maximum": 1_000_000_000_000_i64,
            "description": "The schedule ends after this many runs.",
        }),
        "missed" => reference("MissedRuns"),
        "overlap" => json!({
            "enum": ["allow", "skip"],
            "default": "allow",
            "description": "`skip`: no run while one before is not finished, decided one to two \
                            seconds before the instant. Needs `ttr`.",
        }),
        "spread" => described(
            "Delay",
            "Each run is due later than its instant, by a part of this that the name of the \
             schedule decides: `shift`. At most 1 d.",
        ),
        "paused" => json!({
            "type": "boolean",
            "description": "A paused schedule makes no runs. Missing means false, also for a \
                            schedule that is paused.",
        }),
        "note" => json!({
            "type": "string",
            "maxLength": 1024,
            "description": "A text for people.",
        }),
        other => record_property(other),
    }
}

fn request() -> Value {
    let properties: Map<String, Value> =
        FIELDS.iter().map(|name| ((*name).to_owned(), property(name))).collect();
    json!({
        "type": "object",
        "description": "When the schedule runs, and the record that each run publishes. Give one \
                        of `cron` (with `time_zone`) and `every`, and a payload as in \
                        `TaskRequest`.",
        "properties": properties,
        "additionalProperties": false,
        "oneOf": [{ "required": ["cron", "time_zone"] }, { "required": ["every"] }],
        "dependentRequired": { "retry": ["ttr"] },
    })
}

fn daylight_saving() -> Value {
    json!({
        "type": "object",
        "description": "What becomes of local times when the clocks change.",
        "properties": {
            "gap": {
                "enum": ["skip", "shift"],
                "default": "shift",
                "description": "A local time that does not exist: no run, or a run at the first \
                                moment after the gap.",
            },
            "overlap": {
                "enum": ["first", "both"],
                "default": "first",
                "description": "A local time that occurs twice: a run at the first, or at both.",
            },
        },
        "additionalProperties": false,
    })
}

fn missed() -> Value {
    json!({
        "type": "object",
        "description": "Runs for instants that passed more than 10 s ago without a run, after an \
                        outage or a pause.",
        "properties": {
            "policy": {
                "enum": ["none", "last", "all"],
                "default": "last",
                "description": "No run; one for the last of them; or one for each.",
            },
            "within": described("Delay", "Only for instants at most this long ago. With `all`, 1 h \
                                          unless given; with `last`, any."),
            "count_max": {
                "type": "integer",
                "minimum": 1,
                "maximum": MISSED_MAX,
                "description": "With `all`: the most runs, for the latest instants; 100 unless \
                                given.",
            },
        },
        "additionalProperties": false,
    })
}

fn schedule() -> Value {
    let mut properties: Map<String, Value> = FIELDS
        .iter()
        .map(|name| {
            let schema = match *name {
                "every" | "phase" | "spread" => json!({
                    "type": "string",
                    "description": "In units, such as `15m`.",
                }),
                "starts_at" | "ends_at" => described("Moment", "As requested."),
                "ttr" => json!({ "type": "string", "description": "In units, such as `30s`." }),
                "tombstone" => {
                    json!({ "const": true, "description": "The record's value is null." })
                }
                name => property(name),
            };
            ((*name).to_owned(), schema)
        })
        .collect();
    let more = json!({
        "topic": reference("TopicName"),
        "name": reference("ScheduleName"),
        "revision": {
            "type": "integer",
            "format": "int64",
            "minimum": 1,
            "description": "Counts the changes. In quotes, it is the `ETag`.",
        },
        "shift": {
            "type": "string",
            "description": "How much later than its instant each run is due. Missing without \
                            `spread`.",
        },
        "tzdata": {
            "type": "string",
            "description": "The version of the time zone rules that the next run comes from.",
            "examples": ["2026a"],
        },
        "words": { "type": "string", "description": "The expression of `cron` in words." },
        "runs_made": {
            "type": "integer",
            "format": "int64",
            "minimum": 0,
            "description": "The number of runs that were made and not withdrawn.",
        },
        "next_run_at": described("Moment", "The next run. Missing when the schedule is paused or \
                                            has ended."),
        "next": {
            "type": "array",
            "items": reference("Moment"),
            "description": "The next runs, if asked for. Empty when the schedule is paused.",
        },
        "redacted": { "const": true, "description": "Key, headers and payload are left out: the \
            caller lacks `read-payload`." },
    });
    properties.extend(more.as_object().cloned().unwrap_or_default());
    object(
        "A schedule. A list leaves out headers and payloads.",
        &["topic", "name", "revision", "missed", "overlap", "paused", "runs_made"],
        &Value::Object(properties),
    )
}

fn schedules() -> Value {
    object(
        "A page of schedules, in the order of their names.",
        &["schedules", "next_after"],
        &json!({
            "schedules": {
                "type": "array",
                "items": reference("Schedule"),
                "description": "The schedules.",
            },
            "next_after": {
                "oneOf": [reference("ScheduleName"), { "type": "null" }],
                "description": "The parameter `after` of the next page; null at the end.",
            },
        }),
    )
}

fn backfill_request() -> Value {
    json!({
        "type": "object",
        "description": "A range of the past, with at most 1,000 runs, and at most 16 MiB of their \
                        records together: `from` and `to`, or the `last` hours or days.",
        "properties": {
            "from": described("DueAt", "The beginning, at most seven days ago."),
            "to": described("DueAt", "The end, exclusive, and not in the future."),
            "last": described("Delay", "The range is this long, at most 7 d, and ends now."),
            "dry_run": { "type": "boolean", "description": "True: only count." },
        },
        "oneOf": [{ "required": ["from", "to"] }, { "required": ["last"] }],
        "additionalProperties": false,
    })
}

fn backfill() -> Value {
    let count = |what: &str| json!({ "type": "integer", "format": "int64", "minimum": 0, "description": what });
    object(
        "The runs of a range of the past.",
        &["dry_run", "made", "already_made", "runs"],
        &json!({
            "dry_run": { "type": "boolean", "description": "As requested." },
            "made": count("The number of runs that were made, or would be."),
            "already_made": count("The number of runs that had been made before."),
            "runs": {
                "type": "array",
                "items": reference("Moment"),
                "maxItems": RUNS_MAX,
                "description": "The instants of the schedule in the range.",
            },
        }),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_schema_has_the_fields_that_are_read() {
        let properties = request()["properties"].as_object().cloned().unwrap();
        assert_eq!(properties.len(), FIELDS.len());
        assert!(properties.values().all(|schema| *schema != json!({})), "{properties:?}");
    }
}
