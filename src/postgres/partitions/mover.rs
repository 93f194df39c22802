//! The mover: moves tasks from `task_far` to leaves when the horizon reaches the due times.
//!
//! A task is always in exactly one of the two tables, because one statement deletes and inserts. An
//! already due task may have no leaf, so it is claimed from `task_far` directly.

use std::time::Duration;

use sqlx::Row;
use sqlx::postgres::PgConnection;
use uuid::Uuid;

use super::locks::{self, MAINTENANCE};
use crate::domain::IdRange;
use crate::error_chain::chain;
use crate::failpoint::{Failpoint, reach};
use crate::postgres::connection::ConnectionPurpose;
use crate::postgres::{Connection, PostgresError, PostgresSettings};

const PURPOSE: ConnectionPurpose = ConnectionPurpose {
    name: "mover",
    deadline: Duration::from_secs(10),
    // A locked row is separated from the others by halving the chunk ten times.
    settings: &[("plan_cache_mode", "force_custom_plan"), ("lock_timeout", "200ms")],
};
/// Maximum number of rows that one statement moves.
const ROWS_MAX: i64 = 1000;
const BYTES_MAX: i64 = 8 << 20;
/// Maximum number of rows that a round skips because of a lock, or of a refusal for other reasons
/// than the values.
const SKIPPED_MAX: u32 = 8;
/// Up to this many far tasks are counted, more are estimated.
const COUNT_MAX: i64 = 10_000;

#[derive(Debug)]
pub struct Mover {
    connection: Connection,
}

/// The result of a round.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Moved {
    pub task_count: u64,
    /// Tasks that Postgres refused to move. They stay in place and are tried again in the next
    /// round.
    pub stuck_count: u64,
}

/// The result of one statement.
enum MovedChunk {
    /// Another node is moving tasks.
    Taken,
    Nothing,
    Moved {
        task_count: u64,
        last: Uuid,
    },
}

impl Mover {
    pub fn new(settings: &PostgresSettings) -> Self {
        Self { connection: Connection::new(settings, PURPOSE) }
    }

