//! Requests that do not come over REST: rows of outboxes, and records of intake topics. They are
//! checked as requests of REST are.

pub mod record;
pub mod row;

use axum::http::StatusCode;

use crate::access::permit::{Cancel, Denied, Permit, ReplacePermit};
use crate::access::{Caller, CredentialId, Policy, PolicyHandle};
use crate::api::access::limits;
use crate::api::problems::problem::Problem;
use crate::api::problems::refusal::{FieldOrigin, of_refusal};
use crate::domain::{TaskName, Timestamp, TopicName};
use crate::node::messages::permitted::{DeniedDraft, PermittedDraft};
use crate::node::messages::{Draft, Refusal};

/// A request that its principal may have carried out.
#[derive(Clone, Debug)]
pub enum InboundRequest {
    Submit(PermittedDraft),
    /// The draft has a name.
    Replace(PermittedDraft),
    Cancel(Permit<Cancel>, TaskName),
}

impl InboundRequest {
    /// Returns the draft of the task to store.
    pub fn draft(&self) -> Option<&Draft> {
        match self {
            Self::Submit(draft) | Self::Replace(draft) => Some(draft.draft()),
            Self::Cancel(..) => None,
        }
    }
}

/// A well-formed request, before the look at the rights of its principal.
enum Asked {
    Submit(Draft, FieldOrigin),
    /// The draft has a name.
    Replace(Draft, FieldOrigin),
    Cancel(TopicName, TaskName),
}

/// The reason why a request is not carried out.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Refused {
    /// The request will never be accepted. REST would have answered with this status.
    ForGood { status: u16, reason: String },
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
    Some(Caller { principal: principal.clone(), credential: CredentialId::Anonymous })
}

/// Takes what the submits of a turn need from the limits of their caller and of the topics.
pub fn charge<'a>(
    policy: &PolicyHandle,
    caller: &Caller,
    drafts: impl Iterator<Item = &'a Draft>,
) -> Result<(), Refused> {
    limits::charge(policy, caller, drafts).map_err(|problem| refused(&problem))
}

/// Returns what the refusal of a checked request means for the request.
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_waits_for_servers_and_limits() {
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
