//! Where etcd is, and the times that follow from the TTL.

use std::time::Duration;

/// Where etcd is, and what the keys of the cluster begin with.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Settings {
    endpoints: Vec<String>,
    prefix: String,
    ttl: Duration,
}

impl Settings {
    /// `endpoints`: `host:port` or URLs, at least one. `prefix`: the cluster's name, under which `nodes/<node>` are the keys. `ttl`: how long a key
    /// outlives its node; whole seconds for etcd, rounded up.
    pub fn new(endpoints: Vec<String>, prefix: &str, ttl: Duration) -> Self {
        Self { endpoints, prefix: prefix.to_owned(), ttl }
    }

    /// One endpoint after the other, for ever.
    pub(super) fn endpoint(&self, turn: usize) -> &str {
        self.endpoints.get(turn % self.endpoints.len().max(1)).map_or("", String::as_str)
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
        let settings = Settings::new(vec!["http://a:2379".to_owned(), "b:2379".to_owned()], "punctual", TTL);
        assert_eq!([0, 1, 2].map(|turn| settings.endpoint(turn)), ["http://a:2379", "b:2379", "http://a:2379"]);
        assert_eq!(settings.nodes_prefix(), "punctual/nodes/");
    }
}
