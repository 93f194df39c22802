//! Publishes: hands records to Kafka and learns the delivery outcomes.
//!
//! A record goes to a producer with a *correlation id*: the slot of the batch and the place in the
//! batch. The delivery report carries the same correlation id, and arrives on the producer's own
//! thread. This thread is never blocked: see [`Reports`].

mod renewed_producer;
mod reports;

use std::collections::HashSet;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use self::renewed_producer::{Maker, ProducerInstance, RenewedProducer};
use self::reports::correlation_id;
use crate::clock;
use crate::domain::{Timestamp, TopicName};
use crate::engine::topics::KafkaPace;
use crate::failpoint::{Failpoint, reach};
use crate::kafka::{ClientError, KafkaContact, KafkaMetrics, KafkaSettings, Mode, SendError};
use crate::node::fence::Fence;
use crate::node::in_flight::batches::InFlightBatch;
use crate::telemetry::traces::Traces;

pub use self::reports::Reports;

/// The result of handing over a record.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Handed {
    /// The producer has the record, or its outcome is known already.
    Over,
    /// The producer's queue is full. Try again soon.
    Full,
}

/// Hands records to Kafka.
pub struct Publisher {
    pub reports: Arc<Reports>,
    fence: Arc<Fence>,
    maker: Arc<Maker>,
    /// One or more producers. All records of a topic take the same one: see [`Self::producer_of`].
    together: Vec<RenewedProducer>,
    /// The producer for records of refused Kafka batches, made at the first refusal.
    alone: OnceLock<RenewedProducer>,
}

impl std::fmt::Debug for Publisher {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Publisher").field("reports", &self.reports).finish_non_exhaustive()
    }
}

impl Publisher {
    /// Makes a publisher. Its producers connect in the background.
    ///
    /// # Errors
    /// When the settings for Kafka are wrong.
    pub fn new(
        reports: Arc<Reports>,
        settings: KafkaSettings,
        (metrics, traces): (KafkaMetrics, Option<Traces>),
        contact: KafkaContact,
        fence: Arc<Fence>,
    ) -> Result<Self, ClientError> {
        let producers = settings.producers.get();
        let maker =
            Arc::new(Maker { reports: Arc::clone(&reports), settings, metrics, contact, traces });
        let make = |_number| RenewedProducer::new(&maker, Mode::Together);
        let together = (0..producers).map(make).collect::<Result<Vec<_>, ClientError>>()?;
        Ok(Self { reports, fence, maker, together, alone: OnceLock::new() })
    }

    /// Returns false while this node does not know whether it still owns the batches.
    pub fn may_publish(&self) -> bool {
        self.fence.may_publish()
    }

    /// Hands the record of a task to the producer. `now`, by the cluster's clock, becomes its time.
    pub fn publish(&self, held: &Arc<InFlightBatch>, index: u32, now: Timestamp) -> Handed {
        let topic = held.topic_of(correlation_id::place(index));
        if self.is_resolved(held, index, now)
            || self.reports.defer_if_dead_topic_is_open(held, index)
        {
            return Handed::Over;
        }
        let producer = self.producer_of(topic).current();
        match self.send(&producer, held, index, now) {
            // A full producer ends the turn of all topics. This one has failed for good, and its
            // successor may be long in coming.
            Handed::Full if producer.inner.fatal().is_some() => {
                self.reports.later.put((Arc::clone(held), index));
                Handed::Over
            }
            handed => handed,
        }
    }

    /// Hands over again the records that failed through no fault of their topic. Those whose
    /// producer has failed for good wait for its successor.
    pub fn try_again(&self) {
        let has_failed = |one: &RenewedProducer| one.current().inner.fatal().is_some();
        let failed: Vec<bool> = self.together.iter().map(has_failed).collect();
        for (held, index) in self.reports.later.take() {
            let topic = held.topic_of(correlation_id::place(index));
            let waits = failed[topic.spread() % failed.len()];
            let inbox = if waits { &self.reports.later } else { &self.reports.again };
            inbox.put((held, index));
        }
    }

    /// Returns the producer for the records of a topic: always the same one, so that the records
    /// of a key stay in order.
    ///
    /// Several producers serve many topics better: an idempotent producer of librdkafka has at most
    /// five requests in flight for each broker, and each has the records of one partition alone.
    fn producer_of(&self, topic: &TopicName) -> &RenewedProducer {
        match self.together.as_slice() {
            [producer] => producer,
            producers => &producers[topic.spread() % producers.len()],
        }
    }

    /// Resolves a task whose record must not be handed over. Returns false for all others.
    fn is_resolved(&self, held: &Arc<InFlightBatch>, index: u32, now: Timestamp) -> bool {
        self.reports.resolve_if_moot(held, index)
            || self.reports.bury_if_exhausted(held, index)
            || self.reports.end_if_expired(held, index, now)
            || self.reports.resolve_if_unopened(held, index)
    }

