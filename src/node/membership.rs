//! Decides the members, and the shards of the node.
//!
//! One loop writes this node's heartbeat every sixth of a TTL, reads all heartbeats, reads the view
//! of etcd, and publishes the outcome. The decisions are made elsewhere:
//! [`crate::engine::liveness`] decides which nodes live, and [`crate::engine::assignment`] assigns
//! the shards.
//!
//! - Postgres is unavailable: shards stay, and heartbeats are retried, at first at once. After 5/6
//!   of a TTL the node is fenced. After a TTL its etcd session ends.
//! - Postgres is back: if the node was fenced, a new generation begins, so the adopter checks which
//!   batches the node still owns.
//! - The node was declared dead: it revives itself, and a new generation begins.
//! - etcd is unavailable: no consequence.
//! - Another node dies or leaves: shards are assigned again, and `adopt_now` is notified.
//! - A claim loop is stuck, or the node cannot find out which batches it owns: no heartbeats, so a
//!   stuck node counts as dead.
//! - No broker answers this node alone: the node reports that publishing is impossible, and
//!   `is_cut_off` is true until a broker answers.
//! - Postgres's clock was set back, or far ahead: the node reports that it cannot publish until the
//!   clock is steady.
//! - Claims fail for 5 s, or the adopter fails: the node is not ready, and also reports that it
//!   cannot publish until a claim succeeds, unless the cause affects all nodes (a lock, a slow
//!   server).
//! - A second node without etcd: it waits for the first one's heartbeat to expire, then takes over
//!   or fails.

mod board;
mod fencing;
mod keeper;
mod metrics;
mod progress;
mod settings;

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{Notify, mpsc, oneshot, watch};
use tokio_util::sync::CancellationToken;

use crate::clock;
use crate::error_chain::chain;
use crate::postgres::cluster::heartbeat::Heartbeats;
use crate::shutdown::{TaskFailure, Tasks};
use crate::{etcd, postgres::PostgresSettings};

pub use board::Bulletin;
pub use fencing::FencingHandle;
pub use keeper::MembershipError;
pub use metrics::MembershipMetrics;
pub use progress::{LoopProgress, cause_of};
pub use settings::{MembershipParts, MembershipSettings};

/// The handle of the membership.
#[derive(Clone, Debug)]
pub struct Membership {
    bulletin: watch::Receiver<Bulletin>,
    fencing: FencingHandle,
    adopt_now: Arc<Notify>,
    leave: mpsc::Sender<oneshot::Sender<bool>>,
    session: Option<etcd::Session>,
}

/// Starts the membership. The bulletin has no shards until the first heartbeat is committed.
pub fn start(settings: MembershipSettings, parts: MembershipParts, tasks: &Tasks) -> Membership {
    let (bulletin_in, bulletin) = watch::channel(Bulletin::default());
    let (fencing_in, fencing) = fencing::channel(settings.ttl);
    let (leave, leave_out) = mpsc::channel(1);
    let adopt_now = Arc::new(Notify::new());
    let membership = Membership {
        bulletin,
        fencing,
        adopt_now: Arc::clone(&adopt_now),
        leave,
        session: parts.etcd.as_ref().map(|(session, _)| session.clone()),
    };
    tasks.spawn(
        "forget dead nodes",
        forget(parts.postgres.clone(), settings.ttl, tasks.stopping.clone()),
    );
    let board = board::Board::new(settings.clone(), bulletin_in);
    let outputs = keeper::Outputs { board, fencing: fencing_in, adopt_now, leave: leave_out };
    tasks.spawn_vital(
        "membership",
        keeper::MembershipKeeper::new(settings, parts, outputs).run(tasks.stopping.clone()),
    );
    membership
}

impl Membership {
    pub fn bulletin(&self) -> watch::Receiver<Bulletin> {
        self.bulletin.clone()
    }

    /// Returns the fencing: whether the in-flight batches of the node are certainly still its own.
    pub fn fencing(&self) -> FencingHandle {
        self.fencing.clone()
    }

    /// Returns the notice that a node was declared dead or has left: look for batches without a
    /// living owner now. It keeps one notice for one waiter.
    pub fn adopt_now(&self) -> Arc<Notify> {
        Arc::clone(&self.adopt_now)
    }

    /// Leaves the assignment: writes "left" and ends the etcd session, so the other nodes take over
    /// at once. Heartbeats go on, so in-flight batches stay this node's own until settled. Returns
    /// false when one of the two steps did not succeed within `deadline`: the other nodes then wait
    /// for a TTL.
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

const FORGET_PAUSE: Duration = Duration::from_secs(300);
/// An operator may want to see that a node has died.
const FORGET_AGE_MIN: Duration = Duration::from_secs(3600);

/// Deletes the heartbeats of nodes dead for long and without batches. Opens a connection of its own
/// each time, because a heartbeat must not wait.
async fn forget(
    settings: PostgresSettings,
    ttl: Duration,
    stopping: CancellationToken,
) -> Result<(), TaskFailure> {
    loop {
        tokio::select! {
            () = stopping.cancelled() => return Ok(()),
            () = clock::sleep(FORGET_PAUSE) => {}
        }
        match Heartbeats::new(&settings, ttl).forget(FORGET_AGE_MIN).await {
            Ok(0) => {}
            Ok(count) => tracing::info!(count, "deleted the heartbeats of dead nodes"),
            Err(error) => {
                tracing::debug!(
                    error = %chain(&error),
                    "cannot delete the heartbeats of dead nodes; retrying later"
                )
            }
        }
    }
}
