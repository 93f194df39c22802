//! The answers to cancels.

use axum::http::StatusCode;
use axum::response::Response;
use serde::Serialize;

use super::problem::{Problem, verdict_text};
use super::problem_type::ProblemType;
use super::respond;
use super::task_json::TaskJson;
use crate::domain::{TaskState, TaskView, Verdict};
use crate::node::service::Cancelled;

/// A cancel that took effect, now or before.
#[derive(Serialize)]
struct CancelledJson<'a> {
    verdict: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    task: Option<TaskJson<'a>>,
}

/// The answer to a cancel; `not_found` says what was not.
pub fn answer_of(cancelled: Cancelled, not_found: impl FnOnce() -> Problem) -> Result<Response, Problem> {
    match cancelled.verdict {
        Verdict::Cancelled => {
            let task = cancelled.task.as_ref().map(TaskJson::of_view);
            Ok(respond::json(StatusCode::OK, &CancelledJson { verdict: verdict_text(Verdict::Cancelled), task }))
        }
        Verdict::TooLate => Err(too_late(cancelled.task)),
        Verdict::NotFound => Err(not_found()),
    }
}

fn too_late(task: Option<TaskView>) -> Problem {
    let detail = match task.as_ref().map(|task| task.state) {
        Some(TaskState::Scheduled) => "the task waits for another attempt, and an earlier one may be in its topic already",
        Some(TaskState::Claimed) => "the task is on its way",
        Some(TaskState::Dead) => "the task is a dead letter, of which nothing is due any more: DELETE /v1/dead/{id} drops it",
        Some(TaskState::Published | TaskState::Cancelled) | None => "the task was published: its receipt says where",
    };
    Problem::new(ProblemType::TooLate, detail).with_verdict(Verdict::TooLate, task)
}
