//! Withdraws the unclaimed runs of a schedule, in the transaction that holds the row of the
//! schedule.
//!
//! A run waits as its first row, or as another one: while its topic is paused, after a claim that
//! has deferred it, and after a move by a caller. Rows change while the transaction runs. So it
//! looks again, until it finds no run. The deadline of the connection bounds this.
//!
//! ```text
//! find unclaimed runs, and the rows that they are ──▶ none                           done
//!   └─ delete the rows in task_far, then in task, and free their names ──▶ find again
//! ```

use std::collections::{BTreeSet, HashSet};
use std::time::Duration;

use az::SaturatingAs as _;
use sqlx::Row as _;
use sqlx::postgres::{PgConnection, PgRow};
use uuid::Uuid;

use super::row::time_of;
use super::{KEEP_PLANS, PLAN_ANEW, shard_of};
use crate::domain::schedule::change::{UNBROKEN_MAX, Withdrawn, unbroken_from};
use crate::domain::schedule::{ScheduleId, StoredSchedule};
use crate::domain::{PrincipalId, TaskId, Timestamp};
use crate::postgres::connection::error::{check_count, rows_differ};
use crate::postgres::tasks::cancel::{CancelRow, FAR, GROUP_MAX, NEAR, delete_rows};

/// The runs that are withdrawn.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum RunsOf {
    /// Regular runs, while each is its first row and not due. Others have overdue instants, or a
    /// caller has moved them.
    FirstRows,
    /// Regular runs that would not be due yet if nobody had moved them.
    NotDue,
    /// All regular runs: the schedule makes them by itself.
    Schedule,
    /// All runs, with those of backfills.
    All,
}

/// The runs to withdraw of a schedule whose row is locked.
#[derive(Clone, Copy, Debug)]
pub(super) struct Withdrawal<'a> {
    pub(super) schedule: &'a StoredSchedule,
    /// The shard of the runs that are due within the leaves. Runs far ahead may be in any shard.
    pub(super) shard: i16,
    pub(super) runs_of: RunsOf,
    /// The caller who withdraws them.
    pub(super) by: Option<PrincipalId>,
}

/// Asks only about runs that are not older than every task that waits, and if wanted only about
/// those that are not due: a schedule of seconds has some 800,000 runs. The first id of a run has
/// the time at which the schedule made it due.
const UNCLAIMED: &str = "-- runs of a schedule that are not claimed
with undue as materialized (
  select case when not $5 then punctual_batch_at(clock_timestamp()) end as id
), oldest as materialized (
  select greatest(least((select id from task where shard = $2 order by id limit 1),
    (select id from task_far order by id limit 1)), (select id from undue)) as id
), recent as materialized (
  select r.instant, r.first_id, r.first_id as row_id from schedule_run r
  where r.schedule_id = $1 and ($3 or not r.is_backfill)
    and r.first_id >= (select id from oldest)
    and ($5 or punctual_time(r.first_id) > clock_timestamp())
), ends as materialized (
  select greatest((select first_id from task_follow order by first_id limit 1),
      (select id from undue)) as first,
    (select first_id from task_follow order by first_id desc limit 1) as last
), followed as materialized (
  select r.instant, r.first_id from schedule_run r
  where $4 and r.schedule_id = $1 and ($3 or not r.is_backfill)
    and r.first_id >= (select first from ends) and r.first_id <= (select last from ends)
    and ($5 or punctual_time(r.first_id) > clock_timestamp())
), waiting as (
  select * from recent
  union all
  select r.instant, r.first_id, f.row_id
  from followed r join task_follow f on f.first_id = r.first_id
  where not f.maybe_sent and f.row_id <> f.first_id
)
select w.instant, w.first_id, w.row_id from waiting w
where exists (select from task_far t where t.id = w.row_id)
  or exists (select from task t where t.shard = $2 and t.id = w.row_id)
order by w.instant";

/// With 800,000 runs of a schedule of seconds, the statement takes 0.3 s (Postgres 15, 2 cores,
/// 2026-11-30), and reads only the index on (schedule_id, first_id).
const SHARDS: &str = concat!(
    "-- shards of the runs of a schedule
select distinct ",
    shard_of!("first_id"),
    " from schedule_run where schedule_id = $1"
);

const FORGET: &str = "-- forget withdrawn runs of a schedule
delete from schedule_run where schedule_id = $1 and first_id = any($2)
returning instant, coalesce(missed, 0) as missed";

/// Frees the names of withdrawn runs for the runs that are made in their place. The statement skips
/// an entry that another transaction has locked: this other transaction gives the name to a new
/// task.
const FREE_NAMES: &str = "-- free the names of withdrawn runs
with e as (
  select n.topic, n.name from task_name n
  join unnest($2::text[], $3::uuid[]) as w (name, id) on n.name = w.name and n.id = w.id
  where n.topic = $1
  for update of n skip locked
)
delete from task_name n using e where n.topic = e.topic and n.name = e.name";

/// Instants after `$2` and before `$3` that still have runs, the latest first.
const KEPT: &str = "-- instants of a schedule with runs
select instant from schedule_run
where schedule_id = $1 and instant > $2 and instant < $3
order by instant desc limit $4";

/// A run that was not claimed a moment ago.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Unclaimed {
    at: Timestamp,
    id: TaskId,
    row: TaskId,
}

/// Returns the shards of the runs of a schedule. There are several if the schedule has had another
/// key: backfilled runs stay, and so do claimed ones, which a node may defer.
pub(super) async fn shards_of_runs(
    open: &mut PgConnection,
    id: ScheduleId,
) -> Result<Vec<i16>, sqlx::Error> {
    sqlx::query_scalar(SHARDS).bind(id.0).fetch_all(open).await
}

