//! Makes runs of the past that a caller asks for.
//!
//! The statement locks the row of the schedule, and inserts a task for each instant that has no row
//! in `schedule_run`. So a backfill never makes a run twice, however often it is repeated, and
//! whatever the schedule does meanwhile.

use std::time::Duration;

use az::SaturatingAs as _;
use sqlx::postgres::PgConnection;
use sqlx::{AssertSqlSafe, Row as _};
use uuid::Uuid;

use super::Schedules;
use super::make::{RunTask, stored_text};
use crate::domain::TaskId;
use crate::domain::schedule::StoredSchedule;
use crate::failpoint::{Failpoint, reach};
use crate::postgres::PostgresError;
use crate::postgres::tasks::principals::STAMP;

fn text() -> String {
    let stored = stored_text("$9");
    format!(
        "-- backfill runs of a schedule
with {STAMP}, locked as materialized (
  select * from schedule where id = $1 and revision = $2 for update
), run as materialized (
  select s.id as schedule_id, s.shard, s.topic, s.key, s.payload, s.tracking, s.submitted_by,
    coalesce(s.headers, ''::bytea) || t.headers as headers, t.instant, t.id, t.name, t.is_far,
    true as is_backfill,
    case when s.submitted_by is not null then (select at from stamp) end as submitted_at
  from unnest($3::bigint[], $4::uuid[], $5::text[], $6::bytea[], $7::boolean[])
    as t (instant, id, name, headers, is_far)
  cross join locked s
  where not $8
{stored})
select (select count(*) from locked) as locked, (select array_agg(first_id) from made) as ids,
  (select count(*) from schedule_run r where r.schedule_id = $1 and r.instant = any($3)) as known"
    )
}

/// The result of a backfill.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Backfilled {
    /// The tasks that were stored.
    pub made: Vec<TaskId>,
    /// The number of runs that were there before.
    pub known: u64,
}

impl Schedules {
    /// Stores these runs of a schedule, except those that were made before. With `is_dry_run`, only
    /// counts. Returns `None` when the schedule is not of this revision any more.
    ///
    /// # Errors
    /// After [`PostgresError::Unanswered`] the runs may or may not have been made.
    pub async fn backfill(
        &self,
        stored: &StoredSchedule,
        runs: &[RunTask],
        retention: Duration,
        is_dry_run: bool,
    ) -> Result<Option<Backfilled>, PostgresError> {
        let statement = async |open: &mut PgConnection| {
            let row = sqlx::query(AssertSqlSafe(text()))
                .bind(stored.id.0)
                .bind(stored.revision.saturating_as::<i64>())
                .bind(runs.iter().map(|run| run.at.as_millis()).collect::<Vec<_>>())
                .bind(runs.iter().map(|run| run.id.uuid()).collect::<Vec<_>>())
                .bind(runs.iter().map(|run| run.name.as_str()).collect::<Vec<_>>())
                .bind(runs.iter().map(|run| run.headers.as_bytes()).collect::<Vec<_>>())
                .bind(runs.iter().map(|run| run.is_far).collect::<Vec<_>>())
                .bind(is_dry_run)
                .bind(retention.as_secs_f64())
                .fetch_one(open)
                .await?;
            reach(Failpoint::RunsMade);
            if row.try_get::<i64, _>("locked")? != 1 {
                return Ok(None);
            }
            let made: Option<Vec<Uuid>> = row.try_get("ids")?;
            let made = made.unwrap_or_default().into_iter().map(TaskId::from_uuid).collect();
            let known = row.try_get::<i64, _>("known")?.saturating_as::<u64>();
            Ok(Some(Backfilled { made, known }))
        };
        self.pool.run("backfill runs of a schedule", statement).await
    }
}
