//! Metrics of etcd as the node sees it.

use crate::telemetry::{Counter, Gauge, Registry};

/// The metrics of the session and of the watch.
#[derive(Clone, Debug, Default)]
pub struct EtcdMetrics {
    pub(super) session_up: Gauge,
    pub(super) members: Gauge,
    pub(super) watch_up: Gauge,
    pub(super) failures: Counter,
}

impl EtcdMetrics {
    pub fn register(registry: &mut Registry) -> Self {
        let metrics = Self::default();
        registry.register(
            "punctual_etcd_session_up",
            "1 while this node's session in etcd is alive, so that others notice its death within \
             a TTL",
            metrics.session_up.clone(),
        );
        registry.register(
            "punctual_etcd_watch_up",
            "1 while this node can read the members in etcd",
            metrics.watch_up.clone(),
        );
        registry.register(
            "punctual_etcd_members",
            "Nodes with a key in etcd, as last seen",
            metrics.members.clone(),
        );
        registry.register(
            "punctual_etcd_failures",
            "Failed attempts to keep the session or the watch; they are retried for ever",
            metrics.failures.clone(),
        );
        metrics
    }
}
