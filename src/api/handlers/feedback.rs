//! Handlers of the answers of consumers about tracked tasks: finish, fail and extend, by id, by
//! name, or many at once.

pub(super) mod answer;
pub(super) mod call;
pub mod callback;
pub mod pop;

use std::collections::BTreeSet;
use std::sync::Arc;

use axum::body::Body;
use axum::extract::State;
use axum::http::{Request, StatusCode};
use axum::response::Response;
use serde::Serialize;

use self::answer::Heeded;
use self::call::{CallKind, NamedTask};
use super::names::{NameInPath, name_of};
use super::tasks::{FoundPermit, IdInPath, id_of, permit_of_task, permits_of_tasks};
use crate::access::permit::Finish;
use crate::api::access::guard::Guard;
use crate::api::access::limits::{self, Unchanged};
use crate::api::json::answers::{self, TaskJson};
use crate::api::metrics::ApiMetrics;
use crate::api::problems::problem::{Problem, ProblemJson};
use crate::api::problems::problem_type::ProblemType;
use crate::api::problems::refusal::of_unavailable;
use crate::api::request::body_memory::BodyMemory;
use crate::api::request::fields::{Array, array, members};
use crate::api::request::{body, preconditions, query};
use crate::api::shared::{ApiShared, Deadline};
use crate::domain::{TaskId, Timestamp};
use crate::node::messages::Unavailable;
use crate::node::messages::answers::{ConsumerCall, Heard, Target};

/// The most outcomes of one request.
const OUTCOMES_MAX: usize = Array::ITEMS_MAX;
/// Memory of an outcome besides its bytes, until the answer is made: call, task and result.
const ITEM_BYTES: usize = 1024;
/// Approximate bytes of a result.
const RESULT_BYTES: usize = 400;

macro_rules! handlers {
    ($($kind:ident: $by_id:ident, $by_name:ident;)*) => {$(
        #[doc = concat!("Handles ", stringify!($kind), " of a task by its id.")]
        pub async fn $by_id(
            State(shared): State<Arc<ApiShared>>,
            guard: Guard,
            path: IdInPath,
            request: Request<Body>,
        ) -> Result<Response, Problem> {
            answer_by_id(&shared, &guard, path, (CallKind::$kind, request)).await
        }

        #[doc = concat!("Handles ", stringify!($kind), " of the task of a name.")]
        pub async fn $by_name(
            State(shared): State<Arc<ApiShared>>,
            guard: Guard,
            path: NameInPath,
            request: Request<Body>,
        ) -> Result<Response, Problem> {
            answer_by_name(&shared, &guard, path, (CallKind::$kind, request)).await
        }
    )*};
}

handlers! {
    Finish: finish, finish_named;
    Fail: fail, fail_named;
    Extend: extend, extend_named;
}

async fn answer_by_id(
    shared: &ApiShared,
    guard: &Guard,
    path: IdInPath,
    (kind, request): (CallKind, Request<Body>),
) -> Result<Response, Problem> {
    let (deadline, arrived_at) = (shared.deadline(), shared.service.arrival());
    query::refuse(request.uri())?;
    preconditions::refuse(request.headers())?;
    let (bytes, memory) = body::read_optional(shared, request, deadline).await?;
    let call = call::read(kind, body::text_of(&bytes)?, arrived_at)?;
    drop((bytes, memory));
    let Some(id) = id_of(path) else {
        return Err(Problem::task_not_found(false).with_verdict_not_found());
    };
    guard.trail().names_id(id);
    let not_found = || Problem::task_not_found(true).with_verdict_not_found();
    let permit = permit_of_task(shared, guard, id, deadline).await?.ok_or_else(not_found)?;
    answer_one(shared, guard, deadline, (Target::Id(permit), call), not_found).await
}

async fn answer_by_name(
    shared: &ApiShared,
    guard: &Guard,
    path: NameInPath,
    (kind, request): (CallKind, Request<Body>),
) -> Result<Response, Problem> {
    let (deadline, arrived_at) = (shared.deadline(), shared.service.arrival());
    query::refuse(request.uri())?;
    preconditions::refuse(request.headers())?;
    let (topic, name) = name_of(path)?;
    guard.trail().names(&name);
    let permit = guard.permit(&topic)?;
    let (bytes, memory) = body::read_optional(shared, request, deadline).await?;
    let call = call::read(kind, body::text_of(&bytes)?, arrived_at)?;
    drop((bytes, memory));
    let not_found = || Problem::name_not_found().with_verdict_not_found();
    answer_one(shared, guard, deadline, (Target::Name(permit, name), call), not_found).await
}

