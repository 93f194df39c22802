//! Membership in etcd, and all uses of etcd-client. etcd holds the members and no other data.
//!
//! Two background tasks run, each with its own client. The *session* keeps this node's key alive,
//! and the *watch* follows the keys of all nodes. Neither ever fails the node. Without etcd the
//! session is `Lost` and the view is `Away`. Both retry forever, and the rest of the node continues
//! with the state that it has. Every call has a deadline, because a client of a killed etcd hangs.

mod client;
mod contact;
mod members;
mod metrics;
mod session;
mod settings;

use tokio::sync::watch;

use crate::clock;
use crate::domain::NodeId;
use crate::shutdown::Tasks;

pub use client::EtcdError;
pub use members::{Member, View};
pub use metrics::EtcdMetrics;
pub use session::{Session, SessionState};
pub use settings::{Credentials, EtcdSettings};

/// Starts the watch and the session of `node`. The session is not held before
/// [`Session::announce`].
pub fn start(
    settings: &EtcdSettings,
    node: NodeId,
    tasks: &Tasks,
    metrics: EtcdMetrics,
) -> (Session, watch::Receiver<View>) {
    let (view_in, view) = watch::channel(View::Away { since: clock::monotonic() });
    tasks.spawn(
        "etcd members",
        members::run(settings.clone(), view_in, tasks.stopping.clone(), metrics.clone()),
    );
    let session = Session::start(settings, node, view.clone(), tasks, metrics);
    (session, view)
}
