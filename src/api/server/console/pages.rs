//! Each page: the path, and the calls for the contents.

use std::collections::BTreeMap;

use axum::body::Body;
use axum::http::{HeaderValue, Request, StatusCode, header};
use axum::response::Response;
use serde_json::Value;
use serde_json::value::RawValue;

use super::reader::Identified;
use super::response::{refused, refused_of, show, status_of, to};
use crate::access::permit::{Right as _, SetCallback};
use crate::api::problems::problem::Problem;
use crate::api::problems::problem_type::ProblemType;
use crate::api::request::request_id::{REQUEST_ID, RequestId};
use crate::api::server::answer::RequestPlace;
use crate::api::server::router::Api;
use crate::clock;
use crate::console::action::outcome::{self, Outcome};
use crate::console::action::{Action, Call, Fields};
use crate::console::frame::{Answered, Page, Refused, Section, task_path};
use crate::console::rates::{Rates, Sample};
use crate::console::tasks::Listed;
use crate::console::{action, ahead, dead, inbound, now, schedules, tasks, topics};
use crate::domain::{TaskId, TopicName};

/// Bytes of an answer that a page is made of. The largest one is a task.
const ANSWER_BYTES_MAX: usize = 64 << 20;

/// The API as the reader of a page calls it.
struct Calls<'a> {
    api: &'a Api,
    place: &'a RequestPlace,
    /// The id of the request of the page. Its calls have the same.
    id: &'a RequestId,
    identified: &'a Identified,
}

impl Calls<'_> {
    /// Makes a call, and reads its answer.
    async fn ask(&self, call: &Call) -> Answered {
        let bytes = self.bytes(call).await.map_err(|problem| refused_of(&problem))?;
        read(&bytes).map_err(|error| {
            tracing::error!(%error, path = call.path, "an answer of the API is no JSON");
            // The call has succeeded, or would have a problem as its answer.
            let kind = match call.method {
                "GET" => ProblemType::Unavailable,
                _ => ProblemType::OutcomeUnknown,
            };
            refused_of(&Problem::new(kind, "the answer of the API cannot be read"))
        })
    }

    async fn bytes(&self, call: &Call) -> Result<Vec<u8>, std::sync::Arc<Problem>> {
        let body = call.body.as_ref().map(|body| body.to_string());
        let json = body.is_some().then(|| HeaderValue::from_static("application/json"));
        let request = Request::builder().method(call.method).uri(&call.path);
        let mut request = request
            .body(body.map_or_else(Body::empty, Body::from))
            .map_err(|_too_long| Problem::no_such_path())?;
        request.headers_mut().insert(REQUEST_ID, self.id.clone().into_header());
        request.headers_mut().extend(json.map(|json| (header::CONTENT_TYPE, json)));
        let caller = (&self.identified.caller, self.place);
        let response = Box::pin(self.api.call(caller, request)).await?;
        let bytes = axum::body::to_bytes(response.into_body(), ANSWER_BYTES_MAX).await;
        let bytes = bytes.map_err(|_too_large| Problem::unavailable("the answer is too large"))?;
        Ok(bytes.to_vec())
    }

    /// Looks the callback of a topic up, if the reader may. A call without the right would count as
    /// a denied one of the reader's address, and would be audited.
    async fn callback(&self, topic: &str) -> Option<Answered> {
        let rights = &self.identified.caller.principal.rights;
        let topic = TopicName::new(topic).ok()?;
        let has_rights = SetCallback::ACTIONS.iter().all(|action| rights.allows(*action, &topic));
        if !has_rights {
            return None;
        }
        Some(self.ask(&topics::callback::call(topic.as_str())).await)
    }

    /// Takes a sample of the metrics of the node, if the reader may.
    async fn metrics(&self) -> Option<Sample> {
        let bytes = self.bytes(&Call::get("/metrics")).await.ok()?;
        Some(Sample::read(&String::from_utf8_lossy(&bytes), clock::monotonic()))
    }
}

