//! Where etcd is, and the times that follow from the TTL.

use std::fmt;
use std::time::Duration;

/// How a node proves to etcd who it is.
#[derive(Clone, PartialEq, Eq, Default)]
pub struct Credentials {
    /// A user and its password.
    pub login: Option<(String, String)>,
    /// A certificate, with those that vouch for it, and its key, both in PEM. Shown to `https://` endpoints.
    pub identity: Option<(String, String)>,
}

impl fmt::Debug for Credentials {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("(secret)")
    }
}

/// Where etcd is, and what the keys of the cluster begin with.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Settings {
    endpoints: Vec<String>,
    prefix: String,
    ttl: Duration,
    credentials: Credentials,
}

impl Settings {
    /// `endpoints`: `host:port` or URLs, at least one. `prefix`: the cluster's name, under which `nodes/<node>` are the keys. `ttl`: how long a key
    /// outlives its node; whole seconds for etcd, rounded up.
    pub fn new(endpoints: Vec<String>, prefix: &str, ttl: Duration, credentials: Credentials) -> Self {
        Self { endpoints, prefix: prefix.to_owned(), ttl, credentials }
    }

    /// One endpoint after the other, for ever.
    pub(super) fn endpoint(&self, turn: usize) -> &str {
        self.endpoints.get(turn % self.endpoints.len().max(1)).map_or("", String::as_str)
    }

    pub(super) fn credentials(&self) -> &Credentials {
        &self.credentials
    }

    pub(super) fn ttl(&self) -> Duration {
        self.ttl
    }

    pub(super) fn nodes_prefix(&self) -> String {
        format!("{}/nodes/", self.prefix)
    }

    /// For one call. Half a TTL: a slower answer is of no use for saying who is here, and two tries fit into the life of a session.
    pub(super) fn deadline(&self) -> Duration {
        self.ttl / 2
    }

    /// Between two signs of life of the session, and of the watch.
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
        let settings = Settings::new(endpoints, "punctual", TTL, Credentials::default());
        assert_eq!([0, 1, 2].map(|turn| settings.endpoint(turn)), ["http://a:2379", "b:2379", "http://a:2379"]);
        assert_eq!(settings.nodes_prefix(), "punctual/nodes/");
    }

    #[test]
    fn credentials_are_not_printed() {
        let pair = Some(("hunter1".to_owned(), "hunter2".to_owned()));
        let settings = Settings::new(Vec::new(), "punctual", TTL, Credentials { login: pair.clone(), identity: pair });
        assert!(!format!("{settings:?}").contains("hunter"));
    }
}
