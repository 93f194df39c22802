//! The policy of a topic, read from JSON, and the reason of a pause.

use std::time::Duration;

use serde_json::value::RawValue;

use crate::api::problems::problem::Problem;
use crate::api::request::fields::{boolean, duration, large_count, members, span_within, string};
use crate::api::request::tracking;
use crate::domain::TopicName;
use crate::domain::task::expiry::{EXPIRE_AFTER_MAX, EXPIRE_AFTER_MIN};
use crate::domain::task::spread::SPREAD_MAX;
use crate::domain::topic::policy::{REASON_BYTES_MAX, TopicPolicy};

/// The members of a policy.
pub const FIELDS: [&str; 8] = [
    "paused",
    "ttr",
    "retry",
    "delay_max",
    "expire_after",
    "spread",
    "pending_max",
    "submitted_by_header",
];
/// The largest `pending_max`. A larger one is a typing error.
pub const PENDING_MAX_MAX: u64 = 1 << 40;

/// Reads a policy for `topic`, and whether the topic is to be paused. Without `paused`, the topic
/// stays as it is.
pub fn read(text: &str, topic: &TopicName) -> Result<(TopicPolicy, Option<bool>), Problem> {
    let [paused, ttr, retry, delay_max, expire_after, spread, pending_max, submitted_by_header] =
        members(text, &FIELDS)?;
    let policy = TopicPolicy {
        tracking: tracking::of(ttr, retry, topic)?.map(Box::new),
        delay_max: delay_max.map(|value| duration(value, "delay_max")).transpose()?,
        expire_after: expire_after.map(expire_after_of).transpose()?,
        // No spread is that of zero.
        spread: spread.map(spread_of).transpose()?.filter(|spread| !spread.is_zero()),
        pending_max: pending_max
            .map(|value| large_count(value, PENDING_MAX_MAX, "pending_max"))
            .transpose()?,
        has_submitter_header: submitted_by_header
            .map(|value| boolean(value, "submitted_by_header"))
            .transpose()?
            .unwrap_or(false),
    };
    Ok((policy, paused.map(|value| boolean(value, "paused")).transpose()?))
}

fn expire_after_of(value: &RawValue) -> Result<Duration, Problem> {
    span_within(value, "expire_after", EXPIRE_AFTER_MIN..=EXPIRE_AFTER_MAX)
}

fn spread_of(value: &RawValue) -> Result<Duration, Problem> {
    span_within(value, "spread", Duration::ZERO..=SPREAD_MAX)
}

/// Reads the reason of a pause or of its end.
pub fn read_reason(text: &str) -> Result<Option<String>, Problem> {
    let [reason] = members(text, &["reason"])?;
    let Some(reason) = reason else { return Ok(None) };
    let reason = string(reason, "reason")?;
    if reason.len() > REASON_BYTES_MAX || reason.contains('\0') {
        let detail = format!("expected {REASON_BYTES_MAX} bytes at most, without NUL");
        return Err(Problem::invalid("reason", detail));
    }
    Ok((!reason.is_empty()).then(|| reason.into_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::problems::problem_type::ProblemType;

    fn read_policy(text: &str) -> Result<(TopicPolicy, Option<bool>), Problem> {
        read(text, &TopicName::new("orders").unwrap())
    }

    #[test]
    fn each_member_of_a_policy_is_read() {
        let text = concat!(
            r#"{"paused":true,"ttr":"30s","retry":{},"delay_max":"90d","#,
            r#""expire_after":"1h","spread":"30s","pending_max":1e6,"#,
            r#""submitted_by_header":true}"#
        );
        let (policy, paused) = read_policy(text).unwrap();
        assert_eq!(paused, Some(true));
        assert_eq!(policy.tracking.unwrap().ttr.as_duration(), Duration::from_secs(30));
        assert_eq!(policy.delay_max, Some(Duration::from_secs(90 * 86_400)));
        assert_eq!(policy.expire_after, Some(Duration::from_hours(1)));
        assert_eq!(policy.spread, Some(Duration::from_secs(30)));
        assert_eq!((policy.pending_max, policy.has_submitter_header), (Some(1_000_000), true));
        assert_eq!(read_policy(r#"{"spread":"0s"}"#).unwrap(), (TopicPolicy::default(), None));
        assert_eq!(read_policy("{}").unwrap(), (TopicPolicy::default(), None));
    }

    #[test]
    fn each_wrong_member_is_refused_with_its_field() {
        use ProblemType as P;
        for (text, kind, field) in [
            (r#"{"paused":1}"#, P::InvalidValue, "paused"),
            (r#"{"retry":{}}"#, P::MissingField, "ttr"),
            (r#"{"ttr":"1ms"}"#, P::InvalidValue, "ttr"),
            (r#"{"delay_max":"1 month"}"#, P::InvalidValue, "delay_max"),
            (r#"{"expire_after":"999ms"}"#, P::InvalidValue, "expire_after"),
            (r#"{"expire_after":"36526d"}"#, P::InvalidValue, "expire_after"),
            (r#"{"spread":86400001}"#, P::InvalidValue, "spread"),
            (
                r#"{"ttr":"1s","retry":{"dead_topic":"orders"}}"#,
                P::InvalidValue,
                "retry.dead_topic",
            ),
            (r#"{"pending_max":0}"#, P::InvalidValue, "pending_max"),
            (r#"{"pending_max":"1"}"#, P::InvalidValue, "pending_max"),
            (r#"{"submitted_by_header":"yes"}"#, P::InvalidValue, "submitted_by_header"),
            (r#"{"pendingMax":1}"#, P::UnknownField, "pendingMax"),
        ] {
            let problem = read_policy(text).unwrap_err();
            let json = serde_json::to_value(problem.json()).unwrap();
            assert_eq!((problem.kind(), json["field"].as_str()), (kind, Some(field)), "{text}");
        }
    }

    #[test]
    fn a_reason_is_short_and_may_be_missing() {
        assert_eq!(read_reason("{}").unwrap(), None);
        assert_eq!(read_reason(r#"{"reason":"poison"}"#).unwrap().as_deref(), Some("poison"));
        let long = format!(r#"{{"reason":"{}"}}"#, "x".repeat(REASON_BYTES_MAX + 1));
        assert!(read_reason(&long).is_err() && read_reason(r#"{"reason":"a\u0000"}"#).is_err());
    }
}
