//! Reads rows of outboxes as the requests that they stand for.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde::Serialize;
use serde_json::value::RawValue;

use super::{Asked, InboundRequest, Reader, Refused};
use crate::api::handlers::feedback::call::NamedTask;
use crate::api::problems::problem::Problem;
use crate::api::problems::problem_type::ProblemType;
use crate::api::problems::refusal::FieldOrigin;
use crate::api::request::draft::DraftReader;
use crate::domain::task::outbox_row::{OutboxOperation, OutboxRow};
use crate::domain::{TaskId, TaskName, Timestamp, TopicName};
use crate::node::messages::Draft;
use crate::node::messages::answers::ConsumerCall;

/// Reads a row that is due at `due_at` by the cluster's clock.
pub fn read(
    row: &OutboxRow,
    due_at: Option<Timestamp>,
    reader: Reader<'_>,
) -> Result<InboundRequest, Refused> {
    let asked = match row.operation {
        OutboxOperation::Cancel => cancel_of(row),
        OutboxOperation::Finish => finish_of(row),
        OutboxOperation::Submit => {
            draft_of(row, due_at).map(|(draft, origin)| Asked::Submit(draft, origin))
        }
        OutboxOperation::Replace => name_of(row)
            .and_then(|_name| draft_of(row, due_at))
            .map(|(draft, origin)| Asked::Replace(draft, origin)),
    };
    reader.permit(asked)
}

fn cancel_of(row: &OutboxRow) -> Result<Asked, Problem> {
    Ok(Asked::Cancel(topic_of(row)?, name_of(row)?))
}

fn finish_of(row: &OutboxRow) -> Result<Asked, Problem> {
    let task = match (row.task_id, &row.name) {
        (Some(id), None) => NamedTask::Id(TaskId::from_uuid(id)),
        (None, Some(_)) => NamedTask::Name(topic_of(row)?, name_of(row)?),
        (Some(_), Some(_)) => {
            let detail = "give name or task_id, not both";
            return Err(Problem::new(ProblemType::ConflictingFields, detail).at("task_id"));
        }
        (None, None) => {
            let detail = "the task is required: its name or task_id";
            return Err(Problem::new(ProblemType::MissingField, detail).at("name"));
        }
    };
    let attempt = row.attempt.map(|attempt| match u16::try_from(attempt) {
        Ok(attempt @ 1..) => Ok(attempt),
        _ => Err(Problem::invalid("attempt", "expected 1 to 65535")),
    });
    Ok(Asked::Answer(task, ConsumerCall::Finish { attempt: attempt.transpose()? }))
}

fn topic_of(row: &OutboxRow) -> Result<TopicName, Problem> {
    TopicName::new(&row.topic).map_err(|error| Problem::invalid("topic", error.to_string()))
}

fn name_of(row: &OutboxRow) -> Result<TaskName, Problem> {
    let Some(name) = &row.name else {
        let detail = "a replacement and a cancel need the name of the task";
        return Err(Problem::new(ProblemType::MissingField, detail).at("name"));
    };
    TaskName::new(name).map_err(|error| Problem::invalid("name", error.to_string()))
}

fn draft_of(row: &OutboxRow, due_at: Option<Timestamp>) -> Result<(Draft, FieldOrigin), Problem> {
    DraftReader::default().read(&body_of(row, due_at)?)
}

/// The body of a submit over REST.
#[derive(Serialize)]
struct Body<'a> {
    topic: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    name: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    due_at: Option<String>,
    /// Given beside `due_at` only by a wrong row, to be refused.
    #[serde(skip_serializing_if = "Option::is_none")]
    delay: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    payload: Option<&'a RawValue>,
    #[serde(skip_serializing_if = "Option::is_none")]
    payload_text: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    payload_base64: Option<String>,
    tombstone: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    key: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    key_base64: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    headers: Option<&'a RawValue>,
    #[serde(skip_serializing_if = "Option::is_none")]
    ttr: Option<u128>,
    #[serde(skip_serializing_if = "Option::is_none")]
    retry: Option<&'a RawValue>,
}

fn body_of(row: &OutboxRow, due_at: Option<Timestamp>) -> Result<String, Problem> {
    let body = Body {
        topic: &row.topic,
        name: row.name.as_deref(),
        due_at: due_at.map(|at| at.to_string()),
        delay: row.delay.filter(|_delay| row.due_at.is_some()).map(|_delay| 0),
        payload: json_of(row.payload.as_deref(), "payload")?,
        payload_text: row.payload_text.as_deref(),
        payload_base64: row.payload_bytes.as_ref().map(|bytes| STANDARD.encode(bytes)),
        tombstone: row.is_tombstone,
        key: row.key.as_deref(),
        key_base64: row.key_bytes.as_ref().map(|bytes| STANDARD.encode(bytes)),
        headers: json_of(row.headers.as_deref(), "headers")?,
        ttr: row.ttr.map(|ttr| ttr.as_micros().div_ceil(1000)),
        retry: json_of(row.retry.as_deref(), "retry")?,
    };
    let wrong = |error: serde_json::Error| Problem::invalid("payload", error.to_string());
    serde_json::to_string(&body).map_err(wrong)
}

