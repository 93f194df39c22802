//! Cancels tasks in groups. The transaction that deletes the row of a task has withdrawn it.

use std::collections::HashMap;
use std::time::Duration;

use sqlx::Row;
use sqlx::postgres::{PgConnection, PgRow};
use uuid::Uuid;

use super::look_up::moved_of;
use super::principals::{actors_of, principal_of};
use crate::domain::{Actors, PrincipalId, TaskId, TaskState, TaskView, TopicName};
use crate::error_chain::chain;
use crate::failpoint::{Failpoint, reach};
use crate::postgres::connection::ConnectionPurpose;
use crate::postgres::{Connection, PostgresError, PostgresSettings};

/// Hash joins, merge joins and scans of whole leaves would lock the rows in another order than the
/// claims do. They also cost more, because a group is small.
pub(in crate::postgres) const PURPOSE: ConnectionPurpose = ConnectionPurpose {
    name: "cancel",
    deadline: Duration::from_secs(5),
    settings: &[
        ("plan_cache_mode", "force_custom_plan"),
        // As for claims: a lock on one row must not delay the other rows for long.
        ("lock_timeout", "200ms"),
        ("enable_hashjoin", "off"),
        ("enable_mergejoin", "off"),
        ("enable_seqscan", "off"),
        ("enable_bitmapscan", "off"),
    ],
};
/// Maximum number of tasks in a group.
pub const GROUP_MAX: usize = 1000;
/// A task can be deferred while a group looks for it. A task that is missed this often was claimed
/// as often, so the cancel is too late.
const ROUNDS_MAX: usize = 3;

/// Cancels tasks over its own connection.
#[derive(Debug)]
pub struct Cancels {
    connection: Connection,
    name_retention: Duration,
}

/// A row to delete. The task `first` is now the row `row`.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(in crate::postgres) struct CancelRow {
    pub(in crate::postgres) row: TaskId,
    pub(in crate::postgres) first: TaskId,
    /// The caller who cancels the task.
    pub(in crate::postgres) by: Option<PrincipalId>,
}

impl Cancels {
    /// Creates the connection. A name is kept for `name_retention` after its task is cancelled.
    pub fn new(settings: &PostgresSettings, name_retention: Duration) -> Self {
        Self { connection: Connection::new(settings, PURPOSE), name_retention }
    }

    pub async fn keep_open(&mut self) -> Result<(), PostgresError> {
        self.connection.keep_open().await
    }

    /// Withdraws the tasks of `firsts` that are neither claimed nor perhaps sent, and writes their
    /// lines into the execlog. `firsts` are at most [`GROUP_MAX`] ids as the submitters know them,
    /// each with the principal of the cancel. A returned view means that no record of the task
    /// exists or ever will. `None` means too late, cancelled before, or never submitted: a look-up
    /// tells.
    ///
    /// # Errors
    /// A group is several statements, and each commits. The tasks cancelled before an error stay
    /// cancelled and are returned beside it. After [`PostgresError::Unanswered`] the others may or
    /// may not have been cancelled. After any other error they were not.
    pub async fn cancel_group(
        &mut self,
        firsts: &[(TaskId, Option<PrincipalId>)],
    ) -> (Vec<Option<TaskView>>, Result<(), PostgresError>) {
        assert!(firsts.len() <= GROUP_MAX, "the caller limits the size of groups");
        let mut cancelled = HashMap::with_capacity(firsts.len());
        let outcome = self.cancel_each(firsts, &mut cancelled).await;
        self.note_names(&cancelled).await;
        let view = |first: &TaskId| cancelled.get(first).map(|one| one.view.clone());
        (firsts.iter().map(|(first, _by)| view(first)).collect(), outcome)
    }

