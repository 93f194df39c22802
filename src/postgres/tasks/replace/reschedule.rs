//! Moves a task to another due time. Its id stays valid: the task goes on under its first id, as
//! another row, as after a deferral.
//!
//! The id of a row contains its due time. So one transaction deletes the row and inserts another
//! one. Of a move and a claim, the second waits for the first and then finds the row gone.
//!
//! ```text
//! find the current row, and see it in a table
//!   └─ not there: claimed, ended, or moved meanwhile                                   gone
//! enter the new row into task_follow
//!   └─ it names another row by now, or a record may have been sent                     gone
//! delete the old row in task_far, else in task, and insert the new one
//!   ├─ found ──▶ move the entry of the name                                            moved
//!   ├─ found, but its submitter has named an expiry at the new time or before    would expire
//!   └─ not found: claimed, cancelled or replaced meanwhile                             gone
//! ```
//!
//! `task_follow` is written before the row is deleted, so the condition on it holds until the
//! commit: its entry changes only in a settle of the same row, in an answer, when rows of a paused
//! topic are held or released, and here. The entry of the name comes last: a cancel skips a locked
//! one, and would leave it without the outcome.
//!
//! A replacement takes the entry before the row, and a cancel the row before `task_follow`. A move
//! waits for a lock no longer than 200 ms, less than Postgres waits before it looks for deadlocks.
//! So the move gives way, never the others.

use std::time::Duration;

use sqlx::postgres::{PgConnection, PgRow};
use sqlx::{Connection as _, Row as _};
use uuid::Uuid;

use super::Replaces;
use crate::domain::{Expiry, ExpiryTime, Position, TaskId, TaskState, TaskView, Timestamp};
use crate::failpoint::{Failpoint, reach};
use crate::postgres::connection::error::PostgresError;
use crate::postgres::tasks::look_up::view_of_row;
use crate::sealing::KeySet;

/// Where a task is to be moved.
#[derive(Clone, Copy, Debug)]
pub struct NewPlace {
    /// In whole milliseconds, and not in the past.
    pub due_at: Timestamp,
    /// Due beyond the last leaf.
    pub is_far: bool,
    /// A moved task is the last one of those of its key that are due at the same time.
    pub position: Position,
    pub random: u64,
}

/// The result of a move.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Rescheduling {
    /// The task is this row now.
    Moved { row: TaskId, view: Box<TaskView> },
    /// No change: the submitter has named an expiry, which is not after the new due time.
    WouldExpire { due_at: Timestamp },
    /// No change: the task was this row, which is claimed, perhaps sent, or ended, or has moved on
    /// meanwhile. A look-up tells.
    Gone { row: TaskId },
}

const FIND: &str = "-- move: find the row
select set_config('lock_timeout', '200ms', true),
  (select row_id from task_follow where first_id = $1) as row_id";

const SEE: &str = "-- move: look at the row
select key is not null as has_key, punctual_attempts_max(tracking) as attempts_max
from task_far where id = $1 and coalesce(first_id, id) = $3
union all
select key is not null, punctual_attempts_max(tracking)
from task where shard = $2 and id = $1 and coalesce(first_id, id) = $3";

/// A tracked task has an attempt here, which is 0 before the first. A task without an entry had no
/// follow-up so far.
const FOLLOW: &str = "-- move: follow
insert into task_follow as f (first_id, row_id, maybe_sent, attempt, attempts_max, is_again,
  is_verdict)
select $1, $2, false, case when $4::smallint is not null then 0::smallint end, $4::smallint,
  case when $4::smallint is not null then false end,
  case when $4::smallint is not null then false end
on conflict (first_id) do update set row_id = excluded.row_id
where f.row_id = $3 and not f.maybe_sent and f.note is null";

/// The new row goes to `task_far` when `$6` says so.
macro_rules! move_from {
    ($table:literal) => {
        concat!(
            "-- move from ",
            $table,
            "
with d as (
  delete from ",
            $table,
            " t
  where t.shard = $1 and t.id = $2 and coalesce(t.first_id, t.id) = $3
  returning t.topic, t.key, t.payload, t.headers, t.name,
    coalesce(t.attempt, 1::smallint) as attempt, t.submitted_by, t.submitted_at, t.tracking
), near as (
  insert into task (shard, id, topic, key, payload, headers, name, first_id, attempt, submitted_by,
    submitted_at, tracking, moved_to)
  select $1, $4, topic, key, payload, headers, name, $3, attempt, submitted_by, submitted_at,
    tracking, $5 from d where not $6
), far as (
  insert into task_far (shard, id, topic, key, payload, headers, name, first_id, attempt,
    submitted_by, submitted_at, tracking, moved_to)
  select $1, $4, topic, key, payload, headers, name, $3, attempt, submitted_by, submitted_at,
    tracking, $5 from d where $6
)
select topic, key, payload, headers, name, attempt, null::text as reason, null::bigint as died_at,
  (select p.name from principal p where p.id = d.submitted_by) as submitted_by, submitted_at,
  tracking, $5::bigint as moved_to
from d"
        )
    };
}

/// The far table comes first: the mover takes a row from there to a leaf, never back.
const TAKE: [&str; 2] = [move_from!("task_far"), move_from!("task")];

const NAME: &str = "-- move: name
update task_name set row_id = $4,
  expires_at = greatest(expires_at, punctual_time($4) + make_interval(secs => $5))
where topic = $1 and name = $2 and id = $3";

