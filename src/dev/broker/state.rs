//! The state of the broker, which all connections share.

use std::net::SocketAddr;
use std::sync::Arc;

use parking_lot::Mutex;
use tokio::sync::watch;

use super::groups::Groups;
use super::topics::Topics;
use crate::clock::{self, ClusterClock};
use crate::domain::Timestamp;

/// The broker. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Broker {
    pub(super) shared: Arc<Shared>,
}

#[derive(Debug)]
pub(super) struct Shared {
    pub address: SocketAddr,
    pub topics: Mutex<Topics>,
    pub groups: Mutex<Groups>,
    /// Counts the appends, so that reads can wait for the next one.
    pub appends: watch::Sender<u64>,
    pub clock: Arc<ClusterClock>,
}

impl Broker {
    pub(super) fn new(address: SocketAddr, topics: Topics, clock: Arc<ClusterClock>) -> Self {
        let (topics, groups) = (Mutex::new(topics), Mutex::default());
        let shared = Shared { address, topics, groups, appends: watch::Sender::new(0), clock };
        Self { shared: Arc::new(shared) }
    }

    /// Returns the bootstrap address.
    pub fn address(&self) -> SocketAddr {
        self.shared.address
    }

    /// Returns the time for records that are appended now.
    pub(super) fn now(&self) -> Timestamp {
        self.shared.clock.now().unwrap_or_else(clock::wall)
    }
}
