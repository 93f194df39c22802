//! Keeps one circuit breaker per topic, so one bad topic does not hold up the others.
//!
//! ```text
//!        no acknowledgement for 5 s            5 s later,
//!          while records wait                metadata is fine
//!   closed -----------------------> open --------------------> half-open
//!      ^                            ^  |                           |
//!      |  an acknowledgement,       |  | refused, or none for 5 s  |
//!      |  at any time               +--|---------------------------+
//!      +-------------------------------+---------------------------+
//!
//!   denied by metadata for 5 min: gone (tasks become dead letters)
//! ```
//!
//! While the breaker of a topic is open, claims skip its tasks. A half-open breaker lets the tasks
//! of one claim through.
//!
//! A slow Kafka is not a dead topic ([`KafkaPace`]). Silence counts against a topic only while
//! Kafka keeps its pace. The silence must also be longer than twice the longest wait of recently
//! acknowledged records. While Kafka throttles the node, each topic may have about as many bytes in
//! flight as it has sent lately.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::time::Duration;

use crate::domain::{Monotonic, TopicName};

#[derive(Clone, Copy, Debug)]
pub struct TopicSettings {
    /// The breaker of a topic opens after this time without an acknowledgement while records wait.
    /// An open breaker looks its topic up at the same interval.
    pub silence_max: Duration,
    /// A topic is gone after fresh metadata has denied it for this time.
    pub denial_max: Duration,
    /// The number of tasks of one topic that may be in flight.
    pub tasks_max: usize,
    /// The number of bytes of one topic that may be in flight.
    pub bytes_max: usize,
}

/// The pace at which Kafka takes records. The slowest pace comes last.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Default)]
pub enum KafkaPace {
    /// Kafka answers.
    #[default]
    Steady,
    /// A broker has not answered some requests for seconds, but may still do so.
    Stalled,
    /// Brokers report that they delay the node's requests because of a quota.
    Throttled,
}

/// "Lately" means this period and the one before.
const PERIOD: Duration = Duration::from_secs(5);
/// A throttled topic may always have this many bytes in flight: one request.
const THROTTLED_BYTES_MIN: usize = 128 << 10;

/// Refusals of a topic at most this far apart count as unbroken. A deferred task comes back after
/// at most a minute, and a probe needs one.
const REFUSALS_APART_MAX: Duration = Duration::from_secs(90);

/// The minimum time for which a topic is remembered as given up. It is longer than the pause before
/// any attempt (60 s): otherwise a deferred task would never find the topic gone.
const REMEMBERED_MIN: Duration = Duration::from_secs(120);

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum BreakerState {
    Closed,
    Open { probe_at: Monotonic },
    HalfOpen { since: Monotonic },
    Gone { look_at: Monotonic },
}

#[derive(Debug)]
struct TopicRecord {
    state: BreakerState,
    tasks: usize,
    bytes: usize,
    /// When the topic last showed life (an acknowledgement, or metadata while the breaker was
    /// open), or when the first of the waiting records was handed over. The later of the two.
    heard_at: Monotonic,
    /// Since when the topic has taken no records. A probe does not reset it.
    open_since: Option<Monotonic>,
    /// The start and the end of the unbroken time in which fresh metadata has denied the topic.
    denied: Option<(Monotonic, Monotonic)>,
    /// Since when records have been refused at once, without an acknowledgement in between.
    refused_since: Option<Monotonic>,
    /// The reason of the last failed record, until a record is acknowledged.
    reason: Option<String>,
    /// The start and the end of the unbroken time in which each record was refused because a right
    /// is missing.
    forbidden: Option<(Monotonic, Monotonic)>,
    /// The topic was given up because of these refusals, and has been probed since.
    was_given_up: bool,
    /// The topic has reached its in-flight limit, and has not yet fallen a quarter below it.
    is_full: bool,
    /// When a verdict row was last handed over while the breaker was half open.
    trial_at: Option<Monotonic>,
    /// The bytes that left the in-flight records of the topic in this period, and in the one
    /// before.
    bytes_out: [usize; 2],
}

