//! Recurring schedules.
//!
//! | file | holds |
//! |---|---|
//! | `name` | names of schedules, and of their runs |
//! | `cron`, `zone` | the local times that match a cron expression; time zones |
//! | `timing` | the instants of a schedule, a pure function |
//! | `plan` | which runs to make now, and how missed ones are made up for |
//! | `change` | where the plan goes on after a change |
//! | `backfill` | the instants of the past that a caller asks runs for |

pub mod backfill;
pub mod change;
pub mod cron;
pub mod name;
pub mod plan;
pub mod timing;
pub mod zone;

use std::time::Duration;

use self::name::ScheduleName;
use self::plan::{MissedRuns, NotMissed, Plan, Progress, Rules, RunOverlap};
use self::timing::{Recurrence, SpecificationError, Timing};
use super::task::spread;
use super::{
    Headers, NewTask, Record, Shard, ShardCount, TaskName, Timestamp, TopicName, Tracking,
};

/// The longest note, in bytes.
const NOTE_BYTES_MAX: usize = 1024;

/// When a schedule runs, and what becomes of runs that were missed.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Specification {
    pub timing: Timing,
    /// The schedule ends after this many runs.
    pub runs_max: Option<u64>,
    pub missed: MissedRuns,
    pub run_overlap: RunOverlap,
    /// Each run is due later than its instant by a part of this: see [`Specification::shift`].
    pub spread: Duration,
    pub is_paused: bool,
    /// A text for people.
    pub note: Option<String>,
}

/// A schedule as requested. Each run publishes its record.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Schedule {
    pub name: ScheduleName,
    pub specification: Specification,
    pub record: Record,
    /// Set when the runs are tracked tasks.
    pub tracking: Option<Box<Tracking>>,
}

/// The condition on the revision of a schedule, or of the policy of a topic, under which a change
/// is made.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum RevisionCondition {
    #[default]
    None,
    /// There is none.
    IsNew,
    /// There is one.
    Exists,
    Is(u64),
}

impl RevisionCondition {
    /// Returns true when a change of this revision is allowed. `None`: there is none.
    pub fn allows(self, current: Option<u64>) -> bool {
        match self {
            Self::None => true,
            Self::IsNew => current.is_none(),
            Self::Exists => current.is_some(),
            Self::Is(revision) => current == Some(revision),
        }
    }
}

impl Schedule {
    /// Returns a task without payload that has the shard and the key of a run that is due at
    /// `due_at`. All runs of a schedule have one shard: that of their key, else of its name.
    pub fn run_task(
        (topic, name): (&TopicName, &ScheduleName),
        key: Option<Box<[u8]>>,
        due_at: Timestamp,
        shards: ShardCount,
        random: (u64, u64),
    ) -> NewTask {
        let record =
            Record { topic: topic.clone(), key, payload: None, headers: Headers::default() };
        NewTask::new(record, TaskName::new(name.as_str()).ok(), due_at, shards, random)
    }

    /// Returns how much later than its instant each run is due.
    pub fn shift(&self) -> Duration {
        self.specification.shift(&self.record.topic, &self.name)
    }

    /// Returns the shard of the runs.
    pub fn shard(&self, shards: ShardCount) -> Shard {
        let place = (&self.record.topic, &self.name);
        Self::run_task(place, self.record.key.clone(), Timestamp::EPOCH, shards, (0, 0)).id.shard()
    }
}

/// The number of a schedule in the tables.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct ScheduleId(pub i64);

/// A schedule as it is stored.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct StoredSchedule {
    pub id: ScheduleId,
    pub schedule: Schedule,
    /// Counts the changes from 1.
    pub revision: u64,
    /// The first instant whose run is not made. `None` when the schedule has ended.
    pub next_run_at: Option<Timestamp>,
    pub runs_made: u64,
    /// Instants before `next_run_at` that got no run, since the last run.
    pub skipped: u64,
    pub not_missed: NotMissed,
    /// The instants whose runs are made and due after now, in order. An answer about one schedule
    /// leaves out those whose runs have ended.
    pub ahead: Vec<Timestamp>,
    /// See [`Progress::taken`].
    pub taken: Vec<Timestamp>,
    /// When the schedule was read, by Postgres's clock.
    pub read_at: Timestamp,
    /// The version of the time zone rules that `next_run_at` comes from. Empty when a program that
    /// did not note it has stored the schedule.
    pub tzdata: String,
    /// Earlier runs may have been forgotten.
    pub runs_known_from: Timestamp,
}

impl StoredSchedule {
    /// Returns true when `ahead` and `next_run_at` are what the rules of this program for time
    /// zones make of the schedule at `now`.
    pub fn follows_own_rules(&self, now: Timestamp) -> bool {
        let timing = &self.schedule.specification.timing;
        let instants: Vec<Timestamp> = self.ahead.iter().copied().chain(self.next_run_at).collect();
        let Some(first) = instants.first() else { return true };
        let before = now.min(first.minus(Duration::from_millis(1)));
        timing.next_after(before) == Some(*first)
            && instants.is_sorted_by(|one, next| timing.next_after(*one) == Some(*next))
    }

    /// Returns the instants from one time to before another, for which a caller asks runs at `now`.
    ///
    /// # Errors
    /// See [`backfill::instants`] and [`backfill::check_bytes`].
    pub fn instants_to_backfill(
        &self,
        range: (Timestamp, Timestamp),
        now: Timestamp,
    ) -> Result<Vec<Timestamp>, SpecificationError> {
        let timing = &self.schedule.specification.timing;
        let found = backfill::instants(timing, range, self.runs_known_from, now)?;
        backfill::check_bytes(found.len(), self.schedule.record.bytes())?;
        Ok(found)
    }

