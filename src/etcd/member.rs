//! A node as its key in etcd has it.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::domain::{Monotonic, NodeId};

/// What a node's key says.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Member {
    pub name: String,
    pub address: String,
    pub version: String,
    /// Milliseconds since the epoch, by its machine's clock: for people.
    pub started_at: i64,
    pub can_publish: bool,
}

/// The members as etcd has them.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum View {
    /// etcd does not answer: who is there is unknown.
    Away { since: Monotonic },
    /// Not older than half a TTL.
    Members(BTreeMap<NodeId, Member>),
}
