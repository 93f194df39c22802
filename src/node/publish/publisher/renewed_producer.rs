//! Keeps a producer for Kafka, and makes successors after failures.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use parking_lot::{Mutex, RwLock};

use super::Reports;
use crate::clock;
use crate::domain::{Failure, Monotonic};
use crate::engine::failure::{Renewals, ReplacementReason};
use crate::engine::topics::KafkaPace;
use crate::kafka::{
    self, ClientError, DeliveryOutcome, DeliveryReport, Hooks, KafkaContact, KafkaMetrics,
    KafkaSettings, Mode,
};
use crate::telemetry::traces::{Publications, Traces};

/// A producer is checked after this time without an acknowledgement, if records wait, other clients
/// reach Kafka, and the producer has no connection.
const PULSE_MAX: Duration = Duration::from_secs(5);
const ANSWER_DEADLINE: Duration = Duration::from_secs(2);

/// The parts from which producers are made.
pub(super) struct Maker {
    pub reports: Arc<Reports>,
    pub settings: KafkaSettings,
    pub metrics: KafkaMetrics,
    pub contact: KafkaContact,
    /// `None` without tracing.
    pub traces: Option<Traces>,
}

/// A producer that is renewed after failures. There is always a current instance.
pub(super) struct RenewedProducer {
    maker: Arc<Maker>,
    mode: Mode,
    current: RwLock<Arc<ProducerInstance>>,
    renewals: Mutex<Renewals>,
    /// Producers that were replaced and are not yet closed.
    retired: Mutex<Vec<Arc<ProducerInstance>>>,
}

/// One instance of a producer, and the observations of it.
pub(super) struct ProducerInstance {
    pub inner: kafka::Producer,
    marks: Arc<Marks>,
    pulse: Mutex<AckProgress>,
    /// The version of the operator's properties that the producer was made with.
    properties: u64,
}

/// The flags that a producer shares with the thread of its delivery reports.
#[derive(Default)]
struct Marks {
    /// The producer was replaced. Records that fail afterwards are handed over to the successor.
    is_retired: AtomicBool,
    acknowledged: AtomicU64,
    /// A record of the producer had no answer until its deadline, although Kafka was there and not
    /// slow.
    is_in_doubt: AtomicBool,
}

/// The number of acknowledged records, and the time since which it has stood still while records
/// wait.
#[derive(Clone, Copy)]
struct AckProgress {
    acknowledged: u64,
    since: Monotonic,
}

/// The treatment of a producer's records when it is replaced.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Retire {
    /// Take back all of them: the producer cannot be relied on.
    All,
    /// Take back those that wait to be sent, or to be sent again.
    Queue,
    /// Leave the records to the producer until the deadline.
    None,
}

impl Maker {
    fn make(&self, mode: Mode) -> Result<Arc<ProducerInstance>, ClientError> {
        let (reports, clock) = (Arc::clone(&self.reports), Arc::clone(&self.reports.clock));
        let marks = Arc::new(Marks::default());
        let marked = Arc::clone(&marks);
        let contact = self.contact.clone();
        let take_in = move |report: DeliveryReport| {
            match report.outcome {
                DeliveryOutcome::Acknowledged(_) => {
                    marked.acknowledged.fetch_add(1, Ordering::Relaxed);
                }
                DeliveryOutcome::Failed(failed)
                    if failed.failure == Failure::Unknown
                        && !failed.is_taken_back()
                        && contact.is_reachable() =>
                {
                    marked.is_in_doubt.store(true, Ordering::Relaxed);
                }
                DeliveryOutcome::Failed(_) => {}
            }
            reports.take_in(report, marked.is_retired.load(Ordering::Relaxed));
        };
        let hooks = Hooks::new(take_in, move || clock.now().unwrap_or_default())
            .with_spans(self.traces.clone().map(Publications::new));
        let properties = self.settings.properties.version();
        let inner = kafka::Producer::new(
            &self.settings,
            mode,
            self.contact.clone(),
            self.metrics.clone(),
            hooks,
        )?;
        let pulse = Mutex::new(AckProgress { acknowledged: 0, since: clock::monotonic() });
        Ok(Arc::new(ProducerInstance { inner, marks, pulse, properties }))
    }
}

impl RenewedProducer {
    /// Makes the first instance.
    ///
    /// # Errors
    /// When the settings for Kafka are wrong, or no producer can be made now.
    pub(super) fn new(maker: &Arc<Maker>, mode: Mode) -> Result<Self, ClientError> {
        let current = RwLock::new(maker.make(mode)?);
        Ok(Self {
            maker: Arc::clone(maker),
            mode,
            current,
            renewals: Mutex::default(),
            retired: Mutex::default(),
        })
    }

