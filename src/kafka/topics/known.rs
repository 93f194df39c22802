//! The state that callers share with the thread of the `prober`: the cached answers, and the
//! questions under way.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};

use parking_lot::{Mutex, RwLock};
use tokio::sync::watch;

use super::cache::{Cache, CachedAnswer};
use super::question::TopicAnswer;
use crate::clock;
use crate::domain::TopicName;

#[derive(Debug, Default)]
pub(super) struct KnownTopics {
    cache: RwLock<Cache>,
    /// Questions under way.
    pub(super) pending: Mutex<HashMap<TopicName, watch::Receiver<Option<TopicAnswer>>>>,
    is_stopping: AtomicBool,
}

impl KnownTopics {
    /// Returns the cached answer about `topic`.
    pub(super) fn find(&self, topic: &TopicName) -> Option<CachedAnswer> {
        self.cache.read().find(topic, clock::monotonic())
    }

    /// Returns true when the answer was learnt a moment ago.
    pub(super) fn is_recent(&self, topic: &TopicName) -> bool {
        self.cache.read().is_recent(topic, clock::monotonic())
    }

    /// Keeps Kafka's answer, or the lack of one, and tells the waiting callers.
    pub(super) fn settle(
        &self,
        topic: &TopicName,
        answer: TopicAnswer,
        sender: &watch::Sender<Option<TopicAnswer>>,
    ) {
        let mut cache = self.cache.write();
        cache.keep(topic, &answer, clock::monotonic());
        drop(cache);
        self.pending.lock().remove(topic);
        sender.send_replace(Some(answer));
    }

    pub(super) fn topic_count(&self) -> usize {
        self.cache.read().len()
    }

    /// Tells the thread to end.
    pub(super) fn stop(&self) {
        self.is_stopping.store(true, Ordering::Relaxed);
    }

    pub(super) fn is_stopping(&self) -> bool {
        self.is_stopping.load(Ordering::Relaxed)
    }
}
