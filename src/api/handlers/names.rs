//! Handlers of tasks by name: create or replace, look up, move, cancel. A task's name is the
//! caller's idempotency key.

use std::iter;
use std::sync::Arc;

use axum::body::Body;
use axum::extract::rejection::PathRejection;
use axum::extract::{Path, State};
use axum::http::{Request, StatusCode, Uri};
use axum::response::Response;

use super::tasks::{answer_of, answer_of_move, created, echo_of};
use crate::api::access::guard::Guard;
use crate::api::access::limits;
use crate::api::json::answers::{self, TaskJson};
use crate::api::problems::problem::Problem;
use crate::api::problems::refusal::of_refusal;
use crate::api::request::draft::{DraftReader, new_due_of};
use crate::api::request::query::Parameters;
use crate::api::request::{body, idempotency, preconditions, query};
use crate::api::shared::ApiShared;
use crate::domain::{Precondition, TaskName, TaskState, TopicName};
use crate::node::messages::{Placed, Refusal};

pub type NameInPath = Result<Path<(String, String)>, PathRejection>;

/// The reason why a PUT takes no `Idempotency-Key`.
const NO_KEY: &str = "nothing was done: Idempotency-Key is only for a POST; a PUT has the name in \
                      its path, and docs/how-to/names.md says how to repeat it";

/// Reads topic and name from the path. Returns a problem where no task can have them.
pub fn name_of(path: NameInPath) -> Result<(TopicName, TaskName), Problem> {
    let Path((topic, name)) = path
        .map_err(|_not_utf_8| Problem::invalid("name", "the path is not percent-encoded UTF-8"))?;
    let topic =
        TopicName::new(&topic).map_err(|error| Problem::invalid("topic", error.to_string()))?;
    let name = TaskName::new(&name).map_err(|error| Problem::invalid("name", error.to_string()))?;
    Ok((topic, name))
}

/// Handles `PUT /v1/topics/{topic}/tasks/{name}`.
pub async fn replace(
    State(shared): State<Arc<ApiShared>>,
    guard: Guard,
    path: NameInPath,
    request: Request<Body>,
) -> Result<Response, Problem> {
    let (deadline, arrived_at) = (shared.deadline(), shared.service.arrival());
    query::check_path(request.uri())?;
    let (when, not_after) = Parameters::read(request.uri(), &["when", "not_after"])?.when()?;
    let (topic, name) = name_of(path)?;
    // It withdraws the task of the name, so it needs both rights, whether there is one or not.
    guard.trail().names(&name);
    let permit = guard.replace_permit(&topic)?;
    idempotency::refuse(request.headers(), NO_KEY)?;
    let condition = Precondition { when, ..preconditions::of(request.headers())? };
    let reader = DraftReader::of(&request);
    let (bytes, _memory) = body::read(&shared, request, deadline).await?;
    let read = move |text: &str| reader.read_named(text, topic, name);
    let (mut draft, origin) = body::parse(&shared, deadline, bytes, read).await?;
    draft.due = not_after.map_or(draft.due, |limit| draft.due.not_after(limit, arrived_at));
    let draft = guard.permit_draft(draft)?;
    let policy = shared.policy.current();
    limits::check(&policy, guard.caller(), draft.draft(), origin, arrived_at)?;
    limits::charge(&shared.policy, guard.caller(), iter::once(&draft.draft().record))?;
    let echo = echo_of(draft.draft());
    let replaced = shared.service.replace(&permit, draft, &condition, arrived_at);
    let answer = shared.in_time(deadline.hold(replaced).await, Problem::replace_unknown)?;
    let placed = answer.map_err(|refusal| match refusal {
        Refusal::Unknown { reason } => Problem::replace_unknown(&guard.tells(reason.into_owned())),
        other => of_refusal(other.with_reason(|reason| guard.tells(reason)), origin),
    })?;
    if let Placed::Created(id) | Placed::Replaced(id) = placed {
        guard.trail().changed(&echo.topic, id);
        guard.count_submitted(1);
    }
    match placed {
        Placed::Created(id) => Ok(created(id, &TaskJson::of_new(id, TaskState::Scheduled, &echo))),
        Placed::Unmet(Some(current)) if when.is_some() => Err(Problem::unmet_by_put(current)),
        Placed::Unmet(current) => Err(Problem::unmet(current)),
        Placed::Replaced(id) => {
            Ok(answers::task(StatusCode::OK, &TaskJson::of_new(id, TaskState::Scheduled, &echo)))
        }
        Placed::TooLate(task) => {
            let detail = match task.state {
                TaskState::Awaiting | TaskState::Retrying => {
                    "nothing was changed: an attempt of the task of this name was published \
                     already; finish it first: POST /v1/topics/{topic}/tasks/{name}/finish"
                }
                _ => {
                    "nothing was changed: the task of this name is claimed, or an earlier attempt \
                     may be in its topic"
                }
            };
            let shows = guard.shows(&task.topic);
            Err(Problem::too_late(detail, *task, shows))
        }
    }
}

