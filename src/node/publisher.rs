//! Publish: hand records to Kafka and learn their outcome.
//!
//! A record goes to a producer with a *ticket*, which names the slot of its batch and its place in it. Its report comes back with the ticket, on the
//! producer's own thread, which is never blocked: the outcome is noted, and a batch whose outcomes are all known goes to the settler.

use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock};
use std::time::Duration;

use super::holdings::{Held, Holdings, Noted};
use super::mailbox::Mailbox;
use super::metrics::Metrics;
use crate::clock::{self, ClusterClock};
use crate::domain::{Monotonic, Outcome, Receipt, Seldom, TaskId, TopicName};
use crate::engine::failure::{Circumstances, Failure, Remedy, Renewals, remedy};
use crate::engine::topics::{Action, retry_delay};
use crate::kafka::{self, Contact, Fate, Hooks, Mode, Producer, Report, SendError};
use crate::kill_point::{Point, reach};

/// What became of handing a record over.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Handed {
    /// It is with the producer, or its outcome is known already.
    Over,
    /// The producer's queue is full: try again soon.
    Full,
}

/// Where reports end up: shared by the threads of the producers and the rest of the node.
#[derive(Debug)]
pub struct Reports {
    pub holdings: Arc<Holdings>,
    clock: Arc<ClusterClock>,
    metrics: Metrics,
    /// Tasks whose record is to be handed over once more, at the next turn of the topic keeper: not at once, for a producer that has no leader for the
    /// topic refuses it at once.
    later: Mailbox<(Arc<Held>, u32)>,
    /// Tasks whose record is to be handed over once more now.
    pub again: Mailbox<(Arc<Held>, u32)>,
    /// Tasks whose record is to be handed over alone: its batch was refused.
    alone: Mailbox<(Arc<Held>, u32)>,
    /// Batches all of whose outcomes are known.
    pub completed: Mailbox<Arc<Held>>,
    /// What the states of the topics have come to.
    pub topic_actions: Mailbox<Action>,
    /// True while no broker can be reached: no topic is to blame, and nothing is deferred.
    is_cut_off: AtomicBool,
    /// How many topics are given up on; mostly none.
    gone_count: AtomicUsize,
    dead_said: Mutex<Seldom>,
}

/// A producer, and what is known of it.
#[derive(Debug)]
struct Line {
    producer: Producer,
    marks: Arc<Marks>,
    pulse: Mutex<Pulse>,
}

/// What a line shares with the thread of its reports.
#[derive(Debug, Default)]
struct Marks {
    /// It was replaced: what fails in it then is handed over again, to its successor.
    is_retired: AtomicBool,
    acknowledged: AtomicU64,
}

/// The line of the records that go alone.
#[derive(Debug, Default)]
struct Alone {
    /// Made when the first batch is refused.
    line: Option<Arc<Line>>,
    renewals: Renewals,
}

/// What is to become of the records that a producer has when it is replaced.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Retire {
    /// It cannot be relied on: take back all of them.
    All,
    /// Take back those that no request has taken up yet.
    Queue,
}

/// How many records were acknowledged, and since when it has not been more though records wait.
#[derive(Clone, Copy, Debug)]
struct Pulse {
    acknowledged: u64,
    since: Monotonic,
}

/// A dead letter is told of so often, however many there are.
const SAY_DEAD_EVERY: Duration = Duration::from_secs(60);
/// A producer without an acknowledgement for so long, while records wait and other clients reach Kafka, is asked whether anybody answers it.
const PULSE_MAX: Duration = Duration::from_secs(5);
const ANSWER_DEADLINE: Duration = Duration::from_secs(2);

/// The way out for records.
pub struct Publisher {
    pub reports: Arc<Reports>,
    settings: kafka::Settings,
    kafka_metrics: kafka::Metrics,
    contact: Contact,
    together: RwLock<Arc<Line>>,
    /// Of the line of records that go together.
    renewals: Mutex<Renewals>,
    alone: Mutex<Alone>,
    /// Replaced, and not yet closed.
    retired: Mutex<Vec<Arc<Line>>>,
    may_publish: Box<dyn Fn() -> bool + Send + Sync>,
}

impl std::fmt::Debug for Publisher {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Publisher").field("reports", &self.reports).finish_non_exhaustive()
    }
}

