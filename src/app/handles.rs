//! The parts of a node for sharing with the caller.
//!
//! A node in production has no use for these handles. The dev server sets the node's clock, has the
//! node look for due tasks again, creates partitions ahead of the clock, and answers the requests
//! to the routes of dev servers. Everything goes through these handles, so a node does not know of
//! dev servers.

use std::net::SocketAddr;
use std::sync::{Arc, OnceLock};

use crate::api::dev_port::DevPort;
use crate::clock::ClusterClock;
use crate::node::maintenance::Leaves;
use crate::node::requests::service::Service;
use crate::shutdown::Tasks;

/// The shared parts. The default is that of a node in production.
#[derive(Clone, Debug, Default)]
pub struct Handles {
    /// The background tasks of the node. The caller may add more: these end with the node, and a
    /// failure of one ends the node.
    pub tasks: Tasks,
    /// The service of the node's API.
    pub service: Service,
    /// This node's estimate of the cluster's clock.
    pub clock: Arc<ClusterClock>,
    /// The existing leaves. The creator of a leaf records it here.
    pub leaves: Arc<Leaves>,
    /// The address of the REST API, once its port is open.
    pub address: Arc<OnceLock<SocketAddr>>,
    /// `None` for a node without the routes of a dev server.
    pub dev: Option<DevPort>,
}

impl Handles {
    /// Makes the handles of a dev server's node, whose routes lead to `dev`. Its clock follows
    /// every step at once.
    pub fn of_dev(dev: DevPort) -> Self {
        Self { clock: Arc::new(ClusterClock::of_dev()), dev: Some(dev), ..Self::default() }
    }
}
