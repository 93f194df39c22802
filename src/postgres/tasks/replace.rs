//! Replace: puts a new task in the place of the task that a name stands for.
//!
//! One transaction locks the entry throughout, so one of two replacements sees the work of the
//! other. A single statement would not be enough: two of them left two live tasks.
//!
//! ```text
//! lock the entry
//!   ├─ a precondition does not allow the task that the name stands for                 unmet
//!   ├─ no entry ──▶ insert entry and task                                              created
//!   ├─ its task is the one that `over` says is final ──▶ insert task, move entry       created
//!   ├─ `when` does not allow the due time beside that of the row in a table           unmet
//!   └─ delete the old row in task_far, else in task
//!        ├─ found ──▶ its line in the execlog, insert task, move entry                 replaced
//!        └─ not found
//!             ├─ the task is final ──▶ insert task, move entry                         created
//!             └─ the task is claimed, or its state is not certain                      gone
//! ```
//!
//! A cancel by name with a precondition works in the same way, without a new task: `withdraw`. A
//! move to another due time keeps the task: `reschedule`.

pub mod reschedule;
pub mod withdraw;

use std::time::Duration;

use sqlx::postgres::PgConnection;
use sqlx::{AssertSqlSafe, Connection as _};

use super::names::{NameEntry, NameTerms, entry_of};
use super::principals::STAMP;
use super::sealed::StoredRecords;
use crate::domain::{NewTask, Precondition, PrincipalId, TaskId, Timestamp};
use crate::failpoint::{Failpoint, reach};
use crate::postgres::connection::error::{PostgresError, check_count};
use crate::postgres::connection::pool::Pool;
use crate::postgres::connection::{ConnectionPurpose, PostgresSettings};
use crate::postgres::unsettled::SharedUnsettledFloor;
use crate::sealing::{KeySet, PayloadKeys};

const PURPOSE: ConnectionPurpose = ConnectionPurpose {
    name: "replace",
    deadline: Duration::from_secs(5),
    settings: &[("plan_cache_mode", "force_custom_plan")],
};

/// Replaces tasks, over a few connections of its own.
#[derive(Debug)]
pub struct Replaces {
    pool: Pool,
    retention: Duration,
    keys: PayloadKeys,
    unsettled: SharedUnsettledFloor,
}

/// The result of a replacement.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Replacement {
    /// The task was stored, and no other task was cancelled for it.
    Created,
    /// The task was stored, and the task before it is cancelled.
    Replaced,
    /// No change: the task of the entry is claimed, perhaps sent, or already final. A look-up
    /// tells.
    Gone(NameEntry),
    /// No change: another transaction made an entry just now.
    Overtaken,
    /// No change: the precondition does not allow this task, for which the name stands.
    Unmet(Option<TaskId>),
}

const LOCK: &str = "-- lock the entry of a name
select id, row_id, expires_at <= clock_timestamp() as is_expired, outcome from task_name
  where topic = $1 and name = $2 for update";

/// The row of a follow-up is deleted only while `task_follow` says that no attempt of it was sent,
/// as in a cancel.
const TAKE_OUT_FAR: &str = "-- take out a far task
with d as (
  delete from task_far t
  where t.id = $1 and t.shard = $2
    and case when $1 = $3 then t.first_id is null
      else t.first_id = $3 and exists (select from task_follow f where f.first_id = $3
        and f.row_id = $1 and not f.maybe_sent) end
  returning t.id, t.topic, t.name, coalesce(t.attempt, 1::smallint) as attempt, t.submitted_by,
    t.submitted_at, t.moved_to
), line as (
  insert into execlog_cancelled (id, row_id, topic, name, attempt, replaced_by, submitted_by,
    submitted_at, moved_to, cancelled_by)
  select $3, id, topic, name, attempt, $4, submitted_by, submitted_at, moved_to, $5::smallint from d
), follow as (
  delete from task_follow using d where task_follow.first_id = $3
)
select count(*) from d";

