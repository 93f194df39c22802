//! A line to Kafka: a producer, and its successors when it fails.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError, RwLock};
use std::time::Duration;

use super::Reports;
use crate::clock;
use crate::domain::{Failure, Monotonic};
use crate::engine::failure::{Defect, Renewals};
use crate::engine::topics::Pace;
use crate::kafka::{self, Contact, DeliveryOutcome, Hooks, Mode, DeliveryReport};

/// A producer without an acknowledgement for so long, while records wait, other clients reach Kafka
/// and it has no connection, is asked whether anybody answers it.
const PULSE_MAX: Duration = Duration::from_secs(5);
const ANSWER_DEADLINE: Duration = Duration::from_secs(2);

/// What a producer is made of.
pub(super) struct Maker {
    pub reports: Arc<Reports>,
    pub settings: kafka::Settings,
    pub metrics: kafka::Metrics,
    pub contact: Contact,
}

/// A way for records: there is always a producer.
pub(super) struct Line {
    maker: Arc<Maker>,
    mode: Mode,
    current: RwLock<Arc<Producer>>,
    renewals: Mutex<Renewals>,
    /// Replaced, and not yet closed.
    retired: Mutex<Vec<Arc<Producer>>>,
}

/// One of its producers, and what is known of it.
pub(super) struct Producer {
    pub inner: kafka::Producer,
    marks: Arc<Marks>,
    pulse: Mutex<Pulse>,
}

/// What a producer shares with the thread of its reports.
#[derive(Default)]
struct Marks {
    /// It was replaced: what fails in it then is handed over again, to its successor.
    is_retired: AtomicBool,
    acknowledged: AtomicU64,
    /// A record of it had no answer until its deadline, though Kafka was there and not slow.
    is_doubted: AtomicBool,
}

/// How many records were acknowledged, and since when it has not been more though records wait.
#[derive(Clone, Copy)]
struct Pulse {
    acknowledged: u64,
    since: Monotonic,
}

/// What is to become of the records that a producer has when it is replaced.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Retire {
    /// It cannot be relied on: take back all of them.
    All,
    /// Take back those that wait to be sent, or to be sent again.
    Queue,
    /// They stay: it goes on with them until their deadline.
    None,
}

impl Maker {
    fn make(&self, mode: Mode) -> Result<Arc<Producer>, kafka::Error> {
        let (reports, clock) = (Arc::clone(&self.reports), Arc::clone(&self.reports.clock));
        let marks = Arc::new(Marks::default());
        let marked = Arc::clone(&marks);
        let contact = self.contact.clone();
        let take_in = move |report: DeliveryReport| {
            match report.outcome {
                DeliveryOutcome::Acknowledged(_) => {
                    marked.acknowledged.fetch_add(1, Ordering::Relaxed);
                }
                DeliveryOutcome::Failed(failed) if failed.failure == Failure::Unknown && !failed.is_taken_back() && contact.is_held() => {
                    marked.is_doubted.store(true, Ordering::Relaxed);
                }
                DeliveryOutcome::Failed(_) => {}
            }
            reports.take_in(report, marked.is_retired.load(Ordering::Relaxed));
        };
        let hooks = Hooks::new(take_in, move || clock.now().unwrap_or_default());
        let inner = kafka::Producer::new(&self.settings, mode, self.contact.clone(), self.metrics.clone(), hooks)?;
        let pulse = Mutex::new(Pulse { acknowledged: 0, since: clock::monotonic() });
        Ok(Arc::new(Producer { inner, marks, pulse }))
    }
}

impl Line {
    /// # Errors
    /// When the settings for Kafka are wrong, or no producer can be made just now.
    pub(super) fn new(maker: &Arc<Maker>, mode: Mode) -> Result<Self, kafka::Error> {
        let current = RwLock::new(maker.make(mode)?);
        Ok(Self { maker: Arc::clone(maker), mode, current, renewals: Mutex::default(), retired: Mutex::default() })
    }

