//! Handlers of callbacks: services that get the tracked tasks of a topic over HTTP.

use std::collections::HashSet;
use std::sync::Arc;

use axum::body::Body;
use axum::extract::rejection::PathRejection;
use axum::extract::{Path, State};
use axum::http::{HeaderName, HeaderValue, Request, StatusCode, Uri};
use axum::response::Response;
use serde_json::value::RawValue;

use crate::access::permit::{Permit, SetCallback};
use crate::api::access::guard::Guard;
use crate::api::handlers::topics::topic_of;
use crate::api::json::answers;
use crate::api::json::pops::CallbackJson;
use crate::api::problems::problem::Problem;
use crate::api::problems::problem_type::ProblemType;
use crate::api::request::fields::{
    boolean, count, duration, members, object, refuse_internal, string,
};
use crate::api::request::{body, idempotency, preconditions, query};
use crate::api::shared::ApiShared;
use crate::domain::topic::callback::{
    CONCURRENCY, CONCURRENCY_MAX, Callback, HEADER_BYTES_MAX, HEADERS_MAX, PER_SECOND_MAX, TIMEOUT,
    TIMEOUT_MAX, TIMEOUT_MIN, may_be_set,
};
use crate::node::messages::answers::PutCallback;

const NO_KEY: &str = "nothing was done: Idempotency-Key is only for a POST of tasks; a callback \
                      has its topic in the path";

type TopicInPath = Result<Path<String>, PathRejection>;

/// Handles `PUT /v1/topics/{topic}/callback`.
pub async fn put(
    State(shared): State<Arc<ApiShared>>,
    guard: Guard,
    path: TopicInPath,
    request: Request<Body>,
) -> Result<Response, Problem> {
    let deadline = shared.deadline();
    query::refuse(request.uri())?;
    preconditions::refuse(request.headers())?;
    idempotency::refuse(request.headers(), NO_KEY)?;
    let topic = topic_of(path)?;
    refuse_internal(&topic, "topic")?;
    let permit: Permit<SetCallback> = guard.permit(&topic)?;
    let (bytes, memory) = body::read(&shared, request, deadline).await?;
    let callback = read(body::text_of(&bytes)?)?;
    drop((bytes, memory));
    if shared.lacks_topic(deadline, &permit).await {
        return Err(Problem::unknown_topic(&topic));
    }
    let putting = shared.service.put_callback(&permit, callback);
    match shared.ask(&guard, deadline, putting, Problem::topic_unknown).await? {
        PutCallback::Stored(stored) => {
            guard.trail().changed_many(&topic, 1);
            Ok(answers::json(StatusCode::OK, &CallbackJson::of(&stored)))
        }
        PutCallback::Refused(refused) => Err(Problem::invalid("url", refused.to_string())),
        PutCallback::TooMany => {
            let detail = "nothing was done: the cluster has as many callbacks as it can have; \
                          delete one first";
            Err(Problem::invalid("topic", detail))
        }
    }
}

/// Handles `GET /v1/topics/{topic}/callback`.
pub async fn look_up(
    State(shared): State<Arc<ApiShared>>,
    guard: Guard,
    path: TopicInPath,
    uri: Uri,
) -> Result<Response, Problem> {
    let deadline = shared.deadline();
    query::refuse(&uri)?;
    let topic = topic_of(path)?;
    let permit: Permit<SetCallback> = guard.permit(&topic)?;
    let finding = shared.service.callback(&permit);
    let found = shared.ask(&guard, deadline, finding, Problem::unavailable).await?;
    let stored = found.ok_or_else(Problem::callback_not_found)?;
    Ok(answers::json(StatusCode::OK, &CallbackJson::of(&stored)))
}

/// Handles `DELETE /v1/topics/{topic}/callback`.
pub async fn delete(
    State(shared): State<Arc<ApiShared>>,
    guard: Guard,
    path: TopicInPath,
    request: Request<Body>,
) -> Result<Response, Problem> {
    let deadline = shared.deadline();
    query::refuse(request.uri())?;
    preconditions::refuse(request.headers())?;
    let topic = topic_of(path)?;
    let permit: Permit<SetCallback> = guard.permit(&topic)?;
    body::refuse(&shared, request, deadline).await?;
    let deleting = shared.service.delete_callback(&permit);
    let deleted = shared.ask(&guard, deadline, deleting, Problem::topic_unknown).await?;
    let former = deleted.ok_or_else(Problem::callback_not_found)?;
    guard.trail().changed_many(&topic, 1);
    Ok(answers::json(StatusCode::OK, &CallbackJson::of(&former)))
}

