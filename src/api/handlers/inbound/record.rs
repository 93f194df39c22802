//! Reads records of intake topics as requests.
//!
//! ```text
//! punctual-topic                       where to publish
//! punctual-due-at or punctual-delay    when; a delay counts from the timestamp of the record
//! punctual-op, punctual-name           submit (when absent), replace or cancel; by name
//! punctual-ttr, punctual-retry         as the members of a task
//! punctual-expires-at                  from when on the task is not published
//!
//! punctual-op                          or finish, fail, extend: the answer of a consumer
//! punctual-id, or -topic and -name     its task
//! punctual-attempt, -retry-in, -retry-at, -final, -reason, -by    as the members of an answer
//!
//! scheduler-target-topic, scheduler-epoch, scheduler-target-key    the schedulers of etf1 and Sky
//! ```
//!
//! The key, the value and all other headers are those of the task. A record of the other schedulers
//! replaces the task with the key of the record as its name, or without a value cancels it.

mod given;

use serde_json::value::{RawValue, to_raw_value};

use self::given::{
    ANSWERS, DELAY, DUE_AT, EPOCH, EXPIRES_AT, Given, ID, NAME, OPERATION, RETRY, TARGET_TOPIC,
    TOPIC, TTR, first_given, unknown_header,
};
use super::{Asked, InboundRequest, Reader, Refused};
use crate::api::handlers::feedback::call::{CallKind, FIELDS, NamedTask, RETRY_MAX, call_of};
use crate::api::json::times;
use crate::api::problems::problem::Problem;
use crate::api::problems::problem_type::ProblemType;
use crate::api::problems::refusal::FieldOrigin;
use crate::api::request::fields::refuse_internal;
use crate::api::request::tracking;
use crate::domain::task::intake_record::IntakeRecord;
use crate::domain::{Expiry, ExpiryTime, Headers, Record, TaskName, Timestamp, TopicName};
use crate::node::messages::answers::ConsumerCall;
use crate::node::messages::{Draft, Due};

/// Reads a record.
pub fn read(record: &IntakeRecord, reader: Reader<'_>) -> Result<InboundRequest, Refused> {
    reader.permit(asked_by(record, reader.arrived_at))
}

fn asked_by(record: &IntakeRecord, now: Option<Timestamp>) -> Result<Asked, Problem> {
    let given = Given::of(record)?;
    if let Some(kind) = given.operation.and_then(CallKind::of_name) {
        return answer_of(record, &given, (kind, now));
    }
    let of_answers = [(ID, given.id)].into_iter().chain(ANSWERS.into_iter().zip(given.answer));
    if let Some(name) = first_given(of_answers) {
        return Err(unknown_header(name));
    }
    if given.target_topic.is_some() || given.epoch.is_some() {
        return asked_of_scheduler(record, given);
    }
    let topic = topic_of(given.topic, TOPIC)?;
    let name = given.name.map(|name| name_of(name, NAME)).transpose()?;
    let needed = |name: Option<TaskName>| {
        let detail = "a replacement and a cancel need the name of the task";
        name.ok_or_else(|| Problem::new(ProblemType::MissingField, detail).at(NAME))
    };
    let draft = |name| draft_of(record, &given, topic.clone(), name);
    match given.operation {
        None | Some("submit") => {
            let (draft, origin) = draft(name)?;
            Ok(Asked::Submit(draft, origin))
        }
        Some("replace") => {
            let (draft, origin) = draft(Some(needed(name)?))?;
            Ok(Asked::Replace(draft, origin))
        }
        Some("cancel") => Ok(Asked::Cancel(topic.clone(), needed(name)?)),
        Some(_) => {
            let detail = "expected submit, replace, cancel, finish, fail or extend";
            Err(Problem::invalid(OPERATION, detail))
        }
    }
}

