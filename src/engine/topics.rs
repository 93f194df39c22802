//! One bad topic must not hold the others up: which topics take records now.
//!
//! ```text
//!            no acknowledgement for 5 s while records wait         5 s later, metadata is fine
//!   healthy ------------------------------------------------> parked -------------------------> probing
//!      ^                                                        ^ |                                |
//!      |            an acknowledgement, at any time             | |  refused, or none for 5 s      |
//!      +--------------------------------------------------------+-+--------------------------------+
//!                                              denied by metadata for 5 min: gone (tasks become dead letters)
//! ```
//!
//! Tasks of a parked topic stay where they are: claims leave them out. While a topic is probed, one claim's worth of it is let through.

use std::collections::{BTreeSet, HashMap};
use std::time::Duration;

use crate::domain::{Monotonic, TopicName};

#[derive(Clone, Copy, Debug)]
pub struct Settings {
    /// A topic without an acknowledgement for so long while records wait is parked; a parked one is probed as often.
    pub silence_max: Duration,
    /// A topic that fresh metadata has denied for so long is gone.
    pub denial_max: Duration,
    /// Tasks of one topic that may be in flight.
    pub tasks_max: usize,
    /// Bytes of one topic that may be in flight.
    pub bytes_max: usize,
}

/// A topic that is given up on is known to be so for at least so long: longer than the pause before any attempt (60 s), or a task that was put off would never
/// meet it.
const REMEMBERED_MIN: Duration = Duration::from_secs(120);

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum State {
    Healthy,
    Parked { probe_at: Monotonic },
    Probing { since: Monotonic },
    Gone { look_at: Monotonic },
}

#[derive(Debug)]
struct Topic {
    state: State,
    tasks: usize,
    bytes: usize,
    /// When something was last heard of it (an acknowledgement, metadata while it was parked), or the first of the records that wait was handed over.
    heard_at: Monotonic,
    /// Since when it takes no records; a probe does not end that.
    parked_since: Option<Monotonic>,
    /// Since when, and until when, fresh metadata has denied the topic without a break.
    denied: Option<(Monotonic, Monotonic)>,
    /// Since when records were refused at once, without an acknowledgement in between.
    refused_since: Option<Monotonic>,
    /// Why the last of its records that failed did, unless one was acknowledged since.
    reason: Option<String>,
    /// It has come to its bound, and is not yet a quarter below it.
    is_full: bool,
}

/// What to do about a topic.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Action {
    /// Ask Kafka for the topic's metadata, and tell [`Topics::looked`].
    Look(TopicName),
    Parked(TopicName),
    /// Kafka says that there is no such topic: in so long its tasks are given up on, if it goes on saying so.
    Denied(TopicName, Duration),
    /// It takes records again: sweep for what was left.
    Unparked(TopicName),
    /// It does not exist, and did not for so long that its tasks are given up on: sweep for them.
    Gone(TopicName),
}

/// A topic that takes no records.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Parked<'a> {
    pub topic: &'a TopicName,
    pub is_gone: bool,
    /// Probes do not end it.
    pub since: Monotonic,
    /// Why the last of its records that failed did; none has yet if they only wait.
    pub reason: Option<&'a str>,
}

impl Topic {
    fn takes_none(&self) -> bool {
        match self.state {
            State::Healthy => false,
            State::Probing { .. } => self.tasks > 0,
            State::Parked { .. } | State::Gone { .. } => true,
        }
    }

    fn parked<'a>(&'a self, name: &'a TopicName) -> Parked<'a> {
        Parked {
            topic: name,
            is_gone: self.is_gone(),
            since: self.parked_since.unwrap_or(self.heard_at),
            reason: self.reason.as_deref(),
        }
    }

    fn is_gone(&self) -> bool {
        matches!(self.state, State::Gone { .. })
    }

    fn is_left_out_for_now(&self) -> bool {
        self.is_full && matches!(self.state, State::Healthy | State::Gone { .. })
    }

    fn is_left_out(&self) -> bool {
        self.is_left_out_for_now() || (self.takes_none() && !self.is_gone())
    }
}