/// Withdraws the runs that are not claimed and in the shard of the withdrawal, or far ahead.
pub(super) async fn withdraw(
    open: &mut PgConnection,
    withdrawal: Withdrawal<'_>,
) -> Result<Withdrawn, sqlx::Error> {
    let mut withdrawn = Withdrawn::default();
    let (mut before, mut instants) = (Vec::new(), BTreeSet::new());
    loop {
        let runs = find(open, withdrawal).await?;
        if runs.is_empty() {
            withdrawn.unbroken_from = match withdrawal.runs_of {
                // No instant between runs that are not due yet was missed.
                RunsOf::FirstRows | RunsOf::NotDue => withdrawn.earliest,
                RunsOf::Schedule => last_runs_from(open, withdrawal, &instants).await?,
                RunsOf::All => None,
            };
            return Ok(withdrawn);
        }
        if runs == before {
            // These rows are there, and are not to be deleted.
            return Err(rows_differ(0, runs.len().saturating_as::<u64>()));
        }
        for runs in runs.chunks(GROUP_MAX) {
            withdraw_group(open, withdrawal, runs, (&mut withdrawn, &mut instants)).await?;
        }
        before = runs;
    }
}

/// Returns the first run of the last unbroken series: see [`unbroken_from`].
async fn last_runs_from(
    open: &mut PgConnection,
    Withdrawal { schedule, .. }: Withdrawal<'_>,
    withdrawn: &BTreeSet<Timestamp>,
) -> Result<Option<Timestamp>, sqlx::Error> {
    let (Some(first), Some(last)) = (withdrawn.first(), withdrawn.last()) else { return Ok(None) };
    let query = sqlx::query_scalar(KEPT).bind(schedule.id.0);
    let query = query.bind(first.as_millis()).bind(last.as_millis());
    let kept: Vec<i64> = query.bind(UNBROKEN_MAX.saturating_as::<i64>()).fetch_all(open).await?;
    let kept = kept.into_iter().map(Timestamp::from_millis).collect();
    Ok(unbroken_from(&schedule.schedule.specification.timing, withdrawn, &kept))
}

async fn find(
    open: &mut PgConnection,
    Withdrawal { schedule, shard, runs_of, .. }: Withdrawal<'_>,
) -> Result<Vec<Unclaimed>, sqlx::Error> {
    let query = sqlx::query(UNCLAIMED).bind(schedule.id.0).bind(shard);
    let takes_due = matches!(runs_of, RunsOf::Schedule | RunsOf::All);
    let query = query.bind(runs_of == RunsOf::All).bind(runs_of != RunsOf::FirstRows);
    let query = query.bind(takes_due);
    sqlx::query(KEEP_PLANS).execute(&mut *open).await?;
    let runs = query.fetch_all(&mut *open).await?;
    sqlx::query(PLAN_ANEW).execute(open).await?;
    runs.iter().map(unclaimed_of).collect()
}

fn unclaimed_of(row: &PgRow) -> Result<Unclaimed, sqlx::Error> {
    Ok(Unclaimed {
        at: time_of(row, "instant")?.ok_or(sqlx::Error::RowNotFound)?,
        id: TaskId::from_uuid(row.try_get("first_id")?),
        row: TaskId::from_uuid(row.try_get("row_id")?),
    })
}

/// Withdraws those of the runs that are still unclaimed.
async fn withdraw_group(
    open: &mut PgConnection,
    Withdrawal { schedule, by, .. }: Withdrawal<'_>,
    runs: &[Unclaimed],
    (withdrawn, instants): (&mut Withdrawn, &mut BTreeSet<Timestamp>),
) -> Result<(), sqlx::Error> {
    let gone = delete(open, runs, by).await?;
    let gone: Vec<&Unclaimed> = runs.iter().filter(|run| gone.contains(&run.id)).collect();
    let ids: Vec<Uuid> = gone.iter().map(|run| run.id.uuid()).collect();
    let forgotten =
        sqlx::query(FORGET).bind(schedule.id.0).bind(&ids).fetch_all(&mut *open).await?;
    check_count(forgotten.len().saturating_as::<u64>(), ids.len())?;
    let names: Vec<String> =
        gone.iter().map(|run| format!("{}@{}", schedule.schedule.name, run.at)).collect();
    sqlx::query(FREE_NAMES)
        .bind(schedule.schedule.record.topic.as_str())
        .bind(names)
        .bind(&ids)
        .execute(&mut *open)
        .await?;
    for row in &forgotten {
        let at = time_of(row, "instant")?;
        if withdrawn.earliest.is_none() || at < withdrawn.earliest {
            let missed = row.try_get::<i64, _>("missed")?.saturating_as::<u64>();
            (withdrawn.earliest, withdrawn.missed) = (at, missed);
        }
        withdrawn.latest = withdrawn.latest.max(at);
        instants.extend(at);
    }
    withdrawn.count = withdrawn.count.saturating_add(forgotten.len().saturating_as::<u64>());
    Ok(())
}

/// Deletes the rows of runs, as a cancel does. Returns the tasks whose rows were still there.
async fn delete(
    open: &mut PgConnection,
    runs: &[Unclaimed],
    by: Option<PrincipalId>,
) -> Result<HashSet<TaskId>, sqlx::Error> {
    let mut wanted: Vec<CancelRow> =
        runs.iter().map(|run| CancelRow { row: run.row, first: run.id, by }).collect();
    let mut gone = HashSet::new();
    for table in [FAR, NEAR] {
        wanted.sort_unstable_by_key(table.order);
        // The names are freed afterwards.
        let deleted = delete_rows(open, &wanted, table.statement, Duration::ZERO).await?;
        gone.extend(deleted.into_iter().map(|one| one.view.id));
        wanted.retain(|row| !gone.contains(&row.first));
    }
    Ok(gone)
}
