//! What a platform asks: is it alive, is it ready, how is it doing.

use std::sync::Arc;

use axum::extract::State;
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use serde::Serialize;

use crate::api::json::respond;
use crate::api::problems::problem::Problem;
use crate::api::problems::problem_type::ProblemType;
use crate::api::shared::Shared;
use crate::telemetry;

#[derive(Serialize)]
struct Health {
    status: &'static str,
}

/// 200 as long as the process answers: no server that it needs is asked, for a restart would heal none of them.
pub async fn livez() -> Response {
    respond::json(StatusCode::OK, &Health { status: "alive" })
}

/// 200 once the node can claim and publish; 503 with what is missing.
pub async fn readyz(State(shared): State<Arc<Shared>>) -> Response {
    let missing = shared.service.missing();
    if missing.is_empty() {
        return respond::json(StatusCode::OK, &Health { status: "ready" });
    }
    Problem::not_ready(missing).into_response()
}

/// All metrics of the process, as OpenMetrics.
pub async fn metrics(State(shared): State<Arc<Shared>>) -> Response {
    match telemetry::encode(&shared.registry) {
        Ok(text) => respond::text(StatusCode::OK, telemetry::CONTENT_TYPE, text),
        Err(error) => Problem::new(ProblemType::Internal, format!("write the metrics down: {error}")).into_response(),
    }
}
