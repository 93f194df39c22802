//! Query parameters.

use axum::http::Uri;

use super::problem::Problem;
use super::problem_type::ProblemType;

/// Refuses query parameters where there are none: a `?dry_run=true` that were ignored would do harm.
pub fn refuse(uri: &Uri) -> Result<(), Problem> {
    let Some(query) = uri.query().filter(|query| !query.is_empty()) else { return Ok(()) };
    let name: String = query.split(['=', '&']).next().unwrap_or(query).chars().take(100).collect();
    Err(Problem::new(ProblemType::UnknownField, "this path takes no query parameters").at(name))
}
