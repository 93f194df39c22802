//! Finds out which attempts of tracked tasks are over, for many tasks in one statement.

use std::collections::HashMap;

use az::SaturatingAs as _;
use sqlx::Row;
use sqlx::postgres::{PgConnection, PgRow};
use uuid::Uuid;

use super::attempts::tracked_of;
use crate::domain::task::feedback::Note;
use crate::domain::{TaskId, Timestamp};

/// `$1` has the ids with which the tasks were submitted. A task that was redriven is no dead letter
/// any more.
const CURRENT: &str = "-- look up the current attempts of tasks
select d.id, f.row_id, f.attempt, f.note,
  exists (select from execlog_finished e where e.id = d.id)
  or exists (select from execlog_cancelled e where e.id = d.id)
  or exists (select from dead_letter e where e.id = d.id)
  or exists (select from execlog_dropped e where e.id = d.id) as has_ended
from unnest($1::uuid[]) as d (id)
left join task_follow f on f.first_id = d.id and f.attempt is not null";

/// The rows of next attempts, which are due when the time to run and the back-off are over.
const NEXT_ROWS: &str = "-- look up the times to run of tasks
select t.id, t.tracking
from unnest($1::smallint[], $2::uuid[]) as w (shard, id)
join task t on t.shard = w.shard and t.id = w.id and t.id = any($2)
union all
select id, tracking from task_far where id = any($2)";

/// The last attempt of a tracked task that was settled.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum CurrentAttempt {
    /// The task is finished, cancelled or a dead letter.
    Ended,
    /// `is_answered`: its consumer has finished or failed it. `next` is the row of the next
    /// attempt.
    Attempt { number: u16, is_answered: bool, next: TaskId },
}

impl CurrentAttempt {
    /// Returns true if this attempt has ended, or a later one was made.
    pub fn is_over(self, attempt: u16) -> bool {
        match self {
            Self::Ended => true,
            Self::Attempt { number, is_answered, .. } => {
                number > attempt || number == attempt && is_answered
            }
        }
    }
}

/// Returns the current attempts. A task of which nothing is known is not among them: its first
/// attempt is not settled yet, or its receipt is no longer kept.
pub(super) async fn current(
    open: &mut PgConnection,
    ids: &[Uuid],
) -> Result<HashMap<TaskId, CurrentAttempt>, sqlx::Error> {
    let rows = sqlx::query(CURRENT).bind(ids).fetch_all(open).await?;
    let mut all = HashMap::with_capacity(rows.len());
    for row in &rows {
        if let Some(current) = current_of(row)? {
            all.insert(TaskId::from_uuid(row.try_get("id")?), current);
        }
    }
    Ok(all)
}

fn current_of(row: &PgRow) -> Result<Option<CurrentAttempt>, sqlx::Error> {
    if row.try_get("has_ended")? {
        return Ok(Some(CurrentAttempt::Ended));
    }
    let Some(number) = row.try_get::<Option<i16>, _>("attempt")? else { return Ok(None) };
    let note = row.try_get::<Option<i16>, _>("note")?.and_then(Note::of_code);
    let is_answered = matches!(note, Some(Note::Finished | Note::Failed));
    let (number, next) = (number.saturating_as(), TaskId::from_uuid(row.try_get("row_id")?));
    Ok(Some(CurrentAttempt::Attempt { number, is_answered, next }))
}

/// Returns the ends of the times to run, by the rows of next attempts. Rows that are claimed are
/// not among them.
pub(super) async fn times_to_run(
    open: &mut PgConnection,
    rows: &[TaskId],
) -> Result<HashMap<TaskId, Timestamp>, sqlx::Error> {
    let shards: Vec<i16> = rows.iter().map(|row| row.shard().as_smallint()).collect();
    let ids: Vec<Uuid> = rows.iter().map(|row| row.uuid()).collect();
    let found = sqlx::query(NEXT_ROWS).bind(shards).bind(ids).fetch_all(open).await?;
    let mut all = HashMap::with_capacity(found.len());
    for row in &found {
        if let Some(finish_by) = tracked_of(row)?.and_then(|tracked| tracked.finish_by) {
            all.insert(TaskId::from_uuid(row.try_get("id")?), finish_by);
        }
    }
    Ok(all)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_attempt_is_over_after_its_answer_or_with_the_next_one() {
        let next = TaskId::from_uuid(Uuid::nil());
        let current = |number, is_answered| CurrentAttempt::Attempt { number, is_answered, next };
        for (current, wanted) in [
            (CurrentAttempt::Ended, true),
            (current(3, false), true),
            (current(2, true), true),
            (current(2, false), false),
            // Attempt 2 has a record, and is not settled yet.
            (current(1, true), false),
        ] {
            assert_eq!(current.is_over(2), wanted, "{current:?}");
        }
    }
}