fn json_of<'a>(
    text: Option<&'a str>,
    field: &'static str,
) -> Result<Option<&'a RawValue>, Problem> {
    let read = |text| serde_json::from_str(text);
    text.map(read).transpose().map_err(|error| Problem::invalid(field, error.to_string()))
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use uuid::Uuid;

    use super::*;
    use crate::access::pattern::Pattern;
    use crate::access::rights::{Rights, Rule};
    use crate::access::{Action, Caller, Policy};
    use crate::api::handlers::inbound::{AnsweredTask, caller_of};
    use crate::domain::task::outbox_row::ClockOffset;
    use crate::domain::task::outbox_row::tests::row;
    use crate::node::messages::Due;

    const NOW: Timestamp = Timestamp::from_micros(1_896_082_200_000_000);

    fn read_as(row: &OutboxRow, caller: &Caller) -> Result<InboundRequest, Refused> {
        let due_at = row.due_at(ClockOffset { min: 0, max: 0 });
        read(row, due_at, Reader { policy: &Policy::open(), caller, arrived_at: Some(NOW) })
    }

    fn everybody() -> Caller {
        caller_of(&Policy::open(), "shop").unwrap()
    }

    fn status(row: &OutboxRow) -> u16 {
        match read_as(row, &everybody()) {
            Err(Refused::ForGood { status, .. }) => status,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn a_row_is_the_task_that_rest_would_read() {
        let given = OutboxRow {
            name: Some("order-17".to_owned()),
            due_at: Some(NOW),
            delay: None,
            payload: Some("{\"a\":  1}".to_owned()),
            key_bytes: Some(vec![0, 255]),
            headers: Some("{\"h\":\"v\"}".to_owned()),
            ttr: Some(Duration::from_secs(30)),
            ..row(1, "orders")
        };
        let Ok(InboundRequest::Submit(draft)) = read_as(&given, &everybody()) else { panic!() };
        let draft = draft.draft();
        assert_eq!(draft.due, Due::At(NOW));
        assert_eq!(draft.name.as_ref().map(|name| name.as_str()), Some("order-17"));
        assert_eq!(draft.record.payload.as_deref(), Some(&b"{\"a\":  1}"[..]));
        assert_eq!(draft.record.key.as_deref(), Some(&[0, 255][..]));
        assert!(draft.tracking.is_some());
    }

    #[test]
    fn a_finish_names_its_task_by_the_name_or_the_id() {
        let finish = |name: Option<&str>, task_id| OutboxRow {
            operation: OutboxOperation::Finish,
            name: name.map(str::to_owned),
            task_id,
            attempt: Some(2),
            ..row(1, "orders")
        };
        let id = Uuid::from_u128(7);
        for row in [finish(Some("n"), None), finish(None, Some(id))] {
            let Ok(InboundRequest::Answer(task, call)) = read_as(&row, &everybody()) else {
                panic!("{row:?}")
            };
            assert_eq!(call, ConsumerCall::Finish { attempt: Some(2) });
            let is_id = matches!(task, AnsweredTask::Id(found) if found == TaskId::from_uuid(id));
            assert_eq!(is_id, row.task_id.is_some());
        }
        let zeroth = OutboxRow { attempt: Some(0), ..finish(Some("n"), None) };
        for wrong in [finish(None, None), finish(Some("n"), Some(id)), zeroth] {
            assert_eq!(status(&wrong), 400, "{wrong:?}");
        }
    }

    #[test]
    fn a_wrong_row_is_refused_for_good() {
        let plain = || row(1, "orders");
        let both = OutboxRow { due_at: Some(NOW), ..plain() };
        let neither = OutboxRow { delay: None, ..plain() };
        let two = OutboxRow { payload_text: Some(String::new()), ..plain() };
        let headers = OutboxRow { headers: Some("[]".to_owned()), ..plain() };
        let cancel = OutboxRow { operation: OutboxOperation::Cancel, ..plain() };
        let replace = OutboxRow { operation: OutboxOperation::Replace, ..plain() };
        let topic = OutboxRow { topic: "no topic".to_owned(), ..plain() };
        for wrong in [both, neither, two, headers, cancel, replace, topic] {
            assert_eq!(status(&wrong), 400, "{wrong:?}");
        }
    }

    #[test]
    fn a_row_has_the_rights_of_its_principal() {
        let topics = vec![Pattern::new("orders").unwrap()];
        let rule = Rule { actions: vec![Action::Submit], topics };
        let caller = Caller::anonymous(Rights::new(&[rule], &[], false));
        assert!(read_as(&row(1, "orders"), &caller).is_ok());
        let named = OutboxRow { name: Some("n".to_owned()), ..row(1, "orders") };
        let replace = OutboxRow { operation: OutboxOperation::Replace, ..named.clone() };
        let cancel = OutboxRow { operation: OutboxOperation::Cancel, ..named };
        for denied in [row(1, "mails"), replace, cancel] {
            let refused = read_as(&denied, &caller).unwrap_err();
            assert!(matches!(refused, Refused::ForGood { status: 403, .. }), "{refused:?}");
        }
    }
}
