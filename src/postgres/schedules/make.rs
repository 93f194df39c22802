//! Makes the runs of schedules.
//!
//! One statement moves a schedule on and inserts the tasks of its runs, so that both happen or
//! neither. The statement compares the revision and `next_run_at` with the plan: of two nodes at
//! one schedule, the second finds the schedule moved on, and inserts nothing. The record of a run
//! comes from the row of the schedule in the same statement, so no run has the payload of an older
//! revision.

use std::collections::HashSet;
use std::time::Duration;

use az::SaturatingAs as _;
use sqlx::postgres::{PgConnection, PgRow};
use sqlx::{AssertSqlSafe, Connection as _, Row as _};
use uuid::Uuid;

use super::read::{self, NOW, ScheduleCounts, TAKEN};
use super::row::{SPECIFICATION, millis_of, not_missed_of, record_of, specification_of};
use super::{KEEP_PLANS, shard_of};
use crate::domain::schedule::backfill;
use crate::domain::schedule::plan::{Plan, Progress, RUNS_MAX, RunOverlap};
use crate::domain::schedule::zone;
use crate::domain::schedule::{ScheduleId, Specification};
use crate::domain::{Headers, ScheduleName, TaskId, TaskName, Timestamp, TopicName, Tracking};
use crate::failpoint::{Failpoint, reach};
use crate::postgres::connection::ConnectionPurpose;
use crate::postgres::tasks::principals::STAMP;
use crate::postgres::tasks::sealed::refused;
use crate::postgres::unsettled::{SharedUnsettledFloor, UnsettledFloor};
use crate::postgres::{Connection, PostgresError, PostgresSettings};
use crate::sealing::{KeySet, OwnedColumns, PayloadKeys, RecordOwner};

const PURPOSE: ConnectionPurpose = ConnectionPurpose {
    name: "schedule runs",
    deadline: Duration::from_secs(5),
    settings: &[("plan_cache_mode", "force_custom_plan"), ("lock_timeout", "200ms")],
};

/// How long the row of a run is kept after its instant: longer than a backfill reaches back, and
/// than a run may be due after its instant.
const RUN_RETENTION: Duration = backfill::AGE_MAX.saturating_add(Duration::from_hours(2 * 24));

/// The most old runs of a schedule that one statement forgets: more than it makes, so that none
/// are left in the end.
const FORGOTTEN_MAX: usize = 2 * RUNS_MAX;

/// The bytes of the records, or of their keys, that one look reads, unless one alone has more: 8
/// MiB.
const RECORDS_BYTES_MAX: usize = 8 << 20;

/// Maximum number of the last runs of a schedule that are searched for an unfinished run. A
/// schedule that skips overlapping runs has one unfinished run at a time. There are more only after
/// a change from `allow`, and after a backfill.
const LAST_RUNS: i64 = 10;

/// The most runs of a deleted schedule that one statement deletes.
const SWEPT_MAX: i64 = 5_000;

fn sweep_text() -> String {
    format!(
        "-- delete runs of a deleted schedule
with deleted as materialized (
  select id from schedule_deleted order by id limit 1 for update skip locked
), gone as (
  delete from schedule_run r using deleted d
  where r.schedule_id = d.id and r.instant = any(array(
    select o.instant from schedule_run o where o.schedule_id = (select id from deleted)
    order by o.instant limit {SWEPT_MAX}))
  returning 1
), ended as (
  delete from schedule_deleted s using deleted d
  where s.id = d.id and (select count(*) from gone) < {SWEPT_MAX}
)
select exists (select from deleted)"
    )
}

