//! Reads the calls of consumers: finish, fail and extend, alone or many at once.

use std::time::Duration;

use serde_json::value::RawValue;

use crate::api::json::times;
use crate::api::problems::problem::Problem;
use crate::api::problems::problem_type::ProblemType;
use crate::api::request::fields::{boolean, count, duration, members, string};
use crate::domain::task::tracking::REASON_MAX;
use crate::domain::{TaskId, TaskName, Timestamp, TopicName, Ttr};
use crate::node::messages::Due;
use crate::node::messages::answers::ConsumerCall;

/// The kind of a consumer's call.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum CallKind {
    Finish,
    Fail,
    Extend,
}

/// The members of all calls. Each kind takes some of them.
pub const FIELDS: [&str; 6] = ["attempt", "retry_in", "retry_at", "final", "reason", "by"];
/// The members of one of many calls: those that name the task and the kind, then [`FIELDS`].
const FIELDS_OF_ITEM: [&str; 10] =
    ["id", "topic", "name", "outcome", "attempt", "retry_in", "retry_at", "final", "reason", "by"];

/// The longest time until a retry that a consumer may ask for, as long as the longest back-off.
pub const RETRY_MAX: Duration = Duration::from_secs(7 * 24 * 60 * 60);

pub type RawMember<'a> = Option<&'a RawValue>;

impl CallKind {
    const fn name(self) -> &'static str {
        match self {
            Self::Finish => "finish",
            Self::Fail => "fail",
            Self::Extend => "extend",
        }
    }

    /// Returns the names of the members that the call takes.
    const fn fields(self) -> &'static [&'static str] {
        match self {
            Self::Finish => &["attempt"],
            Self::Fail => &["attempt", "retry_in", "retry_at", "final", "reason"],
            Self::Extend => &["attempt", "by"],
        }
    }

    fn named(value: &RawValue) -> Result<Self, Problem> {
        let text = string(value, "outcome")?;
        Self::of_name(&text)
            .ok_or_else(|| Problem::invalid("outcome", "expected finish, fail or extend"))
    }

    pub fn of_name(text: &str) -> Option<Self> {
        [Self::Finish, Self::Fail, Self::Extend].into_iter().find(|kind| kind.name() == text)
    }
}

/// Reads the body of a call for one task. `now` is the time of the request, as far as it is known.
pub fn read(kind: CallKind, text: &str, now: Option<Timestamp>) -> Result<ConsumerCall, Problem> {
    call_of(kind, members(text, &FIELDS)?, now)
}

/// The task that one of many calls is about.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum NamedTask {
    Id(TaskId),
    Name(TopicName, TaskName),
}

/// Reads one of many calls.
pub fn read_item(text: &str, now: Option<Timestamp>) -> Result<(NamedTask, ConsumerCall), Problem> {
    let [id, topic, name, outcome, rest @ ..] = members(text, &FIELDS_OF_ITEM)?;
    let task = named_task(id, topic, name)?;
    let missing = |detail| Problem::new(ProblemType::MissingField, detail).at("outcome");
    let outcome =
        outcome.ok_or_else(|| missing("the outcome is required: finish, fail or extend"))?;
    Ok((task, call_of(CallKind::named(outcome)?, rest, now)?))
}

fn named_task(
    id: RawMember<'_>,
    topic: RawMember<'_>,
    name: RawMember<'_>,
) -> Result<NamedTask, Problem> {
    let missing = |field, detail| Err(Problem::new(ProblemType::MissingField, detail).at(field));
    match (id, topic, name) {
        (Some(id), None, None) => {
            let id = string(id, "id")?.parse().map_err(|_no_id| {
                let detail = "this is not the id of a task: ids look like \
                              01934b2e-7d3c-8017-9f2b-6a1c0e4d5b7f";
                Problem::invalid("id", detail)
            })?;
            Ok(NamedTask::Id(id))
        }
        (None, Some(topic), Some(name)) => {
            let topic = TopicName::new(&string(topic, "topic")?)
                .map_err(|error| Problem::invalid("topic", error.to_string()))?;
            let name = TaskName::new(&string(name, "name")?)
                .map_err(|error| Problem::invalid("name", error.to_string()))?;
            Ok(NamedTask::Name(topic, name))
        }
        (Some(_), _, _) => {
            let detail = "give the id of the task, or its topic and name, not both";
            Err(Problem::new(ProblemType::ConflictingFields, detail).at("id"))
        }
        (None, None, None) => missing("id", "the task is required: its id, or its topic and name"),
        (None, None, Some(_)) => missing("topic", "a name needs the topic of the task"),
        (None, Some(_), None) => missing("name", "a topic needs the name of the task"),
    }
}

