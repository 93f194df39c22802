//! The current policy.

use std::sync::Arc;

use arc_swap::ArcSwap;

use super::policy::Policy;

/// The policy that holds now. Cheap to clone, and to read without a lock.
#[derive(Clone, Debug)]
pub struct PolicyHandle(Arc<ArcSwap<Policy>>);

impl PolicyHandle {
    pub fn new(policy: Policy) -> Self {
        Self(Arc::new(ArcSwap::from_pointee(policy)))
    }

    /// Returns the policy that holds now. A request asks once, so that it is judged by one policy.
    pub fn current(&self) -> Arc<Policy> {
        self.0.load_full()
    }

    /// Replaces the policy. Requests in progress keep theirs.
    pub fn replace(&self, policy: Policy) {
        self.0.store(Arc::new(policy));
    }
}
