//! One batch in flight: the outcomes of its tasks, and the amounts that they count for.

use std::collections::HashSet;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use parking_lot::{Mutex, MutexGuard};

use crate::domain::{Batch, Monotonic, Outcome, Timestamp, TopicName};
use crate::postgres::tasks::settle::Settlement;

/// A batch in flight on the node.
#[derive(Debug)]
pub struct InFlightBatch {
    pub batch: Batch,
    /// The slot of the batch: half of the correlation id of its records.
    pub slot: u32,
    pub(super) taken_at: Monotonic,
    /// Topics that were paused when the batch was loaded.
    left_out: OnceLock<Vec<TopicName>>,
    /// The progress is shared with every holder of the batch as it was before it became lighter
    /// ([`super::InFlightBatches::ease`]).
    course: Arc<Mutex<Course>>,
}

/// Tasks and their bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Charge {
    pub tasks: usize,
    pub bytes: usize,
}

/// The progress of a batch.
#[derive(Debug)]
struct Course {
    outcomes: Vec<Option<Outcome>>,
    left: usize,
    /// The amounts that count against the limits, for each topic of the batch.
    charges: Vec<Charge>,
    /// The number of outcomes that were missing when the batch was last eased.
    eased_at: usize,
    /// Tasks of which an earlier attempt may be in the topic.
    maybe_sent: Vec<bool>,
    /// When the last acknowledgement of each topic was passed on: at most ten times a second.
    heard_at: Vec<Option<Monotonic>>,
    is_given_up: bool,
    /// The outcomes must not be settled.
    is_void: bool,
}

/// The past of a batch when it is taken in.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Past {
    /// The node has just claimed the batch.
    Fresh,
    /// The batch was loaded: its previous owner may have published any part of it.
    MaybeSent,
}

/// The result of recording an outcome.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Noted {
    MoreToCome,
    /// That was the last outcome: settle the batch.
    Complete,
    /// The batch is no longer the node's: let it go.
    GivenUp,
}

impl InFlightBatch {
    pub(super) fn new(batch: Batch, slot: u32, past: Past, taken_at: Monotonic) -> Self {
        let course = Course {
            outcomes: vec![None; batch.len()],
            left: batch.len(),
            charges: charges_of(&batch, |_| true),
            eased_at: batch.len(),
            maybe_sent: vec![past == Past::MaybeSent; batch.len()],
            heard_at: vec![None; batch.topics().len()],
            is_given_up: false,
            is_void: false,
        };
        let left_out = OnceLock::new();
        Self { batch, slot, taken_at, left_out, course: Arc::new(Mutex::new(course)) }
    }

    /// Defers the tasks of paused topics. Only the first call counts.
    pub fn leave_out(&self, paused: Vec<TopicName>) {
        self.left_out.get_or_init(|| paused);
    }

    /// Returns true when the topic of a task was paused when the batch was loaded.
    pub fn is_left_out(&self, index: usize) -> bool {
        // As claims do, it asks for the topic of the task. The record may go to its dead topic.
        self.left_out.get().is_some_and(|topics| topics.contains(self.batch.task(index).topic_name))
    }

    pub fn topic_of(&self, index: usize) -> &TopicName {
        &self.batch.topics()[usize::from(self.batch.topic_index(index))]
    }

    /// Returns for how long the batch has been in flight.
    pub fn age(&self, now: Monotonic) -> Duration {
        now.since(self.taken_at)
    }

    /// Returns for how long a record has waited for its topic. That is the shorter of two times:
    /// since the due time, because a window may be long, and since the claim, because a task may be
    /// overdue. Zero while the time of the cluster is unknown.
    pub fn waited(&self, index: usize, cluster_now: Option<Timestamp>, now: Monotonic) -> Duration {
        let overdue = cluster_now.map_or(Duration::ZERO, |now| now.since(self.batch.due_at(index)));
        overdue.min(self.age(now))
    }

    /// Records the outcome of a task. A second outcome of the same task changes nothing.
    pub fn note(&self, index: usize, outcome: Outcome) -> Noted {
        let mut course = self.lock();
        if course.outcomes[index].is_some() {
            return Noted::MoreToCome;
        }
        course.outcomes[index] = Some(outcome);
        course.left -= 1;
        match (course.left, course.is_given_up) {
            (0, false) => Noted::Complete,
            (0, true) => Noted::GivenUp,
            _ => Noted::MoreToCome,
        }
    }

    /// Records that the record of a task may be in the topic. Returns true when an earlier attempt
    /// may be in the topic, too.
    pub fn note_maybe_sent(&self, index: usize, maybe_sent: bool) -> bool {
        let mut course = self.lock();
        course.maybe_sent[index] |= maybe_sent;
        course.maybe_sent[index]
    }

    /// Returns true when an earlier attempt, of this batch or before it, may be in the topic.
    pub fn is_maybe_sent(&self, index: usize) -> bool {
        self.lock().maybe_sent[index]
    }

