//! The line of a request in the audit trail.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use axum::http::{Method, StatusCode};
use serde::Serialize;

use super::outcomes::outcome_of;
use super::required::Access;
use super::trail::{Notes, Trail};
use crate::access::PrincipalCounts;
use crate::api::json::answers::DisplayJson;
use crate::api::json::times::Rfc3339;
use crate::api::openapi::operation::Operation;
use crate::api::problems::problem::Problem;
use crate::api::problems::problem_type::ProblemType;
use crate::audit::{AuditStream, NoPlace, Place};
use crate::clock;
use crate::domain::{Choice, TaskId};

/// Topics of one line. The line says how many more there are.
const TOPICS_MAX: usize = 100;

/// The audit trail as the API writes it.
#[derive(Clone, Debug)]
pub struct Audit {
    pub stream: AuditStream,
    /// The name of the node.
    pub node: String,
    /// True when requests that read payloads have lines, too.
    pub has_reads: bool,
}

impl Audit {
    /// Returns the line about the node itself: `start` or `stop`.
    pub fn line_of_node(node: &str, action: &'static str) -> Vec<u8> {
        let none = Notes::default();
        bytes_of(&LineJson::of(node, action, &none))
    }

    /// Returns a line about a turn at an outbox or an intake topic, whose name is `source`.
    pub(super) fn line_of_turn(
        &self,
        (operation, source): (&'static str, &str),
        action: &str,
        notes: &Notes,
    ) -> Vec<u8> {
        bytes_of(&LineJson {
            operation: Some(operation),
            source: Some(source),
            ..LineJson::of(&self.node, action, notes)
        })
    }
}

/// A request on its way to its line.
#[derive(Debug)]
pub struct AuditedRequest {
    audit: Option<Audit>,
    pub trail: Trail,
    request_id: String,
    address: IpAddr,
    operation: Option<&'static Operation>,
    /// True when the request may change something.
    changes: bool,
    /// The place of the line, from before the handler runs until the line is written.
    place: Option<Place>,
    /// False for a caller without a credential, unless the node is open to everybody.
    pub is_known: bool,
    /// True for a token that could not be judged, because the keys of its issuer are missing.
    pub is_unjudged: bool,
    /// True when too many such callers were denied.
    pub has_no_line: bool,
    /// The counters of the caller, if the request counts there.
    pub counts: Option<PrincipalCounts>,
}

impl AuditedRequest {
    pub fn new(
        audit: Option<&Audit>,
        request_id: &str,
        address: IpAddr,
        operation: Option<(&'static Operation, &Method)>,
    ) -> Self {
        Self {
            audit: audit.cloned(),
            trail: audit.map(|_audit| Trail::new()).unwrap_or_default(),
            request_id: request_id.to_owned(),
            address,
            operation: operation.map(|(operation, _method)| operation),
            changes: operation.is_some_and(|(operation, method)| operation.changes(method)),
            place: None,
            is_known: false,
            is_unjudged: false,
            has_no_line: false,
            counts: None,
        }
    }

    /// Counts the answer among those of the caller. `limit` is the limit that its problem names.
    pub fn count(&self, status: StatusCode, limit: Option<&'static str>) {
        if let Some(counts) = &self.counts {
            counts.answered(outcome_of(status, limit));
        }
    }

    /// Takes the place of the line, if the request may need one when it is carried out.
    ///
    /// # Errors
    /// 503 when no line can be written: then nothing may be done.
    pub fn reserve(&mut self) -> Result<(), Problem> {
        let Some(audit) = &self.audit else { return Ok(()) };
        let access = self.operation.map(|operation| operation.access);
        let is_read = audit.has_reads && access.is_some_and(Access::reads);
        if is_read || self.changes {
            self.place = Some(audit.stream.reserve().map_err(|NoPlace| Problem::busy("audit"))?);
        }
        Ok(())
    }

    /// Returns true when a caller without a credential is denied. An absent task counts as a hidden
    /// one, so that the count does not tell them apart. A token that could not be judged counts as
    /// a wrong one: while keys are missing, anybody can write such tokens.
    pub fn denies_unknown(&self, problem: ProblemType) -> bool {
        use ProblemType as P;
        let is_denied = matches!(problem, P::Unauthenticated | P::Forbidden | P::WrongHost);
        !self.is_known && (is_denied || self.is_unjudged || self.may_hide(Some(problem)))
    }

    /// Returns true for the answer to an id that is absent or hidden.
    fn may_hide(&self, problem: Option<ProblemType>) -> bool {
        let access = self.operation.map(|operation| operation.access);
        problem == Some(ProblemType::TaskNotFound) && matches!(access, Some(Access::OnTask(_)))
    }

    /// Writes the line, if the request has changed something, or was denied, or has read a payload.
    ///
    /// # Errors
    /// 503 when the line of a denied request cannot be written. An absent task gets it as well as a
    /// hidden one, so that nobody can tell them apart.
    pub async fn finish(
        mut self,
        status: StatusCode,
        problem: Option<ProblemType>,
    ) -> Result<(), Problem> {
        let place = self.place.take();
        let Some(audit) = &self.audit else { return Ok(()) };
        let notes = self.trail.notes();
        let has_line = self.has_line(audit, &notes, Some(status), problem);
        if !has_line && !self.may_hide(problem) {
            return Ok(());
        }
        let place = match place {
            Some(place) => place,
            None => audit.stream.reserve().map_err(|NoPlace| Problem::busy("audit"))?,
        };
        if !has_line {
            return Ok(());
        }
        place.write(self.line(audit, &notes, Some(status), problem)).await;
        Ok(())
    }

    /// Returns true for a request that needs a line. Without a status, the caller has gone before
    /// the end.
    fn has_line(
        &self,
        audit: &Audit,
        notes: &Notes,
        status: Option<StatusCode>,
        problem: Option<ProblemType>,
    ) -> bool {
        use ProblemType as P;
        if self.has_no_line {
            return false;
        }
        let is_denied = notes.missing.is_some()
            || matches!(problem, Some(P::Unauthenticated | P::Forbidden | P::WrongHost));
        let is_done = status.is_none_or(|status| status.is_success());
        let may_be_done = is_done || matches!(problem, Some(P::OutcomeUnknown | P::Internal));
        let is_change = self.changes && may_be_done && !notes.is_dry_run;
        // A refusal may show the task that it is about.
        is_denied || is_change || (audit.has_reads && notes.shows_payload)
    }

    fn line(
        &self,
        audit: &Audit,
        notes: &Notes,
        status: Option<StatusCode>,
        problem: Option<ProblemType>,
    ) -> Vec<u8> {
        let access = self.operation.map(|operation| operation.access);
        let action = match notes.missing {
            Some(action) => action.name(),
            None => access.map_or("none", Access::action),
        };
        bytes_of(&LineJson {
            request_id: Some(&self.request_id),
            address: Some(DisplayJson(self.address)),
            operation: self.operation.map(|operation| operation.id),
            status: status.map(|status| status.as_u16()),
            problem: problem.map(ProblemType::slug),
            ..LineJson::of(&audit.node, action, notes)
        })
    }
}

impl Drop for AuditedRequest {
    /// Writes the line of a request whose caller has gone before its answer: a change may have
    /// been made.
    fn drop(&mut self) {
        let Some((place, audit)) = self.place.take().zip(self.audit.as_ref()) else { return };
        let notes = self.trail.notes();
        if self.has_line(audit, &notes, None, None) {
            drop(place.put(self.line(audit, &notes, None, None)));
        }
    }
}

#[derive(Serialize)]
struct LineJson<'a> {
    at: Rfc3339,
    node: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    request_id: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    principal: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    credential: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    address: Option<DisplayJson<IpAddr>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    operation: Option<&'static str>,
    /// The outbox or the intake topic.
    #[serde(skip_serializing_if = "Option::is_none")]
    source: Option<&'a str>,
    action: &'a str,
    /// The only topic that the request names.
    #[serde(skip_serializing_if = "Option::is_none")]
    topic: Option<&'a str>,
    /// Several topics, with the number of changed tasks of each.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    topics: BTreeMap<&'a str, u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    more_topics: Option<usize>,
    #[serde(skip_serializing_if = "TargetJson::is_empty")]
    target: TargetJson<'a>,
    /// The number of changed tasks.
    #[serde(skip_serializing_if = "Option::is_none")]
    count: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    unknown_count: Option<u64>,
    /// How many times a right was missing, by topic.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    denied: BTreeMap<&'a str, u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    more_denied: Option<usize>,
    #[serde(skip_serializing_if = "Option::is_none")]
    status: Option<u16>,
    #[serde(skip_serializing_if = "Option::is_none")]
    problem: Option<&'static str>,
}

#[derive(Serialize, Default)]
struct TargetJson<'a> {
    #[serde(skip_serializing_if = "Option::is_none")]
    id: Option<DisplayJson<TaskId>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    name: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    first_id: Option<DisplayJson<TaskId>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    last_id: Option<DisplayJson<TaskId>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    due_from: Option<Rfc3339>,
    #[serde(skip_serializing_if = "Option::is_none")]
    due_to: Option<Rfc3339>,
    #[serde(skip_serializing_if = "Option::is_none")]
    submitted_by: Option<&'a str>,
    /// The choice of the request. A key is not written.
    #[serde(skip_serializing_if = "Option::is_none")]
    id_count: Option<usize>,
    #[serde(skip_serializing_if = "Option::is_none")]
    name_count: Option<usize>,
    #[serde(skip_serializing_if = "Option::is_none")]
    name_prefix: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    by_key: Option<bool>,
}

