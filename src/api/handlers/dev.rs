//! Handlers of a dev server only: the clock, and the records of the topics.

use std::sync::Arc;

use axum::body::Body;
use axum::extract::State;
use axum::http::{Request, StatusCode, Uri};
use axum::response::Response;
use az::SaturatingAs as _;
use serde::Serialize;
use serde_json::value::RawValue;
use tokio::sync::oneshot;

use crate::api::access::guard::Guard;
use crate::api::dev_port::{ClockChange, ClockRequest, DevPort, PublishedRequest, Unpublished};
use crate::api::json::answers::{self, RecordJson};
use crate::api::json::times::{self, Rfc3339};
use crate::api::problems::problem::Problem;
use crate::api::problems::problem_type::ProblemType;
use crate::api::request::fields::{boolean, members};
use crate::api::request::query::Parameters;
use crate::api::request::{body, query};
use crate::api::shared::ApiShared;

/// Records of one answer, by default and at most.
const RECORDS_MAX: usize = 10_000;

#[derive(Serialize)]
struct ClockJson {
    now: Rfc3339,
    ahead_ms: u64,
}

#[derive(Serialize)]
struct PublishedJson<'a> {
    topic: &'a str,
    records: Vec<RecordJson<'a>>,
}

/// Handles `POST /dev/clock`.
pub async fn clock(
    State(shared): State<Arc<ApiShared>>,
    guard: Guard,
    request: Request<Body>,
) -> Result<Response, Problem> {
    let deadline = shared.deadline();
    query::refuse(request.uri())?;
    guard.operate_permit()?;
    let (bytes, _share) = body::read(&shared, request, deadline).await?;
    let change = change_of(body::text_of(&bytes)?)?;
    let (answer, answered) = oneshot::channel();
    let asked = port_of(&shared)?.clock.send(ClockRequest { change, answer }).await;
    asked.map_err(|_ended| Problem::draining())?;
    let state = shared
        .in_time(deadline.hold(answered).await, Problem::unavailable)?
        .map_err(|_ended| Problem::draining())?
        .map_err(|reason| Problem::unavailable(&reason))?;
    let ahead_ms = state.ahead.as_millis().saturating_as();
    Ok(answers::json(StatusCode::OK, &ClockJson { now: Rfc3339(state.now), ahead_ms }))
}

fn change_of(text: &str) -> Result<ClockChange, Problem> {
    let [advance, reset] = members(text, &["advance", "reset"])?;
    let is_reset = |value: &RawValue| match boolean(value, "reset")? {
        true => Ok(ClockChange::Reset),
        false => Err(Problem::invalid("reset", "expected true, or another field")),
    };
    match (advance, reset) {
        (Some(span), None) => times::delay(span)
            .map(ClockChange::Advance)
            .map_err(|wrong| Problem::invalid("advance", wrong)),
        (None, Some(reset)) => is_reset(reset),
        (Some(_), Some(_)) => Err(Problem::new(
            ProblemType::ConflictingFields,
            "give advance or reset, one at a time",
        )
        .at("reset")),
        (None, None) => Err(Problem::new(
            ProblemType::MissingField,
            "give advance, a span of time such as \"30d\", or reset, which is true",
        )
        .at("advance")),
    }
}

/// Handles `GET /dev/published`.
pub async fn published(
    State(shared): State<Arc<ApiShared>>,
    guard: Guard,
    uri: Uri,
) -> Result<Response, Problem> {
    let deadline = shared.deadline();
    guard.operate_permit()?;
    let parameters = Parameters::read(&uri, &["topic", "limit"])?;
    let count_max = parameters.count("limit", RECORDS_MAX, RECORDS_MAX)?;
    let Some(topic) = parameters.topic()? else {
        let detail = "name the topic: /dev/published?topic=demo";
        return Err(Problem::new(ProblemType::MissingField, detail).at("topic"));
    };
    let (answer, answered) = oneshot::channel();
    let request = PublishedRequest { topic: topic.clone(), count_max, answer };
    let asked = port_of(&shared)?.published.send(request).await;
    asked.map_err(|_ended| Problem::draining())?;
    let found = shared
        .in_time(deadline.hold(answered).await, Problem::unavailable)?
        .map_err(|_ended| Problem::draining())?;
    let records = found.map_err(|reason| match reason {
        Unpublished::UnknownTopic => Problem::new(
            ProblemType::NotFound,
            "dev's broker has no such topic; start dev with --topic, or create it by a client",
        ),
        Unpublished::Unreadable(reason) => Problem::unavailable(&reason),
    })?;
    let records = records.iter().map(RecordJson::of).collect();
    Ok(answers::json(StatusCode::OK, &PublishedJson { topic: topic.as_str(), records }))
}

/// Returns the entrance to the dev server. Without one, there are no routes that ask for it.
fn port_of(shared: &ApiShared) -> Result<&DevPort, Problem> {
    let missing = || Problem::new(ProblemType::NotFound, "this node is no dev server");
    shared.settings.dev.as_ref().ok_or_else(missing)
}