/// Handles `GET /v1/topics/{topic}/tasks/{name}`.
pub async fn look_up(
    State(shared): State<Arc<ApiShared>>,
    guard: Guard,
    path: NameInPath,
    uri: Uri,
) -> Result<Response, Problem> {
    let deadline = shared.deadline();
    query::refuse(&uri)?;
    let (topic, name) = name_of(path)?;
    guard.trail().names(&name);
    let permit = guard.permit(&topic)?;
    let look_up = shared.service.look_up_named(&permit, &name);
    match shared.ask(&guard, deadline, look_up, Problem::unavailable).await? {
        Some(view) => {
            Ok(answers::task(StatusCode::OK, &TaskJson::of_view(&view, guard.shows(&view.topic))))
        }
        None => Err(Problem::name_not_found()),
    }
}

/// Handles `PATCH /v1/topics/{topic}/tasks/{name}`.
pub async fn move_to(
    State(shared): State<Arc<ApiShared>>,
    guard: Guard,
    path: NameInPath,
    request: Request<Body>,
) -> Result<Response, Problem> {
    let (deadline, arrived_at) = (shared.deadline(), shared.service.arrival());
    query::refuse(request.uri())?;
    let condition = preconditions::of(request.headers())?;
    let (topic, name) = name_of(path)?;
    guard.trail().names(&name);
    let permit = guard.permit(&topic)?;
    let (bytes, memory) = body::read(&shared, request, deadline).await?;
    let (due, origin) = new_due_of(body::text_of(&bytes)?)?;
    drop((bytes, memory));
    let policy = shared.policy.current();
    limits::check_due(&policy, guard.caller(), Some(&topic), (due, arrived_at), origin)?;
    // The future is on the heap, because the one of the handler would be as large.
    let moving = Box::pin(shared.service.move_named(&permit, &name, &condition, (due, arrived_at)));
    let answer = shared.in_time(deadline.hold(moving).await, Problem::move_unknown)?;
    answer_of_move(&guard, answer, origin, Problem::name_not_found)
}

/// Handles `DELETE /v1/topics/{topic}/tasks/{name}`.
pub async fn cancel(
    State(shared): State<Arc<ApiShared>>,
    guard: Guard,
    path: NameInPath,
    request: Request<Body>,
) -> Result<Response, Problem> {
    let deadline = shared.deadline();
    query::refuse(request.uri())?;
    let condition = preconditions::of(request.headers())?;
    let (topic, name) = name_of(path)?;
    guard.trail().names(&name);
    let permit = guard.permit(&topic)?;
    body::refuse(&shared, request, deadline).await?;
    let cancelling = shared.service.cancel_named(&permit, &name, &condition);
    let verdict = shared.ask(&guard, deadline, cancelling, Problem::cancel_unknown).await?;
    answer_of(&guard, verdict, Problem::name_not_found)
}
