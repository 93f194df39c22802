//! Looks up the state of a task.
//!
//! A task goes `task_far` -> `task` -> a batch -> (deferred) a new row in `task` -> ..., or leaves
//! that way for `execlog_cancelled` or `dead_letter`. From there it may return as a new row, which
//! `execlog_redriven` names. A task that is moved to another time becomes another row of either
//! table, which `task_follow` names. Each step is one transaction, so in the snapshot of one
//! statement a row is in exactly one place. Rows never move backwards. So when a statement over all
//! places except the batches does not find a row, the row is in a batch by the time of the next
//! statement, or never existed.
//!
//! Most look-ups ask for tasks that have fired, and their batch alone answers them. So the batches
//! are also asked first. For a deferred task the batch names the next row. `task_follow` is the
//! short cut to the latest row, and `execlog_ended` to the row with which the task has ended: the
//! batches in between may be older than the retention of receipts.

mod attempts;
mod current;
mod in_batches;
mod topics;
mod view;

use std::collections::HashMap;
use std::time::Duration;

use sqlx::postgres::{PgConnection, PgRow};
use sqlx::{AssertSqlSafe, Row};
use tokio::sync::Semaphore;
use uuid::Uuid;

use super::principals::{dropped_of, principal_of};
use crate::domain::leaves::{Parent, Partition, Rules};
use crate::domain::{
    Actors, ClusterSettings, Kept, TaskId, TaskState, TaskView, Timestamp, TopicName,
};
use crate::postgres::connection::error::Cause;
use crate::postgres::connection::pool::Pool;
use crate::postgres::connection::{ConnectionPurpose, ROWS_BY_KEY};
use crate::postgres::unsettled::SharedUnsettledFloor;
use crate::postgres::{PostgresError, PostgresSettings};
use crate::sealing::{KeySet, PayloadKeys, RecordOwner};

pub(in crate::postgres) use self::attempts::{lines_of_many, tracked_of};
pub use self::current::CurrentAttempt;
pub use self::in_batches::IN_BATCHES;
pub(in crate::postgres) use self::in_batches::moved_of;
use self::in_batches::{BatchEntry, in_batches};
pub use self::topics::{FoundTopics, TOPICS_MAX};
use self::view::kept_of;
pub(in crate::postgres) use self::view::{StoredTerms, listed_key, view_of_listed, view_of_row};

/// Purpose of statements over the places outside the batches, and of statements about many tasks.
/// With other plans, a statement about 500 tasks would take 500 ms instead of 200.
const PLACES: ConnectionPurpose =
    ConnectionPurpose { name: "look up", deadline: Duration::from_secs(2), settings: ROWS_BY_KEY };
/// Purpose of statements over the batches. Planning the statement anew for eleven days takes 1.5
/// ms, running it 0.2 ms. A day that has just begun has no statistics yet, and a cached plan must
/// not read whole days because of that.
const BATCHES: ConnectionPurpose = ConnectionPurpose {
    name: "look up batches",
    deadline: Duration::from_secs(2),
    settings: &[("plan_cache_mode", "force_generic_plan"), ("enable_seqscan", "off")],
};
/// Deadline of a whole look-up.
const DEADLINE: Duration = Duration::from_secs(3);
/// Maximum number of rows that one task may have been, one after another. In the long run retries
/// happen at most once a minute, and tasks of unavailable topics wait without a retry.
const HOPS_MAX: usize = 1000;

/// Maximum number of replacements that one look-up follows. A name that is put once a second
/// reaches it in three hours. The task that is returned then was replaced as well, and its own
/// look-up continues from there.
const REPLACEMENTS_MAX: i32 = 10_000;

const WHAT: &str = "look up a task";

/// Looks up tasks, over a few connections of its own.
#[derive(Debug)]
pub struct LookUp {
    places: Pool,
    batches: Pool,
    /// Free slots for look-ups of the topics of many tasks.
    many: Semaphore,
    rules: Rules,
    keys: PayloadKeys,
    unsettled: SharedUnsettledFloor,
}

/// The place of a row outside the batches.
enum Whereabouts {
    Found(Box<TaskView>),
    /// In none of the places, but the task is now this row.
    Follow(TaskId),
    Nowhere,
}

impl LookUp {
    /// Allows at most `connections_max` look-ups at a time, over twice as many connections. Further
    /// look-ups wait.
    pub fn new(
        settings: &PostgresSettings,
        cluster: &ClusterSettings,
        connections_max: usize,
    ) -> Self {
        let pool = |purpose| Pool::new(settings, purpose, connections_max);
        Self {
            places: pool(PLACES),
            batches: pool(BATCHES),
            many: Semaphore::new((connections_max / 2).max(1)),
            rules: Rules::new(cluster),
            keys: settings.payload_keys().clone(),
            unsettled: settings.unsettled_floor().clone(),
        }
    }

