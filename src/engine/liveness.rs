//! Who lives, as one node can tell: heartbeats in Postgres, confirmed by keys in etcd.
//!
//! The authority is the heartbeat row. A node is *stale* when this observer has read one and the same counter for a span of its own monotonic time
//! without a gap: the span runs from the arrival of the first answer with that counter to the question of the last, so the counter stood still for all
//! of it. A failed read, or a gap of more than half a TTL, starts the observation of everybody anew: after an outage of Postgres nobody takes
//! everybody for dead.
//!
//! | its heartbeat | its key in etcd | so it is |
//! |---|---|---|
//! | fresh | there, gone, or etcd away | assigned |
//! | stale for a TTL | gone | dead |
//! | stale for a TTL | there, or etcd away | suspected: waited for, keeps its shards |
//! | stale for 3 TTL | any | dead |
//! | says "dead" | any | dead, until it revives itself |
//! | says "left" | any | left: out at once; declared dead when stale like the others, so that what it still held is adopted |
//!
//! Nothing here is needed for safety: a node that is wrongly taken for dead finds that its batches are not its own any more.

pub mod alone;
pub mod broker;
pub mod streak;
pub mod trust;

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use crate::domain::{Monotonic, NodeId};

/// What a heartbeat row says of its node.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Sign {
    pub counter: i64,
    pub has_left: bool,
    pub is_dead: bool,
    /// It may own shards: it has a broker, its clock is steady, and its claims do not fail for long.
    pub can_publish: bool,
    pub has_broker: bool,
}

/// The members as etcd has them.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum EtcdView {
    Away,
    Known(BTreeSet<NodeId>),
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Standing {
    Assigned,
    /// Stale, but not yet beyond doubt: keeps its shards.
    Suspected,
    Left,
    Dead,
}

/// A node to be declared dead in Postgres, provided that its counter still stands at `counter`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct DeclareDead {
    pub node: NodeId,
    pub counter: i64,
}

/// What follows from the observations.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Decision {
    /// Of every other node that has a row.
    pub standings: BTreeMap<NodeId, Standing>,
    pub declare_dead: Vec<DeclareDead>,
    /// A node has died, left, or lost its row since the last decision: look for batches without a living owner now.
    pub adopt: bool,
}

/// The observations of one node of all others.
#[derive(Debug)]
pub struct Liveness {
    ttl: Duration,
    nodes: BTreeMap<NodeId, Observed>,
    read_at: Option<Monotonic>,
    /// Arrival of the first answer of the row without a gap.
    observed_since: Option<Monotonic>,
    /// Nodes that were in the assignment at the last decision.
    was_in: BTreeSet<NodeId>,
}

#[derive(Clone, Copy, Debug)]
struct Observed {
    sign: Sign,
    /// Arrival of the first answer with this counter, in a row of answers without a gap.
    since: Monotonic,
    /// How long the counter has certainly stood still.
    stale_for: Duration,
}

impl Liveness {
    pub fn new(ttl: Duration) -> Self {
        Self { ttl, nodes: BTreeMap::new(), read_at: None, observed_since: None, was_in: BTreeSet::new() }
    }

    /// Takes in the rows of all other nodes, as read by a question of `asked_at` whose answer arrived at `arrived_at`.
    pub fn take_in(&mut self, rows: impl IntoIterator<Item = (NodeId, Sign)>, asked_at: Monotonic, arrived_at: Monotonic) {
        let is_unbroken = self.read_at.is_some_and(|read_at| arrived_at.since(read_at) <= self.ttl / 2);
        self.read_at = Some(arrived_at);
        self.observed_since = self.observed_since.filter(|_| is_unbroken).or(Some(arrived_at));
        let known = std::mem::take(&mut self.nodes);
        for (node, sign) in rows {
            let since = match known.get(&node) {
                Some(before) if is_unbroken && before.sign.counter == sign.counter => before.since,
                _ => arrived_at,
            };
            self.nodes.insert(node, Observed { sign, since, stale_for: asked_at.since(since) });
        }
    }

    /// A read failed: the observation of everybody starts anew with the next one.
    pub fn read_failed(&mut self) {
        self.read_at = None;
        self.nodes.values_mut().for_each(|observed| observed.stale_for = Duration::ZERO);
    }

