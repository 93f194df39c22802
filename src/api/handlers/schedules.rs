//! Handlers of schedules: create or replace, look up, list, pause, resume, trigger, backfill,
//! delete.

use std::iter;
use std::sync::Arc;

use axum::body::Body;
use axum::extract::rejection::PathRejection;
use axum::extract::{Path, State};
use axum::http::{Request, StatusCode, Uri};
use axum::response::Response;

use super::names::NameInPath;
use super::tasks::created;
use crate::access::permit::{Permit, Schedule as ScheduleRight, Submit};
use crate::api::access::guard::Guard;
use crate::api::access::limits;
use crate::api::json::answers::{self, Echo, Shows, TaskJson};
use crate::api::json::schedules::{BackfillJson, ScheduleJson, SchedulePage};
use crate::api::json::times::Rfc3339;
use crate::api::problems::problem::Problem;
use crate::api::problems::problem_type::ProblemType;
use crate::api::problems::refusal::{FieldOrigin, of_refusal};
use crate::api::request::draft::schedule;
use crate::api::request::query::{self, Parameters};
use crate::api::request::{body, idempotency, preconditions};
use crate::api::shared::{ApiShared, Deadline};
use crate::domain::schedule::{ScheduleChange, StoredSchedule};
use crate::domain::time::duration::spelled;
use crate::domain::{ScheduleName, TaskName, TopicName};
use crate::node::messages::{BackfillAnswer, Draft, Due, PutSchedule, Refusal, ScheduleRange};

/// The number of schedules in a page, unless the request says otherwise.
const LIMIT: usize = 100;
pub const LIMIT_MAX: usize = 1_000;
/// The most upcoming runs that are shown.
pub const NEXT_MAX: usize = 1_000;
/// Approximate bytes of a schedule in a page.
const SCHEDULE_BYTES: usize = 500;

/// The reason why these calls take no `Idempotency-Key`.
const NO_KEY: &str = "nothing was done: Idempotency-Key is only for a POST of tasks; a schedule has \
                      its name in the path";

/// Reads topic and name from the path, and notes them for the audit trail.
fn place_of(guard: &Guard, path: NameInPath) -> Result<(TopicName, ScheduleName), Problem> {
    let Path((topic, name)) = path
        .map_err(|_not_utf_8| Problem::invalid("name", "the path is not percent-encoded UTF-8"))?;
    let topic = topic_of(&topic)?;
    let schedule = ScheduleName::new(&name).map_err(|reason| Problem::invalid("name", reason))?;
    if let Ok(name) = TaskName::new(&name) {
        guard.trail().names(&name);
    }
    Ok((topic, schedule))
}

fn topic_of(topic: &str) -> Result<TopicName, Problem> {
    TopicName::new(topic).map_err(|error| Problem::invalid("topic", error.to_string()))
}

/// Handles `PUT /v1/schedules/{topic}/{name}`.
pub async fn put(
    State(shared): State<Arc<ApiShared>>,
    guard: Guard,
    path: NameInPath,
    request: Request<Body>,
) -> Result<Response, Problem> {
    let (deadline, arrived_at) = (shared.deadline(), shared.service.arrival());
    let parameters = Parameters::read(request.uri(), &["dry_run", "next"])?;
    let is_dry_run = match parameters.get("dry_run") {
        None | Some("false") => false,
        Some("true") => true,
        Some(_) => return Err(Problem::invalid("dry_run", "expected true or false")),
    };
    let next = next_of(&parameters)?;
    if is_dry_run {
        guard.trail().only_asks();
    }
    let (topic, name) = place_of(&guard, path)?;
    let permit: Permit<ScheduleRight> = guard.permit(&topic)?;
    idempotency::refuse(request.headers(), NO_KEY)?;
    let condition = schedule::condition_of(request.headers())?;
    let (bytes, _share) = body::read(&shared, request, deadline).await?;
    let read = move |text: &str| schedule::read(text, topic, name);
    let (schedule, origin) = body::parse(&shared, deadline, bytes, read).await?;
    let dead_topic = schedule.tracking.as_ref().and_then(|tracking| tracking.dead_topic.as_ref());
    if let Some(dead_topic) = dead_topic {
        let _permit: Permit<Submit> = guard.permit(dead_topic)?;
    }
    // A run counts as a task that is due now: it is no larger, and it is never submitted earlier.
    let draft = Draft {
        record: schedule.record.clone(),
        name: None,
        due: Due::After(std::time::Duration::ZERO),
        tracking: schedule.tracking.clone(),
        expiry: None,
        spread: None,
    };
    limits::check(&shared.policy.current(), guard.caller(), &draft, origin, arrived_at)?;
    limits::charge(&shared.policy, guard.caller(), iter::once(&draft.record))?;
    if is_dry_run {
        limits::charge_dry_run(&shared.policy, guard.caller())?;
    }
    let put = PutSchedule { schedule, condition, is_dry_run };
    let putting = shared.service.put_schedule(&permit, put, arrived_at);
    let answer = shared.in_time(deadline.hold(putting).await, Problem::schedule_unknown)?;
    let change = answer.map_err(|refusal| problem_of(&guard, refusal, origin))?;
    if !is_dry_run {
        note_change(&guard, &permit, &change);
    }
    let status = match change {
        ScheduleChange::Created(_) if !is_dry_run => StatusCode::CREATED,
        _ => StatusCode::OK,
    };
    let next = next.or(is_dry_run.then_some(10));
    changed(&guard, change, status, next)
}