/// An action that the caller takes for a topic.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Action {
    /// Ask Kafka for the topic's metadata, and pass the answer to [`TopicBreakers::probed`].
    Probe(TopicName),
    Opened(TopicName),
    /// Kafka says that the topic does not exist. If Kafka goes on saying so for this long, the
    /// tasks are given up.
    Denied(TopicName, Duration),
    /// The topic takes records again. Sweep for skipped tasks.
    Closed(TopicName),
    /// Kafka refuses the topic's records because a right is missing. If Kafka goes on doing so for
    /// this long, the tasks are given up.
    Forbidden(TopicName, Duration),
    /// The topic has been missing, or the node has lacked the right to write, for so long that the
    /// tasks are given up. Sweep for them.
    Gone(TopicName),
    /// The topic is still gone after a probe that changed nothing. Sweep again. The failure has
    /// been logged already.
    StillGone(TopicName),
}

/// A topic that takes no records.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct OpenBreaker<'a> {
    pub topic: &'a TopicName,
    pub is_gone: bool,
    /// The time when the breaker opened. Probes do not reset it.
    pub since: Monotonic,
    /// The reason of the last failed record, or `None` when records only wait.
    pub reason: Option<&'a str>,
}

impl TopicRecord {
    fn takes_none(&self) -> bool {
        match self.state {
            BreakerState::Closed => false,
            BreakerState::HalfOpen { .. } => self.tasks > 0,
            BreakerState::Open { .. } | BreakerState::Gone { .. } => true,
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
        matches!(self.state, BreakerState::Gone { .. })
    }

    /// Returns the number of bytes that the topic may have in flight.
    fn bytes_max(&self, settings: TopicSettings, pace: KafkaPace) -> usize {
        match pace {
            KafkaPace::Steady | KafkaPace::Stalled => settings.bytes_max,
            KafkaPace::Throttled => {
                let lately = self.bytes_out[0].saturating_add(self.bytes_out[1]);
                lately.max(THROTTLED_BYTES_MIN).min(settings.bytes_max)
            }
        }
    }

    fn fill(&mut self, settings: TopicSettings, pace: KafkaPace) {
        self.is_full |=
            self.tasks >= settings.tasks_max || self.bytes >= self.bytes_max(settings, pace);
    }

    fn drain(&mut self, settings: TopicSettings, pace: KafkaPace) {
        self.is_full &= self.tasks > settings.tasks_max / 4 * 3
            || self.bytes > self.bytes_max(settings, pace) / 4 * 3;
    }

    /// Excuses the silence until `now`: it says nothing about the topic.
    const fn excuse(&mut self, now: Monotonic) {
        self.heard_at = now;
        if let BreakerState::HalfOpen { since } = &mut self.state {
            *since = now;
        }
    }

    fn give_up(&mut self, now: Monotonic, silence_max: Duration) {
        self.state = BreakerState::Gone { look_at: now.plus(silence_max) };
        self.open_since.get_or_insert(now);
        // A sweep finds the tasks to give up. Until then this entry must not be forgotten, even
        // when the topic is idle.
        self.heard_at = now;
    }

    fn is_left_out_for_now(&self) -> bool {
        self.is_full && matches!(self.state, BreakerState::Closed | BreakerState::Gone { .. })
    }

    fn is_left_out(&self) -> bool {
        self.is_left_out_for_now() || (self.takes_none() && !self.is_gone())
    }
}

/// The answer of fresh metadata about a topic.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Sight {
    There,
    Denied,
    /// Kafka does not show the topic to the node because a right is missing.
    Forbidden,
    /// Kafka did not answer.
    Unknown,
}

/// The topics of which the node has had records in flight.
#[derive(Debug)]
pub struct TopicBreakers {
    settings: TopicSettings,
    topics: HashMap<TopicName, TopicRecord>,
    /// For each dead topic, the topics of the tasks whose verdict rows are in flight, and how many
    /// rows.
    sources: BTreeMap<TopicName, BTreeMap<TopicName, usize>>,
    pace: KafkaPace,
    /// The longest wait for an acknowledgement, over the records of all topics acknowledged in this
    /// period, and in the one before.
    waits: [Duration; 2],
    period_began_at: Monotonic,
}

impl TopicBreakers {
    pub fn new(settings: TopicSettings) -> Self {
        Self {
            settings,
            topics: HashMap::new(),
            sources: BTreeMap::new(),
            pace: KafkaPace::Steady,
            waits: [Duration::ZERO; 2],
            period_began_at: Monotonic::default(),
        }
    }

