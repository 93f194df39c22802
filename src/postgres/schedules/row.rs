//! The row of a schedule: how its columns are written and read.

use std::collections::BTreeSet;
use std::time::Duration;

use az::SaturatingAs as _;
use sqlx::postgres::{PgArguments, PgRow};
use sqlx::query::Query;
use sqlx::{Postgres, Row as _};

use crate::domain::schedule::cron::Cron;
use crate::domain::schedule::plan::{MissedPolicy, MissedRuns, NotMissed, RunOverlap};
use crate::domain::schedule::timing::{Gap, Overlap, Recurrence, Timing};
use crate::domain::schedule::zone::{self, Zone};
use crate::domain::schedule::{Schedule, ScheduleId, Specification, StoredSchedule};
use crate::domain::{Headers, Record, ScheduleName, Timestamp, TopicName, TrackedRow, Unopened};
use crate::postgres::tasks::look_up::listed_key;
use crate::sealing::{KeySet, OpenedRecord, OwnedColumns, RecordOwner};

/// The columns of a specification, in the order of [`bind`].
pub(super) const SPECIFICATION: &str = "cron, has_seconds, time_zone, dst_gap, dst_overlap, \
     every_ms, phase_ms, starts_at, ends_at, exclude, runs_max, missed_count_max, \
     missed_within_ms, is_paused, note, skips_overlap, spread_ms, tzdata";

/// Returns the columns of a schedule with its record. They are named, because a new column would
/// change the result of `*`, and Postgres refuses a prepared statement whose result changes.
pub(super) fn all_columns() -> String {
    format!(
        "id, topic, name, shard, key, payload, headers, tracking, submitted_by, revision,
  next_run_at, runs_made, skipped, not_missed_from, not_missed_to, runs_known_from, {SPECIFICATION}"
    )
}

/// Binds the columns of [`SPECIFICATION`].
pub(super) fn bind<'q>(
    query: Query<'q, Postgres, PgArguments>,
    specification: &Specification,
) -> Query<'q, Postgres, PgArguments> {
    let timing = &specification.timing;
    let query = match timing.recurrence() {
        Recurrence::Cron { cron, zone, gap, overlap } => query
            .bind(Some(cron.text().to_owned()))
            .bind(cron.has_seconds())
            .bind(Some(zone.name().to_owned()))
            .bind(Some(gap.as_str()))
            .bind(Some(overlap.as_str()))
            .bind(None::<i64>)
            .bind(None::<i64>),
        Recurrence::Every { period, phase } => query
            .bind(None::<String>)
            .bind(false)
            .bind(None::<String>)
            .bind(None::<&str>)
            .bind(None::<&str>)
            .bind(Some(millis_of(*period)))
            .bind(Some(millis_of(*phase))),
    };
    query
        .bind(timing.starts_at().map(Timestamp::as_millis))
        .bind(timing.ends_at().map(Timestamp::as_millis))
        .bind(timing.excluded().iter().map(|day| day.to_string()).collect::<Vec<_>>())
        .bind(specification.runs_max.map(|count| count.saturating_as::<i64>()))
        .bind(i32::from(specification.missed.count_max()))
        .bind(specification.missed.within().map(millis_of))
        .bind(specification.is_paused)
        .bind(specification.note.clone())
        .bind(specification.run_overlap == RunOverlap::Skip)
        .bind(millis_of(specification.spread))
        .bind(zone::rules_version())
}

/// Reads the columns of [`SPECIFICATION`].
///
/// # Errors
/// When a newer version of the program has written what this one cannot read, such as a zone.
pub(super) fn specification_of(row: &PgRow) -> Result<Specification, sqlx::Error> {
    let missed_count_max: i32 = row.try_get("missed_count_max")?;
    let within = span_of(row, "missed_within_ms")?;
    let (policy, count_max) = match missed_count_max {
        0 => (MissedPolicy::None, None),
        1 => (MissedPolicy::Last, None),
        count => (MissedPolicy::All, Some(count.saturating_as::<u16>())),
    };
    let runs_max: Option<i64> = row.try_get("runs_max")?;
    let days: Vec<String> = row.try_get("exclude")?;
    let excluded: Result<BTreeSet<_>, _> = days.iter().map(|day| day.parse()).collect();
    let timing = Timing::new(
        recurrence_of(row)?,
        time_of(row, "starts_at")?,
        time_of(row, "ends_at")?,
        excluded.map_err(unreadable)?,
    );
    Ok(Specification {
        timing: timing.map_err(unreadable)?,
        runs_max: runs_max.map(|count| count.saturating_as::<u64>()),
        missed: MissedRuns::new(policy, within, count_max).map_err(unreadable)?,
        run_overlap: if row.try_get("skips_overlap")? {
            RunOverlap::Skip
        } else {
            RunOverlap::Allow
        },
        spread: span_of(row, "spread_ms")?.unwrap_or_default(),
        is_paused: row.try_get("is_paused")?,
        note: row.try_get("note")?,
    })
}

