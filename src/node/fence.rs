//! The fence: whether the node may claim, publish and adopt at the moment, and why it is not ready.
//!
//! A heartbeat proves for 5/6 of a TTL that the node's batches are its own. After a longer pause,
//! the node is fenced, and publishes nothing before the adopter has asked Postgres.
//!
//! Fencing has three layers. `engine/liveness/fencing.rs` has the rule for one TTL.
//! `node/membership/fencing.rs` applies the rule to the heartbeats of this node, and counts in
//! generations how often the node was fenced. This file adds the clock, Kafka and the drain.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use tokio_util::sync::CancellationToken;

use super::membership::FencingHandle;
use super::messages::{NotReady, Requirement};
use crate::clock::ClusterClock;
use crate::kafka::KafkaContact;

#[derive(Debug)]
pub struct Fence {
    clock: Arc<ClusterClock>,
    contact: KafkaContact,
    draining: CancellationToken,
    fencing: FencingHandle,
    /// The generation in which the node last asked for its own batches. 0 at the start, when the
    /// node has no batches.
    checked: AtomicU64,
}

impl Fence {
    pub fn new(
        clock: Arc<ClusterClock>,
        contact: KafkaContact,
        draining: CancellationToken,
        fencing: FencingHandle,
    ) -> Self {
        Self { clock, contact, draining, fencing, checked: AtomicU64::new(0) }
    }

    /// Returns true while the node's batches are certainly its own.
    pub fn may_publish(&self) -> bool {
        self.fencing.holds(self.checked.load(Ordering::Acquire))
    }

    /// Returns the generation in which the node must check its batches, if the node is fenced.
    pub fn fenced_generation(&self) -> Option<u64> {
        let generation = self.fencing.generation();
        (generation != self.checked.load(Ordering::Acquire)).then_some(generation)
    }

    /// Lifts the fence: the node has asked which batches are its own, and dropped the others.
    pub fn lift(&self, checked: u64) {
        self.checked.store(checked, Ordering::Release);
    }

    /// Waits until the node is fenced and Postgres can be asked.
    pub async fn until_fenced(&self) {
        let mut fencing = self.fencing.clone();
        loop {
            if fencing.regained().await != self.checked.load(Ordering::Acquire) {
                return;
            }
            fencing.changed().await;
        }
    }

    pub fn may_claim(&self) -> bool {
        self.may_adopt() && self.clock.is_steady()
    }

    /// Adopting does not need a steady clock: the tasks of a batch were due within the window of
    /// its claim.
    pub fn may_adopt(&self) -> bool {
        self.may_publish() && self.has_broker() && !self.draining.is_cancelled()
    }

    pub fn has_broker(&self) -> bool {
        self.contact.is_reachable()
    }

    fn why_fenced(&self) -> &'static str {
        if self.fencing.holds(self.fencing.generation()) {
            "this node has not checked yet which batches are its own"
        } else {
            "this node has no recent heartbeat"
        }
    }

    /// Returns why the node can neither claim nor publish: it drains, no broker answers, or it is
    /// fenced. Empty when it can.
    pub fn missing(&self) -> Vec<NotReady> {
        let mut missing = Vec::new();
        let mut add = |is_missing: bool, what: Requirement, why: String| {
            if is_missing {
                missing.push(NotReady { what, why });
            }
        };
        add(
            self.draining.is_cancelled(),
            Requirement::Draining,
            "the node is shutting down".to_owned(),
        );
        add(!self.has_broker(), Requirement::Kafka, self.contact.trouble());
        add(!self.may_publish(), Requirement::Heartbeat, self.why_fenced().to_owned());
        missing
    }
}
