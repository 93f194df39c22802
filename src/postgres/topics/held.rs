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
use sqlx::postgres::PgConnection;
use sqlx::{Connection as _, Row as _};
use uuid::Uuid;

use crate::domain::IdRange;
use crate::domain::ids::PUT_OFF;
use crate::postgres::connection::ConnectionPurpose;
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

/// Moves rows. Each part depends on the deleted rows. A task without an entry in `task_follow` was
/// never sent. A row that another transaction has locked is left for the next round.
const HOLD: &str = "-- hold tasks
with head as materialized (
  select shard, id from task
  where id >= $1 and id < $2
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
select count(*) from d";

/// Each due time becomes a millisecond of its own, up to now, so that the order stays among the
/// tasks of a statement.
const RELEASE: &str = "-- release held tasks
with head as materialized (
  select id, topic from task_far where id > $1 and id < $2 order by id limit $3
), unpaused as materialized (
  select t.id from task_far t
  where t.id = any(array(select h.id from head h
    where h.topic <> all(array(select topic from topic_policy where is_paused))))
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
  (select id from head order by id desc limit 1) as last";

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

    /// Holds tasks of paused topics whose rows are in `range`: at most 1,000. Returns their number,
    /// and whether there may be more.
    pub async fn hold(&mut self, range: IdRange) -> Result<(u64, bool), PostgresError> {
        let statement = async |open: &mut PgConnection| {
            sqlx::query_scalar(HOLD)
                .bind(range.from)
                .bind(range.to)
                .bind(ROWS_MAX)
                .bind(PUT_OFF.as_millis().saturating_as::<i64>())
                .fetch_one(open)
                .await
        };
        let count: i64 = self.connection.run("hold the tasks of paused topics", statement).await?;
        Ok((count.saturating_as::<u64>(), count == ROWS_MAX))
    }

    /// Releases held tasks behind `after` whose topics are not paused. Looks at 1,000 at most.
    pub async fn release(&mut self, after: Uuid) -> Result<Released, PostgresError> {
        let end = IdRange::held().to;
        let statement = async |open: &mut PgConnection| {
            let mut transaction = open.begin().await?;
            let row = sqlx::query(RELEASE)
                .bind(after)
                .bind(end)
                .bind(ROWS_MAX)
                .fetch_one(&mut *transaction)
                .await?;
            let (released, followed): (i64, i64) =
                (row.try_get("released")?, row.try_get("followed")?);
            if released != followed {
                // Without its entry in `task_follow`, a task cannot be found any more.
                return Err(sqlx::Error::RowNotFound);
            }
            let ids: Option<Vec<Option<Uuid>>> = row.try_get("ids")?;
            let ids: Vec<Uuid> = ids.into_iter().flatten().flatten().collect();
            let last: Option<Uuid> = row.try_get("last")?;
            transaction.commit().await?;
            let ids = match ids.as_slice() {
                [from, to] => {
                    let to = Uuid::from_u128(to.as_u128().saturating_add(1));
                    Some(IdRange { from: *from, to })
                }
                _ => None,
            };
            Ok(Released { task_count: released.saturating_as::<u64>(), ids, last })
        };
        self.connection.run("release held tasks", statement).await
    }
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