    async fn cancel_each(
        &mut self,
        firsts: &[(TaskId, Option<PrincipalId>)],
        cancelled: &mut HashMap<TaskId, Cancelled>,
    ) -> Result<(), PostgresError> {
        let mut rows: HashMap<TaskId, TaskId> = HashMap::new();
        // When several callers name the same id, one of them has cancelled the task.
        let by: HashMap<TaskId, Option<PrincipalId>> = firsts.iter().copied().collect();
        let mut wanted: Vec<CancelRow> = by
            .iter()
            .map(|(first, by)| CancelRow { row: *first, first: *first, by: *by })
            .collect();
        for _round in 0..ROUNDS_MAX {
            // The far table comes first: a task moves from there to a leaf, never back.
            self.delete(&mut wanted, cancelled, FAR).await?;
            reach(Failpoint::FarCancelled);
            self.delete(&mut wanted, cancelled, NEAR).await?;
            reach(Failpoint::CancelCommitted);
            if wanted.is_empty() {
                break;
            }
            rows.extend(wanted.iter().map(|wanted| (wanted.first, wanted.row)));
            // These tasks are another row by now, and were certainly never sent.
            let followed = self.follow(&wanted).await?;
            wanted = followed
                .into_iter()
                .filter(|(first, row)| rows.get(first) != Some(row))
                .map(|(first, row)| CancelRow { row, first, by: by.get(&first).copied().flatten() })
                .collect();
        }
        Ok(())
    }

    /// Deletes the rows that it finds. The others stay in `wanted`.
    async fn delete(
        &mut self,
        wanted: &mut Vec<CancelRow>,
        cancelled: &mut HashMap<TaskId, Cancelled>,
        table: TaskTable,
    ) -> Result<(), PostgresError> {
        if wanted.is_empty() {
            return Ok(());
        }
        wanted.sort_unstable_by_key(table.order);
        let retention = self.name_retention;
        let deleted = self
            .connection
            .run(table.what, async |open| {
                delete_rows(open, wanted, table.statement, retention).await
            })
            .await?;
        cancelled.extend(deleted.into_iter().map(|one| (one.view.id, one)));
        wanted.retain(|wanted| !cancelled.contains_key(&wanted.first));
        Ok(())
    }

    /// Writes the state of cancelled tasks to entries that were locked: see [`NOTE_NAMES`].
    async fn note_names(&mut self, cancelled: &HashMap<TaskId, Cancelled>) {
        let names = unnoted(cancelled.values());
        if !names.is_empty() {
            let retention = self.name_retention;
            let noted = self.connection.run("note the cancel of names", async |open| {
                note_names(open, &names, retention).await
            });
            tell_unnoted(noted.await);
        }
    }

    /// Returns the first ids and the current rows.
    async fn follow(
        &mut self,
        wanted: &[CancelRow],
    ) -> Result<Vec<(TaskId, TaskId)>, PostgresError> {
        let firsts: Vec<Uuid> = wanted.iter().map(|wanted| wanted.first.uuid()).collect();
        let statement = async |open: &mut PgConnection| {
            let rows = sqlx::query(FOLLOW).bind(firsts).fetch_all(open).await?;
            rows.iter().map(follow_of).collect()
        };
        self.connection.run("find the follow-ups of tasks to cancel", statement).await
    }
}

/// Finds the tasks that are another row by now and were certainly never sent.
pub(in crate::postgres) const FOLLOW: &str = "-- follow tasks to cancel\n\
    select first_id, row_id from task_follow where first_id = any($1) and not maybe_sent";

fn follow_of(row: &PgRow) -> Result<(TaskId, TaskId), sqlx::Error> {
    let (first, row): (Uuid, Uuid) = (row.try_get("first_id")?, row.try_get("row_id")?);
    Ok((TaskId::from_uuid(first), TaskId::from_uuid(row)))
}

/// One of the two tables in which a task waits.
#[derive(Clone, Copy)]
pub(in crate::postgres) struct TaskTable {
    pub(in crate::postgres) what: &'static str,
    pub(in crate::postgres) statement: &'static str,
    /// The order in which the mover and the claims lock rows of this table. Any other order can
    /// deadlock. A claim beside a hotspot may do so, because it goes by place. A statement that
    /// waits for 200 ms gives way and is repeated.
    pub(in crate::postgres) order: fn(&CancelRow) -> (i16, TaskId),
}