    pub(super) fn current(&self) -> Arc<ProducerInstance> {
        Arc::clone(&self.current.read())
    }

    /// Replaces an idle producer with other properties, such as a password that is not valid any
    /// more. Two producers with records could change the order of the records, so a busy producer
    /// lives on, and is replaced once idle or without connections.
    ///
    /// # Errors
    /// When no new producer can be made.
    pub(super) fn renew_idle(&self) -> Result<(), ClientError> {
        let version = self.maker.settings.properties.version();
        let is_due =
            |old: &ProducerInstance| old.properties != version && old.inner.in_flight() == 0;
        if !is_due(&self.current.read()) {
            return Ok(());
        }
        let new = self.maker.make(self.mode)?;
        let mut current = self.current.write();
        // A sender has a handle of its own while it sends.
        let is_idle = Arc::strong_count(&current) == 1 && is_due(&current);
        let other = if is_idle { std::mem::replace(&mut *current, new) } else { new };
        drop(current);
        self.retire(other, Retire::None);
        if is_idle {
            self.maker.metrics.producer_replaced();
            tracing::info!(producer = self.name(), "replaced a producer: its properties changed");
        }
        Ok(())
    }

    /// Makes a new producer when the current one has failed for good, or has lost track of a
    /// partition, or may have done so.
    ///
    /// # Errors
    /// When no new producer can be made.
    pub(super) fn mend(&self) -> Result<(), ClientError> {
        let producer = self.current();
        let Some((reason, why, retire)) = self.replacement_reason(&producer) else {
            return Ok(());
        };
        let mut renewals = self.renewals.lock();
        let (has_worked, now) = (producer.acknowledged() > 0, clock::monotonic());
        if renewals.is_due(reason, has_worked, now) && self.replace(&producer, retire)? {
            renewals.made(reason, has_worked, now);
            tracing::warn!(producer = self.name(), reason = why, "replaced a failed producer");
        }
        Ok(())
    }

    /// Returns why the producer must be replaced, and how to treat its records.
    fn replacement_reason(
        &self,
        producer: &ProducerInstance,
    ) -> Option<(ReplacementReason, String, Retire)> {
        if let Some(reason) = producer.inner.fatal() {
            return Some((ReplacementReason::Failed, reason, Retire::All));
        }
        // The producer should have been replaced at once, but no successor could be made.
        if producer.marks.is_retired.load(Ordering::Relaxed) {
            return Some((
                ReplacementReason::Failed,
                "its records were taken back".to_owned(),
                Retire::All,
            ));
        }
        if !self.maker.contact.is_reachable() {
            return None;
        }
        // Records on their way may still be acknowledged.
        if producer.inner.is_stuck() {
            return Some((
                ReplacementReason::Failed,
                "the producer has lost track of a partition's leader".to_owned(),
                Retire::Queue,
            ));
        }
        let is_in_doubt = producer.marks.is_in_doubt.load(Ordering::Relaxed);
        // The producer may be right. The records wait to be sent again in a way that the broker
        // recognises, and taking the records back would send them twice.
        is_in_doubt.then(|| {
            (
                ReplacementReason::InDoubt,
                "a record got no answer before its deadline, although Kafka is available and not \
                 slow"
                    .to_owned(),
                Retire::None,
            )
        })
    }

    /// Makes a new producer when the current one has no connection and gets no answer, although
    /// Kafka is there. When a starting broker lists no brokers, librdkafka forgets all of them and
    /// never connects again (its issue 5301). A producer with a connection is left alone, however
    /// long it waits for an answer. A throttled or slow broker may have its records, and only this
    /// producer can wait for the answer.
    ///
    /// # Errors
    /// When no new producer can be made.
    pub(super) async fn check(&self) -> Result<(), ClientError> {
        let (producer, contact) = (self.current(), &self.maker.contact);
        let is_unanswered = producer.is_suspect(contact)
            && !producer.inner.is_answered(ANSWER_DEADLINE).await
            && contact.is_reachable();
        // The producer may have connected meanwhile.
        let is_unanswered = is_unanswered && producer.inner.has_no_way();
        if is_unanswered && self.replace(&producer, Retire::All)? {
            tracing::warn!(
                producer = self.name(),
                "replaced a producer without a connection to any broker, although Kafka is \
                 available"
            );
        }
        Ok(())
    }