    /// Moves all tasks that are due within `range`, in due order. Leaves must be attached for the
    /// whole range. A task that cannot be moved does not stop the others. A cause that stops all of
    /// them (a full disk, a missing right, a lock on the table) becomes the error of the round
    /// after a few attempts. Each chunk is added to `moved` when it has committed, whatever fails
    /// later.
    pub async fn round(&mut self, range: IdRange, moved: &mut Moved) -> Result<(), PostgresError> {
        let (mut rest, mut rows_max, mut skipped_count) = (range, ROWS_MAX, 0);
        let mut needs_lock = true;
        while !rest.is_empty() {
            match self.move_chunk(rest, rows_max, needs_lock).await {
                Ok(MovedChunk::Taken) if needs_lock && self.is_of_stranger().await? => {
                    needs_lock = false;
                }
                Ok(MovedChunk::Taken | MovedChunk::Nothing) => break,
                Ok(MovedChunk::Moved { task_count, last }) => {
                    reach(Failpoint::FarChunkMoved);
                    moved.task_count += task_count;
                    rest.from = IdRange::after(last);
                    rows_max = ROWS_MAX;
                }
                Err(
                    PostgresError::BadValue { .. }
                    | PostgresError::Refused { .. }
                    | PostgresError::GaveWay { .. },
                ) if rows_max > 1 => rows_max = (rows_max / 2).max(1),
                // More than a few refusals mean that the table is locked, not some rows.
                Err(error) if error.gave_way_to_others() && skipped_count < SKIPPED_MAX => {
                    skipped_count += 1;
                    let Some(locked) = self.first_of(rest).await? else { break };
                    tracing::info!(
                        id = %locked,
                        "another transaction locks a far task; skipping it until the next round"
                    );
                    rest.from = IdRange::after(locked);
                }
                // The same holds for refusals that have other causes than values.
                Err(error @ (PostgresError::BadValue { .. } | PostgresError::Refused { .. }))
                    if error.is_bad_data() || skipped_count < SKIPPED_MAX =>
                {
                    skipped_count += u32::from(!error.is_bad_data());
                    let Some(stuck) = self.first_of(rest).await? else { break };
                    tracing::error!(
                        id = %stuck, error = chain(&error),
                        "cannot move a far task to its leaf; skipping it"
                    );
                    moved.stuck_count += 1;
                    rest.from = IdRange::after(stuck);
                }
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    async fn move_chunk(
        &mut self,
        range: IdRange,
        rows_max: i64,
        needs_lock: bool,
    ) -> Result<MovedChunk, PostgresError> {
        let what = format!("move far tasks of {range:?}");
        let statement =
            async |open: &mut PgConnection| move_rows(open, range, rows_max, needs_lock).await;
        self.connection.run(&what, statement).await
    }

    /// Returns true when the lock is not that of another node.
    async fn is_of_stranger(&mut self) -> Result<bool, PostgresError> {
        let look = async |open: &mut PgConnection| locks::is_of_stranger(open, MAINTENANCE).await;
        self.connection.run("see who holds the lock of the maintenance", look).await
    }

    async fn first_of(&mut self, range: IdRange) -> Result<Option<Uuid>, PostgresError> {
        let statement = async |open: &mut PgConnection| {
            sqlx::query_scalar(
                "-- first far task\n\
                                select id from task_far where id >= $1 and id < $2 order by id \
                                limit 1",
            )
            .bind(range.from)
            .bind(range.to)
            .fetch_optional(open)
            .await
        };
        self.connection.run("find the far task that cannot be moved", statement).await
    }

    /// Returns the number of far tasks, without held ones: exact up to 10,000, otherwise Postgres's
    /// estimate, which includes them.
    pub async fn count(&mut self) -> Result<u64, PostgresError> {
        let statement = async |open: &mut PgConnection| {
            sqlx::query_scalar(
                "-- count far tasks
                select case when c.counted <= $1 then c.counted
                  else greatest(c.counted, (select reltuples::bigint from pg_class
                    where oid = 'task_far'::regclass)) end
                from (select count(*) as counted from
                  (select from task_far where id < $2 limit $1 + 1) x) c",
            )
            .bind(COUNT_MAX)
            .bind(IdRange::held().from)
            .fetch_one(open)
            .await
        };
        let count: i64 = self.connection.run("count the far tasks", statement).await?;
        Ok(u64::try_from(count).unwrap_or(0))
    }
}

/// Takes and locks rows in the order of the key, like cancels and claims of the far table.
async fn move_rows(
    open: &mut PgConnection,
    range: IdRange,
    rows_max: i64,
    needs_lock: bool,
) -> Result<MovedChunk, sqlx::Error> {
    let row = sqlx::query(
        "-- move far tasks
        with mine as materialized (
            select case when $7 then pg_try_advisory_xact_lock($5, $6) else true end as is_mine
          ),
          head as materialized (
            select id, row_number() over (order by id) as place,
              sum(bytes) over (order by id rows unbounded preceding) as bytes
            from (
              select id, coalesce(octet_length(key), 0) + coalesce(octet_length(payload), 0) +
                coalesce(octet_length(headers), 0) as bytes
              from task_far
              where (select is_mine from mine) and id >= $1 and id < $2
              order by id
              limit $3
            ) h
          ),
          last as materialized (select id from head where place = 1 or bytes <= $4
            order by id desc limit 1),
          d as (
            delete from task_far
            where id >= $1 and id <= (select id from last)
            returning shard, id, topic, key, payload, headers, name, first_id, attempt,
              submitted_by, submitted_at, tracking, moved_to
          ),
          i as (
            insert into task (shard, id, topic, key, payload, headers, name, first_id, attempt,
              submitted_by, submitted_at, tracking, moved_to)
            select shard, id, topic, key, payload, headers, name, first_id, attempt, submitted_by,
              submitted_at, tracking, moved_to from d
          )
        select (select is_mine from mine) as is_mine, (select id from last) as last,
          (select count(*) from d) as moved",
    )
    .bind(range.from)
    .bind(range.to)
    .bind(rows_max)
    .bind(BYTES_MAX)
    .bind(MAINTENANCE.0)
    .bind(MAINTENANCE.1)
    .bind(needs_lock)
    .fetch_one(open)
    .await?;
    let (is_mine, last): (bool, Option<Uuid>) = (row.try_get("is_mine")?, row.try_get("last")?);
    let task_count: i64 = row.try_get("moved")?;
    Ok(match last {
        None if is_mine => MovedChunk::Nothing,
        None => MovedChunk::Taken,
        Some(last) => {
            MovedChunk::Moved { task_count: u64::try_from(task_count).unwrap_or(0), last }
        }
    })
}