impl Reports {
    pub fn new(holdings: Arc<Holdings>, clock: Arc<ClusterClock>, metrics: Metrics) -> Self {
        Self {
            holdings,
            clock,
            metrics,
            later: Mailbox::default(),
            again: Mailbox::default(),
            alone: Mailbox::default(),
            completed: Mailbox::default(),
            topic_actions: Mailbox::default(),
            is_cut_off: AtomicBool::new(false),
            gone_count: AtomicUsize::new(0),
            dead_said: Mutex::new(Seldom::new(SAY_DEAD_EVERY)),
        }
    }

    /// Hands over again what failed for no fault of its topic.
    pub fn try_again(&self) {
        for letter in self.later.take() {
            self.again.put(letter);
        }
    }

    /// Takes in the report of a record. Never blocks.
    fn take_in(&self, report: Report, is_retired: bool) {
        let (slot, index) = ticket_parts(report.ticket);
        let Some(held) = self.holdings.in_slot(slot) else {
            // Only a batch without anything to come leaves its slot.
            tracing::error!(slot, "a report for a batch that is not held");
            return;
        };
        match report.fate {
            Fate::Acknowledged(receipt) => self.acknowledged(&held, index, receipt),
            fate => self.failed(held, index, fate, is_retired),
        }
    }

    fn acknowledged(&self, held: &Arc<Held>, index: u32, receipt: Receipt) {
        let place = place(index);
        let now = clock::monotonic();
        if held.is_news(place, now)
            && let Some(action) = self.holdings.acknowledged(held.topic_of(place), now)
        {
            self.topic_actions.put(action);
        }
        let task = held.batch.task(place);
        self.metrics.published(receipt.published_at.since(task.first_id.due_at()));
        self.note(held, place, Outcome::Published(receipt));
    }

    fn failed(&self, held: Arc<Held>, index: u32, fate: Fate, is_retired: bool) {
        let place = place(index);
        let maybe_sent = held.note_maybe_sent(place, fate.maybe_sent());
        let (failure, reason) = match fate {
            Fate::Acknowledged(_) => return,
            Fate::NotSent(reason) => (Failure::NotSent, reason),
            Fate::Unknown(reason) => (Failure::Unknown, reason),
            Fate::BatchRefused(reason) => (Failure::BatchRefused, reason),
            Fate::RefusedForGood(reason) => (Failure::RefusedForGood, reason),
            Fate::Unavailable { reason, .. } => (Failure::Unavailable, reason),
        };
        let circumstances = Circumstances {
            is_given_up: held.is_given_up(),
            is_blameless: is_retired || self.is_cut_off.load(Ordering::Relaxed),
            is_topic_gone: self.gone_count.load(Ordering::Relaxed) > 0 && self.holdings.topics().is_gone(held.topic_of(place)),
        };
        match remedy(failure, circumstances) {
            Remedy::Alone => self.alone.put((held, index)),
            Remedy::Later => self.later.put((held, index)),
            Remedy::GiveUp if failure == Failure::Unavailable => self.dead(&held, place, "the topic does not exist"),
            Remedy::GiveUp => self.dead(&held, place, &reason.to_string()),
            Remedy::Defer => {
                if !circumstances.is_given_up {
                    if failure == Failure::Unavailable {
                        self.holdings.topics().refused(held.topic_of(place), clock::monotonic());
                    }
                    self.metrics.deferred.inc();
                }
                self.note(&held, place, self.deferred(&held, place, maybe_sent));
            }
        }
    }

    fn dead(&self, held: &Arc<Held>, place: usize, reason: &str) {
        self.metrics.dead.inc();
        let (id, topic, now) = (held.batch.task(place).first_id, held.topic_of(place), clock::monotonic());
        if self.dead_said.lock().unwrap_or_else(PoisonError::into_inner).lets_through(now) {
            tracing::warn!(task = %id, %topic, reason, "a task has become a dead letter; others within a minute are counted, not said");
        } else {
            tracing::debug!(task = %id, %topic, reason, "dead letter");
        }
        self.note(held, place, Outcome::Dead { reason: reason.into() });
    }

