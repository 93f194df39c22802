//! Handlers of tasks: submit one or many, look up, move, cancel.

use std::collections::{BTreeMap, BTreeSet};
use std::iter;
use std::pin::pin;
use std::sync::Arc;

use axum::body::Body;
use axum::extract::rejection::PathRejection;
use axum::extract::{Path, State};
use axum::http::{HeaderValue, Request, StatusCode, Uri, header};
use axum::response::Response;
use serde::Serialize;

use crate::access::Policy;
use crate::access::permit::{Move, Right};
use crate::api::access::guard::Guard;
use crate::api::access::limits;
use crate::api::json::answers::{self, Echo, TaskJson};
use crate::api::metrics::ApiMetrics;
use crate::api::problems::problem::{Problem, ProblemJson};
use crate::api::problems::problem_type::ProblemType;
use crate::api::problems::refusal::{FieldOrigin, of_refusal, of_unavailable};
use crate::api::request::body_memory::BodyMemory;
use crate::api::request::draft::{DraftReader, new_due_of};
use crate::api::request::fields::{Array, array, members};
use crate::api::request::{body, idempotency, preconditions, query};
use crate::api::shared::{ApiShared, Deadline};
use crate::domain::{ExpiryTime, TaskId, TaskState, TaskView, Timestamp};
use crate::node::messages::permitted::{FoundTopic, PermittedDraft, TaskPermit};
use crate::node::messages::{
    Accepted, CancelVerdict, Draft, MoveVerdict, Refusal, SubmitAnswer, Unavailable,
};

/// Memory of a task in a bulk submit besides its bytes, until the answer is made: the task as read,
/// as stored, and the fields that its answer repeats.
const ITEM_BYTES: usize = 512;
/// Approximate bytes of an item in the answer to a bulk submit.
const RESULT_BYTES: usize = 200;
/// Maximum number of tasks whose topics are looked up together. Those that are not there count as
/// reads after each look-up.
const TOPICS_AT_ONCE: usize = 500;

/// The reason why a bulk submit takes no `Idempotency-Key`.
const NO_KEY_OF_BATCH: &str = "nothing was done: Idempotency-Key is for one task; to repeat a bulk \
                               submit safely, give each task a name";

/// Handles `POST /v1/tasks`.
pub async fn submit(
    State(shared): State<Arc<ApiShared>>,
    guard: Guard,
    request: Request<Body>,
) -> Result<Response, Problem> {
    let (deadline, arrived_at) = (shared.deadline(), shared.service.arrival());
    query::refuse(request.uri())?;
    preconditions::refuse(request.headers())?;
    let key = idempotency::key_of(request.headers())?;
    let mut reader = DraftReader::of(&request);
    let (bytes, _memory) = body::read(&shared, request, deadline).await?;
    let read = move |text: &str| reader.read(text);
    let (draft, origin) = body::parse(&shared, deadline, bytes, read).await?;
    let draft = guard.permit_draft(idempotency::name(draft, key)?)?;
    limits::check(&shared.policy.current(), guard.caller(), draft.draft(), origin, arrived_at)?;
    limits::charge(&shared.policy, guard.caller(), iter::once(&draft.draft().record))?;
    let echo = echo_of(draft.draft());
    // Pinned here, so that the large future is not moved once more.
    let submitting = pin!(shared.service.submit(draft, arrived_at));
    let answer = shared.in_time(deadline.hold(submitting).await, Problem::submit_unknown)?;
    let accepted = answer
        .map_err(|refusal| of_refusal(refusal.with_reason(|reason| guard.tells(reason)), origin))?;
    guard.trail().names_id(accepted.id);
    if accepted.is_new {
        guard.trail().changed(&echo.topic, accepted.id);
        guard.count_submitted(1);
        return Ok(created(accepted.id, &TaskJson::of_new(accepted.id, accepted.state, &echo)));
    }
    if !guard.reads(&echo.topic) {
        let known = TaskJson::of_known(accepted.id, accepted.state, &echo).redacted();
        return Ok(answers::task(StatusCode::OK, &known));
    }
    // The answer shows the first task completely if the look-up succeeds. Otherwise the state that
    // the submit has seen is enough.
    let finding = shared.service.find(guard.caller(), accepted.id);
    let found = deadline.hold(finding).await.ok().and_then(Result::ok);
    Ok(match found.flatten().and_then(|task| guard.show_found(task)) {
        Some(view) => {
            answers::task(StatusCode::OK, &TaskJson::of_view(&view, guard.shows(&view.topic)))
        }
        None => {
            answers::task(StatusCode::OK, &TaskJson::of_known(accepted.id, accepted.state, &echo))
        }
    })
}