/// Reads the due time of the row that a replacement would delete, in either table. This transaction
/// has locked the entry of the name. A move of the task locks the entry last, so the move has
/// either committed before, or cannot commit before this transaction ends.
const DUE_AT: &str = "-- due time of the task of a name
select coalesce(t.moved_to, punctual_millis($3)) as due_at
from (
  select id, first_id, moved_to from task_far where id = $1
  union all
  select id, first_id, moved_to from task where shard = $2 and id = $1
) t
where case when $1 = $3 then t.first_id is null
  else t.first_id = $3 and exists (select from task_follow f where f.first_id = $3
    and f.row_id = $1 and not f.maybe_sent) end";

/// Every part of this statement depends on the row that was deleted.
const REPLACE: &str = "-- replace a task
with d as (
  delete from task t
  where t.id = $12 and t.shard = $13
    and case when $12 = $14 then t.first_id is null
      else t.first_id = $14 and exists (select from task_follow f where f.first_id = $14
        and f.row_id = $12 and not f.maybe_sent) end
  returning t.id, t.topic, t.name, coalesce(t.attempt, 1::smallint) as attempt, t.submitted_by,
    t.submitted_at, t.moved_to
), line as (
  insert into execlog_cancelled (id, row_id, topic, name, attempt, replaced_by, submitted_by,
    submitted_at, moved_to, cancelled_by)
  select $14, id, topic, name, attempt, $2, submitted_by, submitted_at, moved_to, $10::smallint
  from d
), follow as (
  delete from task_follow using d where task_follow.first_id = $14
), place as (
  update task_name set id = $2, row_id = $2, outcome = null,
    expires_at = punctual_time($2) + make_interval(secs => $8) from d
  where task_name.topic = $3 and task_name.name = $7
  returning task_name.id
)";

/// Decides whether a task is final whose row was in neither table. Such a row was claimed, and a
/// claim that is settled without a follow-up ends its task. While the entry is locked no settle can
/// add a follow-up. The statement judges only rows due since 30 s ago. A leaf is detached at the
/// earliest one minute after its end, so such a row cannot be in a detached, hidden leaf. The other
/// 30 s are a margin: nodes decide by their estimate of Postgres's clock when to detach.
const IS_FINAL: &str = "-- is the task of a name final
select punctual_time($1) > clock_timestamp() - interval '30 seconds'
  and not exists (select from execlog_batch where settled_at is null and batch >= $3
    and $1 = any(ids))
  and not exists (select from task_follow where first_id = $2)";

/// Decides whether a name whose entry has expired still stands for its task. Runs under the lock of
/// the entry, as [`IS_FINAL`] does.
const IS_PENDING: &str = "-- is the task of an expired name pending
select exists (select from task_far where id = $1)
  or exists (select from task where shard = $2 and id = $1)
  or exists (select from execlog_batch where settled_at is null and batch >= $3 and $1 = any(ids))
  or exists (select from task_follow where first_id = $4 and attempt is not null)";

/// Makes the entry stand for the new task, however its former task has ended.
const MOVE: &str = "-- move a name
with place as (
  update task_name set id = $2, row_id = $2, outcome = null,
    expires_at = punctual_time($2) + make_interval(secs => $8)
  where topic = $3 and name = $7
  returning id
)";

const CREATE: &str = "-- create a named task
with place as (
  insert into task_name (topic, name, id, row_id, expires_at)
  select $3, $7, $2, $2, punctual_time($2) + make_interval(secs => $8)
  on conflict (topic, name) do nothing
  returning id
)";

/// Inserts the new row, into `task_far` when `$9` says so. The row depends on the entry. `$10` is
/// its submitter, who has also cancelled the task before it.
fn text_of(entry: &str) -> String {
    format!(
        "{entry}, {STAMP}, near as (
  insert into task (shard, id, topic, key, payload, headers, name, submitted_by, submitted_at,
    tracking)
  select $1, $2, $3, $4, $5, $6, $7, $10::smallint, case when $10::smallint is not null
    then (select at from stamp) end, $11::bytea from place where not $9
), far as (
  insert into task_far (shard, id, topic, key, payload, headers, name, submitted_by, submitted_at,
    tracking)
  select $1, $2, $3, $4, $5, $6, $7, $10::smallint, case when $10::smallint is not null
    then (select at from stamp) end, $11::bytea from place where $9
)
select count(*) from place"
    )
}

