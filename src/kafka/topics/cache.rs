//! Caches the answers about topics, and decides for how long they count.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use az::SaturatingAs as _;

use super::question::{LookUpError, TopicAnswer, TopicFacts};
use crate::domain::{Monotonic, TopicName};

/// An answer counts as fresh for this long.
const FRESH_FOR: Duration = Duration::from_secs(60);
/// An older answer counts only while Kafka is away.
const STALE_FOR: Duration = Duration::from_secs(600);
/// The validity of the answer for a missing topic: short, because the topic may be created the next
/// moment. A limit for which a record is refused must be as young.
const UNKNOWN_FOR: Duration = Duration::from_secs(1);
/// The pause after a question that Kafka did not answer.
const ASKED_AGAIN_AFTER: Duration = Duration::from_secs(1);
const TOPICS_MAX: usize = 10_000;

#[derive(Debug, Default)]
pub(super) struct Cache {
    entries: HashMap<TopicName, CachedTopic>,
}

#[derive(Debug)]
struct CachedTopic {
    answer: TopicAnswer,
    learnt_at: Monotonic,
    /// When Kafka should be asked again.
    due_at: Monotonic,
    /// Milliseconds of the monotonic clock, written by readers.
    used_at: AtomicU64,
}

/// The cached answer about a topic.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum CachedAnswer {
    Fresh(TopicAnswer),
    /// The answer still counts, but Kafka should be asked: now, when `is_due`.
    Stale {
        facts: TopicFacts,
        is_due: bool,
    },
    Old(TopicFacts),
}

impl Cache {
    pub(super) fn len(&self) -> usize {
        self.entries.len()
    }

    pub(super) fn find(&self, topic: &TopicName, now: Monotonic) -> Option<CachedAnswer> {
        let entry = self.entries.get(topic)?;
        entry.used_at.store(millis(now), Ordering::Relaxed);
        let age = now.since(entry.learnt_at);
        match &entry.answer {
            Ok(facts) if age < FRESH_FOR => Some(CachedAnswer::Fresh(Ok(*facts))),
            Ok(facts) if age < STALE_FOR => {
                Some(CachedAnswer::Stale { facts: *facts, is_due: now >= entry.due_at })
            }
            Ok(facts) => Some(CachedAnswer::Old(*facts)),
            Err(error) if age < UNKNOWN_FOR => Some(CachedAnswer::Fresh(Err(error.clone()))),
            Err(_) => None,
        }
    }

    /// Returns true when the answer is young enough to refuse a record for good.
    pub(super) fn is_recent(&self, topic: &TopicName, now: Monotonic) -> bool {
        self.entries.get(topic).is_some_and(|entry| now.since(entry.learnt_at) < UNKNOWN_FOR)
    }

    /// Keeps an answer of Kafka. An answer without facts about the topic leaves the known ones.
    pub(super) fn keep(&mut self, topic: &TopicName, answer: &TopicAnswer, now: Monotonic) {
        if let Err(LookUpError::Unavailable { .. } | LookUpError::Busy) = answer {
            if let Some(entry) = self.entries.get_mut(topic) {
                entry.due_at = now.plus(ASKED_AGAIN_AFTER);
            }
            return;
        }
        if !self.entries.contains_key(topic) && self.entries.len() >= TOPICS_MAX {
            self.make_room(now);
        }
        let entry = CachedTopic {
            answer: answer.clone(),
            learnt_at: now,
            due_at: now.plus(FRESH_FOR),
            used_at: AtomicU64::new(millis(now)),
        };
        self.entries.insert(topic.clone(), entry);
    }

    /// Forgets the topics that do not exist. When there are none, forgets the topic that was not
    /// asked about for longest.
    fn make_room(&mut self, now: Monotonic) {
        self.entries
            .retain(|_, entry| entry.answer.is_ok() || now.since(entry.learnt_at) < UNKNOWN_FOR);
        if self.entries.len() < TOPICS_MAX {
            return;
        }
        let idle =
            self.entries.iter().min_by_key(|(_, entry)| entry.used_at.load(Ordering::Relaxed));
        if let Some(topic) = idle.map(|(topic, _)| topic.clone()) {
            self.entries.remove(&topic);
        }
    }
}

