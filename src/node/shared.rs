//! The state that the loops of a node share with each other, and with the requests of its API.

use std::sync::Arc;

use az::SaturatingAs as _;
use parking_lot::Mutex;
use tokio::sync::{Notify, watch};
use uuid::Uuid;

use super::fence::Fence;
use super::in_flight::batches::{InFlightBatch, InFlightBatches, Past};
use super::in_flight::inbox::Inbox;
use super::maintenance::Leaves;
use super::metrics::NodeMetrics;
use super::publish::wheel::Entrance;
use super::topic_keeper::policies::TopicPolicies;
use crate::access::limits::pending::PendingFigures;
use crate::clock::{self, ClusterClock};
use crate::domain::{
    Batch, ClusterSettings, IdRange, Monotonic, NodeId, PrincipalId, PrincipalName, SubmitOrder,
    TaskId, Timestamp, TopicName,
};
use crate::engine::topics::Sight;
use crate::postgres::PostgresError;
use crate::postgres::tasks::principals::{Interned, Principals};

/// The maximum number of id ranges behind the watermark waiting to be claimed.
const LATE_MAX: usize = 64;

#[derive(Debug)]
pub struct NodeShared {
    pub node: NodeId,
    pub cluster: ClusterSettings,
    pub clock: Arc<ClusterClock>,
    pub in_flight: Arc<InFlightBatches>,
    pub fence: Arc<Fence>,
    pub leaves: Arc<Leaves>,
    pub policies: Arc<TopicPolicies>,
    pub pending: Arc<PendingFigures>,
    pub wheel: Entrance,
    pub metrics: NodeMetrics,
    pub calls: Calls,
    pub submit_order: SubmitOrder,
    pub callers: CallerNumbers,
}

/// The calls to the claim loops, and to the loop that makes runs of schedules.
#[derive(Debug, Default)]
pub struct Calls {
    /// A topic takes records again, or is given up: look for its skipped tasks. A count lets each
    /// loop see each change.
    pub sweep: watch::Sender<u64>,
    /// Ids that the node inserted behind the watermark. The first loop claims them now.
    pub late: Inbox<IdRange>,
    /// A dev server has set the clock: look for schedules whose runs are to be made.
    pub runs: Notify,
    quarantine: Mutex<Vec<Uuid>>,
}

impl Calls {
    /// Returns the ids that cannot be claimed.
    pub fn quarantined(&self) -> Vec<Uuid> {
        self.quarantine.lock().clone()
    }

    pub fn set_quarantined(&self, ids: Vec<Uuid>) {
        *self.quarantine.lock() = ids;
    }
}

/// The numbers of callers in the tables.
#[derive(Debug)]
pub struct CallerNumbers {
    pub principals: Principals,
    pub metrics: NodeMetrics,
}

impl CallerNumbers {
    /// Returns the number of a caller. `None` when the caller is anonymous, and when all numbers
    /// are taken: then the change is stored without its name.
    ///
    /// # Errors
    /// The caller must change nothing, because the author of the change would be unknown.
    pub async fn of(&self, name: &PrincipalName) -> Result<Option<PrincipalId>, PostgresError> {
        let interned = self.principals.intern(name).await?;
        if interned == Interned::UsedUp {
            self.metrics.principals_not_stored.inc();
        }
        Ok(interned.id())
    }
}

impl NodeShared {
    /// Returns the cluster's clock, or the epoch before the clock is known.
    pub fn now(&self) -> Timestamp {
        self.clock.now().unwrap_or_default()
    }

    /// Takes a batch in, and puts it on the wheel.
    pub async fn take_in(&self, batch: Batch, past: Past) {
        let Some(held) = self.in_flight.add(batch, past, clock::monotonic()) else { return };
        self.put_on_wheel(held).await;
    }

    async fn put_on_wheel(&self, held: Arc<InFlightBatch>) {
        if !self.wheel.put(held).await {
            tracing::warn!("the wheel has ended; a batch is left for other nodes to adopt");
        }
    }

    /// Takes in a batch that another owner may have published. Tasks of `paused` topics are
    /// deferred when due.
    pub async fn take_in_loaded(&self, batch: Batch, paused: Vec<TopicName>) {
        let now = clock::monotonic();
        let Some(held) = self.in_flight.add(batch, Past::MaybeSent, now) else { return };
        held.leave_out(paused);
        self.put_on_wheel(held).await;
    }

    /// Takes in a batch claimed on insert.
    pub async fn take_in_on_insert(&self, batch: Batch) {
        let count = batch.len().saturating_as::<u64>();
        self.metrics.claimed.inc_by(count);
        self.metrics.claimed_on_insert.inc_by(count);
        self.take_in(batch, Past::Fresh).await;
    }

    /// Records a stored group. `stored_count` of its `task_count` tasks were stored at `stamp` of
    /// Postgres's clock, which was asked for at `asked_at`.
    pub fn group_stored(
        &self,
        task_count: usize,
        stored_count: usize,
        stamp: Timestamp,
        asked_at: Monotonic,
    ) {
        self.clock.take_in(stamp, asked_at);
        self.metrics.submit_duration.observe(clock::monotonic().since(asked_at).as_secs_f64());
        self.metrics.submit_group_tasks.observe(f64::from(task_count.saturating_as::<u32>()));
        self.metrics.submitted.inc_by(stored_count.saturating_as::<u64>());
    }

    /// Has late inserts claimed now: tasks that were stored behind the watermark, or close before
    /// it.
    pub fn claim_late(&self, ids: Option<IdRange>) {
        let (Some(ids), Some(now)) = (ids, self.clock.now()) else { return };
        if TaskId::from_uuid(ids.from).due_at() <= now.plus(self.cluster.window) {
            // The claim loop leaves out tasks due beyond the window.
            self.calls.late.put_or_join(ids, LATE_MAX, IdRange::joined);
        }
    }

    /// Records that Kafka has the topic. A topic given up is probed at once, so tasks accepted now
    /// are not given up, too.
    pub fn found(&self, topic: &TopicName) {
        self.metrics.topics.found(topic);
        if !self.in_flight.is_topic_gone(topic) {
            return;
        }
        let closed = self.in_flight.topics().probed(topic, Sight::There, clock::monotonic());
        if closed.is_some() {
            tracing::info!(%topic, "the topic exists again; retrying its tasks");
            self.sweep();
        }
    }

    /// Has the claim loops sweep for tasks that claims have skipped.
    pub fn sweep(&self) {
        self.calls.sweep.send_modify(|count| *count += 1);
    }
}
