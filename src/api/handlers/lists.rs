//! Handlers of lists: pages of pending tasks and of dead letters, and counts.

use std::sync::Arc;

use axum::extract::State;
use axum::http::{StatusCode, Uri};
use axum::response::Response;
use serde::Serialize;

use crate::access::permit::{ListPermit, Permit, Read, ReadPayload};
use crate::api::access::cursors::Binding;
use crate::api::access::guard::Guard;
use crate::api::json::answers::{self, TaskJson};
use crate::api::json::times::Rfc3339;
use crate::api::problems::problem::Problem;
use crate::api::request::draft::choice;
use crate::api::request::query::Parameters;
use crate::api::shared::ApiShared;
use crate::domain::{Choice, List, Page, Selection, Timestamp};
use crate::node::messages::{Figure, PageRange, PendingCounts};

const FILTERS: [&str; 12] = [
    "topic",
    "submitted_by",
    "state",
    "due_from",
    "due_to",
    "limit",
    "cursor",
    "ids",
    "names",
    "name_prefix",
    "key",
    "key_base64",
];
/// Dead letters are selected by topic and due time alone, and are all in one state.
const FILTERS_OF_DEAD: [&str; 5] = ["topic", "due_from", "due_to", "limit", "cursor"];

/// The number of tasks in a page, unless the request says otherwise.
pub const LIMIT: usize = 100;
pub const LIMIT_MAX: usize = 1000;
/// Approximate bytes of a task in a page.
const TASK_BYTES: usize = 250;
const FIGURE_BYTES: usize = 80;

/// The parameters of a request for a page.
struct PageRequest {
    permit: ListPermit,
    selection: Selection,
    range: PageRange,
}

impl PageRequest {
    fn read(
        shared: &ApiShared,
        guard: &Guard,
        list: List,
        parameters: &Parameters,
    ) -> Result<Self, Problem> {
        let topic = parameters.topic()?;
        let selection = Selection {
            choice: choice::of_query(parameters, topic.as_ref())?,
            topic,
            due_from: parameters.time("due_from")?,
            due_to: parameters.time("due_to")?,
            submitted_by: parameters.submitter("submitted_by")?,
            state: parameters.state()?,
        };
        let permit = guard.list_permit(selection.topic.as_ref())?;
        check_choice(guard, &selection)?;
        let binding = binding_of(guard, list, &selection);
        let open = |text| shared.cursors.open(text, binding);
        let from = parameters.get("cursor").map(open).transpose()?;
        let limit = parameters.count("limit", LIMIT, LIMIT_MAX)?;
        Ok(Self { permit, selection, range: PageRange { from, limit } })
    }
}

/// Checks the rights to be told which tasks a choice meets. With a key, they are those to see keys:
/// else a caller could guess the keys of a topic.
pub fn check_choice(guard: &Guard, selection: &Selection) -> Result<(), Problem> {
    if let (Some(Choice::Key(_)), Some(topic)) = (&selection.choice, &selection.topic) {
        let _reads: Permit<Read> = guard.permit(topic)?;
        let _sees_keys: Permit<ReadPayload> = guard.permit(topic)?;
    }
    Ok(())
}

/// Returns what a cursor of this list is bound to.
pub fn binding_of<'a>(guard: &'a Guard, list: List, selection: &'a Selection) -> Binding<'a> {
    Binding { list, selection, principal: &guard.caller().principal.name }
}

#[derive(Serialize)]
struct PageJson<'a> {
    tasks: Vec<TaskJson<'a>>,
    /// Null at the end of the list.
    cursor: Option<String>,
    topic_known: Option<bool>,
}

/// Handles `GET /v1/tasks`.
pub async fn tasks(
    State(shared): State<Arc<ApiShared>>,
    guard: Guard,
    uri: Uri,
) -> Result<Response, Problem> {
    page(&shared, &guard, &uri, List::Tasks).await
}

/// Handles `GET /v1/dead`.
pub async fn dead(
    State(shared): State<Arc<ApiShared>>,
    guard: Guard,
    uri: Uri,
) -> Result<Response, Problem> {
    page(&shared, &guard, &uri, List::DeadLetters).await
}

