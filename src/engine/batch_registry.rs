//! The registry of the batches of a node: asked for, in flight, or settled a moment ago. A
//! comparison with Postgres's list of the node's unsettled batches tells a forgotten batch from one
//! on its way:
//!
//! ```text
//!   asked for --answer--> in flight --settle answered--> settled --durable--> (forgotten)
//!       |  |                                                |
//!       |  +--no, or no answer--> (forgotten)               +--seen unsettled: settled again
//!       +--this node is fenced--> in doubt --any answer--> (forgotten)
//! ```
//!
//! If the node is fenced between the question and the answer, the batch is forgotten, because
//! another node may have adopted it. If no other node has, the next comparison finds the batch.

use std::collections::{HashMap, HashSet};

use crate::domain::{BatchId, Monotonic};

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum RegistryEntry {
    /// A statement that creates or fetches the batch is running.
    Asked,
    /// Such a statement is running, and the node was fenced since: its answer proves nothing.
    InDoubt,
    InFlight,
}

#[derive(Debug)]
struct SettledBatch<S> {
    settlement: S,
    answered_at: Monotonic,
}

/// Whether the settle of a batch by the node took effect in Postgres.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Effect {
    Certain,
    /// The batch had been settled or adopted before. An earlier settle of the node got no answer,
    /// so it may have been that one.
    Perhaps,
    /// Another node settled or adopted the batch.
    None,
}

impl Effect {
    /// `took_effect` is what the answer says. `is_in_doubt` means that an earlier settle of the
    /// same batch got no answer.
    pub fn of(took_effect: bool, is_in_doubt: bool) -> Self {
        match (took_effect, is_in_doubt) {
            (true, _) => Self::Certain,
            (false, true) => Self::Perhaps,
            (false, false) => Self::None,
        }
    }
}

/// `S` holds the values that a repeated settle needs.
#[derive(Debug)]
pub struct BatchRegistry<S> {
    entries: HashMap<BatchId, RegistryEntry>,
    /// Settles that are not yet known to be durable. A batch is either here or in `entries`, never
    /// in both.
    settled: HashMap<BatchId, SettledBatch<S>>,
}

/// The result of a comparison with the node's unsettled batches in Postgres.
#[derive(Debug)]
pub struct Comparison<S> {
    /// Batches that the node has not asked for, has not in flight and has not settled: an answer
    /// was lost, or the batch was adopted.
    pub unknown: Vec<BatchId>,
    /// Batches that the node settled and Postgres lists as unsettled: a crash of Postgres undid the
    /// settle.
    pub undone: Vec<(BatchId, S)>,
}

impl<S> Default for BatchRegistry<S> {
    fn default() -> Self {
        Self { entries: HashMap::new(), settled: HashMap::new() }
    }
}

impl<S: Clone> BatchRegistry<S> {
    /// Enters a batch that a statement is about to create or fetch. Returns false when the batch is
    /// known already.
    pub fn ask_for(&mut self, batch: BatchId) -> bool {
        if self.entries.contains_key(&batch) || self.settled.contains_key(&batch) {
            return false;
        }
        self.entries.insert(batch, RegistryEntry::Asked);
        true
    }

    /// Removes a batch: the statement returned none, got no answer, or the batch belongs to another
    /// node.
    pub fn forget(&mut self, batch: BatchId) {
        self.entries.remove(&batch);
        self.settled.remove(&batch);
    }

    /// Returns true and forgets the batch when its answer cannot be relied on.
    pub fn decline(&mut self, batch: BatchId) -> bool {
        let is_in_doubt = matches!(self.entries.get(&batch), Some(RegistryEntry::InDoubt));
        if is_in_doubt {
            self.entries.remove(&batch);
        }
        is_in_doubt
    }

    /// Records that a statement returned the batch: it is in flight now.
    pub fn arrived(&mut self, batch: BatchId) {
        self.settled.remove(&batch);
        self.entries.insert(batch, RegistryEntry::InFlight);
    }

