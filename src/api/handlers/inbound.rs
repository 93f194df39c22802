//! Requests that do not come over REST: rows of outboxes, and records of intake topics. They are
//! checked as requests of REST are.

pub mod record;
pub mod row;

use axum::http::StatusCode;

use super::feedback::answer;
use super::feedback::call::NamedTask;
use crate::access::permit::{Cancel, Denied, Finish, Permit, ReplacePermit};
use crate::access::{Action, Caller, CredentialId, Policy, PolicyHandle};
use crate::api::access::limits;
use crate::api::json::answers::Shows;
use crate::api::problems::problem::Problem;
use crate::api::problems::refusal::{self, FieldOrigin, of_refusal};
use crate::domain::{Record, TaskId, TaskName, Timestamp, TopicName};
use crate::node::messages::answers::{ConsumerCall, Heard, Target};
use crate::node::messages::permitted::{DeniedDraft, HiddenTask, PermittedDraft, TaskPermit};
use crate::node::messages::{Draft, Refusal, Unavailable};
use crate::node::requests::service::Service;

/// A request that its principal may have carried out.
#[derive(Clone, Debug)]
pub enum InboundRequest {
    Submit(PermittedDraft),
    /// The draft has a name.
    Replace(PermittedDraft),
    Cancel(Permit<Cancel>, TaskName),
    /// The answer of a consumer.
    Answer(AnsweredTask, ConsumerCall),
}

/// The task of an answer. A task that is named by its id must be found before the right on its
/// topic can be checked: see [`target_of`].
#[derive(Clone, Debug)]
pub enum AnsweredTask {
    Id(TaskId),
    Name(Permit<Finish>, TaskName),
}

impl InboundRequest {
    /// Returns the record of the task to store.
    pub fn record(&self) -> Option<&Record> {
        match self {
            Self::Submit(draft) | Self::Replace(draft) => Some(&draft.draft().record),
            Self::Cancel(..) | Self::Answer(..) => None,
        }
    }
}

/// A well-formed request, before the look at the rights of its principal.
enum Asked {
    Submit(Draft, FieldOrigin),
    /// The draft has a name.
    Replace(Draft, FieldOrigin),
    Cancel(TopicName, TaskName),
    Answer(NamedTask, ConsumerCall),
}

/// The reason why a request is not carried out.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Refused {
    /// The request will never be accepted. REST would have answered with this status. `denied` is
    /// the missing right, for the audit trail.
    ForGood { status: u16, reason: String, denied: Option<(Action, TopicName)> },
    /// Kafka does not let this node see the topic. The request waits. A partition of an intake
    /// topic rejects it after waiting for such topics for 5 minutes of an hour.
    TopicDenied { reason: String },
    /// A limit is reached, or a server is away: the request waits.
    ForNow { reason: String },
}

/// The rights and limits that requests are read with.
#[derive(Clone, Copy, Debug)]
pub struct Reader<'a> {
    pub policy: &'a Policy,
    pub caller: &'a Caller,
    /// The upper bound of the cluster's clock.
    pub arrived_at: Option<Timestamp>,
}

impl Reader<'_> {
    /// Checks the rights and the limits of the caller.
    fn permit(self, asked: Result<Asked, Problem>) -> Result<InboundRequest, Refused> {
        asked.and_then(|asked| self.permitted(asked)).map_err(|problem| refused(&problem))
    }

    fn permitted(self, asked: Asked) -> Result<InboundRequest, Problem> {
        match asked {
            Asked::Submit(draft, origin) => self.draft(draft, origin).map(InboundRequest::Submit),
            Asked::Replace(draft, origin) => {
                let draft = self.draft(draft, origin)?;
                let topic = &draft.draft().record.topic;
                ReplacePermit::on(self.caller, topic).map_err(|denied| forbidden(denied, topic))?;
                Ok(InboundRequest::Replace(draft))
            }
            Asked::Cancel(topic, name) => {
                let permit =
                    Permit::on(self.caller, &topic).map_err(|denied| forbidden(denied, &topic))?;
                Ok(InboundRequest::Cancel(permit, name))
            }
            Asked::Answer(NamedTask::Id(id), call) => {
                Ok(InboundRequest::Answer(AnsweredTask::Id(id), call))
            }
            Asked::Answer(NamedTask::Name(topic, name), call) => {
                let permit =
                    Permit::on(self.caller, &topic).map_err(|denied| forbidden(denied, &topic))?;
                Ok(InboundRequest::Answer(AnsweredTask::Name(permit, name), call))
            }
        }
    }

    fn draft(self, draft: Draft, origin: FieldOrigin) -> Result<PermittedDraft, Problem> {
        let draft = PermittedDraft::new(self.caller, draft)
            .map_err(|DeniedDraft { denied, topic }| forbidden(denied, &topic))?;
        limits::check(self.policy, self.caller, draft.draft(), origin, self.arrived_at)?;
        Ok(draft)
    }
}

