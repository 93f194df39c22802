//! What is known of a task.
//!
//! A task goes `task_far` -> `task` -> a batch -> (deferred) a new row in `task` -> ..., or leaves that way for `execlog_cancelled` or `dead_letter`. Each step
//! is one transaction, so in the snapshot of one statement a row is in exactly one place. The first statement looks at all places but the batches; what it
//! does not find is in a batch by then, or was never there, and the second statement, with a later snapshot, tells. A batch says for a deferred task which row
//! comes next; `task_follow` is the short cut to the latest one. Nothing moves backwards, so the walk ends.

use std::time::Duration;

use sqlx::postgres::{PgConnection, PgRow};
use sqlx::{AssertSqlSafe, Row};
use uuid::Uuid;

use super::connection::Purpose;
use super::pool::Pool;
use super::{Error, Settings};
use crate::domain::{ClusterSettings, Kept, Outcome, Receipt, Span, TaskId, TaskState, TaskView, Timestamp, TopicName, ids};
use crate::engine::leaves::{Parent, Partition, Rules};

const PURPOSE: Purpose =
    Purpose { name: "look up", deadline: Duration::from_secs(2), settings: &[("plan_cache_mode", "force_custom_plan")] };
/// A task is claimed a window before it is due at the earliest (10 s at most, and the claimer's clock is behind by less than a minute): days before that
/// cannot hold its batch.
const CLAIMED_BEFORE_DUE_MAX: Duration = Duration::from_secs(70);
/// Rows that one task may have been, one after another, within the time that receipts are kept: at most one a minute on average.
const HOPS_MAX: usize = 10_000;

/// Looks tasks up, over a few connections of its own.
#[derive(Debug)]
pub struct LookUp {
    pool: Pool,
    rules: Rules,
}

/// Where the first statement found a row.
enum Place {
    Final(Box<TaskView>),
    /// Nowhere, but this is the row that the task is now.
    Follow(TaskId),
    Nowhere,
}

/// What a batch says of one of its rows.
struct Line {
    batch: Uuid,
    /// 1-based.
    position: i32,
    is_settled: bool,
    outcome: Option<i16>,
    receipt: Option<Receipt>,
    next: Option<TaskId>,
    topic: Option<String>,
    name: Option<String>,
    attempt: i16,
}

impl LookUp {
    pub fn new(settings: &Settings, cluster: &ClusterSettings, connections_max: usize) -> Self {
        Self { pool: Pool::new(settings, PURPOSE, connections_max), rules: Rules::new(cluster) }
    }

    /// All that is known of the task that was submitted as `first`; `None` when there never was one, or its receipt is no longer kept.
    pub async fn task(&self, first: TaskId) -> Result<Option<TaskView>, Error> {
        self.pool.run("look up a task", async |open| walk(open, &self.rules, first).await).await
    }
}

async fn walk(open: &mut PgConnection, rules: &Rules, first: TaskId) -> Result<Option<TaskView>, sqlx::Error> {
    let mut row = first;
    // What the last batch said, should the walk lose the trace behind it.
    let mut behind: Option<Line> = None;
    for _hop in 0..HOPS_MAX {
        match outside_batches(open, row, first).await? {
            Place::Final(view) => return Ok(Some(*view)),
            Place::Follow(latest) if latest != row => {
                row = latest;
                continue;
            }
            Place::Follow(_) | Place::Nowhere => {}
        }
        let Some(line) = in_batches(open, row).await? else {
            let hidden = in_hidden_leaf(open, rules, row, first).await?;
            return Ok(hidden.or_else(|| behind.map(|line| deferred(first, line))));
        };
        match line.next {
            Some(next) => {
                row = next;
                behind = Some(line);
            }
            None => return view_of_line(open, first, line).await.map(Some),
        }
    }
    Ok(None)
}

