//! What the membership tells.

use crate::domain::{Monotonic, NodeId, Shard};
use crate::node::messages::{Missing, NodeView};

/// What stands on the board: what the membership has come to. Receivers are woken when the owners or `is_cut_off` change; the rest is as of the last turn.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Bulletin {
    /// This node's shards, in order. None before its first heartbeat is committed, and once it has left.
    pub mine: Vec<Shard>,
    /// The owner of each shard, in the order of the shards; empty before the first heartbeat.
    pub owners: Vec<NodeId>,
    /// No broker answers this node while others have contact: it is to purge its producer and to free its batches.
    pub is_cut_off: bool,
    /// When the last heartbeat that succeeded was sent.
    pub heartbeat_sent_at: Option<Monotonic>,
    /// All nodes that have a heartbeat or a key in etcd, this one first.
    pub nodes: Vec<NodeView>,
    /// Of `postgres`, `claims`, `batches`, `etcd` and `clock`, what this node lacks. Without etcd it goes on all the same.
    pub missing: Vec<Missing>,
}