impl<'a> TargetJson<'a> {
    fn of(notes: &'a Notes) -> Self {
        let several = notes.changed.filter(|(first, last)| first != last);
        let one = notes.changed.map(|(first, _)| first).filter(|_first| several.is_none());
        Self {
            id: notes.id.or(one).map(DisplayJson),
            name: notes.name.as_ref().map(|name| name.as_str()),
            first_id: several.map(|(first, _)| DisplayJson(first)),
            last_id: several.map(|(_, last)| DisplayJson(last)),
            due_from: notes.selection.due_from.map(Rfc3339),
            due_to: notes.selection.due_to.map(Rfc3339),
            submitted_by: notes.selection.submitted_by.as_ref().map(|name| name.as_str()),
            ..Self::of_choice(notes.selection.choice.as_ref())
        }
    }

    fn of_choice(choice: Option<&'a Choice>) -> Self {
        match choice {
            None => Self::default(),
            Some(Choice::Ids(ids)) => Self { id_count: Some(ids.len()), ..Self::default() },
            Some(Choice::Names(names)) => Self { name_count: Some(names.len()), ..Self::default() },
            Some(Choice::NamePrefix(prefix)) => {
                Self { name_prefix: Some(prefix), ..Self::default() }
            }
            Some(Choice::Key(_)) => Self { by_key: Some(true), ..Self::default() },
        }
    }

