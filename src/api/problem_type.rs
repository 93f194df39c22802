//! The one table of the types of problems.
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
//! | `task-not-found` | 404 | no such task, or the id is none; no task has the name; no such dead letter |
//! | `method-not-allowed` | 405 | `Allow` names the methods of the path |
//! | `request-timeout` | 408 | the body did not arrive in time |
//! | `too-late` | 409 | a cancel: the task was published, is on its way, or is a dead letter; a replacement: it is on its way |
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

use axum::http::StatusCode;

/// What every `type` begins with. They name a problem and lead nowhere: a node cannot know where it can be reached for ever.
pub(super) const TYPE_PREFIX: &str = "urn:punctual:problem:";

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
    pub(super) const fn row(self) -> (&'static str, u16, &'static str) {
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
            Self::TooLate => ("too-late", 409, "The task can no longer be stopped"),
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
    pub(super) const fn retry_after(self) -> Option<u32> {
        match self {
            Self::Busy => Some(1),
            Self::Unavailable | Self::OutcomeUnknown | Self::NotReady => Some(2),
            // Long enough for a load balancer to see that the node is no longer ready.
            Self::Draining => Some(5),
            _ => None,
        }
    }
}