fn read(text: &str) -> Result<Callback, Problem> {
    let names = ["url", "headers", "timeout", "concurrency", "max_per_second", "paused"];
    let [url, headers, timeout, concurrency, max_per_second, paused] = members(text, &names)?;
    let Some(url) = url else {
        let detail = "the URL of the service is required";
        return Err(Problem::new(ProblemType::MissingField, detail).at("url"));
    };
    let timeout = timeout.map_or(Ok(TIMEOUT), |timeout| duration(timeout, "timeout"))?;
    if !(TIMEOUT_MIN..=TIMEOUT_MAX).contains(&timeout) {
        let detail = format!("a service has from {TIMEOUT_MIN:?} to {TIMEOUT_MAX:?} for an answer");
        return Err(Problem::invalid("timeout", detail));
    }
    let concurrency = concurrency
        .map_or(Ok(CONCURRENCY), |value| count(value, CONCURRENCY_MAX, "concurrency"))?;
    let max_per_second =
        max_per_second.map(|value| count(value, PER_SECOND_MAX, "max_per_second")).transpose()?;
    Ok(Callback {
        url: string(url, "url")?.into_owned(),
        headers: headers.map_or(Ok(Vec::new()), headers_of)?,
        timeout,
        concurrency,
        max_per_second,
        is_paused: paused.map_or(Ok(false), |paused| boolean(paused, "paused"))?,
    })
}

fn headers_of(value: &RawValue) -> Result<Vec<(String, String)>, Problem> {
    let wrong = |detail: String| Problem::invalid("headers", detail);
    let (mut all, mut names) = (Vec::new(), HashSet::new());
    let object = object(value.get())?;
    if object.count > HEADERS_MAX {
        return Err(wrong(format!("a callback has {HEADERS_MAX} headers at most")));
    }
    for (name, value) in object.pairs {
        let value = string(value, "headers")?;
        let name = name.to_ascii_lowercase();
        if HeaderName::from_bytes(name.as_bytes()).is_err()
            || HeaderValue::from_str(&value).is_err()
        {
            return Err(wrong("a name or a value cannot be in a header of HTTP".to_owned()));
        }
        if value.len() > HEADER_BYTES_MAX {
            return Err(wrong(format!("a value has more than {HEADER_BYTES_MAX} bytes")));
        }
        if !may_be_set(&name) {
            return Err(wrong(format!("the node itself sets {name}")));
        }
        if !names.insert(name.clone()) {
            return Err(wrong(format!("{name} is there twice")));
        }
        all.push((name, value.into_owned()));
    }
    Ok(all)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn a_callback_needs_a_url_and_may_say_how_it_is_called() {
        let least = read(r#"{"url":"https://a.example.com/"}"#).unwrap();
        assert_eq!((least.timeout, least.concurrency), (TIMEOUT, CONCURRENCY));
        assert_eq!((least.max_per_second, least.is_paused), (None, false));
        let all = r#"{"url":"https://a.example.com/","headers":{"Authorization":"Bearer x"},
            "timeout":"2s","concurrency":7,"max_per_second":9,"paused":true}"#;
        let all = read(all).unwrap();
        assert_eq!(all.headers, [("authorization".to_owned(), "Bearer x".to_owned())]);
        assert_eq!((all.timeout, all.concurrency), (Duration::from_secs(2), 7));
        assert_eq!((all.max_per_second, all.is_paused), (Some(9), true));
        let field = |text: &str| read(text).unwrap_err().field().map(ToOwned::to_owned);
        for (more, wrong) in [
            (r#""timeout":"50ms""#, "timeout"),
            (r#""timeout":"6m""#, "timeout"),
            (r#""concurrency":0"#, "concurrency"),
            (r#""max_per_second":10001"#, "max_per_second"),
            (r#""headers":{"host":"x"}"#, "headers"),
            (r#""headers":{"punctual-attempt":"x"}"#, "headers"),
            (r#""headers":{"a b":"x"}"#, "headers"),
            (r#""headers":{"a":"x\ny"}"#, "headers"),
            (r#""headers":{"a":"x","A":"y"}"#, "headers"),
            (r#""paused":1"#, "paused"),
            (r#""secret":"x""#, "secret"),
        ] {
            let text = format!(r#"{{"url":"https://a.example.com/",{more}}}"#);
            assert_eq!(field(&text).as_deref(), Some(wrong), "{text}");
        }
        assert_eq!(field("{}").as_deref(), Some("url"));
    }
}
