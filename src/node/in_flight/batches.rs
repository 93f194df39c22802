//! Keeps the batches of the node between claim and settle: the progress of each, and their total
//! size.
//!
//! [`crate::engine::batch_registry`] decides the state of each batch in the registry, and the
//! consequences when Postgres says otherwise.

mod batch;
#[cfg(test)]
mod tests;

use std::collections::HashSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use az::SaturatingAs as _;
use parking_lot::{Mutex, MutexGuard};
use slab::Slab;

use self::batch::Charge;
pub use self::batch::{InFlightBatch, Noted, Past};
use crate::domain::{Batch, BatchId, Monotonic, Timestamp, TopicName};
use crate::engine::batch_registry::{BatchRegistry, Comparison, Effect, is_lost};
use crate::engine::topics::{Action, TopicBreakers};
use crate::postgres::tasks::settle::Settlement;

/// The in-flight limits. A claim begun below a limit may exceed the limit by its own size (4000
/// tasks, 16 MiB).
#[derive(Clone, Copy, Debug)]
pub struct InFlightLimits {
    pub tasks_max: usize,
    pub bytes_max: usize,
    pub batches_max: usize,
}

/// The amount in flight.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Amount {
    /// Tasks without an outcome. Young batches, and those waiting for their settle, count all their
    /// tasks.
    pub tasks: usize,
    pub bytes: usize,
    pub batches: usize,
    /// Settled batches, and remembered until the settle is durable.
    pub remembered: usize,
}

#[derive(Debug, Default)]
struct InFlightState {
    amount: Amount,
    slots: Slab<Arc<InFlightBatch>>,
    registry: BatchRegistry<Arc<Settlement>>,
}

/// All batches in flight, with their registry and limits.
#[derive(Debug)]
pub struct InFlightBatches {
    limits: InFlightLimits,
    state: Mutex<InFlightState>,
    topics: Mutex<TopicBreakers>,
    /// The number of topics that are given up, as last told; mostly zero. Each record and each
    /// submit reads it, hence without a lock.
    gone_count: AtomicUsize,
}

impl InFlightBatches {
    pub fn new(limits: InFlightLimits, topics: TopicBreakers) -> Self {
        Self {
            limits,
            state: Mutex::default(),
            topics: Mutex::new(topics),
            gone_count: AtomicUsize::new(0),
        }
    }

    /// Enters a batch that a statement is about to make or fetch. Returns false when the registry
    /// knows it already.
    pub fn ask_for(&self, batch: BatchId) -> bool {
        self.lock().registry.ask_for(batch)
    }

    /// Records that the statement brought no batch, or no answer.
    pub fn forget(&self, batch: BatchId) {
        self.lock().registry.forget(batch);
    }

    /// Adds a batch. Returns `None` when the node was fenced since it asked for the batch. The
    /// check of the own batches finds the batch, if it is still the node's.
    ///
    /// `past` says whether another owner may have published some of it.
    pub fn add(&self, batch: Batch, past: Past, now: Monotonic) -> Option<Arc<InFlightBatch>> {
        let id = batch.id;
        let Some(held) = self.enter(batch, past, now) else {
            tracing::warn!(
                batch = %id,
                "the claim was answered after this node was fenced; the batch is used if this node \
                 still owns it"
            );
            return None;
        };
        let charges = held.charges();
        let mut topics = self.topics();
        for (topic, charge) in held.batch.topics().iter().zip(charges) {
            topics.add_in_flight(topic, charge.tasks, charge.bytes, now);
        }
        for (dead_topic, topic) in held.batch.verdict_topics() {
            topics.add_source(dead_topic, topic);
        }
        drop(topics);
        Some(held)
    }

    /// Both steps happen under one lock. A fence before the lock declines the batch, and a fence
    /// after the lock finds the batch among those in flight.
    fn enter(&self, batch: Batch, past: Past, now: Monotonic) -> Option<Arc<InFlightBatch>> {
        let mut state = self.lock();
        if state.registry.decline(batch.id) {
            return None;
        }
        state.registry.arrived(batch.id);
        state.amount.tasks += batch.len();
        state.amount.bytes += batch.bytes();
        state.amount.batches += 1;
        let entry = state.slots.vacant_entry();
        let slot = entry.key().saturating_as::<u32>();
        let held = Arc::new(InFlightBatch::new(batch, slot, past, now));
        entry.insert(Arc::clone(&held));
        Some(held)
    }

    /// Records that the node is about to ask for its own batches, unknown until then.
    pub fn mark_in_doubt(&self) {
        self.lock().registry.mark_in_doubt();
    }