    /// Sets the pace at which Kafka takes records from now on.
    pub fn set_pace(&mut self, pace: KafkaPace) {
        self.pace = pace;
        for topic in self.topics.values_mut() {
            topic.fill(self.settings, pace);
            topic.drain(self.settings, pace);
        }
    }

    pub const fn pace(&self) -> KafkaPace {
        self.pace
    }

    /// Adds in-flight records of a topic.
    pub fn add_in_flight(&mut self, topic: &TopicName, tasks: usize, bytes: usize, now: Monotonic) {
        let (settings, pace) = (self.settings, self.pace);
        let entry = self.entry(topic, now);
        if entry.tasks == 0 {
            entry.heard_at = now;
            if let BreakerState::HalfOpen { since } = &mut entry.state {
                *since = now;
            }
        }
        entry.tasks = entry.tasks.saturating_add(tasks);
        entry.bytes = entry.bytes.saturating_add(bytes);
        entry.fill(settings, pace);
    }

    /// Adds the verdict row of a task of `topic` to the in-flight records of a dead topic.
    pub fn add_source(&mut self, dead_topic: &TopicName, topic: &TopicName) {
        let sources = self.sources.get_mut(dead_topic);
        if let Some(rows) = sources.and_then(|sources| sources.get_mut(topic)) {
            *rows += 1;
        } else {
            self.sources.entry(dead_topic.clone()).or_default().insert(topic.clone(), 1);
        }
    }

    /// Removes a verdict row that is no longer in flight.
    pub fn remove_source(&mut self, dead_topic: &TopicName, topic: &TopicName) {
        let Some(sources) = self.sources.get_mut(dead_topic) else { return };
        if let Some(rows) = sources.get_mut(topic) {
            *rows = rows.saturating_sub(1);
        }
        sources.retain(|_, rows| *rows > 0);
        if sources.is_empty() {
            self.sources.remove(dead_topic);
        }
    }

    /// Records that a record was refused because of the topic: the topic or the partition takes no
    /// records now.
    pub fn refused(&mut self, topic: &TopicName, now: Monotonic) {
        let probe_at = now.plus(self.settings.silence_max);
        let entry = self.entry(topic, now);
        entry.refused_since.get_or_insert(now);
        // The refusal answers the probe. Without this, claim after claim would be let through and
        // deferred. An acknowledgement from another partition is stronger.
        if matches!(entry.state, BreakerState::HalfOpen { .. }) {
            entry.state = BreakerState::Open { probe_at };
        }
    }

