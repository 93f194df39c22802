//! Holds the overdue tasks of paused topics, so that a long pause keeps no leaves.
//!
//! A held task is a follow-up in `task_far`, due thousands of years ahead: neither claims and
//! sweeps nor the mover meet it. Cancels, look-ups and lists find it as they find any follow-up.
//! The end of the pause is seen by [`HeldTasks::release`], which makes it a follow-up that is due
//! now. See docs/decisions/0029.
//!
//! ```text
//! task, in an old leaf ──hold──▶ task_far, due beyond every task ──release──▶ task, due now
//! ```

use std::time::Duration;

use az::SaturatingAs as _;
use sqlx::postgres::{PgArguments, PgConnection};
use sqlx::query::QueryScalar;
use sqlx::{Connection as _, Postgres, Row as _};
use uuid::Uuid;

use crate::domain::ids::PUT_OFF;
use crate::domain::{IdRange, Shard};
use crate::error_chain::chain;
use crate::postgres::connection::ConnectionPurpose;
use crate::postgres::connection::error::check_count;
use crate::postgres::{Connection, PostgresError, PostgresSettings};

const PURPOSE: ConnectionPurpose = ConnectionPurpose {
    name: "held tasks",
    deadline: Duration::from_secs(10),
    // As for the mover. A transaction that takes the locks in another order makes this one give
    // way.
    settings: &[("plan_cache_mode", "force_custom_plan"), ("lock_timeout", "200ms")],
};
/// Maximum number of rows that one statement moves.
const ROWS_MAX: i64 = 1000;
/// Maximum number of held tasks that one statement looks at. Most of them may belong to topics that
/// are still paused: a million of these take 0.4 s, and 1.3 s with a maximum of 1,000 (30 November
/// 2026).
const LOOKED_AT_MAX: i64 = 20_000;

/// Moves rows of a shard, in which the key of the table has their order. Each part depends on the
/// deleted rows. A task without an entry in `task_follow` was never sent. A row that another
/// transaction has locked is left for the next round.
const HOLD: &str = "-- hold tasks
with head as materialized (
  select shard, id from task
  where shard = $5 and id >= $1 and id < $2
    and topic = any(array(select topic from topic_policy where is_paused))
    and id <> all(array(select id from quarantine))
  order by id limit $3
  for update skip locked
), d as (
  delete from task t using head h
  where t.shard = h.shard and t.id = h.id and t.id >= $1 and t.id < $2
  returning t.*, punctual_due_again(t.id, punctual_millis(t.id) + $4) as next,
    coalesce(t.first_id, t.id) as first
), i as (
  insert into task_far (shard, id, topic, key, payload, headers, name, first_id, attempt,
    submitted_by, submitted_at, tracking, moved_to)
  select shard, next, topic, key, payload, headers, name, first, coalesce(attempt, 1),
    submitted_by, submitted_at, tracking, moved_to
  from d
), f as (
  insert into task_follow (first_id, row_id, maybe_sent, attempt, attempts_max, is_again,
    is_verdict)
  select first, next, false, case when tracking is not null then 0 end,
    punctual_attempts_max(tracking), case when tracking is not null then false end,
    case when tracking is not null then false end
  from d
  order by first
  on conflict (first_id) do update set row_id = excluded.row_id
), n as (
  update task_name n set row_id = d.next
  from d where n.topic = d.topic and n.name = d.name and n.id = d.first
)
select (select count(*) from d) as held, (select id from head order by id desc limit 1) as last";

const FIRST_TO_HOLD: &str = "-- first task to hold
select id from task
where shard = $3 and id >= $1 and id < $2
  and topic = any(array(select topic from topic_policy where is_paused))
  and id <> all(array(select id from quarantine))
order by id limit 1";

const FIRST_TO_RELEASE: &str = "-- first task to release
select id from task_far where id > $1 and id < $2
  and topic <> all(array(select topic from topic_policy where is_paused))
order by id limit 1";

