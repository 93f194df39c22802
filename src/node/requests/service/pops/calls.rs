//! The calls of pop that wait at a node, by topic and group, and their metrics.

use std::collections::HashMap;
use std::sync::Arc;

use parking_lot::Mutex;
use tokio::sync::{mpsc, oneshot};

use crate::domain::topic::group::ConsumerGroup;
use crate::domain::{Monotonic, PrincipalName, TopicName};
use crate::node::messages::Unavailable;
use crate::node::messages::answers::Popped;
use crate::telemetry::{Counter, Gauge, Registry};

/// The most calls of one group that wait at a node for a record. As many again wait for the reader
/// to take them.
pub const WAITERS_MAX: usize = 5_000;

/// A call that waits for tasks.
#[derive(Debug)]
pub struct Waiter {
    pub count_max: usize,
    pub until: Monotonic,
    pub reply: oneshot::Sender<Result<Vec<Popped>, Unavailable>>,
}

impl Waiter {
    /// Answers that the tasks cannot be had, for this reason.
    pub fn refuse(self, reason: String) {
        if self.reply.send(Err(Unavailable::ServerAway { reason })).is_err() {
            tracing::trace!("the caller is gone");
        }
    }
}

/// The metrics of pops.
#[derive(Clone, Debug, Default)]
pub struct PopMetrics {
    pub popped: Counter,
    pub skipped: Counter,
    pub waiting: Gauge,
    pub groups: Gauge,
}

impl PopMetrics {
    pub fn register(registry: &mut Registry) -> Self {
        let metrics = Self::default();
        registry.register(
            "punctual_popped_tasks",
            "Attempts of tracked tasks that were given to callers of pop",
            metrics.popped.clone(),
        );
        registry.register(
            "punctual_pop_skipped_records",
            "Records that were passed over for pops: of untracked tasks, of attempts that are over",
            metrics.skipped.clone(),
        );
        registry.register(
            "punctual_pop_waiting",
            "Calls of pop that wait for a task",
            metrics.waiting.clone(),
        );
        registry.register(
            "punctual_pop_groups",
            "Consumer groups for which the node reads a topic",
            metrics.groups.clone(),
        );
        metrics
    }
}

pub type Key = (TopicName, ConsumerGroup);

/// A reader, as its callers know it.
#[derive(Debug)]
pub struct Reader {
    pub calls: mpsc::Sender<Waiter>,
    /// The principal of the call for which it was made.
    pub by: PrincipalName,
}

/// The readers of a node by topic and group.
#[derive(Clone, Debug, Default)]
pub struct Readers(pub Arc<Mutex<HashMap<Key, Reader>>>);

impl Readers {
    /// Forgets a reader, unless a call has come meanwhile.
    pub fn forget(&self, key: &Key, calls: &mpsc::Receiver<Waiter>) -> bool {
        let mut all = self.0.lock();
        let is_idle = calls.is_empty();
        if is_idle {
            all.remove(key);
        }
        is_idle
    }
}
