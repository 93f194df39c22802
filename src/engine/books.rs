//! The books of a node: which batches it has asked for, holds, or has settled a moment ago. Held against what Postgres calls unsettled and this node's,
//! they tell a batch that was forgotten from one that is on its way:
//!
//! ```text
//!   asked for --answer--> held --all outcomes known--> held --settle answered--> settled --durable--> (forgotten)
//!       |  |                                                                        |
//!       |  +--no, or no answer--> (forgotten)                  seen unsettled again: settled again
//!       +--this node in doubt--> doubted --whatever is answered--> (forgotten)
//! ```
//!
//! What was asked for before a doubt, and is answered after it, is forgotten: another node may have adopted it. If it is this node's still, it is found again.

use std::collections::{HashMap, HashSet};

use crate::domain::{BatchId, Monotonic};

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Entry {
    /// A statement that makes or fetches the batch is on its way.
    Asked,
    /// So it is, and this node was in doubt since: its answer proves nothing.
    Doubted,
    Held,
}

#[derive(Debug)]
struct Settled<S> {
    settlement: S,
    answered_at: Monotonic,
}

/// Whether what this node has settled of a batch stands in Postgres.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Effect {
    Certain,
    /// The batch was settled or adopted before. An earlier settle of this node's had no answer: it may have been that one.
    Perhaps,
    /// It was another node.
    None,
}

impl Effect {
    /// `took_effect` by its answer; `is_in_doubt` when an earlier one of the same batch had none.
    pub fn of(took_effect: bool, is_in_doubt: bool) -> Self {
        match (took_effect, is_in_doubt) {
            (true, _) => Self::Certain,
            (false, true) => Self::Perhaps,
            (false, false) => Self::None,
        }
    }
}

/// `S` is what it takes to repeat a settle.
#[derive(Debug)]
pub struct Books<S> {
    entries: HashMap<BatchId, Entry>,
    /// Remembered until it is durable. A batch is here or among the entries, never both.
    settled: HashMap<BatchId, Settled<S>>,
}

/// What a look at the node's own unsettled batches says.
#[derive(Debug)]
pub struct Comparison<S> {
    /// Neither asked for nor held nor settled: an answer was lost, or it was adopted.
    pub unknown: Vec<BatchId>,
    /// Settled, and yet unsettled: a crash of Postgres undid the settle.
    pub undone: Vec<(BatchId, S)>,
}

impl<S> Default for Books<S> {
    fn default() -> Self {
        Self { entries: HashMap::new(), settled: HashMap::new() }
    }
}

impl<S: Clone> Books<S> {
    /// Enters a batch that a statement is about to make or fetch; false when the books know it already.
    pub fn ask_for(&mut self, batch: BatchId) -> bool {
        if self.entries.contains_key(&batch) || self.settled.contains_key(&batch) {
            return false;
        }
        self.entries.insert(batch, Entry::Asked);
        true
    }

    /// The statement brought no batch, or no answer; or the batch is no longer this node's.
    pub fn forget(&mut self, batch: BatchId) {
        self.entries.remove(&batch);
        self.settled.remove(&batch);
    }

    /// True, and the batch is forgotten, when its answer is not to be relied on.
    pub fn decline(&mut self, batch: BatchId) -> bool {
        let is_doubted = matches!(self.entries.get(&batch), Some(Entry::Doubted));
        if is_doubted {
            self.entries.remove(&batch);
        }
        is_doubted
    }

    pub fn hold(&mut self, batch: BatchId) {
        self.settled.remove(&batch);
        self.entries.insert(batch, Entry::Held);
    }

    /// This node does not know which batches are its own, and is about to ask: what is on its way now may be somebody else's when it comes.
    pub fn doubt(&mut self) {
        for entry in self.entries.values_mut().filter(|entry| **entry == Entry::Asked) {
            *entry = Entry::Doubted;
        }
    }