pub fn echo_of(draft: &Draft) -> Echo {
    Echo {
        topic: draft.record.topic.clone(),
        name: draft.name.clone(),
        key: draft.record.key.clone(),
        tracking: draft.tracking.clone(),
        expires_at: draft.expiry.and_then(|expiry| match expiry.time {
            ExpiryTime::At(at) => Some(at),
            ExpiryTime::After(_) => None,
        }),
    }
}

/// Returns the answer for a new task, with its `Location`.
pub fn created(id: TaskId, task: &TaskJson<'_>) -> Response {
    let mut response = answers::task(StatusCode::CREATED, task);
    let mut location = String::with_capacity(48);
    location.push_str("/v1/tasks/");
    location.push_str(id.uuid().hyphenated().encode_lower(&mut [0; 36]));
    if let Ok(location) = HeaderValue::try_from(location) {
        response.headers_mut().insert(header::LOCATION, location);
    }
    response
}

/// The result of one task of a bulk submit.
#[derive(Serialize)]
struct ItemJson<'a> {
    status: u16,
    #[serde(skip_serializing_if = "Option::is_none")]
    task: Option<TaskJson<'a>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    problem: Option<ProblemJson<'a>>,
}

#[derive(Serialize)]
struct BatchJson<'a> {
    results: Vec<ItemJson<'a>>,
}

/// Handles `POST /v1/tasks/batch`. Each task gets its own answer. The whole bulk submit is refused
/// only if its items cannot be told apart.
pub async fn submit_batch(
    State(shared): State<Arc<ApiShared>>,
    guard: Guard,
    request: Request<Body>,
) -> Result<Response, Problem> {
    let (deadline, arrived_at) = (shared.deadline(), shared.service.arrival());
    query::refuse(request.uri())?;
    preconditions::refuse(request.headers())?;
    idempotency::refuse(request.headers(), NO_KEY_OF_BATCH)?;
    let reader = DraftReader::of(&request);
    let (bytes, memory) = body::read(&shared, request, deadline).await?;
    let batch = BatchReader {
        shared: shared.clone(),
        policy: shared.policy.current(),
        guard: guard.clone(),
        arrived_at,
        reader,
    };
    let (_memory, (drafts, mut done)) =
        body::parse(&shared, deadline, bytes, move |text| batch.read(text, memory)).await?;
    if !drafts.is_empty() {
        let charged = drafts.iter().map(|(_, draft)| &draft.draft().record);
        limits::charge(&shared.policy, guard.caller(), charged)?;
        let submitting = deadline.hold(shared.service.submit_many(drafts, arrived_at));
        let answers = shared.in_time(submitting.await, Problem::submit_unknown)?;
        done.extend(answers.into_iter().map(|(item, answer)| item.with_answer(&guard, answer)));
        done.sort_by_key(|(index, _)| *index);
    }
    let done: Vec<DoneItem> = done.into_iter().map(|(_, item)| item).collect();
    count((&shared.metrics, &guard), &done);
    let results: Vec<ItemJson<'_>> = done.iter().map(item_json).collect();
    let capacity = results.len().saturating_mul(RESULT_BYTES);
    Ok(answers::json_of(StatusCode::OK, &BatchJson { results }, capacity))
}

