//! A problem: the answer to a caller whose request failed, as RFC 9457 `application/problem+json`.

mod callers;
mod unknown;

use std::borrow::Cow;
use std::net::IpAddr;
use std::sync::Arc;

use axum::http::{HeaderValue, header};
use axum::response::{IntoResponse, Response};
use hyper::body::Body as _;
use serde::Serialize;

use super::problem_type::{ProblemType, TYPE_PREFIX};
use crate::access::Action;
use crate::api::json::answers::{DisplayJson, Shows, TaskJson};
use crate::domain::{TaskId, TaskView, TopicName};
use crate::node::messages::NotReady;

/// The `Accept-Encoding` that a caller gets back whose encoding is not supported (see `unpack`).
pub const ENCODINGS: &str = "gzip, zstd";

/// A problem that is about to be answered.
#[derive(Debug)]
pub struct Problem {
    kind: ProblemType,
    detail: Cow<'static, str>,
    field: Option<Cow<'static, str>>,
    /// The limit that is reached, for [`ProblemType::Busy`].
    limit: Option<&'static str>,
    more: Option<Box<More>>,
}

/// Members that only a few problems have.
#[derive(Debug, Default)]
struct More {
    verdict: Option<&'static str>,
    task: Option<(TaskView, Shows)>,
    /// True in an answer with many results: the task is shown as in a list.
    is_one_of_many: bool,
    current: Option<TaskId>,
    missing: Vec<NotReady>,
    /// True when the reasons of `missing` are not for this caller.
    hides_reasons: bool,
    action: Option<Action>,
    topic: Option<TopicName>,
    /// The error of `WWW-Authenticate`.
    error: Option<&'static str>,
    /// The seconds after which a retry makes sense, if different from the type's.
    retry_after: Option<u64>,
}

impl Problem {
    pub fn new(kind: ProblemType, detail: impl Into<Cow<'static, str>>) -> Self {
        Self { kind, detail: detail.into(), field: None, limit: None, more: None }
    }

    /// Makes the problem of a wrong value in `field`; `detail` names the right form.
    pub fn invalid(
        field: impl Into<Cow<'static, str>>,
        detail: impl Into<Cow<'static, str>>,
    ) -> Self {
        Self::new(ProblemType::InvalidValue, detail).at(field)
    }

    /// Sets the field, as a path from the top of the body.
    #[must_use]
    pub fn at(mut self, field: impl Into<Cow<'static, str>>) -> Self {
        self.field = Some(field.into());
        self
    }

    /// Puts `path`, that of the enclosing object, before the field.
    #[must_use]
    pub fn within(mut self, path: &str) -> Self {
        self.field = Some(match self.field {
            Some(field) => Cow::Owned(format!("{path}.{field}")),
            None => Cow::Owned(path.to_owned()),
        });
        self
    }

    /// Shows the task as in a list: the answer may have thousands.
    #[must_use]
    pub fn one_of_many(mut self) -> Self {
        if let Some(more) = &mut self.more {
            more.is_one_of_many = true;
        }
        self
    }

    /// Returns the field and the detail as one line.
    pub fn line(&self) -> String {
        let field = self.field.as_ref().map(|field| format!("{field}: ")).unwrap_or_default();
        format!("{field}{}", self.detail)
    }

    /// Makes the problem for a path without a route.
    pub fn no_such_path() -> Self {
        let detail = "/openapi.json lists all paths, and /console has pages";
        Self::new(ProblemType::NotFound, detail)
    }

    /// Makes the problem for an id in the path that no task has.
    pub fn task_not_found(is_id: bool) -> Self {
        let detail = if is_id {
            "no task has this id: there never was one, or its receipt has expired"
        } else {
            "this is not the id of a task: ids look like 01934b2e-7d3c-8017-9f2b-6a1c0e4d5b7f"
        };
        Self::new(ProblemType::TaskNotFound, detail).at("id")
    }

    /// Makes the problem for a name in the path that no task has.
    pub fn name_not_found() -> Self {
        let detail = "no task has this name: there never was one, or the name is free again";
        Self::new(ProblemType::TaskNotFound, detail).at("name")
    }

    /// Makes the problem of a cancel or a replacement that had no effect, because the state of
    /// `task` forbids it.
    pub fn too_late(detail: &'static str, task: TaskView, shows: Shows) -> Self {
        let more = More { verdict: Some("too_late"), task: Some((task, shows)), ..More::default() };
        Self { more: Some(Box::new(more)), ..Self::new(ProblemType::TooLate, detail) }
    }