    pub async fn keep_open(&self) -> Result<(), PostgresError> {
        self.places.keep_open().await?;
        self.batches.keep_open().await
    }

    /// Returns everything known about the task that was submitted as `first`. Returns `None` when
    /// it never existed, or when its receipt is no longer kept.
    pub async fn task(&self, first: TaskId) -> Result<Option<TaskView>, PostgresError> {
        // On the heap, because callers hold it in futures of their own.
        let walk = Box::pin(async {
            match self.walk(first).await? {
                Some(view) if view.tracked.is_some() => self.with_attempts(view).await.map(Some),
                view => Ok(view),
            }
        });
        let outcome = tokio::time::timeout(DEADLINE, walk).await;
        outcome.unwrap_or_else(|_elapsed| Err(PostgresError::new(WHAT, Cause::Deadline(DEADLINE))))
    }

    /// Returns the current attempts of tracked tasks, in one statement. Tasks of which nothing is
    /// known are not among them.
    pub async fn current_attempts(
        &self,
        ids: &[TaskId],
    ) -> Result<HashMap<TaskId, CurrentAttempt>, PostgresError> {
        let ids: Vec<Uuid> = ids.iter().map(|id| id.uuid()).collect();
        self.batches.read(WHAT, || async |open| current::current(open, &ids).await).await
    }

    /// Returns the ends of the times to run, by the rows of next attempts, in one statement.
    pub async fn times_to_run(
        &self,
        rows: &[TaskId],
    ) -> Result<HashMap<TaskId, Timestamp>, PostgresError> {
        self.places.read(WHAT, || async |open| current::times_to_run(open, rows).await).await
    }

    /// Returns the topics of at most [`TOPICS_MAX`] tasks. The number of statements, at most five,
    /// does not depend on the number of tasks.
    pub async fn topics(&self, ids: &[TaskId]) -> Result<FoundTopics, PostgresError> {
        let (places, rules) = (&self.places, &self.rules);
        let search = topics::Search { places, rules, unsettled: self.unsettled.get() };
        // On the heap, because callers hold it in futures of their own.
        let search = Box::pin(async {
            let is_of_many = ids.len() > 1;
            // Half of the connections is left to look-ups of single tasks.
            let _place = if is_of_many { self.many.acquire().await.ok() } else { None };
            search.run(ids).await
        });
        let outcome = tokio::time::timeout(DEADLINE, search).await;
        outcome.unwrap_or_else(|_elapsed| Err(PostgresError::new(WHAT, Cause::Deadline(DEADLINE))))
    }

    async fn walk(&self, first: TaskId) -> Result<Option<TaskView>, PostgresError> {
        let mut row = first;
        // The entry of the last batch, in case the walk loses the trace behind it.
        let mut behind: Option<BatchEntry> = None;
        // The row from `task_follow`. It is followed once: the entry may be older than the batches,
        // which then lead on to a row that the entry does not know.
        let mut followed: Option<TaskId> = None;
        for hop in 0..HOPS_MAX {
            let mut line = if hop == 1 { None } else { self.in_batches(row).await? };
            // After the first attempt, `task_follow` may know the latest one.
            if line.is_none() {
                match self.outside_batches(row, first).await? {
                    Whereabouts::Found(view) => {
                        return self.with_last_in_place(*view).await.map(Some);
                    }
                    Whereabouts::Follow(latest) if latest != row && followed != Some(latest) => {
                        followed = Some(latest);
                        row = latest;
                        continue;
                    }
                    Whereabouts::Follow(_) | Whereabouts::Nowhere => {
                        line = self.in_batches(row).await?
                    }
                }
            }
            if line.as_ref().is_some_and(|line| line.tracked.is_some() && !line.is_settled) {
                // The consumer may have finished the task already.
                if let Whereabouts::Found(view) = self.outside_batches(row, first).await?
                    && view.state == TaskState::Finished
                {
                    return Ok(Some(*view));
                }
            }
            let Some(line) = line else {
                if let Some(hidden) = self.in_hidden_leaf(row, first).await? {
                    return Ok(Some(hidden));
                }
                match self.end_of(first).await? {
                    Some(last) if last != row => row = last,
                    _ => return Ok(behind.map(|line| deferred(first, line))),
                }
                continue;
            };
            let next = match line.next {
                None if line.state() == TaskState::Dead => {
                    match self.after_death(row, first).await? {
                        // The dead letter still exists and gives the reason.
                        Whereabouts::Found(view) => return Ok(Some(*view)),
                        Whereabouts::Follow(next) => Some(next),
                        Whereabouts::Nowhere => None,
                    }
                }
                next => next,
            };
            let Some(next) = next else { return self.view_of_line(first, line).await.map(Some) };
            row = next;
            behind = Some(line);
        }
        Ok(behind.map(|line| deferred(first, line)))
    }