    fn deferred(&self, held: &Held, place: usize, maybe_sent: bool) -> Outcome {
        let task = held.batch.task(place);
        let random: u64 = rand::random();
        let delay = retry_delay(task.attempt, random.to_be_bytes()[0]);
        let now = self.clock.now().unwrap_or_else(|| task.id.due_at());
        let next = TaskId::new(now.plus(delay), task.id.shard(), rand::random());
        Outcome::Deferred { next, maybe_sent }
    }

    fn note(&self, held: &Arc<Held>, place: usize, outcome: Outcome) {
        match held.note(place, outcome) {
            Noted::MoreToCome => {}
            Noted::Complete => {
                reach(Point::LastAcknowledged);
                self.completed.put(Arc::clone(held));
            }
            Noted::GivenUp => self.holdings.let_go(held),
        }
    }
}

impl Publisher {
    /// `may_publish` is false while this node does not know whether its batches are still its own.
    ///
    /// # Errors
    /// When the settings for Kafka are wrong.
    pub fn new(
        reports: Arc<Reports>,
        settings: kafka::Settings,
        kafka_metrics: kafka::Metrics,
        contact: Contact,
        may_publish: Box<dyn Fn() -> bool + Send + Sync>,
    ) -> Result<Self, kafka::Error> {
        let made = line(&reports, &settings, &kafka_metrics, &contact, Mode::Together)?;
        let together = RwLock::new(Arc::new(made));
        let (renewals, alone, retired) = (Mutex::default(), Mutex::default(), Mutex::default());
        Ok(Self { reports, settings, kafka_metrics, contact, together, renewals, alone, retired, may_publish })
    }

    pub fn may_publish(&self) -> bool {
        (self.may_publish)()
    }

    /// Hands the record of a task to the producer.
    pub fn publish(&self, held: &Arc<Held>, index: u32) -> Handed {
        self.hand_over(&self.current().producer, held, index)
    }

    fn hand_over(&self, producer: &Producer, held: &Arc<Held>, index: u32) -> Handed {
        let place = place(index);
        if held.has_outcome(place) {
            return Handed::Over;
        }
        if held.is_given_up() {
            self.reports.note(held, place, self.reports.deferred(held, place, true));
            return Handed::Over;
        }
        if self.reports.gone_count.load(Ordering::Relaxed) > 0 && self.reports.holdings.topics().is_gone(held.topic_of(place)) {
            self.reports.dead(held, place, "the topic does not exist");
            return Handed::Over;
        }
        self.send(producer, held, index)
    }

    /// Hands over alone the records whose batch was refused. Those that do not fit in come next time.
    pub fn publish_alone(&self) -> Result<(), kafka::Error> {
        if !self.may_publish() || self.reports.alone.is_empty() {
            return Ok(());
        }
        let line = self.line_alone()?;
        for (held, index) in self.reports.alone.take() {
            if self.hand_over(&line.producer, &held, index) == Handed::Full {
                self.reports.alone.put((held, index));
            }
        }
        Ok(())
    }

    /// Makes a new producer when the one there is has failed for good, or has lost track of a partition.
    ///
    /// # Errors
    /// When no new producer can be made.
    pub fn mend(&self) -> Result<(), kafka::Error> {
        self.mend_alone();
        let line = self.current();
        let Some((reason, retire)) = self.defect(&line) else { return Ok(()) };
        let mut renewals = self.renewals.lock().unwrap_or_else(PoisonError::into_inner);
        let (has_worked, now) = (line.has_worked(), clock::monotonic());
        if renewals.is_due(has_worked, now) && self.replace(&line, retire)? {
            renewals.made(has_worked, now);
            tracing::warn!(reason, "the producer failed; a new one was made");
        }
        Ok(())
    }

    /// The next record that is to go alone gets a new producer.
    fn mend_alone(&self) {
        let mut alone = self.alone();
        let Some(line) = alone.line.clone() else { return };
        let Some((reason, retire)) = self.defect(&line) else { return };
        let (has_worked, now) = (line.has_worked(), clock::monotonic());
        if alone.renewals.is_due(has_worked, now) {
            alone.renewals.made(has_worked, now);
            alone.line = None;
            drop(alone);
            tracing::warn!(reason, "the producer of records that go alone failed; a new one is made for the next of them");
            self.retire(line, retire);
        }
    }