/// A valid item of a bulk submit, besides its draft.
struct ReadItem {
    index: usize,
    echo: Echo,
    origin: FieldOrigin,
}

impl ReadItem {
    /// Returns the item with the answer to its draft, and its index.
    fn with_answer(self, guard: &Guard, answer: SubmitAnswer) -> (usize, DoneItem) {
        let Self { index, echo, origin } = self;
        let done = match answer {
            Ok(accepted) => {
                if accepted.is_new {
                    guard.trail().changed(&echo.topic, accepted.id);
                }
                Ok((echo, accepted))
            }
            Err(refusal) => {
                if matches!(refusal, Refusal::Unknown { .. }) {
                    guard.trail().perhaps_changed();
                }
                let problem = of_refusal(refusal.with_reason(|reason| guard.tells(reason)), origin);
                Err(if problem.has_field() { problem.within(&item_path(index)) } else { problem })
            }
        };
        (index, done)
    }
}

/// The valid items of a bulk submit with their drafts, and the others, each with its index.
type ReadBatch = (Vec<(ReadItem, PermittedDraft)>, Vec<(usize, DoneItem)>);

/// Reads the items of a bulk submit.
struct BatchReader {
    shared: Arc<ApiShared>,
    policy: Arc<Policy>,
    guard: Guard,
    arrived_at: Option<Timestamp>,
    reader: DraftReader,
}

impl BatchReader {
    fn read(
        mut self,
        text: &str,
        mut memory: BodyMemory,
    ) -> Result<(BodyMemory, ReadBatch), Problem> {
        let [tasks] = members(text, &["tasks"])?;
        let Some(tasks) = tasks else {
            return Err(
                Problem::new(ProblemType::MissingField, "the array tasks is required").at("tasks")
            );
        };
        let tasks = array(tasks, "tasks")?;
        let tasks_max = self.shared.settings.batch_tasks_max.min(Array::ITEMS_MAX);
        if tasks.count > tasks_max {
            self.shared.metrics.rejected("batch_tasks");
            let detail = format!(
                "a bulk submit may have {tasks_max} tasks at most, but this one has {}; send \
                 several",
                tasks.count
            );
            return Err(Problem::new(ProblemType::BatchTooLarge, detail).at("tasks"));
        }
        memory.grow(tasks.count.saturating_mul(ITEM_BYTES))?;
        let mut drafts = Vec::with_capacity(tasks.items.len());
        let mut done = Vec::with_capacity(tasks.items.len());
        for (index, task) in tasks.items.iter().enumerate() {
            match self.item(task.get()) {
                Ok((draft, origin)) => {
                    drafts.push((ReadItem { index, echo: echo_of(draft.draft()), origin }, draft));
                }
                Err(problem) => done.push((index, Err(problem.within(&item_path(index))))),
            }
        }
        Ok((memory, (drafts, done)))
    }

    fn item(&mut self, text: &str) -> Result<(PermittedDraft, FieldOrigin), Problem> {
        let (draft, origin) = self.reader.read(text)?;
        let draft = self.guard.permit_draft(draft)?;
        let caller = self.guard.caller();
        limits::check(&self.policy, caller, draft.draft(), origin, self.arrived_at)?;
        Ok((draft, origin))
    }
}

fn item_path(index: usize) -> String {
    format!("tasks[{index}]")
}

/// An item of a bulk submit after the service has answered.
type DoneItem = Result<(Echo, Accepted), Problem>;

fn status_of(item: &DoneItem) -> StatusCode {
    match item {
        Ok((_, accepted)) if accepted.is_new => StatusCode::CREATED,
        Ok(_known) => StatusCode::OK,
        Err(problem) => problem.kind().status(),
    }
}