fn problem_of(guard: &Guard, refusal: Refusal, origin: FieldOrigin) -> Problem {
    match refusal.with_reason(|reason| guard.tells(reason)) {
        Refusal::Unknown { reason } => Problem::schedule_unknown(&reason),
        Refusal::TooFar { delay_max } => {
            let detail = format!("the first run may be at most {} ahead", spelled(delay_max));
            Problem::new(ProblemType::TooFarAhead, detail).at("starts_at")
        }
        other => of_refusal(other, origin),
    }
}

/// Notes a change for the audit trail.
fn note_change(guard: &Guard, permit: &Permit<ScheduleRight>, change: &ScheduleChange) {
    if let ScheduleChange::Created(_) | ScheduleChange::Changed(_) = change {
        guard.trail().changed_many(permit.topic(), 1);
    }
}

/// Returns the answer to a change.
fn changed(
    guard: &Guard,
    change: ScheduleChange,
    status: StatusCode,
    next: Option<usize>,
) -> Result<Response, Problem> {
    match change {
        ScheduleChange::Created(stored)
        | ScheduleChange::Changed(stored)
        | ScheduleChange::Unchanged(stored) => Ok(answer_of(guard, &stored, status, next)),
        ScheduleChange::NotFound => Err(Problem::schedule_not_found()),
        ScheduleChange::Unmet(current) => Err(Problem::schedule_unmet(current)),
        ScheduleChange::NoRun => {
            let detail = "nothing was changed: the schedule has no run after now; its end has \
                          passed, or its days are excluded";
            Err(Problem::invalid("ends_at", detail))
        }
        ScheduleChange::Overtaken => Err(Problem::unavailable("other requests changed it")),
        ScheduleChange::TooMany { schedules_max } => {
            Err(Problem::too_many_schedules(schedules_max))
        }
    }
}

fn answer_of(
    guard: &Guard,
    stored: &StoredSchedule,
    status: StatusCode,
    next: Option<usize>,
) -> Response {
    let shows = guard.shows(&stored.schedule.record.topic);
    let response = answers::json(status, &ScheduleJson::new(stored, shows).with_next(next));
    answers::with_revision(response, stored.revision)
}

fn next_of(parameters: &Parameters) -> Result<Option<usize>, Problem> {
    let Some(_given) = parameters.get("next") else { return Ok(None) };
    parameters.count("next", 0, NEXT_MAX).map(Some)
}

/// Handles `GET /v1/schedules/{topic}/{name}`.
pub async fn look_up(
    State(shared): State<Arc<ApiShared>>,
    guard: Guard,
    path: NameInPath,
    uri: Uri,
) -> Result<Response, Problem> {
    let deadline = shared.deadline();
    let next = next_of(&Parameters::read(&uri, &["next"])?)?;
    let (topic, name) = place_of(&guard, path)?;
    let permit = guard.permit(&topic)?;
    let finding = shared.service.schedule(&permit, &name);
    let found = shared.ask(&guard, deadline, finding, Problem::unavailable).await?;
    let stored = found.ok_or_else(Problem::schedule_not_found)?;
    Ok(answer_of(&guard, &stored, StatusCode::OK, next))
}

