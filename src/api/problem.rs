//! What a caller is told when it does not get what it asked for: RFC 9457 `application/problem+json`, and the one table of its types.
//!
//! | `type` (after `urn:punctual:problem:`) | status | when |
//! |---|---|---|
//! | `malformed-json` | 400 | the body is not JSON, or not UTF-8; `detail` has line and column |
//! | `unknown-field` | 400 | a field, or a query parameter, that there is not |
//! | `duplicate-field` | 400 | a field twice in one object |
//! | `missing-field` | 400 | a required field, or all of a set of which one is required |
//! | `conflicting-fields` | 400 | two fields of which only one may be given |
//! | `invalid-value` | 400 | of the wrong type, or no value that the field can have: a topic name that Kafka cannot have, a time without zone |
//! | `not-found` | 404 | no such path |
//! | `task-not-found` | 404 | no such task, or the id is none |
//! | `method-not-allowed` | 405 | `Allow` names the methods of the path |
//! | `request-timeout` | 408 | the body did not arrive in time |
//! | `too-late` | 409 | the task was published, is on its way, or is a dead letter |
//! | `body-too-large` | 413 | over the bound on a body |
//! | `batch-too-large` | 413 | over 10,000 tasks in one batch |
//! | `unsupported-media-type` | 415 | not `application/json`, another charset than UTF-8, or compressed |
//! | `unknown-topic` | 422 | Kafka has no such topic |
//! | `record-too-large` | 422 | over what the topic takes |
//! | `too-far-ahead` | 422 | over `--delay-max` |
//! | `refused-value` | 422 | the database refused a value |
//! | `internal` | 500 | a bug |
//! | `busy` | 503 | a bound of this node is reached; nothing was done |
//! | `draining` | 503 | the node is about to leave; nothing was done |
//! | `unavailable` | 503 | a server is away; nothing was done |
//! | `outcome-unknown` | 503 | it may have been done, or not |
//! | `not-ready` | 503 | `/readyz`: `missing` says what is missing |
//!
//! The line between 400 and 422: what is wrong on any cluster is 400, what this cluster refuses (its topics, their limits, its longest delay) is 422.
//! All of 503 carry `Retry-After`, and `retry_after` (seconds) as a member, so that the problem of one task of a batch has it, too.

use std::borrow::Cow;
use std::time::Duration;

use axum::body::Body;
use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use serde::Serialize;

use super::task_json::TaskJson;
use crate::domain::{TaskView, Verdict};
use crate::node::service::{Missing, Refusal, Trouble};

/// What every `type` begins with. They name a problem and lead nowhere: a node cannot know where it can be reached for ever.
const TYPE_PREFIX: &str = "urn:punctual:problem:";

/// The types of problems: callers decide by them, so that they keep their meaning for ever. The table is this module's own page.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ProblemType {
    MalformedJson,
    UnknownField,
    DuplicateField,
    MissingField,
    ConflictingFields,
    InvalidValue,
    NotFound,
    TaskNotFound,
    MethodNotAllowed,
    RequestTimeout,
    TooLate,
    BodyTooLarge,
    BatchTooLarge,
    UnsupportedMediaType,
    UnknownTopic,
    RecordTooLarge,
    TooFarAhead,
    RefusedValue,
    Internal,
    Busy,
    Draining,
    Unavailable,
    OutcomeUnknown,
    NotReady,
}

impl ProblemType {
    /// The end of the `type`, the status, and the title.
    const fn row(self) -> (&'static str, u16, &'static str) {
        match self {
            Self::MalformedJson => ("malformed-json", 400, "The body is not JSON in UTF-8"),
            Self::UnknownField => ("unknown-field", 400, "There is no such field"),
            Self::DuplicateField => ("duplicate-field", 400, "A field is given twice"),
            Self::MissingField => ("missing-field", 400, "A required field is missing"),
            Self::ConflictingFields => ("conflicting-fields", 400, "Only one of these fields may be given"),
            Self::InvalidValue => ("invalid-value", 400, "A field has a value that it cannot have"),
            Self::NotFound => ("not-found", 404, "There is no such path"),
            Self::TaskNotFound => ("task-not-found", 404, "There is no such task"),
            Self::MethodNotAllowed => ("method-not-allowed", 405, "The path does not take this method"),
            Self::RequestTimeout => ("request-timeout", 408, "The request did not arrive in time"),
            Self::TooLate => ("too-late", 409, "The task can no longer be cancelled"),
            Self::BodyTooLarge => ("body-too-large", 413, "The body is too large"),
            Self::BatchTooLarge => ("batch-too-large", 413, "The batch has too many tasks"),
            Self::UnsupportedMediaType => ("unsupported-media-type", 415, "The body is not of a supported type"),
            Self::UnknownTopic => ("unknown-topic", 422, "Kafka has no such topic"),
            Self::RecordTooLarge => ("record-too-large", 422, "The record is larger than its topic takes"),
            Self::TooFarAhead => ("too-far-ahead", 422, "The due time is too far ahead"),
            Self::RefusedValue => ("refused-value", 422, "The database refused a value"),
            Self::Internal => ("internal", 500, "The node failed to answer"),
            Self::Busy => ("busy", 503, "A bound of this node is reached"),
            Self::Draining => ("draining", 503, "The node is about to leave"),
            Self::Unavailable => ("unavailable", 503, "A server that is needed is away"),
            Self::OutcomeUnknown => ("outcome-unknown", 503, "Whether it was done is unknown"),
            Self::NotReady => ("not-ready", 503, "The node is not ready"),
        }
    }