impl Replaces {
    /// Creates the replacer. An entry expires `retention` after the due time of its task, unless it
    /// is moved later.
    pub fn new(settings: &PostgresSettings, retention: Duration, connections_max: usize) -> Self {
        let keys = settings.payload_keys().clone();
        let unsettled = settings.unsettled_floor().clone();
        Self { pool: Pool::new(settings, PURPOSE, connections_max), retention, keys, unsettled }
    }

    fn terms(&self) -> NameTerms {
        NameTerms { retention: self.retention, unsettled: self.unsettled.get() }
    }

    pub async fn keep_open(&self) -> Result<(), PostgresError> {
        self.pool.keep_open().await
    }

    /// Puts `task` in the place of the task of the same name, if `condition` allows the old task
    /// and the due time. `over` is the row of a task of this name known to be final.
    ///
    /// # Errors
    /// After [`PostgresError::Unanswered`] the replacement may or may not have taken effect. After
    /// any other error it has not.
    pub async fn replace(
        &self,
        task: &NewTask,
        is_far: bool,
        over: Option<TaskId>,
        condition: &Precondition,
    ) -> Result<Replacement, PostgresError> {
        let keys = &self.keys.current();
        let change = NameChange { task, is_far, names: self.terms(), condition, keys };
        self.pool.run("replace a task by its name", async |open| change.run(open, over).await).await
    }
}

/// A replacement. Its transaction may be a part of another one.
pub(in crate::postgres) struct NameChange<'a> {
    pub(in crate::postgres) task: &'a NewTask,
    pub(in crate::postgres) is_far: bool,
    pub(in crate::postgres) names: NameTerms,
    pub(in crate::postgres) condition: &'a Precondition,
    pub(in crate::postgres) keys: &'a KeySet,
}

/// Locks the entry of a name until the transaction ends.
async fn lock(
    open: &mut PgConnection,
    topic: &str,
    name: &str,
) -> Result<Option<NameEntry>, sqlx::Error> {
    let row = sqlx::query(LOCK).bind(topic).bind(name).fetch_optional(open).await?;
    row.as_ref().map(entry_of).transpose()
}

/// Returns the task that the name of a locked entry stands for. Returns `None` when the entry has
/// expired and its task is final.
async fn current_of(
    open: &mut PgConnection,
    entry: Option<NameEntry>,
    names: NameTerms,
) -> Result<Option<TaskId>, sqlx::Error> {
    let Some(entry) = entry else { return Ok(None) };
    if !entry.is_expired {
        return Ok(Some(entry.id));
    }
    let is_pending: bool = sqlx::query_scalar(IS_PENDING)
        .bind(entry.row.uuid())
        .bind(entry.row.shard().as_smallint())
        .bind(names.unsettled.of(std::iter::once(entry.row)))
        .bind(entry.id.uuid())
        .fetch_one(open)
        .await?;
    Ok(is_pending.then_some(entry.id))
}

