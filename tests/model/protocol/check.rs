//! A node's check of its own unsettled batches, as in `node::settle::adopter`, with the product's
//! own registry.

use std::collections::HashSet;

use punctual::domain::{BatchId, Monotonic, Timestamp};
use punctual::engine::batch_registry::{BatchRegistry, Effect, Suspects, is_lost};

use super::node::drop_batch;
use super::state::{
    BATCHES, Check, Node, Progress, RegistryEntry, Set, State, TASKS, bit, each, task_of,
};
use super::{Protocol, check_of};

impl Protocol {
    pub fn ask(&self, state: &mut State, slot: u8) -> Option<()> {
        let node = &mut state.nodes[usize::from(slot)];
        let own = state.db.unsettled_of(node.identity);
        let in_registry = |registered: RegistryEntry| {
            (0..BATCHES)
                .filter(|batch| node.registry[*batch] == registered)
                .fold(0, |all, batch| all | bit(batch))
        };
        let (held, settled, durable) = (
            in_registry(RegistryEntry::InFlight),
            in_registry(RegistryEntry::Settled),
            in_registry(RegistryEntry::Durable),
        );
        // A query whose answer would tell nothing is not a step.
        if node.doubt == 0 && own & !held == 0 && settled | durable | node.suspects == 0 {
            return None;
        }
        node.check = Some(check_of(own, durable, node.doubt != 0));
        node.fresh = 0;
        Some(())
    }

    /// Compares the answer with the registry, as `node::settle::adopter` does.
    pub fn take_in(&self, state: &mut State, slot: u8) -> Option<()> {
        let at = usize::from(slot);
        let check = state.nodes[at].check.take()?;
        let mut node = state.nodes[at];
        let own: Vec<BatchId> = each(u16::from(check.own)).map(id_of).collect();
        if check.clears_doubt {
            self.give_up(state, at, &own);
            node = state.nodes[at];
            node.doubt = u8::from(node.doubt == 2);
        }
        let mut registry = registry_of(&node, &check);
        let comparison = registry.compare(&own, ASKED);
        let undone: HashSet<BatchId> = comparison.undone.iter().map(|(batch, ())| *batch).collect();
        registry.durable_until(BEATEN, &undone);
        // The batches forgotten by the registry: it would not know them if asked.
        let all: Vec<BatchId> = (0..BATCHES).map(id_of).collect();
        let forgotten = registry.compare(&all, ASKED).unknown;
        let mut suspects = Suspects::default();
        suspects.take_in(each(u16::from(node.suspects)).map(id_of));
        let found = suspects.take_in(comparison.unknown.iter().copied());
        node.undone |= set_of(undone.iter().copied());
        node.to_load |= set_of(found);
        node.suspects = set_of(comparison.unknown);
        for batch in each(u16::from(set_of(forgotten))) {
            node.registry[batch] = RegistryEntry::None;
            node.progress[batch] = [Progress::Waiting; TASKS];
            node.maybe_sent &= !bit(batch);
        }
        node.fresh = 0;
        state.nodes[at] = node;
        Some(())
    }

    /// Drops batches in flight, incomplete and no longer the node's. Records that the producer has
    /// of them may still be sent.
    fn give_up(&self, state: &mut State, slot: usize, own: &[BatchId]) {
        let own: HashSet<BatchId> = own.iter().copied().collect();
        for batch in 0..BATCHES {
            let node = state.nodes[slot];
            let held_at = if node.fresh >> batch & 1 == 1 { AFTER } else { LONG_AGO };
            let rows = state.db.batches[batch].rows;
            let is_complete = each(rows).all(|row| node.progress[batch][task_of(row)].is_outcome());
            if node.registry[batch] == RegistryEntry::InFlight
                && !is_complete
                && is_lost(id_of(batch), held_at, &own, ASKED)
            {
                drop_batch(state, slot, batch);
            }
        }
    }
}

/// The moments that a check compares, in its own order.
const LONG_AGO: Monotonic = second(1);
const BEATEN: Monotonic = second(2);
const UNBEATEN: Monotonic = second(3);
const ASKED: Monotonic = second(4);
const AFTER: Monotonic = second(5);

const fn second(second: u64) -> Monotonic {
    Monotonic::from_start(std::time::Duration::from_secs(second))
}

/// The registry as the product keeps it.
fn registry_of(node: &Node, check: &Check) -> BatchRegistry<()> {
    let mut registry = BatchRegistry::default();
    for batch in 0..BATCHES {
        let is_fresh = node.fresh >> batch & 1 == 1;
        let answered_at = match (is_fresh, check.durable >> batch & 1 == 1) {
            (true, _) => AFTER,
            (false, true) => LONG_AGO,
            (false, false) => UNBEATEN,
        };
        match node.registry[batch] {
            RegistryEntry::None => {}
            RegistryEntry::InFlight => registry.arrived(id_of(batch)),
            RegistryEntry::Settled | RegistryEntry::Durable => {
                registry.settled(id_of(batch), (), Effect::Certain, answered_at)
            }
        }
    }
    registry
}

fn id_of(batch: usize) -> BatchId {
    BatchId::new(Timestamp::from_millis(1_795_252_500_000), 0, batch as u64)
}

fn set_of(batches: impl IntoIterator<Item = BatchId>) -> Set {
    batches
        .into_iter()
        .filter_map(|id| (0..BATCHES).find(|batch| id_of(*batch) == id))
        .fold(0, |all, batch| all | bit(batch))
}
