//! Reports the cluster as the node sees it, and the requirements not met.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use tokio::sync::watch;

use crate::clock;
use crate::domain::topic::policy::Pause;
use crate::domain::{Backlog, Timestamp, TopicName};
use crate::engine::topics::{KafkaPace, OpenBreaker};
use crate::error_chain::chain;
use crate::node::membership::Bulletin;
use crate::node::messages::{
    ClusterView, NodeView, NotReady, Requirement, TOPICS_SHOWN_MAX, UnavailableTopic,
};
use crate::node::requests::connections::Connections;
use crate::node::shared::NodeShared;
use crate::postgres::lists::backlog::BacklogCounter;
use crate::sealing::PayloadKeys;

/// Reports on the cluster and the node.
#[derive(Debug)]
pub struct Reporter {
    pub shared: Arc<NodeShared>,
    pub backlog: Arc<BacklogCounter>,
    pub connections: Connections,
    pub bulletin: watch::Receiver<Bulletin>,
    /// etcd was reached once. Its absence stops nothing from then on.
    pub has_seen_etcd: AtomicBool,
    pub keys: PayloadKeys,
}

impl Reporter {
    async fn overdue(&self, now: Option<Timestamp>) -> Option<Backlog> {
        match self.backlog.count(self.shared.leaves.oldest()?, now?).await {
            Ok(backlog) => Some(backlog),
            Err(error) => {
                tracing::debug!(error = chain(&error), "cannot count the overdue tasks");
                None
            }
        }
    }

    /// Returns the cluster as the node sees it.
    pub async fn view(&self) -> ClusterView {
        let now = self.shared.clock.now();
        let backlog = self.overdue(now).await;
        ClusterView {
            node: self.shared.node,
            now,
            shard_count: self.shared.cluster.shards.get(),
            window: self.shared.cluster.window,
            horizon: self.shared.cluster.horizon,
            leaf: self.shared.cluster.leaf,
            nodes: self.nodes(),
            backlog,
            unavailable_topics: self.unavailable_topics(),
            is_throttled: self.shared.in_flight.topics().pace() == KafkaPace::Throttled,
            paused_topics: self.paused_topics(),
            missing: self.missing(),
            degraded: self.degraded(),
        }
    }

    fn unavailable_topics(&self) -> Vec<UnavailableTopic> {
        let topics = self.shared.in_flight.topics();
        topics.open().into_iter().take(TOPICS_SHOWN_MAX).map(shown).collect()
    }

    fn paused_topics(&self) -> Vec<(TopicName, Pause)> {
        let mut paused = self.shared.policies.paused();
        paused.truncate(TOPICS_SHOWN_MAX);
        paused
    }

    /// Returns why the node cannot publish to a topic, if it cannot.
    pub fn unavailable(&self, topic: &TopicName) -> Option<UnavailableTopic> {
        let topics = self.shared.in_flight.topics();
        topics.open().into_iter().find(|open| open.topic == topic).map(shown)
    }

    /// Returns the nodes as of this node's last heartbeat, with ages as of now.
    fn nodes(&self) -> Vec<NodeView> {
        let bulletin = self.bulletin.borrow();
        let passed = bulletin
            .heartbeat_sent_at
            .map_or(Duration::ZERO, |sent_at| clock::monotonic().since(sent_at));
        let mut nodes = bulletin.nodes.clone();
        for node in &mut nodes {
            node.heartbeat_age += passed;
        }
        nodes
    }

    /// Returns the requirements that the node lacks to be ready. The list is empty when the node is
    /// ready.
    pub fn missing(&self) -> Vec<NotReady> {
        let bulletin = self.bulletin.borrow().clone();
        // Once etcd has been reached, its absence stops nothing and the node stays ready. Before
        // the first heartbeat, etcd has not been checked.
        if bulletin.heartbeat_sent_at.is_some()
            && !bulletin.missing.iter().any(|missing| missing.what == Requirement::Etcd)
        {
            self.has_seen_etcd.store(true, Ordering::Relaxed);
        }
        let counts = |what: Requirement| {
            what != Requirement::Etcd || !self.has_seen_etcd.load(Ordering::Relaxed)
        };
        // The membership knows why there is no heartbeat. The fence knows only that there is none.
        let mut missing: Vec<NotReady> =
            bulletin.missing.into_iter().filter(|missing| counts(missing.what)).collect();
        for more in self.shared.fence.missing() {
            if !missing.iter().any(|known| known.what == more.what) {
                missing.push(more);
            }
        }
        // Without Postgres no connection can be opened, and the list says so already.
        if !missing.iter().any(|known| known.what == Requirement::Postgres) {
            missing.extend(self.connections.missing());
        }
        let lacking = self.keys.lacking();
        if !lacking.is_empty() {
            let ids: Vec<String> = lacking.iter().map(u32::to_string).collect();
            let why =
                format!("the cluster uses payload key {}, which this node lacks", ids.join(", "));
            missing.push(NotReady { what: Requirement::Keys, why });
        }
        missing
    }

    /// Returns what the node lacks, and goes on without. A node that has never reached etcd is not
    /// ready instead.
    fn degraded(&self) -> Vec<NotReady> {
        if !self.has_seen_etcd.load(Ordering::Relaxed) {
            return Vec::new();
        }
        let bulletin = self.bulletin.borrow();
        let of_etcd = bulletin.missing.iter().filter(|missing| missing.what == Requirement::Etcd);
        of_etcd.cloned().collect()
    }
}

fn shown(open: OpenBreaker<'_>) -> UnavailableTopic {
    UnavailableTopic {
        topic: open.topic.clone(),
        is_gone: open.is_gone,
        unavailable_for: clock::monotonic().since(open.since),
        reason: open.reason.map(String::from),
    }
}
