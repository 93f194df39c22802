//! Reads what a submitter wants of the consumer's answers: `ttr` and `retry`.

use serde_json::value::RawValue;

use super::fields::{count, duration, members, refuse_internal, string};
use crate::api::problems::problem::Problem;
use crate::api::problems::problem_type::ProblemType;
use crate::domain::task::retry_policy::{self, RetryPolicyError};
use crate::domain::{RetryPolicy, TopicName, Tracking, Ttr};

/// The members of `retry`.
const FIELDS: [&str; 5] =
    ["attempts_max", "backoff_min", "backoff_max", "backoff_factor", "dead_topic"];

const ATTEMPTS_MAX: &str = "retry.attempts_max";
const BACKOFF_MIN: &str = "retry.backoff_min";
const BACKOFF_MAX: &str = "retry.backoff_max";
const BACKOFF_FACTOR: &str = "retry.backoff_factor";
const DEAD_TOPIC: &str = "retry.dead_topic";

/// Reads `ttr` and `retry` of a task for `topic`. Returns `None` for an untracked task.
pub fn of(
    ttr: Option<&RawValue>,
    retry: Option<&RawValue>,
    topic: &TopicName,
) -> Result<Option<Tracking>, Problem> {
    match (ttr, retry) {
        (None, None) => Ok(None),
        (None, Some(_)) => {
            let detail = "retry needs ttr: only a task with a time to run is answered by its \
                          consumer, and tried again";
            Err(Problem::new(ProblemType::MissingField, detail).at("ttr"))
        }
        (Some(ttr), retry) => {
            let ttr = Ttr::new(duration(ttr, "ttr")?)
                .map_err(|error| Problem::invalid("ttr", error.to_string()))?;
            let (retry, dead_topic) = match retry {
                Some(retry) => policy_of(retry, topic)?,
                None => (RetryPolicy::DEFAULT, None),
            };
            Ok(Some(Tracking { ttr, retry, dead_topic }))
        }
    }
}

fn policy_of(
    retry: &RawValue,
    topic: &TopicName,
) -> Result<(RetryPolicy, Option<TopicName>), Problem> {
    let within = |problem: Problem| problem.within("retry");
    let [attempts_max, backoff_min, backoff_max, backoff_factor, dead_topic] =
        members(retry.get(), &FIELDS).map_err(within)?;
    let number = |value: Option<&RawValue>, field, max, or| {
        value.map_or(Ok(or), |value| count(value, max, field))
    };
    let span =
        |value: Option<&RawValue>, field, or| value.map_or(Ok(or), |value| duration(value, field));
    let default = RetryPolicy::DEFAULT;
    let policy = RetryPolicy::new(
        number(attempts_max, ATTEMPTS_MAX, retry_policy::ATTEMPTS_MAX, default.attempts_max())?,
        span(backoff_min, BACKOFF_MIN, default.backoff_min())?,
        span(backoff_max, BACKOFF_MAX, default.backoff_max())?,
        number(backoff_factor, BACKOFF_FACTOR, retry_policy::FACTOR_MAX, default.backoff_factor())?,
    );
    let policy = policy.map_err(|error| {
        let field = match error {
            RetryPolicyError::Attempts(_) => ATTEMPTS_MAX,
            RetryPolicyError::Factor(_) => BACKOFF_FACTOR,
            RetryPolicyError::TooLong(_) => BACKOFF_MAX,
            RetryPolicyError::Reversed { .. } => BACKOFF_MIN,
        };
        Problem::invalid(field, error.to_string())
    })?;
    Ok((policy, dead_topic.map(|value| dead_topic_of(value, topic)).transpose()?))
}

fn dead_topic_of(value: &RawValue, topic: &TopicName) -> Result<TopicName, Problem> {
    let dead_topic = TopicName::new(&string(value, DEAD_TOPIC)?)
        .map_err(|error| Problem::invalid(DEAD_TOPIC, error.to_string()))?;
    refuse_internal(&dead_topic, DEAD_TOPIC)?;
    if dead_topic == *topic {
        let detail = "this is the topic of the task itself, whose consumer would get the dead \
                      record again; name another topic";
        return Err(Problem::invalid(DEAD_TOPIC, detail));
    }
    Ok(dead_topic)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn read(text: &str) -> Result<Option<Tracking>, Problem> {
        let [ttr, retry] = members(text, &["ttr", "retry"]).unwrap();
        of(ttr, retry, &TopicName::new("orders").unwrap())
    }

    #[test]
    fn a_task_is_tracked_by_its_ttr_and_has_the_default_policy() {
        assert_eq!(read("{}").unwrap(), None);
        for retry in ["", r#","retry":{}"#] {
            let tracking = read(&format!(r#"{{"ttr":"30s"{retry}}}"#)).unwrap().unwrap();
            assert_eq!(tracking.ttr.as_duration(), Duration::from_secs(30));
            assert_eq!((tracking.retry, tracking.dead_topic), (RetryPolicy::DEFAULT, None));
        }
    }

    #[test]
    fn each_member_of_a_policy_is_read() {
        let text = concat!(
            r#"{"ttr":1500,"retry":{"attempts_max":3,"backoff_min":"2s","backoff_max":"PT1M","#,
            r#""backoff_factor":5.0,"dead_topic":"orders.dead"}}"#
        );
        let seconds = Duration::from_secs;
        let wanted = Tracking {
            ttr: Ttr::new(Duration::from_millis(1500)).unwrap(),
            retry: RetryPolicy::new(3, seconds(2), seconds(60), 5).unwrap(),
            dead_topic: Some(TopicName::new("orders.dead").unwrap()),
        };
        assert_eq!(read(text).unwrap(), Some(wanted));
    }
}
