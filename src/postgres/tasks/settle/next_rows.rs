//! The rows that follow an attempt. Settles and the answers of consumers insert such rows.

use sqlx::postgres::PgConnection;
use uuid::Uuid;

use crate::domain::TaskId;
use crate::postgres::connection::error::check_count;

/// A row that follows an attempt: of the next attempt, of the same attempt again, or a verdict row.
#[derive(Debug)]
pub(in crate::postgres::tasks) struct NextRow<'a> {
    pub(in crate::postgres::tasks) id: TaskId,
    pub(in crate::postgres::tasks) first_id: Uuid,
    pub(in crate::postgres::tasks) topic: &'a str,
    /// Key, payload and headers.
    pub(in crate::postgres::tasks) record: [Option<&'a [u8]>; 3],
    pub(in crate::postgres::tasks) name: Option<&'a str>,
    /// How often Kafka is tried for this attempt, counted from 1.
    pub(in crate::postgres::tasks) tries: i16,
    /// The number of the submitter, and the time of the submit.
    pub(in crate::postgres::tasks) submitted: (Option<i16>, Option<i64>),
    /// `None` for an untracked task.
    pub(in crate::postgres::tasks) tracking: Option<Vec<u8>>,
    /// The due time that the task was moved to, in ms since the epoch.
    pub(in crate::postgres::tasks) moved_to: Option<i64>,
    /// Due beyond the last leaf.
    pub(in crate::postgres::tasks) is_far: bool,
}

const INSERT_NEAR: &str = "-- insert next attempts
insert into task (id, shard, first_id, topic, key, payload, headers, name, attempt, submitted_by,
  submitted_at, tracking, moved_to)
select * from unnest($1::uuid[], $2::smallint[], $3::uuid[], $4::text[], $5::bytea[], $6::bytea[],
  $7::bytea[], $8::text[], $9::smallint[], $10::smallint[], $11::bigint[], $12::bytea[],
  $13::bigint[])";

const INSERT_FAR: &str = "-- insert far next attempts
insert into task_far (id, shard, first_id, topic, key, payload, headers, name, attempt, submitted_by,
  submitted_at, tracking, moved_to)
select * from unnest($1::uuid[], $2::smallint[], $3::uuid[], $4::text[], $5::bytea[], $6::bytea[],
  $7::bytea[], $8::text[], $9::smallint[], $10::smallint[], $11::bigint[], $12::bytea[],
  $13::bigint[])";

/// Inserts all rows, each into its table.
pub(in crate::postgres::tasks) async fn insert(
    open: &mut PgConnection,
    rows: &[NextRow<'_>],
) -> Result<(), sqlx::Error> {
    let (far, near): (Vec<&NextRow<'_>>, Vec<&NextRow<'_>>) =
        rows.iter().partition(|row| row.is_far);
    insert_by(open, INSERT_NEAR, &near).await?;
    insert_by(open, INSERT_FAR, &far).await
}

async fn insert_by(
    open: &mut PgConnection,
    statement: &'static str,
    rows: &[&NextRow<'_>],
) -> Result<(), sqlx::Error> {
    if rows.is_empty() {
        return Ok(());
    }
    let each = || rows.iter();
    let record = |index: usize| each().map(|row| row.record[index]).collect::<Vec<_>>();
    let inserted = sqlx::query(statement)
        .bind(each().map(|row| row.id.uuid()).collect::<Vec<_>>())
        .bind(each().map(|row| row.id.shard().as_smallint()).collect::<Vec<_>>())
        .bind(each().map(|row| row.first_id).collect::<Vec<_>>())
        .bind(each().map(|row| row.topic).collect::<Vec<_>>())
        .bind(record(0))
        .bind(record(1))
        .bind(record(2))
        .bind(each().map(|row| row.name).collect::<Vec<_>>())
        .bind(each().map(|row| row.tries).collect::<Vec<_>>())
        .bind(each().map(|row| row.submitted.0).collect::<Vec<_>>())
        .bind(each().map(|row| row.submitted.1).collect::<Vec<_>>())
        .bind(each().map(|row| row.tracking.as_deref()).collect::<Vec<_>>())
        .bind(each().map(|row| row.moved_to).collect::<Vec<_>>())
        .execute(open)
        .await?;
    check_count(inserted.rows_affected(), rows.len())
}