/// A tracked task is in `task_follow` from the first attempt to the end. Before, the task is
/// pending or in a batch. The note 1 means that its consumer has finished the task. The batches are
/// read once for all runs: while Kafka is away, there are many. Backfilled runs may wait in the
/// shard of a former key.
const BUSY: &str = concat!(
    "-- schedules with a run that is not finished
with run as materialized (
  select s.id, r.first_id, case
    when f.first_id is not null then f.note is distinct from 1
    when exists (select from task t where t.shard = r.shard and t.id = r.first_id)
      or exists (select from task_far t where t.id = r.first_id) then true
    when exists (select from execlog_finished e where e.id = r.first_id) then false
  end as is_busy
  from schedule s
  cross join lateral (select first_id, ",
    shard_of!("first_id"),
    " as shard
    from schedule_run where schedule_id = s.id order by instant desc limit $2) r
  left join task_follow f on f.first_id = r.first_id
  where s.id = any($1)
), in_batch as materialized (
  select i.id from execlog_batch b cross join lateral unnest(b.ids) as i (id)
  where b.settled_at is null and b.batch >= $3 and exists (select from run where is_busy is null)
)
select distinct id from run
where is_busy or is_busy is null and first_id in (select id from in_batch)"
);

/// A schedule whose runs are to be made.
#[derive(Debug)]
pub struct DueSchedule {
    pub id: ScheduleId,
    pub topic: TopicName,
    pub name: ScheduleName,
    pub revision: i64,
    pub key: Option<Box<[u8]>>,
    /// The record, when that of each run is to be sealed. `None`: runs get a copy of the row's.
    pub record: Option<OwnedColumns>,
    /// The bytes of the record of each run, without the headers of a run.
    pub record_bytes: usize,
    pub progress: Progress<'static>,
    /// See [`Progress::taken`].
    pub taken: Vec<Timestamp>,
    /// The error says why this version of the program cannot read it.
    pub specification: Result<Specification, String>,
}

/// Schedules whose runs are to be made, and the time of Postgres's clock.
#[derive(Debug)]
pub struct DueSchedules {
    pub schedules: Vec<DueSchedule>,
    pub now: Timestamp,
    /// There may be more.
    pub has_more: bool,
}

/// The task of a run.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct RunTask {
    pub at: Timestamp,
    pub id: TaskId,
    pub name: TaskName,
    /// The expiry of the policy, and the requested time of a run that is due later than its
    /// instant.
    pub front: Headers,
    pub headers: Headers,
    /// The `ttr` and `retry` of the topic's policy. Those of the schedule have priority.
    pub tracking: Option<Box<Tracking>>,
    /// True when the task is due beyond the last leaf.
    pub is_far: bool,
}

/// The runs of one schedule, as planned.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct PlannedSchedule {
    pub id: ScheduleId,
    pub revision: i64,
    pub topic: TopicName,
    /// See [`DueSchedule::record`].
    pub record: Option<OwnedColumns>,
    /// Where the plan found the schedule.
    pub found_at: Timestamp,
    /// The bytes of the record of each run.
    pub record_bytes: usize,
    pub plan: Plan,
    pub tasks: Vec<RunTask>,
}

/// The connection that makes runs.
#[derive(Debug)]
pub struct RunMaker {
    pub(super) connection: Connection,
    /// How long a name is kept after the due time of its task.
    retention: Duration,
    pub(super) keys: PayloadKeys,
    unsettled: SharedUnsettledFloor,
}

impl RunTask {
    /// Returns the column `tracking` of the policy.
    pub(super) fn tracking_column(&self) -> Option<Vec<u8>> {
        Some(self.tracking.as_ref()?.first_row().encode())
    }

    /// Returns the record of the run, made of that of its schedule, and sealed if new records are.
    ///
    /// # Errors
    /// When it cannot be sealed. Nothing must be stored then.
    pub(super) fn given(
        &self,
        record: &OwnedColumns,
        topic: &str,
        keys: &KeySet,
    ) -> Result<OwnedColumns, sqlx::Error> {
        let headers = record.headers.as_deref().unwrap_or_default();
        let headers = [self.front.as_bytes(), headers, self.headers.as_bytes()].concat();
        let plain = OwnedColumns { headers: Some(headers), ..record.clone() };
        let owner = RecordOwner::Task(self.id, topic);
        let sealed = keys.seal(owner, plain.as_columns()).map_err(refused)?;
        Ok(sealed.unwrap_or(plain))
    }
}