/// Returns the caller whose rights the rows of an outbox, or the records of an intake topic, have:
/// the principal with its name, or without an auth file everybody.
pub fn caller_of(policy: &Policy, name: &str) -> Option<Caller> {
    if policy.is_open() {
        return policy.identify_peer(None).ok();
    }
    let principal = policy.principals().iter().find(|known| known.name.as_str() == name)?;
    let principal = principal.clone();
    Some(Caller { principal, credential: CredentialId::Anonymous, until: None })
}

/// Takes what the submits of a turn need from the limits of their caller and of the topics.
pub fn charge<'a>(
    policy: &PolicyHandle,
    caller: &Caller,
    records: impl Iterator<Item = &'a Record>,
) -> Result<(), Refused> {
    let taken = limits::take(policy, caller, records);
    taken.map_err(|exceeded| refused(&Problem::quota_exceeded(&exceeded)))
}

/// Returns the task of an answer, with the permit of its caller. For a caller without the right on
/// its topic, a task does not exist.
pub async fn target_of(
    service: &Service,
    caller: &Caller,
    task: AnsweredTask,
) -> Result<Target, Refused> {
    let id = match task {
        AnsweredTask::Name(permit, name) => return Ok(Target::Name(permit, name)),
        AnsweredTask::Id(id) => id,
    };
    if let Some(permit) = TaskPermit::unlimited(caller, id) {
        return Ok(Target::Id(permit));
    }
    let not_found = |denied| {
        let problem = Problem::task_not_found(true);
        let (status, reason) = (problem.kind().status().as_u16(), problem.line());
        Refused::ForGood { status, reason, denied }
    };
    let Some(found) = service.find_topic(caller, id).await.map_err(of_unavailable)? else {
        return Err(not_found(None));
    };
    let hidden = |HiddenTask { action, topic }| not_found(Some((action, topic)));
    found.permit(caller).map(Target::Id).map_err(hidden)
}

/// Returns what the result of a consumer's call means for its request. `is_id` tells how the task
/// was named.
///
/// # Errors
/// When REST would have refused the call.
pub fn of_heard(heard: Heard, is_id: bool) -> Result<(), Refused> {
    let problem = match heard {
        Heard::Tracked(verdict, task) => match answer::of_verdict(verdict, task, Shows::Metadata) {
            Ok(_heeded) => return Ok(()),
            Err(problem) => problem,
        },
        Heard::NotTracked(task) => answer::not_tracked(task, Shows::Metadata),
        Heard::NotFound if is_id => Problem::task_not_found(true),
        Heard::NotFound => Problem::name_not_found(),
    };
    Err(refused(&problem))
}

/// Returns the consequence of an unreachable server for a request without effects.
pub fn of_unavailable(unavailable: Unavailable) -> Refused {
    refused(&refusal::of_unavailable(unavailable, Problem::unavailable))
}

/// Returns what the refusal of a checked request means for the request.
pub fn of_service(refusal: Refusal) -> Refused {
    if let Refusal::TopicDenied { reason } = refusal {
        return Refused::TopicDenied { reason };
    }
    let origin = FieldOrigin { due: "due_at", payload: "payload" };
    refused(&of_refusal(refusal, origin))
}

fn refused(problem: &Problem) -> Refused {
    let (status, reason) = (problem.kind().status(), problem.line());
    let is_for_now = status == StatusCode::TOO_MANY_REQUESTS || status.is_server_error();
    if is_for_now {
        Refused::ForNow { reason }
    } else {
        Refused::ForGood { status: status.as_u16(), reason, denied: problem.denied() }
    }
}

fn forbidden(Denied(action): Denied, topic: &TopicName) -> Problem {
    Problem::forbidden(action, Some(topic.clone()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_waits_for_servers_and_limits() {
        let away = Refusal::ServerAway { reason: "Kafka".to_owned() };
        let old_nodes = Refusal::NodesWithoutTracking { node_count: 1 };
        let without_expiry = Refusal::NodesWithoutExpiry { node_count: 1 };
        let busy = Refusal::Busy { limit: "topic_look_ups" };
        let full = Refusal::TooManyPending { task_count: 2, pending_max: 1 };
        for refusal in [away, old_nodes, without_expiry, busy, full, Refusal::Draining] {
            assert!(matches!(of_service(refusal), Refused::ForNow { .. }));
        }
        let reason = "TopicAuthorizationFailed".to_owned();
        let denied = of_service(Refusal::TopicDenied { reason: reason.clone() });
        assert_eq!(denied, Refused::TopicDenied { reason });
        let unknown = of_service(Refusal::UnknownTopic);
        assert!(matches!(unknown, Refused::ForGood { status: 422, .. }), "{unknown:?}");
    }
}
