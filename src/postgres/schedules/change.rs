//! Changes of schedules: create or replace, pause and resume, delete.
//!
//! One transaction locks the row of the schedule throughout, so that no run is made meanwhile. The
//! transaction withdraws the unclaimed runs, first in `task_far`, then in `task`, as a cancel does.
//! `next_run_at` goes back to the earliest withdrawn run. Claimed runs stay, and a changed timing
//! begins after the last claimed one.
//!
//! ```text
//! lock the schedule ──▶ withdraw its runs ──▶ write the schedule, revision + 1 ──▶ commit
//! make runs: where revision and next_run_at are as planned ──▶ none after the commit
//! ```

use az::SaturatingAs as _;
use sqlx::postgres::{PgConnection, PgRow};
use sqlx::{AssertSqlSafe, Connection as _, Row as _};
use uuid::Uuid;

use super::Schedules;
use super::read::{AHEAD, NOW};
use super::row::{SPECIFICATION, bind, schedule_of, time_of};
use crate::domain::schedule::change::{CLAIMED_AHEAD_MAX, Change, Instants, Reached, Withdrawn};
use crate::domain::schedule::zone;
use crate::domain::schedule::{RevisionCondition, Schedule, ScheduleChange, StoredSchedule};
use crate::domain::{PrincipalId, ScheduleName, Shard, TaskId, Timestamp, TopicName};
use crate::failpoint::{Failpoint, reach};
use crate::postgres::PostgresError;
use crate::postgres::tasks::cancel::{CancelRow, FAR, GROUP_MAX, NEAR, delete_rows};
use crate::postgres::tasks::sealed::{columns_of, refused};
use crate::sealing::{Columns, KeySet, OwnedColumns, RecordOwner};

/// A schedule to create, or to put in the place of another one.
#[derive(Clone, Copy, Debug)]
pub struct NewSchedule<'a> {
    pub schedule: &'a Schedule,
    pub shard: Shard,
    pub by: Option<PrincipalId>,
    pub condition: RevisionCondition,
    /// Only report what the schedule would be.
    pub is_dry_run: bool,
}

/// The name of a schedule, and the caller who changes it.
#[derive(Clone, Copy, Debug)]
pub struct NamedSchedule<'a> {
    pub topic: &'a TopicName,
    pub name: &'a ScheduleName,
    pub by: Option<PrincipalId>,
    pub condition: RevisionCondition,
}

fn lock_text() -> String {
    format!(
        "-- lock a schedule
select *, {AHEAD}, {NOW} from schedule where topic = $1 and name = $2 for update"
    )
}

const TIME: &str = "-- the time for a schedule
select (extract(epoch from clock_timestamp()) * 1000000)::bigint";

/// Asks only about runs that are not older than every task that waits: a schedule of seconds has
/// some 800,000 runs.
const UNCLAIMED: &str = "-- runs of a schedule that are not claimed
with oldest as materialized (
  select least((select id from task where shard = $2 order by id limit 1),
    (select id from task_far order by id limit 1)) as id
), recent as materialized (
  select r.instant, r.first_id from schedule_run r
  where r.schedule_id = $1 and ($3 or not r.is_backfill)
    and r.first_id >= (select id from oldest)
)
select r.instant, r.first_id from recent r
where exists (select from task_far t where t.id = r.first_id)
  or exists (select from task t where t.shard = $2 and t.id = r.first_id)
order by r.instant";

const FORGET_RUNS: &str = "-- forget withdrawn runs of a schedule
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

const LAST_RUN: &str = "-- the last claimed run of a schedule
select max(instant) from schedule_run
where schedule_id = $1 and instant <= $2 and not is_backfill";

/// Most schedules have few runs. The runs of others are deleted later, piece by piece.
const RUNS_DELETED_MAX: i64 = 1_000;

