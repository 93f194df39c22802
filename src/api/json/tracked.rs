//! The members that only tracked tasks have.

use std::time::Duration;

use serde::ser::SerializeMap;
use serde::{Serialize, Serializer};

use super::times::Rfc3339;
use crate::domain::time::duration::spelled;
use crate::domain::{
    AttemptLine, Finished, RetryPolicy, Timestamp, TopicName, TrackedView, Tracking,
};

/// The members that a tracked task adds to a task in JSON.
#[derive(Debug)]
pub struct TrackedJson<'a> {
    tracking: &'a Tracking,
    attempts_max: u16,
    finish_by: Option<Timestamp>,
    retry_at: Option<Timestamp>,
    finished: Option<&'a Finished>,
    attempts: &'a [AttemptLine],
    /// The consumer's reasons count as payload.
    shows_reasons: bool,
}

impl<'a> TrackedJson<'a> {
    /// Shows a task that was just stored.
    pub fn of_new(tracking: &'a Tracking) -> Self {
        Self {
            tracking,
            attempts_max: tracking.retry.attempts_max(),
            finish_by: None,
            retry_at: None,
            finished: None,
            attempts: &[],
            shows_reasons: false,
        }
    }

    pub fn of_view(view: &'a TrackedView, shows_reasons: bool) -> Self {
        Self {
            tracking: &view.tracking,
            attempts_max: view.attempts_max,
            finish_by: view.finish_by,
            retry_at: view.next_at,
            finished: view.finished.as_ref(),
            attempts: &view.attempts,
            shows_reasons,
        }
    }

    /// Shows the task without its attempts, of which there may be many.
    #[must_use]
    pub fn without_attempts(self) -> Self {
        Self { attempts: &[], ..self }
    }

    /// Writes what a submitter wants into an object.
    pub fn wishes<M: SerializeMap>(map: &mut M, tracking: &Tracking) -> Result<(), M::Error> {
        map.serialize_entry("ttr", &SpelledJson(tracking.ttr.as_duration()))?;
        map.serialize_entry("retry", &RetryJson::of(tracking))
    }

    /// Writes the members into the object of the task.
    pub fn entries<M: SerializeMap>(&self, map: &mut M) -> Result<(), M::Error> {
        Self::wishes(map, self.tracking)?;
        map.serialize_entry("attempts_max", &self.attempts_max)?;
        if let Some(finish_by) = self.finish_by {
            map.serialize_entry("finish_by", &Rfc3339(finish_by))?;
        }
        if let Some(retry_at) = self.retry_at {
            map.serialize_entry("retry_at", &Rfc3339(retry_at))?;
        }
        if let Some(Finished { at, by, in_flight }) = self.finished {
            map.serialize_entry("finished_at", &Rfc3339(*at))?;
            if let Some(by) = by {
                map.serialize_entry("finished_by", by.as_str())?;
            }
            if *in_flight {
                map.serialize_entry("in_flight", &true)?;
            }
        }
        if !self.attempts.is_empty() {
            let line = |line| AttemptJson::of(line, self.shows_reasons);
            let attempts: Vec<AttemptJson<'_>> = self.attempts.iter().map(line).collect();
            map.serialize_entry("attempts", &attempts)?;
        }
        Ok(())
    }
}

/// A duration as people write it. Requests take the same text.
struct SpelledJson(Duration);

impl Serialize for SpelledJson {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&spelled(self.0))
    }
}

#[derive(Serialize)]
struct RetryJson<'a> {
    attempts_max: u16,
    backoff_min: SpelledJson,
    backoff_max: SpelledJson,
    backoff_factor: u16,
    #[serde(skip_serializing_if = "Option::is_none")]
    dead_topic: Option<&'a str>,
}

impl<'a> RetryJson<'a> {
    fn of(tracking: &'a Tracking) -> Self {
        let retry: RetryPolicy = tracking.retry;
        Self {
            attempts_max: retry.attempts_max(),
            backoff_min: SpelledJson(retry.backoff_min()),
            backoff_max: SpelledJson(retry.backoff_max()),
            backoff_factor: retry.backoff_factor(),
            dead_topic: tracking.dead_topic.as_ref().map(TopicName::as_str),
        }
    }
}