    async fn outside_batches(
        &self,
        row: TaskId,
        first: TaskId,
    ) -> Result<Whereabouts, PostgresError> {
        let keys = &self.keys.current();
        self.places.read(WHAT, || async |open| outside_batches(open, row, first, keys).await).await
    }

    async fn with_attempts(&self, view: TaskView) -> Result<TaskView, PostgresError> {
        self.batches.run(WHAT, async |open| attempts::complete(open, view).await).await
    }

    async fn after_death(&self, row: TaskId, first: TaskId) -> Result<Whereabouts, PostgresError> {
        let keys = &self.keys.current();
        self.places.read(WHAT, || async |open| after_death(open, row, first, keys).await).await
    }

    /// Replaces the task that took the place of this one by the last task in the chain of
    /// replacements.
    async fn with_last_in_place(&self, view: TaskView) -> Result<TaskView, PostgresError> {
        let Some(next) = view.replaced_by else { return Ok(view) };
        let last = self.batches.read(WHAT, || async |open| last_in_place(open, next).await).await?;
        Ok(TaskView { replaced_by: Some(last), ..view })
    }

    async fn in_batches(&self, row: TaskId) -> Result<Option<BatchEntry>, PostgresError> {
        let unsettled = self.unsettled.get();
        self.batches.read(WHAT, || async |open| in_batches(open, row, unsettled).await).await
    }

    async fn end_of(&self, first: TaskId) -> Result<Option<TaskId>, PostgresError> {
        self.batches.read(WHAT, || async |open| end_of(open, first).await).await
    }

    async fn in_hidden_leaf(
        &self,
        row: TaskId,
        first: TaskId,
    ) -> Result<Option<TaskView>, PostgresError> {
        let leaf = self.rules.partition_of(Parent::Task, row.due_at());
        let keys = &self.keys.current();
        let found =
            || async |open: &mut PgConnection| in_hidden_leaf(open, leaf, (row, first), keys).await;
        self.places.read(WHAT, found).await
    }

    async fn view_of_line(
        &self,
        first: TaskId,
        line: BatchEntry,
    ) -> Result<TaskView, PostgresError> {
        let keys = &self.keys.current();
        let read = || async |open: &mut PgConnection| carried(open, &line, first, keys).await;
        let carried = self.places.read(WHAT, read).await?;
        let Some(topic) =
            line.topic.clone().or_else(|| carried.as_ref().map(|carried| carried.0.clone()))
        else {
            return Err(PostgresError::new(
                WHAT,
                Cause::Fact("the payload of an unsettled batch is not visible for a moment"),
            ));
        };
        let terms = carried.as_ref().map(|carried| carried.2).unwrap_or_default();
        let mut view = TaskView {
            id: first,
            topic: TopicName::stored(&topic),
            state: line.state(),
            replaced_by: None,
            name: line.name,
            attempt: line.attempt,
            receipt: line.receipt,
            kept: carried.and_then(|carried| carried.1),
            reason: None,
            died_at: None,
            moved_to: line.moved_to,
            requested_due_at: None,
            expires_at: line.expires_at,
            actors: line.actors,
            tracked: line.tracked,
        };
        terms.show_in(&mut view);
        Ok(view)
    }
}

