//! Completes the view of a tracked task: its state, its attempts, and the answers to them.

use std::collections::HashMap;

use az::SaturatingAs as _;
use sqlx::Row;
use sqlx::postgres::{PgConnection, PgRow};
use uuid::Uuid;

use crate::domain::task::feedback::{Follow, Note};
use crate::domain::task::tracking::dead_reason;
use crate::domain::{
    AttemptEvent, AttemptLine, Finished, PrincipalName, Receipt, TaskId, TaskState, TaskView,
    Timestamp, TrackedRow, TrackedView,
};
use crate::postgres::tasks::settle::follow_of;

/// Maximum number of lines that a look-up returns. The latest ones are the interesting ones.
const LINES_MAX: i64 = 200;

const FOLLOW: &str = "-- look up the attempt of a task
select row_id, attempt, attempts_max, is_again, note, next_id, is_verdict, reason from task_follow
where first_id = $1 and attempt is not null";

const LINES: &str = "-- look up the attempts of a task
select event, attempt, reason, partition, \"offset\", published_at,
  (extract(epoch from at) * 1000000)::bigint as at
from execlog_attempt where id = $1 order by at desc limit $2";

const LAST_PUBLICATION: &str = "-- look up the last publication of a task
select event, attempt, reason, partition, \"offset\", published_at,
  (extract(epoch from at) * 1000000)::bigint as at
from execlog_attempt where id = $1 and \"offset\" is not null order by at desc limit 1";

/// `$2` is the maximum number of lines of a task.
const LINES_OF_MANY: &str = "-- look up the attempts of tasks
select d.id, e.event, e.attempt, e.reason, e.partition, e.\"offset\", e.published_at,
  (extract(epoch from e.at) * 1000000)::bigint as at
from unnest($1::uuid[]) as d (id)
cross join lateral (
  select * from execlog_attempt where id = d.id order by at desc limit $2
) e
order by d.id, e.at";

const FINISHED: &str = "-- look up how a task was finished
select attempt, (extract(epoch from finished_at) * 1000000)::bigint as at,
  (select p.name from principal p where p.id = finished_by) as finished_by
from execlog_finished where id = $1 limit 1";

/// Reads the column `tracking`. A statement that knows less leaves it out.
pub(in crate::postgres) fn tracked_of(
    row: &PgRow,
) -> Result<Option<Box<TrackedView>>, sqlx::Error> {
    let bytes = match row.try_get::<Option<Vec<u8>>, _>("tracking") {
        Ok(bytes) => bytes,
        Err(sqlx::Error::ColumnNotFound(_)) => None,
        Err(error) => return Err(error),
    };
    let Some(bytes) = bytes else { return Ok(None) };
    let row = TrackedRow::decode(&bytes).map_err(|error| sqlx::Error::Decode(error.into()))?;
    Ok(Some(Box::new(TrackedView {
        attempts_max: row.attempts_max(),
        attempt: row.attempt,
        finish_by: row.sent.map(|sent| sent.finish_by),
        next_at: None,
        finished: None,
        attempts: Vec::new(),
        tracking: row.tracking,
    })))
}

/// Completes the view of a tracked task. `view` is what its row or its batch says.
pub(super) async fn complete(
    open: &mut PgConnection,
    mut view: TaskView,
) -> Result<TaskView, sqlx::Error> {
    let Some(mut tracked) = view.tracked.take() else { return Ok(view) };
    let first = view.id.uuid();
    let follow = sqlx::query(FOLLOW).bind(first).fetch_optional(&mut *open).await?;
    let follow = follow.as_ref().map(current_of).transpose()?;
    tracked.attempts = lines_of(open, first).await?;
    let finished = sqlx::query(FINISHED).bind(first).fetch_optional(open).await?;
    if let Some(finished) = finished {
        view.state = TaskState::Finished;
        let finished_by: Option<String> = finished.try_get("finished_by")?;
        tracked.attempt = finished.try_get::<i16, _>("attempt")?.saturating_as();
        let at = Timestamp::from_micros(finished.try_get("at")?);
        tracked.finished = Some(Finished {
            at,
            by: finished_by.map(|name| PrincipalName::stored(&name)),
            in_flight: follow.is_some(),
        });
        tracked.attempts.push(AttemptLine {
            attempt: tracked.attempt,
            event: AttemptEvent::Finished,
            at,
            receipt: None,
            reason: None,
        });
    }
    let finish_by = tracked.finish_by.take();
    match (view.state, follow) {
        (TaskState::Scheduled | TaskState::Awaiting, Some(current))
            if current.follow.attempt > 0 =>
        {
            tracked.attempt = current.follow.attempt;
            let is_failed = current.follow.note == Some(Note::Failed);
            if is_failed && current.follow.is_verdict {
                view.state = TaskState::Dead;
                let limits = (tracked.attempt, tracked.attempts_max);
                view.reason = current.reason.map(|reason| dead_reason(limits, Some(&reason)));
            } else if is_failed {
                view.state = TaskState::Retrying;
                tracked.next_at = Some(current.row.due_at_unheld());
            } else {
                view.state = TaskState::Awaiting;
                tracked.finish_by = finish_by;
            }
        }
        // The column has the number of the next attempt.
        (TaskState::Scheduled | TaskState::Expired, _) => {
            tracked.attempt = tracked.attempt.saturating_sub(1);
        }
        (TaskState::Dead, _) => {
            let last = tracked.attempts.iter().map(|line| line.attempt).max();
            tracked.set_dead_after(last.unwrap_or(view.attempt.saturating_as()));
        }
        _ => {}
    }
    if let Some(line) = tracked.attempts.iter().rev().find(|line| line.receipt.is_some()) {
        view.receipt = view.receipt.or(line.receipt);
    }
    view.tracked = Some(tracked);
    Ok(view)
}

