//! Handler of pop: tasks for consumers without Kafka.

use std::future::pending;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use axum::body::Body;
use axum::extract::rejection::PathRejection;
use axum::extract::{Path, State};
use axum::http::{Request, StatusCode, Uri};
use axum::response::Response;

use crate::access::permit::{Permit, Pop};
use crate::api::access::guard::Guard;
use crate::api::callers::CallerConnection;
use crate::api::handlers::topics::topic_of;
use crate::api::json::answers;
use crate::api::json::pops::PopsJson;
use crate::api::problems::problem::Problem;
use crate::api::problems::problem_type::ProblemType;
use crate::api::request::fields::{count, duration, members, refuse_internal, string};
use crate::api::request::{body, idempotency, preconditions, query};
use crate::api::shared::ApiShared;
use crate::domain::topic::group::ConsumerGroup;
use crate::node::messages::answers::PopCall;

/// How long a call waits for a task, unless it says otherwise.
const WAIT: Duration = Duration::from_secs(20);
/// The longest wait of a call.
pub const WAIT_MAX: Duration = Duration::from_secs(60);
/// The most tasks of one answer.
pub const TASKS_MAX: u16 = 1_000;
/// The time that is left for the answer when a wait ends with the deadline of its request.
const ANSWERED_BEFORE: Duration = Duration::from_secs(1);

const NO_KEY: &str = "nothing was done: Idempotency-Key is only for a POST of tasks; a task that \
                      was popped and is not finished comes again";

/// Handles `POST /v1/topics/{topic}/pop`.
pub async fn pop(
    State(shared): State<Arc<ApiShared>>,
    guard: Guard,
    path: Result<Path<String>, PathRejection>,
    request: Request<Body>,
) -> Result<Response, Problem> {
    let deadline = shared.deadline();
    query::refuse(request.uri())?;
    preconditions::refuse(request.headers())?;
    idempotency::refuse(request.headers(), NO_KEY)?;
    let topic = topic_of(path)?;
    refuse_internal(&topic, "topic")?;
    let permit: Permit<Pop> = guard.permit(&topic)?;
    let connection = request.extensions().get::<Arc<CallerConnection>>().cloned();
    let (bytes, memory) = body::read(&shared, request, deadline).await?;
    let call = read(body::text_of(&bytes)?)?;
    drop((bytes, memory));
    if shared.kafka_has_topic(deadline, &permit).await == Some(false) {
        let detail = "nothing was popped: Kafka has no topic of this name";
        return Err(Problem::new(ProblemType::TopicNotFound, detail).at("topic"));
    }
    let longest = shared.settings.request_deadline.saturating_sub(ANSWERED_BEFORE);
    // Nobody gets a task after the end of the token.
    let longest = match guard.caller().until {
        Some(until) => longest.min(until.since(shared.now())),
        None => longest,
    };
    let call = PopCall { wait: call.wait.min(longest), ..call };
    let ending = guard.rights_changed().child_token();
    let popping = shared.service.pop(&permit, call, &ending);
    let mut popped = pin!(shared.ask(&guard, deadline, popping, Problem::unavailable));
    let popped = tokio::select! {
        popped = &mut popped => popped?,
        () = hung_up(connection.as_deref()) => {
            // Tasks that nobody reads would come again only after their time to run.
            ending.cancel();
            popped.await?
        }
    };
    let capacity = popped.iter().map(|task| task.record.bytes().saturating_mul(2)).sum();
    Ok(answers::json_of(StatusCode::OK, &PopsJson::of(&popped), capacity))
}

/// Returns true for the address of a pop.
pub fn is_pop(uri: &Uri) -> bool {
    uri.path().ends_with("/pop")
}

/// Waits until the caller of an HTTP/1 request has hung up.
async fn hung_up(connection: Option<&CallerConnection>) {
    match connection {
        Some(connection) => connection.hang_up.wait().await,
        None => pending().await,
    }
}

fn read(text: &str) -> Result<PopCall, Problem> {
    let [group, wait, max] = members(text, &["group", "wait", "max"])?;
    let Some(group) = group else {
        let detail = "the group is required: callers of one group share the tasks of a topic";
        return Err(Problem::new(ProblemType::MissingField, detail).at("group"));
    };
    let group = ConsumerGroup::new(&string(group, "group")?)
        .map_err(|error| Problem::invalid("group", error.to_string()))?;
    let wait = wait.map_or(Ok(WAIT), |wait| duration(wait, "wait"))?;
    if wait > WAIT_MAX {
        return Err(Problem::invalid("wait", format!("the longest wait is {WAIT_MAX:?}")));
    }
    let max = max.map_or(Ok(1), |max| count(max, TASKS_MAX, "max"))?;
    Ok(PopCall { group, count_max: max.into(), wait })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_call_needs_a_group_and_may_say_how_long_and_how_many() {
        let group = ConsumerGroup::new("mailer").unwrap();
        let call = |wait, count_max| PopCall { group: group.clone(), count_max, wait };
        assert_eq!(read(r#"{"group":"mailer"}"#).unwrap(), call(WAIT, 1));
        let all = r#"{"group":"mailer","wait":"1m","max":1000}"#;
        assert_eq!(read(all).unwrap(), call(WAIT_MAX, 1000));
        let field = |text| read(text).unwrap_err().field().map(ToOwned::to_owned);
        for (text, wrong) in [
            ("{}", "group"),
            (r#"{"group":"a b"}"#, "group"),
            (r#"{"group":"mailer","wait":"61s"}"#, "wait"),
            (r#"{"group":"mailer","max":0}"#, "max"),
            (r#"{"group":"mailer","max":1001}"#, "max"),
            (r#"{"group":"mailer","count":1}"#, "count"),
        ] {
            assert_eq!(field(text).as_deref(), Some(wrong), "{text}");
        }
    }
}