fn delete_text() -> String {
    format!(
        "-- delete a schedule
with runs as (
  delete from schedule_run where schedule_id = $1 and instant = any(array(
    select instant from schedule_run where schedule_id = $1 order by instant
    limit {RUNS_DELETED_MAX}))
  returning 1
), noted as (
  insert into schedule_deleted (id)
  select $1 where (select count(*) from runs) = {RUNS_DELETED_MAX}
)
delete from schedule where id = $1"
    )
}

/// The columns of what a schedule is. [`bind_schedule`] binds their parameters.
fn columns() -> String {
    format!("shard, key, payload, headers, tracking, submitted_by, {SPECIFICATION}")
}

fn parameters(from: usize) -> String {
    let count = columns().split(',').count();
    (from..from + count).map(|number| format!("${number}")).collect::<Vec<_>>().join(", ")
}

impl Schedules {
    /// Creates a schedule, or replaces the one of its name.
    ///
    /// # Errors
    /// After [`PostgresError::Unanswered`] the change may or may not have taken effect. After any
    /// other error it has not.
    pub async fn put(&self, new: NewSchedule<'_>) -> Result<ScheduleChange, PostgresError> {
        let keys = &self.keys.current();
        self.pool.run("store a schedule", async |open| put(open, new, keys).await).await
    }

    /// Pauses or resumes a schedule. For errors see [`Self::put`].
    pub async fn set_paused(
        &self,
        named: NamedSchedule<'_>,
        is_paused: bool,
    ) -> Result<ScheduleChange, PostgresError> {
        let keys = &self.keys.current();
        let statement =
            async |open: &mut PgConnection| set_paused(open, named, is_paused, keys).await;
        self.pool.run("pause or resume a schedule", statement).await
    }

    /// Deletes a schedule. Returns it as it was, as [`ScheduleChange::Changed`]. For errors see
    /// [`Self::put`].
    pub async fn delete(&self, named: NamedSchedule<'_>) -> Result<ScheduleChange, PostgresError> {
        let keys = &self.keys.current();
        self.pool.run("delete a schedule", async |open| delete(open, named, keys).await).await
    }
}

/// A locked schedule, at the time `now` of Postgres's clock.
pub(super) struct Locked {
    pub(super) stored: StoredSchedule,
    pub(super) shard: i16,
    pub(super) submitted_by: Option<i16>,
    pub(super) now: Timestamp,
}

pub(super) async fn lock(
    open: &mut PgConnection,
    topic: &TopicName,
    name: &ScheduleName,
    keys: &KeySet,
) -> Result<Option<Locked>, sqlx::Error> {
    let query = sqlx::query(AssertSqlSafe(lock_text())).bind(topic.as_str()).bind(name.as_str());
    let Some(row) = query.fetch_optional(open).await? else { return Ok(None) };
    Ok(Some(Locked {
        stored: schedule_of(&row, keys)?,
        shard: row.try_get("shard")?,
        submitted_by: row.try_get("submitted_by")?,
        now: Timestamp::from_micros(row.try_get("now")?),
    }))
}

async fn put(
    open: &mut PgConnection,
    new: NewSchedule<'_>,
    keys: &KeySet,
) -> Result<ScheduleChange, sqlx::Error> {
    let mut transaction = open.begin().await?;
    let schedule = new.schedule;
    let locked = lock(&mut transaction, &schedule.record.topic, &schedule.name, keys).await?;
    let current = locked.as_ref().map(|locked| locked.stored.revision);
    let done = match locked {
        _ if !new.condition.allows(current) => ScheduleChange::Unmet(current),
        Some(locked) if locked.stored.schedule == *schedule => {
            ScheduleChange::Unchanged(locked.stored)
        }
        Some(locked) => {
            let terms = (new.by, locked.instants(schedule));
            match change(&mut transaction, &locked, new, terms, keys).await? {
                Some(stored) => ScheduleChange::Changed(stored),
                None => ScheduleChange::NoRun,
            }
        }
        None => create(&mut transaction, new, keys).await?,
    };
    let is_done = matches!(done, ScheduleChange::Created(_) | ScheduleChange::Changed(_));
    if is_done && !new.is_dry_run {
        transaction.commit().await?;
    } else {
        transaction.rollback().await?;
    }
    Ok(done)
}