/// Reads an answer. A payload that is nested deeper than a [`Value`] may be is shown as it is.
fn read(bytes: &[u8]) -> Result<Value, serde_json::Error> {
    serde_json::from_slice(bytes).or_else(|error| {
        let mut members: BTreeMap<String, Box<RawValue>> = serde_json::from_slice(bytes)?;
        let payload = members.remove("payload").ok_or(error)?;
        let mut rest = serde_json::to_value(members)?;
        rest["payload_text"] = payload.get().into();
        Ok(rest)
    })
}

/// Answers a request that only reads.
pub async fn show_page(
    api: &Api,
    (place, id): (&RequestPlace, &RequestId),
    identified: &Identified,
    (path, fields): (&[&str], &Fields),
) -> Response {
    let calls = Calls { api, place, id, identified };
    let now = Some(api.shared().now());
    let topic = fields.get("topic");
    let (status, page) = match path {
        [] | ["inbound"] if !identified.reader.has_now => {
            return to(Section::Topics.path(), None);
        }
        [] => cluster_page(&calls, now::page).await,
        ["inbound"] => cluster_page(&calls, inbound::page).await,
        ["topics"] => {
            let (counts, policies) = (topics::call(topic), topics::policies_call(topic));
            let rights = Call::get("/v1/whoami");
            let asks = (calls.ask(&counts), calls.ask(&policies), calls.ask(&rights));
            let (counts, policies, rights, callback) =
                tokio::join!(asks.0, asks.1, asks.2, calls.callback(topic));
            let page = topics::page(topic, &counts, &policies, &rights, callback.as_ref());
            (of(&counts), page)
        }
        ["ahead"] => {
            let counts = calls.ask(&topics::call(topic)).await;
            (of(&counts), ahead::page(topic, &counts))
        }
        ["tasks"] => match tasks_page(&calls, fields).await {
            Ok(shown) => shown,
            Err(path) => return to(&path, None),
        },
        ["tasks", id] => match calls.ask(&tasks::look_up(id)).await {
            Ok(task) => (StatusCode::OK, tasks::one(&task, now)),
            Err(refused) => (status_of(&refused), refused.page(Section::Tasks)),
        },
        ["dead"] => {
            let cursor = fields.get("cursor");
            let answer = calls.ask(&dead::call(topic, cursor)).await;
            (of(&answer), dead::page(topic, cursor, &answer))
        }
        ["schedules"] => {
            let after = fields.exact("after");
            let answer = match topic {
                "" => None,
                topic => Some(calls.ask(&schedules::call(topic, after)).await),
            };
            let status = answer.as_ref().map_or(StatusCode::OK, of);
            (status, schedules::list((topic, after), answer.as_ref(), now))
        }
        ["schedules", topic, name] => match calls.ask(&schedules::look_up(topic, name)).await {
            Ok(schedule) => (StatusCode::OK, schedules::one(&schedule, now)),
            Err(refused) => (status_of(&refused), refused.page(Section::Schedules)),
        },
        ["confirm"] => match Action::read(fields) {
            Some(action) => (StatusCode::OK, confirm_page(&calls, action).await),
            None => return refused(&Problem::no_such_path()),
        },
        ["done"] => match Outcome::read(fields) {
            Some(outcome) if is_sealed(api, &outcome, identified, fields.get("seal")) => {
                (StatusCode::OK, outcome.page(&identified.reader))
            }
            _ => (StatusCode::FORBIDDEN, not_of_this_session().page(Section::Now)),
        },
        _ => return refused(&Problem::no_such_path()),
    };
    show(status, &page, Some(&identified.reader))
}

/// Returns the status of a page that is made of one answer.
fn of(answer: &Answered) -> StatusCode {
    answer.as_ref().err().map_or(StatusCode::OK, status_of)
}

/// Returns a page that is made of the state of the cluster and of the metrics of the node.
async fn cluster_page(
    calls: &Calls<'_>,
    written: fn(&Answered, Option<(&Sample, &Rates)>) -> Page,
) -> (StatusCode, Page) {
    let cluster = calls.ask(&Call::get("/v1/cluster")).await;
    let sample = match &cluster {
        Ok(_) => calls.metrics().await,
        Err(_) => None,
    };
    let rates = sample.as_ref().map(|sample| calls.api.shared().samples.lock().compare(sample));
    (of(&cluster), written(&cluster, sample.as_ref().zip(rates.as_ref())))
}

