//! The place and the id of a new task: its place is a batch of this node, a leaf, or the far table,
//! as [`crate::engine::placing`] decides for this node's state.

use crate::domain::{NewTask, Timestamp};
use crate::engine::placing;
use crate::engine::placing::Destination;
use crate::node::shared::NodeShared;

/// The facts that decide about the tasks of one group.
#[derive(Clone, Copy, Debug)]
pub struct Placer<'a> {
    shared: &'a NodeShared,
    may_claim: bool,
    rule: placing::Rule,
}

impl<'a> Placer<'a> {
    pub fn new(shared: &'a NodeShared, now: Timestamp) -> Self {
        Self {
            shared,
            may_claim: shared.fence.may_claim() && shared.in_flight.has_room_on_insert(),
            // Before the first look at the leaves, all tasks go to the far table. The mover brings
            // them back.
            rule: placing::Rule::new(
                now,
                shared.cluster.window,
                shared.leaves.end().unwrap_or_default(),
            ),
        }
    }

    /// Returns the rule of the group.
    pub fn rule(&self) -> placing::Rule {
        self.rule
    }

    pub fn place_of(&self, task: &NewTask) -> Destination {
        let is_open = || {
            let topic = &task.record.topic;
            !self.shared.policies.is_paused(topic) && self.shared.in_flight.topics().is_open(topic)
        };
        self.rule.place_of(task.id.due_at(), || self.may_claim && is_open())
    }

    /// Returns the table for a task that is not claimed.
    pub fn table_of(&self, task: &NewTask) -> Destination {
        self.rule.table_of(task.id.due_at())
    }
}

/// Assigns ids to tasks submitted now: in their order, behind all earlier tasks of the node.
pub fn assign_ids<'a>(shared: &NodeShared, tasks: impl IntoIterator<Item = &'a mut NewTask>) {
    let now = shared.now();
    for task in tasks {
        clamp(task, now);
        task.submitted(&shared.submit_order, now, (rand::random(), rand::random()));
    }
}

/// Makes an overdue task due now, because a leaf of the past may be retired already.
pub fn clamp(task: &mut NewTask, now: Timestamp) {
    if task.id.due_at() < now.floor_millis() {
        task.id = task.id.due_at_least(now.floor_millis());
    }
}