/// The time of the statement decides, not of the row, so that the index is used. Payload and
/// headers are read only when the records of runs must be sealed by this node, and otherwise the
/// key alone. A look reads [`RECORDS_BYTES_MAX`] of them, but one schedule at least.
fn select_text(condition: &str) -> String {
    format!(
        "-- schedules to make runs of
with head as materialized (
  select h.*, sum(case when is_read then record_bytes else key_bytes end)
      over (order by look_at, id)
    - case when is_read then record_bytes else key_bytes end as bytes_before
  from (
    select id, look_at, $3 or punctual_sealed_by(headers) is not null as is_read,
      coalesce(octet_length(key), 0) as key_bytes,
      coalesce(octet_length(key), 0) + coalesce(octet_length(payload), 0)
        + coalesce(octet_length(headers), 0) as record_bytes
    from schedule
    where look_at <= (extract(epoch from statement_timestamp()) * 1000)::bigint and {condition}
    order by look_at, id limit $2
  ) h
)
select id, topic, name, revision, key, next_run_at, runs_made, skipped, not_missed_from,
  not_missed_to, {SPECIFICATION}, {NOW}, {TAKEN},
  h.record_bytes, h.is_read, case when h.is_read then payload end as payload,
  case when h.is_read then headers end as headers, (select count(*) from head) as found
from (select id as head_id, record_bytes, is_read, bytes_before from head) h
join schedule on id = h.head_id
where h.bytes_before < {RECORDS_BYTES_MAX}
order by look_at, id"
    )
}

/// Each part depends on the rows of `moved`, and each task on a new row of `schedule_run`. A task
/// whose name belongs to a task of a caller has none. A record that the node has sealed for its run
/// is given. It is that of the revision that the statement compares.
///
/// The instants of a schedule with older rules of its zone were computed by them. They stay to be
/// renewed.
///
/// A statement forgets at most [`FORGOTTEN_MAX`] runs of a schedule: after an outage, there are
/// many. Runs of a paused topic, and those that a caller has moved, may still wait. They are kept,
/// so that a pause of the schedule withdraws them.
fn make_text() -> String {
    let stored = stored_text("$14");
    format!(
        "-- make runs of schedules
with {STAMP}, planned as materialized (
  select * from unnest($1::bigint[], $2::bigint[], $3::bigint[], $4::bigint[], $5::bigint[],
    $6::bigint[], $7::bigint[])
    as p (id, revision, found_at, next_run_at, look_at, runs_made, skipped)
), moved as (
  update schedule s
  set next_run_at = p.next_run_at, look_at = p.look_at, runs_made = p.runs_made,
    skipped = p.skipped, tzdata = least(s.tzdata, $16)
  from planned p
  where s.id = p.id and s.revision = p.revision and s.next_run_at = p.found_at and not s.is_paused
  returning s.id, s.shard, s.topic, s.key, s.payload, s.headers, s.tracking, s.submitted_by
), run as materialized (
  select m.id as schedule_id, m.shard, m.topic, coalesce(m.tracking, t.tracking) as tracking,
    m.submitted_by,
    case when t.is_given then t.key else m.key end as key,
    case when t.is_given then t.payload else m.payload end as payload,
    case when t.is_given then t.headers
      else t.front || coalesce(m.headers, ''::bytea) || t.headers end as headers,
    t.instant, t.id, t.name, t.is_far, false as is_backfill, nullif(t.missed, 0) as missed,
    case when m.submitted_by is not null then (select at from stamp) end as submitted_at
  from unnest($8::bigint[], $9::bigint[], $10::uuid[], $11::text[], $12::bytea[], $13::boolean[],
    $17::bytea[], $18::bytea[], $19::bytea[], $20::boolean[], $21::bigint[], $22::bytea[])
    as t (schedule_id, instant, id, name, headers, is_far, front, key, payload, is_given, missed,
      tracking)
  join moved m on m.id = t.schedule_id
{stored}), forgotten as (
  delete from schedule_run r
  using moved m
  cross join lateral (select max(l.instant) as instant from schedule_run l
    where l.schedule_id = m.id and not l.is_backfill) last
  cross join lateral (select o.instant, o.first_id from schedule_run o
    where o.schedule_id = m.id and o.instant < least($15, last.instant)
    order by o.instant limit {FORGOTTEN_MAX}) old
  where r.schedule_id = m.id and r.instant = old.instant
    and (select f.first_id from task_follow f where f.first_id = old.first_id) is null
)
select (select count(*) from moved) as moved, (select array_agg(first_id) from made) as ids"
    )
}

