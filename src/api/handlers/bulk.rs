//! Handlers for many tasks at once, by topic and due time: cancel or move tasks, redrive or drop
//! dead letters. The handlers for one dead letter are here, too.

use std::collections::BTreeMap;
use std::sync::Arc;

use axum::body::Body;
use axum::extract::State;
use axum::http::{Request, StatusCode};
use axum::response::Response;
use serde::Serialize;
use serde_json::value::RawValue;

use super::lists::{binding_of, check_choice, searched};
use super::tasks::{IdInPath, id_of, permit_of_task};
use crate::access::permit::{
    BulkPermit, CancelManyPermit, Drop, Grant, Move, Permit, ReadPayload, Redrive, Right, Submit,
};
use crate::api::access::guard::Guard;
use crate::api::access::limits::{self, Unchanged};
use crate::api::json::answers::{self, TaskJson};
use crate::api::json::times::{self, Rfc3339};
use crate::api::problems::problem::Problem;
use crate::api::problems::problem_type::ProblemType;
use crate::api::problems::refusal::{FieldOrigin, of_refusal};
use crate::api::request::draft::choice;
use crate::api::request::draft::shift::{self, NewDue};
use crate::api::request::fields::{boolean, members, refuse_internal, string};
use crate::api::request::{body, preconditions, query};
use crate::api::shared::{ApiShared, Deadline};
use crate::domain::{
    Cursor, List, Precondition, PrincipalName, Selection, TaskId, TaskView, Timestamp, TopicName,
};
use crate::node::messages::permitted::TaskPermit;
use crate::node::messages::{BulkDone, BulkRange, Due, Refusal, Shift, Unavailable};
use crate::node::requests::service::Service;

const FIELDS: [&str; 5] = ["topic", "due_from", "due_to", "dry_run", "cursor"];
/// Dead letters are selected by topic and due time alone.
const FIELDS_OF_CANCEL: [&str; 11] = [
    "topic",
    "due_from",
    "due_to",
    "dry_run",
    "cursor",
    "submitted_by",
    "ids",
    "names",
    "name_prefix",
    "key",
    "key_base64",
];

const FIELDS_OF_REDRIVE: [&str; 6] =
    ["topic", "due_from", "due_to", "dry_run", "cursor", "to_topic"];

const FIELDS_OF_MOVE: [&str; 12] = [
    "topic",
    "due_from",
    "due_to",
    "dry_run",
    "cursor",
    "by",
    "to",
    "ids",
    "names",
    "name_prefix",
    "key",
    "key_base64",
];

/// The tasks of a call, with the permit to change or to count them.
struct BulkRequest {
    permit: ChangePermit,
    range: BulkRange,
    /// The same range, as cursors are bound to it.
    selection: Selection,
    is_dry_run: bool,
}

