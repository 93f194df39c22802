//! Operations of a dev server only. The OpenAPI document is the same for all nodes and leaves these
//! out; docs/how-to/test-your-code.md describes both.

use axum::http::StatusCode;

use crate::api::access::required::Access;
use crate::api::openapi::operation::{Operation, OperationAnswer, ShellSample, Tag};
use crate::api::problems::problem_type::ProblemType as P;

pub const CLOCK: Operation = Operation {
    id: "setDevClock",
    tag: Tag::Cluster,
    access: Access::Operate,
    summary: "Let time pass",
    description: "Publishes all that is due until then.",
    parameters: &[],
    body: None,
    answers: &[OperationAnswer::json(StatusCode::OK, "DevClock", "The time.")],
    problems: &[
        P::MalformedJson,
        P::MalformedEncoding,
        P::UnknownField,
        P::DuplicateField,
        P::MissingField,
        P::ConflictingFields,
        P::InvalidValue,
        P::RequestTimeout,
        P::BodyTooLarge,
        P::UnsupportedMediaType,
        P::UnsupportedEncoding,
        P::Unavailable,
    ],
    sample: ShellSample { before: "", path: "/dev/clock" },
};

pub const PUBLISHED: Operation = Operation {
    id: "getDevPublished",
    tag: Tag::Cluster,
    access: Access::Operate,
    summary: "The records of a topic",
    description: "Reads dev's own broker.",
    parameters: &[],
    body: None,
    answers: &[OperationAnswer::json(StatusCode::OK, "DevPublished", "The records.")],
    problems: &[
        P::UnknownField,
        P::DuplicateField,
        P::MissingField,
        P::InvalidValue,
        P::NotFound,
        P::Unavailable,
    ],
    sample: ShellSample { before: "", path: "/dev/published" },
};
