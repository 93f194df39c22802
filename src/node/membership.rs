//! Who is here, and which shards are this node's.
//!
//! One loop writes this node's heartbeat each sixth of a TTL, reads everybody's, looks at what etcd says, and publishes the outcome. It decides nothing
//! itself: [`crate::engine::liveness`] says who lives, [`crate::engine::assignment`] who owns what.
//!
//! | what happens | what follows |
//! |---|---|
//! | Postgres away | shards stay; after 5/6 of a TTL trust ends, after a TTL the etcd session; tried again, at first at once |
//! | Postgres back | if trust had ended: a new generation, so that the publisher asks which batches are still its own |
//! | this node was declared dead | it revives itself, and a new generation begins |
//! | etcd away | nothing |
//! | another node dies or leaves | shards are assigned anew, `adopt_now` is notified |
//! | a claim loop stands still | no heartbeats: a wedged node is a dead node |
//! | no brokers for this node alone | it says that it cannot publish, and is `is_cut_off` until a broker answers |
//! | Postgres's clock jumped | it says that it cannot publish until the clock is steady |
//! | a second node without etcd | it waits for the other's heartbeat to age, then takes over or fails |

mod board;
mod forget;
mod keeper;
mod metrics;
mod progress;
mod trust;

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{Notify, mpsc, oneshot, watch};

use crate::clock::ClusterClock;
use crate::domain::{Monotonic, NodeId, Shard, ShardCount, Timestamp};
use crate::engine::liveness::broker::BrokerContact;
use crate::node::service::{Missing, NodeView};
use crate::shutdown::Tasks;
use crate::{etcd, postgres};

pub use keeper::Error;
pub use metrics::Metrics;
pub use progress::Progress;
pub use trust::TrustHandle;

/// Who this node is, and what the cluster agrees on.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Settings {
    pub node: NodeId,
    pub name: String,
    pub address: String,
    pub version: String,
    pub started_at: Timestamp,
    /// Of sessions and heartbeats.
    pub ttl: Duration,
    pub shards: ShardCount,
}

/// What the membership works with.
pub struct Parts {
    pub postgres: postgres::Settings,
    /// None: this node must be alone.
    pub etcd: Option<(etcd::Session, watch::Receiver<etcd::View>)>,
    pub clock: Arc<ClusterClock>,
    pub progress: Progress,
    /// Asked before each heartbeat; must answer at once.
    pub broker: Arc<dyn Fn() -> BrokerContact + Send + Sync>,
    pub metrics: Metrics,
}

/// What the membership has come to. Receivers are woken when the shards, their owners, `is_cut_off` or `has_left` change; the rest is as of the last turn.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Standing {
    /// This node's shards, in order. None before its first heartbeat is committed, and once it has left.
    pub mine: Vec<Shard>,
    /// The owner of each shard, in the order of the shards; empty before the first heartbeat.
    pub owners: Vec<NodeId>,
    /// Counts the changes of `owners`.
    pub epoch: u64,
    /// No broker answers this node while others have contact: it is to purge its producer and to free its batches.
    pub is_cut_off: bool,
    /// No other node has a place in the assignment.
    pub is_alone: bool,
    pub has_left: bool,
    /// When the last heartbeat that succeeded was sent.
    pub heartbeat_sent_at: Option<Monotonic>,
    /// All nodes that have a heartbeat or a key in etcd, this one first.
    pub nodes: Vec<NodeView>,
    /// Of `postgres`, `etcd` and `clock`, what this node lacks. Without etcd it goes on all the same.
    pub missing: Vec<Missing>,
}

/// The handle of the membership.
#[derive(Clone, Debug)]
pub struct Membership {
    node: NodeId,
    standing: watch::Receiver<Standing>,
    trust: TrustHandle,
    adopt_now: Arc<Notify>,
    leave: mpsc::Sender<oneshot::Sender<bool>>,
    session: Option<etcd::Session>,
}

/// Starts the membership. Before the first heartbeat is committed the standing has no shards.
pub fn start(settings: Settings, parts: Parts, tasks: &Tasks) -> Membership {
    let (standing_in, standing) = watch::channel(Standing::default());
    let (trust_in, trust) = trust::channel(settings.ttl);
    let (leave, leave_out) = mpsc::channel(1);
    let adopt_now = Arc::new(Notify::new());
    let membership = Membership {
        node: settings.node,
        standing,
        trust,
        adopt_now: Arc::clone(&adopt_now),
        leave,
        session: parts.etcd.as_ref().map(|(session, _)| session.clone()),
    };
    tasks.spawn("forget dead nodes", forget::run(parts.postgres.clone(), settings.ttl, tasks.stopping.clone()));
    let board = board::Board::new(settings.clone(), standing_in);
    let outputs = keeper::Outputs { board, trust: trust_in, adopt_now, leave: leave_out };
    tasks.spawn("membership", keeper::Keeper::new(settings, parts, outputs).run(tasks.stopping.clone()));
    membership
}

impl Membership {
    pub fn node(&self) -> NodeId {
        self.node
    }

    pub fn standing(&self) -> watch::Receiver<Standing> {
        self.standing.clone()
    }

    /// Whether what this node holds is certainly still its own.
    pub fn trust(&self) -> TrustHandle {
        self.trust.clone()
    }

    /// Notified when a node was declared dead or has left: look for batches without a living owner now. Keeps one notice for one waiter.
    pub fn adopt_now(&self) -> Arc<Notify> {
        Arc::clone(&self.adopt_now)
    }

    /// Leaves the assignment: writes "left" and ends the etcd session, whereupon the others take over at once. Heartbeats go on, so what is still held
    /// stays this node's own until it is settled. False when one of the two did not succeed within `deadline`: the others then wait for a TTL.
    pub async fn leave(&self, deadline: Duration) -> bool {
        let leave = async {
            let (done, is_done) = oneshot::channel();
            let is_written = self.leave.send(done).await.is_ok() && is_done.await.unwrap_or(false);
            let is_ended = match &self.session {
                Some(session) => session.end_session(deadline).await,
                None => true,
            };
            is_written && is_ended
        };
        tokio::time::timeout(deadline, leave).await.unwrap_or(false)
    }
}

impl fmt::Debug for Parts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Parts").field("postgres", &self.postgres).field("has_etcd", &self.etcd.is_some()).finish_non_exhaustive()
    }
}