impl BulkRequest {
    /// Reads the selection of tasks. The topic is required, so that a forgotten field cannot empty
    /// a cluster. The submitter of tasks to cancel may take its place.
    fn read(
        shared: &ApiShared,
        guard: &Guard,
        text: &str,
        change: BulkChange,
    ) -> Result<Self, Problem> {
        let (mut submitted_by, mut chosen, mut by_or_to) = (None, [None; 5], [None; 2]);
        let mut to_topic = None;
        let [topic, due_from, due_to, dry_run, cursor] = match change {
            BulkChange::Cancel => {
                let [topic, due_from, due_to, dry_run, cursor, by, choice @ ..] =
                    members(text, &FIELDS_OF_CANCEL)?;
                (submitted_by, chosen) = (by, choice);
                [topic, due_from, due_to, dry_run, cursor]
            }
            BulkChange::Move => {
                let [topic, due_from, due_to, dry_run, cursor, by, to, choice @ ..] =
                    members(text, &FIELDS_OF_MOVE)?;
                (by_or_to, chosen) = ([by, to], choice);
                [topic, due_from, due_to, dry_run, cursor]
            }
            BulkChange::Redrive => {
                let [topic, due_from, due_to, dry_run, cursor, to] =
                    members(text, &FIELDS_OF_REDRIVE)?;
                to_topic = to;
                [topic, due_from, due_to, dry_run, cursor]
            }
            BulkChange::Drop => members(text, &FIELDS)?,
        };
        let topic = topic.map(|topic| topic_of(topic, "topic")).transpose()?;
        let to_topic = to_topic.map(|to| topic_of(to, "to_topic")).transpose()?;
        let choice = choice::of_body(chosen, topic.as_ref())?;
        let submitted_by = submitted_by
            .map(|name| query::submitter_of(&string(name, "submitted_by")?, "submitted_by"))
            .transpose()?;
        let time =
            |value: Option<&RawValue>, field: &'static str| -> Result<Option<Timestamp>, Problem> {
                value.map(times::due_at).transpose().map_err(|wrong| Problem::invalid(field, wrong))
            };
        let is_dry_run =
            dry_run.map(|value| boolean(value, "dry_run")).transpose()?.unwrap_or(false);
        let (due_from, due_to) = (time(due_from, "due_from")?, time(due_to, "due_to")?);
        // Answers write a missing cursor as null, so null is accepted here.
        let cursor = cursor
            .filter(|cursor| cursor.get() != "null")
            .map(|cursor| string(cursor, "cursor"))
            .transpose()?;
        let selection = Selection { topic, due_from, due_to, submitted_by, state: None, choice };
        guard.trail().selects(&selection, is_dry_run);
        let [by, to] = by_or_to;
        let new_due = NewDue { by, to, is_follow_up: cursor.is_some() };
        let mut permit = change.permit((shared, guard), &selection, is_dry_run, new_due)?;
        // A move can be taken back, so it would be as good as a dry run. A right guess of a cancel
        // costs the tasks.
        if is_dry_run || matches!(change, BulkChange::Move) {
            check_choice(guard, &selection)?;
        }
        if let (ChangePermit::Redrive(from, to), Some(topic)) = (&mut permit, &to_topic) {
            *to = Some(permit_of_target(guard, Some(from.topic()), topic)?);
        }
        let binding = binding_of(guard, change.list(), &selection);
        let from = cursor.map(|cursor| shared.cursors.open(&cursor, binding)).transpose()?;
        let range = BulkRange { due_from, due_to, choice: selection.choice.clone(), from };
        Ok(Self { permit, range, selection, is_dry_run })
    }
}

fn topic_of(value: &RawValue, field: &'static str) -> Result<TopicName, Problem> {
    let text = string(value, field)?;
    TopicName::new(&text).map_err(|error| Problem::invalid(field, error.to_string()))
}

/// Checks the rights to put tasks of the topic `from` into the topic `to`: to submit there, and to
/// see the records, because the readers of the other topic see them. `None`: the caller has all
/// rights.
fn permit_of_target(
    guard: &Guard,
    from: Option<&TopicName>,
    to: &TopicName,
) -> Result<Permit<Submit>, Problem> {
    refuse_internal(to, "to_topic")?;
    if let Some(from) = from.filter(|from| *from != to) {
        let _permit: Permit<ReadPayload> = guard.permit(from)?;
    }
    guard.permit(to)
}

/// Refuses a topic that Kafka does not have, or that does not take the record of the dead letter
/// `id`.
async fn check_target(
    shared: &ApiShared,
    guard: &Guard,
    deadline: Deadline,
    (to, id): (Option<&Permit<Submit>>, Option<TaskId>),
) -> Result<(), Problem> {
    let Some(to) = to else { return Ok(()) };
    let checking = shared.service.check_topic(to, id);
    let checked = shared.in_time(deadline.hold(checking).await, Problem::unavailable)?;
    let origin = FieldOrigin { due: "to_topic", payload: "to_topic" };
    checked.map_err(|refusal| match refusal.with_reason(|reason| guard.tells(reason)) {
        Refusal::NoKey => {
            let detail = "the topic is compacted (cleanup.policy), and Kafka refuses records \
                          without a key there; the dead letter has no key, so redrive it to \
                          another topic";
            Problem::new(ProblemType::KeyRequired, detail).at("to_topic")
        }
        Refusal::UnknownTopic => of_refusal(Refusal::UnknownTopic, origin).at("to_topic"),
        Refusal::BadValue { reason } => Problem::invalid("to_topic", reason),
        other => of_refusal(other, origin),
    })
}