    /// The last part of the `type`.
    pub const fn slug(self) -> &'static str {
        self.row().0
    }

    pub fn status(self) -> StatusCode {
        StatusCode::from_u16(self.row().1).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR)
    }

    /// Seconds after which it is worth to ask again; all of 503 say one.
    const fn retry_after(self) -> Option<u32> {
        match self {
            Self::Busy => Some(1),
            Self::Unavailable | Self::OutcomeUnknown | Self::NotReady => Some(2),
            // Long enough for a load balancer to see that the node is no longer ready.
            Self::Draining => Some(5),
            _ => None,
        }
    }
}

/// One problem, about to be answered.
#[derive(Debug)]
pub struct Problem {
    kind: ProblemType,
    detail: Cow<'static, str>,
    field: Option<Cow<'static, str>>,
    more: Option<Box<More>>,
}

/// What only few problems carry.
#[derive(Debug, Default)]
struct More {
    verdict: Option<&'static str>,
    task: Option<TaskView>,
    missing: Vec<Missing>,
}

impl Problem {
    pub fn new(kind: ProblemType, detail: impl Into<Cow<'static, str>>) -> Self {
        Self { kind, detail: detail.into(), field: None, more: None }
    }

    /// A value that `field` cannot have; `detail` says what would be right.
    pub fn invalid(field: impl Into<Cow<'static, str>>, detail: impl Into<Cow<'static, str>>) -> Self {
        Self::new(ProblemType::InvalidValue, detail).at(field)
    }

    /// Says which field it is, as a path from the top of the body.
    #[must_use]
    pub fn at(mut self, field: impl Into<Cow<'static, str>>) -> Self {
        self.field = Some(field.into());
        self
    }

    /// The same problem seen from outside of the object at `path`.
    #[must_use]
    pub fn within(mut self, path: &str) -> Self {
        self.field = Some(match self.field {
            Some(field) => Cow::Owned(format!("{path}.{field}")),
            None => Cow::Owned(path.to_owned()),
        });
        self
    }

    /// No task has the id of the path.
    pub fn task_not_found(is_id: bool) -> Self {
        let detail = if is_id {
            "no task has this id: it never had one, or what is known of it is no longer kept"
        } else {
            "this is no id of a task: ids look like 01934b2e-7d3c-8017-9f2b-6a1c0e4d5b7f"
        };
        Self::new(ProblemType::TaskNotFound, detail).at("id")
    }

    /// Adds the verdict of a cancel that did not take effect.
    #[must_use]
    pub fn with_verdict(mut self, verdict: Verdict, task: Option<TaskView>) -> Self {
        let more = self.more.get_or_insert_default();
        more.verdict = Some(verdict_text(verdict));
        more.task = task;
        self
    }

    /// What keeps the node from being ready.
    pub fn not_ready(missing: Vec<Missing>) -> Self {
        let lacks: Vec<String> = missing.iter().map(|missing| format!("{}: {}", missing.what, missing.why)).collect();
        let more = More { missing, ..More::default() };
        Self { more: Some(Box::new(more)), ..Self::new(ProblemType::NotReady, lacks.join("; ")) }
    }

    pub const fn has_field(&self) -> bool {
        self.field.is_some()
    }

    pub const fn kind(&self) -> ProblemType {
        self.kind
    }

    pub fn json(&self) -> ProblemJson<'_> {
        let (slug, status, title) = self.kind.row();
        let more = self.more.as_deref();
        ProblemJson {
            kind: TypeUri(slug),
            title,
            status,
            detail: &self.detail,
            field: self.field.as_deref(),
            retry_after: self.kind.retry_after(),
            verdict: more.and_then(|more| more.verdict),
            task: more.and_then(|more| more.task.as_ref()).map(TaskJson::of_view),
            missing: more.map(|more| more.missing.as_slice()).unwrap_or_default().iter().map(MissingJson::of).collect(),
        }
    }
}