/// Each due time becomes a millisecond of its own, up to now, so that the order stays among the
/// tasks of a statement.
const RELEASE: &str = "-- release held tasks
with chosen as materialized (
  select id from (
    select id, topic from task_far where id > $1 and id < $2 order by id limit $4
  ) head
  where topic <> all(array(select topic from topic_policy where is_paused))
  order by id limit $3
), unpaused as materialized (
  select t.id from task_far t where t.id = any(array(select id from chosen))
  for update skip locked
), ranked as materialized (
  select id, dense_rank() over (order by punctual_millis(id) desc) - 1 as before_now from unpaused
), d as (
  delete from task_far t using ranked r where t.id = r.id
  returning t.*, punctual_due_again(t.id,
    (extract(epoch from statement_timestamp()) * 1000)::bigint - r.before_now) as next
), i as (
  insert into task (shard, id, topic, key, payload, headers, name, first_id, attempt, submitted_by,
    submitted_at, tracking, moved_to)
  select shard, next, topic, key, payload, headers, name, first_id, attempt, submitted_by,
    submitted_at, tracking, moved_to
  from d
), f as (
  update task_follow f set row_id = d.next from d
  where f.first_id = d.first_id and f.row_id = d.id
  returning f.first_id
), n as (
  update task_name n set row_id = d.next
  from d where n.topic = d.topic and n.name = d.name and n.id = d.first_id
)
select (select count(*) from d) as released, (select count(*) from f) as followed,
  (select array[min(next::text), max(next::text)]::uuid[] from d) as ids,
  case when (select count(*) from chosen) = $3 then (select id from chosen order by id desc limit 1)
    else coalesce(
      (select id from task_far where id > $1 and id < $2 order by id offset $4 - 1 limit 1),
      (select id from task_far where id > $1 and id < $2 order by id desc limit 1)) end as last";

/// Tasks that were put aside.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Held {
    pub task_count: u64,
    /// The last task of the shard that was looked at. `None`: there are no more.
    pub last: Option<Uuid>,
}

/// Tasks that were made due now.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Released {
    pub task_count: u64,
    /// The range of their ids, if there are any.
    pub ids: Option<IdRange>,
    /// The last held task that was looked at. `None`: there are no more.
    pub last: Option<Uuid>,
}

/// The connection that moves held tasks.
#[derive(Debug)]
pub struct HeldTasks {
    connection: Connection,
}

impl HeldTasks {
    pub fn new(settings: &PostgresSettings) -> Self {
        Self { connection: Connection::new(settings, PURPOSE) }
    }

    /// Holds tasks of paused topics whose rows are in `range` of a shard: at most 1,000, in order.
    /// A task that cannot be moved does not stop the others.
    ///
    /// # Errors
    /// After [`PostgresError::Unanswered`] the tasks may or may not have been moved. After any
    /// other error none of them was.
    pub async fn hold(&mut self, shard: Shard, range: IdRange) -> Result<Held, PostgresError> {
        let mut rows_max = ROWS_MAX;
        loop {
            match self.hold_rows(shard, range, rows_max).await {
                Err(error) if is_halved(&mut rows_max, &error) => {}
                Err(error) if is_of_a_row(&error) => {
                    let first = sqlx::query_scalar(FIRST_TO_HOLD).bind(range.from).bind(range.to);
                    let last = self.skipped(&error, first.bind(shard.as_smallint())).await?;
                    return Ok(Held { task_count: 0, last });
                }
                held => return held,
            }
        }
    }

    async fn hold_rows(
        &mut self,
        shard: Shard,
        range: IdRange,
        rows_max: i64,
    ) -> Result<Held, PostgresError> {
        let statement = async |open: &mut PgConnection| {
            let row = sqlx::query(HOLD)
                .bind(range.from)
                .bind(range.to)
                .bind(rows_max)
                .bind(PUT_OFF.as_millis().saturating_as::<i64>())
                .bind(shard.as_smallint())
                .fetch_one(open)
                .await?;
            let count: i64 = row.try_get("held")?;
            let last = row.try_get::<Option<Uuid>, _>("last")?.filter(|_last| count == rows_max);
            Ok(Held { task_count: count.saturating_as::<u64>(), last })
        };
        self.connection.run("hold the tasks of paused topics", statement).await
    }