/// Reads the new due times of tasks of the topic of `grant`. None of them may be too far ahead.
fn shift_of(
    shared: &ApiShared,
    guard: &Guard,
    grant: &Grant,
    new_due: NewDue<'_>,
    selection: &Selection,
) -> Result<Shift, Problem> {
    let arrived_at = shared.service.arrival();
    let (shift, latest) = shift::read(new_due, selection, arrived_at)?;
    let due = if new_due.by.is_some() { "by" } else { "to" };
    let origin = FieldOrigin { due, payload: due };
    let (policy, due) = (shared.policy.current(), Due::At(latest));
    limits::check_due(&policy, guard.caller(), Some(grant.topic()), (due, arrived_at), origin)?;
    let checked = shared.service.due_at(grant, due, arrived_at);
    checked
        .map_err(|refusal| of_refusal(refusal.with_reason(|reason| guard.tells(reason)), origin))?;
    Ok(shift)
}

/// The change that a call makes to many tasks.
#[derive(Clone, Copy)]
enum BulkChange {
    Cancel,
    Move,
    Redrive,
    Drop,
}

/// A change with the permit for it.
enum ChangePermit {
    Cancel(CancelManyPermit),
    Move(BulkPermit<Move>, Shift),
    /// The second topic is that to which the tasks go, if it is another one.
    Redrive(BulkPermit<Redrive>, Option<Permit<Submit>>),
    Drop(BulkPermit<Drop>),
}

impl ChangePermit {
    /// Returns the permit for the topic of the call, if it names one.
    fn grant(&self) -> Option<&Grant> {
        match self {
            Self::Cancel(permit) => permit.grant(),
            Self::Move(permit, _shift) => Some(permit),
            Self::Redrive(permit, _to) => Some(permit),
            Self::Drop(permit) => Some(permit),
        }
    }

    async fn change(
        &self,
        service: &Service,
        submitted_by: Option<PrincipalName>,
        range: BulkRange,
    ) -> Result<BulkDone, Unavailable> {
        match self {
            Self::Cancel(permit) => service.cancel_all(permit, submitted_by, range).await,
            Self::Move(permit, shift) => service.move_all(permit, range, *shift).await,
            Self::Redrive(permit, to) => service.change_all_dead(permit, range, to.as_ref()).await,
            Self::Drop(permit) => service.change_all_dead(permit, range, None).await,
        }
    }
}

impl BulkChange {
    /// Checks the right to the change, or to its dry run. Only a move uses `new_due`.
    fn permit(
        self,
        (shared, guard): (&ApiShared, &Guard),
        selection: &Selection,
        is_dry_run: bool,
        new_due: NewDue<'_>,
    ) -> Result<ChangePermit, Problem> {
        let topic = selection.topic.as_ref();
        let missing = |detail| Problem::new(ProblemType::MissingField, detail).at("topic");
        let named = topic.ok_or_else(|| missing("the topic of the tasks is required"));
        Ok(match self {
            Self::Cancel if topic.is_none() && selection.submitted_by.is_none() => {
                return Err(missing("the topic or the submitter of the tasks is required"));
            }
            Self::Cancel => ChangePermit::Cancel(guard.cancel_many_permit(topic, is_dry_run)?),
            Self::Move => {
                let permit = guard.bulk_permit(named?, is_dry_run)?;
                let shift = shift_of(shared, guard, &permit, new_due, selection)?;
                ChangePermit::Move(permit, shift)
            }
            Self::Redrive => ChangePermit::Redrive(guard.bulk_permit(named?, is_dry_run)?, None),
            Self::Drop => ChangePermit::Drop(guard.bulk_permit(named?, is_dry_run)?),
        })
    }

