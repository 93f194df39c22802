//! The policies and pauses of topics, as last read by the node. This copy may be a second old.
//! Claims therefore read the table.

use std::collections::{HashMap, HashSet};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use parking_lot::RwLock;

use crate::domain::topic::policy::{Pause, PauseTimes, StoredTopic};
use crate::domain::{Expiry, Timestamp, TopicName, Tracking};

/// The node's knowledge of the topics that have, or had, a policy or a pause.
#[derive(Debug, Default)]
pub struct TopicPolicies {
    known: RwLock<Known>,
    /// Mostly false. Each record and each submit reads it, hence without a lock.
    has_any: AtomicBool,
}

#[derive(Debug, Default)]
struct Known {
    topics: HashMap<TopicName, StoredTopic>,
    /// The topics that this node has changed since the last look began.
    changed: HashSet<TopicName>,
}

/// The difference that a look has made, and the pauses of now.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct Seen {
    pub paused: Vec<TopicName>,
    pub resumed: Vec<TopicName>,
    pub paused_count: usize,
    /// When the pause began that has lasted longest.
    pub paused_since: Option<Timestamp>,
    /// The end of the last pause that has ended.
    pub resumed_at: Option<Timestamp>,
}

impl TopicPolicies {
    /// Notes that a look begins: it sees all changes that were made before.
    pub fn begin_look(&self) {
        self.known.write().changed.clear();
    }

    /// Takes in what a look has found: all topics of the cluster that have, or had, a policy or a
    /// pause. Policies that this node has changed since the look began stay.
    pub fn take_in(&self, topics: Vec<StoredTopic>) -> Seen {
        let mut topics: HashMap<TopicName, StoredTopic> =
            topics.into_iter().map(|one| (one.topic.clone(), one)).collect();
        let mut known = self.known.write();
        for newer in known.changed.iter().filter_map(|topic| known.topics.get(topic)) {
            let read = topics
                .entry(newer.topic.clone())
                .or_insert_with(|| StoredTopic::plain(newer.topic.clone()));
            if newer.revision > read.revision {
                (read.revision, read.policy) = (newer.revision, newer.policy.clone());
            }
        }
        self.has_any.store(!topics.is_empty(), Ordering::Relaxed);
        let before = std::mem::replace(&mut known.topics, topics.clone());
        drop(known);
        let is_paused = |topics: &HashMap<TopicName, StoredTopic>, topic: &TopicName| {
            topics.get(topic).is_some_and(|one| one.pause.is_some())
        };
        // A pause may have begun and ended between two looks.
        let has_resumed = |before: &StoredTopic| {
            let now = topics.get(&before.topic);
            let was_paused =
                before.pause.is_some() || now.is_some_and(|now| now.resumed_at > before.resumed_at);
            was_paused && now.is_none_or(|now| now.pause.is_none())
        };
        let pauses = topics.values().filter_map(|one| one.pause.as_ref());
        Seen {
            paused: topics
                .keys()
                .filter(|topic| is_paused(&topics, topic) && !is_paused(&before, topic))
                .cloned()
                .collect(),
            resumed: before
                .values()
                .filter(|one| has_resumed(one))
                .map(|one| one.topic.clone())
                .collect(),
            paused_count: pauses.clone().count(),
            paused_since: pauses.map(|pause| pause.since).min(),
            resumed_at: topics.values().filter_map(|one| one.resumed_at).max(),
        }
    }

    /// Takes in the policy of a topic that this node has just changed. Its pause is left to the
    /// next look, which compares it with the one before.
    pub fn changed(&self, topic: &StoredTopic) {
        let mut known = self.known.write();
        known.changed.insert(topic.topic.clone());
        match known.topics.get_mut(&topic.topic) {
            Some(known) if known.revision <= topic.revision => {
                (known.revision, known.policy) = (topic.revision, topic.policy.clone());
            }
            // The answers of two changes may come in another order.
            Some(_newer) => {}
            None => {
                let new = StoredTopic { pause: None, resumed_at: None, ..topic.clone() };
                known.topics.insert(topic.topic.clone(), new);
            }
        }
        drop(known);
        self.has_any.store(true, Ordering::Relaxed);
    }

    /// Returns true when some topic has, or had, a policy or a pause.
    pub fn has_any(&self) -> bool {
        self.has_any.load(Ordering::Relaxed)
    }

    fn of<T>(&self, topic: &TopicName, read: impl FnOnce(&StoredTopic) -> T) -> Option<T> {
        if !self.has_any() {
            return None;
        }
        self.known.read().topics.get(topic).map(read)
    }

    pub fn is_paused(&self, topic: &TopicName) -> bool {
        self.of(topic, |one| one.pause.is_some()).unwrap_or(false)
    }

    /// Returns the paused topics. The pause that has lasted longest comes first.
    pub fn paused(&self) -> Vec<(TopicName, Pause)> {
        let known = self.known.read();
        let pauses = known.topics.values().filter_map(|one| {
            let pause = one.pause.clone()?;
            Some((one.topic.clone(), pause))
        });
        let mut paused: Vec<_> = pauses.collect();
        drop(known);
        paused.sort_unstable_by(|(topic, pause), (other_topic, other)| {
            (pause.since, topic).cmp(&(other.since, other_topic))
        });
        paused
    }

    /// Returns the wishes of a task of `topic` that wants `own`.
    pub fn tracking_for(
        &self,
        topic: &TopicName,
        own: Option<Box<Tracking>>,
    ) -> Option<Box<Tracking>> {
        if own.is_some() {
            return own;
        }
        self.of(topic, |one| one.policy.tracking_for(None)).flatten()
    }

