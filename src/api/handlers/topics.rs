//! Handlers of topics: list, look up, policy, pause, resume.

use std::sync::Arc;

use axum::body::Body;
use axum::extract::rejection::PathRejection;
use axum::extract::{Path, State};
use axum::http::{Request, StatusCode, Uri};
use axum::response::Response;

use crate::access::permit::{Operate, Permit, ReadPayload, Submit};
use crate::api::access::guard::Guard;
use crate::api::json::answers;
use crate::api::json::topics::{TopicJson, TopicPage};
use crate::api::problems::problem::Problem;
use crate::api::problems::problem_type::ProblemType;
use crate::api::problems::refusal::{FieldOrigin, of_refusal};
use crate::api::request::draft::{policy, schedule};
use crate::api::request::fields::refuse_internal;
use crate::api::request::query::{self, Parameters};
use crate::api::request::{body, idempotency, preconditions};
use crate::api::shared::{ApiShared, Deadline};
use crate::domain::schedule::RevisionCondition;
use crate::domain::topic::policy::{TopicChange, TopicChanged, TopicPolicy};
use crate::domain::{List, TopicName};
use crate::node::messages::{ChangedTopic, Refusal, TopicView};

/// The number of topics in a page, unless the request says otherwise.
const LIMIT: usize = 100;
const LIMIT_MAX: usize = 1_000;
/// Approximate bytes of a topic in a page.
const TOPIC_BYTES: usize = 250;

const NO_KEY: &str = "nothing was done: Idempotency-Key is only for a POST of tasks; a policy has \
                      its topic in the path";

type TopicInPath = Result<Path<String>, PathRejection>;

pub fn topic_of(path: TopicInPath) -> Result<TopicName, Problem> {
    let Path(topic) = path
        .map_err(|_not_utf_8| Problem::invalid("topic", "the path is not percent-encoded UTF-8"))?;
    TopicName::new(&topic).map_err(|error| Problem::invalid("topic", error.to_string()))
}

/// Handles `GET /v1/topics`.
pub async fn list(
    State(shared): State<Arc<ApiShared>>,
    guard: Guard,
    uri: Uri,
) -> Result<Response, Problem> {
    let deadline = shared.deadline();
    let parameters = Parameters::read(&uri, &["after", "limit"])?;
    let after = parameters.get("after").map(TopicName::new).transpose();
    let after = after.map_err(|error| Problem::invalid("after", error.to_string()))?;
    let limit = parameters.count("limit", LIMIT, LIMIT_MAX)?;
    let permit = guard.list_permit(None)?;
    // One more tells whether there is another page.
    let listing = shared.service.topics(&permit, after.as_ref(), limit + 1);
    let mut listed = shared.ask(&guard, deadline, listing, Problem::unavailable).await?;
    let has_more = listed.len() > limit;
    listed.truncate(limit);
    let operates = guard.operates();
    let page = TopicPage {
        topics: listed.iter().map(|topic| TopicJson::new(topic, operates)).collect(),
        next_after: listed.last().filter(|_last| has_more).map(|last| last.stored.topic.as_str()),
    };
    let capacity = listed.len().saturating_mul(TOPIC_BYTES);
    Ok(answers::json_of(StatusCode::OK, &page, capacity))
}

/// Handles `GET /v1/topics/{topic}`.
pub async fn look_up(
    State(shared): State<Arc<ApiShared>>,
    guard: Guard,
    path: TopicInPath,
    uri: Uri,
) -> Result<Response, Problem> {
    let deadline = shared.deadline();
    query::refuse(&uri)?;
    let topic = topic_of(path)?;
    let permit = guard.list_permit(Some(&topic))?;
    let finding = shared.service.topic(&permit, &topic);
    let found = shared.ask(&guard, deadline, finding, Problem::unavailable).await?;
    let is_empty = found.pending.is_none_or(|pending| pending.task_count == 0);
    // A sample may have missed tasks of the topic.
    let is_searched = found.pending.is_some_and(|pending| pending.is_exact);
    let searched = is_searched.then_some(List::Tasks);
    if !found.stored.has_any()
        && is_empty
        && let Some(grant) = permit.grant()
        && shared.knows_topic(deadline, grant, searched).await == Some(false)
    {
        return Err(Problem::topic_not_found());
    }
    Ok(answer_of(&guard, &found))
}

fn answer_of(guard: &Guard, view: &TopicView) -> Response {
    let response = answers::json(StatusCode::OK, &TopicJson::new(view, guard.operates()));
    match view.stored.current() {
        Some(revision) => answers::with_revision(response, revision),
        None => response,
    }
}

