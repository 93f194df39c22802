//! Finishes tracked tasks, as consumers do.

use hyper::Method;
use serde::Serialize;

use super::http::Http;
use super::intake::CallResult;
use super::rest::{answered, json, told};

/// The answer for one attempt.
#[derive(Debug, Serialize)]
pub struct Outcome<'a> {
    id: &'a str,
    outcome: &'static str,
    attempt: u16,
}

impl<'a> Outcome<'a> {
    pub fn finish(id: &'a str, attempt: u16) -> Self {
        Self { id, outcome: "finish", attempt }
    }
}

/// Finishes one task by its path.
///
/// # Errors
/// Returns the reason as text when no answer came.
pub async fn finish_one(http: &mut Http, path: &str, attempt: u16) -> Result<CallResult, String> {
    #[derive(Serialize)]
    struct Body {
        attempt: u16,
    }
    let answer = http.call(Method::POST, path, json(&Body { attempt })?).await?;
    Ok(if answer.status == 200 { CallResult::All } else { CallResult::None(told(&answer)) })
}

/// Finishes tasks in one call.
///
/// # Errors
/// Returns the reason as text when it is not known whether the call took effect.
pub async fn finish_all(http: &mut Http, outcomes: Vec<Outcome<'_>>) -> Result<CallResult, String> {
    #[derive(Serialize)]
    struct Outcomes<'a> {
        outcomes: Vec<Outcome<'a>>,
    }
    let count = outcomes.len();
    let answer = http.call(Method::POST, "/v1/outcomes", json(&Outcomes { outcomes })?).await?;
    answered(&answer, count)
}
