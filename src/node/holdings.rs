//! What this node holds between claim and settle: its batches, how far each has come, and how much it is.
//!
//! What of each batch stands in the books, and what follows when Postgres says otherwise, is decided in [`crate::engine::books`].

#[cfg(test)]
mod tests;

use std::collections::HashSet;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use crate::domain::{Batch, BatchId, Monotonic, Outcome, Timestamp, TopicName};
use crate::engine::books::{Books, Comparison, Effect, is_lost};
use crate::engine::topics::{Action, Topics};
use crate::postgres::settle::Settlement;

/// What may be held at most. A claim that began below a bound may pass it by its own size (4000 tasks, 16 MiB).
#[derive(Clone, Copy, Debug)]
pub struct Bounds {
    pub tasks_max: usize,
    pub bytes_max: usize,
    pub batches_max: usize,
}

/// How much is held.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Amount {
    pub tasks: usize,
    pub bytes: usize,
    pub batches: usize,
}

/// A batch in the hands of this node.
#[derive(Debug)]
pub struct Held {
    pub batch: Batch,
    /// Its place: half of the ticket with which its records go to the producer.
    pub slot: u32,
    held_at: Monotonic,
    progress: Mutex<Progress>,
    is_void: AtomicBool,
}

#[derive(Debug)]
struct Progress {
    outcomes: Vec<Option<Outcome>>,
    left: usize,
    /// Tasks of which an earlier attempt may be in the topic.
    maybe_sent: Vec<bool>,
    /// When the last acknowledgement of each topic was passed on: not more than ten times a second.
    heard_at: Vec<Option<Monotonic>>,
    is_given_up: bool,
}

/// What is known of a batch when it is taken in.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Past {
    /// It was claimed just now, by this node.
    Fresh,
    /// It was loaded: whoever had it before may have published any of it.
    MaybeSent,
}

/// What taking note of an outcome has come to.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Noted {
    MoreToCome,
    /// That was the last one: the batch is to be settled.
    Complete,
    /// The batch is no longer this node's: it is to be let go.
    GivenUp,
}

impl Held {
    fn new(batch: Batch, slot: u32, past: Past, held_at: Monotonic) -> Self {
        let progress = Progress {
            outcomes: vec![None; batch.len()],
            left: batch.len(),
            maybe_sent: vec![past == Past::MaybeSent; batch.len()],
            heard_at: vec![None; batch.topics().len()],
            is_given_up: false,
        };
        Self { batch, slot, held_at, progress: Mutex::new(progress), is_void: AtomicBool::new(false) }
    }

    pub fn topic_of(&self, index: usize) -> &TopicName {
        &self.batch.topics()[usize::from(self.batch.topic_index(index))]
    }

    /// Takes note of what became of a task; a second outcome of the same task changes nothing.
    pub fn note(&self, index: usize, outcome: Outcome) -> Noted {
        let mut progress = self.lock();
        if progress.outcomes[index].is_some() {
            return Noted::MoreToCome;
        }
        progress.outcomes[index] = Some(outcome);
        progress.left -= 1;
        match (progress.left, progress.is_given_up) {
            (0, false) => Noted::Complete,
            (0, true) => Noted::GivenUp,
            _ => Noted::MoreToCome,
        }
    }

    /// Notes that the record of a task may be in the topic; true when an earlier attempt may be, too.
    pub fn note_maybe_sent(&self, index: usize, maybe_sent: bool) -> bool {
        let mut progress = self.lock();
        progress.maybe_sent[index] |= maybe_sent;
        progress.maybe_sent[index]
    }

    /// True when the acknowledgement of a task is news for its topic's state.
    pub fn is_news(&self, index: usize, now: Monotonic) -> bool {
        let topic = usize::from(self.batch.topic_index(index));
        let mut progress = self.lock();
        let is_news = progress.heard_at[topic].is_none_or(|at| now.since(at).as_millis() >= 100);
        if is_news {
            progress.heard_at[topic] = Some(now);
        }
        is_news
    }

    /// Another node is to publish what is still to come: it is dropped here, and nothing is settled. False when nothing is to come any more.
    fn give_up(&self) -> bool {
        let mut progress = self.lock();
        let has_more = progress.left > 0 && !progress.is_given_up;
        progress.is_given_up |= has_more;
        has_more
    }

    pub fn is_given_up(&self) -> bool {
        self.lock().is_given_up
    }

    /// True when its outcomes are not to be settled: another node may have published it since.
    pub fn is_void(&self) -> bool {
        self.is_void.load(Ordering::Relaxed)
    }

    pub fn has_outcome(&self, index: usize) -> bool {
        self.lock().outcomes[index].is_some()
    }

