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
    description: "200 as long as the process answers. No server that it needs is asked: a restart would heal none of them.",
    parameters: &[],
    body: None,
    answers: &[OperationAnswer::json(StatusCode::OK, "Health", "It is.")],
    problems: &[],
    sample: ShellSample { before: "", path: "/livez" },
};

pub const READYZ: Operation = Operation {
    id: "getReadiness",
    tag: Tag::Node,
    access: Access::Open,
    summary: "Is the node ready?",
    description: "200 once it can claim and publish; else 503, with what is missing. Beside an operator port (`--operator-listen`), only that port says what is missing.",
    parameters: &[],
    body: None,
    answers: &[OperationAnswer::json(StatusCode::OK, "Health", "It is.")],
    problems: &[P::NotReady],
    sample: ShellSample { before: "", path: "/readyz" },
};

pub const METRICS: Operation = Operation {
    id: "getMetrics",
    tag: Tag::Node,
    access: Access::Operate,
    summary: "All metrics of the node",
    description: "docs/reference/metrics.md says what each of them means. With `--operator-listen`, only the operator port has them.",
    parameters: &[],
    body: None,
    answers: &[OperationAnswer::text(
        telemetry::CONTENT_TYPE,
        "OpenMetrics, as Prometheus reads it.",
    )],
    problems: &[],
    sample: ShellSample { before: "", path: "/metrics" },
};
