//! Decides which nodes are alive, from heartbeats in Postgres confirmed by keys in etcd.
//!
//! The heartbeat row is the authority. A node is *stale* when this observer has read the node's
//! counter unchanged, without a gap, for a period of the observer's own monotonic time. The period
//! runs from the arrival of the first answer with this counter to the question of the last one. So
//! the counter stood still for the whole period. A failed read, or a gap of more than half a TTL,
//! restarts the observation of every node: after an outage of Postgres, no node takes all the
//! others for dead.
//!
//! | its heartbeat | its key in etcd | the node is |
//! |---|---|---|
//! | fresh | there, gone, or etcd is away | assigned |
//! | stale for a TTL | gone | dead |
//! | stale for a TTL | there, or etcd is away | suspected: keeps its shards |
//! | stale for 3 TTL | any | dead |
//! | says "dead" | any | dead, until it revives itself |
//! | says "left" | any | left: out at once |
//!
//! A node that has left is declared dead once it is stale. Other nodes then adopt the batches that
//! it has not settled.
//!
//! Safety does not depend on these decisions. If a node is declared dead wrongly, other nodes adopt
//! its batches, and its own settles of these batches change nothing.

pub mod alone;
pub mod broker;
pub mod fencing;
pub mod streak;

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use crate::domain::{Monotonic, NodeId};

/// The contents of a heartbeat row.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Sign {
    pub counter: i64,
    pub has_left: bool,
    pub is_dead: bool,
    /// The node may own shards: a broker is reached, the clock is steady, and claims have not
    /// failed for long.
    pub can_publish: bool,
    pub has_broker: bool,
}

/// The members as etcd lists them.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum EtcdView {
    Away,
    Known(BTreeSet<NodeId>),
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Standing {
    Assigned,
    /// Stale, but not yet certainly dead. The node keeps its shards.
    Suspected,
    Left,
    Dead,
}

/// A node to declare dead in Postgres, provided that its counter is still `counter`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct DeclareDead {
    pub node: NodeId,
    pub counter: i64,
}

/// The consequences of the observations.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Decision {
    /// The standing of every other node with a row.
    pub standings: BTreeMap<NodeId, Standing>,
    pub declare_dead: Vec<DeclareDead>,
    /// A node has died, left, or lost its row since the last decision: look for batches without a
    /// living owner now.
    pub adopt: bool,
}

/// One node's observations of all other nodes.
#[derive(Debug)]
pub struct Liveness {
    ttl: Duration,
    nodes: BTreeMap<NodeId, Observed>,
    read_at: Option<Monotonic>,
    /// Arrival of the first answer since the last gap.
    observed_since: Option<Monotonic>,
    /// Nodes that were part of the assignment at the last decision.
    was_in: BTreeSet<NodeId>,
}

#[derive(Clone, Copy, Debug)]
struct Observed {
    sign: Sign,
    /// Arrival of the first answer with this counter since the last gap.
    since: Monotonic,
    /// How long the counter has certainly stood still.
    stale_for: Duration,
}

impl Liveness {
    pub fn new(ttl: Duration) -> Self {
        Self {
            ttl,
            nodes: BTreeMap::new(),
            read_at: None,
            observed_since: None,
            was_in: BTreeSet::new(),
        }
    }