    pub(super) fn current(&self) -> Arc<Producer> {
        Arc::clone(&self.current.read().unwrap_or_else(PoisonError::into_inner))
    }

    /// Makes a new producer when the one there is has failed for good, has lost track of a
    /// partition, or may have.
    ///
    /// # Errors
    /// When no new producer can be made.
    pub(super) fn mend(&self) -> Result<(), kafka::Error> {
        let producer = self.current();
        let Some((defect, reason, retire)) = self.defect(&producer) else { return Ok(()) };
        let mut renewals = self.renewals.lock().unwrap_or_else(PoisonError::into_inner);
        let (has_worked, now) = (producer.acknowledged() > 0, clock::monotonic());
        if renewals.is_due(defect, has_worked, now) && self.replace(&producer, retire)? {
            renewals.made(defect, has_worked, now);
            tracing::warn!(producer = self.name(), reason, "a new producer was made in the place of one with a defect");
        }
        Ok(())
    }

    /// Why another producer must take this one's place, and what is to become of its records.
    fn defect(&self, producer: &Producer) -> Option<(Defect, String, Retire)> {
        if let Some(reason) = producer.inner.fatal() {
            return Some((Defect::Failed, reason, Retire::All));
        }
        // It should have had a successor at once, and none could be made.
        if producer.marks.is_retired.load(Ordering::Relaxed) {
            return Some((Defect::Failed, "its records were taken back".to_owned(), Retire::All));
        }
        if !self.maker.contact.is_held() {
            return None;
        }
        // What is on its way may be acknowledged yet.
        if producer.inner.is_stuck() {
            return Some((Defect::Failed, "it has lost track of a partition's leader".to_owned(), Retire::Queue));
        }
        let is_doubted = producer.marks.is_doubted.load(Ordering::Relaxed);
        // It may be right, and its records wait to be sent again in a way that the broker
        // recognises: whoever took them back would send them twice.
        is_doubted.then(|| {
            (
                Defect::Doubt,
                "a record had no answer until its deadline, though Kafka is there and not slow".to_owned(),
                Retire::None,
            )
        })
    }

    /// Makes a new producer when the one there is has no connection and nobody answers it, though
    /// Kafka is there: librdkafka forgets all brokers when one that is just starting tells of none,
    /// and never connects again (its issue 5301). A producer with a connection is left alone,
    /// however long it goes without an answer: a broker that throttles, or is slow, may have what
    /// it sent, and only this producer can wait for that.
    ///
    /// # Errors
    /// When no new producer can be made.
    pub(super) async fn check(&self) -> Result<(), kafka::Error> {
        let (producer, contact) = (self.current(), &self.maker.contact);
        let is_unanswered =
            producer.is_suspect(contact) && !producer.inner.is_answered(ANSWER_DEADLINE).await && contact.is_held();
        // Looked at again: it may have connected meanwhile.
        let is_unanswered = is_unanswered && producer.inner.has_no_way();
        if is_unanswered && self.replace(&producer, Retire::All)? {
            tracing::warn!(
                producer = self.name(),
                "the producer had no connection to any broker, though Kafka is there; a new one was made"
            );
        }
        Ok(())
    }

    /// Takes back what waits to be sent, or to be sent again, because some of it has waited for the
    /// publish deadline while Kafka was not slow. What is younger is handed over again. A request
    /// that is under way is left to be answered. The producer may be wrong about a partition: it is
    /// doubted.
    pub(super) fn take_back_overdue(&self) {
        self.current().marks.is_doubted.store(true, Ordering::Relaxed);
        for producer in self.all() {
            producer.inner.purge_queue();
        }
    }

    /// The slowest pace of its producers; and for how long brokers hold their requests back.
    pub(super) fn pace(&self) -> (Pace, Option<Duration>) {
        let producers = self.all();
        let throttle = producers.iter().filter_map(|producer| producer.inner.throttle()).max();
        let pace = match throttle {
            Some(_) => Pace::Throttled,
            None if producers.iter().any(|producer| producer.inner.is_stalled()) => Pace::Stalled,
            None => Pace::Steady,
        };
        (pace, throttle)
    }