/// Counts the tasks of a bulk submit by status, and each limit that rejected some of them once. New
/// tasks also count for the caller. The bulk submit itself is always answered 200.
fn count((metrics, guard): (&ApiMetrics, &Guard), done: &[DoneItem]) {
    let mut counts: BTreeMap<StatusCode, u64> = BTreeMap::new();
    let mut limits: BTreeSet<&'static str> = BTreeSet::new();
    for item in done {
        *counts.entry(status_of(item)).or_default() += 1;
        limits.extend(item.as_ref().err().and_then(Problem::limit));
    }
    guard.count_submitted(counts.get(&StatusCode::CREATED).copied().unwrap_or_default());
    for (status, count) in counts {
        metrics.batch_tasks(status, count);
    }
    for limit in limits {
        metrics.rejected(limit);
    }
}

fn item_json(item: &DoneItem) -> ItemJson<'_> {
    let status = status_of(item).as_u16();
    match item {
        Ok((echo, accepted)) if accepted.is_new => ItemJson {
            status,
            task: Some(TaskJson::of_new(accepted.id, accepted.state, echo)),
            problem: None,
        },
        Ok((echo, accepted)) => ItemJson {
            status,
            task: Some(TaskJson::of_known(accepted.id, accepted.state, echo)),
            problem: None,
        },
        Err(problem) => ItemJson { status, task: None, problem: Some(problem.json()) },
    }
}

/// The permit for the task with an id. `None` when no task has the id, or when the caller has no
/// right on its topic: for the caller these are the same.
pub type FoundPermit<R> = Result<Option<TaskPermit<R>>, Problem>;

/// Returns the permit for the task with this id.
pub async fn permit_of_task<R: Right>(
    shared: &ApiShared,
    guard: &Guard,
    id: TaskId,
    deadline: Deadline,
) -> FoundPermit<R> {
    match guard.unlimited(id) {
        Some(permit) => Ok(Some(permit)),
        None => permit_of_found(shared, guard, id, deadline).await,
    }
}

/// Looks up the topic of the task, so that the permit has it.
async fn permit_of_found<R: Right>(
    shared: &ApiShared,
    guard: &Guard,
    id: TaskId,
    deadline: Deadline,
) -> FoundPermit<R> {
    let finding = shared.service.find_topic(guard.caller(), id);
    let found = shared.ask(guard, deadline, finding, Problem::unavailable).await?;
    Ok(found.and_then(|topic| guard.permit_found(&topic)))
}

/// Returns the permits for the tasks with these ids, in their order, as [`permit_of_task`] does.
/// Each task that is not there for the caller counts as a read.
pub async fn permits_of_tasks<R: Right>(
    shared: &ApiShared,
    guard: &Guard,
    ids: &[TaskId],
    deadline: Deadline,
) -> Vec<FoundPermit<R>> {
    let unlimited: Option<Vec<TaskPermit<R>>> = ids.iter().map(|id| guard.unlimited(*id)).collect();
    if let Some(permits) = unlimited {
        return permits.into_iter().map(|permit| Ok(Some(permit))).collect();
    }
    let mut permits = Vec::with_capacity(ids.len());
    for some in ids.chunks(TOPICS_AT_ONCE) {
        // The future is on the heap, because the one of the handler would be as large.
        let finding = Box::pin(shared.service.find_topics(guard.caller(), some));
        let held = deadline.hold(finding).await;
        let Ok(found) = shared.in_time(held, Problem::unavailable) else {
            // The caller is told that nothing was done.
            permits.clear();
            break;
        };
        let some: Vec<FoundPermit<R>> =
            found.into_iter().map(|found| permit_of_topic(guard, found)).collect();
        let absent_count = some.iter().filter(|permit| matches!(permit, Ok(None))).count();
        limits::owe_reads(&shared.policy, guard.caller(), absent_count);
        permits.extend(some);
    }
    let late = || Err(Problem::unavailable("the deadline of the request has passed"));
    permits.resize_with(ids.len(), late);
    permits
}

fn permit_of_topic<R: Right>(
    guard: &Guard,
    found: Result<Option<FoundTopic>, Unavailable>,
) -> FoundPermit<R> {
    let found = found.map_err(|unavailable| {
        of_unavailable(unavailable.with_reason(|reason| guard.tells(reason)), Problem::unavailable)
    })?;
    Ok(found.and_then(|topic| guard.permit_found(&topic)))
}

