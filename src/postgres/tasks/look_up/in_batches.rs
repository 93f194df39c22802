//! Finds the row of a task in the batches, settled or in flight.

use sqlx::Row;
use sqlx::postgres::{PgConnection, PgRow};
use uuid::Uuid;

use super::attempts::tracked_of;
use crate::domain::{
    Actors, Outcome, Receipt, TaskId, TaskState, Timestamp, TrackedView, WidthClass,
};
use crate::postgres::tasks::principals::actors_of;
use crate::postgres::unsettled::{UnsettledFloor, lowest_batch_of};

/// Reads settled batches by width class, from the narrowest, and then the batches in flight. `$1`
/// is the lowest batch id, `$2` the row, `$3` the classes, `$4` the lowest id with which a batch of
/// each class can begin, `$5` the lowest id of an unsettled batch.
pub const IN_BATCHES: &str = "-- look up in batches
select f.batch, f.position, f.settled_at is not null as is_settled, f.outcomes[f.position]
  as outcome,
  f.partitions[f.position] as partition, f.offsets[f.position] as offset,
    f.published_ats[f.position] as published_at,
  f.next_ids[f.position] as next, f.names[f.position] as name, coalesce(f.attempts[f.position],
    1::smallint) as attempt,
  (select s.name from principal s where s.id = f.submitted_by[least(f.position,
    cardinality(f.submitted_by))]) as submitted_by,
  f.submitted_ats[least(f.position, cardinality(f.submitted_ats))] as submitted_at,
  f.topic_names[coalesce(f.topic_indexes[f.position], 1)] as topic,
  f.trackings[f.position] as tracking, f.moved_tos[f.position] as moved_to
from (
  (select b.*, array_position(b.ids, $2) as position
   from unnest($3::smallint[], $4::uuid[]) as c (width_class, lowest)
   cross join lateral (
     select * from execlog_batch
     where batch >= $1 and width_class = c.width_class and id_from >= c.lowest and id_from <= $2
       and id_to >= $2 and $2 = any(ids)
     limit 1
   ) b
   limit 1)
  union all
  (select u.*, array_position(u.ids, $2)
   from execlog_batch u
   where u.settled_at is null and u.batch >= $5 and $2 = any(u.ids)
   limit 1)
) f
limit 1";

/// The entry of one row in its batch.
pub(super) struct BatchEntry {
    pub(super) batch: Uuid,
    /// 1-based.
    pub(super) position: i32,
    pub(super) is_settled: bool,
    pub(super) outcome: Option<i16>,
    pub(super) receipt: Option<Receipt>,
    pub(super) next: Option<TaskId>,
    pub(super) topic: Option<String>,
    pub(super) name: Option<String>,
    pub(super) attempt: i16,
    pub(super) moved_to: Option<Timestamp>,
    /// Of an expired task.
    pub(super) expires_at: Option<Timestamp>,
    pub(super) actors: Actors,
    pub(super) tracked: Option<Box<TrackedView>>,
}

impl BatchEntry {
    pub(super) fn state(&self) -> TaskState {
        match (self.is_settled, self.outcome) {
            (false, _) => TaskState::Claimed,
            (true, Some(Outcome::PUBLISHED)) => TaskState::Published,
            (true, Some(Outcome::ATTEMPTED)) => TaskState::Awaiting,
            (true, Some(Outcome::EXPIRED)) => TaskState::Expired,
            (true, _) => TaskState::Dead,
        }
    }
}

/// Reads the column `moved_to`.
pub(in crate::postgres) fn moved_of(row: &PgRow) -> Result<Option<Timestamp>, sqlx::Error> {
    Ok(row.try_get::<Option<i64>, _>("moved_to")?.map(Timestamp::from_millis))
}

pub(super) async fn in_batches(
    open: &mut PgConnection,
    row: TaskId,
    unsettled: UnsettledFloor,
) -> Result<Option<BatchEntry>, sqlx::Error> {
    let earliest = lowest_batch_of(std::iter::once(row));
    let width_classes: Vec<i16> = WidthClass::all().map(WidthClass::as_smallint).collect();
    let starts: Vec<Uuid> =
        WidthClass::all().map(|width_class| width_class.lowest_start(row)).collect();
    let found = sqlx::query(IN_BATCHES)
        .bind(earliest)
        .bind(row.uuid())
        .bind(width_classes)
        .bind(starts)
        .bind(unsettled.of(std::iter::once(row)))
        .fetch_optional(open)
        .await?;
    found.as_ref().map(entry_of).transpose()
}

fn entry_of(row: &PgRow) -> Result<BatchEntry, sqlx::Error> {
    let outcome: Option<i16> = row.try_get("outcome")?;
    let (partition, offset): (Option<i32>, Option<i64>) =
        (row.try_get("partition")?, row.try_get("offset")?);
    let published_at: Option<i64> = row.try_get("published_at")?;
    let is_expired = outcome == Some(Outcome::EXPIRED);
    let receipt = match (outcome, partition, offset, published_at) {
        (
            Some(Outcome::PUBLISHED | Outcome::ATTEMPTED),
            Some(partition),
            Some(offset),
            Some(at),
        ) => Some(Receipt { partition, offset, published_at: Timestamp::from_millis(at) }),
        _ => None,
    };
    Ok(BatchEntry {
        batch: row.try_get("batch")?,
        position: row.try_get("position")?,
        is_settled: row.try_get("is_settled")?,
        outcome,
        receipt,
        next: row.try_get::<Option<Uuid>, _>("next")?.map(TaskId::from_uuid),
        topic: row.try_get("topic")?,
        name: row.try_get("name")?,
        attempt: row.try_get("attempt")?,
        moved_to: moved_of(row)?,
        expires_at: published_at.filter(|_at| is_expired).map(Timestamp::from_millis),
        actors: actors_of(row)?,
        tracked: tracked_of(row)?,
    })
}
