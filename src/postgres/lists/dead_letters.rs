//! Lists, redrives and drops dead letters.
//!
//! A dead letter is redriven or dropped by deleting the row, so one of two callers finds no row. A
//! redriven task continues under the first id with the next attempt, as after a deferral. The task
//! gets a row that is due now, an entry in `task_follow` that forbids a cancel (an earlier attempt
//! may be in the topic), the name if still the task's own, or free, and a line in
//! `execlog_redriven`, so that the line of the death is no longer final. A dropped dead letter gets
//! a line in `execlog_dropped`, in the place of the line of the death. Everything depends on the
//! deleted row. See docs/decisions/0011.

pub mod due_range;
mod sealing;
mod statements;

use std::time::Duration;

use az::SaturatingAs as _;
use sqlx::postgres::{PgConnection, PgRow};
use sqlx::{Connection as _, Row as _};
use uuid::Uuid;

use self::due_range::DueRange;
use self::sealing::seal_for;
use self::statements::{
    CHOOSE, DROP, DROP_MANY, DROP_THESE, IDS, LIST, REDRIVE, REDRIVE_MANY, REDRIVE_THESE, TOPICS,
};
use crate::domain::{Cursor, Page, PrincipalId, Selection, TaskId, TaskState, TaskView, TopicName};
use crate::postgres::connection::ConnectionPurpose;
use crate::postgres::connection::pool::Pool;
use crate::postgres::tasks::look_up::{lines_of_many, view_of_listed, view_of_row};
use crate::postgres::tasks::principals::dropped_of;
use crate::postgres::{PostgresError, PostgresSettings};
use crate::sealing::{KeySet, PayloadKeys};

const PURPOSE: ConnectionPurpose = ConnectionPurpose {
    name: "dead letters",
    deadline: Duration::from_secs(5),
    // There may be few dead letters or many. Statements must use the index whatever the statistics
    // say.
    settings: &[
        ("plan_cache_mode", "force_custom_plan"),
        ("enable_seqscan", "off"),
        ("enable_bitmapscan", "off"),
    ],
};
/// Maximum number of dead letters, and of bytes, that one transaction redrives or drops. The last
/// one may exceed the bytes.
const ROWS_MAX: u64 = 1000;
const BYTES_MAX: i64 = 8 << 20;
/// Maximum number of lines about attempts that a list shows of a task: the latest. A look-up shows
/// more.
const LINES_MAX: i64 = 10;

/// Maximum number of topics that a list of topics takes from here.
const TOPICS_MAX: i64 = 10_000;

/// Works on dead letters, over a few connections of its own.
#[derive(Debug)]
pub struct DeadLetters {
    pool: Pool,
    name_retention: Duration,
    keys: PayloadKeys,
}

/// A redriven task.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Redriven {
    pub row: TaskId,
    pub view: TaskView,
}

/// The change to make to many dead letters.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum DeadLetterChange {
    Redrive,
    Drop,
}

/// The result of one transaction.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Changed {
    /// The new rows of redriven tasks, or the ids of dropped ones.
    pub rows: Vec<TaskId>,
    /// The highest id that was changed or skipped. Up to this id, only locked rows are left, and
    /// records that cannot be opened. `None` when nothing was left to change.
    pub last: Option<Uuid>,
}

impl DeadLetters {
    /// A redriven task keeps its name for at least `name_retention`.
    pub fn new(
        settings: &PostgresSettings,
        name_retention: Duration,
        connections_max: usize,
    ) -> Self {
        let keys = settings.payload_keys().clone();
        Self { pool: Pool::new(settings, PURPOSE, connections_max), name_retention, keys }
    }

    /// Returns the next `limit` dead letters after `from`, in the order of their first due times.
    pub async fn page(
        &self,
        selection: &Selection,
        from: Option<Cursor>,
        limit: usize,
    ) -> Result<Page, PostgresError> {
        let range = DueRange::of(selection).behind(from);
        let keys = &self.keys.current();
        let statement = || {
            async |open: &mut PgConnection| {
                // One row more shows whether there is another page.
                let count = limit.saturating_as::<i64>().saturating_add(1);
                let topic = selection.topic.as_ref().map(TopicName::as_str);
                let rows = range.query(LIST, topic, count).fetch_all(&mut *open).await?;
                let listed = |row: &PgRow| dead_of(row, view_of_listed, keys);
                let tasks = rows.iter().take(limit).map(listed).collect::<Result<Vec<_>, _>>()?;
                Ok((with_attempts(open, tasks).await?, rows.len() > limit))
            }
        };
        let (tasks, has_more) = self.pool.read("list dead letters", statement).await?;
        let next =
            tasks.last().filter(|_last| has_more).map(|last| Cursor { after: last.id.uuid() });
        Ok(Page { tasks, next })
    }

