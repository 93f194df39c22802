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
//! Tasks of a parked topic stay where they are: claims leave them out. While a topic is probed, one
//! claim's worth of it is let through.
//!
//! A slow Kafka is not a dead topic ([`Pace`]): silence counts against a topic only while Kafka
//! keeps its pace, and only once it is longer than twice what the records that were acknowledged
//! lately have waited. While Kafka throttles this node, each topic may have in flight about what
//! went out of it lately.

use std::collections::{BTreeSet, HashMap};
use std::time::Duration;

use crate::domain::{Monotonic, TopicName};

#[derive(Clone, Copy, Debug)]
pub struct Settings {
    /// A topic without an acknowledgement for so long while records wait is open; a parked one is
    /// probed as often.
    pub silence_max: Duration,
    /// A topic that fresh metadata has denied for so long is gone.
    pub denial_max: Duration,
    /// Tasks of one topic that may be in flight.
    pub tasks_max: usize,
    /// Bytes of one topic that may be in flight.
    pub bytes_max: usize,
}

/// How Kafka takes records just now; the slowest last.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Default)]
pub enum Pace {
    /// It answers.
    #[default]
    Steady,
    /// A broker has requests that it has not answered for seconds: it may answer them yet.
    Stalled,
    /// Brokers say that they hold this node's requests back by a quota.
    Throttled,
}

/// What happened lately is what happened in this period and the one before.
const PERIOD: Duration = Duration::from_secs(5);
/// A topic may have so many bytes in flight however little went out of it: one request.
const THROTTLED_BYTES_MIN: usize = 128 << 10;

/// Refusals of a topic so far apart still count as unbroken: a task that is put off comes back
/// after a minute at most, and a probe needs one.
const REFUSALS_APART_MAX: Duration = Duration::from_secs(90);

/// A topic that is given up on is known to be so for at least so long: longer than the pause before
/// any attempt (60 s), or a task that was put off would never meet it.
const REMEMBERED_MIN: Duration = Duration::from_secs(120);

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum State {
    Closed,
    Open { probe_at: Monotonic },
    HalfOpen { since: Monotonic },
    Gone { look_at: Monotonic },
}

#[derive(Debug)]
struct Topic {
    state: State,
    tasks: usize,
    bytes: usize,
    /// When something was last heard of it (an acknowledgement, metadata while it was open), or the
    /// first of the records that wait was handed over.
    heard_at: Monotonic,
    /// Since when it takes no records; a probe does not end that.
    open_since: Option<Monotonic>,
    /// Since when, and until when, fresh metadata has denied the topic without a break.
    denied: Option<(Monotonic, Monotonic)>,
    /// Since when records were refused at once, without an acknowledgement in between.
    refused_since: Option<Monotonic>,
    /// Why the last of its records that failed did, unless one was acknowledged since.
    reason: Option<String>,
    /// Since when, and until when, each of its records was refused for a right that is missing,
    /// without a break.
    forbidden: Option<(Monotonic, Monotonic)>,
    /// It was given up on for these refusals, and has been tried since.
    was_given_up: bool,
    /// It has come to its bound, and is not yet a quarter below it.
    is_full: bool,
    /// Bytes that went out of it in this period, and in the one before.
    bytes_out: [usize; 2],
}

/// What to do about a topic.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Action {
    /// Ask Kafka for the topic's metadata, and tell [`Topics::looked`].
    Look(TopicName),
    Opened(TopicName),
    /// Kafka says that there is no such topic: in so long its tasks are given up on, if it goes on
    /// saying so.
    Denied(TopicName, Duration),
    /// It takes records again: sweep for what was left.
    Closed(TopicName),
    /// Kafka refuses its records for a right that is missing: in so long its tasks are given up on,
    /// if it goes on doing so.
    Forbidden(TopicName, Duration),
    /// It does not exist or may not be written to, and did not or might not for so long that its
    /// tasks are given up on: sweep for them.
    Gone(TopicName),
    /// The same, after a probe that changed nothing: sweep again, it has been told.
    StillGone(TopicName),
}