async fn create(
    open: &mut PgConnection,
    new: NewSchedule<'_>,
    keys: &KeySet,
) -> Result<ScheduleChange, sqlx::Error> {
    let now: i64 = sqlx::query_scalar(TIME).fetch_one(&mut *open).await?;
    let now = Timestamp::from_micros(now);
    let schedule = new.schedule;
    let next = schedule.specification.next_after(now, 0);
    let Some(next) = next else { return Ok(ScheduleChange::NoRun) };
    let stored_record = sealed(keys, schedule)?;
    let text = format!(
        "-- create a schedule
insert into schedule (topic, name, next_run_at, look_at, {})
values ($1, $2, $3, $4, {})
on conflict (topic, name) do nothing
returning *, null::bigint[] as ahead",
        columns(),
        parameters(5)
    );
    let query = sqlx::query(AssertSqlSafe(text))
        .bind(schedule.record.topic.as_str())
        .bind(schedule.name.as_str())
        .bind(next.as_millis())
        .bind(look_at_of(schedule, Some(next), now));
    let row = bind_schedule(query, new, stored_record.as_columns()).fetch_optional(open).await?;
    Ok(match row {
        Some(row) => ScheduleChange::Created(schedule_of(&row, keys)?),
        None => ScheduleChange::Overtaken,
    })
}

/// Withdraws the runs of a locked schedule in the name of `by`, and replaces the schedule by `new`.
/// Returns `None` when `new` must have a run after now, and would have none.
pub(super) async fn change(
    open: &mut PgConnection,
    locked: &Locked,
    new: NewSchedule<'_>,
    (by, instants): (Option<PrincipalId>, Instants),
    keys: &KeySet,
) -> Result<Option<StoredSchedule>, sqlx::Error> {
    let stored = &locked.stored;
    let withdrawn = withdraw(open, locked, by, RunsOf::Schedule).await?;
    reach(Failpoint::RunsWithdrawn);
    let claimed_to = locked.now.plus(CLAIMED_AHEAD_MAX).as_millis();
    let last = sqlx::query_scalar(LAST_RUN).bind(stored.id.0).bind(claimed_to);
    let last: Option<i64> = last.fetch_one(&mut *open).await?;
    let (before, after) = (&stored.schedule.specification, &new.schedule.specification);
    let StoredSchedule { next_run_at, runs_made, skipped, .. } = *stored;
    let change = Change {
        before,
        after,
        instants,
        reached: Reached { next_run_at, runs_made, skipped },
        withdrawn,
        last_run_at: last.map(Timestamp::from_millis),
    };
    let Reached { next_run_at: next, runs_made, skipped } = change.outcome(locked.now);
    // A paused or resumed schedule may have ended.
    let is_same = stored.schedule.record == new.schedule.record && before.timing == after.timing;
    if next.is_none() && !is_same {
        return Ok(None);
    }
    let stored_record = sealed(keys, new.schedule)?;
    let text = format!(
        "-- change a schedule
update schedule set (next_run_at, look_at, runs_made, skipped, revision, changed_at, {})
  = ($3, $4, $5, $6, revision + 1, clock_timestamp(), {})
where id = $1 and revision = $2
returning *, null::bigint[] as ahead",
        columns(),
        parameters(7)
    );
    let query = sqlx::query(AssertSqlSafe(text))
        .bind(stored.id.0)
        .bind(stored.revision.saturating_as::<i64>())
        .bind(next.map(Timestamp::as_millis))
        .bind(look_at_of(new.schedule, next, locked.now))
        .bind(runs_made.saturating_as::<i64>())
        .bind(skipped.saturating_as::<i64>());
    // The row is locked, so it is there.
    let row = bind_schedule(query, new, stored_record.as_columns()).fetch_one(open).await?;
    schedule_of(&row, keys).map(Some)
}