    /// Takes back the records that wait to be sent, or to be sent again, because some of them have
    /// waited for the publish deadline while Kafka was not slow. Younger records are handed over
    /// again. A request that is under way is left to be answered. The producer is marked as
    /// in doubt, because it may be wrong about a partition.
    pub(super) fn take_back_overdue(&self) {
        self.current().marks.is_in_doubt.store(true, Ordering::Relaxed);
        for producer in self.all() {
            producer.inner.purge_queue();
        }
    }

    /// Returns the slowest pace of the instances, and for how long brokers delay their requests.
    pub(super) fn pace(&self) -> (KafkaPace, Option<Duration>) {
        let producers = self.all();
        let throttle = producers.iter().filter_map(|producer| producer.inner.throttle()).max();
        let pace = match throttle {
            Some(_) => KafkaPace::Throttled,
            None if producers.iter().any(|producer| producer.inner.is_stalled()) => {
                KafkaPace::Stalled
            }
            None => KafkaPace::Steady,
        };
        (pace, throttle)
    }

    /// Returns the current producer, and those that were replaced and still have reports to come.
    fn all(&self) -> Vec<Arc<ProducerInstance>> {
        let mut all = vec![self.current()];
        all.extend(self.retired.lock().iter().cloned());
        all
    }

    /// Takes back all records of the producer. Each record gets a delivery report, and is handed
    /// over again if its batch is still this node's.
    ///
    /// # Errors
    /// When no new producer can be made.
    pub(super) fn purge(&self) -> Result<(), ClientError> {
        // No further record may leave, even if no successor can be made. Replaced producers may
        // have records for a partition without a leader.
        self.current().give_up(Retire::All);
        self.retired.lock().iter().for_each(|retired| retired.inner.purge());
        while !self.replace(&self.current(), Retire::All)? {}
        Ok(())
    }

    /// Replaces `old` by a new producer. Returns false when another one has replaced it already.
    fn replace(&self, old: &Arc<ProducerInstance>, retire: Retire) -> Result<bool, ClientError> {
        let new = self.maker.make(self.mode)?;
        let mut current = self.current.write();
        let is_current = Arc::ptr_eq(&current, old);
        let replaced = if is_current { std::mem::replace(&mut *current, new) } else { new };
        drop(current);
        if is_current {
            self.maker.metrics.producer_replaced();
        }
        self.retire(replaced, retire);
        Ok(is_current)
    }

    fn retire(&self, producer: Arc<ProducerInstance>, retire: Retire) {
        producer.give_up(retire);
        self.retired.lock().push(producer);
    }

    /// Closes the replaced producers that have no reports left. The caller must do so regularly.
    pub(super) async fn tidy(&self) {
        let done: Vec<Arc<ProducerInstance>> = {
            let mut retired = self.retired.lock();
            retired
                .extract_if(.., |producer| {
                    Arc::strong_count(producer) == 1 && producer.inner.in_flight() == 0
                })
                .collect()
        };
        for producer in done {
            if let Some(producer) = Arc::into_inner(producer) {
                producer.inner.close().await;
            }
        }
    }

    /// Returns true when the delivery reports of a producer have stopped: its report thread has
    /// panicked, and its batches would never be complete.
    pub(super) fn is_deaf(&self) -> bool {
        let is_deaf = |producer: &Arc<ProducerInstance>| producer.inner.is_deaf();
        is_deaf(&self.current()) || self.retired.lock().iter().any(is_deaf)
    }

    const fn name(&self) -> &'static str {
        match self.mode {
            Mode::Together => "together",
            Mode::Alone => "alone",
        }
    }
}

impl ProducerInstance {
    /// Retires the producer. Records that fail from now on go to the successor.
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

    /// Returns true when, for [`PULSE_MAX`], records have waited without an acknowledgement and
    /// there is no connection. It does so at most once in that time.
    fn is_suspect(&self, contact: &KafkaContact) -> bool {
        let (acknowledged, now) = (self.acknowledged(), clock::monotonic());
        let mut pulse = self.pulse.lock();
        let has_nothing_to_say =
            self.inner.in_flight() == 0 || !contact.is_reachable() || !self.inner.has_no_way();
        let is_alive = acknowledged != pulse.acknowledged || has_nothing_to_say;
        let is_suspect = !is_alive && now.since(pulse.since) >= PULSE_MAX;
        if is_alive || is_suspect {
            *pulse = AckProgress { acknowledged, since: now };
        }
        is_suspect
    }
}