/// The row of `task_follow`.
struct Current {
    row: TaskId,
    follow: Follow,
    reason: Option<String>,
}

fn current_of(row: &PgRow) -> Result<Current, sqlx::Error> {
    Ok(Current {
        row: TaskId::from_uuid(row.try_get("row_id")?),
        follow: follow_of(row)?,
        reason: row.try_get("reason")?,
    })
}

async fn lines_of(open: &mut PgConnection, first: Uuid) -> Result<Vec<AttemptLine>, sqlx::Error> {
    let rows = sqlx::query(LINES).bind(first).bind(LINES_MAX).fetch_all(&mut *open).await?;
    let lines = rows.iter().rev().filter_map(|row| line_of(row).transpose());
    let mut lines: Vec<AttemptLine> = lines.collect::<Result<_, _>>()?;
    let are_all = rows.len().saturating_as::<i64>() < LINES_MAX;
    if !are_all && lines.iter().all(|line| line.receipt.is_none()) {
        // An attempt that is extended for hours has more lines than are shown.
        let last = sqlx::query(LAST_PUBLICATION).bind(first).fetch_optional(open).await?;
        lines.extend(last.as_ref().map(line_of).transpose()?.flatten());
    }
    Ok(in_order(lines))
}

/// Puts the publication of an attempt before the answers to it. A consumer can be quicker than the
/// settle, which writes the line of the publication.
fn in_order(mut lines: Vec<AttemptLine>) -> Vec<AttemptLine> {
    lines.sort_by_key(|line| (line.attempt, line.receipt.is_none()));
    lines
}

/// Returns the latest lines of each task, at most `lines_max` of each, the oldest first.
pub(in crate::postgres) async fn lines_of_many(
    open: &mut PgConnection,
    tasks: &[Uuid],
    lines_max: i64,
) -> Result<HashMap<Uuid, Vec<AttemptLine>>, sqlx::Error> {
    let rows = sqlx::query(LINES_OF_MANY).bind(tasks).bind(lines_max).fetch_all(open).await?;
    let mut lines: HashMap<Uuid, Vec<AttemptLine>> = HashMap::new();
    for row in &rows {
        if let Some(line) = line_of(row)? {
            lines.entry(row.try_get("id")?).or_default().push(line);
        }
    }
    Ok(lines.into_iter().map(|(id, lines)| (id, in_order(lines))).collect())
}

/// Returns `None` for an event of a later version.
fn line_of(row: &PgRow) -> Result<Option<AttemptLine>, sqlx::Error> {
    let Some(event) = AttemptEvent::of_code(row.try_get("event")?) else { return Ok(None) };
    let partition: Option<i32> = row.try_get("partition")?;
    let offset: Option<i64> = row.try_get("offset")?;
    let published_at: Option<i64> = row.try_get("published_at")?;
    let receipt = match (partition, offset, published_at) {
        (Some(partition), Some(offset), Some(at)) => {
            Some(Receipt { partition, offset, published_at: Timestamp::from_millis(at) })
        }
        _ => None,
    };
    let stored_at = Timestamp::from_micros(row.try_get("at")?);
    Ok(Some(AttemptLine {
        attempt: row.try_get::<i16, _>("attempt")?.saturating_as(),
        event,
        at: receipt.as_ref().map_or(stored_at, |receipt| receipt.published_at),
        receipt,
        reason: row.try_get("reason")?,
    }))
}