/// Handles `GET /v1/schedules/{topic}`.
pub async fn list(
    State(shared): State<Arc<ApiShared>>,
    guard: Guard,
    path: Result<Path<String>, PathRejection>,
    uri: Uri,
) -> Result<Response, Problem> {
    let deadline = shared.deadline();
    let parameters = Parameters::read(&uri, &["after", "limit"])?;
    let Path(topic) = path
        .map_err(|_not_utf_8| Problem::invalid("topic", "the path is not percent-encoded UTF-8"))?;
    let topic = topic_of(&topic)?;
    let after = parameters.get("after").map(ScheduleName::new).transpose();
    let after = after.map_err(|reason| Problem::invalid("after", reason))?;
    let limit = parameters.count("limit", LIMIT, LIMIT_MAX)?;
    let permit = guard.permit(&topic)?;
    // One more tells whether there is another page.
    let range = ScheduleRange { after, limit: limit + 1 };
    let listing = shared.service.schedules(&permit, range);
    let mut listed = shared.ask(&guard, deadline, listing, Problem::unavailable).await?;
    let has_more = listed.len() > limit;
    listed.truncate(limit);
    let shows = guard.shows(&topic);
    let page = SchedulePage {
        schedules: listed.iter().map(|stored| ScheduleJson::listed(stored, shows)).collect(),
        next_after: listed.last().filter(|_last| has_more).map(|last| last.schedule.name.as_str()),
    };
    let capacity = listed.len().saturating_mul(SCHEDULE_BYTES);
    Ok(answers::json_of(StatusCode::OK, &page, capacity))
}

/// Handles `DELETE /v1/schedules/{topic}/{name}`.
pub async fn delete(
    State(shared): State<Arc<ApiShared>>,
    guard: Guard,
    path: NameInPath,
    request: Request<Body>,
) -> Result<Response, Problem> {
    let deadline = shared.deadline();
    query::refuse(request.uri())?;
    let condition = schedule::condition_of(request.headers())?;
    let (topic, name) = place_of(&guard, path)?;
    let permit: Permit<ScheduleRight> = guard.permit(&topic)?;
    body::refuse(&shared, request, deadline).await?;
    let deleting = shared.service.delete_schedule(&permit, &name, condition);
    let change = shared.ask(&guard, deadline, deleting, Problem::schedule_unknown).await?;
    note_change(&guard, &permit, &change);
    changed(&guard, change, StatusCode::OK, None)
}

/// Handles `POST /v1/schedules/{topic}/{name}/pause`.
pub async fn pause(
    State(shared): State<Arc<ApiShared>>,
    guard: Guard,
    path: NameInPath,
    request: Request<Body>,
) -> Result<Response, Problem> {
    set_paused(&shared, &guard, path, request, true).await
}

/// Handles `POST /v1/schedules/{topic}/{name}/resume`.
pub async fn resume(
    State(shared): State<Arc<ApiShared>>,
    guard: Guard,
    path: NameInPath,
    request: Request<Body>,
) -> Result<Response, Problem> {
    set_paused(&shared, &guard, path, request, false).await
}

async fn set_paused(
    shared: &ApiShared,
    guard: &Guard,
    path: NameInPath,
    request: Request<Body>,
    is_paused: bool,
) -> Result<Response, Problem> {
    let deadline = shared.deadline();
    query::refuse(request.uri())?;
    preconditions::refuse(request.headers())?;
    let (topic, name) = place_of(guard, path)?;
    let permit: Permit<ScheduleRight> = guard.permit(&topic)?;
    body::refuse(shared, request, deadline).await?;
    let pausing = shared.service.pause_schedule(&permit, &name, is_paused);
    let change = shared.ask(guard, deadline, pausing, Problem::schedule_unknown).await?;
    note_change(guard, &permit, &change);
    changed(guard, change, StatusCode::OK, None)
}