impl NameChange<'_> {
    pub(in crate::postgres) async fn run(
        &self,
        open: &mut PgConnection,
        over: Option<TaskId>,
    ) -> Result<Replacement, sqlx::Error> {
        let mut transaction = open.begin().await?;
        let entry = lock(&mut transaction, self.task.record.topic.as_str(), self.name()).await?;
        reach(Failpoint::NameLocked);
        if !self.condition.is_none() {
            let current = current_of(&mut transaction, entry, self.names).await?;
            if !self.condition.allows(current) {
                transaction.rollback().await?;
                return Ok(Replacement::Unmet(current));
            }
        }
        let done = match entry {
            None => match self.place(&mut transaction, CREATE, None).await? {
                true => Replacement::Created,
                false => Replacement::Overtaken,
            },
            Some(entry) if over == Some(entry.row) => {
                self.move_entry(&mut transaction).await?;
                Replacement::Created
            }
            Some(entry) if !self.is_in_time(&mut transaction, entry).await? => {
                Replacement::Unmet(Some(entry.id))
            }
            Some(entry) if self.take_out_far(&mut transaction, entry).await? => {
                reach(Failpoint::NameTakenOut);
                self.move_entry(&mut transaction).await?;
                Replacement::Replaced
            }
            Some(entry) => match self.place(&mut transaction, REPLACE, Some(entry)).await? {
                true => Replacement::Replaced,
                false if self.is_final(&mut transaction, entry).await? => {
                    self.move_entry(&mut transaction).await?;
                    Replacement::Created
                }
                false => Replacement::Gone(entry),
            },
        };
        match done {
            Replacement::Created | Replacement::Replaced => transaction.commit().await?,
            Replacement::Gone(_) | Replacement::Overtaken | Replacement::Unmet(_) => {
                transaction.rollback().await?
            }
        }
        reach(Failpoint::NameReplaced);
        Ok(done)
    }

    fn name(&self) -> &str {
        self.task.name.as_ref().map_or("", |name| name.as_str())
    }

    /// Decides whether `when` allows the new task in the place of the task of a locked entry. A
    /// task that can no longer be cancelled has other verdicts.
    async fn is_in_time(
        &self,
        open: &mut PgConnection,
        entry: NameEntry,
    ) -> Result<bool, sqlx::Error> {
        let Some(when) = self.condition.when else { return Ok(true) };
        let current: Option<i64> = sqlx::query_scalar(DUE_AT)
            .bind(entry.row.uuid())
            .bind(entry.row.shard().as_smallint())
            .bind(entry.id.uuid())
            .fetch_optional(open)
            .await?;
        let current = current.map(Timestamp::from_millis);
        Ok(current.is_none_or(|current| when.allows(self.task.id.due_at(), current)))
    }

    async fn take_out_far(
        &self,
        open: &mut PgConnection,
        entry: NameEntry,
    ) -> Result<bool, sqlx::Error> {
        let count: i64 = sqlx::query_scalar(TAKE_OUT_FAR)
            .bind(entry.row.uuid())
            .bind(entry.row.shard().as_smallint())
            .bind(entry.id.uuid())
            .bind(self.task.id.uuid())
            .bind(self.task.submitted_by.map(PrincipalId::as_smallint))
            .fetch_one(open)
            .await?;
        Ok(count == 1)
    }

    async fn is_final(
        &self,
        open: &mut PgConnection,
        entry: NameEntry,
    ) -> Result<bool, sqlx::Error> {
        let from = self.names.unsettled.of(std::iter::once(entry.row));
        sqlx::query_scalar(IS_FINAL)
            .bind(entry.row.uuid())
            .bind(entry.id.uuid())
            .bind(from)
            .fetch_one(open)
            .await
    }

    /// The entry cannot be missing here, because it is locked.
    async fn move_entry(&self, open: &mut PgConnection) -> Result<(), sqlx::Error> {
        let is_moved = self.place(open, MOVE, None).await?;
        check_count(u64::from(is_moved), 1)
    }

    /// Stores the new task if `statement` provides its entry. Returns true when it does.
    async fn place(
        &self,
        open: &mut PgConnection,
        statement: &str,
        former: Option<NameEntry>,
    ) -> Result<bool, sqlx::Error> {
        let (task, record) = (self.task, &self.task.record);
        let records = StoredRecords::of(self.keys, &[task])?;
        let stored = records.each(&[task]).next().unwrap_or_default();
        let query = sqlx::query_scalar::<_, i64>(AssertSqlSafe(text_of(statement)))
            .bind(task.id.shard().as_smallint())
            .bind(task.id.uuid())
            .bind(record.topic.as_str())
            .bind(stored.key)
            .bind(stored.payload)
            .bind(stored.headers)
            .bind(self.name())
            .bind(self.names.retention.as_secs_f64())
            .bind(self.is_far)
            .bind(task.submitted_by.map(PrincipalId::as_smallint))
            .bind(task.tracking.as_ref().map(|tracking| tracking.first_row().encode()));
        let query = match former {
            None => query,
            Some(entry) => query
                .bind(entry.row.uuid())
                .bind(entry.row.shard().as_smallint())
                .bind(entry.id.uuid()),
        };
        Ok(query.fetch_one(open).await? == 1)
    }
}
