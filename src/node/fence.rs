//! What this node may do just now: claim, publish, adopt; and what it lacks.
//!
//! *Doubt*: after a pause longer than its own heartbeat vouches for, a node does not know whether its batches are still its own. It publishes nothing then
//! until it has asked Postgres (`adopter`).

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use tokio_util::sync::CancellationToken;

use super::membership::TrustHandle;
use super::messages::{Lack, Missing};
use crate::clock::ClusterClock;
use crate::kafka::Contact;

#[derive(Debug)]
pub struct Gate {
    clock: Arc<ClusterClock>,
    contact: Contact,
    draining: CancellationToken,
    trust: TrustHandle,
    /// The generation of trust in which this node last asked which batches are its own; at the start it holds none.
    checked: AtomicU64,
}

impl Gate {
    pub fn new(clock: Arc<ClusterClock>, contact: Contact, draining: CancellationToken, trust: TrustHandle) -> Self {
        Self { clock, contact, draining, trust, checked: AtomicU64::new(0) }
    }

    /// True while this node's batches are certainly its own.
    pub fn may_publish(&self) -> bool {
        self.trust.holds(self.checked.load(Ordering::Acquire))
    }

    /// The doubt that is to be cleared, if there is one.
    pub fn doubt(&self) -> Option<u64> {
        let generation = self.trust.generation();
        (generation != self.checked.load(Ordering::Acquire)).then_some(generation)
    }

    /// This node has asked which batches are its own, and dropped the others.
    pub fn clear(&self, doubt: u64) {
        self.checked.store(doubt, Ordering::Release);
    }

    /// Waits until there is a doubt, and Postgres can be asked about it.
    pub async fn doubted(&self) {
        let mut trust = self.trust.clone();
        loop {
            if trust.regained().await != self.checked.load(Ordering::Acquire) {
                return;
            }
            trust.changed().await;
        }
    }

    pub fn may_claim(&self) -> bool {
        self.may_adopt() && self.clock.is_steady()
    }

    /// Adopting needs no steady clock: what is in a batch was due within the window of its claim.
    pub fn may_adopt(&self) -> bool {
        self.may_publish() && self.has_broker() && !self.draining.is_cancelled()
    }

    pub fn has_broker(&self) -> bool {
        self.contact.is_held()
    }

    /// What keeps the node from claiming and publishing, besides what its membership says; empty when it is ready.
    pub fn missing(&self) -> Vec<Missing> {
        let mut missing = Vec::new();
        let mut add = |is_missing: bool, what: Lack, why: String| {
            if is_missing {
                missing.push(Missing { what, why });
            }
        };
        add(self.draining.is_cancelled(), Lack::Draining, "the node is shutting down".to_owned());
        add(!self.has_broker(), Lack::Kafka, self.contact.trouble());
        add(!self.may_publish(), Lack::Heartbeat, "no heartbeat vouches for this node".to_owned());
        missing
    }
}
