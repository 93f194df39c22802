//! Schedules of the model: they are stored, and make no runs.

use az::SaturatingAs as _;
use parking_lot::Mutex;

use crate::domain::schedule::plan::NotMissed;
use crate::domain::schedule::{RevisionCondition, ScheduleChange, ScheduleId, StoredSchedule};
use crate::domain::{ScheduleName, Shard, TaskId, TaskState, Timestamp, TopicName};
use crate::node::messages::{
    Backfill, BackfillAnswer, BackfillDone, PutSchedule, Refusal, Triggered,
};

/// The model's clock stands still: 2026-01-01T00:00:00Z.
pub const NOW_MILLIS: i64 = 1_767_225_600_000;

/// The most schedules of the model.
pub const SCHEDULES_MAX: u64 = 100;

#[derive(Debug, Default)]
pub struct Schedules(Mutex<Vec<StoredSchedule>>);

impl Schedules {
    pub fn put(&self, put: PutSchedule, sees_record: bool) -> Result<ScheduleChange, Refusal> {
        let PutSchedule { schedule, condition, is_dry_run } = put;
        if schedule.record.topic.as_str() == "no-such-topic" {
            return Err(Refusal::UnknownTopic);
        }
        let current = self.find(&schedule.record.topic, &schedule.name);
        let revision = current.as_ref().map(|current| current.revision);
        if !condition.allows(revision) {
            return Ok(ScheduleChange::Unmet(revision));
        }
        let Some(next) = schedule.specification.next_after(now(), 0) else {
            return Ok(ScheduleChange::NoRun);
        };
        let stored = StoredSchedule {
            id: ScheduleId(0),
            schedule,
            revision: revision.unwrap_or_default() + 1,
            next_run_at: Some(next),
            runs_made: 0,
            skipped: 0,
            not_missed: NotMissed::default(),
            ahead: Vec::new(),
            taken: Vec::new(),
            read_at: now(),
            tzdata: "2026a".to_owned(),
            runs_known_from: Timestamp::EPOCH,
        };
        let change = match current {
            Some(current)
                if current.schedule == stored.schedule && (sees_record || !is_dry_run) =>
            {
                return Ok(ScheduleChange::Unchanged(current));
            }
            Some(_) => ScheduleChange::Changed(stored.clone()),
            None if self.0.lock().len().saturating_as::<u64>() >= SCHEDULES_MAX => {
                return Ok(ScheduleChange::TooMany { schedules_max: SCHEDULES_MAX });
            }
            None => ScheduleChange::Created(stored.clone()),
        };
        if !is_dry_run {
            self.store(stored);
        }
        Ok(change)
    }

    fn store(&self, stored: StoredSchedule) {
        self.remove(&stored.schedule.record.topic, &stored.schedule.name);
        self.0.lock().push(stored);
    }

    fn remove(&self, topic: &TopicName, name: &ScheduleName) {
        self.0.lock().retain(|one| !is_it(one, topic, name));
    }

    pub fn find(&self, topic: &TopicName, name: &ScheduleName) -> Option<StoredSchedule> {
        self.0.lock().iter().find(|one| is_it(one, topic, name)).cloned()
    }

    pub fn list(
        &self,
        topic: &TopicName,
        after: Option<ScheduleName>,
        limit: usize,
    ) -> Vec<StoredSchedule> {
        let is_next = |one: &StoredSchedule| {
            one.schedule.record.topic == *topic
                && after.as_ref().is_none_or(|after| one.schedule.name > *after)
        };
        let mut found: Vec<StoredSchedule> =
            self.0.lock().iter().filter(|one| is_next(one)).cloned().collect();
        found.sort_by(|one, other| one.schedule.name.cmp(&other.schedule.name));
        found.truncate(limit);
        found
    }

    pub fn set_paused(
        &self,
        topic: &TopicName,
        name: &ScheduleName,
        is_paused: bool,
    ) -> ScheduleChange {
        let Some(mut stored) = self.find(topic, name) else { return ScheduleChange::NotFound };
        if stored.schedule.specification.is_paused == is_paused {
            return ScheduleChange::Unchanged(stored);
        }
        stored.schedule.specification.is_paused = is_paused;
        stored.revision += 1;
        self.store(stored.clone());
        ScheduleChange::Changed(stored)
    }

    pub fn delete(
        &self,
        topic: &TopicName,
        name: &ScheduleName,
        condition: RevisionCondition,
    ) -> ScheduleChange {
        let Some(stored) = self.find(topic, name) else { return ScheduleChange::NotFound };
        if !condition.allows(Some(stored.revision)) {
            return ScheduleChange::Unmet(Some(stored.revision));
        }
        self.remove(topic, name);
        ScheduleChange::Changed(stored)
    }

    pub fn backfill(
        &self,
        place: (&TopicName, &ScheduleName),
        wanted: &Backfill,
    ) -> BackfillAnswer {
        match self.find(place.0, place.1) {
            Some(stored) => backfilled(&stored, (wanted.from, wanted.to)),
            None => BackfillAnswer::NotFound,
        }
    }

    pub fn trigger(&self, topic: &TopicName, name: &ScheduleName) -> Option<Triggered> {
        let stored = self.find(topic, name)?;
        Some(Triggered {
            id: TaskId::new(now(), Shard::new(0), 0),
            name: Some(name.of_run(now()).ok()?),
            state: TaskState::Claimed,
            schedule: stored.schedule,
        })
    }
}

/// Returns the number of instants, as a backfill that makes them all.
fn backfilled(stored: &StoredSchedule, range: (Timestamp, Timestamp)) -> BackfillAnswer {
    match stored.instants_to_backfill(range, now()) {
        Ok(runs) => BackfillAnswer::Done(BackfillDone {
            made: runs.len().saturating_as::<u64>(),
            known: 0,
            runs,
        }),
        Err(error) => BackfillAnswer::Refused(error),
    }
}

fn is_it(stored: &StoredSchedule, topic: &TopicName, name: &ScheduleName) -> bool {
    stored.schedule.record.topic == *topic && stored.schedule.name == *name
}

fn now() -> Timestamp {
    Timestamp::from_millis(NOW_MILLIS)
}