/// Reads the answer of a consumer. A `retry_in` counts from the timestamp of the record, like a
/// delay.
fn answer_of(
    record: &IntakeRecord,
    given: &Given<'_>,
    (kind, now): (CallKind, Option<Timestamp>),
) -> Result<Asked, Problem> {
    if let Some(name) = given.first_of_tasks() {
        return Err(unknown_header(name));
    }
    let task = match (given.id, given.topic, given.name) {
        (Some(id), None, None) => {
            let wrong = |_no_id| {
                let detail = "this is not the id of a task: the header punctual-task-id of its \
                              record has it";
                Problem::invalid(ID, detail)
            };
            NamedTask::Id(id.parse().map_err(wrong)?)
        }
        (None, topic, Some(name)) => NamedTask::Name(topic_of(topic, TOPIC)?, name_of(name, NAME)?),
        (Some(_), _, _) => {
            let detail = format!("give {ID}, or {TOPIC} and {NAME}, not both");
            return Err(Problem::new(ProblemType::ConflictingFields, detail).at(ID));
        }
        (None, _, None) => {
            let detail = format!("the task is required: {ID}, or {TOPIC} and {NAME}");
            return Err(Problem::new(ProblemType::MissingField, detail).at(ID));
        }
    };
    let mut members: [Option<Box<RawValue>>; ANSWERS.len()] = Default::default();
    for ((member, value), (header, field)) in
        members.iter_mut().zip(given.answer).zip(ANSWERS.into_iter().zip(FIELDS))
    {
        *member = value.map(|value| member_of(value, header, field)).transpose()?;
    }
    let members = members.each_ref().map(|member| member.as_deref());
    let call = match call_of(kind, members, now).map_err(in_headers)? {
        ConsumerCall::Fail { attempt, retry: Some(Due::After(span)), is_final, reason } => {
            // The timestamp is the producer's, and may be far ahead.
            let at = record.at.plus(span);
            let at = now.map_or(at, |now| at.min(now.plus(RETRY_MAX)));
            let retry = Some(Due::At(at.ceil_millis()));
            ConsumerCall::Fail { attempt, retry, is_final, reason }
        }
        call => call,
    };
    Ok(Asked::Answer(task, call))
}

/// Returns the value of JSON that a member of an answer is in REST.
fn member_of(
    value: &str,
    header: &'static str,
    field: &'static str,
) -> Result<Box<RawValue>, Problem> {
    let wrong = |error: serde_json::Error| Problem::invalid(header, error.to_string());
    match (field, value) {
        ("final", "true" | "false") => RawValue::from_string(value.to_owned()).map_err(wrong),
        ("reason", reason) => to_raw_value(reason).map_err(wrong),
        _ => span(value, header),
    }
}

/// Names the header instead of the member of REST.
fn in_headers(problem: Problem) -> Problem {
    let place = FIELDS.iter().position(|field| problem.field() == Some(*field));
    match place {
        Some(place) => problem.at(ANSWERS[place]),
        None => problem,
    }
}

fn draft_of(
    record: &IntakeRecord,
    given: &Given<'_>,
    topic: TopicName,
    name: Option<TaskName>,
) -> Result<(Draft, FieldOrigin), Problem> {
    refuse_internal(&topic, TOPIC)?;
    let (due_at, origin) = due_of(record, given)?;
    if record.payload.is_none() && record.key.is_none() {
        let detail = "a tombstone, a record without a value, needs a key";
        return Err(Problem::new(ProblemType::MissingField, detail).at("key"));
    }
    let ttr = given.ttr.map(|ttr| span(ttr, TTR)).transpose()?;
    let retry = given.retry.map(|retry| RawValue::from_string(retry.to_owned()));
    let retry = retry.transpose().map_err(|error| Problem::invalid(RETRY, error.to_string()))?;
    let tracking = tracking::of(ttr.as_deref(), retry.as_deref(), &topic)?.map(Box::new);
    let expiry = given.expires_at.map(expiry_of).transpose()?;
    let record = Record {
        topic,
        key: record.key.clone(),
        payload: record.payload.clone(),
        headers: headers_of(given)?,
    };
    let draft = Draft { record, name, due: Due::At(due_at), tracking, expiry, spread: None };
    Ok((draft, FieldOrigin { due: origin, payload: "value" }))
}