/// Returns the part of a statement that stores the rows of `run`, after the names of its tasks.
/// Each task depends on a new row of `schedule_run`. `retention` is the parameter of the seconds
/// that a name is kept.
pub(super) fn stored_text(retention: &str) -> String {
    format!(
        "), made as (
  insert into schedule_run (schedule_id, instant, first_id, is_backfill, missed)
  select schedule_id, instant, id, is_backfill, missed from run
  on conflict (schedule_id, instant) do nothing
  returning first_id
), named as (
  insert into task_name (topic, name, id, row_id, expires_at)
  select r.topic, r.name, r.id, r.id, punctual_time(r.id) + make_interval(secs => {retention})
  from made join run r on r.id = made.first_id
  order by r.topic, r.name
  on conflict (topic, name) do nothing
  returning id
), task_row as materialized (
  select r.*, n.id is not null as has_name
  from made join run r on r.id = made.first_id left join named n on n.id = r.id
), near as (
  insert into task (shard, id, topic, key, payload, headers, name, submitted_by, submitted_at,
    tracking)
  select shard, id, topic, key, payload, headers, case when has_name then name end, submitted_by,
    submitted_at, tracking
  from task_row where not is_far
), far as (
  insert into task_far (shard, id, topic, key, payload, headers, name, submitted_by, submitted_at,
    tracking)
  select shard, id, topic, key, payload, headers, case when has_name then name end, submitted_by,
    submitted_at, tracking
  from task_row where is_far
"
    )
}

impl RunMaker {
    pub fn new(settings: &PostgresSettings, retention: Duration) -> Self {
        let keys = settings.payload_keys().clone();
        let unsettled = settings.unsettled_floor().clone();
        Self { connection: Connection::new(settings, PURPOSE), retention, keys, unsettled }
    }

    /// Returns schedules of these shards whose runs are to be made, at most `limit`, without the
    /// `failed` ones and those that were to be looked at before `from`.
    pub async fn due(
        &mut self,
        shards: &[i16],
        limit: usize,
        (from, failed): (Option<Timestamp>, &[i64]),
    ) -> Result<DueSchedules, PostgresError> {
        let text = select_text("look_at >= $5 and shard = any($1) and id <> all($4)");
        let from = from.map_or(i64::MIN, Timestamp::as_millis);
        let (keys, unsettled) = (self.keys.current(), self.unsettled.get());
        let statement = async |open: &mut PgConnection| {
            let query = sqlx::query(AssertSqlSafe(text)).bind(shards);
            let query = query.bind(limit.saturating_as::<i64>()).bind(keys.seals()).bind(failed);
            let query = query.bind(from);
            let due =
                query.fetch_all(&mut *open).await.and_then(|rows| due_of(rows, limit, &keys))?;
            with_busy(open, due, unsettled).await
        };
        self.connection.run("find schedules to make runs of", statement).await
    }

    /// Returns the schedule with an id, if its runs are to be made.
    pub async fn due_one(&mut self, id: ScheduleId) -> Result<DueSchedules, PostgresError> {
        let (text, keys) = (select_text("id = $1"), self.keys.current());
        let unsettled = self.unsettled.get();
        let statement = async |open: &mut PgConnection| {
            let query = sqlx::query(AssertSqlSafe(text)).bind(id.0);
            let query = query.bind(1_i64).bind(keys.seals()).fetch_all(&mut *open);
            let due = query.await.and_then(|rows| due_of(rows, 1, &keys))?;
            with_busy(open, due, unsettled).await
        };
        self.connection.run("find the schedule to make runs of", statement).await
    }