    /// Records that a record was refused because the node may not write to its topic. Metadata need
    /// not show that, so the refusals are the evidence. Each probe is refused. A topic refused
    /// without a break for `denial_max` is given up, like a missing one.
    pub fn forbidden(&mut self, topic: &TopicName, now: Monotonic) -> Option<Action> {
        self.refused(topic, now);
        let TopicSettings { silence_max, denial_max, .. } = self.settings;
        let entry = self.topics.get_mut(topic)?;
        let unbroken = entry
            .forbidden
            .filter(|(_, until)| now.since(*until) <= REFUSALS_APART_MAX.max(silence_max * 3));
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

    /// Records that a record was not acknowledged, for any reason.
    pub fn failed(&mut self, topic: &TopicName, reason: &str) {
        if let Some(entry) = self.topics.get_mut(topic)
            && entry.reason.as_deref() != Some(reason)
        {
            entry.reason = Some(reason.into());
        }
    }

    /// Returns the reason of the topic's last failed record, or `None` after an acknowledgement.
    pub fn reason(&self, topic: &TopicName) -> Option<&str> {
        self.topics.get(topic)?.reason.as_deref()
    }

    fn entry(&mut self, topic: &TopicName, now: Monotonic) -> &mut TopicRecord {
        self.topics.entry(topic.clone()).or_insert_with(|| TopicRecord {
            state: BreakerState::Closed,
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
            trial_at: None,
            bytes_out: [0; 2],
        })
    }

    /// Removes records of a topic that are no longer in flight.
    pub fn released(&mut self, topic: &TopicName, tasks: usize, bytes: usize) {
        if let Some(entry) = self.topics.get_mut(topic) {
            entry.tasks = entry.tasks.saturating_sub(tasks);
            entry.bytes = entry.bytes.saturating_sub(bytes);
            entry.bytes_out[0] = entry.bytes_out[0].saturating_add(bytes);
            entry.drain(self.settings, self.pace);
        }
    }

    /// Records that a record of any topic was acknowledged after this wait.
    pub fn waited(&mut self, wait: Duration) {
        self.waits[0] = self.waits[0].max(wait);
    }

    /// Returns how long a topic may be silent while its records wait. A shorter silence says
    /// nothing about the topic.
    fn silence_max(&self) -> Duration {
        self.settings.silence_max.max(self.waits[0].max(self.waits[1]).saturating_mul(2))
    }

    /// Records an acknowledgement.
    pub fn acknowledged(&mut self, topic: &TopicName, now: Monotonic) -> Option<Action> {
        let entry = self.topics.get_mut(topic)?;
        entry.heard_at = now;
        entry.denied = None;
        entry.forbidden = None;
        entry.refused_since = None;
        entry.reason = None;
        if entry.state == BreakerState::Closed {
            return None;
        }
        entry.state = BreakerState::Closed;
        entry.open_since = None;
        Some(Action::Closed(topic.clone()))
    }

    /// Checks all topics and returns the actions to take. `has_contact` is false while all of Kafka
    /// is away: then no topic is to blame. `waiting` tells whether a record of a topic has waited
    /// for long.
    pub fn turn(
        &mut self,
        now: Monotonic,
        has_contact: bool,
        waiting: impl Fn(&TopicName) -> bool,
    ) -> Vec<Action> {
        let TopicSettings { silence_max, denial_max, .. } = self.settings;
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
            if pace != KafkaPace::Steady {
                topic.excuse(now);
            }
            let is_refused =
                topic.refused_since.is_some_and(|since| now.since(since) >= silence_max);
            let is_silent = is_refused || (waiting(name) && now.since(topic.heard_at) >= patience);
            match topic.state {
                BreakerState::Closed if is_silent => {
                    topic.state = BreakerState::Open { probe_at: now.plus(silence_max) };
                    topic.open_since = Some(now);
                    actions.push(Action::Opened(name.clone()));
                }
                // A probe lasts until a task comes, and until that task is due.
                BreakerState::HalfOpen { since }
                    if topic.tasks > 0 && waiting(name) && now.since(since) >= patience =>
                {
                    topic.state = BreakerState::Open { probe_at: now.plus(silence_max) };
                }
                BreakerState::Open { probe_at } if probe_at <= now => {
                    topic.state = BreakerState::Open { probe_at: now.plus(silence_max) };
                    actions.push(Action::Probe(name.clone()));
                }
                BreakerState::Gone { look_at } if look_at <= now => {
                    topic.state = BreakerState::Gone { look_at: now.plus(silence_max) };
                    actions.push(Action::Probe(name.clone()));
                }
                _ => {}
            }
        }
        // An idle topic is forgotten when it is closed, or when it was probed or given up long ago.
        // The size of the table is thus limited by the topics in use or in trouble.
        self.topics.retain(|_, topic| {
            let is_forgotten = match topic.state {
                BreakerState::Closed => topic.refused_since.is_none(),
                BreakerState::HalfOpen { .. } | BreakerState::Gone { .. } => {
                    now.since(topic.heard_at) > denial_max.max(REMEMBERED_MIN)
                }
                BreakerState::Open { .. } => false,
            };
            topic.tasks > 0 || !is_forgotten
        });
        actions
    }

    /// Records an answer of fresh metadata.
    pub fn probed(&mut self, topic: &TopicName, sight: Sight, now: Monotonic) -> Option<Action> {
        let entry = self.topics.get_mut(topic)?;
        match (sight, entry.state) {
            (Sight::Unknown, _) | (_, BreakerState::Closed | BreakerState::HalfOpen { .. }) => None,
            (Sight::There, _) => {
                entry.denied = None;
                entry.refused_since = None;
                entry.heard_at = now;
                entry.trial_at = None;
                entry.state = BreakerState::HalfOpen { since: now };
                Some(Action::Closed(topic.clone()))
            }
            (Sight::Denied | Sight::Forbidden, _) => {
                // A denial long after the last one does not prove that the topic was missing in
                // between.
                let unbroken = entry
                    .denied
                    .filter(|(_, until)| now.since(*until) <= self.settings.silence_max * 3);
                let since = unbroken.map_or(now, |(since, _)| since);
                entry.denied = Some((since, now));
                if sight == Sight::Forbidden {
                    entry.forbidden.get_or_insert((since, now)).1 = now;
                }
                if matches!(entry.state, BreakerState::Gone { .. }) {
                    return None;
                }
                let left = self.settings.denial_max.saturating_sub(now.since(since));
                if !left.is_zero() {
                    let told =
                        if sight == Sight::Denied { Action::Denied } else { Action::Forbidden };
                    return unbroken.is_none().then(|| told(topic.clone(), left));
                }
                entry.give_up(now, self.settings.silence_max);
                Some(Action::Gone(topic.clone()))
            }
        }
    }