    /// Returns the topics behind `after` that have dead letters, in the order of their names.
    pub async fn topics(&self, after: Option<&TopicName>) -> Result<Vec<TopicName>, PostgresError> {
        let after = after.map(TopicName::as_str);
        let statement = || {
            async |open: &mut PgConnection| {
                let topics: Vec<String> =
                    sqlx::query_scalar(TOPICS).bind(after).bind(TOPICS_MAX).fetch_all(open).await?;
                Ok(topics.iter().map(|topic| TopicName::stored(topic)).collect())
            }
        };
        self.pool.read("list the topics of dead letters", statement).await
    }

    /// Drops a dead letter of `topic` and returns it. `by` is the caller, also below. Without a
    /// topic, drops it whatever its topic is. The caller may have the right to the topic of a
    /// look-up alone, and the task may have been redriven to another one since, and have died.
    ///
    /// # Errors
    /// After [`PostgresError::Unanswered`] the effect is unknown.
    pub async fn discard(
        &self,
        (id, topic): (TaskId, Option<&TopicName>),
        by: Option<PrincipalId>,
    ) -> Result<Option<TaskView>, PostgresError> {
        let by = by.map(PrincipalId::as_smallint);
        let keys = &self.keys.current();
        let statement = async |open: &mut PgConnection| {
            let query = sqlx::query(DROP).bind(id.uuid()).bind(by);
            let row = query.bind(topic.map(TopicName::as_str)).fetch_optional(open).await?;
            row.map(|row| {
                let mut view = dead_of(&row, view_of_row, keys)?;
                view.actors.dropped = dropped_of(&row)?;
                Ok(view)
            })
            .transpose()
        };
        self.pool.run("drop a dead letter", statement).await
    }

    /// Redrives a dead letter: its task is due now.
    ///
    /// # Errors
    /// After [`PostgresError::Unanswered`] the effect is unknown.
    pub async fn redrive(
        &self,
        id: TaskId,
        by: Option<PrincipalId>,
    ) -> Result<Option<Redriven>, PostgresError> {
        self.redrive_to((id, None), by, None).await
    }

    /// Redrives a dead letter of the topic `from` to another topic, unless `to` is `None`. For
    /// `from` see [`Self::discard`], for errors [`Self::redrive`].
    pub async fn redrive_to(
        &self,
        (id, from): (TaskId, Option<&TopicName>),
        by: Option<PrincipalId>,
        to: Option<&TopicName>,
    ) -> Result<Option<Redriven>, PostgresError> {
        let (retention, by) = (self.name_retention.as_secs_f64(), by.map(PrincipalId::as_smallint));
        let keys = &self.keys.current();
        let redrive = async |open: &mut PgConnection| {
            let query = sqlx::query(REDRIVE).bind(id.uuid()).bind(retention).bind(by);
            let query = query.bind(to.map(TopicName::as_str)).bind(from.map(TopicName::as_str));
            let row = query.fetch_optional(open).await?;
            row.map(|row| {
                let first = TaskId::from_uuid(row.try_get("id")?);
                let next = TaskId::from_uuid(row.try_get("next_id")?);
                let mut view = view_of_row(&row, first, TaskState::Scheduled, keys)?;
                if let Some(tracked) = &mut view.tracked {
                    tracked.attempt = row.try_get::<i16, _>("attempts_before")?.saturating_as();
                    if tracked.attempt > 0 {
                        view.state = TaskState::Retrying;
                        tracked.next_at = Some(next.due_at());
                    }
                }
                Ok(Redriven { row: next, view })
            })
            .transpose()
        };
        let statement = async |open: &mut PgConnection| {
            let Some(to) = to else { return redrive(open).await };
            let mut transaction = open.begin().await?;
            let unsealable = seal_for(&mut transaction, &[id.uuid()], (from, to), keys).await?;
            if let Some(one) = unsealable.into_iter().next() {
                transaction.rollback().await?;
                return Err(one.into());
            }
            let redriven = redrive(&mut transaction).await?;
            transaction.commit().await?;
            Ok(redriven)
        };
        self.pool.run("redrive a dead letter", statement).await
    }