    /// Returns the next instants that have a run or will have one, in order, at most `count`. One
    /// that has passed is among them only if it still gets a run.
    pub fn upcoming(&self, count: usize) -> Vec<Timestamp> {
        let specification = &self.schedule.specification;
        if specification.is_paused {
            return Vec::new();
        }
        let mut runs = self.ahead.clone();
        if let Some(next_run_at) = self.next_run_at {
            let progress = Progress {
                next_run_at,
                runs_made: self.runs_made,
                skipped: self.skipped,
                is_busy: false,
                taken: &self.taken,
                not_missed: self.not_missed,
            };
            let now = self.read_at.minus(self.schedule.shift());
            runs.extend(plan::coming(specification.rules(count), progress, now));
        }
        runs.sort_unstable();
        runs.truncate(count);
        runs
    }
}

/// The result of a change of a schedule.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum ScheduleChange {
    Created(StoredSchedule),
    /// For a deleted schedule: as it was.
    Changed(StoredSchedule),
    /// The schedule was so already.
    Unchanged(StoredSchedule),
    NotFound,
    /// The condition does not allow the current revision. `None`: there is no schedule.
    Unmet(Option<u64>),
    /// The schedule would have no run after now.
    NoRun,
    /// Another request has created the schedule just now.
    Overtaken,
    /// The schedule would be new, and the cluster has as many as it may have.
    TooMany {
        schedules_max: u64,
    },
}

impl Specification {
    /// Returns the note, if it is short enough and Postgres can store it.
    ///
    /// # Errors
    /// Says what a note may be.
    pub fn checked_note(note: &str) -> Result<String, SpecificationError> {
        if note.len() > NOTE_BYTES_MAX || note.contains('\0') {
            let reason = format!("expected {NOTE_BYTES_MAX} bytes at most, without NUL");
            return Err(SpecificationError::new("note", reason));
        }
        Ok(note.to_owned())
    }

    /// Returns the first instant of the schedule after `after`, if it may have more than the
    /// `runs_made` so far.
    pub fn next_after(&self, after: Timestamp, runs_made: u64) -> Option<Timestamp> {
        let has_ended = self.runs_max.is_some_and(|runs_max| runs_made >= runs_max);
        if has_ended { None } else { self.timing.next_after(after) }
    }

    /// Returns how much later than its instant each run is due. The name of the schedule decides,
    /// so that its runs keep their distance and their order.
    pub fn shift(&self, topic: &TopicName, name: &ScheduleName) -> Duration {
        // The name of a schedule is a valid name of a task.
        let name = TaskName::new(name.as_str()).ok();
        spread::part_of(self.spread, topic, (name.as_ref(), None), 0)
    }

    /// Returns true when versions before `overlap` and `spread` would make other runs.
    pub fn differs_by_version(&self) -> bool {
        self.run_overlap == RunOverlap::Skip || !self.spread.is_zero()
    }

    /// Returns true when the rules of time zones decide about the instants.
    pub fn has_zone(&self) -> bool {
        matches!(self.timing.recurrence(), Recurrence::Cron { .. })
    }

    /// Decides the runs to make at `now`, at most `count_max` of them, for a schedule that has come
    /// this far. Each run is due `shift` after its instant.
    pub fn plan(
        &self,
        progress: Progress<'_>,
        now: Timestamp,
        shift: Duration,
        count_max: usize,
    ) -> Plan {
        let plan = plan::plan(self.rules(count_max), progress, now.minus(shift));
        Plan { look_at: plan.look_at.map(|look_at| look_at.plus(shift)), ..plan }
    }

    fn rules(&self, count_max: usize) -> Rules<'_> {
        Rules {
            timing: &self.timing,
            runs_max: self.runs_max,
            missed: self.missed,
            overlap: self.run_overlap,
            count_max,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn the_next_runs_are_in_order_those_that_wait_and_those_to_come() {
        let at = |minute: i64| Timestamp::from_millis(minute * 60_000);
        let recurrence = Recurrence::every(Duration::from_secs(60), Duration::ZERO).unwrap();
        let specification = Specification {
            timing: Timing::new(recurrence, None, None, BTreeSet::new()).unwrap(),
            runs_max: Some(10),
            missed: MissedRuns::LAST,
            run_overlap: RunOverlap::Allow,
            spread: Duration::ZERO,
            is_paused: false,
            note: None,
        };
        let topic = TopicName::stored("t");
        let record = Record { topic, key: None, payload: None, headers: Headers::default() };
        let name = ScheduleName::new("n").unwrap();
        // A caller has cancelled the run of minute 12, and a change has left that of minute 13.
        let mut stored = StoredSchedule {
            id: ScheduleId(1),
            schedule: Schedule { name, specification, record, tracking: None },
            revision: 1,
            next_run_at: Some(at(11)),
            runs_made: 6,
            skipped: 0,
            not_missed: NotMissed::default(),
            ahead: vec![at(13)],
            taken: vec![at(12), at(13)],
            read_at: at(10),
            tzdata: String::new(),
            runs_known_from: Timestamp::EPOCH,
        };
        assert_eq!(stored.upcoming(3), [11, 13, 14].map(at));
        assert_eq!(stored.upcoming(9), [11, 13, 14, 15, 16].map(at), "four more of ten");
        stored.schedule.specification.is_paused = true;
        assert!(stored.upcoming(3).is_empty());
    }
}
