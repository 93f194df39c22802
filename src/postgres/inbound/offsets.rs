//! The places in intake topics: the offset of the next record of each partition.

use std::collections::BTreeMap;

use sqlx::Row;
use sqlx::postgres::{PgConnection, PgRow};

use super::{InboundStore, OffsetPrecondition, Position};
use crate::domain::task::intake_record::{IntakeRecord, Rejection};
use crate::domain::{Timestamp, TopicName};
use crate::postgres::PostgresError;

const POSITIONS: &str = "-- offsets of an intake topic
select partition, generation, next, newest_at from intake_offset
where topic = $1 and partition = any($2)";

/// Each begin has a generation of its own, also after the operator has deleted the row.
const BEGIN: &str = "-- begin partitions of an intake topic
insert into intake_offset (topic, partition, generation, next)
select $1, p.partition, coalesce(r.generation, 0) + 1, p.next
from unnest($2::integer[], $3::bigint[]) as p (partition, next)
left join lateral (select max(generation) as generation from intake_rejected
  where topic = $1 and partition = p.partition) r on true
on conflict (topic, partition) do nothing";

const SET: &str = "-- set the offset of an intake topic
update intake_offset set next = $5, generation = generation + 1
where topic = $1 and partition = $2 and generation = $3 and next = $4";

/// The rows of a place that was left keep only what they have: their records are of another log.
const KEEP_LEFT: &str = "-- keep rejections of a place that was left
update intake_rejected r set is_waiting = false from intake_offset o
where r.topic = $1 and r.partition = any($2) and r.is_waiting
  and o.topic = r.topic and o.partition = r.partition and o.generation <> r.generation";

/// The records from an offset on that was set back are checked again.
const FORGET: &str = "-- forget rejections before which the offset was set back
delete from intake_rejected r using intake_offset o
where r.topic = $1 and r.partition = any($2) and r.is_waiting and o.topic = r.topic
  and o.partition = r.partition and o.generation = r.generation and o.next <= r.record_offset";

const WAITING: &str = "-- rejected records of an intake topic that are not written yet
select partition, generation, record_offset, record_at, status, reason from intake_rejected
where topic = $1 and partition = any($2) and is_waiting";

/// Another node may have written the records, too, and deleted the rows.
const WRITTEN: &str = "-- rejected records of an intake topic are written
delete from intake_rejected
where topic = $1 and partition = $2 and generation = $3 and record_offset = any($4) and is_waiting";

/// Larger records are not kept whole: only their place in the log and the reason.
const KEPT_BYTES_MAX: usize = 64 << 10;
/// With so many rejections of a topic in the table, records of further ones are not kept. It bounds
/// what producers of an intake topic can have stored, to some 640 MiB.
const KEPT_RECORDS_MAX: i64 = 10_000;

/// Another node may have written or kept the record meanwhile.
const KEEP: &str = "-- keep a rejected record of an intake topic
update intake_rejected set is_waiting = false, key = coalesce($5, key),
  payload = coalesce($6, payload), headers = coalesce($7, headers)
where topic = $1 and partition = $2 and generation = $3 and record_offset = $4 and is_waiting";

const HAS_ROOM: &str = "-- may a rejected record of an intake topic be kept whole
select count(*) < $2 from (select from intake_rejected where topic = $1 limit $2) counted";

/// The rejections of a partition whose records are not written yet, by their offsets.
pub type WaitingRejections = BTreeMap<i64, Rejection>;

impl InboundStore {
    /// Returns the positions of those partitions that have one.
    pub async fn positions(
        &mut self,
        topic: &TopicName,
        partitions: &[i32],
    ) -> Result<BTreeMap<i32, Position>, PostgresError> {
        let read = async |open: &mut PgConnection| {
            let query = sqlx::query(POSITIONS).bind(topic.as_str()).bind(partitions);
            query.fetch_all(open).await?.iter().map(position_of).collect()
        };
        self.connection.run("read the offsets of an intake topic", read).await
    }

    /// Ends the wait of rejections whose place in the log was left. Returns their number.
    pub async fn leave_rejections(
        &mut self,
        topic: &TopicName,
        partitions: &[i32],
    ) -> Result<u64, PostgresError> {
        let leave = async |open: &mut PgConnection| {
            let [keep, forget] = [KEEP_LEFT, FORGET]
                .map(|statement| sqlx::query(statement).bind(topic.as_str()).bind(partitions));
            let kept = keep.execute(&mut *open).await?.rows_affected();
            forget.execute(open).await?;
            Ok(kept)
        };
        self.connection.run("leave rejections of an intake topic", leave).await
    }

