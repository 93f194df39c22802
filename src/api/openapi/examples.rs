//! Answers of a real node, as examples in the document.
//!
//! tests/integration/interface.rs writes the file and checks in every run that
//! a node still answers like this.

use std::sync::LazyLock;

use axum::http::StatusCode;
use serde_json::Value;

use crate::api::problems::problem_type::ProblemType;

/// `answers`: operation, then status; `problems`: the last part of the type.
static EXAMPLES: LazyLock<Value> =
    LazyLock::new(|| serde_json::from_str(include_str!("examples.json")).unwrap_or_default());

/// Returns an answer of an operation. A test ensures that every JSON answer has one.
pub fn answer(operation: &str, status: StatusCode) -> Option<&'static Value> {
    EXAMPLES.get("answers")?.get(operation)?.get(status.as_str())
}

pub fn problem(kind: ProblemType) -> Option<&'static Value> {
    EXAMPLES.get("problems")?.get(kind.slug())
}