/// A topic that takes no records.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct OpenBreaker<'a> {
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
            State::Closed => false,
            State::HalfOpen { .. } => self.tasks > 0,
            State::Open { .. } | State::Gone { .. } => true,
        }
    }

    fn open<'a>(&'a self, name: &'a TopicName) -> OpenBreaker<'a> {
        OpenBreaker {
            topic: name,
            is_gone: self.is_gone(),
            since: self.open_since.unwrap_or(self.heard_at),
            reason: self.reason.as_deref(),
        }
    }

    fn is_gone(&self) -> bool {
        matches!(self.state, State::Gone { .. })
    }

    /// Bytes that it may have in flight.
    fn bytes_max(&self, settings: Settings, pace: Pace) -> usize {
        match pace {
            Pace::Steady | Pace::Stalled => settings.bytes_max,
            Pace::Throttled => {
                let lately = self.bytes_out[0].saturating_add(self.bytes_out[1]);
                lately.max(THROTTLED_BYTES_MIN).min(settings.bytes_max)
            }
        }
    }

    fn fill(&mut self, settings: Settings, pace: Pace) {
        self.is_full |= self.tasks >= settings.tasks_max || self.bytes >= self.bytes_max(settings, pace);
    }

    fn drain(&mut self, settings: Settings, pace: Pace) {
        self.is_full &= self.tasks > settings.tasks_max / 4 * 3 || self.bytes > self.bytes_max(settings, pace) / 4 * 3;
    }

    /// Silence until `now` says nothing about the topic.
    const fn excuse(&mut self, now: Monotonic) {
        self.heard_at = now;
        if let State::HalfOpen { since } = &mut self.state {
            *since = now;
        }
    }

    fn give_up(&mut self, now: Monotonic, silence_max: Duration) {
        self.state = State::Gone { look_at: now.plus(silence_max) };
        self.open_since.get_or_insert(now);
        // What is to be given up is found by a sweep: until then this must not be forgotten, idle
        // though the topic is.
        self.heard_at = now;
    }

    fn is_left_out_for_now(&self) -> bool {
        self.is_full && matches!(self.state, State::Closed | State::Gone { .. })
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
    /// It is not shown to this node, for a right that is missing.
    Forbidden,
    /// Kafka did not answer.
    Unknown,
}

/// The topics of which this node has held records.
#[derive(Debug)]
pub struct Topics {
    settings: Settings,
    topics: HashMap<TopicName, Topic>,
    pace: Pace,
    /// The longest that a record of any topic, acknowledged in this period or in the one before,
    /// had waited for it.
    waits: [Duration; 2],
    period_began_at: Monotonic,
}

impl Topics {
    pub fn new(settings: Settings) -> Self {
        Self {
            settings,
            topics: HashMap::new(),
            pace: Pace::Steady,
            waits: [Duration::ZERO; 2],
            period_began_at: Monotonic::default(),
        }
    }

    /// How Kafka takes records from now on.
    pub fn set_pace(&mut self, pace: Pace) {
        self.pace = pace;
        for topic in self.topics.values_mut() {
            topic.fill(self.settings, pace);
            topic.drain(self.settings, pace);
        }
    }

    pub const fn pace(&self) -> Pace {
        self.pace
    }

    /// Records are held from now on.
    pub fn held(&mut self, topic: &TopicName, tasks: usize, bytes: usize, now: Monotonic) {
        let (settings, pace) = (self.settings, self.pace);
        let entry = self.entry(topic, now);
        if entry.tasks == 0 {
            entry.heard_at = now;
            if let State::HalfOpen { since } = &mut entry.state {
                *since = now;
            }
        }
        entry.tasks = entry.tasks.saturating_add(tasks);
        entry.bytes = entry.bytes.saturating_add(bytes);
        entry.fill(settings, pace);
    }

    /// A record was refused for its topic's sake: the topic, or its partition, does not take any
    /// just now.
    pub fn refused(&mut self, topic: &TopicName, now: Monotonic) {
        let probe_at = now.plus(self.settings.silence_max);
        let entry = self.entry(topic, now);
        entry.refused_since.get_or_insert(now);
        // That is the answer to the probe: without it, claim after claim would be let through and
        // put off. An acknowledgement of another partition's is stronger.
        if matches!(entry.state, State::HalfOpen { .. }) {
            entry.state = State::Open { probe_at };
        }
    }