/// Looks for `row` everywhere except in the batches.
async fn outside_batches(
    open: &mut PgConnection,
    row: TaskId,
    first: TaskId,
    keys: &KeySet,
) -> Result<Whereabouts, sqlx::Error> {
    let found = sqlx::query(
        "-- look up outside of batches
        select f.*, (select p.name from principal p where p.id = f.submitter) as submitted_by,
          (select p.name from principal p where p.id = f.canceller) as cancelled_by,
          (select p.name from principal p where p.id = f.dropper) as dropped_by
        from (
          select 'scheduled' as state, topic, name, attempt, key, payload, headers, null::text
            as reason, null::bigint as died_at,
            null::uuid as row_id, null::uuid as replaced_by, submitted_by as submitter,
              submitted_at,
            null::smallint as canceller, null::smallint as dropper, null::bigint as dropped_at,
            tracking, moved_to
          from task_far where id = $1 and coalesce(first_id, id) = $3
          union all
          select 'scheduled', topic, name, attempt, key, payload, headers, null, null, null, null,
            submitted_by, submitted_at, null, null, null, tracking, moved_to
          from task where shard = $2 and id = $1 and coalesce(first_id, id) = $3
          union all
          (select 'cancelled', topic, name, attempt, null, null, null, null, null, null,
            replaced_by, submitted_by, submitted_at, cancelled_by, null, null, null, moved_to
          from execlog_cancelled where id = $3 limit 1)
          union all
          select 'dead', topic, name, attempts, key, payload, headers, reason, (extract(epoch
            from dead_at) * 1000000)::bigint, null, null,
            submitted_by, submitted_at, null, null, null, tracking, moved_to
          from dead_letter where id = $3
          union all
          (select 'finished', topic, name, attempt, null, null, null, null, null, null, null,
            submitted_by, submitted_at, null, null, null, tracking, moved_to
          from execlog_finished where id = $3 limit 1)
          union all
          (select 'dead', topic, name, attempts, null, null, null, reason, (extract(epoch
            from dead_at) * 1000000)::bigint, null, null,
            submitted_by, submitted_at, null, dropped_by, (extract(epoch
              from dropped_at) * 1000000)::bigint, null, moved_to
          from execlog_dropped where id = $3 limit 1)
          union all
          select 'follow', null, null, null, null, null, null, null, null, row_id, null, null,
            null, null, null, null, null, null
          from task_follow where first_id = $3
        ) f",
    )
    .bind(row.uuid())
    .bind(row.shard().as_smallint())
    .bind(first.uuid())
    .fetch_all(open)
    .await?;
    let mut place = Whereabouts::Nowhere;
    for found in found {
        let state = match found.try_get("state")? {
            "follow" => {
                place = Whereabouts::Follow(TaskId::from_uuid(found.try_get("row_id")?));
                continue;
            }
            "scheduled" => TaskState::Scheduled,
            "cancelled" => TaskState::Cancelled,
            "finished" => TaskState::Finished,
            _ => TaskState::Dead,
        };
        let mut view = view_of_row(&found, first, state, keys)?;
        view.replaced_by = found.try_get::<Option<Uuid>, _>("replaced_by")?.map(TaskId::from_uuid);
        view.actors.cancelled_by = principal_of(&found, "cancelled_by")?;
        return Ok(Whereabouts::Found(Box::new(with_drop(view, &found)?)));
    }
    Ok(place)
}

/// Finds the successor of the row `row`, which has died. The row is a dead letter, or was redriven
/// as another row, or was dropped.
async fn after_death(
    open: &mut PgConnection,
    row: TaskId,
    first: TaskId,
    keys: &KeySet,
) -> Result<Whereabouts, sqlx::Error> {
    let found = sqlx::query(
        "-- look up what came of a dead task
        select f.*, (select p.name from principal p where p.id = f.submitter) as submitted_by,
          (select p.name from principal p where p.id = f.dropper) as dropped_by
        from (
          select topic, name, attempts as attempt, key, payload, headers, reason,
            (extract(epoch from dead_at) * 1000000)::bigint as died_at,
            null::uuid as next, submitted_by as submitter, submitted_at, null::smallint as dropper,
              null::bigint as dropped_at, tracking, moved_to
          from dead_letter where id = $2 and row_id = $1
          union all
          (select null, null, null, null, null, null, null, null, next_id, null, null, null, null,
            null, null
          from execlog_redriven where id = $2 and row_id = $1 limit 1)
          union all
          (select topic, name, attempts, null, null, null, reason, (extract(epoch
            from dead_at) * 1000000)::bigint, null,
            submitted_by, submitted_at, dropped_by, (extract(epoch
              from dropped_at) * 1000000)::bigint, null, moved_to
          from execlog_dropped where id = $2 and row_id = $1 limit 1)
        ) f",
    )
    .bind(row.uuid())
    .bind(first.uuid())
    .fetch_optional(open)
    .await?;
    let Some(found) = found else { return Ok(Whereabouts::Nowhere) };
    Ok(match found.try_get::<Option<Uuid>, _>("next")? {
        Some(next) => Whereabouts::Follow(TaskId::from_uuid(next)),
        None => {
            let view = view_of_row(&found, first, TaskState::Dead, keys)?;
            Whereabouts::Found(Box::new(with_drop(view, &found)?))
        }
    })
}

/// Completes the view of a dead letter that was dropped: nothing of its record is kept.
fn with_drop(view: TaskView, row: &PgRow) -> Result<TaskView, sqlx::Error> {
    let Some(dropped) = dropped_of(row)? else { return Ok(view) };
    let actors = Actors { dropped: Some(dropped), ..view.actors };
    Ok(TaskView { kept: None, actors, ..view })
}