pub type IdInPath = Result<Path<String>, PathRejection>;

pub fn id_of(path: IdInPath) -> Option<TaskId> {
    path.ok().and_then(|Path(text)| text.parse().ok())
}

/// Handles `GET /v1/tasks/{id}`.
pub async fn look_up(
    State(shared): State<Arc<ApiShared>>,
    guard: Guard,
    path: IdInPath,
    uri: Uri,
) -> Result<Response, Problem> {
    let deadline = shared.deadline();
    query::refuse(&uri)?;
    let Some(id) = id_of(path) else { return Err(Problem::task_not_found(false)) };
    guard.trail().names_id(id);
    let finding = shared.service.find(guard.caller(), id);
    let found = shared.ask(&guard, deadline, finding, Problem::unavailable).await?;
    match found.and_then(|task| guard.show_found(task)) {
        Some(view) => {
            Ok(answers::task(StatusCode::OK, &TaskJson::of_view(&view, guard.shows(&view.topic))))
        }
        None => Err(Problem::task_not_found(true)),
    }
}

/// Handles `PATCH /v1/tasks/{id}`.
pub async fn move_to(
    State(shared): State<Arc<ApiShared>>,
    guard: Guard,
    path: IdInPath,
    request: Request<Body>,
) -> Result<Response, Problem> {
    let (deadline, arrived_at) = (shared.deadline(), shared.service.arrival());
    query::refuse(request.uri())?;
    let condition = preconditions::of(request.headers())?;
    let (bytes, memory) = body::read(&shared, request, deadline).await?;
    let (due, origin) = new_due_of(body::text_of(&bytes)?)?;
    drop((bytes, memory));
    let Some(id) = id_of(path) else {
        return Err(Problem::task_not_found(false).with_verdict_not_found());
    };
    guard.trail().names_id(id);
    preconditions::check(&condition, id)?;
    let not_found = || Problem::task_not_found(true);
    let policy = shared.policy.current();
    let permit = if policy.limits_topics() {
        permit_of_found::<Move>(&shared, &guard, id, deadline).await?
    } else {
        permit_of_task(&shared, &guard, id, deadline).await?
    };
    let permit = permit.ok_or_else(|| not_found().with_verdict_not_found())?;
    limits::check_due(&policy, guard.caller(), permit.topic(), (due, arrived_at), origin)?;
    // The future is on the heap, because the one of the handler would be as large.
    let moving = Box::pin(shared.service.move_to(&permit, due, arrived_at));
    let answer = shared.in_time(deadline.hold(moving).await, Problem::move_unknown)?;
    answer_of_move(&guard, answer, origin, not_found)
}

/// Returns the answer to a move; `not_found` makes the problem when there is no such task.
pub fn answer_of_move(
    guard: &Guard,
    answer: Result<MoveVerdict, Refusal>,
    origin: FieldOrigin,
    not_found: impl FnOnce() -> Problem,
) -> Result<Response, Problem> {
    let verdict = answer.map_err(|refusal| match refusal {
        Refusal::Unknown { reason } => Problem::move_unknown(&guard.tells(reason.into_owned())),
        Refusal::ExpiresTooEarly { due_at } => Problem::new(
            ProblemType::ExpiresTooEarly,
            format!(
                "nothing was changed: the task has an `expires_at`, which is not after {due_at}"
            ),
        )
        .at(origin.due),
        other => of_refusal(other.with_reason(|reason| guard.tells(reason)), origin),
    })?;
    let shows_of = |task: &TaskView| guard.shows(&task.topic);
    match verdict {
        MoveVerdict::Moved(task) => {
            guard.trail().changed(&task.topic, task.id);
            let task = TaskJson::of_view(&task, shows_of(&task));
            Ok(answers::json(StatusCode::OK, &ChangedJson { verdict: "moved", task }))
        }
        MoveVerdict::TooLate(task) => {
            let (shows, state) = (shows_of(&task), task.state);
            let detail = match state {
                TaskState::Cancelled => "the task is cancelled; nothing is due any more",
                TaskState::Dead => {
                    "the task is a dead letter, so there is nothing to move; POST \
                     /v1/dead/{id}/redrive makes it due now"
                }
                other => too_late_for(other),
            };
            Err(Problem::too_late(detail, *task, shows))
        }
        MoveVerdict::Replaced(task) => {
            let shows = shows_of(&task);
            Err(Problem::replaced(*task, shows))
        }
        MoveVerdict::Unmet(current) => Err(Problem::unmet(Some(current))),
        MoveVerdict::NotFound => Err(not_found().with_verdict_not_found()),
    }
}