/// Looks for `row` wherever it is but in a batch.
async fn outside_batches(open: &mut PgConnection, row: TaskId, first: TaskId) -> Result<Place, sqlx::Error> {
    let found = sqlx::query(
        "-- look up outside of batches
        select 'scheduled' as state, topic, name, attempt, key, payload, headers, null::text as reason, null::uuid as row_id
        from task_far where id = $1 and coalesce(first_id, id) = $3
        union all
        select 'scheduled', topic, name, attempt, key, payload, headers, null, null
        from task where shard = $2 and id = $1 and coalesce(first_id, id) = $3
        union all
        (select 'cancelled', topic, name, attempt, null, null, null, null, null from execlog_cancelled where id = $3 limit 1)
        union all
        select 'dead', topic, name, attempts, key, payload, headers, reason, null from dead_letter where id = $3
        union all
        select 'follow', null, null, null, null, null, null, null, row_id from task_follow where first_id = $3",
    )
    .bind(row.uuid())
    .bind(row.shard().as_smallint())
    .bind(first.uuid())
    .fetch_all(open)
    .await?;
    let mut place = Place::Nowhere;
    for found in found {
        let state = match found.try_get("state")? {
            "follow" => {
                place = Place::Follow(TaskId::from_uuid(found.try_get("row_id")?));
                continue;
            }
            "scheduled" => TaskState::Scheduled,
            "cancelled" => TaskState::Cancelled,
            _ => TaskState::Dead,
        };
        return Ok(Place::Final(Box::new(view_of_row(&found, first, state)?)));
    }
    Ok(place)
}

fn view_of_row(row: &PgRow, first: TaskId, state: TaskState) -> Result<TaskView, sqlx::Error> {
    let is_kept = state != TaskState::Cancelled;
    Ok(TaskView {
        id: first,
        topic: TopicName::stored(row.try_get("topic")?),
        name: row.try_get("name")?,
        state,
        attempt: row.try_get::<Option<i16>, _>("attempt")?.unwrap_or(1),
        receipt: None,
        kept: if is_kept { Some(kept_of(row)?) } else { None },
        reason: row.try_get("reason")?,
    })
}

fn kept_of(row: &PgRow) -> Result<Kept, sqlx::Error> {
    Ok(Kept {
        key: row.try_get("key")?,
        payload: row.try_get("payload")?,
        headers: row.try_get::<Option<Vec<u8>>, _>("headers")?.unwrap_or_default(),
    })
}

/// Looks for `row` in the batches: settled ones by class, from the narrowest, then those that are in flight.
async fn in_batches(open: &mut PgConnection, row: TaskId) -> Result<Option<Line>, sqlx::Error> {
    let earliest = ids::floor_of(row.due_at().minus(CLAIMED_BEFORE_DUE_MAX).max(Timestamp::EPOCH));
    let spans: Vec<i16> = Span::all().map(Span::as_smallint).collect();
    let starts: Vec<Uuid> = Span::all().map(|span| span.lowest_start(row)).collect();
    let found = sqlx::query(
        "-- look up in batches
        select f.batch, f.position, f.settled_at is not null as is_settled, f.outcomes[f.position] as outcome,
          f.partitions[f.position] as partition, f.offsets[f.position] as offset, f.published_ats[f.position] as published_at,
          f.next_ids[f.position] as next, f.names[f.position] as name, coalesce(f.attempts[f.position], 1::smallint) as attempt,
          f.topic_names[coalesce(f.topic_indexes[f.position], 1)] as topic
        from (
          (select b.*, array_position(b.ids, $2) as position
           from unnest($3::smallint[], $4::uuid[]) as c (span, lowest)
           cross join lateral (
             select * from execlog_batch
             where batch >= $1 and span = c.span and id_from >= c.lowest and id_from <= $2 and id_to >= $2 and $2 = any(ids)
             limit 1
           ) b
           limit 1)
          union all
          (select u.*, array_position(u.ids, $2)
           from execlog_batch u
           where u.settled_at is null and u.batch >= $1 and $2 = any(u.ids)
           limit 1)
        ) f
        limit 1",
    )
    .bind(earliest)
    .bind(row.uuid())
    .bind(spans)
    .bind(starts)
    .fetch_optional(open)
    .await?;
    found.as_ref().map(line_of).transpose()
}