    /// Makes the problem of a cancel whose task another one has replaced.
    pub fn replaced(task: TaskView, shows: Shows) -> Self {
        let detail = "a PUT by name has replaced this task; the task in its place is unchanged: to \
                      stop or move it, use the id in replaced_by";
        let more = More { verdict: Some("replaced"), task: Some((task, shows)), ..More::default() };
        Self { more: Some(Box::new(more)), ..Self::new(ProblemType::Replaced, detail) }
    }

    /// Makes the problem of a precondition that rules out the name's current task, or its absence.
    pub fn unmet(current: Option<TaskId>) -> Self {
        let detail = match current {
            Some(id) => {
                format!(
                    "nothing was changed: the name stands for the task {id}, which If-Match or \
                     If-None-Match excludes"
                )
            }
            None => "nothing was changed: the name stands for no task, and If-Match requires one"
                .to_owned(),
        };
        let more = More { current, ..More::default() };
        Self { more: Some(Box::new(more)), ..Self::new(ProblemType::PreconditionFailed, detail) }
    }

    /// Makes the problem of a PUT with `when`, and perhaps other preconditions, that the pending
    /// task of the name does not allow.
    pub fn unmet_by_put(current: TaskId) -> Self {
        let detail = format!(
            "nothing was changed: the name stands for the task {current}, and a condition of the \
             request (`when`, If-Match or If-None-Match) does not let it be replaced"
        );
        let more = More { current: Some(current), ..More::default() };
        Self { more: Some(Box::new(more)), ..Self::new(ProblemType::PreconditionFailed, detail) }
    }

    /// Makes the problem of a precondition that excludes the task whose id is in the path.
    pub fn unmet_by_id(id: TaskId) -> Self {
        let detail = format!(
            "nothing was changed: the ETag of the task is \"{id}\", which If-Match or \
             If-None-Match excludes"
        );
        let more = More { current: Some(id), ..More::default() };
        Self { more: Some(Box::new(more)), ..Self::new(ProblemType::PreconditionFailed, detail) }
    }

    /// Adds the verdict of a cancel that found no task.
    #[must_use]
    pub fn with_verdict_not_found(mut self) -> Self {
        self.more.get_or_insert_default().verdict = Some("not_found");
        self
    }

    /// Makes the problem of a node that is not ready. Only operators get the reasons.
    pub fn not_ready(missing: Vec<NotReady>, hides_reasons: bool) -> Self {
        let text = |missing: &NotReady| {
            if hides_reasons { missing.what.name().to_owned() } else { missing.to_string() }
        };
        let lacks: Vec<String> = missing.iter().map(text).collect();
        let more = More { missing, hides_reasons, ..More::default() };
        Self { more: Some(Box::new(more)), ..Self::new(ProblemType::NotReady, lacks.join("; ")) }
    }

    /// Makes the problem of a node that is not ready, for callers who may not know why.
    pub fn not_ready_for_unsaid_reasons() -> Self {
        Self::new(ProblemType::NotReady, "the operator port of this node has the reasons")
    }

    /// Makes the problem of a caller with too many requests. `set_by` names the source of the
    /// limit.
    pub fn too_many_requests(caller: IpAddr, requests_max: usize, set_by: &str) -> Self {
        let detail = format!(
            "nothing was done: the caller {caller} already has as many requests in progress as one \
             caller may have ({requests_max}: {set_by}); wait for their answers first"
        );
        Self::new(ProblemType::TooManyRequests, detail)
    }

    pub fn too_many_connections(caller: IpAddr, connections_max: usize) -> Self {
        let detail = format!(
            "nothing was done: the caller {caller} already has as many open connections as one \
             caller may have ({connections_max}: --caller-connections-max); close some, or send \
             more requests over each"
        );
        Self::new(ProblemType::TooManyRequests, detail)
    }

    pub fn header_too_large(bytes_max: usize) -> Self {
        let detail = format!(
            "nothing was done: the header may have {bytes_max} bytes at most, counting 32 extra \
             bytes per field"
        );
        Self::new(ProblemType::HeaderTooLarge, detail)
    }

    pub fn unsupported_encoding() -> Self {
        let detail = "compress the body with gzip or zstd, once, or not at all";
        Self::new(ProblemType::UnsupportedEncoding, detail).at("content-encoding")
    }

    /// Makes the problem of a reached limit. The router counts the limit with the answer, so that
    /// the service's limits are counted, too.
    pub fn busy(limit: &'static str) -> Self {
        let detail = format!(
            "nothing was done: the limit {limit}{} is reached; retry later, or ask another node",
            setting_of(limit)
        );
        Self { limit: Some(limit), ..Self::new(ProblemType::Busy, detail) }
    }

    pub fn draining() -> Self {
        Self::new(
            ProblemType::Draining,
            "nothing was done: the node is shutting down; ask another node",
        )
    }