    pub fn in_slot(&self, slot: u32) -> Option<Arc<InFlightBatch>> {
        self.lock().slots.get(slot.saturating_as()).cloned()
    }

    /// Records the answer to a settle of the batch. A settlement that may have taken effect is
    /// remembered until it is durable.
    pub fn settled(
        &self,
        held: &InFlightBatch,
        settlement: Arc<Settlement>,
        effect: Effect,
        now: Monotonic,
    ) {
        self.release(held, |registry| registry.settled(held.batch.id, settlement, effect, now));
    }

    /// Records that the node has adopted a batch. Its memory of the batch from before is void.
    pub fn adopted(&self, batch: BatchId) {
        self.lock().registry.adopted(batch);
    }

    /// Removes a batch that is no longer the node's.
    pub fn let_go(&self, held: &InFlightBatch) {
        self.release(held, |registry| registry.forget(held.batch.id));
    }

    /// Forgets durable settles: those answered before `sent_at`, when an answered heartbeat was
    /// sent. The `undone` ones are kept.
    pub fn durable_until(&self, sent_at: Monotonic, undone: &HashSet<BatchId>) {
        self.lock().registry.durable_until(sent_at, undone);
    }

    /// Records that a settle was repeated.
    pub fn settled_again(&self, batch: BatchId, now: Monotonic) {
        self.lock().registry.settled_again(batch, now);
    }

    /// Compares the registry with Postgres: with the unsettled batches of the node, as of a
    /// question asked at `asked_at`.
    pub fn compare(
        &self,
        own_unsettled: &[BatchId],
        asked_at: Monotonic,
    ) -> Comparison<Arc<Settlement>> {
        self.lock().registry.compare(own_unsettled, asked_at)
    }

    /// Gives up the batches in flight outside of `own`, which was asked for at `asked_at`. Others
    /// have adopted these batches, or they were settled a moment ago. Outcomes still to come are
    /// given up, and the known ones are void: such a batch may come back after another node has
    /// published it. Returns the batches given up.
    pub fn give_up_lost(&self, own: &[BatchId], asked_at: Monotonic) -> Vec<BatchId> {
        let own: HashSet<BatchId> = own.iter().copied().collect();
        let lost = self.all_in_flight().into_iter().filter(|held| {
            is_lost(held.batch.id, held.taken_at, &own, asked_at) && held.give_up(true)
        });
        lost.map(|held| held.batch.id).collect()
    }

    /// Returns the oldest batch in the registry.
    pub fn oldest_known(&self) -> Option<BatchId> {
        self.lock().registry.oldest()
    }

    /// Gives up all incomplete batches in flight, and returns them.
    pub fn give_up_all(&self) -> Vec<BatchId> {
        self.all_in_flight()
            .into_iter()
            .filter(|held| held.give_up(false))
            .map(|held| held.batch.id)
            .collect()
    }

    fn all_in_flight(&self) -> Vec<Arc<InFlightBatch>> {
        self.lock().slots.iter().map(|(_slot, held)| Arc::clone(held)).collect()
    }

    /// Returns true when no batch is in flight, and none was asked for.
    pub fn is_idle(&self) -> bool {
        let state = self.lock();
        state.amount == Amount::default() && !state.registry.has_asked()
    }

    /// Returns the topics with a record that is due before `due_before` and has been in flight for
    /// longer than `age` without an outcome.
    pub fn silent_topics(
        &self,
        due_before: Timestamp,
        now: Monotonic,
        age: Duration,
    ) -> HashSet<TopicName> {
        let mut silent = HashSet::new();
        for held in self.in_flight_for(now, age) {
            silent.extend(held.silent_topics(due_before));
        }
        silent
    }

    pub fn amount(&self) -> Amount {
        let state = self.lock();
        Amount { remembered: state.registry.settled_count(), ..state.amount }
    }

    pub fn has_room(&self) -> bool {
        let (amount, limits) = (self.amount(), self.limits);
        amount.tasks < limits.tasks_max
            && amount.bytes < limits.bytes_max
            && amount.batches < limits.batches_max
            && amount.remembered < limits.batches_max
    }

    /// Returns true when there is room for claims on insert. Such claims make small batches,
    /// hundreds a second. When a partition without a leader keeps a record of each until the
    /// publish deadline, they may take a quarter of the room for batches. The claim loops gather
    /// the rest in far fewer batches.
    pub fn has_room_on_insert(&self) -> bool {
        self.has_room() && self.amount().batches < self.limits.batches_max / 4
    }

