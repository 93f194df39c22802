//! Where a new task goes: into a batch at once, to its leaf, or to the far table; and what follows when it is stored.

use std::sync::Arc;
use std::time::Duration;

use super::claimer;
use super::holdings::Past;
use super::keeper::Leaves;
use super::wheel::Entrance;
use crate::clock;
use crate::domain::{Batch, IdRange, NewTask, TaskId, Timestamp};
use crate::engine::placing;
pub use crate::engine::placing::Place;

/// Ranges of ids behind the front that wait to be claimed.
const LATE_MAX: usize = 64;

/// What it takes to find a task its place, and to see that it is not forgotten there. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Placing {
    pub shared: Arc<claimer::Shared>,
    pub leaves: Arc<Leaves>,
    pub wheel: Entrance,
    pub window: Duration,
}

/// What decides about the tasks of one group.
#[derive(Clone, Copy, Debug)]
pub struct Sorter<'a> {
    shared: &'a claimer::Shared,
    may_claim: bool,
    rule: placing::Sorter,
}

impl Sorter<'_> {
    pub fn place_of(&self, task: &NewTask) -> Place {
        let is_open = || self.shared.holdings.topics().is_open(&task.record.topic);
        self.rule.place_of(task.id.due_at(), || self.may_claim && is_open())
    }

    /// The table that a task belongs in when it is not claimed.
    pub fn table_of(&self, task: &NewTask) -> Place {
        self.rule.table_of(task.id.due_at())
    }
}

impl Placing {
    /// The cluster's clock; the epoch before it is known.
    pub fn now(&self) -> Timestamp {
        self.shared.clock.now().unwrap_or_default()
    }

    pub fn sorter(&self, now: Timestamp) -> Sorter<'_> {
        Sorter {
            shared: &self.shared,
            may_claim: self.shared.gate.may_claim() && self.shared.holdings.has_room_on_insert(),
            // Before the first look at the leaves everything goes to the far table; the mover brings it back.
            rule: placing::Sorter::new(now, self.window, self.leaves.end().unwrap_or_default()),
        }
    }

    /// Takes in a batch that was claimed as it was inserted.
    pub async fn hold(&self, batch: Batch) {
        let count = u64::try_from(batch.len()).unwrap_or(u64::MAX);
        self.shared.metrics.claimed.inc_by(count);
        self.shared.metrics.claimed_on_insert.inc_by(count);
        let Some(held) = self.shared.holdings.hold(batch, Past::Fresh, clock::monotonic()) else { return };
        if !self.wheel.put(held).await {
            tracing::warn!("the wheel has ended; a claimed batch is left for others to adopt");
        }
    }

    /// What was stored behind the front, or close before it, is not left to chance.
    pub fn look_after(&self, ids: Option<IdRange>) {
        let (Some(ids), Some(now)) = (ids, self.shared.clock.now()) else { return };
        if TaskId::from_uuid(ids.from).due_at() <= now.plus(self.window) {
            // Who takes them leaves out what is due beyond the window.
            self.shared.late.put_or_join(ids, LATE_MAX, IdRange::joined);
            self.shared.nudge();
        }
    }
}

/// What is overdue is due now: a leaf of the past may be retired already.
pub fn clamp(tasks: &mut [NewTask], now: Timestamp) {
    for task in tasks.iter_mut().filter(|task| task.id.due_at() < now.floor_millis()) {
        task.id = task.id.due_at_least(now.floor_millis());
    }
}