/// Reads a call out of its members, in the order of [`FIELDS`].
pub fn call_of(
    kind: CallKind,
    given: [RawMember<'_>; 6],
    now: Option<Timestamp>,
) -> Result<ConsumerCall, Problem> {
    let unwanted = FIELDS.iter().zip(given).find_map(|(name, value)| {
        value.filter(|_value| !kind.fields().contains(name)).map(|_value| *name)
    });
    if let Some(name) = unwanted {
        let (kind, fields) = (kind.name(), kind.fields().join(", "));
        let detail = format!("{kind} takes no such field; its fields are {fields}");
        return Err(Problem::new(ProblemType::UnknownField, detail).at(name));
    }
    let [attempt, retry_in, retry_at, is_final, reason, by] = given;
    let attempt = attempt.map(|value| count(value, u16::MAX, "attempt")).transpose()?;
    let missing = || {
        let detail = format!(
            "{} needs attempt, from the header punctual-attempt of the record: without it, a late \
             consumer would answer for the attempt after its own",
            kind.name()
        );
        Problem::new(ProblemType::MissingField, detail).at("attempt")
    };
    let current = || attempt.ok_or_else(missing);
    Ok(match kind {
        CallKind::Finish => ConsumerCall::Finish { attempt },
        CallKind::Fail => {
            let is_final =
                is_final.map(|value| boolean(value, "final")).transpose()?.unwrap_or(false);
            let retry = retry_of(retry_in, retry_at, is_final, now)?;
            let reason = reason.map(reason_of).transpose()?.flatten();
            ConsumerCall::Fail { attempt: current()?, retry, is_final, reason }
        }
        CallKind::Extend => {
            let by = by.map(extension_of).transpose()?;
            ConsumerCall::Extend { attempt: current()?, by }
        }
    })
}

fn retry_of(
    retry_in: RawMember<'_>,
    retry_at: RawMember<'_>,
    is_final: bool,
    now: Option<Timestamp>,
) -> Result<Option<Due>, Problem> {
    let conflict = |field: &'static str, detail: &'static str| {
        Err(Problem::new(ProblemType::ConflictingFields, detail).at(field))
    };
    match (retry_in, retry_at) {
        (Some(_), Some(_)) => conflict("retry_at", "give retry_in or retry_at, not both"),
        (Some(_), None) if is_final => conflict("final", "a final failure has no retry_in"),
        (None, Some(_)) if is_final => conflict("final", "a final failure has no retry_at"),
        (None, None) => Ok(None),
        (Some(value), None) => {
            let span = duration(value, "retry_in")?;
            if span > RETRY_MAX {
                return Err(Problem::invalid("retry_in", "a retry is at most 7 d ahead"));
            }
            Ok(Some(Due::After(span)))
        }
        (None, Some(value)) => {
            let at = times::due_at(value).map_err(|wrong| Problem::invalid("retry_at", wrong))?;
            // While the time is not known, the node changes nothing.
            if now.is_some_and(|now| at.since(now) > RETRY_MAX) {
                let detail = "a retry is at most 7 d ahead";
                return Err(Problem::new(ProblemType::TooFarAhead, detail).at("retry_at"));
            }
            Ok(Some(Due::At(at)))
        }
    }
}

/// Reads the consumer's reason. An empty one is none.
fn reason_of(value: &RawValue) -> Result<Option<Box<str>>, Problem> {
    let reason = string(value, "reason")?;
    if reason.len() > REASON_MAX {
        let detail = format!(
            "a reason has at most {REASON_MAX} bytes of UTF-8, but this one has {}",
            reason.len()
        );
        return Err(Problem::invalid("reason", detail));
    }
    if reason.contains('\0') {
        return Err(Problem::invalid("reason", "a reason may not have the character NUL"));
    }
    Ok((!reason.is_empty()).then(|| reason.into()))
}

fn extension_of(value: &RawValue) -> Result<Duration, Problem> {
    let by = duration(value, "by")?;
    let wrong = |_error| Problem::invalid("by", "an attempt is extended by 1 s to 7 d");
    Ttr::new(by).map(Ttr::as_duration).map_err(wrong)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// 2026-01-01T00:00:00Z.
    fn now() -> Timestamp {
        Timestamp::from_millis(1_767_225_600_000)
    }

    fn call(kind: CallKind, text: &str) -> Result<ConsumerCall, String> {
        read(kind, text, Some(now())).map_err(|problem| {
            let json = serde_json::to_value(problem.json()).unwrap();
            let kind = problem.kind().slug();
            format!("{kind} {}", json["field"].as_str().unwrap_or_default())
        })
    }

    #[test]
    fn each_call_is_read_with_its_members() {
        let retry = |retry| ConsumerCall::Fail { attempt: 2, retry, is_final: false, reason: None };
        for (kind, text, wanted) in [
            (CallKind::Finish, "{}", ConsumerCall::Finish { attempt: None }),
            (CallKind::Finish, r#"{"attempt":3}"#, ConsumerCall::Finish { attempt: Some(3) }),
            (CallKind::Fail, r#"{"attempt":2}"#, retry(None)),
            (CallKind::Fail, r#"{"attempt":2,"reason":""}"#, retry(None)),
            (
                CallKind::Fail,
                r#"{"attempt":2,"retry_in":"7d"}"#,
                retry(Some(Due::After(RETRY_MAX))),
            ),
            (
                CallKind::Fail,
                r#"{"attempt":2,"retry_at":"2026-01-01T00:00:01Z"}"#,
                retry(Some(Due::At(now().plus(Duration::from_secs(1))))),
            ),
            (
                CallKind::Fail,
                r#"{"attempt":2,"final":true,"reason":"no stock"}"#,
                ConsumerCall::Fail {
                    attempt: 2,
                    retry: None,
                    is_final: true,
                    reason: Some("no stock".into()),
                },
            ),
            (CallKind::Extend, r#"{"attempt":1}"#, ConsumerCall::Extend { attempt: 1, by: None }),
            (
                CallKind::Extend,
                r#"{"attempt":1,"by":"1m"}"#,
                ConsumerCall::Extend { attempt: 1, by: Some(Duration::from_secs(60)) },
            ),
        ] {
            assert_eq!(call(kind, text), Ok(wanted), "{kind:?} {text}");
        }
    }

    #[test]
    fn a_wrong_call_is_refused_with_the_field() {
        use CallKind::{Extend, Fail, Finish};
        let long = format!(r#"{{"attempt":1,"reason":"{}"}}"#, "x".repeat(REASON_MAX + 1));
        for (kind, text, wanted) in [
            (Finish, r#"{"attempts":1}"#, "unknown-field attempts"),
            (Finish, r#"{"reason":"a"}"#, "unknown-field reason"),
            (Finish, r#"{"attempt":0}"#, "invalid-value attempt"),
            (Finish, r#"{"attempt":65536}"#, "invalid-value attempt"),
            (Finish, r#"{"attempt":"1"}"#, "invalid-value attempt"),
            (Finish, r#"{"attempt":1,"attempt":1}"#, "duplicate-field attempt"),
            (Fail, "{}", "missing-field attempt"),
            (Extend, "{}", "missing-field attempt"),
            (Extend, r#"{"attempt":1,"retry_in":1}"#, "unknown-field retry_in"),
            (Extend, r#"{"attempt":1,"by":"999ms"}"#, "invalid-value by"),
            (Extend, r#"{"attempt":1,"by":"8d"}"#, "invalid-value by"),
            (Fail, r#"{"attempt":1,"by":"1s"}"#, "unknown-field by"),
            (Fail, r#"{"attempt":1,"retry_in":"8d"}"#, "invalid-value retry_in"),
            (Fail, r#"{"attempt":1,"retry_in":"soon"}"#, "invalid-value retry_in"),
            (Fail, r#"{"attempt":1,"retry_at":"soon"}"#, "invalid-value retry_at"),
            (Fail, r#"{"attempt":1,"retry_at":"2026-01-09T00:00:00Z"}"#, "too-far-ahead retry_at"),
            (
                Fail,
                r#"{"attempt":1,"retry_in":1,"retry_at":"2026-01-01T00:00:01Z"}"#,
                "conflicting-fields retry_at",
            ),
            (Fail, r#"{"attempt":1,"retry_in":1,"final":true}"#, "conflicting-fields final"),
            (Fail, r#"{"attempt":1,"final":"yes"}"#, "invalid-value final"),
            (Fail, r#"{"attempt":1,"reason":"a\u0000"}"#, "invalid-value reason"),
            (Fail, long.as_str(), "invalid-value reason"),
        ] {
            assert_eq!(call(kind, text), Err(wanted.to_owned()), "{kind:?} {text}");
        }
    }
}