/// Returns when the runs of a changed schedule are to be made: at once, unless it is paused.
fn look_at_of(schedule: &Schedule, next: Option<Timestamp>, now: Timestamp) -> Option<i64> {
    next.filter(|_next| !schedule.specification.is_paused).map(|_next| now.as_millis())
}

type Query<'q> = sqlx::query::Query<'q, sqlx::Postgres, sqlx::postgres::PgArguments>;

/// Returns the record of a schedule as it is to be stored.
fn sealed(keys: &KeySet, schedule: &Schedule) -> Result<OwnedColumns, sqlx::Error> {
    let record = &schedule.record;
    let owner = RecordOwner::Schedule(record.topic.as_str(), schedule.name.as_str());
    let plain = columns_of(record);
    Ok(keys.seal(owner, plain).map_err(refused)?.unwrap_or_else(|| plain.to_owned()))
}

fn bind_schedule<'q>(query: Query<'q>, new: NewSchedule<'q>, record: Columns<'q>) -> Query<'q> {
    let NewSchedule { schedule, shard, by, .. } = new;
    let tracking = schedule.tracking.as_ref().map(|tracking| tracking.first_row().encode());
    let query = query
        .bind(shard.as_smallint())
        .bind(record.key)
        .bind(record.payload)
        .bind(record.headers)
        .bind(tracking)
        .bind(by.map(PrincipalId::as_smallint));
    bind(query, &schedule.specification)
}

async fn set_paused(
    open: &mut PgConnection,
    named: NamedSchedule<'_>,
    is_paused: bool,
    keys: &KeySet,
) -> Result<ScheduleChange, sqlx::Error> {
    let mut transaction = open.begin().await?;
    let Some(locked) = lock(&mut transaction, named.topic, named.name, keys).await? else {
        transaction.rollback().await?;
        return Ok(ScheduleChange::NotFound);
    };
    let current = locked.stored.revision;
    if !named.condition.allows(Some(current)) {
        transaction.rollback().await?;
        return Ok(ScheduleChange::Unmet(Some(current)));
    }
    if locked.stored.schedule.specification.is_paused == is_paused {
        transaction.rollback().await?;
        return Ok(ScheduleChange::Unchanged(locked.stored));
    }
    let mut schedule = locked.stored.schedule.clone();
    schedule.specification.is_paused = is_paused;
    let new = locked.with(&schedule);
    let terms = (named.by, locked.instants(&schedule));
    let changed = change(&mut transaction, &locked, new, terms, keys).await?;
    let Some(stored) = changed else { return Err(sqlx::Error::RowNotFound) };
    transaction.commit().await?;
    Ok(ScheduleChange::Changed(stored))
}

impl Locked {
    /// Returns what becomes of the instants when `new` takes the place of the schedule. The change
    /// stores the rules of zones that this program has, so instants of older rules end with it.
    fn instants(&self, new: &Schedule) -> Instants {
        let before = &self.stored.schedule.specification;
        let has_older = before.has_zone() && self.stored.tzdata.as_str() < zone::rules_version();
        if has_older && before.timing == new.specification.timing {
            Instants::Renewed
        } else {
            Instants::Kept
        }
    }

    /// Returns a schedule for the place of this one. Its runs are still those of the caller who
    /// made this one.
    pub(super) fn with<'a>(&self, schedule: &'a Schedule) -> NewSchedule<'a> {
        NewSchedule {
            schedule,
            shard: Shard::new(self.shard.unsigned_abs()),
            by: self.submitted_by.map(PrincipalId::new),
            condition: RevisionCondition::None,
            is_dry_run: false,
        }
    }
}