    /// Returns the rejections whose records are not written yet, of the partitions at these
    /// positions.
    pub async fn waiting_rejections(
        &mut self,
        topic: &TopicName,
        positions: &BTreeMap<i32, Position>,
    ) -> Result<BTreeMap<i32, WaitingRejections>, PostgresError> {
        let partitions: Vec<i32> = positions.keys().copied().collect();
        let read = async |open: &mut PgConnection| {
            let query = sqlx::query(WAITING).bind(topic.as_str()).bind(&partitions);
            let mut waiting: BTreeMap<i32, WaitingRejections> = BTreeMap::new();
            for row in query.fetch_all(open).await? {
                let (partition, generation): (i32, i64) =
                    (row.try_get("partition")?, row.try_get("generation")?);
                if positions.get(&partition).is_some_and(|at| at.generation == generation) {
                    let (offset, rejection) = rejection_of(&row)?;
                    waiting.entry(partition).or_default().insert(offset, rejection);
                }
            }
            Ok(waiting)
        };
        self.connection.run("read rejections that are not written", read).await
    }

    /// Gives partitions without a position their first offset. Others keep theirs.
    pub async fn begin_partitions(
        &mut self,
        topic: &TopicName,
        first: &BTreeMap<i32, i64>,
    ) -> Result<(), PostgresError> {
        let (partitions, offsets): (Vec<i32>, Vec<i64>) = first.iter().unzip();
        let begin = async |open: &mut PgConnection| {
            let query = sqlx::query(BEGIN).bind(topic.as_str()).bind(partitions).bind(offsets);
            query.execute(open).await.map(|_done| ())
        };
        self.connection.run("begin partitions of an intake topic", begin).await
    }

    /// Sets the offset to another place of the log, in a new generation. Returns false when the
    /// position has changed meanwhile.
    pub async fn set_offset(
        &mut self,
        precondition: &OffsetPrecondition,
        next: i64,
    ) -> Result<bool, PostgresError> {
        let set = async |open: &mut PgConnection| {
            let query = sqlx::query(SET)
                .bind(precondition.topic.as_str())
                .bind(precondition.partition)
                .bind(precondition.position.generation)
                .bind(precondition.position.next)
                .bind(next);
            Ok(query.execute(open).await?.rows_affected() == 1)
        };
        self.connection.run("set the offset of an intake topic", set).await
    }

    /// Deletes the rejections of records that the rejected topic has. Returns the number of those
    /// that no other node has deleted.
    pub async fn rejections_are_written(
        &mut self,
        precondition: &OffsetPrecondition,
        offsets: &[i64],
    ) -> Result<u64, PostgresError> {
        let delete = async |open: &mut PgConnection| {
            let query = sqlx::query(WRITTEN)
                .bind(precondition.topic.as_str())
                .bind(precondition.partition)
                .bind(precondition.position.generation)
                .bind(offsets);
            Ok(query.execute(open).await?.rows_affected())
        };
        self.connection.run("delete rejections that are written", delete).await
    }

    /// Keeps a rejected record in `intake_rejected`: whole, or only its place and the reason. The
    /// latter while records are encrypted, when the log does not have the record any more, and
    /// above [`KEPT_BYTES_MAX`] or [`KEPT_RECORDS_MAX`]. Returns false when another node was
    /// faster.
    pub async fn keep_rejected(
        &mut self,
        precondition: &OffsetPrecondition,
        (offset, record): (i64, Option<&IntakeRecord>),
    ) -> Result<bool, PostgresError> {
        let record = record.filter(|_record| !self.keys.current().seals());
        let record = record.filter(|record| record.bytes() <= KEPT_BYTES_MAX);
        let keep = async |open: &mut PgConnection| {
            let has_room = sqlx::query_scalar(HAS_ROOM).bind(precondition.topic.as_str());
            let has_room: bool = has_room.bind(KEPT_RECORDS_MAX).fetch_one(&mut *open).await?;
            let record = record.filter(|_record| has_room);
            let query = sqlx::query(KEEP)
                .bind(precondition.topic.as_str())
                .bind(precondition.partition)
                .bind(precondition.position.generation)
                .bind(offset)
                .bind(record.and_then(|record| record.key.as_deref()))
                .bind(record.and_then(|record| record.payload.as_deref()))
                .bind(record.map(IntakeRecord::encoded_headers));
            Ok(query.execute(open).await?.rows_affected() == 1)
        };
        self.connection.run("keep a rejected record of an intake topic", keep).await
    }
}

fn rejection_of(row: &PgRow) -> Result<(i64, Rejection), sqlx::Error> {
    let status: i16 = row.try_get("status")?;
    let record_at: Option<i64> = row.try_get("record_at")?;
    let rejection = Rejection {
        record_at: Timestamp::from_millis(record_at.unwrap_or_default()),
        status: u16::try_from(status).unwrap_or_default(),
        reason: row.try_get("reason")?,
    };
    Ok((row.try_get("record_offset")?, rejection))
}

fn position_of(row: &PgRow) -> Result<(i32, Position), sqlx::Error> {
    let newest_at: Option<i64> = row.try_get("newest_at")?;
    let position = Position {
        generation: row.try_get("generation")?,
        next: row.try_get("next")?,
        newest_at: newest_at.map(Timestamp::from_millis),
    };
    Ok((row.try_get("partition")?, position))
}
