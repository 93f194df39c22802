//! The guard of a request: the caller, with the rights of the caller.

use std::sync::Arc;
use std::time::Duration;

use axum::extract::FromRequestParts;
use axum::http::request::Parts;
use axum::http::{HeaderMap, Request, header};
use parking_lot::Mutex;
use tokio_util::sync::CancellationToken;

use super::required::Access;
use super::trail::Trail;
use crate::access::credential::certificate::PeerCertificate;
use crate::access::permit::{
    BulkPermit, CancelManyPermit, Denied, ListPermit, OperatePermit, Permit, Read, ReplacePermit,
    Right,
};
use crate::access::{Action, Caller, Policy, Rights, Unidentified};
use crate::api::json::answers::Shows;
use crate::api::problems::problem::Problem;
use crate::api::problems::problem_type::ProblemType;
use crate::clock;
use crate::domain::{Monotonic, TaskId, TaskView, Throttle, Timestamp, TopicName};
use crate::node::messages::Draft;
use crate::node::messages::permitted::{
    DeniedDraft, FoundTask, FoundTopic, HiddenTask, PermittedDraft, TaskPermit,
};

/// The last reason that a caller did not get. It is logged once a second while it stays the same.
static HIDDEN: Mutex<HiddenReason> = Mutex::new(HiddenReason::new());

#[derive(Debug)]
struct HiddenReason {
    text: String,
    throttle: Throttle,
}

impl HiddenReason {
    const fn new() -> Self {
        Self { text: String::new(), throttle: Throttle::new(Duration::from_secs(1)) }
    }

    /// Returns true when a reason is to be logged.
    fn is_told(&mut self, reason: &str, now: Monotonic) -> bool {
        if self.text != reason {
            reason.clone_into(&mut self.text);
            self.throttle.reset();
        }
        self.throttle.lets_through(now)
    }
}

/// The credentials of a request.
#[derive(Clone, Copy, Debug)]
pub struct Proofs<'a> {
    pub headers: &'a HeaderMap,
    /// The certificate of the connection's caller. A token wins over it.
    pub peer: Option<&'a PeerCertificate>,
}

impl<'a> Proofs<'a> {
    pub fn of<B>(request: &'a Request<B>) -> Self {
        let peer = request.extensions().get::<Arc<PeerCertificate>>().map(Arc::as_ref);
        Self { headers: request.headers(), peer }
    }
}

/// The caller of a request. Handlers ask it for the permits that the node wants.
#[derive(Clone, Debug)]
pub struct Guard {
    caller: Caller,
    trail: Trail,
    policy: Arc<Policy>,
}

impl Guard {
    /// Identifies the caller. `now` is asked only when there are credentials.
    ///
    /// # Errors
    /// 401 without a valid credential where one is needed, and 400 for a header that holds no
    /// token.
    pub fn identify(
        policy: &Policy,
        access: Access,
        proofs: Proofs<'_>,
        now: impl FnOnce() -> Timestamp,
    ) -> Result<Caller, Problem> {
        match identify(policy, proofs, now) {
            // A probe must not fail for a credential. It is told no reasons.
            Err(_) if access == Access::Open => Ok(Caller::anonymous(Rights::default())),
            identified => identified,
        }
    }

    /// Refuses a caller whose rights rule the operation out. `policy` has identified the caller.
    ///
    /// # Errors
    /// 403 without the right.
    pub fn of(
        policy: &Arc<Policy>,
        caller: Caller,
        access: Access,
        trail: &Trail,
    ) -> Result<Self, Problem> {
        trail.identify(&caller);
        match access.ruled_out(&caller.principal.rights) {
            Some(action) => {
                trail.denies(action, None);
                Err(Problem::forbidden(action, None))
            }
            None => Ok(Self { caller, trail: trail.clone(), policy: Arc::clone(policy) }),
        }
    }

    /// Returns a token that is cancelled when the caller may have other rights than it had.
    pub fn rights_changed(&self) -> &CancellationToken {
        self.policy.replaced()
    }

    /// Returns the notes for the audit trail.
    pub fn trail(&self) -> &Trail {
        &self.trail
    }

