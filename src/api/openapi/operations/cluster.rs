//! Operations of the cluster, and of the interface itself.

use axum::http::StatusCode;

use crate::api::access::required::Access;
use crate::api::openapi::operation::{Operation, OperationAnswer, Parameter, ShellSample, Tag};
use crate::api::problems::problem_type::ProblemType as P;

pub const SHOW: Operation = Operation {
    id: "getCluster",
    tag: Tag::Cluster,
    access: Access::Operate,
    summary: "The cluster",
    description: "The nodes with their shards and heartbeats, and the backlog, as seen by the node \
                  that answers.",
    parameters: &[],
    body: None,
    answers: &[OperationAnswer::json(StatusCode::OK, "Cluster", "The cluster.")],
    problems: &[P::Unavailable],
    sample: ShellSample { before: "", path: "/v1/cluster" },
};

pub const WHO_AM_I: Operation = Operation {
    id: "getWhoAmI",
    tag: Tag::Cluster,
    access: Access::Known,
    summary: "The caller and its rights",
    description: "The principal of the credential, the public id of the credential, and the \
                  rights. Without an auth file, every caller is `anonymous` and has all rights.",
    parameters: &[],
    body: None,
    answers: &[OperationAnswer::json(StatusCode::OK, "WhoAmI", "The caller.")],
    problems: &[],
    sample: ShellSample { before: "", path: "/v1/whoami" },
};

pub const INTERFACE: Operation = Operation {
    id: "getInterface",
    tag: Tag::Cluster,
    access: Access::Open,
    summary: "This document",
    description: "The API of this node as OpenAPI 3.0, the same as docs/openapi.json of its \
                  version.",
    parameters: &[],
    body: None,
    answers: &[OperationAnswer::json(StatusCode::OK, "OpenApiDocument", "The document.")],
    problems: &[],
    sample: ShellSample { before: "", path: "/openapi.json" },
};

pub const PROBLEMS: Operation = Operation {
    id: "getProblems",
    tag: Tag::Cluster,
    access: Access::Open,
    summary: "All types of problems",
    description: "The meaning of each `type`, and advice. The same as docs/problems.md of this \
                  version.",
    parameters: &[],
    body: None,
    answers: &[OperationAnswer::text("text/markdown", "The page.")],
    problems: &[],
    sample: ShellSample { before: "", path: "/problems" },
};

pub const PROBLEM: Operation = Operation {
    id: "getProblem",
    tag: Tag::Cluster,
    access: Access::Open,
    summary: "One type of problem",
    description: "The header `Link` (rel=\"help\") of a problem leads here.",
    parameters: &[Parameter::path(
        "slug",
        "The part of the `type` after `urn:punctual:problem:`.",
        "ProblemSlug",
    )],
    body: None,
    answers: &[OperationAnswer::text("text/markdown", "Its meaning, and advice.")],
    problems: &[P::NotFound],
    sample: ShellSample { before: "", path: "/problems/too-late" },
};