fn expiry_of(expires_at: &str) -> Result<Expiry, Problem> {
    let at = times::due_at_of_parameter(expires_at);
    let at = at.map_err(|wrong| Problem::invalid(EXPIRES_AT, wrong))?;
    Ok(Expiry::new(ExpiryTime::At(at)))
}

fn due_of(record: &IntakeRecord, given: &Given<'_>) -> Result<(Timestamp, &'static str), Problem> {
    match (given.due_at, given.delay) {
        (Some(due_at), None) => {
            let at = times::due_at_of_parameter(due_at);
            Ok((at.map_err(|wrong| Problem::invalid(DUE_AT, wrong))?, DUE_AT))
        }
        (None, Some(delay)) => {
            let delay = times::delay(&span(delay, DELAY)?);
            let delay = delay.map_err(|wrong| Problem::invalid(DELAY, wrong))?;
            Ok((record.at.plus(delay).ceil_millis(), DELAY))
        }
        (None, None) => {
            let detail = format!("one of {DUE_AT} and {DELAY} is required");
            Err(Problem::new(ProblemType::MissingField, detail).at(DUE_AT))
        }
        (Some(_), Some(_)) => {
            let detail = format!("give {DUE_AT} or {DELAY}, not both");
            Err(Problem::new(ProblemType::ConflictingFields, detail).at(DELAY))
        }
    }
}

/// Returns the value of JSON that a number or a span of time is in REST: a number, or text.
fn span(text: &str, name: &'static str) -> Result<Box<RawValue>, Problem> {
    let text = text.trim();
    let is_number = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    let number = text.trim_start_matches('0');
    let value = match is_number {
        true if number.is_empty() => RawValue::from_string("0".to_owned()),
        true => RawValue::from_string(number.to_owned()),
        false => to_raw_value(text),
    };
    value.map_err(|error| Problem::invalid(name, error.to_string()))
}

fn headers_of(given: &Given<'_>) -> Result<Headers, Problem> {
    Headers::new(given.own.iter().copied())
        .map_err(|error| Problem::invalid("headers", error.to_string()))
}

fn topic_of(topic: Option<&str>, name: &'static str) -> Result<TopicName, Problem> {
    let Some(topic) = topic else {
        let detail = "the name of the Kafka topic to publish to is required";
        return Err(Problem::new(ProblemType::MissingField, detail).at(name));
    };
    TopicName::new(topic).map_err(|error| Problem::invalid(name, error.to_string()))
}

fn name_of(text: &str, field: &'static str) -> Result<TaskName, Problem> {
    TaskName::new(text).map_err(|error| Problem::invalid(field, error.to_string()))
}