impl Replaces {
    /// Moves a task to another due time, unless the task was claimed or a record may have been
    /// sent. `first` is the id known to the submitter. With `only`, the task is moved only while
    /// `only` is its row.
    ///
    /// # Errors
    /// After [`PostgresError::Unanswered`] the move may or may not have taken effect. After any
    /// other error it has not.
    pub async fn reschedule(
        &self,
        first: TaskId,
        only: Option<TaskId>,
        to: NewPlace,
    ) -> Result<Rescheduling, PostgresError> {
        let (what, retention) = ("move a task to another due time", self.retention);
        let keys = &self.keys.current();
        let run = async |open: &mut PgConnection| {
            reschedule(open, (first, only), (to, retention), keys).await
        };
        self.pool.run(what, run).await
    }
}

/// A row as it was seen before it is locked. None of this ever changes.
struct Seen {
    has_key: bool,
    /// `None` for an untracked task.
    attempts_max: Option<i16>,
}

async fn reschedule(
    open: &mut PgConnection,
    (first, only): (TaskId, Option<TaskId>),
    (to, retention): (NewPlace, Duration),
    keys: &KeySet,
) -> Result<Rescheduling, sqlx::Error> {
    let mut transaction = open.begin().await?;
    let found = sqlx::query(FIND).bind(first.uuid()).fetch_one(&mut *transaction).await?;
    let row = found.try_get::<Option<Uuid>, _>("row_id")?.map_or(first, TaskId::from_uuid);
    let seen = match only {
        Some(only) if only != row => None,
        _ => see(&mut transaction, first, row).await?,
    };
    let done = match seen {
        Some(seen) => {
            carry_out(&mut transaction, (first, row), &seen, (to, retention), keys).await?
        }
        None => Rescheduling::Gone { row },
    };
    match done {
        Rescheduling::Moved { .. } => {
            transaction.commit().await?;
            reach(Failpoint::TaskMoved);
        }
        Rescheduling::WouldExpire { .. } | Rescheduling::Gone { .. } => {
            transaction.rollback().await?;
        }
    }
    Ok(done)
}

async fn see(
    open: &mut PgConnection,
    first: TaskId,
    row: TaskId,
) -> Result<Option<Seen>, sqlx::Error> {
    let seen = sqlx::query(SEE)
        .bind(row.uuid())
        .bind(row.shard().as_smallint())
        .bind(first.uuid())
        .fetch_optional(open)
        .await?;
    let seen_of = |row: PgRow| {
        Ok(Seen { has_key: row.try_get("has_key")?, attempts_max: row.try_get("attempts_max")? })
    };
    seen.map(seen_of).transpose()
}

/// Moves the row. The transaction must be rolled back unless the row is moved.
async fn carry_out(
    open: &mut PgConnection,
    (first, row): (TaskId, TaskId),
    seen: &Seen,
    (to, retention): (NewPlace, Duration),
    keys: &KeySet,
) -> Result<Rescheduling, sqlx::Error> {
    let next = first.moved_to(to.due_at);
    let next = match seen.has_key {
        true => next.with_position(to.position, to.random),
        false => next.drawn_again(to.random),
    };
    let followed = sqlx::query(FOLLOW)
        .bind(first.uuid())
        .bind(next.uuid())
        .bind(row.uuid())
        .bind(seen.attempts_max)
        .execute(&mut *open)
        .await?;
    if followed.rows_affected() != 1 {
        return Ok(Rescheduling::Gone { row });
    }
    reach(Failpoint::MoveFollowed);
    let mut taken = None;
    for statement in TAKE {
        taken = sqlx::query(statement)
            .bind(row.shard().as_smallint())
            .bind(row.uuid())
            .bind(first.uuid())
            .bind(next.uuid())
            .bind(to.due_at.as_millis())
            .bind(to.is_far)
            .fetch_optional(&mut *open)
            .await?;
        if taken.is_some() {
            break;
        }
    }
    let Some(taken) = taken else { return Ok(Rescheduling::Gone { row }) };
    let headers: Option<Vec<u8>> = taken.try_get("headers")?;
    if would_expire(headers.as_deref().unwrap_or_default(), to.due_at) {
        return Ok(Rescheduling::WouldExpire { due_at: to.due_at });
    }
    let mut view = view_of_row(&taken, first, TaskState::Scheduled, keys)?;
    if let Some(tracked) = view.tracked.as_mut() {
        // The column has the number of the next attempt.
        tracked.attempt = tracked.attempt.saturating_sub(1);
    }
    if let Some(name) = &view.name {
        // The name may stand for another task by now, if it had expired. Then no entry is met.
        sqlx::query(NAME)
            .bind(view.topic.as_str())
            .bind(name)
            .bind(first.uuid())
            .bind(next.uuid())
            .bind(retention.as_secs_f64())
            .execute(open)
            .await?;
    }
    Ok(Rescheduling::Moved { row: next, view: Box::new(view) })
}

/// Returns true when a task with this column `headers` would have expired at its new due time. The
/// expiry of a policy moves with the task. One that the submitter has named stays.
fn would_expire(headers: &[u8], due_at: Timestamp) -> bool {
    let time = Expiry::of_column(headers).map(|expiry| expiry.time);
    matches!(time, Some(ExpiryTime::At(at)) if at <= due_at)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::domain::Headers;

    #[test]
    fn a_task_is_not_moved_to_the_expiry_that_its_submitter_has_named() {
        let at = Timestamp::from_millis;
        let own = Headers::new([("h", None)]).unwrap();
        let column = |time| Expiry::new(time).in_front_of(&own);
        let named = column(ExpiryTime::At(at(5_000)));
        for (due_at, expected) in [(4_999, false), (5_000, true), (5_001, true)] {
            assert_eq!(would_expire(named.as_bytes(), at(due_at)), expected, "{due_at}");
        }
        let of_policy = column(ExpiryTime::After(Duration::from_secs(5)));
        for column in [of_policy.as_bytes(), own.as_bytes(), &[]] {
            assert!(!would_expire(column, at(9_000)));
        }
    }
}