    /// A settle was answered: what may have taken effect is remembered until it is durable. What did not, because another node had adopted the batch, must
    /// never be repeated: if the batch comes back, the other one may have published any of it.
    pub fn settled(&mut self, batch: BatchId, settlement: S, effect: Effect, answered_at: Monotonic) {
        self.entries.remove(&batch);
        match effect {
            Effect::Certain | Effect::Perhaps => self.settled.insert(batch, Settled { settlement, answered_at }),
            Effect::None => self.settled.remove(&batch),
        };
    }

    /// Postgres said that this node is the owner of a batch which had none that lives: whatever it had settled of it before, another may have published since.
    pub fn adopted(&mut self, batch: BatchId) {
        self.settled.remove(&batch);
    }

    /// A settle was done again.
    pub fn settled_again(&mut self, batch: BatchId, now: Monotonic) {
        if let Some(settled) = self.settled.get_mut(&batch) {
            settled.answered_at = now;
        }
    }

    /// Settles that were answered before `sent_at`, when a heartbeat was sent that has been answered, are durable, but for those that were seen `undone`
    /// since. They are forgotten.
    pub fn durable_until(&mut self, sent_at: Monotonic, undone: &HashSet<BatchId>) {
        self.settled.retain(|batch, settled| settled.answered_at >= sent_at || undone.contains(batch));
    }

    /// Holds the batches that Postgres calls unsettled and this node's, as of a question asked at `asked_at`, against the books.
    pub fn compare(&self, own_unsettled: &[BatchId], asked_at: Monotonic) -> Comparison<S> {
        let mut comparison = Comparison { unknown: Vec::new(), undone: Vec::new() };
        for batch in own_unsettled {
            match self.settled.get(batch) {
                Some(Settled { settlement, answered_at }) if *answered_at < asked_at => {
                    comparison.undone.push((*batch, settlement.clone()));
                }
                None if !self.entries.contains_key(batch) => comparison.unknown.push(*batch),
                _ => {}
            }
        }
        comparison
    }

    /// The oldest of all that are known.
    pub fn oldest(&self) -> Option<BatchId> {
        self.entries.keys().chain(self.settled.keys()).min().copied()
    }

    /// How many settles are remembered.
    pub fn settled_count(&self) -> usize {
        self.settled.len()
    }

    /// True when a statement that makes or fetches a batch is on its way.
    pub fn has_asked(&self) -> bool {
        self.entries.values().any(|entry| matches!(entry, Entry::Asked | Entry::Doubted))
    }
}

/// Of a batch that is held since `held_at`: true when it is no longer this node's by the answer `own` to a question asked at `asked_at`. What was claimed
/// since the question cannot be in the answer.
pub fn is_lost(batch: BatchId, held_at: Monotonic, own: &HashSet<BatchId>, asked_at: Monotonic) -> bool {
    held_at < asked_at && !own.contains(&batch)
}

/// Batches that the books do not know: one look is no proof, for a statement may be on its way.
#[derive(Debug, Default)]
pub struct Suspects {
    before: HashSet<BatchId>,
}