/// Handles `DELETE /v1/tasks/{id}`.
pub async fn cancel(
    State(shared): State<Arc<ApiShared>>,
    guard: Guard,
    path: IdInPath,
    request: Request<Body>,
) -> Result<Response, Problem> {
    let deadline = shared.deadline();
    query::refuse(request.uri())?;
    let condition = preconditions::of(request.headers())?;
    body::refuse(&shared, request, deadline).await?;
    let Some(id) = id_of(path) else {
        return Err(Problem::task_not_found(false).with_verdict_not_found());
    };
    guard.trail().names_id(id);
    preconditions::check(&condition, id)?;
    let Some(permit) = permit_of_task(&shared, &guard, id, deadline).await? else {
        return Err(Problem::task_not_found(true).with_verdict_not_found());
    };
    let cancelling = shared.service.cancel(&permit);
    let verdict = shared.ask(&guard, deadline, cancelling, Problem::cancel_unknown).await?;
    answer_of(&guard, verdict, || Problem::task_not_found(true))
}

/// The answer to a cancel that took effect, now or before, or to a move.
#[derive(Serialize)]
struct ChangedJson<'a> {
    verdict: &'static str,
    task: TaskJson<'a>,
}

/// Returns the answer to a cancel; `not_found` makes the problem when there is no such task.
pub fn answer_of(
    guard: &Guard,
    verdict: CancelVerdict,
    not_found: impl FnOnce() -> Problem,
) -> Result<Response, Problem> {
    let shows_of = |task: &TaskView| guard.shows(&task.topic);
    match verdict {
        CancelVerdict::Cancelled(task) => {
            guard.trail().changed(&task.topic, task.id);
            let answer = ChangedJson {
                verdict: "cancelled",
                task: TaskJson::of_view(&task, shows_of(&task)),
            };
            Ok(answers::json(StatusCode::OK, &answer))
        }
        CancelVerdict::Replaced(task) => {
            let shows = shows_of(&task);
            Err(Problem::replaced(task, shows))
        }
        CancelVerdict::Unmet(current) => Err(Problem::unmet(Some(current))),
        CancelVerdict::TooLate(task) => {
            let shows = shows_of(&task);
            Err(Problem::too_late(too_late_for(task.state), task, shows))
        }
        CancelVerdict::NotFound => Err(not_found().with_verdict_not_found()),
    }
}

const fn too_late_for(state: TaskState) -> &'static str {
    match state {
        TaskState::Scheduled => {
            "the task waits for its next attempt, and an earlier one may be in its topic already"
        }
        TaskState::Claimed => "the task is claimed and about to be published",
        TaskState::Awaiting | TaskState::Retrying => {
            "an attempt of the task was published already; finish it instead: POST \
             /v1/tasks/{id}/finish"
        }
        TaskState::Finished => "the task is finished",
        TaskState::Dead => {
            "the task is a dead letter, so there is nothing to cancel; DELETE /v1/dead/{id} drops \
             it"
        }
        TaskState::Expired => "the task has expired, and is never published",
        TaskState::Published | TaskState::Cancelled => {
            "the task is published; its receipt says where"
        }
    }
}
