//! Changes of schedules: create or replace, pause and resume, delete.
//!
//! One transaction locks the row of the schedule throughout, so that no run is made meanwhile. The
//! transaction withdraws unclaimed runs (see [`withdraw`](mod@super::withdraw)): all of them for a
//! pause, another timing or another key, otherwise those that are not due yet. `next_run_at` goes
//! back to the earliest withdrawn run. The other runs stay with their records, and a changed timing
//! begins after the last claimed one.
//!
//! ```text
//! lock the schedule ──▶ withdraw its runs ──▶ write the schedule, revision + 1 ──▶ commit
//! make runs: where revision and next_run_at are as planned ──▶ none after the commit
//! ```

use az::SaturatingAs as _;
use sqlx::postgres::PgConnection;
use sqlx::{AssertSqlSafe, Connection as _, Row as _};

use super::Schedules;
use super::limit::ScheduleLimit;
use super::read::{AHEAD, NOW, TAKEN, without_ended};
use super::row::{SPECIFICATION, all_columns, bind, schedule_of};
use super::withdraw::{RunsOf, Withdrawal, shards_of_runs, withdraw};
use crate::domain::schedule::change::{CLAIMED_AHEAD_MAX, Change, Instants, Reached, Shifts};
use crate::domain::schedule::zone;
use crate::domain::schedule::{RevisionCondition, Schedule, ScheduleChange, StoredSchedule};
use crate::domain::{PrincipalId, ScheduleName, Shard, Timestamp, TopicName};
use crate::failpoint::{Failpoint, reach};
use crate::postgres::PostgresError;
use crate::postgres::connection::error::{check_count, rows_differ};
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
    /// False for a caller who may not see the record of the schedule. What such a caller is told
    /// does not depend on that record, unless the call has replaced it.
    pub sees_record: bool,
}

impl NewSchedule<'_> {
    /// Returns false when the answer must not depend on the record of the stored schedule.
    fn may_tell(&self) -> bool {
        self.sees_record || !self.is_dry_run
    }
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
    let columns = all_columns();
    format!(
        "-- lock a schedule
select {columns}, {AHEAD}, {TAKEN}, {NOW},
  (extract(epoch from created_at) * 1000000)::bigint as created_at
from schedule where topic = $1 and name = $2 for update"
    )
}

/// The due time of a run decides whether it is claimed: a run may have been made with a smaller
/// spread than that of the schedule. The first id of a run has its due time. The runs that are not
/// due yet come first in this order, and they are few.
const LAST_RUN: &str = "-- the last claimed run of a schedule
select instant from schedule_run
where schedule_id = $1 and not is_backfill
  and punctual_time(first_id) <= clock_timestamp() + make_interval(secs => $2)
order by instant desc limit 1";

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
        let statement = async |open: &mut PgConnection| put(open, new, keys, &self.limit).await;
        self.pool.run("store a schedule", statement).await
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
    pub(super) created_at: Timestamp,
    pub(super) now: Timestamp,
}

/// How a schedule is changed.
#[derive(Clone, Copy, Debug)]
pub(super) struct Terms {
    /// The caller who withdraws the runs.
    pub(super) by: Option<PrincipalId>,
    pub(super) instants: Instants,
    pub(super) runs_of: RunsOf,
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
        created_at: Timestamp::from_micros(row.try_get("created_at")?),
        now: Timestamp::from_micros(row.try_get("now")?),
    }))
}