    /// Makes the problem of a request that was not carried out, or that only reads. Callers can
    /// safely retry.
    pub fn unavailable(reason: &str) -> Self {
        Self::new(ProblemType::Unavailable, reason.to_owned())
    }

    /// The topic has no callback.
    pub fn callback_not_found() -> Self {
        Self::new(ProblemType::CallbackNotFound, "the topic has no callback").at("topic")
    }

    /// There is no such schedule.
    pub fn schedule_not_found() -> Self {
        Self::new(ProblemType::ScheduleNotFound, "the topic has no schedule of this name")
    }

    /// The revision of a schedule is another one than the caller expects. `None`: there is none.
    pub fn schedule_unmet(current: Option<u64>) -> Self {
        let detail = match current {
            Some(revision) => {
                format!("nothing was changed: the ETag of the schedule is \"{revision}\"")
            }
            None => "nothing was changed: there is no such schedule".to_owned(),
        };
        Self::new(ProblemType::PreconditionFailed, detail)
    }

    /// There is no such topic.
    pub fn topic_not_found() -> Self {
        let detail = "Kafka has no topic of this name, and Punctual has no tasks for it";
        Self::new(ProblemType::TopicNotFound, detail).at("topic")
    }

    /// A topic that does not exist gets no policy.
    pub fn unknown_topic(topic: &TopicName) -> Self {
        let detail = format!("nothing was changed: Kafka has no topic {topic}; create it first");
        Self::new(ProblemType::UnknownTopic, detail).at("topic")
    }

    /// The revision of a topic is another one than the caller expects. `None`: it has no policy.
    pub fn policy_unmet(current: Option<u64>) -> Self {
        let detail = match current {
            Some(revision) => {
                format!("nothing was changed: the ETag of the topic is \"{revision}\"")
            }
            None => "nothing was changed: the topic has no policy and is not paused".to_owned(),
        };
        Self::new(ProblemType::PreconditionFailed, detail)
    }

    /// Makes the problem for an id in the path that no dead letter has.
    pub fn dead_not_found() -> Self {
        let detail = "there is no dead letter with this id: the task is not dead, or the dead \
                      letter was redriven or dropped";
        Self::new(ProblemType::TaskNotFound, detail).at("id")
    }

    /// Makes the problem of a consumer's call that was refused with a verdict on its task.
    pub fn call_refused(
        (kind, verdict): (ProblemType, &'static str),
        detail: String,
        task: TaskView,
        shows: Shows,
    ) -> Self {
        let more = More { verdict: Some(verdict), task: Some((task, shows)), ..More::default() };
        Self { more: Some(Box::new(more)), ..Self::new(kind, detail) }
    }

    /// Makes the problem of a consumer's call that found its task between two places each time.
    pub fn call_found_no_place() -> Self {
        let detail = "nothing was done: other changes moved the task at the same time; repeat the \
                      call";
        Self::new(ProblemType::Busy, detail)
    }

    /// Returns the right that is missing on a topic, if that is the problem.
    pub fn denied(&self) -> Option<(Action, TopicName)> {
        let more = self.more.as_deref()?;
        Some((more.action?, more.topic.clone()?))
    }

    pub fn verdict(&self) -> Option<&'static str> {
        self.more.as_deref().and_then(|more| more.verdict)
    }

    pub fn field(&self) -> Option<&str> {
        self.field.as_deref()
    }

    pub const fn has_field(&self) -> bool {
        self.field.is_some()
    }