    /// Moves the schedules on and stores the tasks of their runs. A schedule that is not where its
    /// plan found it is left alone. Returns the ids of the stored tasks.
    ///
    /// # Errors
    /// After [`PostgresError::Unanswered`] the runs may or may not have been made. After any other
    /// error none was.
    pub async fn make(
        &mut self,
        planned: &[PlannedSchedule],
        now: Timestamp,
    ) -> Result<HashSet<TaskId>, PostgresError> {
        let what = format!("make the runs of {} schedules", planned.len());
        let (retention, keys) = (self.retention.as_secs_f64(), self.keys.current());
        let statement = async |open: &mut PgConnection| {
            reach(Failpoint::RunsPlanned);
            let row = make_statement(open, planned, (now, retention), &keys).await?;
            reach(Failpoint::RunsMade);
            let ids: Option<Vec<Uuid>> = row.try_get("ids")?;
            Ok(ids.unwrap_or_default().into_iter().map(TaskId::from_uuid).collect())
        };
        self.connection.run(&what, statement).await
    }

    /// Deletes some runs of a deleted schedule. Returns false when there are no such runs.
    pub async fn sweep_deleted(&mut self) -> Result<bool, PostgresError> {
        let sweep = async |open: &mut PgConnection| {
            sqlx::query_scalar(AssertSqlSafe(sweep_text())).fetch_one(open).await
        };
        self.connection.run("delete runs of a deleted schedule", sweep).await
    }

    /// Counts the schedules of the cluster.
    pub async fn counts(&mut self) -> Result<ScheduleCounts, PostgresError> {
        self.connection.run("count schedules", read::counts).await
    }
}

async fn make_statement(
    open: &mut PgConnection,
    planned: &[PlannedSchedule],
    (now, retention): (Timestamp, f64),
    keys: &KeySet,
) -> Result<PgRow, sqlx::Error> {
    let millis = |at: Option<Timestamp>| at.map(Timestamp::as_millis);
    let each = || planned.iter();
    let tasks = || planned.iter().flat_map(|one| one.tasks.iter().map(move |task| (one.id, task)));
    let given = records_of(planned, keys)?;
    let records = || given.iter().map(Option::as_ref);
    let headers = tasks().zip(records()).map(|((_, task), given)| match given {
        Some(given) => given.headers.as_deref().unwrap_or_default(),
        None => task.headers.as_bytes(),
    });
    sqlx::query(AssertSqlSafe(make_text()))
        .bind(each().map(|one| one.id.0).collect::<Vec<_>>())
        .bind(each().map(|one| one.revision).collect::<Vec<_>>())
        .bind(each().map(|one| one.found_at.as_millis()).collect::<Vec<_>>())
        .bind(each().map(|one| millis(one.plan.next_run_at)).collect::<Vec<_>>())
        .bind(each().map(|one| millis(one.plan.look_at)).collect::<Vec<_>>())
        .bind(each().map(|one| one.plan.runs_made.saturating_as::<i64>()).collect::<Vec<_>>())
        .bind(each().map(|one| one.plan.skipped.saturating_as::<i64>()).collect::<Vec<_>>())
        .bind(tasks().map(|(schedule, _)| schedule.0).collect::<Vec<_>>())
        .bind(tasks().map(|(_, task)| task.at.as_millis()).collect::<Vec<_>>())
        .bind(tasks().map(|(_, task)| task.id.uuid()).collect::<Vec<_>>())
        .bind(tasks().map(|(_, task)| task.name.as_str()).collect::<Vec<_>>())
        .bind(headers.collect::<Vec<_>>())
        .bind(tasks().map(|(_, task)| task.is_far).collect::<Vec<_>>())
        .bind(retention)
        .bind(now.as_millis() - millis_of(RUN_RETENTION))
        .bind(zone::rules_version())
        .bind(tasks().map(|(_, task)| task.front.as_bytes()).collect::<Vec<_>>())
        .bind(records().map(|given| given?.key.as_deref()).collect::<Vec<_>>())
        .bind(records().map(|given| given?.payload.as_deref()).collect::<Vec<_>>())
        .bind(records().map(|given| given.is_some()).collect::<Vec<_>>())
        .bind(each().flat_map(missed_of).collect::<Vec<_>>())
        .bind(tasks().map(|(_, task)| task.tracking_column()).collect::<Vec<_>>())
        .fetch_one(open)
        .await
}

/// Returns how many instants each run of a plan counts.
fn missed_of(planned: &PlannedSchedule) -> impl Iterator<Item = i64> {
    planned.plan.runs.iter().map(|run| run.missed.saturating_as::<i64>())
}