fn line_of(row: &PgRow) -> Result<Line, sqlx::Error> {
    let outcome: Option<i16> = row.try_get("outcome")?;
    let (partition, offset): (Option<i32>, Option<i64>) = (row.try_get("partition")?, row.try_get("offset")?);
    let published_at: Option<i64> = row.try_get("published_at")?;
    let receipt = match (outcome, partition, offset, published_at) {
        (Some(Outcome::PUBLISHED), Some(partition), Some(offset), Some(at)) => {
            Some(Receipt { partition, offset, published_at: Timestamp::from_millis(at) })
        }
        _ => None,
    };
    Ok(Line {
        batch: row.try_get("batch")?,
        position: row.try_get("position")?,
        is_settled: row.try_get("is_settled")?,
        outcome,
        receipt,
        next: row.try_get::<Option<Uuid>, _>("next")?.map(TaskId::from_uuid),
        topic: row.try_get("topic")?,
        name: row.try_get("name")?,
        attempt: row.try_get("attempt")?,
    })
}

async fn view_of_line(open: &mut PgConnection, first: TaskId, line: Line) -> Result<TaskView, sqlx::Error> {
    let carried = sqlx::query(
        "-- look up what a batch carries
        select topics[$2] as topic, keys[$2] as key, payloads[$2] as payload, headers[$2] as headers from execlog_payload where batch = $1",
    )
    .bind(line.batch)
    .bind(line.position)
    .fetch_optional(open)
    .await?;
    let topic = match (line.topic, &carried) {
        (Some(topic), _) => topic,
        (None, Some(carried)) => carried.try_get("topic")?,
        // An unsettled batch has its payload, unless it is just being looked at by a retirement.
        (None, None) => {
            return Err(sqlx::Error::Protocol("the payload of an unsettled batch is out of sight for a moment".to_owned()));
        }
    };
    let state = match (line.is_settled, line.outcome) {
        (false, _) => TaskState::Claimed,
        (true, Some(Outcome::PUBLISHED)) => TaskState::Published,
        (true, _) => TaskState::Dead,
    };
    Ok(TaskView {
        id: first,
        topic: TopicName::stored(&topic),
        name: line.name,
        state,
        attempt: line.attempt,
        receipt: line.receipt,
        kept: carried.as_ref().map(kept_of).transpose()?,
        reason: None,
    })
}

/// A task that was deferred and whose next row is out of sight.
fn deferred(first: TaskId, line: Line) -> TaskView {
    TaskView {
        id: first,
        topic: TopicName::stored(&line.topic.unwrap_or_default()),
        name: line.name,
        state: TaskState::Scheduled,
        attempt: line.attempt.saturating_add(1),
        receipt: None,
        kept: None,
        reason: None,
    }
}

/// While a leaf is being detached, no query of `task` sees it: a row that slipped into it is asked for by the leaf's own name. It is overdue, so no longer
/// to be cancelled: on its way.
async fn in_hidden_leaf(
    open: &mut PgConnection,
    rules: &Rules,
    row: TaskId,
    first: TaskId,
) -> Result<Option<TaskView>, sqlx::Error> {
    let leaf: Partition = rules.partition_of(Parent::Task, row.due_at());
    let name = leaf.name();
    let is_hidden: Option<bool> = sqlx::query_scalar(
        "-- is a leaf hidden
        select not exists (select from pg_inherits where inhrelid = c.oid and not inhdetachpending) from pg_class c where c.oid = to_regclass($1)",
    )
    .bind(&name)
    .fetch_optional(&mut *open)
    .await?;
    if is_hidden != Some(true) {
        return Ok(None);
    }
    let statement = format!(
        "select topic, name, attempt, key, payload, headers, null::text as reason from {name} where shard = $1 and id = $2 and coalesce(first_id, id) = $3"
    );
    let found = sqlx::query(AssertSqlSafe(statement))
        .bind(row.shard().as_smallint())
        .bind(row.uuid())
        .bind(first.uuid())
        .persistent(false)
        .fetch_optional(open)
        .await?;
    found.map(|found| view_of_row(&found, first, TaskState::Claimed)).transpose()
}
