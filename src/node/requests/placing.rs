//! Where a new task goes: into a batch at once, to its leaf, or to the far table.

use crate::domain::{NewTask, Timestamp};
use crate::engine::placing;
pub use crate::engine::placing::Place;
use crate::node::shared::Shared;
use crate::postgres::Error;

/// What decides about the tasks of one group.
#[derive(Clone, Copy, Debug)]
pub struct Sorter<'a> {
    shared: &'a Shared,
    may_claim: bool,
    rule: placing::Rule,
}

impl<'a> Sorter<'a> {
    pub fn new(shared: &'a Shared, now: Timestamp) -> Self {
        Self {
            shared,
            may_claim: shared.fence.may_claim() && shared.in_flight.has_room_on_insert(),
            // Before the first look at the leaves everything goes to the far table; the mover
            // brings it back.
            rule: placing::Rule::new(now, shared.cluster.window, shared.leaves.end().unwrap_or_default()),
        }
    }

    /// The same for what could not be claimed: nothing is.
    pub fn without_claims(self) -> Self {
        Self { may_claim: false, ..self }
    }

    pub fn place_of(&self, task: &NewTask) -> Place {
        let is_open = || self.shared.in_flight.topics().is_open(&task.record.topic);
        self.rule.place_of(task.id.due_at(), || self.may_claim && is_open())
    }

    /// The table that a task belongs in when it is not claimed.
    pub fn table_of(&self, task: &NewTask) -> Place {
        self.rule.table_of(task.id.due_at())
    }
}

/// True when a claim on insert took no effect, and may be what failed: a lock on the execlog, or a
/// partition of it that is missing. Tables of tasks may well take what their execlog does not.
pub fn may_do_without_claim(error: &Error) -> bool {
    matches!(error, Error::GaveWay { .. } | Error::Refused { .. })
}

/// Gives tasks that are submitted now the ids under which they are stored: in their order, behind
/// all that this node was given before.
pub fn put_in_order<'a>(shared: &Shared, tasks: impl IntoIterator<Item = &'a mut NewTask>) {
    let now = shared.now();
    for task in tasks {
        clamp(std::slice::from_mut(task), now);
        task.submitted(&shared.submit_order, now, (rand::random(), rand::random()));
    }
}

/// What is overdue is due now: a leaf of the past may be retired already.
pub fn clamp(tasks: &mut [NewTask], now: Timestamp) {
    for task in tasks.iter_mut().filter(|task| task.id.due_at() < now.floor_millis()) {
        task.id = task.id.due_at_least(now.floor_millis());
    }
}