/// What fresh metadata says of a topic.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Sight {
    There,
    Denied,
    /// Kafka did not answer.
    Unknown,
}

/// The topics of which this node has held records.
#[derive(Debug)]
pub struct Topics {
    settings: Settings,
    topics: HashMap<TopicName, Topic>,
}

impl Topics {
    pub fn new(settings: Settings) -> Self {
        Self { settings, topics: HashMap::new() }
    }

    /// Records are held from now on.
    pub fn held(&mut self, topic: &TopicName, tasks: usize, bytes: usize, now: Monotonic) {
        let settings = self.settings;
        let entry = self.entry(topic, now);
        if entry.tasks == 0 {
            entry.heard_at = now;
            if let State::Probing { since } = &mut entry.state {
                *since = now;
            }
        }
        entry.tasks = entry.tasks.saturating_add(tasks);
        entry.bytes = entry.bytes.saturating_add(bytes);
        entry.is_full |= entry.tasks >= settings.tasks_max || entry.bytes >= settings.bytes_max;
    }

    /// A record was refused for its topic's sake: the topic, or its partition, does not take any just now.
    pub fn refused(&mut self, topic: &TopicName, now: Monotonic) {
        let probe_at = now.plus(self.settings.silence_max);
        let entry = self.entry(topic, now);
        entry.refused_since.get_or_insert(now);
        // That is the answer to the probe: without it, claim after claim would be let through and put off. An acknowledgement of another partition's is stronger.
        if matches!(entry.state, State::Probing { .. }) {
            entry.state = State::Parked { probe_at };
        }
    }

    /// A record was not acknowledged, for whatever reason.
    pub fn failed(&mut self, topic: &TopicName, reason: &str) {
        if let Some(entry) = self.topics.get_mut(topic)
            && entry.reason.as_deref() != Some(reason)
        {
            entry.reason = Some(reason.into());
        }
    }

    /// Why the last record of the topic that failed did; nothing after an acknowledgement.
    pub fn reason(&self, topic: &TopicName) -> Option<&str> {
        self.topics.get(topic)?.reason.as_deref()
    }

    fn entry(&mut self, topic: &TopicName, now: Monotonic) -> &mut Topic {
        self.topics.entry(topic.clone()).or_insert_with(|| Topic {
            state: State::Healthy,
            tasks: 0,
            bytes: 0,
            heard_at: now,
            parked_since: None,
            denied: None,
            refused_since: None,
            reason: None,
            is_full: false,
        })
    }

    /// Records are held no longer.
    pub fn released(&mut self, topic: &TopicName, tasks: usize, bytes: usize) {
        let Settings { tasks_max, bytes_max, .. } = self.settings;
        if let Some(entry) = self.topics.get_mut(topic) {
            entry.tasks = entry.tasks.saturating_sub(tasks);
            entry.bytes = entry.bytes.saturating_sub(bytes);
            entry.is_full &= entry.tasks > tasks_max / 4 * 3 || entry.bytes > bytes_max / 4 * 3;
        }
    }

    /// A record was acknowledged.
    pub fn acknowledged(&mut self, topic: &TopicName, now: Monotonic) -> Option<Action> {
        let entry = self.topics.get_mut(topic)?;
        entry.heard_at = now;
        entry.denied = None;
        entry.refused_since = None;
        entry.reason = None;
        if entry.state == State::Healthy {
            return None;
        }
        entry.state = State::Healthy;
        entry.parked_since = None;
        Some(Action::Unparked(topic.clone()))
    }

