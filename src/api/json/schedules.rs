//! A schedule in JSON. Sent again by PUT, the answer of a GET makes the same schedule, without the
//! members that only answers have.

use serde::ser::SerializeMap;
use serde::{Serialize, Serializer};

use super::answers::{RecordOf, Shows};
use super::times::Rfc3339;
use super::tracked::TrackedJson;
use crate::domain::schedule::plan::MissedPolicy;
use crate::domain::schedule::timing::Recurrence;
use crate::domain::schedule::{Specification, StoredSchedule};
use crate::domain::time::duration::spelled;

/// A schedule, and what its caller may see of it.
#[derive(Debug)]
pub struct ScheduleJson<'a> {
    stored: &'a StoredSchedule,
    shows: Shows,
    /// Headers and payload may be large, so a list has none.
    is_listed: bool,
    /// The number of upcoming runs to show.
    next_count: Option<usize>,
}

impl<'a> ScheduleJson<'a> {
    pub const fn new(stored: &'a StoredSchedule, shows: Shows) -> Self {
        Self { stored, shows, is_listed: false, next_count: None }
    }

    pub const fn listed(stored: &'a StoredSchedule, shows: Shows) -> Self {
        Self { stored, shows, is_listed: true, next_count: None }
    }

    /// Adds the next runs.
    #[must_use]
    pub const fn with_next(self, count: Option<usize>) -> Self {
        Self { next_count: count, ..self }
    }
}

impl Serialize for ScheduleJson<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let StoredSchedule { schedule, revision, runs_made, .. } = self.stored;
        let mut map = serializer.serialize_map(None)?;
        map.serialize_entry("topic", schedule.record.topic.as_str())?;
        map.serialize_entry("name", schedule.name.as_str())?;
        map.serialize_entry("revision", revision)?;
        specification_entries(&mut map, &schedule.specification)?;
        if !schedule.specification.spread.is_zero() {
            map.serialize_entry("shift", &spelled(schedule.shift()))?;
        }
        if schedule.specification.has_zone() && !self.stored.tzdata.is_empty() {
            map.serialize_entry("tzdata", &self.stored.tzdata)?;
        }
        if let Some(tracking) = schedule.tracking.as_deref() {
            TrackedJson::wishes(&mut map, tracking)?;
        }
        match self.shows {
            Shows::Metadata => map.serialize_entry("redacted", &true)?,
            Shows::All => {
                RecordOf { record: &schedule.record, is_listed: self.is_listed }
                    .entries(&mut map)?;
            }
        }
        map.serialize_entry("runs_made", runs_made)?;
        let next = self.stored.upcoming(1);
        if let Some(next) = next.first() {
            map.serialize_entry("next_run_at", &Rfc3339(*next))?;
        }
        if let Some(count) = self.next_count {
            let next = self.stored.upcoming(count);
            let next: Vec<Rfc3339> = next.into_iter().map(Rfc3339).collect();
            map.serialize_entry("next", &next)?;
        }
        map.end()
    }
}

fn specification_entries<M: SerializeMap>(
    map: &mut M,
    specification: &Specification,
) -> Result<(), M::Error> {
    let Specification { timing, runs_max, missed, run_overlap, spread, is_paused, note } =
        specification;
    match timing.recurrence() {
        Recurrence::Cron { cron, zone, gap, overlap } => {
            map.serialize_entry("cron", cron.text())?;
            if cron.has_seconds() {
                map.serialize_entry("seconds", &true)?;
            }
            map.serialize_entry("time_zone", zone.name())?;
            map.serialize_entry("dst", &DstJson { gap: gap.as_str(), overlap: overlap.as_str() })?;
            map.serialize_entry("words", &cron.words())?;
        }
        Recurrence::Every { period, phase } => {
            map.serialize_entry("every", &spelled(*period))?;
            map.serialize_entry("phase", &spelled(*phase))?;
        }
    }
    let times = [("starts_at", timing.starts_at()), ("ends_at", timing.ends_at())];
    for (name, time) in times {
        if let Some(time) = time {
            map.serialize_entry(name, &Rfc3339(time))?;
        }
    }
    if !timing.excluded().is_empty() {
        let days: Vec<String> = timing.excluded().iter().map(|day| day.to_string()).collect();
        map.serialize_entry("exclude", &days)?;
    }
    if let Some(runs_max) = runs_max {
        map.serialize_entry("runs_max", runs_max)?;
    }
    let is_all = missed.policy() == MissedPolicy::All;
    let missed = MissedJson {
        policy: missed.policy().as_str(),
        within: missed.within().map(spelled),
        count_max: is_all.then(|| missed.count_max()),
    };
    map.serialize_entry("missed", &missed)?;
    map.serialize_entry("overlap", run_overlap.as_str())?;
    if !spread.is_zero() {
        map.serialize_entry("spread", &spelled(*spread))?;
    }
    map.serialize_entry("paused", is_paused)?;
    if let Some(note) = note {
        map.serialize_entry("note", note)?;
    }
    Ok(())
}

#[derive(Serialize)]
struct DstJson {
    gap: &'static str,
    overlap: &'static str,
}

#[derive(Serialize)]
struct MissedJson {
    policy: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    within: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    count_max: Option<u16>,
}

/// The answer to a backfill.
#[derive(Debug, Serialize)]
pub struct BackfillJson {
    pub dry_run: bool,
    /// The number of runs that were made, or that a dry run would make.
    pub made: u64,
    pub already_made: u64,
    /// The instants in the range.
    pub runs: Vec<Rfc3339>,
}

/// A page of schedules.
#[derive(Debug, Serialize)]
pub struct SchedulePage<'a> {
    pub schedules: Vec<ScheduleJson<'a>>,
    /// The name after which the next page begins. Null at the end.
    pub next_after: Option<&'a str>,
}