    /// Why another producer must take this one's place, and what is to become of its records.
    fn defect(&self, line: &Line) -> Option<(String, Retire)> {
        match line.producer.fatal() {
            Some(reason) => Some((reason, Retire::All)),
            // What is on its way may be acknowledged yet.
            None if line.producer.is_stuck() && self.contact.is_held() => {
                Some(("it has lost track of a partition's leader".to_owned(), Retire::Queue))
            }
            None => None,
        }
    }

    /// Makes a new producer when nobody answers the one there is, though Kafka is there: librdkafka forgets all brokers when one that is just starting
    /// tells of none, and never connects again (its issue 5301).
    ///
    /// # Errors
    /// When no new producer can be made.
    pub async fn check(&self) -> Result<(), kafka::Error> {
        let outcome = self.check_together().await;
        self.check_alone().await;
        outcome
    }

    async fn check_together(&self) -> Result<(), kafka::Error> {
        let line = self.current();
        if self.is_unanswered(&line).await && self.replace(&line, Retire::All)? {
            tracing::warn!("no broker answered the producer, though Kafka is there; a new one was made");
        }
        Ok(())
    }

    async fn check_alone(&self) {
        let Some(line) = self.alone().line.clone() else { return };
        if self.is_unanswered(&line).await {
            // Unless another one has taken its place meanwhile.
            let taken = self.alone().line.take_if(|current| Arc::ptr_eq(current, &line));
            if let Some(line) = taken {
                tracing::warn!(
                    "no broker answered the producer of records that go alone, though Kafka is there; a new one is made for the next of them"
                );
                self.retire(line, Retire::All);
            }
        }
    }

    async fn is_unanswered(&self, line: &Line) -> bool {
        self.is_suspect(line) && !line.producer.is_answered(ANSWER_DEADLINE).await && self.contact.is_held()
    }

    /// True at most once in [`PULSE_MAX`]: for so long records have waited, and no more were acknowledged.
    fn is_suspect(&self, line: &Line) -> bool {
        let (acknowledged, now) = (line.acknowledged(), clock::monotonic());
        let mut pulse = line.pulse.lock().unwrap_or_else(PoisonError::into_inner);
        let is_alive = acknowledged != pulse.acknowledged || line.producer.in_flight() == 0 || !self.contact.is_held();
        let is_suspect = !is_alive && now.since(pulse.since) >= PULSE_MAX;
        if is_alive || is_suspect {
            *pulse = Pulse { acknowledged, since: now };
        }
        is_suspect
    }

    /// Takes back what the producers hold: each record comes out with a report and is handed over again, if its batch is still this node's.
    ///
    /// # Errors
    /// When no new producer can be made.
    pub fn purge(&self) -> Result<(), kafka::Error> {
        let alone = self.alone().line.take();
        if let Some(line) = alone {
            self.retire(line, Retire::All);
        }
        while !self.replace(&self.current(), Retire::All)? {}
        Ok(())
    }

    /// Closes the producers that were replaced and have nothing left to report. To be called now and then.
    pub async fn tidy(&self) {
        let done: Vec<Arc<Line>> = {
            let mut retired = self.retired.lock().unwrap_or_else(PoisonError::into_inner);
            retired.extract_if(.., |line| Arc::strong_count(line) == 1 && line.producer.in_flight() == 0).collect()
        };
        for line in done {
            if let Some(line) = Arc::into_inner(line) {
                line.producer.close().await;
            }
        }
    }

    /// True when the reports of a producer do not come any more: the thread that takes them in has panicked, and its batches would never be complete.
    pub fn is_deaf(&self) -> bool {
        let is_deaf = |line: &Arc<Line>| line.producer.is_deaf();
        is_deaf(&self.current())
            || self.alone().line.as_ref().is_some_and(is_deaf)
            || self.retired.lock().unwrap_or_else(PoisonError::into_inner).iter().any(is_deaf)
    }

    /// Fetches the metadata of `topics`, so that their first records need not wait for it.
    pub async fn preload(&self, topics: Vec<TopicName>, deadline: Duration) -> usize {
        self.current().producer.preload(topics, deadline).await
    }