async fn put(
    open: &mut PgConnection,
    new: NewSchedule<'_>,
    keys: &KeySet,
    limit: &ScheduleLimit,
) -> Result<ScheduleChange, sqlx::Error> {
    let mut transaction = open.begin().await?;
    let schedule = new.schedule;
    let locked = lock(&mut transaction, &schedule.record.topic, &schedule.name, keys).await?;
    let current = locked.as_ref().map(|locked| locked.stored.revision);
    let done = match locked {
        _ if !new.condition.allows(current) => ScheduleChange::Unmet(current),
        Some(locked) if new.may_tell() && locked.stored.schedule == *schedule => {
            locked.unchanged(&mut transaction).await?
        }
        Some(locked) => {
            let terms = locked.terms(new.by, new);
            match change(&mut transaction, &locked, new, terms, keys).await? {
                Some(stored) => ScheduleChange::Changed(stored),
                None => ScheduleChange::NoRun,
            }
        }
        None => create(&mut transaction, new, keys, limit).await?,
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
    limit: &ScheduleLimit,
) -> Result<ScheduleChange, sqlx::Error> {
    let now = match limit.time_with_room(&mut *open).await? {
        Ok(now) => now,
        Err(schedules_max) => return Ok(ScheduleChange::TooMany { schedules_max }),
    };
    let schedule = new.schedule;
    let next = schedule.specification.next_after(now, 0);
    let Some(next) = next else { return Ok(ScheduleChange::NoRun) };
    let stored_record = sealed(keys, schedule)?;
    let returned = all_columns();
    let text = format!(
        "-- create a schedule
insert into schedule (topic, name, next_run_at, look_at, {})
values ($1, $2, $3, $4, {})
on conflict (topic, name) do nothing
returning {returned}, {AHEAD}, {TAKEN}, {NOW}",
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

/// Withdraws runs of a locked schedule, and replaces the schedule by `new`. Returns `None` when the
/// timing of `new` is another one, and no instant of it comes.
pub(super) async fn change(
    open: &mut PgConnection,
    locked: &Locked,
    new: NewSchedule<'_>,
    Terms { by, instants, runs_of }: Terms,
    keys: &KeySet,
) -> Result<Option<StoredSchedule>, sqlx::Error> {
    let stored = &locked.stored;
    let withdrawn = withdraw(open, locked.withdrawal(by, runs_of)).await?;
    reach(Failpoint::RunsWithdrawn);
    let last = sqlx::query_scalar(LAST_RUN).bind(stored.id.0).bind(CLAIMED_AHEAD_MAX.as_secs_f64());
    let last: Option<i64> = last.fetch_optional(&mut *open).await?;
    let (before, after) = (&stored.schedule.specification, &new.schedule.specification);
    let StoredSchedule { next_run_at, runs_made, skipped, not_missed, .. } = *stored;
    let change = Change {
        before,
        after,
        instants,
        reached: Reached { next_run_at, runs_made, skipped, not_missed },
        withdrawn,
        last_run_at: last.map(Timestamp::from_millis),
        created_at: locked.created_at,
    };
    let shifts = Shifts { before: stored.schedule.shift(), after: new.schedule.shift() };
    let Reached { next_run_at: next, runs_made, skipped, not_missed } =
        change.outcome(locked.now, shifts);
    // A schedule that has ended can be changed, so that a file with it can still be applied.
    let has_all_runs = after.runs_max.is_some_and(|runs_max| runs_made >= runs_max);
    let may_end = before.timing == after.timing
        || has_all_runs && after.timing.next_after(locked.now).is_some();
    if next.is_none() && !may_end {
        return Ok(None);
    }
    let stored_record = sealed(keys, new.schedule)?;
    let returned = all_columns();
    let text = format!(
        "-- change a schedule
update schedule set (next_run_at, look_at, runs_made, skipped, not_missed_from, not_missed_to,
    revision, changed_at, {})
  = ($3, $4, $5, $6, $7, $8, revision + 1, clock_timestamp(), {})
where id = $1 and revision = $2
returning {returned}, {AHEAD}, {TAKEN}, {NOW}",
        columns(),
        parameters(9)
    );
    let query = sqlx::query(AssertSqlSafe(text))
        .bind(stored.id.0)
        .bind(stored.revision.saturating_as::<i64>())
        .bind(next.map(Timestamp::as_millis))
        .bind(look_at_of(new.schedule, next, locked.now))
        .bind(runs_made.saturating_as::<i64>())
        .bind(skipped.saturating_as::<i64>())
        .bind(not_missed.from.as_millis())
        .bind(not_missed.to.as_millis());
    // The row is locked, so it is there.
    let row = bind_schedule(query, new, stored_record.as_columns()).fetch_one(&mut *open).await?;
    // Runs that stay are in the shard of before.
    without_ended(open, schedule_of(&row, keys)?, locked.shard).await.map(Some)
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
        let unchanged = locked.unchanged(&mut transaction).await?;
        transaction.rollback().await?;
        return Ok(unchanged);
    }
    let mut schedule = locked.stored.schedule.clone();
    schedule.specification.is_paused = is_paused;
    let new = locked.with(&schedule);
    let terms = locked.terms(named.by, new);
    let changed = change(&mut transaction, &locked, new, terms, keys).await?;
    let Some(stored) = changed else { return Err(rows_differ(0, 1)) };
    transaction.commit().await?;
    Ok(ScheduleChange::Changed(stored))
}

impl Locked {
    fn withdrawal(&self, by: Option<PrincipalId>, runs_of: RunsOf) -> Withdrawal<'_> {
        Withdrawal { schedule: &self.stored, shard: self.shard, runs_of, by }
    }

    /// Returns the answer to a call that changes nothing.
    async fn unchanged(self, open: &mut PgConnection) -> Result<ScheduleChange, sqlx::Error> {
        without_ended(open, self.stored, self.shard).await.map(ScheduleChange::Unchanged)
    }

    /// Returns the terms of a change by a caller.
    fn terms(&self, by: Option<PrincipalId>, new: NewSchedule<'_>) -> Terms {
        Terms { by, instants: self.instants(new.schedule), runs_of: self.withdrawn_by(new) }
    }

    /// Returns the runs that are withdrawn when `new` takes the place of the schedule. Runs that
    /// are due stay where possible, because their instants might count as missed otherwise.
    fn withdrawn_by(&self, new: NewSchedule<'_>) -> RunsOf {
        let (before, after) = (&self.stored.schedule, new.schedule);
        let is_same_timing = before.specification.timing == after.specification.timing;
        // Runs with another key are in another shard, where a later change would not find them. A
        // dry run does not tell a caller who may not see the key whether it is another one.
        let is_same_key = !new.may_tell() || before.record.key == after.record.key;
        if is_same_timing && is_same_key && !after.specification.is_paused {
            RunsOf::NotDue
        } else {
            RunsOf::Schedule
        }
    }

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
            sees_record: true,
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
    let withdrawal = locked.withdrawal(named.by, RunsOf::All);
    // A change of the key leaves backfilled runs in the shard of the former key.
    for shard in shards_of_runs(&mut transaction, locked.stored.id).await? {
        withdraw(&mut transaction, Withdrawal { shard, ..withdrawal }).await?;
    }
    reach(Failpoint::RunsWithdrawn);
    let deleted = sqlx::query(AssertSqlSafe(delete_text())).bind(locked.stored.id.0);
    let deleted = deleted.execute(&mut *transaction).await?;
    check_count(deleted.rows_affected(), 1)?;
    transaction.commit().await?;
    Ok(ScheduleChange::Changed(locked.stored))
}
