//! Handlers about one node: liveness, readiness, metrics, and the docs of its interface.

use std::sync::Arc;

use axum::extract::rejection::PathRejection;
use axum::extract::{Path, State};
use axum::http::{StatusCode, Uri};
use axum::response::{IntoResponse, Response};
use serde::Serialize;

use crate::api::access::guard::Guard;
use crate::api::json::answers;
use crate::api::problems::pages;
use crate::api::problems::problem::Problem;
use crate::api::problems::problem_type::ProblemType;
use crate::api::request::query;
use crate::api::shared::{ApiShared, Port};
use crate::telemetry;

#[derive(Serialize)]
struct Health {
    status: &'static str,
}

/// Answers 200 as long as the process answers. Postgres, Kafka and etcd are not asked, because a
/// restart of the node would not mend them.
pub async fn livez() -> Response {
    answers::json(StatusCode::OK, &Health { status: "alive" })
}

/// Answers 200 once the node can claim and publish, and 503 with the reasons until then. Only
/// operators get the reasons, because the reasons contain inner addresses and messages of servers.
/// A node with an operator port gives the reasons on that port only.
pub async fn readyz(State(shared): State<Arc<ApiShared>>, guard: Guard) -> Response {
    let missing = shared.service.missing();
    if missing.is_empty() {
        return answers::json(StatusCode::OK, &Health { status: "ready" });
    }
    if shared.settings.port == Port::Public {
        return Problem::not_ready_for_unsaid_reasons().into_response();
    }
    Problem::not_ready(missing, !guard.operates()).into_response()
}

/// Answers all metrics of the process, as OpenMetrics.
pub async fn metrics(State(shared): State<Arc<ApiShared>>) -> Response {
    match telemetry::encode(&shared.registry) {
        Ok(text) => answers::text(StatusCode::OK, telemetry::CONTENT_TYPE, text),
        Err(error) => {
            Problem::new(ProblemType::Internal, format!("write the metrics down: {error}"))
                .into_response()
        }
    }
}

const MARKDOWN: &str = "text/markdown; charset=utf-8";

/// Handles `GET /openapi.json`.
pub async fn document(State(shared): State<Arc<ApiShared>>, uri: Uri) -> Result<Response, Problem> {
    query::refuse(&uri)?;
    Ok(answers::text(StatusCode::OK, "application/json", shared.document.clone()))
}

/// Handles `GET /problems`.
pub async fn problems(uri: Uri) -> Result<Response, Problem> {
    query::refuse(&uri)?;
    Ok(answers::text(StatusCode::OK, MARKDOWN, pages::all()))
}

/// Handles `GET /problems/{slug}`.
pub async fn problem(
    path: Result<Path<String>, PathRejection>,
    uri: Uri,
) -> Result<Response, Problem> {
    query::refuse(&uri)?;
    let page = path.ok().and_then(|Path(slug)| pages::of(&slug));
    let page = page.ok_or_else(|| {
        Problem::new(
            ProblemType::NotFound,
            "there is no such type of problem; GET /problems lists all of them",
        )
    })?;
    Ok(answers::text(StatusCode::OK, MARKDOWN, page))
}