    /// Puts a new producer in the place of `old`; false when another one has taken it already.
    fn replace(&self, old: &Arc<Line>, retire: Retire) -> Result<bool, kafka::Error> {
        let new = Arc::new(line(&self.reports, &self.settings, &self.kafka_metrics, &self.contact, Mode::Together)?);
        let mut current = self.together.write().unwrap_or_else(PoisonError::into_inner);
        let is_current = Arc::ptr_eq(&current, old);
        let replaced = if is_current { std::mem::replace(&mut *current, new) } else { new };
        drop(current);
        self.retire(replaced, retire);
        Ok(is_current)
    }

    fn retire(&self, line: Arc<Line>, retire: Retire) {
        line.marks.is_retired.store(true, Ordering::Relaxed);
        match retire {
            Retire::All => line.producer.purge(),
            Retire::Queue => line.producer.purge_queue(),
        }
        self.retired.lock().unwrap_or_else(PoisonError::into_inner).push(line);
    }

    fn current(&self) -> Arc<Line> {
        Arc::clone(&self.together.read().unwrap_or_else(PoisonError::into_inner))
    }

    pub fn set_cut_off(&self, is_cut_off: bool) {
        self.reports.is_cut_off.store(is_cut_off, Ordering::Relaxed);
    }

    pub fn set_gone_count(&self, count: usize) {
        self.reports.gone_count.store(count, Ordering::Relaxed);
    }

    fn send(&self, producer: &Producer, held: &Arc<Held>, index: u32) -> Handed {
        let place = place(index);
        let task = held.batch.task(place);
        match producer.send(ticket(held.slot, index), held.topic_of(place).as_str(), &task) {
            Ok(()) => {
                reach(Point::RecordHandedOver);
                Handed::Over
            }
            Err(SendError::Full) => Handed::Full,
            // It takes nothing any more and is about to be replaced: its successor gets the record.
            Err(SendError::Failed(_)) if producer.fatal().is_some() => Handed::Full,
            Err(SendError::Failed(fate)) => {
                self.reports.failed(Arc::clone(held), index, fate, false);
                Handed::Over
            }
        }
    }

    fn line_alone(&self) -> Result<Arc<Line>, kafka::Error> {
        let mut alone = self.alone();
        if let Some(line) = &alone.line {
            return Ok(Arc::clone(line));
        }
        let made = Arc::new(line(&self.reports, &self.settings, &self.kafka_metrics, &self.contact, Mode::Alone)?);
        alone.line = Some(Arc::clone(&made));
        Ok(made)
    }

    fn alone(&self) -> MutexGuard<'_, Alone> {
        self.alone.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Line {
    fn acknowledged(&self) -> u64 {
        self.marks.acknowledged.load(Ordering::Relaxed)
    }

    fn has_worked(&self) -> bool {
        self.acknowledged() > 0
    }
}

fn line(
    reports: &Arc<Reports>,
    settings: &kafka::Settings,
    metrics: &kafka::Metrics,
    contact: &Contact,
    mode: Mode,
) -> Result<Line, kafka::Error> {
    let (on_report, clock) = (Arc::clone(reports), Arc::clone(&reports.clock));
    let marks = Arc::new(Marks::default());
    let marked = Arc::clone(&marks);
    let take_in = move |report: Report| {
        if matches!(report.fate, Fate::Acknowledged(_)) {
            marked.acknowledged.fetch_add(1, Ordering::Relaxed);
        }
        on_report.take_in(report, marked.is_retired.load(Ordering::Relaxed));
    };
    let hooks = Hooks::new(take_in, move || clock.now().unwrap_or_default());
    let producer = Producer::new(settings, mode, contact.clone(), metrics.clone(), hooks)?;
    Ok(Line { producer, marks, pulse: Mutex::new(Pulse { acknowledged: 0, since: clock::monotonic() }) })
}

/// The low half is the place in the batch, the high half the slot.
fn ticket(slot: u32, index: u32) -> usize {
    place(slot) << 32 | place(index)
}

fn ticket_parts(ticket: usize) -> (u32, u32) {
    let low = u32::try_from(ticket & place(u32::MAX)).unwrap_or(u32::MAX);
    (u32::try_from(ticket >> 32).unwrap_or(u32::MAX), low)
}

fn place(index: u32) -> usize {
    usize::try_from(index).unwrap_or(usize::MAX)
}