async fn page(
    shared: &ApiShared,
    guard: &Guard,
    uri: &Uri,
    list: List,
) -> Result<Response, Problem> {
    let deadline = shared.deadline();
    let filters = match list {
        List::Tasks => FILTERS.as_slice(),
        List::DeadLetters => FILTERS_OF_DEAD.as_slice(),
    };
    let parameters = Parameters::read(uri, filters)?;
    let PageRequest { permit, selection, range } =
        PageRequest::read(shared, guard, list, &parameters)?;
    let listing = shared.service.list(&permit, list, &selection, range);
    let page: Page = shared.ask(guard, deadline, listing, Problem::unavailable).await?;
    let topic_known = match permit.grant() {
        Some(grant) if page.tasks.is_empty() && page.next.is_none() => {
            shared.knows_topic(deadline, grant, searched(list, &selection)).await
        }
        _ => None,
    };
    let json_of = match list {
        List::Tasks => TaskJson::of_listed,
        List::DeadLetters => TaskJson::of_dead_letter,
    };
    let listed = page.tasks.iter();
    let tasks: Vec<TaskJson<'_>> =
        listed.map(|task| json_of(task, guard.shows(&task.topic))).collect();
    let capacity = tasks.len().saturating_mul(TASK_BYTES);
    let binding = binding_of(guard, list, &selection);
    let cursor = page.next.map(|next| shared.cursors.seal(next, binding)).transpose()?;
    Ok(answers::json_of(StatusCode::OK, &PageJson { tasks, cursor, topic_known }, capacity))
}

/// Returns the list if an empty result proves that it has no tasks of the topic at all.
pub fn searched(list: List, selection: &Selection) -> Option<List> {
    let Selection { topic: _, due_from, due_to, submitted_by, state, choice } = selection;
    let is_range = due_from.is_some() || due_to.is_some();
    let is_whole = !is_range && submitted_by.is_none() && state.is_none() && choice.is_none();
    is_whole.then_some(list)
}

#[derive(Serialize)]
struct FigureJson {
    count: u64,
    exact: bool,
}

impl FigureJson {
    fn of(figure: Figure) -> Self {
        Self { count: figure.task_count, exact: figure.is_exact }
    }
}

#[derive(Serialize)]
struct TopicJson<'a> {
    topic: &'a str,
    #[serde(flatten)]
    figure: FigureJson,
}

#[derive(Serialize)]
struct SlotJson {
    from: Rfc3339,
    #[serde(flatten)]
    figure: FigureJson,
}

#[derive(Serialize)]
struct CountsJson<'a> {
    as_of: Rfc3339,
    pending: FigureJson,
    topics: Vec<TopicJson<'a>>,
    more_topics: bool,
    minutes: Vec<SlotJson>,
    days: Vec<SlotJson>,
    topic_known: Option<bool>,
}

impl<'a> CountsJson<'a> {
    fn of(counts: &'a PendingCounts) -> Self {
        let slot = |&(from, figure): &(Timestamp, Figure)| SlotJson {
            from: Rfc3339(from),
            figure: FigureJson::of(figure),
        };
        Self {
            as_of: Rfc3339(counts.as_of),
            pending: FigureJson::of(counts.pending),
            topics: counts
                .topics
                .iter()
                .map(|(topic, figure)| TopicJson {
                    topic: topic.as_str(),
                    figure: FigureJson::of(*figure),
                })
                .collect(),
            more_topics: counts.has_more_topics,
            minutes: counts.minutes.iter().map(slot).collect(),
            days: counts.days.iter().map(slot).collect(),
            topic_known: None,
        }
    }
}

/// Handles `GET /v1/tasks/counts`.
pub async fn counts(
    State(shared): State<Arc<ApiShared>>,
    guard: Guard,
    uri: Uri,
) -> Result<Response, Problem> {
    let deadline = shared.deadline();
    let parameters = Parameters::read(&uri, &["topic", "state"])?;
    let (topic, state) = (parameters.topic()?, parameters.state()?);
    let permit = guard.list_permit(topic.as_ref())?;
    let counting = shared.service.counts(&permit, state);
    let counts = shared.ask(&guard, deadline, counting, Problem::unavailable).await?;
    let figures = counts.minutes.len() + counts.days.len() + counts.topics.len();
    let capacity = figures.saturating_mul(FIGURE_BYTES);
    let mut answer = CountsJson::of(&counts);
    if let Some(grant) = permit.grant().filter(|_| counts.pending.task_count == 0) {
        // A sample may have missed tasks of the topic.
        let is_searched = counts.pending.is_exact && state.is_none();
        let searched = is_searched.then_some(List::Tasks);
        answer.topic_known = shared.knows_topic(deadline, grant, searched).await;
    }
    Ok(answers::json_of(StatusCode::OK, &answer, capacity))
}