async fn delete(
    open: &mut PgConnection,
    named: NamedSchedule<'_>,
    keys: &KeySet,
) -> Result<ScheduleChange, sqlx::Error> {
    let mut transaction = open.begin().await?;
    let Some(locked) = lock(&mut transaction, named.topic, named.name, keys).await? else {
        transaction.rollback().await?;
        return Ok(ScheduleChange::NotFound);
    };
    let current = locked.stored.revision;
    if !named.condition.allows(Some(current)) {
        transaction.rollback().await?;
        return Ok(ScheduleChange::Unmet(Some(current)));
    }
    withdraw(&mut transaction, &locked, named.by, RunsOf::All).await?;
    reach(Failpoint::RunsWithdrawn);
    let deleted = sqlx::query(AssertSqlSafe(delete_text())).bind(locked.stored.id.0);
    let deleted = deleted.execute(&mut *transaction).await?;
    if deleted.rows_affected() != 1 {
        return Err(sqlx::Error::RowNotFound);
    }
    transaction.commit().await?;
    Ok(ScheduleChange::Changed(locked.stored))
}

/// A run that was not claimed a moment ago.
struct Unclaimed {
    at: Timestamp,
    id: TaskId,
}

/// The runs that are withdrawn.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum RunsOf {
    /// Those that the schedule makes by itself.
    Schedule,
    /// Those of backfills, too.
    All,
}

/// Withdraws the runs of a schedule that are not claimed.
async fn withdraw(
    open: &mut PgConnection,
    locked: &Locked,
    by: Option<PrincipalId>,
    runs_of: RunsOf,
) -> Result<Withdrawn, sqlx::Error> {
    let schedule = &locked.stored;
    let query = sqlx::query(UNCLAIMED).bind(schedule.id.0).bind(locked.shard);
    let found = query.bind(runs_of == RunsOf::All);
    let found: Vec<PgRow> = found.fetch_all(&mut *open).await?;
    let runs = found.iter().map(unclaimed_of).collect::<Result<Vec<_>, _>>()?;
    let mut withdrawn = Withdrawn::default();
    for runs in runs.chunks(GROUP_MAX) {
        let gone = delete_unclaimed(open, runs, by).await?;
        let gone: Vec<&Unclaimed> = runs.iter().filter(|run| gone.contains(&run.id)).collect();
        let ids: Vec<Uuid> = gone.iter().map(|run| run.id.uuid()).collect();
        let forgotten =
            sqlx::query(FORGET_RUNS).bind(schedule.id.0).bind(&ids).fetch_all(&mut *open).await?;
        if forgotten.len() != ids.len() {
            return Err(sqlx::Error::RowNotFound);
        }
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
        }
        withdrawn.count = withdrawn.count.saturating_add(forgotten.len().saturating_as::<u64>());
    }
    Ok(withdrawn)
}

fn unclaimed_of(row: &PgRow) -> Result<Unclaimed, sqlx::Error> {
    let at = time_of(row, "instant")?.ok_or(sqlx::Error::RowNotFound)?;
    Ok(Unclaimed { at, id: TaskId::from_uuid(row.try_get("first_id")?) })
}

/// Deletes the rows of runs, as a cancel does. Returns the tasks whose rows were still there.
async fn delete_unclaimed(
    open: &mut PgConnection,
    runs: &[Unclaimed],
    by: Option<PrincipalId>,
) -> Result<Vec<TaskId>, sqlx::Error> {
    let mut wanted: Vec<CancelRow> =
        runs.iter().map(|run| CancelRow { row: run.id, first: run.id, by }).collect();
    let mut gone = Vec::new();
    for table in [FAR, NEAR] {
        wanted.sort_unstable_by_key(table.order);
        let deleted = delete_rows(open, &wanted, table.statement).await?;
        gone.extend(deleted.into_iter().map(|view| view.id));
        wanted.retain(|row| !gone.contains(&row.first));
    }
    Ok(gone)
}