    /// Looks at all topics; `has_contact` is false while all of Kafka is away: then no topic is to blame. `waiting` tells whether a record of a topic
    /// has waited for long.
    pub fn turn(&mut self, now: Monotonic, has_contact: bool, waiting: impl Fn(&TopicName) -> bool) -> Vec<Action> {
        let Settings { silence_max, denial_max, .. } = self.settings;
        let mut actions = Vec::new();
        for (name, topic) in &mut self.topics {
            if !has_contact {
                topic.heard_at = now;
                topic.denied = None;
                topic.refused_since = None;
                continue;
            }
            let is_refused = topic.refused_since.is_some_and(|since| now.since(since) >= silence_max);
            let is_silent = is_refused || (waiting(name) && now.since(topic.heard_at) >= silence_max);
            match topic.state {
                State::Healthy if is_silent => {
                    topic.state = State::Parked { probe_at: now.plus(silence_max) };
                    topic.parked_since = Some(now);
                    actions.push(Action::Parked(name.clone()));
                }
                // A probe without a task goes on until there is one, and one whose tasks are not due yet until they are.
                State::Probing { since } if topic.tasks > 0 && waiting(name) && now.since(since) >= silence_max => {
                    topic.state = State::Parked { probe_at: now.plus(silence_max) };
                }
                State::Parked { probe_at } if probe_at <= now => {
                    topic.state = State::Parked { probe_at: now.plus(silence_max) };
                    actions.push(Action::Look(name.clone()));
                }
                State::Gone { look_at } if look_at <= now => {
                    topic.state = State::Gone { look_at: now.plus(silence_max) };
                    actions.push(Action::Look(name.clone()));
                }
                _ => {}
            }
        }
        // What is idle needs no memory, if it is healthy, or was probed or given up on long ago: the table is bounded by the topics in use or in trouble.
        self.topics.retain(|_, topic| {
            let is_forgotten = match topic.state {
                State::Healthy => topic.refused_since.is_none(),
                State::Probing { .. } | State::Gone { .. } => now.since(topic.heard_at) > denial_max.max(REMEMBERED_MIN),
                State::Parked { .. } => false,
            };
            topic.tasks > 0 || !is_forgotten
        });
        actions
    }

    /// Fresh metadata has come.
    pub fn looked(&mut self, topic: &TopicName, sight: Sight, now: Monotonic) -> Option<Action> {
        let entry = self.topics.get_mut(topic)?;
        match (sight, entry.state) {
            (Sight::Unknown, _) | (_, State::Healthy | State::Probing { .. }) => None,
            (Sight::There, _) => {
                entry.denied = None;
                entry.refused_since = None;
                entry.heard_at = now;
                entry.state = State::Probing { since: now };
                Some(Action::Unparked(topic.clone()))
            }
            (Sight::Denied, _) => {
                // A denial long after the last one does not prove that the topic was not there in between.
                let unbroken = entry.denied.filter(|(_, until)| now.since(*until) <= self.settings.silence_max * 3);
                let since = unbroken.map_or(now, |(since, _)| since);
                entry.denied = Some((since, now));
                if matches!(entry.state, State::Gone { .. }) {
                    return None;
                }
                let left = self.settings.denial_max.saturating_sub(now.since(since));
                if !left.is_zero() {
                    return unbroken.is_none().then(|| Action::Denied(topic.clone(), left));
                }
                entry.state = State::Gone { look_at: now.plus(self.settings.silence_max) };
                // What is to be given up is found by a sweep: until then this must not be forgotten, idle though the topic is.
                entry.heard_at = now;
                Some(Action::Gone(topic.clone()))
            }
        }
    }

    /// Topics whose tasks are left where they are: parked, being probed with something already, or at their bound.
    pub fn left_out(&self) -> Vec<TopicName> {
        self.topics.iter().filter(|(_, topic)| topic.is_left_out()).map(|(name, _)| name.clone()).collect()
    }

    /// Topics that are left out for nothing but that they have as much in flight as they may: there will be room soon.
    pub fn full(&self) -> BTreeSet<TopicName> {
        self.topics.iter().filter(|(_, topic)| topic.is_left_out_for_now()).map(|(name, _)| name.clone()).collect()
    }

    /// Tasks and bytes of those.
    pub fn held_by_full(&self) -> (usize, usize) {
        let full = self.topics.values().filter(|topic| topic.is_left_out_for_now());
        full.fold((0, 0), |(tasks, bytes), topic| (tasks + topic.tasks, bytes + topic.bytes))
    }

