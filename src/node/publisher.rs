//! Publish: hand records to Kafka and learn their outcome.
//!
//! A record goes to a producer with a *ticket*, which names the slot of its batch and its place in it. Its report comes back with the ticket, on the
//! producer's own thread, which is never blocked: the outcome is noted, and a batch whose outcomes are all known goes to the settler.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError, RwLock};

use super::holdings::{Held, Holdings, Noted};
use super::mailbox::Mailbox;
use super::metrics::Metrics;
use crate::clock::{self, ClusterClock};
use crate::domain::{Outcome, Receipt, TaskId};
use crate::engine::topics::{Action, retry_delay};
use crate::kafka::{self, Contact, Fate, Hooks, Mode, Producer, Report, SendError};

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
    /// Tasks whose record is to be handed over once more.
    pub again: Mailbox<(Arc<Held>, u32)>,
    /// Tasks whose record is to be handed over alone: its batch was refused.
    alone: Mailbox<(Arc<Held>, u32)>,
    /// Batches all of whose outcomes are known.
    pub completed: Mailbox<Arc<Held>>,
    /// What the states of the topics have come to.
    pub topic_actions: Mailbox<Action>,
    /// True while no broker can be reached: no topic is to blame, and nothing is deferred.
    is_cut_off: AtomicBool,
    /// True while the producer is being emptied: what comes out of it is handed over again.
    is_purging: AtomicBool,
    /// How many topics are given up on; mostly none.
    gone_count: AtomicUsize,
}

