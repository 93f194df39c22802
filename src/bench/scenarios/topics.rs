//! The scenarios with policies of topics, and with schedules.

pub mod resume;
pub mod schedules;
pub mod spread;

use bytes::Bytes;
use hyper::Method;
use serde::Deserialize;
use serde::de::IgnoredAny;

use crate::bench::load::http::HttpAnswer;
use crate::bench::load::rest::{RestTarget, told};
use crate::domain::TopicName;

/// The settings of a topic by its operator.
#[derive(Deserialize)]
struct TopicState {
    policy: Option<IgnoredAny>,
    paused: Option<IgnoredAny>,
}

/// Checks that a run may change a topic: it changes the topic back, and must take nothing away.
///
/// # Errors
/// Returns the reason as text when the topic has a policy or is paused, or cannot be looked up.
async fn check_plain(rest: &RestTarget, topic: &TopicName) -> Result<(), String> {
    let path = format!("/v1/topics/{topic}");
    refusal(topic, &rest.connection(0)?.call(Method::GET, &path, Bytes::new()).await?)
}

fn refusal(topic: &TopicName, answer: &HttpAnswer) -> Result<(), String> {
    let state: Option<TopicState> = serde_json::from_slice(&answer.body).ok();
    match state.filter(|_| answer.status == 200) {
        None => Err(format!("{topic}: {}", told(answer))),
        Some(TopicState { policy: None, paused: None }) => Ok(()),
        Some(_) => {
            Err(format!("{topic} has a policy or is paused, which a run would undo; use another"))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_topic_with_a_policy_or_a_pause_is_not_touched() {
        let refused = |status, body: &'static str| {
            let answer = HttpAnswer { status, body: Bytes::from_static(body.as_bytes()) };
            refusal(&TopicName::new("orders").unwrap(), &answer).err()
        };
        assert_eq!(refused(200, r#"{"topic":"orders","revision":0}"#), None);
        assert_eq!(refused(200, r#"{"topic":"orders","policy":null,"paused":null}"#), None);
        for (status, body, said) in [
            (200, r#"{"policy":{"spread":"1s"}}"#, "orders has a policy"),
            (200, r#"{"paused":{"since":"2026-11-28T00:00:00Z"}}"#, "or is paused"),
            (404, r#"{"detail":"no such topic"}"#, "orders: 404"),
            (200, "a proxy's page", "orders: 200"),
        ] {
            let why = refused(status, body);
            assert!(why.as_ref().is_some_and(|why| why.contains(said)), "{why:?}");
        }
    }
}