    pub fn is_open(&self, topic: &TopicName) -> bool {
        self.topics.get(topic).is_none_or(|topic| !topic.is_left_out())
    }

    /// True when the topic is given up on: its tasks become dead letters.
    pub fn is_gone(&self, topic: &TopicName) -> bool {
        self.topics.get(topic).is_some_and(|topic| matches!(topic.state, State::Gone { .. }))
    }

    /// Topics that take no records: parked, probed without an answer yet, or gone.
    pub fn parked_count(&self) -> usize {
        self.topics.values().filter(|topic| topic.takes_none()).count()
    }

    /// The same, one by one; the longest first.
    pub fn parked(&self) -> Vec<Parked<'_>> {
        let taking_none = self.topics.iter().filter(|(_, topic)| topic.takes_none());
        let mut parked: Vec<_> = taking_none.map(|(name, topic)| topic.parked(name)).collect();
        parked.sort_by_key(|parked| (parked.since, parked.topic));
        parked
    }

    pub fn gone_count(&self) -> usize {
        self.topics.values().filter(|topic| topic.is_gone()).count()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SETTINGS: Settings =
        Settings { silence_max: Duration::from_secs(5), denial_max: Duration::from_secs(300), tasks_max: 100, bytes_max: 1_000 };

    fn second(n: u64) -> Monotonic {
        Monotonic::from_start(Duration::from_secs(n))
    }

    fn topic() -> TopicName {
        TopicName::stored("orders")
    }

    fn silent_topics() -> Topics {
        let mut topics = Topics::new(SETTINGS);
        topics.held(&topic(), 1, 10, second(0));
        assert_eq!(topics.turn(second(4), true, |_| true), []);
        assert_eq!(topics.turn(second(5), true, |_| true), [Action::Parked(topic())]);
        topics
    }

    /// It is probed from second 10 on, and nothing of it is held.
    fn probed_topics() -> Topics {
        let mut topics = silent_topics();
        topics.released(&topic(), 1, 10);
        assert_eq!(topics.turn(second(10), true, |_| false), [Action::Look(topic())]);
        assert_eq!(topics.looked(&topic(), Sight::There, second(10)), Some(Action::Unparked(topic())));
        assert!(topics.is_open(&topic()));
        topics
    }

    #[test]
    fn a_silent_topic_is_parked_and_an_acknowledgement_unparks_it() {
        let mut topics = silent_topics();
        assert_eq!(topics.left_out(), [topic()]);
        assert_eq!(topics.acknowledged(&topic(), second(6)), Some(Action::Unparked(topic())));
        assert!(topics.is_open(&topic()));
    }

    #[test]
    fn a_topic_that_refuses_what_it_is_probed_with_is_parked_again_at_once() {
        let mut topics = probed_topics();
        topics.held(&topic(), 1, 10, second(10));
        topics.refused(&topic(), second(10));
        topics.released(&topic(), 1, 10);
        assert!(!topics.is_open(&topic()), "nothing more is let through");
        assert_eq!(topics.turn(second(14), true, |_| false), []);
        assert_eq!(topics.turn(second(15), true, |_| false), [Action::Look(topic())]);
        // One partition takes none, another one does.
        topics.looked(&topic(), Sight::There, second(15));
        topics.held(&topic(), 2, 20, second(15));
        topics.refused(&topic(), second(15));
        assert_eq!(topics.acknowledged(&topic(), second(15)), Some(Action::Unparked(topic())));
        assert!(topics.is_open(&topic()));
    }

    #[test]
    fn a_parked_topic_is_named_with_since_when_and_no_probe_ends_that() {
        let mut topics = silent_topics();
        let (name, other) = (topic(), TopicName::stored("refunds"));
        let parked = |topic, since| Parked { topic, is_gone: false, since: second(since), reason: None };
        assert_eq!(topics.parked(), [parked(&name, 5)]);
        assert_eq!(topics.turn(second(10), true, |_| true), [Action::Look(topic())]);
        topics.looked(&name, Sight::There, second(10));
        assert_eq!(topics.parked(), [parked(&name, 5)], "it has tasks, and nothing is acknowledged");
        topics.held(&other, 1, 10, second(11));
        topics.turn(second(16), true, |_| true);
        assert_eq!(topics.parked(), [parked(&name, 5), parked(&other, 16)]);
        topics.acknowledged(&name, second(17));
        assert_eq!(topics.parked(), [parked(&other, 16)]);
    }

    #[test]
    fn why_a_topic_takes_nothing_is_known_until_it_takes_something() {
        let mut topics = silent_topics();
        assert_eq!(topics.parked()[0].reason, None, "its records wait, none has failed");
        topics.failed(&topic(), "no leader");
        topics.failed(&topic(), "timed out");
        assert_eq!((topics.parked()[0].reason, topics.reason(&topic())), (Some("timed out"), Some("timed out")));
        topics.acknowledged(&topic(), second(6));
        assert_eq!(topics.reason(&topic()), None);
    }

    #[test]
    fn a_probe_lets_one_claim_through() {
        let mut topics = probed_topics();
        topics.held(&topic(), 5, 50, second(11));
        assert!(!topics.is_open(&topic()), "one claim is enough for a probe");
        assert_eq!(topics.turn(second(16), true, |_| false), []);
        assert_eq!(topics.turn(second(17), true, |_| true), []);
        assert_eq!(topics.left_out(), [topic()], "parked again");
        assert_eq!(topics.turn(second(22), true, |_| true), [Action::Look(topic())]);
    }

    #[test]
    fn a_probe_of_tasks_that_are_not_due_yet_is_not_taken_for_silence() {
        let mut topics = silent_topics();
        topics.released(&topic(), 1, 10);
        topics.looked(&topic(), Sight::There, second(10));
        topics.held(&topic(), 5, 50, second(11));
        assert_eq!(topics.turn(second(18), true, |_| false), [], "they are due at 19");
        assert_eq!(topics.acknowledged(&topic(), second(19)), Some(Action::Unparked(topic())));
        assert!(topics.is_open(&topic()));
    }

    #[test]
    fn a_topic_that_metadata_denies_for_five_minutes_is_gone_and_may_come_back() {
        let mut topics = silent_topics();
        let in_five_minutes = Action::Denied(topic(), Duration::from_secs(300));
        assert_eq!(topics.looked(&topic(), Sight::Denied, second(10)), Some(in_five_minutes));
        for n in (20..310).step_by(10) {
            assert_eq!(topics.looked(&topic(), Sight::Denied, second(n)), None);
        }
        assert_eq!(topics.looked(&topic(), Sight::Denied, second(310)), Some(Action::Gone(topic())));
        assert!(topics.is_gone(&topic()) && topics.is_open(&topic()), "its tasks are claimed, to become dead letters");
        assert_eq!(topics.looked(&topic(), Sight::There, second(400)), Some(Action::Unparked(topic())));
        assert!(!topics.is_gone(&topic()));
    }

    #[test]
    fn a_topic_that_is_gone_stays_so_though_nothing_of_it_is_held() {
        let mut topics = silent_topics();
        topics.released(&topic(), 1, 10);
        for n in (10..=310).step_by(10) {
            topics.looked(&topic(), Sight::Denied, second(n));
        }
        assert_eq!(topics.turn(second(311), true, |_| false), []);
        assert!(topics.is_gone(&topic()), "a sweep brings its tasks only now");
        assert_eq!(topics.turn(second(611), true, |_| false), [Action::Look(topic())]);
        assert!(!topics.is_gone(&topic()), "the table is bounded");
    }

    #[test]
    fn a_topic_is_given_up_on_for_longer_than_any_attempt_is_put_off() {
        let mut topics = Topics::new(Settings { denial_max: Duration::from_secs(6), ..SETTINGS });
        topics.refused(&topic(), second(0));
        topics.turn(second(5), true, |_| false);
        for n in [10, 15, 20] {
            topics.looked(&topic(), Sight::Denied, second(n));
        }
        topics.turn(second(90), true, |_| false);
        assert!(topics.is_gone(&topic()), "a task that was put off at 19 for 60 s meets it");
        topics.turn(second(141), true, |_| false);
        assert!(!topics.is_gone(&topic()), "the table is bounded");
    }

    #[test]
    fn denials_with_a_gap_between_do_not_add_up() {
        let mut topics = silent_topics();
        let in_five_minutes = Some(Action::Denied(topic(), SETTINGS.denial_max));
        assert_eq!(topics.looked(&topic(), Sight::Denied, second(10)), in_five_minutes);
        assert_eq!(topics.looked(&topic(), Sight::Denied, second(400)), in_five_minutes);
        assert_eq!(topics.looked(&topic(), Sight::Denied, second(410)), None);
    }

    #[test]
    fn a_topic_that_refuses_at_once_is_parked_though_nothing_waits() {
        let mut topics = Topics::new(SETTINGS);
        topics.refused(&topic(), second(0));
        assert_eq!(topics.turn(second(4), true, |_| false), []);
        topics.refused(&topic(), second(4));
        assert_eq!(topics.turn(second(5), true, |_| false), [Action::Parked(topic())]);
    }

    #[test]
    fn a_probe_without_a_task_goes_on() {
        let mut topics = silent_topics();
        topics.released(&topic(), 1, 10);
        assert_eq!(topics.turn(second(10), true, |_| false), [Action::Look(topic())]);
        assert_eq!(topics.looked(&topic(), Sight::There, second(10)), Some(Action::Unparked(topic())));
        assert_eq!(topics.turn(second(100), true, |_| false), []);
        assert!(topics.is_open(&topic()));
    }

    #[test]
    fn no_topic_is_to_blame_while_all_of_kafka_is_away() {
        let mut topics = Topics::new(SETTINGS);
        topics.held(&topic(), 1, 10, second(0));
        assert_eq!(topics.turn(second(60), false, |_| true), []);
        assert_eq!(topics.turn(second(64), true, |_| true), []);
        assert_eq!(topics.turn(second(65), true, |_| true), [Action::Parked(topic())]);
    }

    #[test]
    fn a_topic_at_its_bound_is_left_out_until_there_is_room() {
        let mut topics = Topics::new(SETTINGS);
        topics.held(&topic(), 100, 10, second(0));
        assert!(!topics.is_open(&topic()) && topics.full().contains(&topic()));
        assert_eq!(topics.held_by_full(), (100, 10));
        topics.released(&topic(), 24, 0);
        assert!(!topics.full().is_empty(), "a claim's worth is no room");
        topics.released(&topic(), 1, 0);
        assert!(topics.is_open(&topic()) && topics.full().is_empty());
        topics.held(&topic(), 0, 990, second(0));
        assert!(!topics.is_open(&topic()), "bytes count as well");
    }

    #[test]
    fn a_topic_that_is_gone_and_full_is_full_so_that_the_rest_of_it_is_given_up_soon() {
        let mut topics = silent_topics();
        for n in (10..=310).step_by(10) {
            topics.looked(&topic(), Sight::Denied, second(n));
        }
        assert!(topics.is_gone(&topic()));
        topics.held(&topic(), 100, 10, second(311));
        assert!(!topics.is_open(&topic()) && topics.full().contains(&topic()));
    }

    #[test]
    fn a_topic_that_was_in_trouble_and_has_no_tasks_is_forgotten_after_a_while() {
        let mut topics = silent_topics();
        topics.released(&topic(), 1, 10);
        assert_eq!(topics.looked(&topic(), Sight::There, second(10)), Some(Action::Unparked(topic())));
        assert_eq!((topics.parked_count(), topics.topics.len()), (0, 1));
        assert_eq!(topics.turn(second(300), true, |_| false), []);
        assert_eq!(topics.topics.len(), 1);
        assert_eq!(topics.turn(second(311), true, |_| false), []);
        assert_eq!(topics.topics.len(), 0);
    }
}