    /// A follow-up that would be due before `now` is due at `now`: its leaf may be gone otherwise, when Postgres was away for long.
    ///
    /// # Panics
    /// Before all outcomes are known.
    pub fn settlement(&self, now: Timestamp) -> Settlement {
        let progress = self.lock();
        assert!(progress.left == 0, "a batch is settled when each of its tasks has an outcome");
        let outcomes: Vec<Outcome> = progress.outcomes.iter().flatten().cloned().collect();
        drop(progress);
        let mut settlement = Settlement::new(&self.batch, &outcomes);
        settlement.put_off_until(now);
        settlement
    }

    fn lock(&self) -> MutexGuard<'_, Progress> {
        self.progress.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[derive(Debug, Default)]
struct State {
    amount: Amount,
    slots: Vec<Option<Arc<Held>>>,
    free: Vec<u32>,
    books: Books<Arc<Settlement>>,
}

/// All that is held, with its books and bounds.
#[derive(Debug)]
pub struct Holdings {
    bounds: Bounds,
    state: Mutex<State>,
    topics: Mutex<Topics>,
}

impl Holdings {
    pub fn new(bounds: Bounds, topics: Topics) -> Self {
        Self { bounds, state: Mutex::default(), topics: Mutex::new(topics) }
    }

    /// Enters a batch that a statement is about to make or fetch; false when the books know it already.
    pub fn ask_for(&self, batch: BatchId) -> bool {
        self.lock().books.ask_for(batch)
    }

    /// The statement brought no batch, or no answer.
    pub fn forget(&self, batch: BatchId) {
        self.lock().books.forget(batch);
    }

    /// Takes a batch in; `None` when this node was in doubt since it was asked for: the check of the own batches finds it, if it is this node's still.
    ///
    /// `past` says whether another owner may have published some of it.
    pub fn hold(&self, batch: Batch, past: Past, now: Monotonic) -> Option<Arc<Held>> {
        let id = batch.id;
        let Some(held) = self.enter(batch, past, now) else {
            tracing::warn!(batch = %id, "answered after this node was in doubt; it is taken in if it is this node's still");
            return None;
        };
        self.count_topics(&held.batch, |topics, topic, tasks, bytes| topics.held(topic, tasks, bytes, now));
        Some(held)
    }

    /// At once: a doubt comes before it, and declines the batch, or after it, and finds the batch among those that are held.
    fn enter(&self, batch: Batch, past: Past, now: Monotonic) -> Option<Arc<Held>> {
        let mut state = self.lock();
        if state.books.decline(batch.id) {
            return None;
        }
        state.books.hold(batch.id);
        state.amount.tasks += batch.len();
        state.amount.bytes += batch.bytes();
        state.amount.batches += 1;
        let slot = state.free.pop().unwrap_or_else(|| {
            state.slots.push(None);
            u32::try_from(state.slots.len() - 1).unwrap_or(u32::MAX)
        });
        let held = Arc::new(Held::new(batch, slot, past, now));
        state.slots[place(slot)] = Some(Arc::clone(&held));
        Some(held)
    }

    /// This node does not know which batches are its own, and is about to ask.
    pub fn doubt(&self) {
        self.lock().books.doubt();
    }

    pub fn in_slot(&self, slot: u32) -> Option<Arc<Held>> {
        self.lock().slots.get(place(slot))?.clone()
    }

    /// A settle of the batch was answered: what may have taken effect is remembered until it is durable.
    pub fn settled(&self, held: &Held, settlement: Arc<Settlement>, effect: Effect, now: Monotonic) {
        self.release(held, |books| books.settled(held.batch.id, settlement, effect, now));
    }

    /// This node has adopted a batch: what it remembers of it from before is void.
    pub fn adopted(&self, batch: BatchId) {
        self.lock().books.adopted(batch);
    }

    /// The batch is no longer this node's.
    pub fn let_go(&self, held: &Held) {
        self.release(held, |books| books.forget(held.batch.id));
    }

    /// Settles that were answered before `sent_at`, when a heartbeat was sent that has been answered, are durable, but for those that were seen `undone`.
    pub fn durable_until(&self, sent_at: Monotonic, undone: &HashSet<BatchId>) {
        self.lock().books.durable_until(sent_at, undone);
    }

    /// A settle was done again.
    pub fn settled_again(&self, batch: BatchId, now: Monotonic) {
        self.lock().books.settled_again(batch, now);
    }

    /// Holds the batches that Postgres calls unsettled and this node's, as of a question asked at `asked_at`, against the books.
    pub fn compare(&self, own_unsettled: &[BatchId], asked_at: Monotonic) -> Comparison<Arc<Settlement>> {
        self.lock().books.compare(own_unsettled, asked_at)
    }

    /// What is held and not among `own`, which was asked for at `asked_at`, has been adopted by others, or was settled a moment ago: what is still to come of it
    /// is given up, and what is known of it is void, for it may come back to this node after another one has published it. Answers which are given up.
    pub fn give_up_lost(&self, own: &[BatchId], asked_at: Monotonic) -> Vec<BatchId> {
        let own_set: HashSet<BatchId> = own.iter().copied().collect();
        for held in self.lock().slots.iter().flatten() {
            if is_lost(held.batch.id, held.held_at, &own_set, asked_at) {
                held.is_void.store(true, Ordering::Relaxed);
            }
        }
        self.give_up_all_but(own, asked_at)
    }

