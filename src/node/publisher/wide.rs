//! Topics with many partitions, as far as receipts have told.

use std::collections::HashSet;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{PoisonError, RwLock};

use crate::domain::TopicName;

/// More topics are not taken for wide: their records go out by one line each.
const TOPICS_MAX: usize = 10_000;

/// Each record asks, so while there are none no lock is taken.
#[derive(Debug, Default)]
pub(super) struct Wide {
    count: AtomicUsize,
    topics: RwLock<HashSet<TopicName>>,
}

impl Wide {
    pub(super) fn has(&self, topic: &TopicName) -> bool {
        self.count.load(Ordering::Relaxed) > 0 && self.topics.read().unwrap_or_else(PoisonError::into_inner).contains(topic)
    }

    pub(super) fn add(&self, topic: &TopicName) {
        if self.has(topic) || self.count.load(Ordering::Relaxed) >= TOPICS_MAX {
            return;
        }
        let mut topics = self.topics.write().unwrap_or_else(PoisonError::into_inner);
        topics.insert(topic.clone());
        self.count.store(topics.len(), Ordering::Relaxed);
    }
}
