//! Looks up names of services. Only addresses that may be called come out, and the client connects
//! to these.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;

use reqwest::dns::{Addrs, Name, Resolve, Resolving};
use tokio::sync::Semaphore;

use crate::domain::topic::callback::policy::CallbackPolicy;

/// Maximum number of concurrent look-ups of one callback. Each takes a thread of a pool that other
/// work shares.
const LOOK_UPS_MAX: usize = 4;

/// The resolver of the clients of callbacks.
#[derive(Debug)]
pub(super) struct CheckedResolver {
    policy: Arc<CallbackPolicy>,
    permits: Arc<Semaphore>,
}

impl CheckedResolver {
    pub fn new(policy: Arc<CallbackPolicy>) -> Self {
        Self { policy, permits: Arc::new(Semaphore::new(LOOK_UPS_MAX)) }
    }
}

impl Resolve for CheckedResolver {
    fn resolve(&self, name: Name) -> Resolving {
        let (policy, permits) = (Arc::clone(&self.policy), Arc::clone(&self.permits));
        Box::pin(async move {
            let _permit = permits.acquire_owned().await?;
            // The client sets the port.
            let found: Vec<SocketAddr> =
                tokio::net::lookup_host((name.as_str(), 0)).await?.collect();
            Ok(allowed(&policy, name.as_str(), found)?)
        })
    }
}

/// Returns the addresses that may be called.
///
/// # Errors
/// When there is none. One forbidden address does not spoil the others.
fn allowed(
    policy: &CallbackPolicy,
    name: &str,
    found: Vec<SocketAddr>,
) -> Result<Addrs, io::Error> {
    let mut refused = None;
    let mut usable = Vec::new();
    for address in found {
        match policy.check_address(address.ip()) {
            Ok(()) => usable.push(address),
            Err(error) => refused = Some(error),
        }
    }
    match (usable.is_empty(), refused) {
        (false, _) => Ok(Box::new(usable.into_iter())),
        (true, Some(error)) => Err(io::Error::new(io::ErrorKind::PermissionDenied, error)),
        (true, None) => {
            Err(io::Error::new(io::ErrorKind::NotFound, format!("{name} has no address")))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_addresses_that_may_be_called_come_out() {
        let hosts = vec!["*".parse().unwrap()];
        let policy = CallbackPolicy { hosts, networks: vec!["10.0.0.0/8".parse().unwrap()] };
        let looked_up = |found: &[&str]| {
            let found = found.iter().map(|address| SocketAddr::new(address.parse().unwrap(), 0));
            allowed(&policy, "jobs.example", found.collect())
                .map(|addresses| addresses.map(|one| one.ip().to_string()).collect::<Vec<_>>())
        };
        assert_eq!(looked_up(&["127.0.0.1", "10.1.1.1", "::1"]).unwrap(), ["10.1.1.1"]);
        let refused = looked_up(&["169.254.169.254"]).unwrap_err().to_string();
        assert!(refused.contains("169.254.169.254"), "{refused}");
        assert!(looked_up(&[]).unwrap_err().to_string().contains("jobs.example"));
    }
}
