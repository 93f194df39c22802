//! Publish: hand records to Kafka and learn their outcome.
//!
//! A record goes to the producer with a *ticket*, which names the slot of its batch and its place in it. Its report comes back with the ticket, on the
//! producer's own thread, which is never blocked: the outcome is noted, and a batch whose outcomes are all known goes to the settler.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock, PoisonError, RwLock};

use super::holdings::{Held, Holdings, Noted};
use super::mailbox::Mailbox;
use super::metrics::Metrics;
use crate::clock::{self, ClusterClock};
use crate::domain::{Outcome, TaskId};
use crate::engine::topics::{Action, retry_delay};
use crate::kafka::producer::{self, Fate, Producer, Report, SendError};

/// What became of handing a record over.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Handed {
    /// It is with the producer, or its outcome is known already.
    Over,
    /// The producer's queue is full: try again soon.
    Full,
}

/// Where reports end up: shared by the producers' threads and the rest of the node.
#[derive(Debug)]
pub struct Reports {
    pub holdings: Arc<Holdings>,
    clock: Arc<ClusterClock>,
    metrics: Metrics,
    /// Tasks whose record is to be handed over once more.
    pub again: Mailbox<(Arc<Held>, u32)>,
    /// Records whose batch was refused as too large: each is tried alone.
    alone: Mailbox<(Arc<Held>, u32)>,
    /// Batches all of whose outcomes are known.
    pub completed: Mailbox<Arc<Held>>,
    /// What the states of the topics have come to.
    pub topic_actions: Mailbox<Action>,
    /// True while no broker can be reached: nothing is deferred then.
    is_cut_off: AtomicBool,
}
