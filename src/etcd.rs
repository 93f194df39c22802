//! Who is here: all of etcd-client. etcd holds the members, nothing else.
//!
//! Two tasks, each with a client of its own: the *session* keeps this node's key alive, the *watch* follows the keys of all nodes. Neither ever fails
//! the node: without etcd the session is `Lost`, the view is `Away`, both try again for ever, and everything else goes on with what it has. Every call
//! has a deadline, for a client of a killed etcd hangs.

mod client;
mod members;
mod metrics;
mod session;

use std::collections::BTreeMap;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use tokio::sync::watch;

use crate::clock;
use crate::domain::{Monotonic, NodeId};
use crate::shutdown::Tasks;

pub use client::Error;
pub use metrics::Metrics;
pub use session::{Session, State};

/// Where etcd is, and what the keys of the cluster begin with.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Settings {
    endpoints: Vec<String>,
    prefix: String,
    ttl: Duration,
}

/// What a node's key says.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Member {
    pub name: String,
    pub address: String,
    pub version: String,
    /// Milliseconds since the epoch, by the clock of the cluster.
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

impl Settings {
    /// `endpoints`: comma-separated, `host:port` or URLs. `prefix`: the cluster's name, under which `nodes/<node>` are the keys. `ttl`: how long a key
    /// outlives its node; whole seconds for etcd, rounded up.
    pub fn new(endpoints: &str, prefix: &str, ttl: Duration) -> Result<Self, String> {
        let endpoints: Vec<_> = endpoints.split(',').map(str::trim).filter(|one| !one.is_empty()).map(str::to_owned).collect();
        for endpoint in &endpoints {
            let address = endpoint.trim_start_matches("http://").trim_start_matches("https://").trim_end_matches('/');
            let is_good = address
                .rsplit_once(':')
                .is_some_and(|(host, port)| !host.is_empty() && !address.contains('/') && port.parse::<u16>().is_ok());
            if !is_good {
                return Err(format!("an endpoint of etcd is host:port or http://host:port, not {endpoint:?}"));
            }
        }
        if endpoints.is_empty() {
            return Err("at least one endpoint of etcd".to_owned());
        }
        let prefix = prefix.trim_end_matches('/');
        if prefix.is_empty() {
            return Err("the prefix of the keys in etcd must not be empty".to_owned());
        }
        Ok(Self { endpoints, prefix: prefix.to_owned(), ttl })
    }

    /// The endpoints, for messages.
    pub fn place(&self) -> String {
        self.endpoints.join(",")
    }

    fn nodes_prefix(&self) -> String {
        format!("{}/nodes/", self.prefix)
    }

    /// For one call. Half a TTL: a slower answer is of no use for saying who is here, and two tries fit into the life of a session.
    fn deadline(&self) -> Duration {
        self.ttl / 2
    }

    /// Between two signs of life of the session, and of the watch.
    fn pulse(&self) -> Duration {
        self.ttl / 6
    }
}

/// Starts the watch and the session of `node`. The session is not held before [`Session::announce`].
pub fn start(settings: &Settings, node: NodeId, tasks: &Tasks, metrics: Metrics) -> (Session, watch::Receiver<View>) {
    let (view_in, view) = watch::channel(View::Away { since: clock::monotonic() });
    tasks.spawn("etcd members", members::run(settings.clone(), view_in, tasks.stopping.clone(), metrics.clone()));
    let session = Session::start(settings, node, view.clone(), tasks, metrics);
    (session, view)
}

/// Says once that contact is lost, and once that it is back.
#[derive(Debug)]
struct Contact {
    what: &'static str,
    is_lost: bool,
    tries: u32,
}

impl Contact {
    fn new(what: &'static str) -> Self {
        Self { what, is_lost: false, tries: 0 }
    }

    fn lost(&mut self, error: &Error) {
        self.tries = self.tries.saturating_add(1);
        if !self.is_lost {
            self.is_lost = true;
            tracing::warn!(error = %crate::shutdown::chain(error), "etcd: {} is lost; shards stay where they are", self.what);
        }
    }

    fn back(&mut self) {
        self.tries = 0;
        if self.is_lost {
            self.is_lost = false;
            tracing::info!("etcd: {} is back", self.what);
        }
    }

    /// The pause before the next try: 100 ms, twice as long each time, up to 1 s.
    fn pause(&self) -> Duration {
        Duration::from_millis(50 << self.tries.min(5)).min(Duration::from_secs(1))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TTL: Duration = Duration::from_secs(3);

    #[test]
    fn endpoints_are_hosts_with_ports() {
        let settings = Settings::new("http://a:2379, b:2379,", "punctual", TTL).unwrap();
        assert_eq!(settings.place(), "http://a:2379,b:2379");
        assert_eq!(settings.nodes_prefix(), "punctual/nodes/");
        for wrong in ["", " , ", "a", "a:b", ":1", "http://", "a:1/x", "a:70000"] {
            assert!(Settings::new(wrong, "punctual", TTL).is_err(), "{wrong}");
        }
        assert!(Settings::new("a:1", "/", TTL).is_err());
    }

    #[test]
    fn the_pause_between_tries_grows_to_a_second() {
        let mut contact = Contact::new("x");
        let pauses: Vec<_> = (0..7)
            .map(|_| {
                contact.lost(&Error::Ended { what: "x" });
                contact.pause().as_millis()
            })
            .collect();
        assert_eq!(pauses, [100, 200, 400, 800, 1000, 1000, 1000]);
    }
}