/// Notes which of the schedules that skip have a run that is not finished.
async fn with_busy(
    open: &mut PgConnection,
    mut due: DueSchedules,
    unsettled: UnsettledFloor,
) -> Result<DueSchedules, sqlx::Error> {
    let skips = |one: &DueSchedule| {
        one.specification.as_ref().is_ok_and(|of| of.run_overlap == RunOverlap::Skip)
    };
    let skipping: Vec<i64> =
        due.schedules.iter().filter(|one| skips(one)).map(|one| one.id.0).collect();
    if skipping.is_empty() {
        return Ok(due);
    }
    let mut transaction = open.begin().await?;
    sqlx::query(KEEP_PLANS).execute(&mut *transaction).await?;
    let query = sqlx::query_scalar(BUSY).bind(skipping).bind(LAST_RUNS).bind(unsettled.uuid());
    let busy: Vec<i64> = query.fetch_all(&mut *transaction).await?;
    transaction.commit().await?;
    for one in &mut due.schedules {
        one.progress.is_busy = busy.contains(&one.id.0);
    }
    Ok(due)
}

/// Returns the record of each run that does not get a copy of its schedule's, sealed for its task.
fn records_of(
    planned: &[PlannedSchedule],
    keys: &KeySet,
) -> Result<Vec<Option<OwnedColumns>>, sqlx::Error> {
    let runs = planned.iter().flat_map(|one| one.tasks.iter().map(move |task| (one, task)));
    let given = |(one, task): (&PlannedSchedule, &RunTask)| {
        one.record.as_ref().map(|record| task.given(record, one.topic.as_str(), keys)).transpose()
    };
    runs.map(given).collect()
}

fn due_of(rows: Vec<PgRow>, limit: usize, keys: &KeySet) -> Result<DueSchedules, sqlx::Error> {
    let now: Option<i64> = rows.first().map(|row| row.try_get("now")).transpose()?;
    let found: Option<i64> = rows.first().map(|row| row.try_get("found")).transpose()?;
    let found = found.unwrap_or_default().saturating_as::<usize>();
    let schedules = rows.iter().map(|row| due_schedule_of(row, keys));
    let schedules = schedules.collect::<Result<Vec<_>, _>>()?;
    let has_more = found >= limit || schedules.len() < found;
    Ok(DueSchedules { schedules, now: Timestamp::from_micros(now.unwrap_or_default()), has_more })
}

fn due_schedule_of(row: &PgRow, keys: &KeySet) -> Result<DueSchedule, sqlx::Error> {
    let is_read: bool = row.try_get::<Option<bool>, _>("is_read")?.unwrap_or(false);
    let (key, record, specification) = match is_read.then(|| record_of(row, keys)) {
        None => (row.try_get("key")?, None, specification_of(row)),
        Some(Ok(record)) => (record.key.clone(), Some(record), specification_of(row)),
        // Without its record, the schedule waits as if it could not be read.
        Some(Err(error)) => (None, None, Err(error)),
    };
    let count = |column: &str| -> Result<u64, sqlx::Error> {
        Ok(row.try_get::<i64, _>(column)?.saturating_as::<u64>())
    };
    let taken: Vec<i64> = row.try_get("taken")?;
    Ok(DueSchedule {
        id: ScheduleId(row.try_get("id")?),
        topic: TopicName::stored(row.try_get("topic")?),
        name: ScheduleName::stored(row.try_get("name")?),
        revision: row.try_get("revision")?,
        key: key.map(Vec::into_boxed_slice),
        record,
        record_bytes: row.try_get::<i32, _>("record_bytes")?.saturating_as::<usize>(),
        progress: Progress {
            next_run_at: Timestamp::from_millis(row.try_get("next_run_at")?),
            runs_made: count("runs_made")?,
            skipped: count("skipped")?,
            is_busy: false,
            taken: &[],
            not_missed: not_missed_of(row)?,
        },
        taken: taken.into_iter().map(Timestamp::from_millis).collect(),
        specification: specification.map_err(|error| error.to_string()),
    })
}