/// Builds the statement that cancels tasks in one of the two tables.
///
/// Each line of the execlog depends on the deleted row, and so does the new state of the entry of a
/// name (4, `names::CANCELLED`): the line may be dropped before the entry. An entry locked by
/// another transaction is skipped, because a replacement locks the entry first and the row
/// afterwards. The replacement finds the row gone, and puts another task there, or leaves the entry
/// as it is: see [`NOTE_NAMES`].
///
/// The row of a follow-up is deleted only while `task_follow` names the row as never sent. Whoever
/// changes that entry has taken the row. So the entry is valid for as long as the row exists.
macro_rules! cancel_in {
    ($table:literal) => {
        concat!(
            "-- cancel in ",
            $table,
            "
        with d as (
            delete from ",
            $table,
            " t
            using unnest($1::smallint[], $2::uuid[], $3::uuid[], $4::smallint[]) as w (shard,
              row_id, first, cancelled_by)
            where t.shard = w.shard and t.id = w.row_id and t.id = any($2)
              and case when w.row_id = w.first then t.first_id is null
                else t.first_id = w.first
                  and exists (select from task_follow f where f.first_id = w.first
                    and f.row_id = w.row_id and not f.maybe_sent) end
            returning w.first, t.id, t.topic, t.name, coalesce(t.attempt, 1::smallint) as attempt,
              t.submitted_by, t.submitted_at, t.moved_to, w.cancelled_by
          ),
          l as (
            insert into execlog_cancelled (id, row_id, topic, name, attempt, submitted_by,
              submitted_at, moved_to, cancelled_by)
            select first, id, topic, name, attempt, submitted_by, submitted_at, moved_to,
              cancelled_by
            from d
          ),
          f as (delete from task_follow using d where task_follow.first_id = d.first),
          e as (
            select n.topic, n.name
            from d join task_name n on n.topic = d.topic and n.name = d.name
            where n.id = d.first
            for update of n skip locked
          ),
          o as (update task_name n set outcome = 4, expires_at = greatest(n.expires_at,
            clock_timestamp() + make_interval(secs => $5))
            from e where n.topic = e.topic and n.name = e.name)
        select first, topic, name, attempt, submitted_at, moved_to,
          name is null or (topic, name) in (select topic, name from e) as is_noted,
          (select p.name from principal p where p.id = d.submitted_by) as submitted_by,
          (select p.name from principal p where p.id = d.cancelled_by) as cancelled_by
        from d"
        )
    };
}

pub(in crate::postgres) const FAR: TaskTable = TaskTable {
    what: "cancel far tasks",
    statement: cancel_in!("task_far"),
    order: |wanted| (0, wanted.row),
};
pub(in crate::postgres) const NEAR: TaskTable = TaskTable {
    what: "cancel tasks",
    statement: cancel_in!("task"),
    order: |wanted| (wanted.row.shard().as_smallint(), wanted.row),
};

/// A task that was cancelled.
#[derive(Clone, Debug)]
pub(in crate::postgres) struct Cancelled {
    /// What a look-up shows from now on.
    pub(in crate::postgres) view: TaskView,
    /// False if the entry of its name does not have the new state.
    is_noted: bool,
}

/// Deletes those rows of `wanted` that exist and may be deleted. The entries of their names are
/// kept for at least `name_retention`: the tasks may be overdue for long.
pub(in crate::postgres) async fn delete_rows(
    open: &mut PgConnection,
    wanted: &[CancelRow],
    statement: &'static str,
    name_retention: Duration,
) -> Result<Vec<Cancelled>, sqlx::Error> {
    let shards: Vec<i16> = wanted.iter().map(|wanted| wanted.row.shard().as_smallint()).collect();
    let rows: Vec<Uuid> = wanted.iter().map(|wanted| wanted.row.uuid()).collect();
    let firsts: Vec<Uuid> = wanted.iter().map(|wanted| wanted.first.uuid()).collect();
    let by: Vec<Option<i16>> =
        wanted.iter().map(|wanted| wanted.by.map(PrincipalId::as_smallint)).collect();
    let query = sqlx::query(statement).bind(shards).bind(rows).bind(firsts).bind(by);
    let deleted = query.bind(name_retention.as_secs_f64()).fetch_all(open).await?;
    deleted.iter().map(cancelled_of).collect()
}

