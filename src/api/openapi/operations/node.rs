//! Operations that a platform asks of a node: probes and metrics.

use axum::http::StatusCode;

use crate::api::access::required::Access;
use crate::api::openapi::operation::{Operation, OperationAnswer, ShellSample, Tag};
use crate::api::problems::problem_type::ProblemType as P;
use crate::telemetry;

pub const LIVEZ: Operation = Operation {
    id: "getLiveness",
    tag: Tag::Node,
    access: Access::Open,
    summary: "Is the node alive?",
    description: "200 while the process answers. The check asks no other server, because a restart \
                  of the node would repair none of them.",
    parameters: &[],
    body: None,
    answers: &[OperationAnswer::json(StatusCode::OK, "Health", "The node is alive.")],
    problems: &[],
    sample: ShellSample { before: "", path: "/livez" },
};

pub const READYZ: Operation = Operation {
    id: "getReadiness",
    tag: Tag::Node,
    access: Access::Open,
    summary: "Is the node ready?",
    description: "200 while the node can claim and publish. Otherwise 503, with the missing parts; \
                  on a node with an operator port (`--operator-listen`), only that port lists \
                  them.",
    parameters: &[],
    body: None,
    answers: &[OperationAnswer::json(StatusCode::OK, "Health", "The node is ready.")],
    problems: &[P::NotReady],
    sample: ShellSample { before: "", path: "/readyz" },
};

pub const METRICS: Operation = Operation {
    id: "getMetrics",
    tag: Tag::Node,
    access: Access::Operate,
    summary: "All metrics of the node",
    description: "docs/reference/metrics.md describes each of them. With `--operator-listen`, only \
                  the operator port serves them.",
    parameters: &[],
    body: None,
    answers: &[OperationAnswer::text(telemetry::CONTENT_TYPE, "OpenMetrics, for Prometheus.")],
    problems: &[],
    sample: ShellSample { before: "", path: "/metrics" },
};
