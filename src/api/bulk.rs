//! What changes dead letters, and many tasks at once: cancels by topic and due time; dead letters put back or dropped.

use std::sync::Arc;

use axum::body::Body;
use axum::extract::State;
use axum::http::{Request, StatusCode};
use axum::response::Response;
use serde::Serialize;
use serde_json::value::RawValue;

use super::fields::{boolean, members, string};
use super::lists::{cursor_of, text_of};
use super::problem::Problem;
use super::problem_type::ProblemType;
use super::shared::{Deadline, Shared};
use super::task_json::TaskJson;
use super::tasks::{IdInPath, id_of};
use super::times::{self, Rfc3339};
use super::{body, query, respond};
use crate::domain::{List, TaskId, TaskView, Timestamp, TopicName};
use crate::node::service::{Bulk, BulkDone};

const FIELDS: [&str; 5] = ["topic", "due_from", "due_to", "dry_run", "cursor"];

/// Which tasks are meant. The topic is required: nobody should empty a cluster by a forgotten field.
fn bulk_of(text: &str, list: List) -> Result<Bulk, Problem> {
    let [topic, due_from, due_to, dry_run, cursor] = members(text, &FIELDS)?;
    let Some(topic) = topic else {
        return Err(Problem::new(ProblemType::MissingField, "the topic whose tasks are meant is required").at("topic"));
    };
    let topic = TopicName::new(&string(topic, "topic")?).map_err(|error| Problem::invalid("topic", error.to_string()))?;
    let time = |value: Option<&RawValue>, field: &'static str| -> Result<Option<Timestamp>, Problem> {
        value.map(times::due_at).transpose().map_err(|wrong| Problem::invalid(field, wrong))
    };
    let is_dry_run = dry_run.map(|value| boolean(value, "dry_run")).transpose()?.unwrap_or(false);
    let bulk = Bulk { topic, due_from: time(due_from, "due_from")?, due_to: time(due_to, "due_to")?, is_dry_run, from: None };
    // Null, for a caller who copies it from an answer that has none.
    let cursor = cursor.filter(|cursor| cursor.get() != "null").map(|cursor| string(cursor, "cursor")).transpose()?;
    let from = cursor.map(|cursor| cursor_of(&cursor, list, &bulk.selection())).transpose()?;
    Ok(Bulk { from, ..bulk })
}

async fn read_bulk(shared: &Shared, request: Request<Body>, deadline: Deadline, list: List) -> Result<Bulk, Problem> {
    query::refuse(request.uri())?;
    let (bytes, _share) = body::read(shared, request, deadline).await?;
    bulk_of(body::text_of(&bytes)?, list)
}

/// A call whose answer was lost. A dry run has changed nothing in any case.
fn unknown_of(bulk: &Bulk, done: &'static str, reason: &str) -> Problem {
    if bulk.is_dry_run { Problem::unavailable(reason) } else { Problem::bulk_unknown(done, reason) }
}

/// How far a call has come; beside it stands how many it has changed.
#[derive(Serialize)]
struct ProgressJson {
    more: bool,
    dry_run: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    searched_to: Option<Rfc3339>,
    #[serde(skip_serializing_if = "Option::is_none")]
    cursor: Option<String>,
}

fn progress_of(bulk: &Bulk, done: &BulkDone, list: List) -> ProgressJson {
    ProgressJson {
        more: done.has_more,
        dry_run: bulk.is_dry_run,
        searched_to: done.searched_to.map(|cursor| Rfc3339(TaskId::from_uuid(cursor.after).due_at())),
        cursor: done.searched_to.map(|cursor| text_of(cursor, list, &bulk.selection())),
    }
}

#[derive(Serialize)]
struct CancelledJson {
    cancelled: u64,
    #[serde(flatten)]
    progress: ProgressJson,
}

/// `POST /v1/tasks/cancel`
pub async fn cancel(State(shared): State<Arc<Shared>>, request: Request<Body>) -> Result<Response, Problem> {
    let deadline = shared.deadline();
    let bulk = read_bulk(&shared, request, deadline, List::Tasks).await?;
    let unknown = |reason: &str| unknown_of(&bulk, "cancelled", reason);
    let done = shared.ask(deadline, shared.service.cancel_all(&bulk), unknown).await?;
    let progress = progress_of(&bulk, &done, List::Tasks);
    Ok(respond::json(StatusCode::OK, &CancelledJson { cancelled: done.task_count, progress }))
}

#[derive(Serialize)]
struct RedrivenJson {
    redriven: u64,
    #[serde(flatten)]
    progress: ProgressJson,
}

/// `POST /v1/dead/redrive`
pub async fn redrive_all(State(shared): State<Arc<Shared>>, request: Request<Body>) -> Result<Response, Problem> {
    let deadline = shared.deadline();
    let bulk = read_bulk(&shared, request, deadline, List::DeadLetters).await?;
    let unknown = |reason: &str| unknown_of(&bulk, "redriven", reason);
    let done = shared.ask(deadline, shared.service.redrive_all(&bulk), unknown).await?;
    let progress = progress_of(&bulk, &done, List::DeadLetters);
    Ok(respond::json(StatusCode::OK, &RedrivenJson { redriven: done.task_count, progress }))
}

#[derive(Serialize)]
struct DroppedJson {
    dropped: u64,
    #[serde(flatten)]
    progress: ProgressJson,
}

/// `POST /v1/dead/drop`
pub async fn drop_all_dead(State(shared): State<Arc<Shared>>, request: Request<Body>) -> Result<Response, Problem> {
    let deadline = shared.deadline();
    let bulk = read_bulk(&shared, request, deadline, List::DeadLetters).await?;
    let unknown = |reason: &str| unknown_of(&bulk, "dropped", reason);
    let done = shared.ask(deadline, shared.service.drop_all_dead(&bulk), unknown).await?;
    let progress = progress_of(&bulk, &done, List::DeadLetters);
    Ok(respond::json(StatusCode::OK, &DroppedJson { dropped: done.task_count, progress }))
}

#[derive(Serialize)]
struct OneJson<'a> {
    task: TaskJson<'a>,
}

/// The answer to a change of one dead letter.
fn answer_of(task: Option<TaskView>) -> Result<Response, Problem> {
    match task {
        Some(view) => Ok(respond::json(StatusCode::OK, &OneJson { task: TaskJson::of_view(&view) })),
        None => Err(Problem::dead_not_found()),
    }
}

/// `POST /v1/dead/{id}/redrive`
pub async fn redrive(State(shared): State<Arc<Shared>>, path: IdInPath, request: Request<Body>) -> Result<Response, Problem> {
    let deadline = shared.deadline();
    query::refuse(request.uri())?;
    body::refuse(&shared, request, deadline).await?;
    let Some(id) = id_of(path) else { return Err(Problem::task_not_found(false)) };
    let unknown = |reason: &str| Problem::dead_unknown("redriven", reason);
    answer_of(shared.ask(deadline, shared.service.redrive(id), unknown).await?)
}

/// `DELETE /v1/dead/{id}`
pub async fn drop_dead(State(shared): State<Arc<Shared>>, path: IdInPath, request: Request<Body>) -> Result<Response, Problem> {
    let deadline = shared.deadline();
    query::refuse(request.uri())?;
    body::refuse(&shared, request, deadline).await?;
    let Some(id) = id_of(path) else { return Err(Problem::task_not_found(false)) };
    let unknown = |reason: &str| Problem::dead_unknown("dropped", reason);
    answer_of(shared.ask(deadline, shared.service.drop_dead(id), unknown).await?)
}
