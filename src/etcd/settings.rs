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
    fn endpoints_are_hosts_with_ports() {
        for wrong in ["", " , ", "a", "a:b", ":1", "http://", "a:1/x", "a:70000"] {
            assert!(Settings::new(wrong, "punctual", TTL).is_err(), "{wrong}");
        }
        assert!(Settings::new("a:1", "/", TTL).is_err());
    }

    #[test]
    fn endpoints_take_turns() {
        let settings = Settings::new("http://a:2379, b:2379,", "punctual", TTL).unwrap();
        assert_eq!([0, 1, 2].map(|turn| settings.endpoint(turn)), ["http://a:2379", "b:2379", "http://a:2379"]);
        assert_eq!(settings.nodes_prefix(), "punctual/nodes/");
    }
}