pub const fn verdict_text(verdict: Verdict) -> &'static str {
    match verdict {
        Verdict::Cancelled => "cancelled",
        Verdict::TooLate => "too_late",
        Verdict::NotFound => "not_found",
    }
}

/// A problem as it is answered.
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
    retry_after: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    verdict: Option<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    task: Option<TaskJson<'a>>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    missing: Vec<MissingJson<'a>>,
}

#[derive(Debug)]
struct TypeUri(&'static str);

impl Serialize for TypeUri {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(&format_args!("{TYPE_PREFIX}{}", self.0))
    }
}

/// Something that is missing, as `/readyz` and `/v1/cluster` show it.
#[derive(Serialize, Debug)]
pub struct MissingJson<'a> {
    what: &'static str,
    why: &'a str,
}

impl<'a> MissingJson<'a> {
    pub fn of(missing: &'a Missing) -> Self {
        Self { what: missing.what, why: &missing.why }
    }
}

impl IntoResponse for Problem {
    fn into_response(self) -> Response {
        let mut response = super::respond::json(self.kind.status(), &self.json());
        let headers = response.headers_mut();
        headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/problem+json"));
        if let Some(seconds) = self.kind.retry_after() {
            headers.insert(header::RETRY_AFTER, HeaderValue::from(seconds));
        }
        response
    }
}

impl From<Problem> for Response<Body> {
    fn from(problem: Problem) -> Self {
        problem.into_response()
    }
}

/// Where the parts of a task came from, so that a refusal can name the field.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Origin {
    pub due: &'static str,
    pub payload: &'static str,
}

impl Problem {
    /// Why the service did not store a task.
    pub fn of_refusal(refusal: Refusal, origin: Origin) -> Self {
        match refusal {
            Refusal::UnknownTopic => Self::new(
                ProblemType::UnknownTopic,
                "Kafka has no topic of this name; create it first (Punctual sees it within seconds), or correct the name",
            )
            .at("topic"),
            Refusal::TooLarge { size, size_max } => Self::new(
                ProblemType::RecordTooLarge,
                format!(
                    "the record takes up to {size} bytes, headers included, and its topic takes {size_max} (max.message.bytes)"
                ),
            )
            .at(origin.payload),
            Refusal::TooFar { delay_max } => Self::new(
                ProblemType::TooFarAhead,
                format!("a task may be due at most {} ahead (--delay-max)", span_text(delay_max)),
            )
            .at(origin.due),
            Refusal::BadValue { reason } => {
                Self::new(ProblemType::RefusedValue, format!("the database refused the task: {reason}"))
            }
            Refusal::Busy { bound } => Self::busy(bound),
            Refusal::Draining => Self::draining(),
            Refusal::Unavailable { reason } => Self::new(ProblemType::Unavailable, format!("nothing is stored: {reason}")),
            Refusal::Unknown { reason } => Self::submit_unknown(&reason),
        }
    }

    /// Why a look-up or a cancel has no answer.
    pub fn of_trouble(trouble: Trouble) -> Self {
        match trouble {
            Trouble::Busy { bound } => Self::busy(bound),
            Trouble::Unavailable { reason } => Self::new(ProblemType::Unavailable, reason),
            Trouble::Unknown { reason } => Self::cancel_unknown(&reason),
            Trouble::Draining => Self::draining(),
        }
    }

    pub fn busy(bound: &str) -> Self {
        Self::new(ProblemType::Busy, format!("nothing was done: the bound {bound} is reached; ask again, or ask another node"))
    }

    pub fn draining() -> Self {
        Self::new(ProblemType::Draining, "nothing was done: the node is about to leave; ask another node")
    }

    pub fn submit_unknown(reason: &str) -> Self {
        let detail = format!(
            "the task may be stored, or not: {reason}. Repeating is safe for a task with a name: the same name makes no second task. \
             Without a name, repeating may publish it twice"
        );
        Self::new(ProblemType::OutcomeUnknown, detail)
    }

    pub fn cancel_unknown(reason: &str) -> Self {
        let detail = format!("the cancel may have taken effect, or not: {reason}. Repeating it is safe");
        Self::new(ProblemType::OutcomeUnknown, detail)
    }
}

/// A span for people, in the largest unit that divides it.
fn span_text(span: Duration) -> String {
    let seconds = span.as_secs();
    match seconds {
        _ if span.subsec_nanos() > 0 => format!("{} s", span.as_secs_f64()),
        _ if seconds >= 86_400 && seconds.is_multiple_of(86_400) => format!("{} days", seconds / 86_400),
        _ if seconds >= 3600 && seconds.is_multiple_of(3600) => format!("{} h", seconds / 3600),
        _ if seconds >= 60 && seconds.is_multiple_of(60) => format!("{} min", seconds / 60),
        _ => format!("{seconds} s"),
    }
}
