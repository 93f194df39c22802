//! Publishes the result of the membership: shards, owners, and the nodes as people see them.

use std::collections::BTreeMap;
use std::time::Duration;

use tokio::sync::watch;

use super::settings::MembershipSettings;
use crate::domain::{Monotonic, NodeId, Shard, Timestamp};
use crate::engine::assignment::assign;
use crate::engine::liveness::Decision;
use crate::etcd;
use crate::node::messages::{NodeView, NotReady};
use crate::postgres::cluster::heartbeat::{Beat, HeartbeatAnswer, HeartbeatRow};

/// The findings of one turn.
pub(super) struct BoardFindings<'a> {
    pub answer: &'a HeartbeatAnswer,
    pub decision: &'a Decision,
    pub members: BTreeMap<NodeId, etcd::Member>,
    /// The nodes sharing the shards.
    pub nodes: Vec<NodeId>,
    /// The node's last heartbeat, and when it was sent.
    pub last: Option<&'a (Beat, Monotonic)>,
    pub is_cut_off: bool,
}

pub(super) struct Board {
    settings: MembershipSettings,
    bulletin: watch::Sender<Bulletin>,
    /// The nodes of the last assignment, and the owners that it gave.
    assigned: (Vec<NodeId>, Vec<NodeId>),
}

impl Board {
    pub(super) fn new(settings: MembershipSettings, bulletin: watch::Sender<Bulletin>) -> Self {
        Self { settings, bulletin, assigned: Default::default() }
    }

    /// Publishes the findings. Returns the number of the node's shards.
    pub(super) fn show(&mut self, found: &BoardFindings) -> usize {
        if self.assigned.0 != found.nodes {
            self.assigned = (found.nodes.clone(), assign(self.settings.shards, &found.nodes));
        }
        let owners = &self.assigned.1;
        let mut owned: BTreeMap<NodeId, Vec<Shard>> = BTreeMap::new();
        for (shard, owner) in self.settings.shards.all().zip(owners) {
            owned.entry(*owner).or_default().push(shard);
        }
        let mine = owned.get(&self.settings.node).cloned().unwrap_or_default();
        let count = mine.len();
        let nodes = self.nodes(found, &owned);
        self.bulletin.send_if_modified(|bulletin| {
            let is_moved = bulletin.owners != *owners;
            let is_changed = is_moved || bulletin.is_cut_off != found.is_cut_off;
            *bulletin = Bulletin {
                mine,
                owners: owners.clone(),
                is_cut_off: found.is_cut_off,
                heartbeat_sent_at: found.last.map(|(_, sent_at)| *sent_at),
                nodes_without_tracking_count: count_without(found, |row| row.knows_tracked_tasks),
                nodes_without_pauses_count: count_without(found, |row| row.knows_paused_topics),
                nodes_without_expiry_count: count_without(found, |row| row.knows_expiry),
                nodes_without_overlap_count: count_without(found, |row| row.knows_overlap),
                nodes,
                missing: std::mem::take(&mut bulletin.missing),
            };
            if is_moved {
                tracing::info!(
                    nodes = found.nodes.len(),
                    shards = bulletin.mine.len(),
                    "shards assigned"
                );
                tracing::debug!(mine = ?bulletin.mine, "this node owns these shards");
            }
            is_changed
        });
        count
    }

    /// Publishes why the node is not ready, without waking any receiver.
    pub(super) fn show_missing(&self, missing: Vec<NotReady>) {
        self.bulletin.send_if_modified(|bulletin| {
            bulletin.missing = missing;
            false
        });
    }