    /// Counts stored tasks of the caller, for the metrics.
    pub fn count_submitted(&self, count: u64) {
        self.caller.principal.counts.submitted(count);
    }

    /// Notes the outcome of a check, and makes its problem. The caller has named the topic.
    fn checked<T>(&self, topic: &TopicName, permit: Result<T, Denied>) -> Result<T, Problem> {
        match permit {
            Ok(permit) => {
                self.trail.permits(topic);
                Ok(permit)
            }
            Err(Denied(action)) => {
                self.trail.denies(action, Some(topic));
                Err(Problem::forbidden(action, Some(topic.clone())))
            }
        }
    }

    /// As [`Self::checked`], for a caller who may have named no topic.
    fn checked_or_all<T>(
        &self,
        topic: Option<&TopicName>,
        permit: Result<T, Denied>,
    ) -> Result<T, Problem> {
        match topic {
            Some(topic) => self.checked(topic, permit),
            None => permit.map_err(|Denied(action)| {
                self.trail.denies(action, None);
                Problem::forbidden_without_topic(action)
            }),
        }
    }

    pub fn caller(&self) -> &Caller {
        &self.caller
    }

    /// Returns the permit for a topic that the caller has named.
    pub fn permit<R: Right>(&self, topic: &TopicName) -> Result<Permit<R>, Problem> {
        self.checked(topic, Permit::on(&self.caller, topic))
    }

    /// Returns the permit to replace tasks of a topic.
    pub fn replace_permit(&self, topic: &TopicName) -> Result<ReplacePermit, Problem> {
        self.checked(topic, ReplacePermit::on(&self.caller, topic))
    }

    /// Returns the permit to change many tasks of a topic, or to count them.
    pub fn bulk_permit<R: Right>(
        &self,
        topic: &TopicName,
        is_dry_run: bool,
    ) -> Result<BulkPermit<R>, Problem> {
        self.checked(topic, BulkPermit::on(&self.caller, topic, is_dry_run))
    }

    /// Returns the permit to cancel many tasks of a topic, or without one of `*`, or to count them.
    pub fn cancel_many_permit(
        &self,
        topic: Option<&TopicName>,
        is_dry_run: bool,
    ) -> Result<CancelManyPermit, Problem> {
        self.checked_or_all(topic, CancelManyPermit::on(&self.caller, topic, is_dry_run))
    }

    /// Returns the permit to list the tasks of a topic, or without one of `*`.
    pub fn list_permit(&self, topic: Option<&TopicName>) -> Result<ListPermit, Problem> {
        self.checked_or_all(topic, ListPermit::on(&self.caller, topic))
    }

    /// Returns the permit to see the state of the cluster.
    pub fn operate_permit(&self) -> Result<OperatePermit, Problem> {
        OperatePermit::of(&self.caller).map_err(|Denied(action)| {
            self.trail.denies(action, None);
            Problem::forbidden(action, None)
        })
    }

    /// Returns the permit for the task of an id, if it depends on no topic.
    pub fn unlimited<R: Right>(&self, id: TaskId) -> Option<TaskPermit<R>> {
        TaskPermit::unlimited(&self.caller, id)
    }

    /// Returns the draft with the permit for its topic and its dead topic.
    pub fn permit_draft(&self, draft: Draft) -> Result<PermittedDraft, Problem> {
        let topic = draft.record.topic.clone();
        match PermittedDraft::new(&self.caller, draft) {
            Ok(permitted) => self.checked(&topic, Ok(permitted)),
            Err(DeniedDraft { denied, topic }) => self.checked(&topic, Err(denied)),
        }
    }

    /// Returns the permit for a task found by id. `None`: for this caller, there is no such task.
    pub fn permit_found<R: Right>(&self, found: &FoundTopic) -> Option<TaskPermit<R>> {
        self.found(found.permit(&self.caller))
    }

    /// Returns a task found by id, if the caller may know of the task.
    pub fn show_found(&self, task: FoundTask) -> Option<TaskView> {
        self.found(task.show(&self.caller))
    }