    /// Releases held tasks behind `after` whose topics are not paused: at most 1,000, of the next
    /// 20,000. A task that cannot be moved does not stop the others.
    ///
    /// # Errors
    /// After [`PostgresError::Unanswered`] the tasks may or may not have been moved. After any
    /// other error none of them was.
    pub async fn release(&mut self, after: Uuid) -> Result<Released, PostgresError> {
        let mut rows_max = ROWS_MAX;
        loop {
            match self.release_rows(after, rows_max).await {
                Err(error) if is_halved(&mut rows_max, &error) => {}
                Err(error) if is_of_a_row(&error) => {
                    let first = sqlx::query_scalar(FIRST_TO_RELEASE).bind(after);
                    let last = self.skipped(&error, first.bind(IdRange::held().to)).await?;
                    return Ok(Released { task_count: 0, ids: None, last });
                }
                released => return released,
            }
        }
    }

    /// Finds the task that cannot be moved.
    async fn skipped(
        &mut self,
        error: &PostgresError,
        first: QueryScalar<'_, Postgres, Uuid, PgArguments>,
    ) -> Result<Option<Uuid>, PostgresError> {
        let first = async |open: &mut PgConnection| first.fetch_optional(open).await;
        let row = self.connection.run("find the task that cannot be moved", first).await?;
        tracing::error!(
            row = ?row, error = chain(error),
            "cannot move a task of a paused or resumed topic; skipping it until the next round"
        );
        Ok(row)
    }

    async fn release_rows(
        &mut self,
        after: Uuid,
        rows_max: i64,
    ) -> Result<Released, PostgresError> {
        let end = IdRange::held().to;
        let statement = async |open: &mut PgConnection| {
            let mut transaction = open.begin().await?;
            let row = sqlx::query(RELEASE)
                .bind(after)
                .bind(end)
                .bind(rows_max)
                .bind(LOOKED_AT_MAX)
                .fetch_one(&mut *transaction)
                .await?;
            let (released, followed): (i64, i64) =
                (row.try_get("released")?, row.try_get("followed")?);
            // Without its entry in `task_follow`, a task cannot be found any more.
            check_count(followed.saturating_as::<u64>(), released.saturating_as::<usize>())?;
            let ids: Option<Vec<Option<Uuid>>> = row.try_get("ids")?;
            let ids: Vec<Uuid> = ids.into_iter().flatten().flatten().collect();
            let last: Option<Uuid> = row.try_get("last")?;
            transaction.commit().await?;
            let ids = match ids.as_slice() {
                [from, to] => Some(IdRange { from: *from, to: IdRange::after(*to) }),
                _ => None,
            };
            Ok(Released { task_count: released.saturating_as::<u64>(), ids, last })
        };
        self.connection.run("release held tasks", statement).await
    }
}

/// Returns true when one of the rows is the cause: its values, or its missing entry.
fn is_of_a_row(error: &PostgresError) -> bool {
    error.is_wrong_row_count() || error.is_bad_data()
}

/// Halves the number of rows of the next statement, if one of several rows is the cause. Returns
/// false otherwise.
fn is_halved(rows_max: &mut i64, error: &PostgresError) -> bool {
    let is_halved = *rows_max > 1 && is_of_a_row(error);
    if is_halved {
        *rows_max /= 2;
    }
    is_halved
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::domain::{Shard, TaskId, Timestamp};

    #[test]
    fn held_tasks_are_behind_every_task_that_can_be_due() {
        let year_9000 = Timestamp::from_millis(221_845_392_000_000);
        let last = TaskId::new(year_9000, Shard::new(4095), u64::MAX);
        assert!(!IdRange::held().contains(last.uuid()));
        let overdue = Timestamp::from_millis(1_767_225_600_000);
        let held = TaskId::new(overdue.plus(PUT_OFF), Shard::new(0), 0);
        assert!(IdRange::held().contains(held.uuid()));
        assert_eq!([last, held].map(TaskId::due_at_unheld), [year_9000, overdue]);
    }
}