/// Handles `PUT /v1/topics/{topic}/policy`.
pub async fn put_policy(
    State(shared): State<Arc<ApiShared>>,
    guard: Guard,
    path: TopicInPath,
    request: Request<Body>,
) -> Result<Response, Problem> {
    let deadline = shared.deadline();
    query::refuse(request.uri())?;
    let topic = topic_of(path)?;
    let permit: Permit<Operate> = guard.permit(&topic)?;
    idempotency::refuse(request.headers(), NO_KEY)?;
    let condition = schedule::condition_of(request.headers())?;
    let (bytes, _share) = body::read(&shared, request, deadline).await?;
    let of_topic = topic.clone();
    let read = move |text: &str| policy::read(text, &of_topic);
    let (policy, is_paused) = body::parse(&shared, deadline, bytes, read).await?;
    let dead_topic = policy.tracking.as_ref().and_then(|tracking| tracking.dead_topic.as_ref());
    if let Some(dead_topic) = dead_topic {
        let dead: Permit<Submit> = guard.permit(dead_topic)?;
        // Its readers see the records of the topic.
        let _permit: Permit<ReadPayload> = guard.permit(&topic)?;
        // Submits that take this policy would be refused: they ask Kafka alone.
        if shared.kafka_has_topic(deadline, &dead).await == Some(false) {
            let unknown = Refusal::OfDeadTopic(Box::new(Refusal::UnknownTopic));
            return Err(of_refusal(unknown, FieldOrigin { due: "due_at", payload: "payload" }));
        }
    }
    let change = TopicChange { condition, policy: Some(policy), is_paused, ..UNCHANGED };
    changed(&shared, &guard, deadline, (&permit, change)).await
}

/// Handles `DELETE /v1/topics/{topic}/policy`.
pub async fn delete_policy(
    State(shared): State<Arc<ApiShared>>,
    guard: Guard,
    path: TopicInPath,
    request: Request<Body>,
) -> Result<Response, Problem> {
    let deadline = shared.deadline();
    query::refuse(request.uri())?;
    let condition = schedule::condition_of(request.headers())?;
    let topic = topic_of(path)?;
    let permit: Permit<Operate> = guard.permit(&topic)?;
    body::refuse(&shared, request, deadline).await?;
    let policy = Some(TopicPolicy::default());
    changed(&shared, &guard, deadline, (&permit, TopicChange { condition, policy, ..UNCHANGED }))
        .await
}

/// Handles `POST /v1/topics/{topic}/pause`.
pub async fn pause(
    State(shared): State<Arc<ApiShared>>,
    guard: Guard,
    path: TopicInPath,
    request: Request<Body>,
) -> Result<Response, Problem> {
    set_paused(&shared, &guard, path, request, true).await
}

/// Handles `POST /v1/topics/{topic}/resume`.
pub async fn resume(
    State(shared): State<Arc<ApiShared>>,
    guard: Guard,
    path: TopicInPath,
    request: Request<Body>,
) -> Result<Response, Problem> {
    set_paused(&shared, &guard, path, request, false).await
}

async fn set_paused(
    shared: &ApiShared,
    guard: &Guard,
    path: TopicInPath,
    request: Request<Body>,
    is_paused: bool,
) -> Result<Response, Problem> {
    let deadline = shared.deadline();
    query::refuse(request.uri())?;
    preconditions::refuse(request.headers())?;
    let topic = topic_of(path)?;
    let permit: Permit<Operate> = guard.permit(&topic)?;
    let (bytes, _share) = body::read_optional(shared, request, deadline).await?;
    let reason = body::parse(shared, deadline, bytes, policy::read_reason).await?;
    let change = TopicChange { is_paused: Some(is_paused), reason, ..UNCHANGED };
    changed(shared, guard, deadline, (&permit, change)).await
}

const UNCHANGED: TopicChange = TopicChange {
    by: None,
    condition: RevisionCondition::None,
    policy: None,
    is_paused: None,
    reason: None,
};

/// Carries a change out and answers with the topic.
async fn changed(
    shared: &ApiShared,
    guard: &Guard,
    deadline: Deadline,
    (permit, change): (&Permit<Operate>, TopicChange),
) -> Result<Response, Problem> {
    let topic = permit.topic();
    refuse_internal(topic, "topic")?;
    // A topic that was deleted in Kafka can be resumed, and its policy taken away.
    let adds = change.is_paused == Some(true)
        || change.policy.as_ref().is_some_and(|policy| !policy.is_empty());
    if adds && shared.lacks_topic(deadline, permit).await {
        return Err(Problem::unknown_topic(topic));
    }
    let changing = shared.service.change_topic(permit, change);
    let done = shared.ask(guard, deadline, changing, Problem::topic_unknown).await?;
    let ChangedTopic { changed, in_flight } = done;
    let stored = match changed {
        TopicChanged::Changed(stored) => {
            guard.trail().changed_many(topic, 1);
            stored
        }
        TopicChanged::Unchanged(stored) => {
            // A topic with a revision was there once.
            if !adds
                && stored.revision == 0
                && shared.kafka_has_topic(deadline, permit).await == Some(false)
            {
                let detail = "nothing was changed: Kafka has no topic of this name, and it never \
                              had a policy or a pause";
                return Err(Problem::new(ProblemType::TopicNotFound, detail).at("topic"));
            }
            stored
        }
        TopicChanged::Unmet(current) => return Err(Problem::policy_unmet(current)),
    };
    Ok(answer_of(guard, &TopicView { in_flight, ..stored.into() }))
}
