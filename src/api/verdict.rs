//! The answers to cancels.

use axum::http::StatusCode;
use axum::response::Response;
use serde::Serialize;

use super::problem::{Problem, verdict_text};
use super::problem_type::ProblemType;
use super::respond;
use super::task_json::TaskJson;
use crate::domain::{TaskView, Verdict};
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
    let detail = "the task was published, is on its way, or is a dead letter: its state says which, its receipt where it went";
    Problem::new(ProblemType::TooLate, detail).with_verdict(Verdict::TooLate, task)
}