/// The way out for records.
pub struct Publisher {
    pub reports: Arc<Reports>,
    settings: kafka::Settings,
    kafka_metrics: kafka::Metrics,
    contact: Contact,
    together: RwLock<Arc<Producer>>,
    /// Made when the first batch is refused.
    alone: Mutex<Option<Arc<Producer>>>,
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
            again: Mailbox::default(),
            alone: Mailbox::default(),
            completed: Mailbox::default(),
            topic_actions: Mailbox::default(),
            is_cut_off: AtomicBool::new(false),
            is_purging: AtomicBool::new(false),
            gone_count: AtomicUsize::new(0),
        }
    }

    /// Takes in the report of a record. Never blocks.
    fn take_in(&self, report: Report) {
        let (slot, index) = ticket_parts(report.ticket);
        let Some(held) = self.holdings.in_slot(slot) else {
            // Only a batch without anything to come leaves its slot.
            tracing::error!(slot, "a report for a batch that is not held");
            return;
        };
        match report.fate {
            Fate::Acknowledged(receipt) => self.acknowledged(&held, index, receipt),
            fate => self.failed(held, index, fate),
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

    fn failed(&self, held: Arc<Held>, index: u32, fate: Fate) {
        let place = place(index);
        let maybe_sent = held.note_maybe_sent(place, fate.maybe_sent());
        let is_gone = || self.gone_count.load(Ordering::Relaxed) > 0 && self.holdings.topics().is_gone(held.topic_of(place));
        match fate {
            _ if held.is_given_up() => self.note(&held, place, self.deferred(&held, place, maybe_sent)),
            Fate::BatchRefused(_) => self.alone.put((held, index)),
            Fate::RefusedForGood(reason) => self.dead(&held, place, &reason.to_string()),
            _ if self.is_purging.load(Ordering::Relaxed) || self.is_cut_off.load(Ordering::Relaxed) => {
                self.again.put((held, index))
            }
            Fate::Unavailable { .. } if is_gone() => self.dead(&held, place, "the topic does not exist"),
            Fate::Unavailable { .. } | Fate::NotSent(_) | Fate::Unknown(_) | Fate::Acknowledged(_) => {
                self.metrics.deferred.inc();
                self.note(&held, place, self.deferred(&held, place, maybe_sent));
            }
        }
    }

    fn dead(&self, held: &Arc<Held>, place: usize, reason: &str) {
        self.metrics.dead.inc();
        tracing::debug!(task = %held.batch.task(place).first_id, reason, "dead letter");
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
            Noted::Complete => self.completed.put(Arc::clone(held)),
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
        let made = producer(&reports, &settings, &kafka_metrics, &contact, Mode::Together)?;
        let together = RwLock::new(Arc::new(made));
        Ok(Self { reports, settings, kafka_metrics, contact, together, alone: Mutex::new(None), may_publish })
    }

    pub fn may_publish(&self) -> bool {
        (self.may_publish)()
    }

    /// Hands the record of a task to the producer.
    pub fn publish(&self, held: &Arc<Held>, index: u32) -> Handed {
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
        let producer = Arc::clone(&self.together.read().unwrap_or_else(PoisonError::into_inner));
        self.send(&producer, held, index)
    }

    /// Hands over alone the records whose batch was refused. Those that do not fit in come next time.
    pub fn publish_alone(&self) -> Result<(), kafka::Error> {
        let waiting = self.reports.alone.take();
        if waiting.is_empty() {
            return Ok(());
        }
        let producer = self.producer_alone()?;
        for (held, index) in waiting {
            if self.send(&producer, &held, index) == Handed::Full {
                self.reports.alone.put((held, index));
            }
        }
        Ok(())
    }

    /// Makes a new producer when the one there is has failed for good; what it had is handed over again.
    pub fn mend(&self) -> Result<(), kafka::Error> {
        let producer = Arc::clone(&self.together.read().unwrap_or_else(PoisonError::into_inner));
        let Some(reason) = producer.fatal() else { return Ok(()) };
        tracing::warn!(reason, "the producer failed; making a new one");
        self.reports.is_purging.store(true, Ordering::Relaxed);
        producer.purge();
        let new = Arc::new(self::producer(&self.reports, &self.settings, &self.kafka_metrics, &self.contact, Mode::Together)?);
        *self.together.write().unwrap_or_else(PoisonError::into_inner) = new;
        Ok(())
    }

    /// Takes back what the producers hold: each record comes out with a report and is handed over again, if its batch is still this node's.
    pub fn purge(&self) {
        self.reports.is_purging.store(true, Ordering::Relaxed);
        self.together.read().unwrap_or_else(PoisonError::into_inner).purge();
        if let Some(alone) = self.alone.lock().unwrap_or_else(PoisonError::into_inner).as_ref() {
            alone.purge();
        }
    }

    /// To be called now and then: a purge has ended when nothing is left in the producer.
    pub fn end_purge(&self) {
        if self.in_flight() == 0 {
            self.reports.is_purging.store(false, Ordering::Relaxed);
        }
    }

    pub fn in_flight(&self) -> usize {
        self.together.read().unwrap_or_else(PoisonError::into_inner).in_flight()
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
            Ok(()) => Handed::Over,
            Err(SendError::Full) => Handed::Full,
            Err(SendError::Failed(fate)) => {
                self.reports.failed(Arc::clone(held), index, fate);
                Handed::Over
            }
        }
    }

    fn producer_alone(&self) -> Result<Arc<Producer>, kafka::Error> {
        let mut alone = self.alone.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(producer) = alone.as_ref() {
            return Ok(Arc::clone(producer));
        }
        let made = Arc::new(producer(&self.reports, &self.settings, &self.kafka_metrics, &self.contact, Mode::Alone)?);
        *alone = Some(Arc::clone(&made));
        Ok(made)
    }
}

fn producer(
    reports: &Arc<Reports>,
    settings: &kafka::Settings,
    metrics: &kafka::Metrics,
    contact: &Contact,
    mode: Mode,
) -> Result<Producer, kafka::Error> {
    let (on_report, clock) = (Arc::clone(reports), Arc::clone(&reports.clock));
    let hooks = Hooks::new(move |report| on_report.take_in(report), move || clock.now().unwrap_or_default());
    Producer::new(settings, mode, contact.clone(), metrics.clone(), hooks)
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
