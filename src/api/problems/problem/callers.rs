//! Problems of callers: without a credential, without a right, or over one of their limits.

use std::time::Duration;

use super::{More, Problem};
use crate::access::Action;
use crate::access::limits::{Exceeded, Limited};
use crate::api::problems::problem_type::ProblemType;
use crate::domain::TopicName;

/// Keys that are missing are fetched this often.
const KEYS_RETRY_SECONDS: u64 = 5;

impl Problem {
    /// Makes the problem of a caller without a valid credential. Wrong, unknown and expired ones
    /// have one text.
    pub fn unauthenticated(was_given: bool) -> Self {
        let (error, detail) = if was_given {
            let detail = "nothing was done: the token is not valid, or not valid any more";
            (Some("invalid_token"), detail)
        } else {
            (
                None,
                "nothing was done: this request needs a token in the header `Authorization: \
                 Bearer`",
            )
        };
        let more = More { error, ..More::default() };
        Self { more: Some(Box::new(more)), ..Self::new(ProblemType::Unauthenticated, detail) }
    }

    /// Makes the problem of a caller without a token whose certificate proves no principal.
    pub fn unknown_certificate() -> Self {
        let detail = "nothing was done: the client certificate proves no principal of this node, \
                      and there is no token in the header `Authorization: Bearer`";
        Self::new(ProblemType::Unauthenticated, detail)
    }

    /// Makes the problem of a caller without a right on the topic of the request.
    pub fn forbidden(action: Action, topic: Option<TopicName>) -> Self {
        let place =
            topic.as_ref().map(|topic| format!(" on the topic {topic}")).unwrap_or_default();
        let detail = format!("nothing was done: the right `{action}`{place} is missing");
        let error = Some("insufficient_scope");
        let more = More { action: Some(action), topic, error, ..More::default() };
        Self { more: Some(Box::new(more)), ..Self::new(ProblemType::Forbidden, detail) }
    }

    /// Makes the problem of a list of all topics, for a caller that may see some of them.
    pub fn forbidden_without_topic(action: Action) -> Self {
        let detail = format!(
            "without a topic, this request needs the right `{action}` on `*`: name a topic that \
             you have the right to"
        );
        Self { detail: detail.into(), ..Self::forbidden(action, None) }
    }

    /// Makes the problem of a caller that has used up one of its limits.
    pub fn quota_exceeded(exceeded: &Exceeded) -> Self {
        if exceeded.is_of_pending() {
            let have = match &exceeded.whose {
                Limited::Principal(_) => "this caller has".to_owned(),
                Limited::Topics(pattern) => format!("the topics {pattern} have"),
            };
            let detail = "as many pending tasks as `pending_max` in the auth file allows";
            return Self::too_many_pending(&format!("{have} {detail}"));
        }
        // Rounded up, so that it is always enough.
        let nanos = exceeded.retry_after.subsec_nanos();
        let seconds = exceeded.retry_after.as_secs().saturating_add(u64::from(nanos > 0)).max(1);
        let limit = exceeded.limit;
        let whose = match &exceeded.whose {
            Limited::Principal(_) => "this caller".to_owned(),
            Limited::Topics(pattern) => format!("the topics {pattern}"),
        };
        let detail =
            format!("nothing was done: the limit `{limit}` of {whose} is reached on this node");
        let more = More { retry_after: Some(seconds), ..More::default() };
        let problem = Self::new(ProblemType::QuotaExceeded, detail);
        Self { more: Some(Box::new(more)), limit: Some("quota"), ..problem }
    }

    /// Makes the problem of a submit while too many tasks are pending.
    pub fn too_many_pending(reason: &str) -> Self {
        let detail = format!("nothing is stored: {reason}");
        Self { limit: Some("pending_max"), ..Self::new(ProblemType::TooManyPending, detail) }
    }

    /// Makes the problem of a new schedule when the cluster has as many as it may have.
    pub fn too_many_schedules(schedules_max: u64) -> Self {
        let detail = format!(
            "nothing is stored: the cluster has {schedules_max} schedules already, as many as it \
             may have (--schedules-max); delete some, or ask the operator for a higher limit"
        );
        Self { limit: Some("schedules_max"), ..Self::new(ProblemType::TooManySchedules, detail) }
    }

    /// Makes the problem of a caller without a valid credential that was denied too often.
    pub fn denied_too_often(retry_after: Duration) -> Self {
        let detail = "nothing was done: too many requests from this address were denied within a \
                      minute; correct the token or the host first";
        let seconds = retry_after.as_secs().saturating_add(1);
        let more = More { retry_after: Some(seconds), ..More::default() };
        let problem = Self::new(ProblemType::DeniedTooOften, detail);
        Self { more: Some(Box::new(more)), limit: Some("denials"), ..problem }
    }

    /// Makes the problem of a token whose issuer has no keys yet.
    pub fn keys_missing() -> Self {
        let detail = "the keys of the issuer of this token are not there yet; nothing was done";
        Self::unavailable(detail)
    }

    /// Makes the problem of such a token from an address that has sent too many of them. The token
    /// may be good, so its caller is not told to correct it, and comes again soon.
    pub fn keys_missing_too_often() -> Self {
        let detail = "nothing was done: this address has sent too many tokens within a minute \
                      whose issuer has no keys yet";
        let more = More { retry_after: Some(KEYS_RETRY_SECONDS), ..More::default() };
        let problem = Self::new(ProblemType::TooManyRequests, detail);
        Self { more: Some(Box::new(more)), limit: Some("denials"), ..problem }
    }

    /// Makes the problem of a request that a browser sends for a page of another origin.
    pub fn foreign_origin(header: &'static str) -> Self {
        let detail = format!(
            "nothing was done: {header} says that the request is from a page of another origin"
        );
        Self::new(ProblemType::Forbidden, detail)
    }

    /// Makes the problem of a request for another host.
    pub fn wrong_host(detail: &'static str) -> Self {
        let detail = format!(
            "nothing was done: {detail}; a node answers to its addresses, to the \
             host of --advertise, and to each --host"
        );
        Self::new(ProblemType::WrongHost, detail)
    }
}