/// Returns the row with which a task has ended, if that was not its first.
async fn end_of(open: &mut PgConnection, first: TaskId) -> Result<Option<TaskId>, sqlx::Error> {
    let last: Option<Uuid> = sqlx::query_scalar(
        "-- look up with which row a task has ended
        select row_id from execlog_ended where id = $1 order by ended_at desc limit 1",
    )
    .bind(first.uuid())
    .fetch_optional(open)
    .await?;
    Ok(last.map(TaskId::from_uuid))
}

/// Returns the last task of a chain of replacements that begins with `next`. A line is dropped no
/// later than those of the replacements after it, so the chain has no gaps.
async fn last_in_place(open: &mut PgConnection, next: TaskId) -> Result<TaskId, sqlx::Error> {
    let last: Uuid = sqlx::query_scalar(
        "-- look up the last of a chain of replacements
        with recursive chain (id, place) as (
          select $1::uuid, 0
          union all
          select l.replaced_by, c.place + 1
          from chain c
          cross join lateral (select replaced_by from execlog_cancelled where id = c.id limit 1) l
          where l.replaced_by is not null and c.place < $2
        )
        select id from chain order by place desc limit 1",
    )
    .bind(next.uuid())
    .bind(REPLACEMENTS_MAX)
    .fetch_one(open)
    .await?;
    Ok(TaskId::from_uuid(last))
}

/// Reads topic, key, payload and headers, while they are kept.
async fn carried(
    open: &mut PgConnection,
    line: &BatchEntry,
    first: TaskId,
    keys: &KeySet,
) -> Result<Option<(String, Option<Kept>, StoredTerms)>, sqlx::Error> {
    let carried = sqlx::query(
        "-- look up what a batch carries
        select topics[$2] as topic, keys[$2] as key, payloads[$2] as payload,
          headers[$2] as headers from execlog_payload where batch = $1",
    )
    .bind(line.batch)
    .bind(line.position)
    .fetch_optional(open)
    .await?;
    let carried_of = |row: PgRow| {
        let topic: String = row.try_get("topic")?;
        let (kept, terms) = kept_of(&row, RecordOwner::Task(first, &topic), keys)?;
        Ok((topic, kept, terms))
    };
    carried.map(carried_of).transpose()
}

/// Builds the view of a deferred task whose next row was not found.
fn deferred(first: TaskId, line: BatchEntry) -> TaskView {
    TaskView {
        id: first,
        topic: TopicName::stored(&line.topic.unwrap_or_default()),
        name: line.name,
        state: TaskState::Scheduled,
        replaced_by: None,
        attempt: line.attempt.saturating_add(1),
        receipt: None,
        kept: None,
        reason: None,
        died_at: None,
        moved_to: line.moved_to,
        requested_due_at: None,
        expires_at: None,
        actors: line.actors,
        tracked: line.tracked,
    }
}

/// Looks for a row in a leaf that is being detached. Queries of `task` do not see such a leaf, so a
/// late row in it is read by the leaf's own name. The row is overdue and can no longer be
/// cancelled: it is on its way.
async fn in_hidden_leaf(
    open: &mut PgConnection,
    leaf: Partition,
    (row, first): (TaskId, TaskId),
    keys: &KeySet,
) -> Result<Option<TaskView>, sqlx::Error> {
    let name = leaf.name();
    let is_hidden: Option<bool> = sqlx::query_scalar(
        "-- is a leaf hidden
        select not exists (select from pg_inherits where inhrelid = c.oid and not inhdetachpending)
          from pg_class c where c.oid = to_regclass($1)",
    )
    .bind(&name)
    .fetch_optional(&mut *open)
    .await?;
    if is_hidden != Some(true) {
        return Ok(None);
    }
    let statement = format!(
        "-- look up in a hidden leaf\nselect topic, name, attempt, key, payload, headers,
          null::text as reason, null::bigint as died_at, submitted_at, tracking,
          moved_to, (select p.name
          from principal p where p.id = submitted_by) as submitted_by\nfrom {name}
          where shard = $1 and id = $2 and coalesce(first_id, id) = $3"
    );
    let found = sqlx::query(AssertSqlSafe(statement))
        .bind(row.shard().as_smallint())
        .bind(row.uuid())
        .bind(first.uuid())
        .persistent(false)
        .fetch_optional(open)
        .await?;
    found.map(|found| view_of_row(&found, first, TaskState::Claimed, keys)).transpose()
}