    /// Returns the limit that is reached, if that is the problem.
    pub const fn limit(&self) -> Option<&'static str> {
        self.limit
    }

    pub const fn kind(&self) -> ProblemType {
        self.kind
    }

    /// Writes the problem into `response`, which has its status and perhaps headers already. With
    /// `is_head`, leaves out the body.
    pub fn write(&self, response: &mut Response, request_id: &str, is_head: bool) {
        let json = ProblemJson { request_id: Some(request_id), ..self.json() };
        let (parts, body) = crate::api::json::answers::json(self.kind.status(), &json).into_parts();
        let headers = response.headers_mut();
        let length = body.size_hint().exact().unwrap_or_default();
        headers.insert(header::CONTENT_LENGTH, HeaderValue::from(length));
        headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/problem+json"));
        headers.insert(header::LINK, self.kind.help());
        if let Some(seconds) = self.retry_after() {
            headers.insert(header::RETRY_AFTER, HeaderValue::from(seconds));
        }
        if let Some(challenge) = self.challenge() {
            headers.insert(header::WWW_AUTHENTICATE, HeaderValue::from_static(challenge));
        }
        if self.kind == ProblemType::UnsupportedEncoding {
            headers.insert(header::ACCEPT_ENCODING, HeaderValue::from_static(ENCODINGS));
        }
        *response.status_mut() = parts.status;
        if !is_head {
            *response.body_mut() = body;
        }
    }

    fn retry_after(&self) -> Option<u64> {
        let own = self.more.as_deref().and_then(|more| more.retry_after);
        own.or_else(|| self.kind.retry_after().map(u64::from))
    }

    fn challenge(&self) -> Option<&'static str> {
        match (self.kind, self.more.as_deref().and_then(|more| more.error)) {
            (_, Some("invalid_token")) => Some(r#"Bearer realm="punctual", error="invalid_token""#),
            (_, Some(_)) => Some(r#"Bearer realm="punctual", error="insufficient_scope""#),
            (ProblemType::Unauthenticated, None) => Some(r#"Bearer realm="punctual""#),
            (_, None) => None,
        }
    }

    pub fn json(&self) -> ProblemJson<'_> {
        let row = self.kind.row();
        let more = self.more.as_deref();
        ProblemJson {
            kind: TypeUri(row.slug),
            title: row.title,
            status: row.status,
            detail: &self.detail,
            field: self.field.as_deref(),
            retry_after: self.retry_after(),
            request_id: None,
            verdict: more.and_then(|more| more.verdict),
            replaced_by: more
                .and_then(|more| more.task.as_ref())
                .and_then(|(task, _)| task.replaced_by)
                .map(DisplayJson),
            current_id: more.and_then(|more| more.current).map(DisplayJson),
            action: more.and_then(|more| more.action).map(Action::name),
            topic: more.and_then(|more| more.topic.as_ref()).map(TopicName::as_str),
            task: more.and_then(|more| more.task.as_ref()).map(|(task, shows)| {
                match more.is_some_and(|more| more.is_one_of_many) {
                    true => TaskJson::of_listed(task, *shows),
                    false => TaskJson::of_view(task, *shows),
                }
            }),
            missing: more
                .map(|more| more.missing.as_slice())
                .unwrap_or_default()
                .iter()
                .map(|missing| {
                    NotReadyJson::new(missing, more.is_some_and(|more| more.hides_reasons))
                })
                .collect(),
        }
    }
}

/// Returns the flag that sets a limit, in brackets. Returns an empty text for a limit that is not a
/// setting.
fn setting_of(limit: &str) -> &'static str {
    match limit {
        "requests_in_flight" => " (--requests-max)",
        "connections" => " (--connections-max)",
        "body_memory" => " (--body-memory)",
        "body_memory_share" => " (half of --body-memory for one caller)",
        "submit_queue" => " (--submit-queue)",
        "submit_queue_bytes" => " (--submit-queue-bytes)",
        "cancel_queue" => " (--cancel-queue)",
        "answer_queue" => " (--answer-queue)",
        "audit" => " (--audit-file cannot be written)",
        _ => "",
    }
}

/// A problem in JSON.
#[derive(Serialize, Debug)]
pub struct ProblemJson<'a> {
    #[serde(rename = "type")]
    kind: TypeUri,
    title: &'static str,
    status: u16,
    detail: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    field: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    retry_after: Option<u64>,
    /// The id in the header `x-request-id`. The problem of one item of a bulk submit has none.
    #[serde(skip_serializing_if = "Option::is_none")]
    request_id: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    verdict: Option<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    replaced_by: Option<DisplayJson<TaskId>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    current_id: Option<DisplayJson<TaskId>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    action: Option<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    topic: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    task: Option<TaskJson<'a>>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    missing: Vec<NotReadyJson<'a>>,
}

#[derive(Debug)]
struct TypeUri(&'static str);

impl Serialize for TypeUri {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(&format_args!("{TYPE_PREFIX}{}", self.0))
    }
}

/// A reason why a node is not ready, as `/readyz` and `/v1/cluster` show it.
#[derive(Serialize, Debug)]
pub struct NotReadyJson<'a> {
    what: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    why: Option<&'a str>,
}

impl<'a> NotReadyJson<'a> {
    pub fn of(missing: &'a NotReady) -> Self {
        Self::new(missing, false)
    }

    fn new(missing: &'a NotReady, hides_reasons: bool) -> Self {
        let why = Some(missing.why.as_str()).filter(|_why| !hides_reasons);
        Self { what: missing.what.name(), why }
    }
}

/// Attaches the problem to its answer. [`Problem::write`] fills in the body once the request's id
/// is known.
impl IntoResponse for Problem {
    fn into_response(self) -> Response {
        let mut response = self.kind.status().into_response();
        response.extensions_mut().insert(Arc::new(self));
        response
    }
}