    /// Returns the expiry of a task of `topic` that wants `own`.
    pub fn expiry_for(&self, topic: &TopicName, own: Option<Expiry>) -> Option<Expiry> {
        if own.is_some() {
            return own;
        }
        self.of(topic, |one| one.policy.expiry_for(None)).flatten()
    }

    /// Returns up to how much later than requested tasks of `topic` are due.
    pub fn spread_of(&self, topic: &TopicName) -> Option<Duration> {
        self.of(topic, |one| one.policy.spread).flatten()
    }

    /// Returns the longest delay of a task of `topic`, where the node allows `of_node`.
    pub fn delay_max_within(&self, topic: &TopicName, of_node: Duration) -> Duration {
        self.of(topic, |one| one.policy.delay_max_within(of_node)).unwrap_or(of_node)
    }

    /// Returns true when records of `topic` carry the name of their submitter.
    pub fn has_submitter_header(&self, topic: &TopicName) -> bool {
        self.of(topic, |one| one.policy.has_submitter_header).unwrap_or(false)
    }

    /// Returns the most pending tasks of `topic`, if it has a limit.
    pub fn pending_max(&self, topic: &TopicName) -> Option<u64> {
        self.of(topic, |one| one.policy.pending_max).flatten()
    }

    /// Returns the time from which the lateness of a record counts: see
    /// [`PauseTimes::lateness_from`].
    pub fn lateness_from(
        &self,
        topic: &TopicName,
        due_at: Timestamp,
        published_at: Timestamp,
    ) -> Option<Timestamp> {
        let times = self.of(topic, |one| PauseTimes {
            paused_since: one.pause.as_ref().map(|pause| pause.since),
            resumed_at: one.resumed_at,
        });
        times.unwrap_or_default().lateness_from(due_at, published_at)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn topic(name: &str, paused_since: Option<i64>, resumed_at: Option<i64>) -> StoredTopic {
        let pause =
            |millis| Pause { since: Timestamp::from_millis(millis), reason: None, by: None };
        StoredTopic {
            revision: 1,
            pause: paused_since.map(pause),
            resumed_at: resumed_at.map(Timestamp::from_millis),
            ..StoredTopic::plain(TopicName::new(name).unwrap())
        }
    }

    #[test]
    fn a_look_tells_which_topics_were_paused_and_resumed_since_the_last_one() {
        let policies = TopicPolicies::default();
        let orders = TopicName::new("orders").unwrap();
        assert!(!policies.is_paused(&orders));
        let seen = policies.take_in(vec![topic("orders", Some(5), None), topic("a", None, None)]);
        assert_eq!((seen.paused, seen.resumed), (vec![orders.clone()], vec![]));
        assert_eq!((seen.paused_count, seen.paused_since), (1, Some(Timestamp::from_millis(5))));
        assert!(policies.is_paused(&orders));
        assert_eq!(policies.paused().len(), 1);
        let seen = policies.take_in(vec![topic("orders", Some(5), None)]);
        assert_eq!((seen.paused.len(), seen.resumed.len(), seen.paused_count), (0, 0, 1));
        let seen = policies.take_in(vec![topic("orders", None, Some(9))]);
        assert_eq!((seen.paused, seen.resumed), (vec![], vec![orders.clone()]));
        assert_eq!((seen.paused_count, seen.resumed_at), (0, Some(Timestamp::from_millis(9))));
        let seen = policies.take_in(vec![topic("orders", None, Some(9))]);
        assert_eq!(seen.resumed, vec![]);
        let seen = policies.take_in(vec![topic("orders", None, Some(11))]);
        assert_eq!(seen.resumed, vec![orders.clone()], "paused and resumed between two looks");
        let at = Timestamp::from_millis;
        policies.take_in(vec![topic("orders", None, Some(9))]);
        assert_eq!(policies.lateness_from(&orders, at(1), at(10)), Some(at(9)));
    }

    #[test]
    fn a_changed_policy_holds_at_once_and_its_pause_after_the_next_look() {
        let policies = TopicPolicies::default();
        let orders = TopicName::new("orders").unwrap();
        let spread = Some(Duration::from_secs(1));
        let mut changed = topic("orders", Some(5), None);
        changed.policy.spread = spread;
        policies.changed(&changed);
        assert_eq!((policies.spread_of(&orders), policies.is_paused(&orders)), (spread, false));
        assert_eq!(policies.take_in(vec![changed]).paused, vec![orders.clone()]);
        policies.changed(&topic("orders", Some(5), None));
        assert_eq!((policies.spread_of(&orders), policies.is_paused(&orders)), (None, true));
    }

    #[test]
    fn a_look_that_began_before_a_change_does_not_undo_it() {
        let policies = TopicPolicies::default();
        let orders = TopicName::new("orders").unwrap();
        let spread = |seconds| Some(Duration::from_secs(seconds));
        let mut changed = topic("orders", None, None);
        changed.policy.spread = spread(1);
        // Neither the topic nor its next revision was there when the looks began.
        policies.begin_look();
        policies.changed(&changed);
        policies.take_in(vec![]);
        assert_eq!(policies.spread_of(&orders), spread(1));
        let before = changed.clone();
        (changed.revision, changed.policy.spread) = (2, spread(2));
        policies.begin_look();
        policies.changed(&changed);
        policies.take_in(vec![topic("orders", Some(5), None)]);
        assert_eq!((policies.spread_of(&orders), policies.is_paused(&orders)), (spread(2), true));
        // The answers of two changes may come in another order.
        policies.changed(&before);
        assert_eq!(policies.spread_of(&orders), spread(2));
        // A database that has lost the change is believed.
        policies.begin_look();
        policies.take_in(vec![topic("orders", None, None)]);
        assert_eq!(policies.spread_of(&orders), None);
    }
}
