//! Topics of the model: policies and pauses are stored, and hold no tasks.

use parking_lot::Mutex;

use super::NOW_MILLIS;
use crate::access::permit::ListPermit;
use crate::domain::topic::callback::policy::CallbackPolicy;
use crate::domain::topic::callback::{Callback, StoredCallback};
use crate::domain::topic::policy::{Pause, StoredTopic, TopicChange, TopicChanged};
use crate::domain::{Timestamp, TopicName};
use crate::node::messages::answers::PutCallback;
use crate::node::messages::{ChangedTopic, TopicView};

#[derive(Debug, Default)]
pub struct Topics {
    stored: Mutex<Vec<StoredTopic>>,
    callbacks: Mutex<Vec<StoredCallback>>,
}

impl Topics {
    pub fn find(&self, topic: &TopicName) -> StoredTopic {
        let stored = self.stored.lock().iter().find(|one| one.topic == *topic).cloned();
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
            self.stored.lock().iter().filter(|one| is_next(one)).cloned().collect();
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
                let mut topics = self.stored.lock();
                topics.retain(|one| one.topic != *topic);
                topics.push(stored.clone());
                TopicChanged::Changed(stored)
            }
        } else {
            TopicChanged::Unmet(before.current())
        };
        ChangedTopic { changed, in_flight }
    }

    /// Callbacks may lead to hosts of example.com alone.
    pub fn put_callback(&self, topic: &TopicName, callback: Callback) -> PutCallback {
        let hosts = "*.example.com".parse().into_iter().collect();
        let policy = CallbackPolicy { hosts, ..CallbackPolicy::default() };
        if let Err(refused) = policy.check(&callback.url) {
            return PutCallback::Refused(refused);
        }
        let revision = self.callback(topic).map_or(1, |stored| stored.revision + 1);
        let (topic, unopened, pause_reason) = (topic.clone(), None, None);
        let stored = StoredCallback { topic, revision, callback, unopened, pause_reason };
        let mut callbacks = self.callbacks.lock();
        callbacks.retain(|one| one.topic != stored.topic);
        callbacks.push(stored.clone());
        PutCallback::Stored(stored)
    }

    pub fn callback(&self, topic: &TopicName) -> Option<StoredCallback> {
        self.callbacks.lock().iter().find(|one| one.topic == *topic).cloned()
    }

    pub fn delete_callback(&self, topic: &TopicName) -> Option<StoredCallback> {
        let former = self.callback(topic);
        self.callbacks.lock().retain(|one| one.topic != *topic);
        former
    }
}