/// Handles `POST /v1/schedules/{topic}/{name}/trigger`.
pub async fn trigger(
    State(shared): State<Arc<ApiShared>>,
    guard: Guard,
    path: NameInPath,
    request: Request<Body>,
) -> Result<Response, Problem> {
    let (deadline, arrived_at) = (shared.deadline(), shared.service.arrival());
    query::refuse(request.uri())?;
    preconditions::refuse(request.headers())?;
    let (topic, name) = place_of(&guard, path)?;
    let permit: Permit<ScheduleRight> = guard.permit(&topic)?;
    idempotency::refuse(request.headers(), NO_KEY)?;
    body::refuse(&shared, request, deadline).await?;
    let call = Call { shared: &shared, guard: &guard, deadline };
    charge_runs(&call, &permit, &name, |_schedule| 1).await?;
    let triggering = shared.service.trigger_schedule(&permit, &name, arrived_at);
    let answer = shared.in_time(deadline.hold(triggering).await, Problem::submit_unknown)?;
    let origin = FieldOrigin { due: "name", payload: "name" };
    let triggered = answer
        .map_err(|refusal| of_refusal(refusal.with_reason(|reason| guard.tells(reason)), origin))?;
    let triggered = triggered.ok_or_else(Problem::schedule_not_found)?;
    guard.trail().changed(&topic, triggered.id);
    guard.count_submitted(1);
    let shows_key = guard.shows(&topic) == Shows::All;
    let echo = Echo {
        topic,
        name: triggered.name,
        key: triggered.schedule.record.key.filter(|_key| shows_key),
        tracking: triggered.schedule.tracking,
        expires_at: None,
    };
    let task = TaskJson::of_new(triggered.id, triggered.state, &echo);
    let task = if shows_key { task } else { task.redacted() };
    Ok(created(triggered.id, &task))
}

/// Handles `POST /v1/schedules/{topic}/{name}/backfill`.
pub async fn backfill(
    State(shared): State<Arc<ApiShared>>,
    guard: Guard,
    path: NameInPath,
    request: Request<Body>,
) -> Result<Response, Problem> {
    let deadline = shared.deadline();
    query::refuse(request.uri())?;
    preconditions::refuse(request.headers())?;
    let (topic, name) = place_of(&guard, path)?;
    let permit: Permit<ScheduleRight> = guard.permit(&topic)?;
    let (bytes, _share) = body::read(&shared, request, deadline).await?;
    let unknown = || Problem::unavailable("the time is unknown until Postgres has answered");
    let now = shared.service.arrival().ok_or_else(unknown)?;
    let read = move |text: &str| schedule::backfill(text, now);
    let wanted = body::parse(&shared, deadline, bytes, read).await?;
    if wanted.is_dry_run {
        guard.trail().only_asks();
        limits::charge_dry_run(&shared.policy, guard.caller())?;
    } else {
        let call = Call { shared: &shared, guard: &guard, deadline };
        let range = (wanted.from, wanted.to);
        // The service tells what is wrong with the range.
        let count_of = |schedule: &StoredSchedule| {
            schedule.instants_to_backfill(range, wanted.asked_at).map_or(0, |runs| runs.len())
        };
        charge_runs(&call, &permit, &name, count_of).await?;
    }
    let filling = shared.service.backfill_schedule(&permit, &name, wanted);
    let answer = shared.in_time(deadline.hold(filling).await, Problem::schedule_unknown)?;
    let of_range = |field| if wanted.is_last { "last" } else { field };
    let origin = FieldOrigin { due: of_range("from"), payload: "name" };
    let done = match answer.map_err(|refusal| problem_of(&guard, refusal, origin))? {
        BackfillAnswer::Done(done) => done,
        BackfillAnswer::NotFound => return Err(Problem::schedule_not_found()),
        BackfillAnswer::Refused(error) => {
            return Err(Problem::invalid(of_range(error.field), error.reason));
        }
    };
    if !wanted.is_dry_run {
        guard.trail().changed_many(&topic, done.made);
        guard.count_submitted(done.made);
    }
    let json = BackfillJson {
        dry_run: wanted.is_dry_run,
        made: done.made,
        already_made: done.known,
        runs: done.runs.into_iter().map(Rfc3339).collect(),
    };
    Ok(answers::json(StatusCode::OK, &json))
}

/// A request that is being answered.
struct Call<'a> {
    shared: &'a ApiShared,
    guard: &'a Guard,
    deadline: Deadline,
}

/// Charges runs that a caller asks for to the limits of the caller and of the topic, as submits of
/// the schedule's record. Runs that exist already count as well, as repeated submits do.
async fn charge_runs(
    call: &Call<'_>,
    permit: &Permit<ScheduleRight>,
    name: &ScheduleName,
    count_of: impl FnOnce(&StoredSchedule) -> usize,
) -> Result<(), Problem> {
    let Call { shared, guard, deadline } = *call;
    let finding = shared.service.schedule_to_run(permit, name);
    let found = shared.ask(guard, deadline, finding, Problem::unavailable).await?;
    let stored = found.ok_or_else(Problem::schedule_not_found)?;
    let records = iter::repeat_n(&stored.schedule.record, count_of(&stored));
    limits::charge(&shared.policy, guard.caller(), records)
}
