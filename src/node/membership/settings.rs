//! The settings and parts of the membership.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;

use super::metrics::MembershipMetrics;
use super::progress::LoopProgress;
use crate::clock::ClusterClock;
use crate::domain::{NodeId, ShardCount, Timestamp};
use crate::engine::liveness::broker::BrokerContact;
use crate::{etcd, postgres::PostgresSettings};

/// The identity of the node, and the settings of the cluster.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct MembershipSettings {
    pub node: NodeId,
    pub name: String,
    pub address: String,
    pub version: String,
    pub started_at: Timestamp,
    /// The TTL of sessions and heartbeats.
    pub ttl: Duration,
    pub shards: ShardCount,
}

/// The parts of the membership.
pub struct MembershipParts {
    pub postgres: PostgresSettings,
    /// `None`: the node must be alone.
    pub etcd: Option<(etcd::Session, watch::Receiver<etcd::View>)>,
    pub clock: Arc<ClusterClock>,
    pub progress: LoopProgress,
    /// Called before each heartbeat. It must answer at once.
    pub broker: Arc<dyn Fn() -> BrokerContact + Send + Sync>,
    pub metrics: MembershipMetrics,
}

impl fmt::Debug for MembershipParts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MembershipParts")
            .field("postgres", &self.postgres)
            .field("has_etcd", &self.etcd.is_some())
            .finish_non_exhaustive()
    }
}