    fn send(
        &self,
        producer: &ProducerInstance,
        held: &Arc<InFlightBatch>,
        index: u32,
        now: Timestamp,
    ) -> Handed {
        let place = correlation_id::place(index);
        let task = held.batch.task(place);
        match producer.inner.send(
            correlation_id::of(held.slot, index),
            held.topic_of(place).as_str(),
            &task,
            now,
        ) {
            Ok(()) => {
                reach(Failpoint::RecordHandedOver);
                Handed::Over
            }
            Err(SendError::Full) => Handed::Full,
            // The producer takes no more records and is about to be replaced. Its successor gets
            // the record.
            Err(SendError::Failed(_)) if producer.inner.fatal().is_some() => Handed::Full,
            Err(SendError::Failed(failed)) => {
                self.reports.failed(Arc::clone(held), index, failed, false);
                Handed::Over
            }
        }
    }

    /// Hands over alone the records whose Kafka batch was refused. Records that do not fit in, or
    /// are no longer due because the clock was set back, follow next time.
    ///
    /// # Errors
    /// When the producer for them cannot be made.
    pub fn publish_alone(&self) -> Result<(), ClientError> {
        let Some(now) = self.reports.clock.now() else { return Ok(()) };
        if !self.may_publish() || self.reports.alone.is_empty() {
            return Ok(());
        }
        let producer = self.alone()?.current();
        for (held, index) in self.reports.alone.take() {
            let is_early = held.batch.due_at(correlation_id::place(index)) > now
                && !self.reports.resolve_if_moot(&held, index);
            let stays = is_early
                || !self.is_resolved(&held, index, now)
                    && self.send(&producer, &held, index, now) == Handed::Full;
            if stays {
                self.reports.alone.put((held, index));
            }
        }
        Ok(())
    }

    fn alone(&self) -> Result<&RenewedProducer, ClientError> {
        if let Some(producer) = self.alone.get() {
            return Ok(producer);
        }
        let made = RenewedProducer::new(&self.maker, Mode::Alone)?;
        Ok(self.alone.get_or_init(|| made))
    }

    fn producers(&self) -> impl Iterator<Item = &RenewedProducer> {
        self.together.iter().chain(self.alone.get())
    }

    /// Replaces producers that have failed for good, or that get no answer although Kafka is there.
    ///
    /// # Errors
    /// When no new producer can be made. The others have had their turns all the same.
    pub async fn mend(&self) -> Result<(), ClientError> {
        let mut outcome = Ok(());
        for producer in self.producers() {
            outcome = outcome.and(producer.renew_idle()).and(producer.mend());
            outcome = outcome.and(producer.check().await);
        }
        outcome
    }

    /// Takes back the records that wait to be sent at the producers of `topics`, because some of
    /// these topics have waited for the publish deadline, and at the producer for single records.
    /// Each record gets a delivery report. A record that old is deferred, a younger one is handed
    /// over again.
    pub fn take_back_overdue(&self, topics: &HashSet<TopicName>) {
        let serves = |producer: &&RenewedProducer| {
            topics.iter().any(|topic| std::ptr::eq(self.producer_of(topic), *producer))
        };
        for producer in self.together.iter().filter(serves).chain(self.alone.get()) {
            producer.take_back_overdue();
        }
    }

    /// Returns the pace of Kafka, and for how long brokers delay records if this node is over a
    /// quota.
    pub fn pace(&self) -> (KafkaPace, Option<Duration>) {
        let paces = self.producers().map(RenewedProducer::pace);
        paces.max_by_key(|(pace, throttle)| (*pace, *throttle)).unwrap_or_default()
    }

    /// Takes back all records of the producers. Each record gets a delivery report, and is handed
    /// over again if its batch is still this node's.
    ///
    /// # Errors
    /// When no new producer can be made.
    pub fn purge(&self) -> Result<(), ClientError> {
        let mut outcome = Ok(());
        for producer in self.producers() {
            outcome = outcome.and(producer.purge());
        }
        outcome
    }

    /// Closes the replaced producers that have no reports left. The caller must do so regularly.
    pub async fn tidy(&self) {
        for producer in self.producers() {
            producer.tidy().await;
        }
    }

    /// Returns true when the delivery reports of a producer have stopped.
    pub fn is_deaf(&self) -> bool {
        self.producers().any(RenewedProducer::is_deaf)
    }

    /// Fetches the metadata of `topics`, so that first records do not wait for it. Returns
    /// the number of topics found within the deadline.
    pub async fn preload(&self, topics: &[TopicName], deadline: Duration) -> usize {
        let started_at = clock::monotonic();
        let mut loaded_count = 0;
        for producer in &self.together {
            let is_own = |topic: &&TopicName| std::ptr::eq(self.producer_of(topic), producer);
            let own = topics.iter().filter(is_own).cloned().collect();
            let left = deadline.saturating_sub(clock::monotonic().since(started_at));
            loaded_count += producer.current().inner.preload(own, left).await;
        }
        loaded_count
    }
}
