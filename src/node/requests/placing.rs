//! The place and the id of a new task: its place is a batch of this node, a leaf, or the far table,
//! as [`crate::engine::placing`] decides for this node's state.

use std::time::Duration;

use crate::domain::schedule::Schedule;
use crate::domain::task::spread;
use crate::domain::{Expiry, Headers, NewTask, ScheduleName, Timestamp, TopicName, Tracking};
use crate::engine::placing;
use crate::engine::placing::Destination;
use crate::node::shared::NodeShared;
use crate::postgres::schedules::make::RunTask;

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
        let takes_tasks = || {
            let topic = &task.record.topic;
            !self.shared.policies.is_paused(topic)
                && self.shared.in_flight.topics().takes_tasks(topic)
        };
        self.rule.place_of(task.id.due_at(), || self.may_claim && takes_tasks())
    }

    /// Returns the table for a task that is not claimed.
    pub fn table_of(&self, task: &NewTask) -> Destination {
        self.rule.table_of(task.id.due_at())
    }
}

/// Makes the tasks of runs of one schedule.
#[derive(Debug)]
pub struct RunPlacing<'a> {
    shared: &'a NodeShared,
    placer: Placer<'a>,
    place: (&'a TopicName, &'a ScheduleName),
    key: Option<&'a [u8]>,
    /// The members of the topic's policy that runs have.
    tracking: Option<Box<Tracking>>,
    expiry: Option<Expiry>,
}

impl<'a> RunPlacing<'a> {
    pub fn new(
        shared: &'a NodeShared,
        place: (&'a TopicName, &'a ScheduleName),
        key: Option<&'a [u8]>,
    ) -> Self {
        let (policies, topic) = (&shared.policies, place.0);
        Self {
            shared,
            placer: Placer::new(shared, shared.now()),
            place,
            key,
            tracking: policies.tracking_for(topic, None),
            expiry: policies.expiry_for(topic, None),
        }
    }

    /// Returns the task of the run at an instant, which is due `shift` later, and now if that has
    /// passed. `None`: the instant is beyond the calendar.
    pub fn place(&self, at: Timestamp, shift: Duration, headers: Headers) -> Option<RunTask> {
        let random = (rand::random(), rand::random());
        let (key, shards) = (self.key.map(Box::from), self.shared.cluster.shards);
        let mut task = Schedule::run_task(self.place, key, at.plus(shift), shards, random);
        assign_ids(self.shared, [&mut task]);
        let requested = match shift.is_zero() {
            true => Headers::default(),
            false => spread::in_front_of(at, &Headers::default()),
        };
        Some(RunTask {
            at,
            id: task.id,
            name: self.place.1.of_run(at).ok()?,
            front: self.expiry.map(|expiry| expiry.in_front_of(&requested)).unwrap_or(requested),
            headers,
            tracking: self.tracking.clone(),
            is_far: self.placer.table_of(&task) == Destination::Far,
        })
    }
}

/// Assigns ids to tasks submitted now: in their order, behind all earlier tasks of the node.
pub fn assign_ids<'a>(shared: &NodeShared, tasks: impl IntoIterator<Item = &'a mut NewTask>) {
    let now = shared.now();
    for task in tasks {
        clamp(task, now);
        task.put_behind_earlier(&shared.submit_order, now, (rand::random(), rand::random()));
    }
}

/// Makes an overdue task due now, because a leaf of the past may be retired already.
pub fn clamp(task: &mut NewTask, now: Timestamp) {
    if task.id.due_at() < now.floor_millis() {
        task.id = task.id.due_at_least(now.floor_millis());
    }
}
