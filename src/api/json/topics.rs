//! A topic in JSON.

use az::SaturatingAs as _;
use serde::ser::SerializeMap;
use serde::{Serialize, Serializer};

use super::times::Rfc3339;
use super::tracked::TrackedJson;
use crate::domain::time::duration::spelled;
use crate::domain::topic::policy::{Pause, TopicPolicy};
use crate::node::messages::{Figure, TopicView, UnavailableTopic};

/// A topic, and the number of its tasks.
#[derive(Debug, Serialize)]
pub struct TopicJson<'a> {
    topic: &'a str,
    revision: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    policy: Option<PolicyJson<'a>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    paused: Option<PauseJson<'a>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pending: Option<FigureJson>,
    #[serde(skip_serializing_if = "Option::is_none")]
    in_flight: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    unavailable: Option<UnavailableJson<'a>>,
}

impl<'a> TopicJson<'a> {
    /// Reasons of failures are for operators alone.
    pub fn new(view: &'a TopicView, shows_reasons: bool) -> Self {
        let stored = &view.stored;
        Self {
            topic: stored.topic.as_str(),
            revision: stored.revision,
            policy: (!stored.policy.is_empty()).then_some(PolicyJson(&stored.policy)),
            paused: stored.pause.as_ref().map(PauseJson::of),
            pending: view.pending.map(FigureJson::of),
            in_flight: view.in_flight,
            unavailable: view.unavailable.as_ref().map(|unavailable| UnavailableJson {
                gone: unavailable.is_gone,
                reason: unavailable.reason.as_deref().filter(|_| shows_reasons),
                unavailable_ms: millis_of(unavailable),
            }),
        }
    }
}

fn millis_of(unavailable: &UnavailableTopic) -> u64 {
    unavailable.unavailable_for.as_millis().saturating_as::<u64>()
}

#[derive(Debug)]
struct PolicyJson<'a>(&'a TopicPolicy);

impl Serialize for PolicyJson<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let TopicPolicy {
            tracking,
            delay_max,
            expire_after,
            spread,
            pending_max,
            has_submitter_header,
        } = self.0;
        let mut map = serializer.serialize_map(None)?;
        if let Some(tracking) = tracking.as_deref() {
            TrackedJson::wishes(&mut map, tracking)?;
        }
        if let Some(delay_max) = delay_max {
            map.serialize_entry("delay_max", &spelled(*delay_max))?;
        }
        if let Some(expire_after) = expire_after {
            map.serialize_entry("expire_after", &spelled(*expire_after))?;
        }
        if let Some(spread) = spread {
            map.serialize_entry("spread", &spelled(*spread))?;
        }
        if let Some(pending_max) = pending_max {
            map.serialize_entry("pending_max", pending_max)?;
        }
        if *has_submitter_header {
            map.serialize_entry("submitted_by_header", &true)?;
        }
        map.end()
    }
}

/// The pause of a topic.
#[derive(Debug, Serialize)]
pub struct PauseJson<'a> {
    since: Rfc3339,
    reason: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    by: Option<&'a str>,
}

impl<'a> PauseJson<'a> {
    /// Writes a pause with the words and the name of the operator, if the reader may see them.
    pub fn shown(pause: &'a Pause, is_readable: bool) -> Self {
        let since = Rfc3339(pause.since);
        if is_readable { Self::of(pause) } else { Self { since, reason: None, by: None } }
    }

    fn of(pause: &'a Pause) -> Self {
        Self {
            since: Rfc3339(pause.since),
            reason: pause.reason.as_deref(),
            by: pause.by.as_ref().map(|by| by.as_str()),
        }
    }
}

#[derive(Debug, Serialize)]
struct FigureJson {
    count: u64,
    exact: bool,
}

impl FigureJson {
    fn of(figure: Figure) -> Self {
        Self { count: figure.task_count, exact: figure.is_exact }
    }
}

#[derive(Debug, Serialize)]
struct UnavailableJson<'a> {
    gone: bool,
    unavailable_ms: u64,
    reason: Option<&'a str>,
}

/// A page of topics.
#[derive(Debug, Serialize)]
pub struct TopicPage<'a> {
    pub topics: Vec<TopicJson<'a>>,
    /// The topic after which the next page begins. Null at the end.
    pub next_after: Option<&'a str>,
}