    /// Redrives or drops dead letters of `topic` in the order of their first due times, at most
    /// `count_max` and 1,000 of them, in one transaction. Redriven ones go to the topic `to`,
    /// unless it is `None`.
    ///
    /// # Errors
    /// As [`Self::redrive`].
    pub async fn change_some(
        &self,
        (change, by): (DeadLetterChange, Option<PrincipalId>),
        (topic, to): (&TopicName, Option<&TopicName>),
        range: DueRange,
        count_max: u64,
    ) -> Result<Changed, PostgresError> {
        let (name, text) = match change {
            DeadLetterChange::Redrive => ("redrive dead letters", REDRIVE_MANY),
            DeadLetterChange::Drop => ("drop dead letters", DROP_MANY),
        };
        let (retention, by) = (self.name_retention.as_secs_f64(), by.map(PrincipalId::as_smallint));
        let count_max = i64::try_from(count_max.min(ROWS_MAX)).unwrap_or(0);
        let keys = &self.keys.current();
        let statement = async |open: &mut PgConnection| {
            // A change of topic, or of a range of due times, first chooses its dead letters.
            let Some(ids) = range.of_all_times().filter(|_ids| to.is_none()) else {
                let (change, range) = ((change, by, retention), (range, count_max));
                return change_chosen(open, change, (topic, to), range, keys).await;
            };
            let query = sqlx::query_as(text)
                .bind(topic.as_str())
                .bind(ids.from)
                .bind(ids.to)
                .bind(count_max)
                .bind(BYTES_MAX);
            let query = match change {
                DeadLetterChange::Redrive => query.bind(retention),
                DeadLetterChange::Drop => query,
            };
            let query = query.bind(by);
            let query = match change {
                DeadLetterChange::Redrive => query.bind(None::<&str>),
                DeadLetterChange::Drop => query,
            };
            query.fetch_all(open).await.map(changed_of)
        };
        self.pool.run(name, statement).await
    }

    /// Returns the first `count_max` dead letters of `topic` in `range`, in the order of their
    /// first due times.
    pub async fn ids(
        &self,
        topic: &TopicName,
        range: DueRange,
        count_max: u64,
    ) -> Result<Vec<Uuid>, PostgresError> {
        let count_max = count_max.saturating_as::<i64>();
        let statement = || {
            async |open: &mut PgConnection| {
                let query = range.query(IDS, Some(topic.as_str()), count_max);
                let rows = query.fetch_all(open).await?;
                rows.iter().map(|row| row.try_get("id")).collect::<Result<Vec<Uuid>, _>>()
            }
        };
        self.pool.read("look for dead letters", statement).await
    }
}

fn changed_of(changed: Vec<(Uuid, Uuid)>) -> Changed {
    let last = changed.iter().map(|(id, _row)| *id).max();
    Changed { rows: changed.into_iter().map(|(_id, row)| TaskId::from_uuid(row)).collect(), last }
}

/// Chooses the next dead letters of a topic, and redrives or drops them in the same transaction.
/// Dead letters whose records cannot be opened do not go to another topic. The change skips them,
/// so that they do not hold up the others.
async fn change_chosen(
    open: &mut PgConnection,
    (change, by, retention): (DeadLetterChange, Option<i16>, f64),
    (topic, to): (&TopicName, Option<&TopicName>),
    (range, count_max): (DueRange, i64),
    keys: &KeySet,
) -> Result<Changed, sqlx::Error> {
    let mut transaction = open.begin().await?;
    let choosing = range.query(CHOOSE, Some(topic.as_str()), count_max).bind(BYTES_MAX);
    let chosen = choosing.fetch_one(&mut *transaction).await?;
    let (mut ids, last): (Vec<Uuid>, _) = (chosen.try_get("ids")?, chosen.try_get("last")?);
    if let Some(to) = to {
        let unsealable = seal_for(&mut transaction, &ids, (Some(topic), to), keys).await?;
        ids.retain(|id| unsealable.iter().all(|one| one.id != *id));
    }
    let query = match change {
        DeadLetterChange::Redrive => {
            let query = sqlx::query_as(REDRIVE_THESE).bind(&ids).bind(retention).bind(by);
            query.bind(to.map(TopicName::as_str))
        }
        DeadLetterChange::Drop => sqlx::query_as(DROP_THESE).bind(&ids).bind(by),
    };
    let changed = query.fetch_all(&mut *transaction).await?;
    transaction.commit().await?;
    Ok(Changed { last, ..changed_of(changed) })
}

/// Reads a dead letter with `read`, either with its whole record or as lists have it.
fn dead_of(
    row: &PgRow,
    read: fn(&PgRow, TaskId, TaskState, &KeySet) -> Result<TaskView, sqlx::Error>,
    keys: &KeySet,
) -> Result<TaskView, sqlx::Error> {
    let mut view = read(row, TaskId::from_uuid(row.try_get("id")?), TaskState::Dead, keys)?;
    if let Some(tracked) = view.tracked.as_mut() {
        tracked.set_dead_after(view.attempt.saturating_as());
    }
    Ok(view)
}

/// Adds the latest attempts of tracked tasks.
async fn with_attempts(
    open: &mut PgConnection,
    mut tasks: Vec<TaskView>,
) -> Result<Vec<TaskView>, sqlx::Error> {
    let tracked = tasks.iter().filter(|task| task.tracked.is_some());
    let tracked: Vec<Uuid> = tracked.map(|task| task.id.uuid()).collect();
    if tracked.is_empty() {
        return Ok(tasks);
    }
    let mut lines = lines_of_many(open, &tracked, LINES_MAX).await?;
    for task in &mut tasks {
        if let Some(tracked) = task.tracked.as_mut() {
            tracked.attempts = lines.remove(&task.id.uuid()).unwrap_or_default();
        }
    }
    Ok(tasks)
}
