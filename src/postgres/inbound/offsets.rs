//! The places in intake topics: the offset of the next record of each partition.

use std::collections::BTreeMap;

use sqlx::Row;
use sqlx::postgres::{PgConnection, PgRow};

use super::{InboundStore, OffsetPrecondition, Position};
use crate::domain::task::intake_record::IntakeRecord;
use crate::domain::task::outbox_row::RejectedRow;
use crate::domain::{Timestamp, TopicName};
use crate::postgres::PostgresError;

const POSITIONS: &str = "-- offsets of an intake topic
select partition, generation, next, newest_at from intake_offset
where topic = $1 and partition = any($2)";

const BEGIN: &str = "-- begin partitions of an intake topic
insert into intake_offset (topic, partition, next)
select $1, p.partition, p.next from unnest($2::integer[], $3::bigint[]) as p (partition, next)
on conflict (topic, partition) do nothing";

const SET: &str = "-- set the offset of an intake topic
update intake_offset set next = $5, generation = generation + 1
where topic = $1 and partition = $2 and generation = $3 and next = $4";

/// Keeps a rejected record. If the node dies before the offset moves, the next node rejects the
/// record again, and the statement changes nothing.
const KEEP: &str = "-- keep a rejected record of an intake topic
insert into intake_rejected (topic, partition, generation, record_offset, status, reason, key,
  payload, headers)
values ($1, $2, $3, $4, $5, $6, $7, $8, $9)
on conflict (topic, partition, generation, record_offset) do nothing";

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

    /// Keeps a rejected record in `intake_rejected`. While records are encrypted, only its place
    /// and the reason: the record itself is in the intake topic.
    pub async fn keep_rejected(
        &mut self,
        precondition: &OffsetPrecondition,
        record: &IntakeRecord,
        rejected: &RejectedRow,
    ) -> Result<(), PostgresError> {
        let is_kept = !self.keys.current().seals();
        let headers = is_kept.then(|| record.encoded_headers());
        let keep = async |open: &mut PgConnection| {
            let query = sqlx::query(KEEP)
                .bind(precondition.topic.as_str())
                .bind(precondition.partition)
                .bind(precondition.position.generation)
                .bind(record.offset)
                .bind(i16::try_from(rejected.status).unwrap_or(i16::MAX))
                .bind(&rejected.reason)
                .bind(record.key.as_deref().filter(|_key| is_kept))
                .bind(record.payload.as_deref().filter(|_payload| is_kept))
                .bind(&headers);
            query.execute(open).await.map(|_done| ())
        };
        self.connection.run("keep a rejected record of an intake topic", keep).await
    }
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