impl Suspects {
    /// Takes in what a look found unknown; answers what the look before found unknown as well, and so is to be loaded.
    pub fn take_in(&mut self, unknown: impl IntoIterator<Item = BatchId>) -> Vec<BatchId> {
        let unknown: HashSet<BatchId> = unknown.into_iter().collect();
        let twice = unknown.intersection(&self.before).copied().collect();
        self.before = unknown;
        twice
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::domain::Timestamp;

    fn batch(random: u64) -> BatchId {
        BatchId::new(Timestamp::from_millis(1_795_252_500_000), 0, random)
    }

    fn at(second: u64) -> Monotonic {
        Monotonic::from_start(Duration::from_secs(second))
    }

    #[test]
    fn a_batch_is_unknown_unless_it_was_asked_for_or_is_held() {
        let mut books: Books<()> = Books::default();
        assert!(books.ask_for(batch(1)));
        assert!(!books.ask_for(batch(1)), "nobody asks twice");
        books.hold(batch(2));
        assert_eq!(books.compare(&[batch(1), batch(2), batch(3)], at(5)).unknown, [batch(3)]);
        books.forget(batch(1));
        assert_eq!(books.compare(&[batch(1)], at(5)).unknown, [batch(1)]);
        assert!(!books.has_asked());
    }

    #[test]
    fn a_settle_that_was_answered_before_the_question_and_is_not_there_was_undone() {
        let mut books = Books::default();
        books.settled(batch(1), 'a', Effect::Certain, at(4));
        books.settled(batch(2), 'b', Effect::Perhaps, at(6));
        assert_eq!(books.compare(&[batch(1), batch(2)], at(5)).undone, [(batch(1), 'a')]);
        books.settled_again(batch(1), at(7));
        assert!(books.compare(&[batch(1)], at(5)).undone.is_empty());
    }

    #[test]
    fn a_settle_is_forgotten_when_a_later_heartbeat_was_answered_and_it_was_not_seen_undone() {
        let mut books = Books::default();
        for (number, second) in [(1, 1), (2, 2), (3, 3)] {
            books.settled(batch(number), (), Effect::Certain, at(second));
        }
        books.durable_until(at(3), &HashSet::from([batch(2)]));
        assert_eq!(books.compare(&[batch(1), batch(2), batch(3)], at(9)).unknown, [batch(1)]);
    }

    #[test]
    fn what_another_node_has_settled_is_not_remembered_as_settled_by_this_one() {
        for (took_effect, is_in_doubt, is_remembered) in
            [(true, false, true), (true, true, true), (false, true, true), (false, false, false)]
        {
            let mut books = Books::default();
            books.hold(batch(1));
            books.settled(batch(1), 'a', Effect::of(took_effect, is_in_doubt), at(4));
            let comparison = books.compare(&[batch(1)], at(5));
            assert_eq!((comparison.undone.len(), comparison.unknown.len()), if is_remembered { (1, 0) } else { (0, 1) });
            assert_eq!(books.ask_for(batch(1)), !is_remembered, "it may come back");
        }
    }

    #[test]
    fn what_was_settled_before_it_was_adopted_is_loaded_anew() {
        let mut books = Books::default();
        books.settled(batch(1), 'a', Effect::Certain, at(4));
        books.hold(batch(2));
        books.adopted(batch(1));
        books.adopted(batch(2));
        assert!(books.compare(&[batch(1)], at(5)).undone.is_empty(), "another may have published it since");
        assert_eq!(books.settled_count(), 0);
        assert!(books.ask_for(batch(1)), "it is to be loaded");
        assert!(!books.ask_for(batch(2)), "it is held");
    }

    #[test]
    fn what_was_claimed_since_the_question_is_not_lost() {
        let own = HashSet::from([batch(1)]);
        assert!(!is_lost(batch(1), at(1), &own, at(5)));
        assert!(is_lost(batch(2), at(1), &own, at(5)));
        assert!(!is_lost(batch(2), at(5), &own, at(5)));
    }

    #[test]
    fn what_is_answered_after_a_doubt_is_declined_once_and_looked_for() {
        let mut books = Books::<()>::default();
        assert!(books.ask_for(batch(1)));
        books.hold(batch(2));
        books.doubt();
        assert!(books.ask_for(batch(3)), "asked for since");
        assert!(books.has_asked() && books.compare(&[batch(1)], at(1)).unknown.is_empty(), "its answer may be on its way");
        assert_eq!([1, 2, 3].map(|number| books.decline(batch(number))), [true, false, false]);
        assert_eq!(books.compare(&[batch(1), batch(2), batch(3)], at(1)).unknown, [batch(1)]);
        assert!(books.ask_for(batch(1)) && !books.decline(batch(1)), "it was found again");
    }

    #[test]
    fn a_batch_must_be_unknown_twice_running() {
        let mut suspects = Suspects::default();
        assert!(suspects.take_in([batch(1)]).is_empty());
        assert!(suspects.take_in([batch(2)]).is_empty());
        assert!(suspects.take_in([batch(1)]).is_empty());
        assert_eq!(suspects.take_in([batch(1), batch(2)]), [batch(1)]);
    }
}