    /// The one there is, and those that were replaced and have something to report.
    fn all(&self) -> Vec<Arc<Producer>> {
        let mut all = vec![self.current()];
        all.extend(self.retired.lock().unwrap_or_else(PoisonError::into_inner).iter().cloned());
        all
    }

    /// Takes back what the producer holds: each record comes out with a report and is handed over
    /// again, if its batch is still this node's.
    ///
    /// # Errors
    /// When no new producer can be made.
    pub(super) fn purge(&self) -> Result<(), kafka::Error> {
        // Whether a successor can be made or not: nothing more of it may leave.
        self.current().give_up(Retire::All);
        while !self.replace(&self.current(), Retire::All)? {}
        Ok(())
    }

    /// Puts a new producer in the place of `old`; false when another one has taken it already.
    fn replace(&self, old: &Arc<Producer>, retire: Retire) -> Result<bool, kafka::Error> {
        let new = self.maker.make(self.mode)?;
        let mut current = self.current.write().unwrap_or_else(PoisonError::into_inner);
        let is_current = Arc::ptr_eq(&current, old);
        let replaced = if is_current { std::mem::replace(&mut *current, new) } else { new };
        drop(current);
        self.retire(replaced, retire);
        Ok(is_current)
    }

    fn retire(&self, producer: Arc<Producer>, retire: Retire) {
        producer.give_up(retire);
        self.retired.lock().unwrap_or_else(PoisonError::into_inner).push(producer);
    }

    /// Closes the producers that were replaced and have nothing left to report. To be called now
    /// and then.
    pub(super) async fn tidy(&self) {
        let done: Vec<Arc<Producer>> = {
            let mut retired = self.retired.lock().unwrap_or_else(PoisonError::into_inner);
            retired.extract_if(.., |producer| Arc::strong_count(producer) == 1 && producer.inner.in_flight() == 0).collect()
        };
        for producer in done {
            if let Some(producer) = Arc::into_inner(producer) {
                producer.inner.close().await;
            }
        }
    }

    /// True when the reports of a producer do not come any more: the thread that takes them in has
    /// panicked, and its batches would never be complete.
    pub(super) fn is_deaf(&self) -> bool {
        let is_deaf = |producer: &Arc<Producer>| producer.inner.is_deaf();
        is_deaf(&self.current()) || self.retired.lock().unwrap_or_else(PoisonError::into_inner).iter().any(is_deaf)
    }

    const fn name(&self) -> &'static str {
        match self.mode {
            Mode::Together => "together",
            Mode::Alone => "alone",
        }
    }
}

impl Producer {
    /// What fails in it from now on goes to its successor.
    fn give_up(&self, retire: Retire) {
        self.marks.is_retired.store(true, Ordering::Relaxed);
        match retire {
            Retire::All => self.inner.purge(),
            Retire::Queue => self.inner.purge_queue(),
            Retire::None => {}
        }
    }

    fn acknowledged(&self) -> u64 {
        self.marks.acknowledged.load(Ordering::Relaxed)
    }

    /// True at most once in [`PULSE_MAX`]: for so long records have waited, no more were
    /// acknowledged, and there is no connection.
    fn is_suspect(&self, contact: &Contact) -> bool {
        let (acknowledged, now) = (self.acknowledged(), clock::monotonic());
        let mut pulse = self.pulse.lock().unwrap_or_else(PoisonError::into_inner);
        let has_nothing_to_say = self.inner.in_flight() == 0 || !contact.is_held() || !self.inner.has_no_way();
        let is_alive = acknowledged != pulse.acknowledged || has_nothing_to_say;
        let is_suspect = !is_alive && now.since(pulse.since) >= PULSE_MAX;
        if is_alive || is_suspect {
            *pulse = Pulse { acknowledged, since: now };
        }
        is_suspect
    }
}
