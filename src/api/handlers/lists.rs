//! Handlers of lists: pages of pending tasks and of dead letters, and counts.

use std::sync::Arc;

use axum::extract::State;
use axum::http::{StatusCode, Uri};
use axum::response::Response;
use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use serde::Serialize;

use crate::api::json::answers::{self, TaskJson};
use crate::api::json::times::Rfc3339;
use crate::api::problems::problem::Problem;
use crate::api::request::query::Parameters;
use crate::api::shared::ApiShared;
use crate::domain::{Cursor, List, Page, Selection, Timestamp};
use crate::node::messages::{Figure, PendingCounts};

const FILTERS: [&str; 5] = ["topic", "due_from", "due_to", "limit", "cursor"];

/// The number of tasks in a page, unless the request says otherwise.
pub const LIMIT: usize = 100;
pub const LIMIT_MAX: usize = 1000;
/// Approximate bytes of a task in a page.
const TASK_BYTES: usize = 250;
const MINUTE_BYTES: usize = 80;

/// The parameters of a request for a page.
struct PageRequest {
    list: List,
    selection: Selection,
    from: Option<Cursor>,
    limit: usize,
}

impl PageRequest {
    fn read(list: List, parameters: &Parameters) -> Result<Self, Problem> {
        let selection = Selection {
            topic: parameters.topic()?,
            due_from: parameters.time("due_from")?,
            due_to: parameters.time("due_to")?,
        };
        let from =
            parameters.get("cursor").map(|text| cursor_of(text, list, &selection)).transpose()?;
        Ok(Self { list, limit: parameters.count("limit", LIMIT, LIMIT_MAX)?, selection, from })
    }

    fn text_of(&self, cursor: Cursor) -> String {
        text_of(cursor, self.list, &self.selection)
    }
}

pub fn text_of(cursor: Cursor, list: List, selection: &Selection) -> String {
    URL_SAFE_NO_PAD.encode(cursor.to_bytes(list, selection))
}

/// Reads a cursor that [`text_of`] has written for the same list and filters.
pub fn cursor_of(text: &str, list: List, selection: &Selection) -> Result<Cursor, Problem> {
    let bytes = URL_SAFE_NO_PAD.decode(text).ok();
    bytes.and_then(|bytes| Cursor::of_bytes(&bytes, list, selection)).ok_or_else(|| {
        let detail = "this cursor was not given for this list with these filters; repeat the filters of the page that gave it, or begin without a cursor";
        Problem::invalid("cursor", detail)
    })
}

#[derive(Serialize)]
struct PageJson<'a> {
    tasks: Vec<TaskJson<'a>>,
    /// Null at the end of the list.
    cursor: Option<String>,
    topic_known: Option<bool>,
}

/// Handles `GET /v1/tasks`.
pub async fn tasks(State(shared): State<Arc<ApiShared>>, uri: Uri) -> Result<Response, Problem> {
    page(&shared, &uri, List::Tasks).await
}

/// Handles `GET /v1/dead`.
pub async fn dead(State(shared): State<Arc<ApiShared>>, uri: Uri) -> Result<Response, Problem> {
    page(&shared, &uri, List::DeadLetters).await
}

async fn page(shared: &ApiShared, uri: &Uri, list: List) -> Result<Response, Problem> {
    let deadline = shared.deadline();
    let parameters = Parameters::read(uri, &FILTERS)?;
    let wanted = PageRequest::read(list, &parameters)?;
    let listing = shared.service.list(list, &wanted.selection, wanted.from, wanted.limit);
    let page: Page = shared.ask(deadline, listing, Problem::unavailable).await?;
    let topic_known = match &wanted.selection.topic {
        Some(topic) if page.tasks.is_empty() && page.next.is_none() => {
            shared.knows_topic(deadline, topic, searched(list, &wanted.selection)).await
        }
        _ => None,
    };
    let tasks: Vec<TaskJson<'_>> = page.tasks.iter().map(TaskJson::of_listed).collect();
    let capacity = tasks.len().saturating_mul(TASK_BYTES);
    let cursor = page.next.map(|next| wanted.text_of(next));
    Ok(answers::json_of(StatusCode::OK, &PageJson { tasks, cursor, topic_known }, capacity))
}

/// Returns the list if an empty result proves that it has no tasks of the topic at all.
pub fn searched(list: List, selection: &Selection) -> Option<List> {
    (selection.due_from.is_none() && selection.due_to.is_none()).then_some(list)
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
struct MinuteJson {
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
    minutes: Vec<MinuteJson>,
    topic_known: Option<bool>,
}

impl<'a> CountsJson<'a> {
    fn of(counts: &'a PendingCounts) -> Self {
        let minute = |&(from, figure): &(Timestamp, Figure)| MinuteJson {
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
            minutes: counts.minutes.iter().map(minute).collect(),
            topic_known: None,
        }
    }
}

/// Handles `GET /v1/tasks/counts`.
pub async fn counts(State(shared): State<Arc<ApiShared>>, uri: Uri) -> Result<Response, Problem> {
    let deadline = shared.deadline();
    let topic = Parameters::read(&uri, &["topic"])?.topic()?;
    let counting = shared.service.counts(topic.as_ref());
    let counts = shared.ask(deadline, counting, Problem::unavailable).await?;
    let capacity =
        counts.minutes.len().saturating_add(counts.topics.len()).saturating_mul(MINUTE_BYTES);
    let mut answer = CountsJson::of(&counts);
    if let Some(topic) = topic.filter(|_| counts.pending.task_count == 0) {
        // A sample may have missed tasks of the topic.
        let searched = counts.pending.is_exact.then_some(List::Tasks);
        answer.topic_known = shared.knows_topic(deadline, &topic, searched).await;
    }
    Ok(answers::json_of(StatusCode::OK, &answer, capacity))
}