async fn answer_one(
    shared: &ApiShared,
    guard: &Guard,
    deadline: Deadline,
    call: (Target, ConsumerCall),
    not_found: impl FnOnce() -> Problem,
) -> Result<Response, Problem> {
    let answering = async {
        let reason = "the service gave no answer".to_owned();
        let none = Err(Unavailable::Unknown { reason });
        shared.service.answer(vec![call]).await.pop().unwrap_or(none)
    };
    let heard = shared.ask(guard, deadline, answering, Problem::outcome_of_call_unknown).await?;
    let heeded = heed(guard, heard, not_found)?;
    Ok(answers::json(StatusCode::OK, &heeded.json()))
}

/// Returns the answer for the result of a call, and notes its change.
fn heed(
    guard: &Guard,
    heard: Heard,
    not_found: impl FnOnce() -> Problem,
) -> Result<Heeded, Problem> {
    match heard {
        Heard::Tracked(verdict, task) => {
            let shows = guard.shows(&task.topic);
            let heeded = answer::of_verdict(verdict, task, shows)?;
            guard.trail().changed(&heeded.task.topic, heeded.task.id);
            Ok(heeded)
        }
        Heard::NotTracked(task) => {
            let shows = guard.shows(&task.topic);
            Err(answer::not_tracked(task, shows))
        }
        Heard::NotFound => Err(not_found()),
    }
}

/// Handles `POST /v1/outcomes`. Each outcome gets its own result. The whole request is refused only
/// if its outcomes cannot be told apart.
pub async fn outcomes(
    State(shared): State<Arc<ApiShared>>,
    guard: Guard,
    request: Request<Body>,
) -> Result<Response, Problem> {
    let (deadline, arrived_at) = (shared.deadline(), shared.service.arrival());
    query::refuse(request.uri())?;
    preconditions::refuse(request.headers())?;
    let (bytes, memory) = body::read(&shared, request, deadline).await?;
    let metrics = shared.metrics.clone();
    let reading = move |text: &str| read_outcomes(text, arrived_at, memory, &metrics);
    let (_memory, read) = body::parse(&shared, deadline, bytes, reading).await?;
    let permitted = permitted(&shared, &guard, deadline, read).await;
    let hidden_count = count_of(&permitted, StatusCode::NOT_FOUND);
    let results = answer_many(&shared, &guard, deadline, permitted).await?;
    let reached: BTreeSet<&'static str> =
        results.iter().filter_map(|result| result.as_ref().err()?.limit()).collect();
    reached.into_iter().for_each(|limit| shared.metrics.rejected(limit));
    // The hidden tasks are counted already.
    let absent_count = count_of(&results, StatusCode::NOT_FOUND);
    let rest_count = absent_count.saturating_sub(hidden_count);
    limits::owe_reads(&shared.policy, guard.caller(), rest_count);
    let is_unchanged = absent_count == 0 && count_of(&results, StatusCode::CONFLICT) > 0;
    let results: Vec<ResultJson<'_>> = results.iter().map(result_json).collect();
    let capacity = results.len().saturating_mul(RESULT_BYTES);
    let mut response = answers::json_of(StatusCode::OK, &OutcomesJson { results }, capacity);
    if is_unchanged {
        response.extensions_mut().insert(Unchanged);
    }
    Ok(response)
}

fn count_of<T>(results: &[Result<T, Problem>], status: StatusCode) -> usize {
    let problems = results.iter().filter_map(|result| result.as_ref().err());
    problems.filter(|problem| problem.kind().status() == status).count()
}

/// An outcome as it was read, with its index.
type ReadItem = (usize, Result<(NamedTask, ConsumerCall), Problem>);

/// An outcome after the rights of its caller were checked. For one that is named by an id, the
/// second value says so.
type PermittedItem = Result<((Target, ConsumerCall), bool), Problem>;

fn read_outcomes(
    text: &str,
    arrived_at: Option<Timestamp>,
    mut memory: BodyMemory,
    metrics: &ApiMetrics,
) -> Result<(BodyMemory, Vec<ReadItem>), Problem> {
    let [outcomes] = members(text, &["outcomes"])?;
    let Some(outcomes) = outcomes else {
        let detail = "the array outcomes is required";
        return Err(Problem::new(ProblemType::MissingField, detail).at("outcomes"));
    };
    let outcomes = array(outcomes, "outcomes")?;
    if outcomes.count > OUTCOMES_MAX {
        metrics.rejected("outcomes");
        let detail = format!(
            "a request may have {OUTCOMES_MAX} outcomes at most, but this one has {}; send several",
            outcomes.count
        );
        return Err(Problem::new(ProblemType::BatchTooLarge, detail).at("outcomes"));
    }
    memory.grow(outcomes.count.saturating_mul(ITEM_BYTES))?;
    let mut read = Vec::with_capacity(outcomes.items.len());
    for (index, item) in outcomes.items.iter().enumerate() {
        let item = call::read_item(item.get(), arrived_at);
        read.push((index, item.map_err(|problem| problem.within(&item_path(index)))));
    }
    Ok((memory, read))
}

fn item_path(index: usize) -> String {
    format!("outcomes[{index}]")
}

