//! Publish: hand records to Kafka and learn their outcome.
//!
//! A record goes to a producer with a *correlation_id*, which names the slot of its batch and its
//! place in it. Its report comes back with the correlation_id, on the producer's own thread, which
//! is never blocked: see [`Reports`].

mod line;
mod reports;

use std::sync::{Arc, OnceLock};
use std::time::Duration;

use self::line::{Line, Maker, Producer};
use self::reports::correlation_id;
use crate::domain::{Timestamp, TopicName};
use crate::engine::topics::Pace;
use crate::failpoint::{Failpoint, reach};
use crate::kafka::{self, Contact, Mode, SendError};
use crate::node::fence::Fence;
use crate::node::in_flight::batches::InFlightBatch;

pub use self::reports::Reports;

/// What became of handing a record over.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Handed {
    /// It is with the producer, or its outcome is known already.
    Over,
    /// The producer's queue is full: try again soon.
    Full,
}

/// The way out for records.
pub struct Publisher {
    pub reports: Arc<Reports>,
    fence: Arc<Fence>,
    maker: Arc<Maker>,
    together: Line,
    /// For records whose batch was refused: made when that happens for the first time.
    alone: OnceLock<Line>,
}

impl std::fmt::Debug for Publisher {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Publisher").field("reports", &self.reports).finish_non_exhaustive()
    }
}

impl Publisher {
    /// # Errors
    /// When the settings for Kafka are wrong.
    pub fn new(
        reports: Arc<Reports>,
        settings: kafka::Settings,
        metrics: kafka::Metrics,
        contact: Contact,
        fence: Arc<Fence>,
    ) -> Result<Self, kafka::Error> {
        let maker = Arc::new(Maker { reports: Arc::clone(&reports), settings, metrics, contact });
        let together = Line::new(&maker, Mode::Together)?;
        Ok(Self { reports, fence, maker, together, alone: OnceLock::new() })
    }

    /// False while this node does not know whether its batches are still its own.
    pub fn may_publish(&self) -> bool {
        self.fence.may_publish()
    }

    /// Hands the record of a task to the producer; `now`, by the cluster's clock, will be its time.
    pub fn publish(&self, held: &Arc<InFlightBatch>, index: u32, now: Timestamp) -> Handed {
        self.hand_over(&self.together.current(), held, index, now)
    }

    fn hand_over(&self, producer: &Producer, held: &Arc<InFlightBatch>, index: u32, now: Timestamp) -> Handed {
        if self.reports.is_moot(held, index) {
            return Handed::Over;
        }
        let place = correlation_id::place(index);
        let task = held.batch.task(place);
        match producer.inner.send(correlation_id::of(held.slot, index), held.topic_of(place).as_str(), &task, now) {
            Ok(()) => {
                reach(Failpoint::RecordHandedOver);
                Handed::Over
            }
            Err(SendError::Full) => Handed::Full,
            // It takes nothing any more and is about to be replaced: its successor gets the record.
            Err(SendError::Failed(_)) if producer.inner.fatal().is_some() => Handed::Full,
            Err(SendError::Failed(failed)) => {
                self.reports.failed(Arc::clone(held), index, failed, false);
                Handed::Over
            }
        }
    }

    /// Hands over alone the records whose batch was refused. Those that do not fit in, or are not
    /// due any more since the clock was set back, come next time.
    ///
    /// # Errors
    /// When the producer for them cannot be made.
    pub fn publish_alone(&self) -> Result<(), kafka::Error> {
        let Some(now) = self.reports.clock.now() else { return Ok(()) };
        if !self.may_publish() || self.reports.alone.is_empty() {
            return Ok(());
        }
        let producer = self.alone()?.current();
        for (held, index) in self.reports.alone.take() {
            let is_early = held.batch.due_at(correlation_id::place(index)) > now && !self.reports.is_moot(&held, index);
            if is_early || self.hand_over(&producer, &held, index, now) == Handed::Full {
                self.reports.alone.put((held, index));
            }
        }
        Ok(())
    }

    fn alone(&self) -> Result<&Line, kafka::Error> {
        if let Some(line) = self.alone.get() {
            return Ok(line);
        }
        let made = Line::new(&self.maker, Mode::Alone)?;
        Ok(self.alone.get_or_init(|| made))
    }

    fn lines(&self) -> impl Iterator<Item = &Line> {
        std::iter::once(&self.together).chain(self.alone.get())
    }

    /// Makes new producers in the place of those that have failed for good, or that nobody answers
    /// though Kafka is there.
    ///
    /// # Errors
    /// When no new producer can be made; the other one had its turn all the same.
    pub async fn mend(&self) -> Result<(), kafka::Error> {
        let mut outcome = Ok(());
        for line in self.lines() {
            outcome = outcome.and(line.mend()).and(line.check().await);
        }
        outcome
    }

    /// Takes back what waits to be sent because some of it has waited for the publish deadline:
    /// each record comes out with a report, is deferred if it is that old, and handed over again
    /// else.
    pub fn take_back_overdue(&self) {
        for line in self.lines() {
            line.take_back_overdue();
        }
    }

    /// How Kafka takes records just now; and for how long brokers hold them back, if this node is
    /// over a quota.
    pub fn pace(&self) -> (Pace, Option<Duration>) {
        let paces = self.lines().map(Line::pace);
        paces.max_by_key(|(pace, throttle)| (*pace, *throttle)).unwrap_or_default()
    }

    /// Takes back what the producers hold: each record comes out with a report and is handed over
    /// again, if its batch is still this node's.
    ///
    /// # Errors
    /// When no new producer can be made.
    pub fn purge(&self) -> Result<(), kafka::Error> {
        let mut outcome = Ok(());
        for line in self.lines() {
            outcome = outcome.and(line.purge());
        }
        outcome
    }

    /// Closes the producers that were replaced and have nothing left to report. To be called now
    /// and then.
    pub async fn tidy(&self) {
        for line in self.lines() {
            line.tidy().await;
        }
    }

    /// True when the reports of a producer do not come any more.
    pub fn is_deaf(&self) -> bool {
        self.lines().any(Line::is_deaf)
    }

    /// Fetches the metadata of `topics`, so that their first records need not wait for it.
    pub async fn preload(&self, topics: Vec<TopicName>, deadline: Duration) -> usize {
        self.together.current().inner.preload(topics, deadline).await
    }
}
