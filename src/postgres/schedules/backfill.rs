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
use crate::postgres::tasks::sealed::columns_of;
use crate::sealing::{KeySet, OwnedColumns};

const IS_SEALED: &str = "-- is the record of a schedule sealed
select punctual_sealed_by(headers) is not null from schedule where id = $1";

fn text() -> String {
    let stored = stored_text("$9");
    format!(
        "-- backfill runs of a schedule
with {STAMP}, locked as materialized (
  select * from schedule where id = $1 and revision = $2 for update
), run as materialized (
  select s.id as schedule_id, s.shard, s.topic, coalesce(s.tracking, t.tracking) as tracking,
    s.submitted_by,
    case when t.is_given then t.key else s.key end as key,
    case when t.is_given then t.payload else s.payload end as payload,
    case when t.is_given then t.headers
      else t.front || coalesce(s.headers, ''::bytea) || t.headers end as headers,
    t.instant, t.id, t.name, t.is_far, true as is_backfill, null::bigint as missed,
    case when s.submitted_by is not null then (select at from stamp) end as submitted_at
  from unnest($3::bigint[], $4::uuid[], $5::text[], $6::bytea[], $7::boolean[], $10::bytea[],
    $11::bytea[], $12::boolean[], $13::bytea[], $14::bytea[])
    as t (instant, id, name, headers, is_far, key, payload, is_given, front, tracking)
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
        let keys = self.keys.current();
        let statement = async |open: &mut PgConnection| {
            let given = given_of(open, stored, runs, &keys).await?;
            let given = || given.iter().map(Option::as_ref);
            let headers = runs.iter().zip(given()).map(|(run, given)| match given {
                Some(given) => given.headers.as_deref().unwrap_or_default(),
                None => run.headers.as_bytes(),
            });
            let row = sqlx::query(AssertSqlSafe(text()))
                .bind(stored.id.0)
                .bind(stored.revision.saturating_as::<i64>())
                .bind(runs.iter().map(|run| run.at.as_millis()).collect::<Vec<_>>())
                .bind(runs.iter().map(|run| run.id.uuid()).collect::<Vec<_>>())
                .bind(runs.iter().map(|run| run.name.as_str()).collect::<Vec<_>>())
                .bind(headers.collect::<Vec<_>>())
                .bind(runs.iter().map(|run| run.is_far).collect::<Vec<_>>())
                .bind(is_dry_run)
                .bind(retention.as_secs_f64())
                .bind(given().map(|given| given?.key.as_deref()).collect::<Vec<_>>())
                .bind(given().map(|given| given?.payload.as_deref()).collect::<Vec<_>>())
                .bind(given().map(|given| given.is_some()).collect::<Vec<_>>())
                .bind(runs.iter().map(|run| run.front.as_bytes()).collect::<Vec<_>>())
                .bind(runs.iter().map(RunTask::tracking_column).collect::<Vec<_>>())
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

/// Returns the record of each run that does not get a copy of its schedule's, sealed for its task.
/// It is that of the revision that the statement compares.
async fn given_of(
    open: &mut PgConnection,
    stored: &StoredSchedule,
    runs: &[RunTask],
    keys: &KeySet,
) -> Result<Vec<Option<OwnedColumns>>, sqlx::Error> {
    let query = sqlx::query_scalar(IS_SEALED).bind(stored.id.0);
    let is_sealed: Option<bool> = query.fetch_optional(open).await?;
    if !keys.seals() && !is_sealed.unwrap_or(false) {
        return Ok(vec![None; runs.len()]);
    }
    let record = &stored.schedule.record;
    let plain = columns_of(record).to_owned();
    runs.iter().map(|run| run.given(&plain, record.topic.as_str(), keys).map(Some)).collect()
}