    /// Returns this node first, then all nodes with a heartbeat or a key in etcd, in the order of
    /// their start.
    fn nodes(&self, found: &BoardFindings, owned: &BTreeMap<NodeId, Vec<Shard>>) -> Vec<NodeView> {
        let answer = found.answer;
        let rows = answer.rows.iter().map(|row| {
            let standing = found
                .decision
                .standings
                .get(&row.node)
                .map_or("joining", |standing| standing.as_str());
            of_row(row, standing, answer.postgres_now)
        });
        let keys = found.members.iter().filter(|(node, _)| {
            **node != self.settings.node && !answer.rows.iter().any(|row| row.node == **node)
        });
        let mut others: Vec<_> =
            rows.chain(keys.map(|(node, member)| of_member(*node, member))).collect();
        others.sort_by_key(|view| view.id);
        others.insert(0, self.own(found));
        for view in &mut others {
            view.shards = owned.get(&view.id).cloned().unwrap_or_default();
        }
        others
    }

    fn own(&self, found: &BoardFindings) -> NodeView {
        let standing = match found.last {
            None => "joining",
            Some((beat, _)) if beat.has_left => "left",
            Some(_) => "assigned",
        };
        NodeView {
            id: self.settings.node,
            name: self.settings.name.clone(),
            address: self.settings.address.clone(),
            version: self.settings.version.clone(),
            started_at: found.answer.started_at.unwrap_or(self.settings.started_at),
            heartbeat_age: Duration::ZERO,
            has_broker: found.last.is_some_and(|(beat, _)| beat.has_broker),
            standing,
            shards: Vec::new(),
        }
    }
}

/// Returns the number of living nodes that do not know a feature.
fn count_without(found: &BoardFindings, knows: impl Fn(&HeartbeatRow) -> bool) -> usize {
    let standings = &found.decision.standings;
    let lives = |row: &&HeartbeatRow| standings.get(&row.node).is_some_and(|one| one.is_in());
    found.answer.rows.iter().filter(lives).filter(|row| !knows(row)).count()
}

fn of_row(row: &HeartbeatRow, standing: &'static str, now: Timestamp) -> NodeView {
    NodeView {
        id: row.node,
        name: row.name.clone(),
        address: row.address.clone(),
        version: row.version.clone(),
        started_at: row.started_at,
        heartbeat_age: now.since(row.beat_at),
        has_broker: row.has_broker,
        standing,
        shards: Vec::new(),
    }
}

fn of_member(id: NodeId, member: &etcd::Member) -> NodeView {
    NodeView {
        id,
        name: member.name.clone(),
        address: member.address.clone(),
        version: member.version.clone(),
        started_at: Timestamp::from_millis(member.started_at),
        heartbeat_age: Duration::ZERO,
        has_broker: false,
        standing: "joining",
        shards: Vec::new(),
    }
}

/// The published result of the membership. Receivers are woken when the owners or `is_cut_off`
/// change. The other members are those of the last turn.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Bulletin {
    /// The node's shards, in order. Empty before its first heartbeat is committed, and after it has
    /// left.
    pub mine: Vec<Shard>,
    /// The owner of each shard, in the order of the shards. Empty before the first heartbeat.
    pub owners: Vec<NodeId>,
    /// No broker answers this node while other nodes have contact: the node must purge the producer
    /// and free the batches.
    pub is_cut_off: bool,
    /// When the last successful heartbeat was sent.
    pub heartbeat_sent_at: Option<Monotonic>,
    /// Living nodes of an older version, which would settle tracked tasks as final.
    pub nodes_without_tracking_count: usize,
    /// Living nodes of an older version, whose claims would take tasks of paused topics.
    pub nodes_without_pauses_count: usize,
    /// Living nodes of an older version, which would publish expired tasks.
    pub nodes_without_expiry_count: usize,
    /// Living nodes of an older version, which would make runs of a schedule that skips.
    pub nodes_without_overlap_count: usize,
    /// All nodes with a heartbeat or a key in etcd, this node first.
    pub nodes: Vec<NodeView>,
    /// The requirements out of `postgres`, `heartbeat`, `claims`, `batches`, `etcd` and `clock`
    /// that the node does not meet. Without etcd it goes on all the same.
    pub missing: Vec<NotReady>,
}
