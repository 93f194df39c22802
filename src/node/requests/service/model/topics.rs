//! Topics of the model: policies and pauses are stored, and hold no tasks.

use parking_lot::Mutex;

use super::NOW_MILLIS;
use crate::access::permit::ListPermit;
use crate::domain::topic::policy::{Pause, StoredTopic, TopicChange, TopicChanged};
use crate::domain::{Timestamp, TopicName};
use crate::node::messages::{ChangedTopic, TopicView};

#[derive(Debug, Default)]
pub struct Topics(Mutex<Vec<StoredTopic>>);

impl Topics {
    pub fn find(&self, topic: &TopicName) -> StoredTopic {
        let stored = self.0.lock().iter().find(|one| one.topic == *topic).cloned();
        stored.unwrap_or_else(|| StoredTopic::plain(topic.clone()))
    }

    pub fn list(
        &self,
        permit: &ListPermit,
        after: Option<&TopicName>,
        limit: usize,
    ) -> Vec<TopicView> {
        let is_next = |one: &StoredTopic| {
            one.has_any()
                && permit.covers(&one.topic)
                && after.is_none_or(|after| one.topic > *after)
        };
        let mut found: Vec<StoredTopic> =
            self.0.lock().iter().filter(|one| is_next(one)).cloned().collect();
        found.sort_by(|one, other| one.topic.cmp(&other.topic));
        found.into_iter().take(limit).map(TopicView::from).collect()
    }

    pub fn change(&self, topic: &TopicName, change: TopicChange) -> ChangedTopic {
        let before = self.find(topic);
        let in_flight = (change.is_paused == Some(true)).then_some(0);
        let changed = if change.condition.allows(before.current()) {
            let pause = match change.is_paused {
                Some(true) => before.pause.clone().or_else(|| {
                    let since = Timestamp::from_millis(NOW_MILLIS);
                    Some(Pause { since, reason: change.reason.clone(), by: None })
                }),
                Some(false) => None,
                None => before.pause.clone(),
            };
            let policy = change.policy.unwrap_or_else(|| before.policy.clone());
            let stored = StoredTopic { policy, pause, ..before.clone() };
            if stored == before {
                TopicChanged::Unchanged(before)
            } else {
                let stored = StoredTopic { revision: before.revision + 1, ..stored };
                let mut topics = self.0.lock();
                topics.retain(|one| one.topic != *topic);
                topics.push(stored.clone());
                TopicChanged::Changed(stored)
            }
        } else {
            TopicChanged::Unmet(before.current())
        };
        ChangedTopic { changed, in_flight }
    }
}