    /// Marks all running statements as in doubt. The node is about to ask for its own batches; a
    /// later answer may be about a batch of another node.
    pub fn mark_in_doubt(&mut self) {
        for entry in self.entries.values_mut().filter(|entry| **entry == RegistryEntry::Asked) {
            *entry = RegistryEntry::InDoubt;
        }
    }

    /// Records an answered settle. A settle that may have taken effect is remembered until it is
    /// durable. A settle without effect, because another node had adopted the batch, must never be
    /// repeated: if the batch comes back, the other node may have published any of its tasks.
    pub fn settled(
        &mut self,
        batch: BatchId,
        settlement: S,
        effect: Effect,
        answered_at: Monotonic,
    ) {
        self.entries.remove(&batch);
        match effect {
            Effect::Certain | Effect::Perhaps => {
                self.settled.insert(batch, SettledBatch { settlement, answered_at })
            }
            Effect::None => self.settled.remove(&batch),
        };
    }

    /// Forgets an earlier settle of a batch that the node has just adopted: another node may have
    /// published the tasks since.
    pub fn adopted(&mut self, batch: BatchId) {
        self.settled.remove(&batch);
    }

    /// Records that a settle was repeated.
    pub fn settled_again(&mut self, batch: BatchId, now: Monotonic) {
        if let Some(settled) = self.settled.get_mut(&batch) {
            settled.answered_at = now;
        }
    }

    /// Forgets durable settles: those answered before `sent_at`, when an answered heartbeat was
    /// sent, except settles seen `undone` since.
    pub fn durable_until(&mut self, sent_at: Monotonic, undone: &HashSet<BatchId>) {
        self.settled
            .retain(|batch, settled| settled.answered_at >= sent_at || undone.contains(batch));
    }

    /// Compares the node's unsettled batches in Postgres, as of a question asked at `asked_at`,
    /// with the registry.
    pub fn compare(&self, own_unsettled: &[BatchId], asked_at: Monotonic) -> Comparison<S> {
        let mut comparison = Comparison { unknown: Vec::new(), undone: Vec::new() };
        for batch in own_unsettled {
            match self.settled.get(batch) {
                Some(SettledBatch { settlement, answered_at }) if *answered_at < asked_at => {
                    comparison.undone.push((*batch, settlement.clone()));
                }
                None if !self.entries.contains_key(batch) => comparison.unknown.push(*batch),
                _ => {}
            }
        }
        comparison
    }

    /// Returns the oldest known batch.
    pub fn oldest(&self) -> Option<BatchId> {
        self.entries.keys().chain(self.settled.keys()).min().copied()
    }

    /// The number of remembered settles.
    pub fn settled_count(&self) -> usize {
        self.settled.len()
    }

    /// Returns true when a statement that creates or fetches a batch is running.
    pub fn has_asked(&self) -> bool {
        self.entries
            .values()
            .any(|entry| matches!(entry, RegistryEntry::Asked | RegistryEntry::InDoubt))
    }
}

/// Returns true when a batch that is in flight since `taken_at` belongs to another node. `own` is
/// Postgres's list of the node's batches, asked for at `asked_at`. The list says nothing about
/// batches that were claimed after the question.
pub fn is_lost(
    batch: BatchId,
    taken_at: Monotonic,
    own: &HashSet<BatchId>,
    asked_at: Monotonic,
) -> bool {
    taken_at < asked_at && !own.contains(&batch)
}

/// Batches that the registry does not know. One look proves nothing, because a statement may be
/// running.
#[derive(Debug, Default)]
pub struct Suspects {
    before: HashSet<BatchId>,
}

impl Suspects {
    /// Takes in the unknown batches of a look. Returns those unknown in the look before, too, which
    /// must be loaded.
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
    fn a_batch_is_unknown_unless_it_was_asked_for_or_is_in_flight() {
        let mut registry: BatchRegistry<()> = BatchRegistry::default();
        assert!(registry.ask_for(batch(1)));
        assert!(!registry.ask_for(batch(1)), "nobody asks twice");
        registry.arrived(batch(2));
        assert_eq!(registry.compare(&[batch(1), batch(2), batch(3)], at(5)).unknown, [batch(3)]);
        registry.forget(batch(1));
        assert_eq!(registry.compare(&[batch(1)], at(5)).unknown, [batch(1)]);
        assert!(!registry.has_asked());
    }