/// Reads a record of another scheduler. Its key is the name of the task.
fn asked_of_scheduler(record: &IntakeRecord, given: Given<'_>) -> Result<Asked, Problem> {
    let topic = topic_of(given.target_topic, TARGET_TOPIC)?;
    refuse_internal(&topic, TARGET_TOPIC)?;
    let key = record.key.as_deref().and_then(|key| std::str::from_utf8(key).ok());
    let Some(key) = key else {
        let detail = "the key is the name of the task, and must be text in UTF-8";
        return Err(Problem::new(ProblemType::MissingField, detail).at("key"));
    };
    let name = name_of(key, "key")?;
    let Some(payload) = &record.payload else {
        return Ok(Asked::Cancel(topic, name));
    };
    let Some(epoch) = given.epoch else {
        let detail = "the due time in seconds since the epoch is required";
        return Err(Problem::new(ProblemType::MissingField, detail).at(EPOCH));
    };
    let seconds: Option<i64> = epoch.trim().parse().ok();
    let millis = seconds.and_then(|seconds| seconds.checked_mul(1000));
    // These are the checks of a due time in milliseconds.
    let due_at = match millis.filter(|millis| *millis >= 0) {
        Some(millis) => times::due_at_of_parameter(&millis.to_string()),
        None => Err("expected whole seconds since the epoch".to_owned()),
    };
    let due_at = due_at.map_err(|wrong| Problem::invalid(EPOCH, wrong))?;
    let task = Record {
        topic,
        key: given.target_key.map(Into::into),
        payload: Some(payload.clone()),
        headers: headers_of(&given)?,
    };
    let draft = Draft {
        record: task,
        name: Some(name),
        due: Due::At(due_at),
        tracking: None,
        expiry: None,
        spread: None,
    };
    Ok(Asked::Replace(draft, FieldOrigin { due: EPOCH, payload: "value" }))
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::access::pattern::Pattern;
    use crate::access::rights::{Rights, Rule};
    use crate::access::{Action, Caller, Policy};
    use crate::api::handlers::inbound::{AnsweredTask, caller_of};
    use crate::domain::task::headers;
    use crate::domain::task::intake_record::tests::record;

    const NOW: Timestamp = Timestamp::from_micros(1_896_082_200_000_000);

    const ID_OF_1: (&str, &str) = ("punctual-id", "01934b2e-7d3c-8017-9f2b-6a1c0e4d5b7f");
    const FAIL_1: (&str, &str) = ("punctual-op", "fail");
    const ATTEMPT_1: (&str, &str) = ("punctual-attempt", "1");

    fn read_as(record: &IntakeRecord, caller: &Caller) -> Result<InboundRequest, Refused> {
        read(record, Reader { policy: &Policy::open(), caller, arrived_at: Some(NOW) })
    }

    fn asked(headers: &[(&str, &str)]) -> Result<InboundRequest, Refused> {
        read_as(&record(7, headers), &caller_of(&Policy::open(), "in").unwrap())
    }

    #[test]
    fn a_record_is_the_task_that_its_headers_describe() {
        let request = asked(&[
            ("trace", "1"),
            ("punctual-topic", "orders"),
            ("punctual-delay", "1s"),
            ("punctual-name", "order-17"),
            ("punctual-ttr", "030000"),
            ("punctual-retry", "{\"attempts_max\": 3}"),
            ("punctual-expires-at", "1896082200000"),
            ("punctual-rejected-reason", "of an earlier time"),
            ("trace", "2"),
        ]);
        let Ok(InboundRequest::Submit(draft)) = request else { panic!("{request:?}") };
        let draft = draft.draft();
        assert_eq!(draft.due, Due::At(Timestamp::from_millis(1_001_000)), "from its timestamp");
        assert_eq!(draft.name.as_ref().map(TaskName::as_str), Some("order-17"));
        assert_eq!(draft.record.key.as_deref(), Some(b"k".as_slice()));
        assert_eq!(draft.record.payload.as_deref(), Some(b"{}".as_slice()));
        let own: Vec<_> = headers::decode(draft.record.headers.as_bytes()).collect();
        assert_eq!(own, [("trace", Some(b"1".as_slice())), ("trace", Some(b"2"))]);
        let tracking = draft.tracking.as_ref().unwrap();
        assert_eq!(tracking.ttr.as_duration(), Duration::from_secs(30));
        assert_eq!(draft.expiry, Some(Expiry::new(ExpiryTime::At(NOW))));
        for due_at in ["1896082200000", "2030-01-31T09:30:00Z"] {
            let request = asked(&[("punctual-topic", "orders"), ("punctual-due-at", due_at)]);
            let Ok(InboundRequest::Submit(draft)) = request else { panic!("{request:?}") };
            assert_eq!(draft.draft().due, Due::At(NOW), "{due_at}");
        }
    }

    #[test]
    fn a_record_of_another_scheduler_replaces_or_cancels_by_its_key() {
        let headers = [
            ("scheduler-target-topic", "orders"),
            ("scheduler-epoch", "1896082200"),
            ("scheduler-target-key", "target"),
            ("own", "1"),
        ];
        let Ok(InboundRequest::Replace(draft)) = asked(&headers) else { panic!() };
        let draft = draft.draft();
        assert_eq!(draft.due, Due::At(NOW));
        assert_eq!(draft.name.as_ref().map(TaskName::as_str), Some("k"));
        assert_eq!(draft.record.key.as_deref(), Some(b"target".as_slice()));
        let own: Vec<_> = headers::decode(draft.record.headers.as_bytes()).collect();
        assert_eq!(own, [("own", Some(b"1".as_slice()))]);
        let everybody = caller_of(&Policy::open(), "in").unwrap();
        let tombstone = IntakeRecord { payload: None, ..record(7, &headers[..1]) };
        let request = read_as(&tombstone, &everybody);
        let Ok(InboundRequest::Cancel(permit, name)) = request else { panic!("{request:?}") };
        assert_eq!((permit.topic().as_str(), name.as_str()), ("orders", "k"));
        let keyless = IntakeRecord { key: None, ..record(7, &headers) };
        assert!(read_as(&keyless, &everybody).is_err());
    }

    #[test]
    fn an_answer_of_a_consumer_is_read_with_its_members() {
        let by = |headers: &[(&str, &str)]| match asked(headers) {
            Ok(InboundRequest::Answer(AnsweredTask::Id(id), call)) => (id.to_string(), call),
            other => panic!("{headers:?}: {other:?}"),
        };
        let finish = by(&[("punctual-op", "finish"), ID_OF_1, ("trace", "1")]);
        assert_eq!(finish, (ID_OF_1.1.to_owned(), ConsumerCall::Finish { attempt: None }));
        let retry = ("punctual-retry-in", "30s");
        let (_id, fail) = by(&[FAIL_1, ID_OF_1, ATTEMPT_1, retry, ("punctual-reason", "true")]);
        // From the timestamp of the record.
        let retry = Some(Due::At(Timestamp::from_millis(1_030_000)));
        let reason = Some("true".into());
        assert_eq!(fail, ConsumerCall::Fail { attempt: 1, retry, is_final: false, reason });
        let (_id, dead) = by(&[FAIL_1, ID_OF_1, ATTEMPT_1, ("punctual-final", "true")]);
        let wanted = ConsumerCall::Fail { attempt: 1, retry: None, is_final: true, reason: None };
        assert_eq!(dead, wanted);
        let extend = [("punctual-op", "extend"), ID_OF_1, ATTEMPT_1, ("punctual-by", "60000")];
        let minute = Some(Duration::from_secs(60));
        assert_eq!(by(&extend).1, ConsumerCall::Extend { attempt: 1, by: minute });
        let name =
            [("punctual-topic", "orders"), ("punctual-name", "n"), ("punctual-op", "finish")];
        match asked(&name) {
            Ok(InboundRequest::Answer(AnsweredTask::Name(permit, name), _call)) => {
                assert_eq!((permit.topic().as_str(), name.as_str()), ("orders", "n"));
            }
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn a_retry_counted_from_a_timestamp_far_ahead_is_within_seven_days() {
        let headers = [FAIL_1, ID_OF_1, ATTEMPT_1, ("punctual-retry-in", "30s")];
        let ahead =
            IntakeRecord { at: NOW.plus(Duration::from_hours(24 * 400)), ..record(7, &headers) };
        let caller = caller_of(&Policy::open(), "in").unwrap();
        let Ok(InboundRequest::Answer(_, ConsumerCall::Fail { retry, .. })) =
            read_as(&ahead, &caller)
        else {
            panic!("not a fail")
        };
        assert_eq!(retry, Some(Due::At(NOW.plus(RETRY_MAX).ceil_millis())));
    }

    #[test]
    fn a_wrong_record_is_refused_for_good_and_told_the_header() {
        let due = ("punctual-due-at", "1896082200000");
        let topic = ("punctual-topic", "orders");
        let foreign = ("scheduler-target-topic", "orders");
        let epoch = ("scheduler-epoch", "1896082200");
        for (headers, said) in [
            (&[due][..], "punctual-topic"),
            (&[("punctual-topic", "no topic"), due], "punctual-topic"),
            (&[("punctual-topic", "__consumer_offsets"), due], "internal"),
            (&[topic], "punctual-due-at"),
            (&[topic, due, ("punctual-delay", "1s")], "not both"),
            (&[topic, due, due], "twice"),
            (&[topic, ("punctual-due-at", "1896082200")], "seconds"),
            (&[topic, ("punctual-delay", "soon")], "punctual-delay"),
            (&[topic, due, ("punctual-op", "replace")], "punctual-name"),
            (&[topic, ("punctual-op", "cancel")], "punctual-name"),
            (&[topic, due, ("punctual-op", "SUBMIT")], "expected submit"),
            (&[topic, due, ("punctual-attempt", "1")], "punctual-attempt"),
            (&[topic, due, ("punctual-id", "x")], "punctual-id"),
            (&[("punctual-op", "finish")], "punctual-id"),
            (&[("punctual-op", "finish"), ("punctual-id", "x")], "punctual-task-id"),
            (&[("punctual-op", "finish"), ("punctual-name", "n")], "punctual-topic"),
            (&[("punctual-op", "finish"), topic, ID_OF_1, ("punctual-name", "n")], "not both"),
            (&[("punctual-op", "finish"), ID_OF_1, due], "punctual-due-at"),
            (&[("punctual-op", "finish"), ID_OF_1, ("punctual-by", "1m")], "no such field"),
            (&[("punctual-op", "fail"), ID_OF_1], "punctual-attempt"),
            (&[FAIL_1, ID_OF_1, ("punctual-attempt", "one")], "punctual-attempt"),
            (&[FAIL_1, ID_OF_1, ATTEMPT_1, ("punctual-retry-in", "8d")], "punctual-retry-in"),
            (&[FAIL_1, ID_OF_1, ATTEMPT_1, ("punctual-final", "yes")], "punctual-final"),
            (&[topic, due, ("punctual-retry", "{}")], "ttr"),
            (&[topic, due, ("punctual-ttr", "1s"), ("punctual-retry", "{")], "punctual-retry"),
            (&[topic, due, ("punctual-task-id", "1")], "punctual-task-id"),
            (&[topic, due, ("scheduler-epoch", "1896082200")], "another scheduler"),
            (&[foreign, epoch, ("punctual-op", "cancel")], "another scheduler"),
            (&[foreign, epoch, ("punctual-expires-at", "1896082200")], "another scheduler"),
            (&[foreign, epoch, ("punctual-ttr", "30s")], "another scheduler"),
            (&[("scheduler-target-topic", "orders")], "scheduler-epoch"),
            (&[("scheduler-target-topic", "o"), ("scheduler-epoch", "-1")], "whole seconds"),
        ] {
            match asked(headers) {
                Err(Refused::ForGood { status: 400, reason, .. }) if reason.contains(said) => {}
                other => panic!("{headers:?}: {other:?}"),
            }
        }
        let everybody = caller_of(&Policy::open(), "in").unwrap();
        let unreadable = IntakeRecord { headers: None, ..record(7, &[]) };
        assert!(matches!(read_as(&unreadable, &everybody), Err(Refused::ForGood { .. })));
    }

    #[test]
    fn a_record_has_the_rights_of_its_principal() {
        let topics = vec![Pattern::new("orders").unwrap()];
        let rule = Rule { actions: vec![Action::Submit], topics };
        let caller = Caller::anonymous(Rights::new(&[rule], &[], false));
        let to = |topic, operation| {
            let name = ("punctual-name", "n");
            let when = ("punctual-delay", "1s");
            record(7, &[("punctual-topic", topic), ("punctual-op", operation), name, when])
        };
        assert!(read_as(&to("orders", "submit"), &caller).is_ok());
        for (topic, operation) in [("mails", "submit"), ("orders", "replace"), ("orders", "cancel")]
        {
            let refused = read_as(&to(topic, operation), &caller).unwrap_err();
            assert!(matches!(refused, Refused::ForGood { status: 403, .. }), "{refused:?}");
        }
        let named = [("punctual-topic", "orders"), ("punctual-name", "n")];
        let finish = record(7, &[named[0], named[1], ("punctual-op", "finish")]);
        let refused = read_as(&finish, &caller).unwrap_err();
        assert!(matches!(refused, Refused::ForGood { status: 403, .. }), "{refused:?}");
    }
}