    fn found<T>(&self, checked: Result<T, HiddenTask>) -> Option<T> {
        checked.map_err(|hidden| self.trail.denies(hidden.action, Some(&hidden.topic))).ok()
    }

    /// Returns true when the caller may see the tasks of a topic.
    pub fn reads(&self, topic: &TopicName) -> bool {
        Permit::<Read>::on(&self.caller, topic).is_ok()
    }

    /// Returns true when the caller may see the tasks of all topics.
    pub fn reads_everywhere(&self) -> bool {
        self.caller.principal.rights.allows_everywhere(Action::Read)
    }

    /// Returns which members of a topic's tasks the caller may see.
    pub fn shows(&self, topic: &TopicName) -> Shows {
        let rights = &self.caller.principal.rights;
        let sees_all =
            rights.allows(Action::Read, topic) && rights.allows(Action::ReadPayload, topic);
        if !sees_all {
            return Shows::Metadata;
        }
        self.trail.shows_payload(topic);
        Shows::All
    }

    /// Returns true when the caller may see the state of the cluster.
    pub fn operates(&self) -> bool {
        self.caller.principal.rights.operates()
    }

    /// Returns the reason of a failure as the caller may see it. Reasons hold the addresses and the
    /// messages of servers, which concern operators alone; the log has them for the others.
    pub fn tells(&self, reason: String) -> String {
        if self.operates() {
            return reason;
        }
        if HIDDEN.lock().is_told(&reason, clock::monotonic()) {
            tracing::info!(
                principal = %self.caller.principal.name,
                reason,
                "a request failed, and the caller does not get the reason"
            );
        }
        "the log of the node has the reason, for its operators".to_owned()
    }
}

/// The router puts the guard beside each request before it calls a handler.
impl<S: Sync> FromRequestParts<S> for Guard {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, _state: &S) -> Result<Self, Problem> {
        let missing = || Problem::new(ProblemType::Internal, "the request was not checked");
        parts.extensions.get::<Self>().cloned().ok_or_else(missing)
    }
}

fn identify(
    policy: &Policy,
    Proofs { headers, peer }: Proofs<'_>,
    now: impl FnOnce() -> Timestamp,
) -> Result<Caller, Problem> {
    if policy.is_open() {
        // The header may be for a proxy in front of the node.
        return policy.identify_peer(None).map_err(|_never| Problem::unauthenticated(false));
    }
    let mut fields = headers.get_all(header::AUTHORIZATION).iter();
    let (field, second) = (fields.next(), fields.next());
    if second.is_some() {
        let detail = "the header is given twice; send one token";
        return Err(Problem::invalid("authorization", detail));
    }
    let Some(field) = field else {
        return policy.identify_peer(peer).map_err(|_missing| match peer {
            None => Problem::unauthenticated(false),
            Some(peer) => {
                tracing::debug!(names = ?peer.names, "a client certificate proves no principal");
                Problem::unknown_certificate()
            }
        });
    };
    let text = field.to_str().map_err(|_not_ascii| Problem::unauthenticated(true))?;
    let scheme = text.split(' ').next().unwrap_or_default();
    if !scheme.is_empty() && !scheme.eq_ignore_ascii_case("bearer") {
        let detail = "the only scheme is Bearer: `Authorization: Bearer` and a token";
        return Err(Problem::invalid("authorization", detail));
    }
    policy.identify(text, now()).map_err(|reason| {
        tracing::debug!(%reason, "a caller was not identified");
        match reason {
            // A 401 would make the caller throw a good token away.
            Unidentified::KeysMissing => Problem::keys_missing(),
            _ => Problem::unauthenticated(true),
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_hidden_reason_is_told_once_a_second_and_another_one_at_once() {
        let mut hidden = HiddenReason::new();
        let at = |millis| Monotonic::from_start(Duration::from_millis(millis));
        let told = [("a", 0), ("a", 999), ("b", 999), ("b", 1_000), ("a", 1_000), ("a", 2_000)]
            .map(|(reason, millis)| hidden.is_told(reason, at(millis)));
        assert_eq!(told, [true, false, true, false, true, true]);
    }
}