    #[test]
    fn a_settle_that_was_answered_before_the_question_and_is_not_there_was_undone() {
        let mut registry = BatchRegistry::default();
        registry.settled(batch(1), 'a', Effect::Certain, at(4));
        registry.settled(batch(2), 'b', Effect::Perhaps, at(6));
        assert_eq!(registry.compare(&[batch(1), batch(2)], at(5)).undone, [(batch(1), 'a')]);
        registry.settled_again(batch(1), at(7));
        assert!(registry.compare(&[batch(1)], at(5)).undone.is_empty());
    }

    #[test]
    fn a_settle_is_forgotten_when_a_later_heartbeat_was_answered_and_it_was_not_seen_undone() {
        let mut registry = BatchRegistry::default();
        for (number, second) in [(1, 1), (2, 2), (3, 3)] {
            registry.settled(batch(number), (), Effect::Certain, at(second));
        }
        registry.durable_until(at(3), &HashSet::from([batch(2)]));
        assert_eq!(registry.compare(&[batch(1), batch(2), batch(3)], at(9)).unknown, [batch(1)]);
    }

    #[test]
    fn what_another_node_has_settled_is_not_remembered_as_settled_by_this_one() {
        for (took_effect, is_in_doubt, is_remembered) in
            [(true, false, true), (true, true, true), (false, true, true), (false, false, false)]
        {
            let mut registry = BatchRegistry::default();
            registry.arrived(batch(1));
            registry.settled(batch(1), 'a', Effect::of(took_effect, is_in_doubt), at(4));
            let comparison = registry.compare(&[batch(1)], at(5));
            assert_eq!(
                (comparison.undone.len(), comparison.unknown.len()),
                if is_remembered { (1, 0) } else { (0, 1) }
            );
            assert_eq!(registry.ask_for(batch(1)), !is_remembered, "it may come back");
        }
    }

    #[test]
    fn what_was_settled_before_it_was_adopted_is_loaded_anew() {
        let mut registry = BatchRegistry::default();
        registry.settled(batch(1), 'a', Effect::Certain, at(4));
        registry.arrived(batch(2));
        registry.adopted(batch(1));
        registry.adopted(batch(2));
        assert!(
            registry.compare(&[batch(1)], at(5)).undone.is_empty(),
            "another may have published it since"
        );
        assert_eq!(registry.settled_count(), 0);
        assert!(registry.ask_for(batch(1)), "it is to be loaded");
        assert!(!registry.ask_for(batch(2)), "it is held");
    }

    #[test]
    fn what_was_claimed_since_the_question_is_not_lost() {
        let own = HashSet::from([batch(1)]);
        assert!(!is_lost(batch(1), at(1), &own, at(5)));
        assert!(is_lost(batch(2), at(1), &own, at(5)));
        assert!(!is_lost(batch(2), at(5), &own, at(5)));
    }

    #[test]
    fn an_answer_to_a_statement_in_doubt_is_declined_once_and_looked_for() {
        let mut registry = BatchRegistry::<()>::default();
        assert!(registry.ask_for(batch(1)));
        registry.arrived(batch(2));
        registry.mark_in_doubt();
        assert!(registry.ask_for(batch(3)), "asked for since");
        assert!(
            registry.has_asked() && registry.compare(&[batch(1)], at(1)).unknown.is_empty(),
            "its answer may be on its way"
        );
        assert_eq!([1, 2, 3].map(|number| registry.decline(batch(number))), [true, false, false]);
        assert_eq!(registry.compare(&[batch(1), batch(2), batch(3)], at(1)).unknown, [batch(1)]);
        assert!(registry.ask_for(batch(1)) && !registry.decline(batch(1)), "it was found again");
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