    /// Since when there has been no gap; none before the first read.
    pub fn observed_since(&self) -> Option<Monotonic> {
        self.observed_since
    }

    /// A node could not be declared dead, for its row has changed: it lives, or somebody else was quicker. The next read tells.
    pub fn spare(&mut self, node: NodeId) {
        if let Some(observed) = self.nodes.get_mut(&node) {
            observed.since = self.read_at.unwrap_or(observed.since);
            observed.stale_for = Duration::ZERO;
        }
    }

    /// A node was declared dead in Postgres.
    pub fn declared_dead(&mut self, node: NodeId) {
        if let Some(observed) = self.nodes.get_mut(&node) {
            observed.sign.is_dead = true;
        }
    }

    /// What follows from the observations and what etcd says.
    pub fn decide(&mut self, etcd: &EtcdView) -> Decision {
        let mut decision = Decision::default();
        for (&node, observed) in &self.nodes {
            let is_due = self.is_beyond_doubt(node, observed, etcd);
            if is_due && !observed.sign.is_dead {
                decision.declare_dead.push(DeclareDead { node, counter: observed.sign.counter });
            }
            decision.standings.insert(node, self.standing(observed, is_due));
        }
        let is_in: BTreeSet<_> =
            decision.standings.iter().filter(|(_, standing)| standing.is_in()).map(|(node, _)| *node).collect();
        decision.adopt = !self.was_in.is_subset(&is_in);
        self.was_in = is_in;
        decision
    }

    /// When the next read may show something that waiting for the usual one would show too late: a node whose counter has stood still until now will
    /// then be stale for a TTL, or for three.
    pub fn next_check_at(&self) -> Option<Monotonic> {
        let now = self.read_at?;
        self.nodes
            .values()
            .filter(|observed| !observed.sign.is_dead)
            .flat_map(|observed| [observed.since.plus(self.ttl), observed.since.plus(self.ttl * 3)])
            .filter(|check_at| *check_at > now)
            .min()
    }

    /// True when another living node reports contact with a broker.
    pub fn others_have_broker(&self) -> bool {
        self.nodes.values().any(|observed| {
            let sign = observed.sign;
            sign.has_broker && !sign.is_dead && !sign.has_left && observed.stale_for < self.ttl
        })
    }

    /// The nodes to which shards are assigned: this node unless it has left, and all others that are not out. Who says that it cannot publish is
    /// left out while others can.
    pub fn assignable(&self, decision: &Decision, own: Option<(NodeId, bool)>) -> Vec<NodeId> {
        let others = decision.standings.iter().filter(|(_, standing)| standing.is_in()).map(|(node, _)| {
            let can_publish = self.nodes.get(node).is_some_and(|observed| observed.sign.can_publish);
            (*node, can_publish)
        });
        let all: Vec<_> = others.chain(own).collect();
        let can_any = all.iter().any(|(_, can_publish)| *can_publish);
        all.into_iter().filter(|(_, can_publish)| *can_publish || !can_any).map(|(node, _)| node).collect()
    }

    fn standing(&self, observed: &Observed, is_beyond_doubt: bool) -> Standing {
        if observed.sign.has_left {
            Standing::Left
        } else if observed.sign.is_dead || is_beyond_doubt {
            Standing::Dead
        } else if observed.stale_for >= self.ttl {
            Standing::Suspected
        } else {
            Standing::Assigned
        }
    }

    fn is_beyond_doubt(&self, node: NodeId, observed: &Observed, etcd: &EtcdView) -> bool {
        let is_gone = matches!(etcd, EtcdView::Known(members) if !members.contains(&node));
        observed.stale_for >= self.ttl * 3 || (observed.stale_for >= self.ttl && is_gone)
    }
}

impl Standing {
    /// True when the node has a place in the assignment.
    pub fn is_in(self) -> bool {
        matches!(self, Self::Assigned | Self::Suspected)
    }

    pub fn as_str(self) -> &'static str {
        match self {
            Self::Assigned => "assigned",
            Self::Suspected => "suspected",
            Self::Left => "left",
            Self::Dead => "dead",
        }
    }
}

#[cfg(test)]
mod tests;