fn millis(now: Monotonic) -> u64 {
    now.since_start().as_millis().saturating_as::<u64>()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kafka::compression::TopicCompression;

    const FACTS: TopicFacts = TopicFacts {
        record_bytes_max: 1000,
        needs_key: false,
        compression: TopicCompression::AsSent,
    };

    fn at(millis: u64) -> Monotonic {
        Monotonic::from_start(Duration::from_millis(millis))
    }

    fn topic(number: usize) -> TopicName {
        TopicName::stored(&format!("topic-{number}"))
    }

    #[test]
    fn a_topic_is_fresh_for_a_minute_then_stale_then_old() {
        let mut cache = Cache::default();
        assert_eq!(cache.find(&topic(0), at(0)), None);
        cache.keep(&topic(0), &Ok(FACTS), at(0));
        assert_eq!(cache.find(&topic(0), at(59_999)), Some(CachedAnswer::Fresh(Ok(FACTS))));
        assert_eq!(
            cache.find(&topic(0), at(60_000)),
            Some(CachedAnswer::Stale { facts: FACTS, is_due: true })
        );
        assert_eq!(cache.find(&topic(0), at(600_000)), Some(CachedAnswer::Old(FACTS)));
        assert_eq!(
            [999, 1_000].map(|millis| cache.is_recent(&topic(0), at(millis))),
            [true, false]
        );
        assert!(!cache.is_recent(&topic(1), at(0)));
    }

    #[test]
    fn a_question_without_an_answer_leaves_what_is_known_and_is_not_repeated_at_once() {
        let mut cache = Cache::default();
        cache.keep(&topic(0), &Ok(FACTS), at(0));
        cache.keep(
            &topic(0),
            &Err(LookUpError::Unavailable { reason: "away".to_owned() }),
            at(60_000),
        );
        assert_eq!(
            cache.find(&topic(0), at(60_999)),
            Some(CachedAnswer::Stale { facts: FACTS, is_due: false })
        );
        assert_eq!(
            cache.find(&topic(0), at(61_000)),
            Some(CachedAnswer::Stale { facts: FACTS, is_due: true })
        );
        cache.keep(&topic(1), &Err(LookUpError::Busy), at(0));
        assert_eq!(cache.find(&topic(1), at(0)), None);
    }

    #[test]
    fn a_topic_that_is_not_there_is_asked_about_again_after_a_second() {
        let mut cache = Cache::default();
        cache.keep(&topic(0), &Ok(FACTS), at(0));
        cache.keep(&topic(0), &Err(LookUpError::Unknown), at(5));
        assert_eq!(
            cache.find(&topic(0), at(1_004)),
            Some(CachedAnswer::Fresh(Err(LookUpError::Unknown)))
        );
        assert_eq!(cache.find(&topic(0), at(1_005)), None);
    }

    #[test]
    fn a_full_cache_forgets_what_is_not_there_before_what_is_idle() {
        let mut cache = Cache::default();
        cache.keep(&topic(0), &Err(LookUpError::Unknown), at(0));
        for number in 1..TOPICS_MAX {
            cache.keep(&topic(number), &Ok(FACTS), at(u64::try_from(number).unwrap()));
        }
        cache.keep(&topic(TOPICS_MAX), &Ok(FACTS), at(20_000));
        assert_eq!((cache.len(), cache.entries.contains_key(&topic(0))), (TOPICS_MAX, false));
        assert!(cache.find(&topic(1), at(20_001)).is_some());
        cache.keep(&topic(TOPICS_MAX + 1), &Ok(FACTS), at(20_002));
        assert_eq!((cache.len(), cache.entries.contains_key(&topic(2))), (TOPICS_MAX, false));
        assert!(cache.entries.contains_key(&topic(1)));
    }
}
