//! The answers to cancels.

use axum::http::StatusCode;
use axum::response::Response;
use serde::Serialize;

use crate::api::json::respond;
use crate::api::json::task_json::TaskJson;
use crate::api::problems::problem::Problem;
use crate::domain::TaskState;
use crate::node::messages::Verdict;

/// A cancel that took effect, now or before.
#[derive(Serialize)]
struct CancelledJson<'a> {
    verdict: &'static str,
    task: TaskJson<'a>,
}

/// The answer to a cancel; `not_found` says what was not.
pub fn answer_of(verdict: Verdict, not_found: impl FnOnce() -> Problem) -> Result<Response, Problem> {
    match verdict {
        Verdict::Cancelled(task) => {
            let answer = CancelledJson { verdict: "cancelled", task: TaskJson::of_view(&task) };
            Ok(respond::json(StatusCode::OK, &answer))
        }
        Verdict::TooLate(task) => Err(Problem::too_late(too_late_for(task.state), task)),
        Verdict::NotFound => Err(not_found().with_verdict_not_found()),
    }
}

const fn too_late_for(state: TaskState) -> &'static str {
    match state {
        TaskState::Scheduled => "the task waits for another attempt, and an earlier one may be in its topic already",
        TaskState::Claimed => "the task is on its way",
        TaskState::Dead => "the task is a dead letter, of which nothing is due any more: DELETE /v1/dead/{id} drops it",
        TaskState::Published | TaskState::Cancelled => "the task was published: its receipt says where",
    }
}