    /// A record was refused because this node may not write to its topic. Metadata need not say so,
    /// hence the refusals are the evidence: a probe is refused each time, and a topic that is
    /// refused without a break for as long as a missing one is denied is given up on like it.
    pub fn forbidden(&mut self, topic: &TopicName, now: Monotonic) -> Option<Action> {
        self.refused(topic, now);
        let Settings { silence_max, denial_max, .. } = self.settings;
        let entry = self.topics.get_mut(topic)?;
        let unbroken = entry.forbidden.filter(|(_, until)| now.since(*until) <= REFUSALS_APART_MAX.max(silence_max * 3));
        let since = unbroken.map_or(now, |(since, _)| since);
        entry.forbidden = Some((since, now));
        entry.was_given_up &= unbroken.is_some();
        if entry.is_gone() {
            return None;
        }
        let left = denial_max.saturating_sub(now.since(since));
        if !left.is_zero() {
            return unbroken.is_none().then(|| Action::Forbidden(topic.clone(), left));
        }
        entry.give_up(now, silence_max);
        let is_told = std::mem::replace(&mut entry.was_given_up, true);
        Some(if is_told { Action::StillGone(topic.clone()) } else { Action::Gone(topic.clone()) })
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
            state: State::Closed,
            tasks: 0,
            bytes: 0,
            heard_at: now,
            open_since: None,
            denied: None,
            refused_since: None,
            reason: None,
            forbidden: None,
            was_given_up: false,
            is_full: false,
            bytes_out: [0; 2],
        })
    }

    /// Records are held no longer.
    pub fn released(&mut self, topic: &TopicName, tasks: usize, bytes: usize) {
        if let Some(entry) = self.topics.get_mut(topic) {
            entry.tasks = entry.tasks.saturating_sub(tasks);
            entry.bytes = entry.bytes.saturating_sub(bytes);
            entry.bytes_out[0] = entry.bytes_out[0].saturating_add(bytes);
            entry.drain(self.settings, self.pace);
        }
    }

    /// A record of some topic was acknowledged after it had waited for so long.
    pub fn waited(&mut self, wait: Duration) {
        self.waits[0] = self.waits[0].max(wait);
    }

    /// How long a topic may be silent while records of it wait, before that says anything about the
    /// topic.
    fn silence_max(&self) -> Duration {
        self.settings.silence_max.max(self.waits[0].max(self.waits[1]).saturating_mul(2))
    }

    /// A record was acknowledged.
    pub fn acknowledged(&mut self, topic: &TopicName, now: Monotonic) -> Option<Action> {
        let entry = self.topics.get_mut(topic)?;
        entry.heard_at = now;
        entry.denied = None;
        entry.forbidden = None;
        entry.refused_since = None;
        entry.reason = None;
        if entry.state == State::Closed {
            return None;
        }
        entry.state = State::Closed;
        entry.open_since = None;
        Some(Action::Closed(topic.clone()))
    }

    /// Looks at all topics; `has_contact` is false while all of Kafka is away: then no topic is to
    /// blame. `waiting` tells whether a record of a topic has waited for long.
    pub fn turn(&mut self, now: Monotonic, has_contact: bool, waiting: impl Fn(&TopicName) -> bool) -> Vec<Action> {
        let Settings { silence_max, denial_max, .. } = self.settings;
        let is_new_period = now.since(self.period_began_at) >= PERIOD;
        if is_new_period {
            self.period_began_at = now;
            self.waits = [Duration::ZERO, self.waits[0]];
        }
        let (pace, patience) = (self.pace, self.silence_max());
        let mut actions = Vec::new();
        for (name, topic) in &mut self.topics {
            if is_new_period {
                topic.bytes_out = [0, topic.bytes_out[0]];
            }
            if !has_contact {
                topic.heard_at = now;
                topic.denied = None;
                topic.forbidden = None;
                topic.refused_since = None;
                continue;
            }
            if pace != Pace::Steady {
                topic.excuse(now);
            }
            let is_refused = topic.refused_since.is_some_and(|since| now.since(since) >= silence_max);
            let is_silent = is_refused || (waiting(name) && now.since(topic.heard_at) >= patience);
            match topic.state {
                State::Closed if is_silent => {
                    topic.state = State::Open { probe_at: now.plus(silence_max) };
                    topic.open_since = Some(now);
                    actions.push(Action::Opened(name.clone()));
                }
                // A probe without a task goes on until there is one, and one whose tasks are not
                // due yet until they are.
                State::HalfOpen { since } if topic.tasks > 0 && waiting(name) && now.since(since) >= patience => {
                    topic.state = State::Open { probe_at: now.plus(silence_max) };
                }
                State::Open { probe_at } if probe_at <= now => {
                    topic.state = State::Open { probe_at: now.plus(silence_max) };
                    actions.push(Action::Look(name.clone()));
                }
                State::Gone { look_at } if look_at <= now => {
                    topic.state = State::Gone { look_at: now.plus(silence_max) };
                    actions.push(Action::Look(name.clone()));
                }
                _ => {}
            }
        }
        // What is idle needs no memory, if it is healthy, or was probed or given up on long ago:
        // the table is bounded by the topics in use or in trouble.
        self.topics.retain(|_, topic| {
            let is_forgotten = match topic.state {
                State::Closed => topic.refused_since.is_none(),
                State::HalfOpen { .. } | State::Gone { .. } => now.since(topic.heard_at) > denial_max.max(REMEMBERED_MIN),
                State::Open { .. } => false,
            };
            topic.tasks > 0 || !is_forgotten
        });
        actions
    }

    /// Fresh metadata has come.
    pub fn looked(&mut self, topic: &TopicName, sight: Sight, now: Monotonic) -> Option<Action> {
        let entry = self.topics.get_mut(topic)?;
        match (sight, entry.state) {
            (Sight::Unknown, _) | (_, State::Closed | State::HalfOpen { .. }) => None,
            (Sight::There, _) => {
                entry.denied = None;
                entry.refused_since = None;
                entry.heard_at = now;
                entry.state = State::HalfOpen { since: now };
                Some(Action::Closed(topic.clone()))
            }
            (Sight::Denied | Sight::Forbidden, _) => {
                // A denial long after the last one does not prove that the topic was not there in
                // between.
                let unbroken = entry.denied.filter(|(_, until)| now.since(*until) <= self.settings.silence_max * 3);
                let since = unbroken.map_or(now, |(since, _)| since);
                entry.denied = Some((since, now));
                if sight == Sight::Forbidden {
                    entry.forbidden.get_or_insert((since, now)).1 = now;
                }
                if matches!(entry.state, State::Gone { .. }) {
                    return None;
                }
                let left = self.settings.denial_max.saturating_sub(now.since(since));
                if !left.is_zero() {
                    let told = if sight == Sight::Denied { Action::Denied } else { Action::Forbidden };
                    return unbroken.is_none().then(|| told(topic.clone(), left));
                }
                entry.give_up(now, self.settings.silence_max);
                Some(Action::Gone(topic.clone()))
            }
        }
    }

    /// Topics whose tasks are left where they are: open, being probed with something already, or at
    /// their bound.
    pub fn left_out(&self) -> Vec<TopicName> {
        self.topics.iter().filter(|(_, topic)| topic.is_left_out()).map(|(name, _)| name.clone()).collect()
    }

    /// Topics that are left out for nothing but that they have as much in flight as they may: there
    /// will be room soon.
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

    /// Why the topic takes nothing, if that is for want of a right.
    pub fn forbidden_for(&self, topic: &TopicName) -> Option<&str> {
        let topic = self.topics.get(topic).filter(|topic| topic.forbidden.is_some())?;
        Some(topic.reason.as_deref().unwrap_or("this node may not write to the topic"))
    }

    /// Topics that take no records: open, probed without an answer yet, or gone.
    pub fn open_count(&self) -> usize {
        self.topics.values().filter(|topic| topic.takes_none()).count()
    }

    /// The same, one by one; the longest first.
    pub fn open(&self) -> Vec<OpenBreaker<'_>> {
        let taking_none = self.topics.iter().filter(|(_, topic)| topic.takes_none());
        let mut open: Vec<_> = taking_none.map(|(name, topic)| topic.open(name)).collect();
        open.sort_by_key(|open| (open.since, open.topic));
        open
    }

    pub fn gone_count(&self) -> usize {
        self.topics.values().filter(|topic| topic.is_gone()).count()
    }
}

#[cfg(test)]
mod tests;