/// Writes the state of cancelled tasks to the entries of their names, once the cancel has committed
/// and holds no locks. An entry that belongs to another task by now stays as it is. An entry that
/// had expired may have been freed meanwhile: who frees it finds no pending task any more. It is
/// made anew. 4 is `names::CANCELLED`.
const NOTE_NAMES: &str = "-- note cancelled names
with w as (
  select * from unnest($1::text[], $2::text[], $3::uuid[]) as w (topic, name, first)
), noted as (
  update task_name n set outcome = 4,
    expires_at = greatest(n.expires_at, clock_timestamp() + make_interval(secs => $4))
  from w
  where n.topic = w.topic and n.name = w.name and n.id = w.first and n.outcome is null
  returning n.topic, n.name
)
insert into task_name (topic, name, id, row_id, outcome, expires_at)
select w.topic, w.name, w.first, w.first, 4, clock_timestamp() + make_interval(secs => $4)
from w left join noted using (topic, name)
where noted.name is null
order by w.topic, w.name
on conflict do nothing";

/// Topic and name of a task, and the task.
pub(in crate::postgres) type UnnotedName = (String, String, Uuid);

/// Returns the names whose entries do not have the new state.
pub(in crate::postgres) fn unnoted<'a>(
    cancelled: impl IntoIterator<Item = &'a Cancelled>,
) -> Vec<UnnotedName> {
    let unnoted = cancelled.into_iter().filter(|one| !one.is_noted).map(|one| &one.view);
    let named = unnoted.filter_map(|view| Some((view, view.name.clone()?)));
    named.map(|(view, name)| (view.topic.as_str().to_owned(), name, view.id.uuid())).collect()
}

pub(in crate::postgres) async fn note_names(
    open: &mut PgConnection,
    names: &[UnnotedName],
    name_retention: Duration,
) -> Result<(), sqlx::Error> {
    let topics: Vec<&str> = names.iter().map(|(topic, _, _)| topic.as_str()).collect();
    let texts: Vec<&str> = names.iter().map(|(_, name, _)| name.as_str()).collect();
    let firsts: Vec<Uuid> = names.iter().map(|(_, _, first)| *first).collect();
    let query = sqlx::query(NOTE_NAMES).bind(topics).bind(texts).bind(firsts);
    query.bind(name_retention.as_secs_f64()).execute(open).await?;
    Ok(())
}

/// Logs a failure. The tasks stay cancelled, and look-ups by name tell so until their receipts
/// expire. The name of a task that was overdue for longer than the retention may be free at once.
pub(in crate::postgres) fn tell_unnoted(noted: Result<(), PostgresError>) {
    if let Err(error) = noted {
        tracing::warn!(error = chain(&error), "names do not know that their tasks are cancelled");
    }
}

fn cancelled_of(row: &PgRow) -> Result<Cancelled, sqlx::Error> {
    let is_noted = row.try_get("is_noted")?;
    let view = TaskView {
        id: TaskId::from_uuid(row.try_get("first")?),
        topic: TopicName::stored(row.try_get("topic")?),
        name: row.try_get("name")?,
        state: TaskState::Cancelled,
        replaced_by: None,
        attempt: row.try_get("attempt")?,
        receipt: None,
        kept: None,
        reason: None,
        died_at: None,
        moved_to: moved_of(row)?,
        requested_due_at: None,
        expires_at: None,
        actors: Actors { cancelled_by: principal_of(row, "cancelled_by")?, ..actors_of(row)? },
        tracked: None,
    };
    Ok(Cancelled { view, is_noted })
}