#[derive(Serialize)]
struct AttemptJson<'a> {
    attempt: u16,
    outcome: &'static str,
    at: Rfc3339,
    #[serde(skip_serializing_if = "Option::is_none")]
    receipt: Option<AttemptReceiptJson>,
    #[serde(skip_serializing_if = "Option::is_none")]
    reason: Option<&'a str>,
}

impl<'a> AttemptJson<'a> {
    fn of(line: &'a AttemptLine, shows_reason: bool) -> Self {
        Self {
            attempt: line.attempt,
            outcome: line.event.as_str(),
            at: Rfc3339(line.at),
            receipt: line.receipt.map(|receipt| AttemptReceiptJson {
                partition: receipt.partition,
                offset: receipt.offset,
                published_at: Rfc3339(receipt.published_at),
            }),
            reason: line.reason.as_deref().filter(|_reason| shows_reason),
        }
    }
}

/// The receipt of an attempt has no lateness, because the due time of an attempt is not kept.
#[derive(Serialize)]
struct AttemptReceiptJson {
    partition: i32,
    offset: i64,
    published_at: Rfc3339,
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::domain::{AttemptEvent, PrincipalName, Receipt, Ttr};

    /// The members in an object of their own.
    struct Alone<'a>(TrackedJson<'a>);

    impl Serialize for Alone<'_> {
        fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
            let mut map = serializer.serialize_map(None)?;
            self.0.entries(&mut map)?;
            map.end()
        }
    }

    fn view() -> TrackedView {
        let at = Timestamp::from_millis(1_896_082_200_000);
        let line = |attempt, event| AttemptLine {
            attempt,
            event,
            at,
            receipt: (event == AttemptEvent::Published).then_some(Receipt {
                partition: 2,
                offset: 9,
                published_at: at,
            }),
            reason: (event == AttemptEvent::Failed).then(|| "no stock".to_owned()),
        };
        TrackedView {
            tracking: Tracking {
                ttr: Ttr::new(Duration::from_secs(90)).unwrap(),
                retry: RetryPolicy::DEFAULT,
                dead_topic: Some(TopicName::new("orders.dead").unwrap()),
            },
            attempt: 1,
            attempts_max: 16,
            finish_by: None,
            next_at: Some(at),
            finished: None,
            attempts: vec![line(1, AttemptEvent::Published), line(1, AttemptEvent::Failed)],
        }
    }

    fn json(view: &TrackedView, shows_reasons: bool) -> String {
        serde_json::to_string(&Alone(TrackedJson::of_view(view, shows_reasons))).unwrap()
    }

    #[test]
    fn a_tracked_task_shows_its_policy_and_its_attempts() {
        let wanted = concat!(
            r#"{"ttr":"1m 30s","retry":{"attempts_max":16,"backoff_min":"0s","backoff_max":"1h","#,
            r#""backoff_factor":2,"dead_topic":"orders.dead"},"attempts_max":16,"#,
            r#""retry_at":"2030-01-31T09:30:00.000Z","attempts":["#,
            r#"{"attempt":1,"outcome":"published","at":"2030-01-31T09:30:00.000Z","#,
            r#""receipt":{"partition":2,"offset":9,"published_at":"2030-01-31T09:30:00.000Z"}},"#,
            r#"{"attempt":1,"outcome":"failed","at":"2030-01-31T09:30:00.000Z","#,
            r#""reason":"no stock"}]}"#
        );
        assert_eq!(json(&view(), true), wanted);
        assert_eq!(json(&view(), false), wanted.replace(r#","reason":"no stock""#, ""));
    }

    #[test]
    fn a_finished_task_says_when_by_whom_and_whether_a_record_may_follow() {
        let at = Timestamp::from_millis(1_896_082_200_000);
        let shown = |by, in_flight| {
            let finished = Some(Finished { at, by, in_flight });
            json(&TrackedView { finished, next_at: None, attempts: Vec::new(), ..view() }, true)
        };
        let finished = r#""attempts_max":16,"finished_at":"2030-01-31T09:30:00.000Z""#;
        assert!(shown(None, false).ends_with(&format!("{finished}}}")));
        let by = PrincipalName::new("ann").unwrap();
        let members = format!(r#"{finished},"finished_by":"ann","in_flight":true}}"#);
        assert!(shown(Some(by), true).ends_with(&members));
    }
}
