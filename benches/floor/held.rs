//! The floor's batches in flight: claimed and not yet settled.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};

use parking_lot::Mutex;

use punctual::domain::{Batch, Outcome};
use punctual::kafka::{DeliveryOutcome, DeliveryReport, Producer};
use punctual::postgres::tasks::settle::Settlement;

/// A correlation id consists of the slot of the batch and the task's place in the batch. A claim
/// takes at most 4,000 tasks.
const PLACE_BITS: usize = 13;
pub const SLOTS: usize = 1 << 14;

#[derive(Debug)]
pub struct Held {
    pub batch: Batch,
    slot: OnceLock<usize>,
    outcomes: Mutex<Vec<Option<Outcome>>>,
    left: AtomicUsize,
}

impl Held {
    pub fn new(batch: Batch) -> Self {
        let count = batch.len();
        Self {
            batch,
            slot: OnceLock::new(),
            outcomes: Mutex::new(vec![None; count]),
            left: AtomicUsize::new(count),
        }
    }

    /// Passes some of the batch's tasks to the producer.
    pub fn send(&self, places: impl Iterator<Item = usize>, producer: &Producer) {
        let slot = *self.slot.get().expect("a batch has its slot before it is sent");
        let now = punctual::clock::wall();
        for place in places {
            let topic = self.batch.topics()[usize::from(self.batch.topic_index(place))].as_str();
            producer
                .send((slot << PLACE_BITS) | place, topic, &self.batch.task(place), now)
                .expect("the producer has room");
        }
    }

    pub fn settlement(&self) -> Settlement {
        let outcomes = std::mem::take(&mut *self.outcomes.lock());
        let outcomes: Vec<Outcome> =
            outcomes.into_iter().map(|outcome| outcome.expect("all reports came")).collect();
        Settlement::new(&self.batch, &outcomes)
    }
}

#[derive(Debug)]
pub struct Slots {
    held: Vec<Mutex<Option<Arc<Held>>>>,
    free: Mutex<Vec<usize>>,
    pub in_flight: AtomicUsize,
}

impl Default for Slots {
    fn default() -> Self {
        let held = (0..SLOTS).map(|_| Mutex::default()).collect();
        Self { held, free: Mutex::new((0..SLOTS).collect()), in_flight: AtomicUsize::new(0) }
    }
}

impl Slots {
    pub fn put(&self, held: Held) -> Arc<Held> {
        let slot = self.free.lock().pop().expect("fewer batches than slots");
        held.slot.set(slot).expect("a batch is put once");
        self.in_flight.fetch_add(held.batch.len(), Ordering::Relaxed);
        let held = Arc::new(held);
        *self.held[slot].lock() = Some(Arc::clone(&held));
        held
    }

    /// Records a delivery report. Returns the batch when the report was its last one.
    pub fn take_in(&self, report: DeliveryReport) -> Option<Arc<Held>> {
        let (slot, place) =
            (report.correlation_id >> PLACE_BITS, report.correlation_id & ((1 << PLACE_BITS) - 1));
        let DeliveryOutcome::Acknowledged(receipt) = report.outcome else {
            unreachable!("not acknowledged: {:?}", report.outcome)
        };
        let mut entry = self.held[slot].lock();
        let held = entry.as_ref().expect("a report comes once");
        held.outcomes.lock()[place] = Some(Outcome::Published(receipt));
        self.in_flight.fetch_sub(1, Ordering::Relaxed);
        if held.left.fetch_sub(1, Ordering::AcqRel) > 1 {
            return None;
        }
        let whole = entry.take();
        drop(entry);
        self.free.lock().push(slot);
        whole
    }
}