    /// Returns true when there is room for tasks behind the watermark. They may take half of the
    /// room, and three quarters of the room for batches, because tasks on time come first.
    /// In-flight tasks of topics that claims skip do not count: otherwise two slow or unavailable
    /// topics would keep the others from their tasks behind the watermark.
    pub fn has_room_behind_the_watermark(&self) -> bool {
        let (tasks, bytes) = self.topics().in_flight_of_left_out();
        let (amount, limits) = (self.amount(), self.limits);
        let (tasks, bytes) =
            (amount.tasks.saturating_sub(tasks), amount.bytes.saturating_sub(bytes));
        let has_room = tasks < limits.tasks_max / 2
            && bytes < limits.bytes_max / 2
            && amount.batches < limits.batches_max / 4 * 3;
        has_room && self.has_room()
    }

    /// Returns the state of the topics. The caller must hold the lock for a moment only.
    pub fn topics(&self) -> MutexGuard<'_, TopicBreakers> {
        self.topics.lock()
    }

    /// Sets the number of topics that are given up. The caller must do so before looking for their
    /// tasks.
    pub fn set_gone_count(&self, count: usize) {
        self.gone_count.store(count, Ordering::Relaxed);
    }

    /// Returns true when the topic is given up: its tasks become dead letters.
    pub fn is_topic_gone(&self, topic: &TopicName) -> bool {
        self.gone_count.load(Ordering::Relaxed) > 0 && self.topics().is_gone(topic)
    }

    /// Records that a record was acknowledged after this wait.
    pub fn acknowledged(
        &self,
        topic: &TopicName,
        waited: Duration,
        now: Monotonic,
    ) -> Option<Action> {
        let mut topics = self.topics();
        topics.waited(waited);
        topics.acknowledged(topic, now)
    }

    /// Eases the incomplete batches in flight for longer than `age`: their resolved tasks no longer
    /// count against the limits. A record without an answer keeps its batch unsettled until the
    /// publish deadline, and the acknowledged records beside it must not take the room of others
    /// until then.
    pub fn ease(&self, now: Monotonic, age: Duration) {
        for held in self.in_flight_for(now, age) {
            let Some((given_back, lighter)) = held.ease() else { continue };
            if let Some(batch) = lighter {
                self.replace(&held, batch);
            }
            self.give_back(&held, &given_back);
        }
    }

    /// Puts a lighter batch in the place of the original, unless that was let go meanwhile.
    fn replace(&self, held: &InFlightBatch, batch: Batch) {
        let mut state = self.lock();
        let InFlightState { amount, slots, .. } = &mut *state;
        let Some(in_slot) =
            slots.get_mut(held.slot.saturating_as()).filter(|in_slot| in_slot.batch.id == batch.id)
        else {
            return;
        };
        amount.bytes =
            amount.bytes.saturating_sub(in_slot.batch.bytes()).saturating_add(batch.bytes());
        *in_slot = Arc::new(held.with_contents(batch));
    }

    fn give_back(&self, held: &InFlightBatch, charges: &[Charge]) {
        let tasks: usize = charges.iter().map(|charge| charge.tasks).sum();
        {
            let mut state = self.lock();
            state.amount.tasks = state.amount.tasks.saturating_sub(tasks);
        }
        let mut topics = self.topics();
        for (topic, charge) in held.batch.topics().iter().zip(charges) {
            topics.released(topic, charge.tasks, charge.bytes);
        }
    }

    fn release(
        &self,
        held: &InFlightBatch,
        note: impl FnOnce(&mut BatchRegistry<Arc<Settlement>>),
    ) {
        {
            let mut state = self.lock();
            note(&mut state.registry);
            // The batch in the slot may be a lighter copy by now, or another batch after a first
            // release.
            let slot = held.slot.saturating_as();
            if state.slots.get(slot).is_none_or(|in_slot| in_slot.batch.id != held.batch.id) {
                return;
            }
            let in_slot = state.slots.remove(slot);
            state.amount.bytes = state.amount.bytes.saturating_sub(in_slot.batch.bytes());
            state.amount.batches -= 1;
        }
        self.give_back(held, &held.take_charges());
        let mut topics = self.topics();
        for (dead_topic, topic) in held.batch.verdict_topics() {
            topics.remove_source(dead_topic, topic);
        }
    }

    fn in_flight_for(&self, now: Monotonic, age: Duration) -> Vec<Arc<InFlightBatch>> {
        let state = self.lock();
        let held = state.slots.iter().map(|(_slot, held)| held);
        held.filter(|held| held.age(now) >= age).cloned().collect()
    }

    fn lock(&self) -> MutexGuard<'_, InFlightState> {
        self.state.lock()
    }
}