    const fn list(self) -> List {
        match self {
            Self::Cancel | Self::Move => List::Tasks,
            Self::Redrive | Self::Drop => List::DeadLetters,
        }
    }

    /// The state of a changed task, as problems write it. The member with the count has the same
    /// name.
    const fn done(self) -> &'static str {
        match self {
            Self::Cancel => "cancelled",
            Self::Move => "moved",
            Self::Redrive => "redriven",
            Self::Drop => "dropped",
        }
    }
}

/// The answer: how far the call has come.
#[derive(Serialize)]
struct DoneJson {
    /// The number of changed tasks, under the name of the change.
    #[serde(flatten)]
    count: BTreeMap<&'static str, u64>,
    more: bool,
    dry_run: bool,
    /// `searched_to` and `cursor` are null when the call reached the end, or when the next one
    /// starts over.
    searched_to: Option<Rfc3339>,
    cursor: Option<String>,
    topic_known: Option<bool>,
}

async fn change_many(
    shared: &Arc<ApiShared>,
    guard: &Guard,
    request: Request<Body>,
    change: BulkChange,
) -> Result<Response, Problem> {
    let deadline = shared.deadline();
    query::refuse(request.uri())?;
    preconditions::refuse(request.headers())?;
    let (bytes, _share) = body::read(shared, request, deadline).await?;
    let read = {
        let (shared, guard) = (Arc::clone(shared), guard.clone());
        move |text: &str| BulkRequest::read(&shared, &guard, text, change)
    };
    let BulkRequest { permit, range, selection, is_dry_run } =
        body::parse(shared, deadline, bytes, read).await?;
    if is_dry_run {
        limits::charge_dry_run(&shared.policy, guard.caller())?;
    }
    if let ChangePermit::Redrive(_, to) = &permit {
        check_target(shared, guard, deadline, (to.as_ref(), None)).await?;
    }
    // A dry run never changes anything.
    let unknown = |reason: &str| {
        if is_dry_run {
            Problem::unavailable(reason)
        } else {
            Problem::bulk_unknown(change.done(), reason)
        }
    };
    let changing = permit.change(&shared.service, selection.submitted_by.clone(), range);
    let done = shared.ask(guard, deadline, changing, unknown).await?;
    match permit.grant() {
        Some(grant) => guard.trail().changed_many(grant.topic(), done.task_count),
        None => guard.trail().changed_in_all(done.task_count),
    }
    let topic_known = match permit.grant() {
        Some(grant) if done.task_count == 0 && !done.has_more => {
            shared.knows_topic(deadline, grant, searched(change.list(), &selection)).await
        }
        _ => None,
    };
    let binding = binding_of(guard, change.list(), &selection);
    let answer = DoneJson {
        count: BTreeMap::from([(change.done(), done.task_count)]),
        more: done.has_more,
        dry_run: is_dry_run,
        searched_to: done.searched_to.map(|cursor| searched_to(guard, cursor)),
        cursor: done.searched_to.map(|cursor| shared.cursors.seal(cursor, binding)).transpose()?,
        topic_known,
    };
    let mut response = answers::json(StatusCode::OK, &answer);
    if !is_dry_run && done.task_count == 0 {
        response.extensions_mut().insert(Unchanged);
    }
    Ok(response)
}

/// Returns the time up to which all tasks were looked at: the time of some row, perhaps of a topic
/// without a right of the caller. Such a caller gets the beginning of the minute.
fn searched_to(guard: &Guard, cursor: Cursor) -> Rfc3339 {
    const MINUTE_MILLIS: i64 = 60_000;
    let exact = TaskId::from_uuid(cursor.after).due_at_unheld();
    if guard.reads_everywhere() {
        return Rfc3339(exact);
    }
    let millis = exact.as_millis();
    Rfc3339(Timestamp::from_millis(millis - millis.rem_euclid(MINUTE_MILLIS)))
}