    /// Takes in the rows of all other nodes, as read by a question asked at `asked_at` whose answer
    /// arrived at `arrived_at`.
    pub fn take_in(
        &mut self,
        rows: impl IntoIterator<Item = (NodeId, Sign)>,
        asked_at: Monotonic,
        arrived_at: Monotonic,
    ) {
        let is_unbroken =
            self.read_at.is_some_and(|read_at| arrived_at.since(read_at) <= self.ttl / 2);
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

    /// Records a failed read. The next read restarts the observation of every node.
    pub fn read_failed(&mut self) {
        self.read_at = None;
        self.nodes.values_mut().for_each(|observed| observed.stale_for = Duration::ZERO);
    }

    /// Returns the moment since which there has been no gap, or `None` before the first read.
    pub fn observed_since(&self) -> Option<Monotonic> {
        self.observed_since
    }

    /// Records that a node could not be declared dead because its row had changed: the node lives,
    /// or another observer was quicker. The next read decides.
    pub fn spare(&mut self, node: NodeId) {
        if let Some(observed) = self.nodes.get_mut(&node) {
            observed.since = self.read_at.unwrap_or(observed.since);
            observed.stale_for = Duration::ZERO;
        }
    }

    /// Records that a node was declared dead in Postgres.
    pub fn declared_dead(&mut self, node: NodeId) {
        if let Some(observed) = self.nodes.get_mut(&node) {
            observed.sign.is_dead = true;
        }
    }

    /// Decides from the observations and the members in etcd.
    pub fn decide(&mut self, etcd: &EtcdView) -> Decision {
        let mut decision = Decision::default();
        for (&node, observed) in &self.nodes {
            let is_due = self.is_certainly_dead(node, observed, etcd);
            if is_due && !observed.sign.is_dead {
                decision.declare_dead.push(DeclareDead { node, counter: observed.sign.counter });
            }
            decision.standings.insert(node, self.standing(observed, is_due));
        }
        let is_in: BTreeSet<_> = decision
            .standings
            .iter()
            .filter(|(_, standing)| standing.is_in())
            .map(|(node, _)| *node)
            .collect();
        decision.adopt = !self.was_in.is_subset(&is_in);
        self.was_in = is_in;
        decision
    }

    /// Returns when an extra read is worthwhile, if the regular one would come too late: a node
    /// whose counter stands still until then will have been stale for one TTL, or for three.
    pub fn next_check_at(&self) -> Option<Monotonic> {
        let now = self.read_at?;
        self.nodes
            .values()
            .filter(|observed| !observed.sign.is_dead)
            .flat_map(|observed| [observed.since.plus(self.ttl), observed.since.plus(self.ttl * 3)])
            .filter(|check_at| *check_at > now)
            .min()
    }

    /// Returns true when another living node reports contact with a broker.
    pub fn others_have_broker(&self) -> bool {
        self.nodes.values().any(|observed| {
            let sign = observed.sign;
            sign.has_broker && !sign.is_dead && !sign.has_left && observed.stale_for < self.ttl
        })
    }

    /// Returns the nodes of the assignment: this node unless gone, and all others not out. Nodes
    /// that cannot publish are left out while others can.
    pub fn assignable(&self, decision: &Decision, own: Option<(NodeId, bool)>) -> Vec<NodeId> {
        let others =
            decision.standings.iter().filter(|(_, standing)| standing.is_in()).map(|(node, _)| {
                let can_publish =
                    self.nodes.get(node).is_some_and(|observed| observed.sign.can_publish);
                (*node, can_publish)
            });
        let all: Vec<_> = others.chain(own).collect();
        let can_any = all.iter().any(|(_, can_publish)| *can_publish);
        all.into_iter()
            .filter(|(_, can_publish)| *can_publish || !can_any)
            .map(|(node, _)| node)
            .collect()
    }

    fn standing(&self, observed: &Observed, is_certainly_dead: bool) -> Standing {
        if observed.sign.has_left {
            Standing::Left
        } else if observed.sign.is_dead || is_certainly_dead {
            Standing::Dead
        } else if observed.stale_for >= self.ttl {
            Standing::Suspected
        } else {
            Standing::Assigned
        }
    }

    fn is_certainly_dead(&self, node: NodeId, observed: &Observed, etcd: &EtcdView) -> bool {
        let is_gone = matches!(etcd, EtcdView::Known(members) if !members.contains(&node));
        observed.stale_for >= self.ttl * 3 || (observed.stale_for >= self.ttl && is_gone)
    }
}

impl Standing {
    /// Returns true when the node takes part in the assignment.
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
