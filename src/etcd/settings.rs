//! Addresses and credentials of etcd, and the times that follow from the TTL.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::RwLock;

/// The credentials of a node.
#[derive(Clone, PartialEq, Eq, Default)]
pub struct Credentials {
    /// A user and its password.
    pub login: Option<(String, String)>,
    /// The authorities that the servers' certificates are checked against, in PEM. `None` for those
    /// of the machine.
    pub ca: Option<String>,
    /// A certificate with its chain, and its key, both in PEM. Shown to `https://` endpoints.
    pub identity: Option<(String, String)>,
}

impl fmt::Debug for Credentials {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("(secret)")
    }
}

/// The endpoints of etcd, and the prefix of the cluster's keys.
/// Clones share the credentials.
#[derive(Clone, Debug)]
pub struct EtcdSettings {
    endpoints: Vec<String>,
    prefix: String,
    ttl: Duration,
    credentials: Arc<RwLock<Credentials>>,
}

impl EtcdSettings {
    /// `endpoints` are `host:port` or URLs, at least one. `prefix` is the name of the cluster; its
    /// keys are `<prefix>/nodes/<node>`. `ttl` is how long a key outlives its node, rounded up to
    /// whole seconds for etcd.
    pub fn new(
        endpoints: Vec<String>,
        prefix: &str,
        ttl: Duration,
        credentials: Credentials,
    ) -> Self {
        let credentials = Arc::new(RwLock::new(credentials));
        Self { endpoints, prefix: prefix.to_owned(), ttl, credentials }
    }

    /// Returns the endpoints in turns.
    pub(super) fn endpoint(&self, turn: usize) -> &str {
        self.endpoints.get(turn % self.endpoints.len().max(1)).map_or("", String::as_str)
    }

    pub(super) fn credentials(&self) -> Credentials {
        self.credentials.read().clone()
    }

    /// Replaces the credentials. Clients that are made afterwards have the new ones.
    pub fn replace_credentials(&self, credentials: Credentials) {
        *self.credentials.write() = credentials;
    }

    pub(super) fn ttl(&self) -> Duration {
        self.ttl
    }

    pub(super) fn nodes_prefix(&self) -> String {
        format!("{}/nodes/", self.prefix)
    }

    /// The deadline of one call: half a TTL. A slower answer is of no use for membership, and two
    /// attempts fit into the life of a session.
    pub(super) fn deadline(&self) -> Duration {
        self.ttl / 2
    }

    /// The interval between two keep-alives of the session, and of the watch.
    pub(super) fn pulse(&self) -> Duration {
        self.ttl / 6
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TTL: Duration = Duration::from_secs(3);

    #[test]
    fn endpoints_take_turns() {
        let endpoints = vec!["http://a:2379".to_owned(), "b:2379".to_owned()];
        let settings = EtcdSettings::new(endpoints, "punctual", TTL, Credentials::default());
        assert_eq!(
            [0, 1, 2].map(|turn| settings.endpoint(turn)),
            ["http://a:2379", "b:2379", "http://a:2379"]
        );
        assert_eq!(settings.nodes_prefix(), "punctual/nodes/");
    }

    #[test]
    fn credentials_are_not_printed() {
        let pair = Some(("hunter1".to_owned(), "hunter2".to_owned()));
        let settings = EtcdSettings::new(
            Vec::new(),
            "punctual",
            TTL,
            Credentials { login: pair.clone(), ca: None, identity: pair },
        );
        assert!(!format!("{settings:?}").contains("hunter"));
    }
}