/// Checks the rights to all outcomes. The topics of tasks that are named by ids are looked up
/// together.
async fn permitted(
    shared: &ApiShared,
    guard: &Guard,
    deadline: Deadline,
    items: Vec<ReadItem>,
) -> Vec<PermittedItem> {
    let id_of_item = |(_index, item): &ReadItem| match item {
        Ok((NamedTask::Id(id), _call)) => Some(*id),
        Ok((NamedTask::Name(..), _)) | Err(_) => None,
    };
    let ids: Vec<TaskId> = items.iter().filter_map(id_of_item).collect();
    let permits = permits_of_tasks::<Finish>(shared, guard, &ids, deadline).await;
    let mut permits = permits.into_iter();
    items.into_iter().map(|item| permitted_item(guard, item, &mut permits)).collect()
}

/// Checks the right to one outcome. `permits` has the next permit for a task that is named by its
/// id.
fn permitted_item(
    guard: &Guard,
    (index, item): ReadItem,
    permits: &mut impl Iterator<Item = FoundPermit<Finish>>,
) -> PermittedItem {
    let (task, call) = item?;
    match task {
        NamedTask::Id(_id) => match permits.next().unwrap_or(Ok(None))? {
            Some(permit) => Ok(((Target::Id(permit), call), true)),
            None => Err(item_not_found(index, true)),
        },
        NamedTask::Name(topic, name) => {
            let permit = guard.permit(&topic);
            let permit = permit.map_err(|problem| problem.within(&item_path(index)))?;
            Ok(((Target::Name(permit, name), call), false))
        }
    }
}

fn item_not_found(index: usize, is_id: bool) -> Problem {
    let problem = if is_id { Problem::task_not_found(true) } else { Problem::name_not_found() };
    problem.with_verdict_not_found().within(&item_path(index))
}

/// Hands the permitted outcomes to the service. Returns all results in their order.
async fn answer_many(
    shared: &ApiShared,
    guard: &Guard,
    deadline: Deadline,
    items: Vec<PermittedItem>,
) -> Result<Vec<Result<Heeded, Problem>>, Problem> {
    let mut results = Vec::with_capacity(items.len());
    let mut asked = Vec::with_capacity(items.len());
    let mut calls = Vec::with_capacity(items.len());
    for (index, item) in items.into_iter().enumerate() {
        match item {
            Ok((call, is_id)) => {
                calls.push(call);
                asked.push((index, is_id));
            }
            Err(problem) => results.push((index, Err(problem))),
        }
    }
    if !calls.is_empty() {
        let answering = Box::pin(shared.service.answer(calls));
        let heard =
            shared.in_time(deadline.hold(answering).await, Problem::outcome_of_call_unknown)?;
        debug_assert_eq!(heard.len(), asked.len(), "each call has a result");
        for ((index, is_id), heard) in asked.into_iter().zip(heard) {
            results.push((index, heed_item(guard, heard, || item_not_found(index, is_id))));
        }
        results.sort_by_key(|(index, _)| *index);
    }
    Ok(results.into_iter().map(|(_, result)| result).collect())
}

fn heed_item(
    guard: &Guard,
    heard: Result<Heard, Unavailable>,
    not_found: impl FnOnce() -> Problem,
) -> Result<Heeded, Problem> {
    let heard = heard.map_err(|unavailable| {
        if matches!(unavailable, Unavailable::Unknown { .. }) {
            guard.trail().perhaps_changed();
        }
        let unavailable = unavailable.with_reason(|reason| guard.tells(reason));
        of_unavailable(unavailable, Problem::outcome_of_call_unknown)
    })?;
    heed(guard, heard, not_found).map_err(Problem::one_of_many)
}

#[derive(Serialize)]
struct OutcomesJson<'a> {
    results: Vec<ResultJson<'a>>,
}

/// The result of one of many outcomes.
#[derive(Serialize)]
struct ResultJson<'a> {
    status: u16,
    #[serde(skip_serializing_if = "Option::is_none")]
    verdict: Option<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    in_flight: Option<bool>,
    #[serde(skip_serializing_if = "Option::is_none")]
    superseded: Option<bool>,
    #[serde(skip_serializing_if = "Option::is_none")]
    task: Option<TaskJson<'a>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    problem: Option<ProblemJson<'a>>,
}

/// Shows a task as in a list: the answer may have thousands.
fn result_json(result: &Result<Heeded, Problem>) -> ResultJson<'_> {
    match result {
        Ok(heeded) => ResultJson {
            status: StatusCode::OK.as_u16(),
            verdict: Some(heeded.verdict),
            in_flight: Some(heeded.in_flight),
            superseded: Some(heeded.superseded),
            task: Some(TaskJson::of_listed(&heeded.task, heeded.shows)),
            problem: None,
        },
        Err(problem) => ResultJson {
            status: problem.kind().status().as_u16(),
            verdict: problem.verdict(),
            in_flight: None,
            superseded: None,
            task: None,
            problem: Some(problem.json()),
        },
    }
}