    fn is_empty(&self) -> bool {
        self.id.is_none()
            && self.name.is_none()
            && self.first_id.is_none()
            && self.due_from.is_none()
            && self.due_to.is_none()
            && self.submitted_by.is_none()
            && self.id_count.is_none()
            && self.name_count.is_none()
            && self.name_prefix.is_none()
            && self.by_key.is_none()
    }
}

impl<'a> LineJson<'a> {
    fn of(node: &'a str, action: &'a str, notes: &'a Notes) -> Self {
        let first_topics = notes.topics.iter().take(TOPICS_MAX);
        let mut topics: BTreeMap<&str, u64> =
            first_topics.map(|(topic, count)| (topic.as_str(), *count)).collect();
        let denied = notes.denied.iter().take(TOPICS_MAX).map(|(topic, count)| {
            let topic = topic.as_ref().map_or("*", |topic| topic.as_str());
            (topic, *count)
        });
        let denied: BTreeMap<&str, u64> = denied.collect();
        let named = topics.keys().chain(denied.keys()).copied().collect::<BTreeSet<_>>();
        let topic = named.first().copied().filter(|topic| named.len() == 1 && *topic != "*");
        if topic.is_some() {
            topics.clear();
        }
        let count = notes.topics.values().sum::<u64>() + notes.count_in_all;
        let beyond = |count: usize| Some(count.saturating_sub(TOPICS_MAX)).filter(|more| *more > 0);
        Self {
            at: Rfc3339(clock::wall()),
            node,
            request_id: None,
            principal: notes.caller.as_ref().map(|(name, _)| name.as_str()),
            credential: notes.caller.as_ref().map(|(_, credential)| credential.to_string()),
            address: None,
            operation: None,
            source: None,
            action,
            topic,
            topics,
            more_topics: beyond(notes.topics.len()),
            target: TargetJson::of(notes),
            count: (count > 0).then_some(count),
            unknown_count: (notes.unknown_count > 0).then_some(notes.unknown_count),
            denied,
            more_denied: beyond(notes.denied.len()),
            status: None,
            problem: None,
        }
    }
}

fn bytes_of(line: &LineJson<'_>) -> Vec<u8> {
    // The line consists of strings and numbers, so it always serialises.
    serde_json::to_vec(line).unwrap_or_default()
}