fn recurrence_of(row: &PgRow) -> Result<Recurrence, sqlx::Error> {
    if let Some(period) = span_of(row, "every_ms")? {
        let phase = span_of(row, "phase_ms")?.unwrap_or_default();
        return Recurrence::every(period, phase).map_err(unreadable);
    }
    let (cron, zone): (String, String) = (row.try_get("cron")?, row.try_get("time_zone")?);
    let (gap, overlap): (String, String) = (row.try_get("dst_gap")?, row.try_get("dst_overlap")?);
    let unknown = |what: &str| unreadable(format!("the policy {what:?} is unknown"));
    Ok(Recurrence::Cron {
        cron: Cron::stored(&cron, row.try_get("has_seconds")?).map_err(unreadable)?,
        zone: Zone::named(&zone).map_err(unreadable)?,
        gap: Gap::named(&gap).ok_or_else(|| unknown(&gap))?,
        overlap: Overlap::named(&overlap).ok_or_else(|| unknown(&overlap))?,
    })
}

/// Reads the record of a schedule.
///
/// # Errors
/// When this node lacks the payload key, or the record was not sealed for this schedule.
pub(super) fn record_of(row: &PgRow, keys: &KeySet) -> Result<OwnedColumns, sqlx::Error> {
    let stored = OwnedColumns {
        key: row.try_get("key")?,
        payload: row.try_get("payload")?,
        headers: row.try_get("headers")?,
    };
    let owner = RecordOwner::Schedule(row.try_get("topic")?, row.try_get("name")?);
    match keys.open(owner, stored.as_columns()) {
        OpenedRecord::Plain => Ok(stored),
        OpenedRecord::Opened(opened) => Ok(opened),
        OpenedRecord::Unopened(Unopened::NoKey(id)) => Err(unreadable(format!(
            "its record is encrypted with payload key {id}, which this node lacks"
        ))),
        OpenedRecord::Unopened(Unopened::Damaged) => {
            Err(unreadable("its record was not encrypted for this schedule"))
        }
    }
}

/// Reads a schedule with [`all_columns`].
pub(super) fn schedule_of(row: &PgRow, keys: &KeySet) -> Result<StoredSchedule, sqlx::Error> {
    stored_of(row, record_of(row, keys)?)
}

/// Reads a schedule of a list, which has the beginning of the headers and no payload. The result
/// has neither, and no key when the key is long, or this node cannot decrypt it.
pub(super) fn listed_schedule_of(
    row: &PgRow,
    keys: &KeySet,
) -> Result<StoredSchedule, sqlx::Error> {
    let head = row.try_get::<Option<Vec<u8>>, _>("headers")?.unwrap_or_default();
    let owner = RecordOwner::Schedule(row.try_get("topic")?, row.try_get("name")?);
    let key = keys.open_key(owner, &head, row.try_get("key")?).unwrap_or_default();
    stored_of(row, OwnedColumns { key: listed_key(key).key, ..OwnedColumns::default() })
}

fn stored_of(row: &PgRow, record: OwnedColumns) -> Result<StoredSchedule, sqlx::Error> {
    let OwnedColumns { key, payload, headers } = record;
    let tracking: Option<Vec<u8>> = row.try_get("tracking")?;
    let tracking = match tracking {
        Some(bytes) => Some(Box::new(TrackedRow::decode(&bytes).map_err(unreadable)?.tracking)),
        None => None,
    };
    let ahead: Option<Vec<i64>> = row.try_get("ahead")?;
    let taken: Vec<i64> = row.try_get("taken")?;
    let count = |column: &str| -> Result<u64, sqlx::Error> {
        Ok(row.try_get::<i64, _>(column)?.saturating_as::<u64>())
    };
    Ok(StoredSchedule {
        id: ScheduleId(row.try_get("id")?),
        schedule: Schedule {
            name: ScheduleName::stored(row.try_get("name")?),
            specification: specification_of(row)?,
            record: Record {
                topic: TopicName::stored(row.try_get("topic")?),
                key: key.map(Vec::into_boxed_slice),
                payload: payload.map(Vec::into_boxed_slice),
                headers: Headers::stored(headers),
            },
            tracking,
        },
        revision: count("revision")?,
        next_run_at: time_of(row, "next_run_at")?,
        runs_made: count("runs_made")?,
        skipped: count("skipped")?,
        not_missed: not_missed_of(row)?,
        ahead: ahead.unwrap_or_default().into_iter().map(Timestamp::from_millis).collect(),
        taken: taken.into_iter().map(Timestamp::from_millis).collect(),
        read_at: Timestamp::from_micros(row.try_get("now")?),
        tzdata: row.try_get("tzdata")?,
        runs_known_from: Timestamp::from_millis(row.try_get("runs_known_from")?),
    })
}

pub(super) fn not_missed_of(row: &PgRow) -> Result<NotMissed, sqlx::Error> {
    Ok(NotMissed {
        from: Timestamp::from_millis(row.try_get("not_missed_from")?),
        to: Timestamp::from_millis(row.try_get("not_missed_to")?),
    })
}

pub(super) fn time_of(row: &PgRow, column: &str) -> Result<Option<Timestamp>, sqlx::Error> {
    let millis: Option<i64> = row.try_get(column)?;
    Ok(millis.map(Timestamp::from_millis))
}

fn span_of(row: &PgRow, column: &str) -> Result<Option<Duration>, sqlx::Error> {
    let millis: Option<i64> = row.try_get(column)?;
    Ok(millis.map(|millis| Duration::from_millis(millis.saturating_as::<u64>())))
}

pub(super) fn millis_of(span: Duration) -> i64 {
    span.as_millis().saturating_as::<i64>()
}

fn unreadable(error: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> sqlx::Error {
    sqlx::Error::Decode(error.into())
}