macro_rules! changes_of_many {
    ($($path:literal: $handler:ident, $change:ident;)*) => {$(
        #[doc = concat!("Handles `POST ", $path, "`.")]
        pub async fn $handler(
            State(shared): State<Arc<ApiShared>>,
            guard: Guard,
            request: Request<Body>,
        ) -> Result<Response, Problem> {
            change_many(&shared, &guard, request, BulkChange::$change).await
        }
    )*};
}

changes_of_many! {
    "/v1/tasks/cancel": cancel, Cancel;
    "/v1/tasks/move": move_all, Move;
    "/v1/dead/redrive": redrive_all, Redrive;
    "/v1/dead/drop": drop_all_dead, Drop;
}

/// Returns the answer to a change of one dead letter.
fn answer_of(guard: &Guard, task: Option<TaskView>) -> Result<Response, Problem> {
    match task {
        Some(view) => {
            guard.trail().changed(&view.topic, view.id);
            Ok(answers::task(StatusCode::OK, &TaskJson::of_view(&view, guard.shows(&view.topic))))
        }
        None => Err(Problem::dead_not_found()),
    }
}

/// Finds the dead letter of a request, and checks the right to change it.
async fn dead_letter<R: Right>(
    shared: &ApiShared,
    guard: &Guard,
    path: IdInPath,
    (deadline, condition): (Deadline, Precondition),
) -> Result<TaskPermit<R>, Problem> {
    let Some(id) = id_of(path) else { return Err(Problem::task_not_found(false)) };
    guard.trail().names_id(id);
    preconditions::check(&condition, id)?;
    let permit = permit_of_task(shared, guard, id, deadline).await?;
    permit.ok_or_else(Problem::dead_not_found)
}

/// Reads the topic to which a dead letter goes.
fn to_topic_of(text: &str) -> Result<Option<TopicName>, Problem> {
    let [to_topic] = members(text, &["to_topic"])?;
    to_topic.map(|to| topic_of(to, "to_topic")).transpose()
}

/// Handles `POST /v1/dead/{id}/redrive`.
pub async fn redrive(
    State(shared): State<Arc<ApiShared>>,
    guard: Guard,
    path: IdInPath,
    request: Request<Body>,
) -> Result<Response, Problem> {
    let deadline = shared.deadline();
    query::refuse(request.uri())?;
    preconditions::refuse(request.headers())?;
    let (bytes, _memory) = body::read_optional(&shared, request, deadline).await?;
    let to_topic = body::parse(&shared, deadline, bytes, to_topic_of).await?;
    let terms = (deadline, Precondition::default());
    let permit = dead_letter(&shared, &guard, path, terms).await?;
    let to = to_topic.map(|topic| permit_of_target(&guard, permit.topic(), &topic));
    let to = to.transpose()?;
    check_target(&shared, &guard, deadline, (to.as_ref(), Some(permit.id()))).await?;
    let redriving = shared.service.redrive(&permit, to.as_ref());
    let unknown = |reason: &str| Problem::dead_unknown("redriven", reason);
    answer_of(&guard, shared.ask(&guard, deadline, redriving, unknown).await?)
}

/// Handles `DELETE /v1/dead/{id}`.
pub async fn drop_dead(
    State(shared): State<Arc<ApiShared>>,
    guard: Guard,
    path: IdInPath,
    request: Request<Body>,
) -> Result<Response, Problem> {
    let deadline = shared.deadline();
    query::refuse(request.uri())?;
    let condition = preconditions::of(request.headers())?;
    body::refuse(&shared, request, deadline).await?;
    let permit = dead_letter(&shared, &guard, path, (deadline, condition)).await?;
    let dropping = shared.service.drop_dead(&permit);
    let unknown = |reason: &str| Problem::dead_unknown("dropped", reason);
    answer_of(&guard, shared.ask(&guard, deadline, dropping, unknown).await?)
}