    /// The oldest batch in the books.
    pub fn oldest_known(&self) -> Option<BatchId> {
        self.lock().books.oldest()
    }

    /// Gives up what is held, incomplete, and not among `own`, which was asked for at `asked_at`: what was claimed since cannot be in it. Answers which
    /// batches that were.
    pub fn give_up_all_but(&self, own: &[BatchId], asked_at: Monotonic) -> Vec<BatchId> {
        let own: HashSet<BatchId> = own.iter().copied().collect();
        let held: Vec<Arc<Held>> = self.lock().slots.iter().flatten().cloned().collect();
        let lost = held.into_iter().filter(|held| is_lost(held.batch.id, held.held_at, &own, asked_at) && held.give_up());
        lost.map(|held| held.batch.id).collect()
    }

    /// True when nothing is held, and nothing was asked for.
    pub fn is_idle(&self) -> bool {
        let state = self.lock();
        state.amount == Amount::default() && !state.books.has_asked()
    }

    /// Topics of which a record that was due before `due_before` has been held for longer than `age` without an outcome.
    pub fn silent_topics(&self, due_before: Timestamp, now: Monotonic, age: Duration) -> HashSet<TopicName> {
        let old: Vec<Arc<Held>> =
            self.lock().slots.iter().flatten().filter(|held| now.since(held.held_at) >= age).cloned().collect();
        let mut silent = HashSet::new();
        for held in old {
            let progress = held.lock();
            let without = progress
                .outcomes
                .iter()
                .enumerate()
                .filter(|(index, outcome)| outcome.is_none() && held.batch.due_at(*index) < due_before);
            let topics: HashSet<u16> = without.map(|(index, _)| held.batch.topic_index(index)).collect();
            silent.extend(topics.into_iter().map(|topic| held.batch.topics()[usize::from(topic)].clone()));
        }
        silent
    }

    pub fn amount(&self) -> Amount {
        self.lock().amount
    }

    pub fn has_room(&self) -> bool {
        let (amount, bounds) = (self.amount(), self.bounds);
        amount.tasks < bounds.tasks_max && amount.bytes < bounds.bytes_max && amount.batches < bounds.batches_max
    }

    /// Tasks that are claimed as they are inserted come in small batches, hundreds a second. When a partition without a leader keeps a record of each for the
    /// publish deadline, they may take a quarter of the room for batches; the claim loops gather what they do not take in far fewer.
    pub fn has_room_on_insert(&self) -> bool {
        self.has_room() && self.amount().batches < self.bounds.batches_max / 4
    }

    /// What is behind the front may take half of the room, of that for batches three quarters: what is on time comes first. What full topics hold does not count:
    /// two slow ones would keep all others from what is behind the front.
    pub fn has_room_behind_the_front(&self) -> bool {
        let (tasks, bytes) = self.topics().held_by_full();
        let (amount, bounds) = (self.amount(), self.bounds);
        let (tasks, bytes) = (amount.tasks.saturating_sub(tasks), amount.bytes.saturating_sub(bytes));
        let has_room =
            tasks < bounds.tasks_max / 2 && bytes < bounds.bytes_max / 2 && amount.batches < bounds.batches_max / 4 * 3;
        has_room && self.has_room()
    }

    /// The state of the topics. Held for a moment only.
    pub fn topics(&self) -> MutexGuard<'_, Topics> {
        self.topics.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub fn acknowledged(&self, topic: &TopicName, now: Monotonic) -> Option<Action> {
        self.topics().acknowledged(topic, now)
    }

    fn release(&self, held: &Held, note: impl FnOnce(&mut Books<Arc<Settlement>>)) {
        {
            let mut state = self.lock();
            note(&mut state.books);
            if state.slots[place(held.slot)].take().is_none() {
                return;
            }
            state.free.push(held.slot);
            state.amount.tasks -= held.batch.len();
            state.amount.bytes -= held.batch.bytes();
            state.amount.batches -= 1;
        }
        self.count_topics(&held.batch, |topics, topic, tasks, bytes| topics.released(topic, tasks, bytes));
    }

    fn count_topics(&self, batch: &Batch, mut count: impl FnMut(&mut Topics, &TopicName, usize, usize)) {
        let mut sums = vec![(0, 0); batch.topics().len()];
        for task in batch.tasks() {
            let sum = &mut sums[usize::from(task.topic)];
            sum.0 += 1;
            sum.1 += task.bytes();
        }
        let mut topics = self.topics();
        for (topic, (tasks, bytes)) in batch.topics().iter().zip(sums) {
            count(&mut topics, topic, tasks, bytes);
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        // Nothing panics between two changes that belong together, except when the books are wrong already.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn place(slot: u32) -> usize {
    usize::try_from(slot).unwrap_or(usize::MAX)
}