/// Returns the page of tasks, or the path of the one task that was asked for.
async fn tasks_page(calls: &Calls<'_>, fields: &Fields) -> Result<(StatusCode, Page), String> {
    let [id, topic, due_from, due_to, state, cursor] =
        ["id", "topic", "due_from", "due_to", "state", "cursor"].map(|name| fields.get(name));
    let [name, key, name_prefix] = ["name", "key", "name_prefix"].map(|name| fields.exact(name));
    let listed = Listed { topic, key, name_prefix, due_from, due_to, state, cursor };
    if let Ok(id) = id.parse::<TaskId>() {
        return Err(task_path(&id.to_string()));
    }
    let now = Some(calls.api.shared().now());
    if !id.is_empty() {
        let refused = refused_of(&Problem::task_not_found(false));
        let page = tasks::list(listed, (name, Some(&refused)), None, now);
        return Ok((status_of(&refused), page));
    }
    if !name.is_empty() {
        let found = match topic {
            "" => Err(refused_of(&Problem::invalid("topic", "a name needs its topic"))),
            topic => calls.ask(&tasks::look_up_named(topic, name)).await,
        };
        return match found {
            Ok(task) => Err(task_path(crate::console::format::text(&task, "id"))),
            Err(refused) => {
                let page = tasks::list(listed, (name, Some(&refused)), None, now);
                Ok((status_of(&refused), page))
            }
        };
    }
    let page = calls.ask(&listed.call()).await;
    Ok((of(&page), tasks::list(listed, (name, None), Some(&page), now)))
}

async fn confirm_page(calls: &Calls<'_>, action: Action) -> Page {
    let action = action.until(calls.api.shared().now());
    let counted = match action.dry_run() {
        Some(call) => Some(calls.ask(&call).await),
        None => None,
    };
    action::confirm(&action, &calls.identified.reader, counted.as_ref())
}

/// Carries out the action of a form. A success leads to a page of its own.
pub async fn act(
    api: &Api,
    (place, id): (&RequestPlace, &RequestId),
    identified: &Identified,
    form: &Fields,
) -> Response {
    let Some(action) = Action::read(form) else { return refused(&Problem::no_such_path()) };
    let calls = Calls { api, place, id, identified };
    match calls.ask(&action.call()).await {
        Ok(done) => {
            let outcome = Outcome::new(action, &done);
            let sessions = &api.shared().cursors.sessions;
            to(&outcome.address(&sessions.form_token(&sealed_for(&outcome, identified))), None)
        }
        Err(reason) => {
            let page = outcome::refused(&action, &reason);
            show(status_of(&reason), &page, Some(&identified.reader))
        }
    }
}

fn is_sealed(api: &Api, outcome: &Outcome, identified: &Identified, seal: &str) -> bool {
    api.shared().cursors.sessions.is_form_token(seal, &sealed_for(outcome, identified))
}

/// Returns the bytes that the seal of an outcome is made of. The seal is good for one reader.
fn sealed_for(outcome: &Outcome, identified: &Identified) -> Vec<u8> {
    [b"done ", identified.whose.as_slice(), b" ", &outcome.sealed()].concat()
}

fn not_of_this_session() -> Refused {
    Refused::new(
        StatusCode::FORBIDDEN.as_u16(),
        "not of this session",
        "The address is of another session, or was changed. Nothing was done now.",
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_payload_of_any_depth_is_read() {
        let payload = format!("{}{}", "[".repeat(1_000), "]".repeat(1_000));
        let answer = read(format!(r#"{{"id":"i","payload":{payload},"due":1}}"#).as_bytes());
        let answer = answer.unwrap();
        assert_eq!((&answer["id"], &answer["due"]), (&"i".into(), &1.into()));
        assert_eq!(answer["payload_text"], payload);
        assert!(read(b"{").is_err());
    }
}
