//! Reads rows of outboxes as the requests that they stand for, with the checks of a request of
//! REST.

use axum::http::StatusCode;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde::Serialize;
use serde_json::value::RawValue;

use crate::access::permit::{Cancel, Denied, Permit, ReplacePermit};
use crate::access::{Caller, CredentialId, Policy, PolicyHandle};
use crate::api::access::limits;
use crate::api::problems::problem::Problem;
use crate::api::problems::problem_type::ProblemType;
use crate::api::problems::refusal::{FieldOrigin, of_refusal};
use crate::api::request::draft::DraftReader;
use crate::domain::task::outbox_row::{OutboxOperation, OutboxRow};
use crate::domain::{TaskName, Timestamp, TopicName};
use crate::node::messages::permitted::{DeniedDraft, PermittedDraft};
use crate::node::messages::{Draft, Refusal};

/// A row that its principal may have carried out.
#[derive(Clone, Debug)]
pub enum OutboxRequest {
    Submit(PermittedDraft),
    /// The draft has a name.
    Replace(PermittedDraft),
    Cancel(Permit<Cancel>, TaskName),
}

/// The reason why a row is not carried out.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Refused {
    /// The row will never be accepted. REST would have answered with this status.
    ForGood { status: u16, reason: String },
    /// A limit is reached, or a server is away: the row waits.
    ForNow { reason: String },
}

/// Returns the caller whose rights the rows of an outbox have: the principal with its name, or
/// without an auth file everybody.
pub fn caller_of(policy: &Policy, name: &str) -> Option<Caller> {
    if policy.is_open() {
        return policy.identify_peer(None).ok();
    }
    let principal = policy.principals().iter().find(|known| known.name.as_str() == name)?;
    Some(Caller { principal: principal.clone(), credential: CredentialId::Anonymous })
}

/// Reads a row that is due at `due_at` by the cluster's clock.
pub fn read(
    row: &OutboxRow,
    due_at: Option<Timestamp>,
    (policy, caller): (&Policy, &Caller),
    arrived_at: Option<Timestamp>,
) -> Result<OutboxRequest, Refused> {
    let request = match row.operation {
        OutboxOperation::Cancel => cancel_of(row, caller),
        OutboxOperation::Submit => {
            draft_of(row, due_at, (policy, caller), arrived_at).map(OutboxRequest::Submit)
        }
        OutboxOperation::Replace => name_of(row)
            .and_then(|_name| draft_of(row, due_at, (policy, caller), arrived_at))
            .and_then(|draft| {
                let topic = &draft.draft().record.topic;
                ReplacePermit::on(caller, topic).map_err(|denied| forbidden(denied, topic))?;
                Ok(OutboxRequest::Replace(draft))
            }),
    };
    request.map_err(|problem| refused(&problem))
}

/// Takes what the submits of a turn need from the limits of their caller and of the topics.
pub fn charge<'a>(
    policy: &PolicyHandle,
    caller: &Caller,
    drafts: impl Iterator<Item = &'a Draft>,
) -> Result<(), Refused> {
    limits::charge(policy, caller, drafts).map_err(|problem| refused(&problem))
}

/// Returns what the refusal of a checked row means for the row.
pub fn of_service(refusal: Refusal) -> Refused {
    let origin = FieldOrigin { due: "due_at", payload: "payload" };
    refused(&of_refusal(refusal, origin))
}

fn refused(problem: &Problem) -> Refused {
    let (status, reason) = (problem.kind().status(), problem.line());
    let is_for_now = status == StatusCode::TOO_MANY_REQUESTS || status.is_server_error();
    if is_for_now {
        Refused::ForNow { reason }
    } else {
        Refused::ForGood { status: status.as_u16(), reason }
    }
}

fn forbidden(Denied(action): Denied, topic: &TopicName) -> Problem {
    Problem::forbidden(action, Some(topic.clone()))
}

fn cancel_of(row: &OutboxRow, caller: &Caller) -> Result<OutboxRequest, Problem> {
    let topic =
        TopicName::new(&row.topic).map_err(|error| Problem::invalid("topic", error.to_string()))?;
    let name = name_of(row)?;
    let permit = Permit::on(caller, &topic).map_err(|denied| forbidden(denied, &topic))?;
    Ok(OutboxRequest::Cancel(permit, name))
}

fn name_of(row: &OutboxRow) -> Result<TaskName, Problem> {
    let Some(name) = &row.name else {
        let detail = "a replacement and a cancel need the name of the task";
        return Err(Problem::new(ProblemType::MissingField, detail).at("name"));
    };
    TaskName::new(name).map_err(|error| Problem::invalid("name", error.to_string()))
}

fn draft_of(
    row: &OutboxRow,
    due_at: Option<Timestamp>,
    (policy, caller): (&Policy, &Caller),
    arrived_at: Option<Timestamp>,
) -> Result<PermittedDraft, Problem> {
    let (draft, origin) = DraftReader::default().read(&body_of(row, due_at)?)?;
    let draft = PermittedDraft::new(caller, draft)
        .map_err(|DeniedDraft { denied, topic }| forbidden(denied, &topic))?;
    limits::check(policy, caller, draft.draft(), origin, arrived_at)?;
    Ok(draft)
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

    use super::*;
    use crate::access::Action;
    use crate::access::pattern::Pattern;
    use crate::access::rights::{Rights, Rule};
    use crate::domain::task::outbox_row::ClockOffset;
    use crate::domain::task::outbox_row::tests::row;
    use crate::node::messages::Due;

    const NOW: Timestamp = Timestamp::from_micros(1_896_082_200_000_000);

    fn read_as(row: &OutboxRow, caller: &Caller) -> Result<OutboxRequest, Refused> {
        let due_at = row.due_at(ClockOffset { min: 0, max: 0 });
        read(row, due_at, (&Policy::open(), caller), Some(NOW))
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
        let Ok(OutboxRequest::Submit(draft)) = read_as(&given, &everybody()) else { panic!() };
        let draft = draft.draft();
        assert_eq!(draft.due, Due::At(NOW));
        assert_eq!(draft.name.as_ref().map(|name| name.as_str()), Some("order-17"));
        assert_eq!(draft.record.payload.as_deref(), Some(&b"{\"a\":  1}"[..]));
        assert_eq!(draft.record.key.as_deref(), Some(&[0, 255][..]));
        assert!(draft.tracking.is_some());
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

    #[test]
    fn a_row_waits_for_servers_and_limits() {
        let away = Refusal::ServerAway { reason: "Kafka".to_owned() };
        let old_nodes = Refusal::OldNodes { node_count: 1 };
        let busy = Refusal::Busy { limit: "topic_look_ups" };
        for refusal in [away, old_nodes, busy, Refusal::Draining] {
            assert!(matches!(of_service(refusal), Refused::ForNow { .. }));
        }
        let unknown = of_service(Refusal::UnknownTopic);
        assert!(matches!(unknown, Refused::ForGood { status: 422, .. }), "{unknown:?}");
    }
}