    /// Returns the topics whose tasks claims skip: open ones, half-open ones with a probe under
    /// way, full ones, and those behind a full dead topic.
    pub fn left_out(&self) -> BTreeSet<TopicName> {
        let left_out = self.topics.iter().filter(|(_, topic)| topic.is_left_out());
        left_out.map(|(name, _)| name).chain(self.behind_full()).cloned().collect()
    }

    /// Returns the topics skipped only because of an in-flight limit: they will soon have room.
    pub fn full(&self) -> BTreeSet<TopicName> {
        let full = self.topics.iter().filter(|(_, topic)| topic.is_left_out_for_now());
        full.map(|(name, _)| name).chain(self.behind_full()).cloned().collect()
    }

    /// Returns the topics whose verdict rows fill a dead topic. Claims know only the topics of the
    /// tasks, so without these claims there are no further records for the dead topic.
    fn behind_full(&self) -> impl Iterator<Item = &TopicName> {
        let is_full = |dead_topic: &TopicName| {
            self.topics.get(dead_topic).is_some_and(TopicRecord::is_left_out_for_now)
        };
        let full = self.sources.iter().filter(move |(dead_topic, _)| is_full(dead_topic));
        full.flat_map(|(_, sources)| sources.keys())
    }

    /// Returns the in-flight tasks and bytes of the topics that claims skip.
    pub fn in_flight_of_left_out(&self) -> (usize, usize) {
        let left_out = self.topics.values().filter(|topic| topic.is_left_out());
        left_out.fold((0, 0), |(tasks, bytes), topic| (tasks + topic.tasks, bytes + topic.bytes))
    }

    /// Returns true when claims take tasks of the topic.
    pub fn takes_tasks(&self, topic: &TopicName) -> bool {
        self.topics.get(topic).is_none_or(|topic| !topic.is_left_out())
            && !self.behind_full().any(|behind| behind == topic)
    }

    /// Returns true when a verdict row may be handed over to its dead topic: never while the
    /// breaker is open, and one by one while it is half open. Claims cannot leave such rows out,
    /// because they know only the topics of the tasks.
    pub fn lets_through(&mut self, dead_topic: &TopicName, now: Monotonic) -> bool {
        let silence_max = self.settings.silence_max;
        let Some(entry) = self.topics.get_mut(dead_topic) else { return true };
        match entry.state {
            BreakerState::Closed | BreakerState::Gone { .. } => true,
            BreakerState::Open { .. } => false,
            // A trial may end without a word about its topic: the record was too large, or the
            // producer was full or replaced. Then another one follows.
            BreakerState::HalfOpen { .. } => {
                let is_trial = entry.trial_at.is_none_or(|at| now.since(at) >= silence_max);
                if is_trial {
                    entry.trial_at = Some(now);
                }
                is_trial
            }
        }
    }

    /// Returns true when the topic is given up: its tasks become dead letters.
    pub fn is_gone(&self, topic: &TopicName) -> bool {
        self.topics.get(topic).is_some_and(|topic| matches!(topic.state, BreakerState::Gone { .. }))
    }

    /// Returns the reason why the topic takes no records, if a right is missing.
    pub fn forbidden_for(&self, topic: &TopicName) -> Option<&str> {
        let topic = self.topics.get(topic).filter(|topic| topic.forbidden.is_some())?;
        Some(topic.reason.as_deref().unwrap_or("this node may not write to the topic"))
    }

    /// Returns the number of topics that take no records: open, half-open with a probe under way,
    /// or gone.
    pub fn open_count(&self) -> usize {
        self.topics.values().filter(|topic| topic.takes_none()).count()
    }

    /// Returns the topics that take no records. The one that opened first comes first.
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
