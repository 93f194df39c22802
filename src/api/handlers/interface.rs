//! The interface about itself: the OpenAPI document, and the pages of the types of problems.

use std::sync::Arc;

use axum::extract::rejection::PathRejection;
use axum::extract::{Path, State};
use axum::http::{StatusCode, Uri};
use axum::response::Response;

use crate::api::json::respond;
use crate::api::problems::pages;
use crate::api::problems::problem::Problem;
use crate::api::problems::problem_type::ProblemType;
use crate::api::request::query;
use crate::api::shared::Shared;

const MARKDOWN: &str = "text/markdown; charset=utf-8";

/// `GET /openapi.json`
pub async fn document(State(shared): State<Arc<Shared>>, uri: Uri) -> Result<Response, Problem> {
    query::refuse(&uri)?;
    Ok(respond::text(StatusCode::OK, "application/json", shared.document.clone()))
}

/// `GET /problems`
pub async fn problems(uri: Uri) -> Result<Response, Problem> {
    query::refuse(&uri)?;
    Ok(respond::text(StatusCode::OK, MARKDOWN, pages::all()))
}

/// `GET /problems/{slug}`
pub async fn problem(path: Result<Path<String>, PathRejection>, uri: Uri) -> Result<Response, Problem> {
    query::refuse(&uri)?;
    let page = path.ok().and_then(|Path(slug)| pages::of(&slug));
    let page = page
        .ok_or_else(|| Problem::new(ProblemType::NotFound, "there is no such type of problem; GET /problems has all of them"))?;
    Ok(respond::text(StatusCode::OK, MARKDOWN, page))
}