    /// Returns true when the acknowledgement of a task must be passed on to its topic's state: at
    /// most each 100 ms for a topic.
    pub fn takes_news(&self, index: usize, now: Monotonic) -> bool {
        let topic = usize::from(self.batch.topic_index(index));
        let mut course = self.lock();
        let is_news = course.heard_at[topic].is_none_or(|at| now.since(at).as_millis() >= 100);
        if is_news {
            course.heard_at[topic] = Some(now);
        }
        is_news
    }

    /// Gives up the outcomes that are still to come: another node will publish those tasks, and
    /// nothing is settled here. With `is_void`, even a complete batch is not settled. Returns false
    /// when no outcome is still to come.
    pub(super) fn give_up(&self, is_void: bool) -> bool {
        let mut course = self.lock();
        course.is_void |= is_void;
        let has_more = course.left > 0 && !course.is_given_up;
        course.is_given_up |= has_more;
        has_more
    }

    pub fn is_given_up(&self) -> bool {
        self.lock().is_given_up
    }

    /// Returns true when the outcomes must not be settled, because another node may have published
    /// the batch since.
    pub fn is_void(&self) -> bool {
        self.lock().is_void
    }

    pub fn has_outcome(&self, index: usize) -> bool {
        self.lock().outcomes[index].is_some()
    }

    /// Returns the settlement of the batch. A follow-up that would be due before `now` is due at
    /// `now`: its leaf may be gone when Postgres was away for long.
    ///
    /// # Panics
    /// Before all outcomes are known.
    pub fn settlement(&self, now: Timestamp) -> Settlement {
        let course = self.lock();
        assert!(course.left == 0, "a batch is settled when each of its tasks has an outcome");
        let outcomes: Vec<Outcome> = course.outcomes.iter().flatten().cloned().collect();
        drop(course);
        let mut settlement = Settlement::new(&self.batch, &outcomes);
        settlement.put_off_until(now);
        settlement
    }

    /// Releases the quota of resolved tasks. Also returns a compacted batch, without the contents
    /// of its published tasks, when enough memory would be freed. Returns `None` when there are no
    /// new outcomes since the last time, or when all are known: then the batch is about to be
    /// settled.
    pub(super) fn ease(&self) -> Option<(Vec<Charge>, Option<Batch>)> {
        let mut course = self.lock();
        if course.left == 0 || course.left == course.eased_at {
            return None;
        }
        course.eased_at = course.left;
        let open = charges_of(&self.batch, |index| course.outcomes[index].is_none());
        let before = std::mem::replace(&mut course.charges, open);
        let given_back =
            before.iter().zip(&course.charges).map(|(before, open)| before.less(*open)).collect();
        // A task that was not published gets a row of its own at the settle.
        let is_over = |index: usize| {
            let outcome = course.outcomes[index].as_ref();
            matches!(outcome, Some(Outcome::Published(_) | Outcome::Expired { .. }))
        };
        let droppable: usize = (0..self.batch.len())
            .filter(|index| is_over(*index))
            .map(|index| self.batch.task(index).bytes())
            .sum();
        let is_worth_it = droppable > 0 && droppable.saturating_mul(4) >= self.batch.bytes();
        Some((given_back, is_worth_it.then(|| self.batch.without(is_over))))
    }

    /// Returns the topics with a record that is due before `due_before` and has no outcome.
    pub(super) fn silent_topics(&self, due_before: Timestamp) -> Vec<TopicName> {
        let course = self.lock();
        let without =
            course.outcomes.iter().enumerate().filter(|(index, outcome)| {
                outcome.is_none() && self.batch.due_at(*index) < due_before
            });
        let topics: HashSet<u16> =
            without.map(|(index, _)| self.batch.topic_index(index)).collect();
        let names = self.batch.topics();
        topics.into_iter().map(|topic| names[usize::from(topic)].clone()).collect()
    }

    /// Returns the batch with `batch` in the place of its contents.
    pub(super) fn with_contents(&self, batch: Batch) -> Self {
        Self {
            batch,
            slot: self.slot,
            taken_at: self.taken_at,
            left_out: self.left_out.clone(),
            course: Arc::clone(&self.course),
        }
    }

    /// Returns all charges that are left.
    pub(super) fn charges(&self) -> Vec<Charge> {
        self.lock().charges.clone()
    }

    /// Takes all charges that are left.
    pub(super) fn take_charges(&self) -> Vec<Charge> {
        let mut course = self.lock();
        course.charges.iter_mut().map(std::mem::take).collect()
    }

    fn lock(&self) -> MutexGuard<'_, Course> {
        self.course.lock()
    }
}

impl Charge {
    fn less(self, other: Self) -> Self {
        Self {
            tasks: self.tasks.saturating_sub(other.tasks),
            bytes: self.bytes.saturating_sub(other.bytes),
        }
    }
}

/// Returns the sum of the counting tasks of a batch, for each topic to which their records go.
fn charges_of(batch: &Batch, counts: impl Fn(usize) -> bool) -> Vec<Charge> {
    let mut charges = vec![Charge::default(); batch.topics().len()];
    for (index, task) in batch.tasks().enumerate().filter(|(index, _)| counts(*index)) {
        let charge = &mut charges[usize::from(batch.topic_index(index))];
        charge.tasks += 1;
        charge.bytes += task.bytes();
    }
    charges
}
