//! The entries of names (idempotency keys): the task of each name, and the names that are free
//! again.
//!
//! An entry is free when the entry has expired *and* the task is final. A task still pending at
//! that time (after a day without the topic) keeps the name: the next reader of the entry prolongs
//! the entry.

use std::collections::{HashMap, HashSet};
use std::time::Duration;

use sqlx::postgres::{PgConnection, PgRow};
use sqlx::{Connection as _, Row};
use uuid::Uuid;

use crate::domain::{Outcome, TaskId, TaskName, TaskState, TopicName};
use crate::postgres::connection::error::PostgresError;
use crate::postgres::connection::pool::Pool;
use crate::postgres::connection::{ConnectionPurpose, PostgresSettings, ROWS_BY_KEY};
use crate::postgres::unsettled::{SharedUnsettledFloor, UnsettledFloor};

/// A group is small, and only leaves that its ids name are read and locked.
const PURPOSE: ConnectionPurpose =
    ConnectionPurpose { name: "names", deadline: Duration::from_secs(5), settings: ROWS_BY_KEY };

/// The entry of a name.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct NameEntry {
    /// The id of the task as its submitter knows it.
    pub id: TaskId,
    /// The row that the task is now.
    pub row: TaskId,
    /// True when the entry has expired. The name is free if the task is final, too.
    pub is_expired: bool,
    /// The state in which the task has ended, unless it is published.
    pub outcome: Option<TaskState>,
}

/// The column `outcome` holds these numbers: the outcomes of the execlog, and further ones. They
/// are stored, so never change one.
const DEAD: i16 = Outcome::DEAD;
/// The number that a cancel writes.
const CANCELLED: i16 = 4;
/// The number that a finish writes.
pub(super) const FINISHED: i16 = 5;
/// The number that a settle writes for an expired task.
const EXPIRED: i16 = Outcome::EXPIRED_OF_NAME;

/// The rules by which an entry stands for its task.
#[derive(Clone, Copy, Debug)]
pub(in crate::postgres) struct NameTerms {
    /// How long a name is kept after its task.
    pub(in crate::postgres) retention: Duration,
    pub(in crate::postgres) unsettled: UnsettledFloor,
}

/// The task of a name that is taken.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct NameHolder {
    pub id: TaskId,
    pub state: TaskState,
}

/// Reads entries and frees the expired ones, over a few connections of its own.
#[derive(Debug)]
pub struct Names {
    pool: Pool,
    retention: Duration,
    unsettled: SharedUnsettledFloor,
}

/// A locked entry, to be freed or prolonged.
struct Expired {
    topic: String,
    name: String,
    first: TaskId,
    row: TaskId,
}

const ENTRY: &str = "-- entry of a name
select id, row_id, expires_at <= clock_timestamp() as is_expired, outcome from task_name
  where topic = $1 and name = $2";

const ENTRIES: &str = "-- entries of names
select w.position - 1 as position, n.id, n.row_id, n.expires_at <= clock_timestamp() as is_expired,
  n.outcome
from unnest($1::text[], $2::text[]) with ordinality as w (topic, name, position)
join task_name n on n.topic = w.topic and n.name = w.name";

/// Finds the states of named tasks. `$1` are rows, `$2` their shards, `$3` first ids. A task in
/// none of these places is final: a follow-up moves the entry of its name, or is visible in
/// `task_follow` after a move just now. The entry itself then says whether the task was dead or
/// cancelled (its dead letter was dropped, or its line is older than the retention of receipts),
/// finished or expired. An entry without a state belongs to a published task.
const STATES: &str = "-- states of named tasks
select 'scheduled' as state, t.id from unnest($1::uuid[]) as w (id) join task_far t on t.id = w.id
union all
select 'scheduled', t.id
from unnest($2::smallint[], $1::uuid[]) as w (shard, id)
join task t on t.shard = w.shard and t.id = w.id and t.id = any($1)
union all
select 'claimed', u.id from execlog_batch b cross join unnest(b.ids) as u (id)
  where b.settled_at is null and b.batch >= $4 and b.ids && $1 and u.id = any($1)
union all
select 'cancelled', id from execlog_cancelled where id = any($3)
union all
select 'dead', id from dead_letter where id = any($3)
union all
select 'follow', first_id from task_follow where first_id = any($3)";

/// An entry that is locked by another transaction (a PUT, another sweep) is skipped: that
/// transaction decides about it. The time is read once: Postgres compares a column with a volatile
/// function row by row, and would read the whole index.
const LOCK_EXPIRED: &str = "-- lock expired names
select topic, name, id, row_id
from task_name
where expires_at <= (select clock_timestamp())
order by expires_at
limit $1
for update skip locked";

const LOCK_EXPIRED_OF: &str = "-- lock expired names of a group
select n.topic, n.name, n.id, n.row_id
from unnest($1::text[], $2::text[]) as w (topic, name)
join task_name n on n.topic = w.topic and n.name = w.name
where n.expires_at <= clock_timestamp()
for update of n skip locked";

/// A task cannot be deferred while its entry is locked, so `row_id` is its current row. The four
/// places are read in one snapshot.
const PENDING: &str = "-- pending tasks of expired names
select t.id from unnest($1::uuid[]) as w (id) join task_far t on t.id = w.id
union all
select t.id
from unnest($2::smallint[], $1::uuid[]) as w (shard, id)
join task t on t.shard = w.shard and t.id = w.id and t.id = any($1)
union all
select u.id from execlog_batch b cross join unnest(b.ids) as u (id) where b.settled_at is null
  and b.batch >= $3 and b.ids && $1 and u.id = any($1)
union all
select w.id from unnest($1::uuid[], $4::uuid[]) as w (id, first)
join task_follow f on f.first_id = w.first where f.attempt is not null";

const PROLONG: &str = "-- prolong names
update task_name n
set expires_at = clock_timestamp() + make_interval(secs => $3)
from unnest($1::text[], $2::text[]) as w (topic, name)
where n.topic = w.topic and n.name = w.name";

const FREE: &str = "-- free names
delete from task_name n
using unnest($1::text[], $2::text[]) as w (topic, name)
where n.topic = w.topic and n.name = w.name";

impl Names {
    /// Creates the reader. An entry whose task is still pending when it expires is kept for another
    /// `retention`.
    pub fn new(settings: &PostgresSettings, retention: Duration, connections_max: usize) -> Self {
        let unsettled = settings.unsettled_floor().clone();
        Self { pool: Pool::new(settings, PURPOSE, connections_max), retention, unsettled }
    }

    pub async fn keep_open(&self) -> Result<(), PostgresError> {
        self.pool.keep_open().await
    }

    /// Returns the entry of a name, expired or not.
    pub async fn entry(
        &self,
        topic: &TopicName,
        name: &TaskName,
    ) -> Result<Option<NameEntry>, PostgresError> {
        let statement = || {
            async |open: &mut PgConnection| {
                let row = sqlx::query(ENTRY)
                    .bind(topic.as_str())
                    .bind(name.as_str())
                    .fetch_optional(open)
                    .await?;
                row.as_ref().map(entry_of).transpose()
            }
        };
        self.pool.read("look up a name", statement).await
    }

    /// Returns the entries of names, `(topic, name)`, in the same order, expired or not.
    pub async fn entries(
        &self,
        wanted: &[(&str, &str)],
    ) -> Result<Vec<Option<NameEntry>>, PostgresError> {
        let (topics, names): (Vec<&str>, Vec<&str>) = wanted.iter().copied().unzip();
        self.pool
            .read("look up the entries of names", || {
                async |open| entries_of(open, &topics, &names).await
            })
            .await
    }

    /// Returns the tasks of names, `(topic, name)`, in the same order. `None` stands for a free
    /// name.
    pub async fn known(
        &self,
        wanted: &[(&str, &str)],
    ) -> Result<Vec<Option<NameHolder>>, PostgresError> {
        let (topics, names): (Vec<&str>, Vec<&str>) = wanted.iter().copied().unzip();
        self.pool
            .read("look up names", || {
                async |open| {
                    let mut entries = entries_of(open, &topics, &names).await?;
                    if entries.iter().flatten().any(|entry| entry.is_expired) {
                        self.free_of(open, &topics, &names).await?;
                        // The entries were freed, or prolonged because their tasks are pending.
                        entries = entries_of(open, &topics, &names).await?;
                        entries
                            .iter_mut()
                            .for_each(|entry| *entry = entry.filter(|entry| !entry.is_expired));
                    }
                    let found: Vec<NameEntry> = entries.iter().flatten().copied().collect();
                    let traces = traces_of(open, &found, self.unsettled.get()).await?;
                    if found.iter().any(|entry| outcome_of(&traces, *entry).is_none()) {
                        // A task may have ended after the entries were read. Its entry tells how.
                        note_outcomes(&mut entries, &entries_of(open, &topics, &names).await?);
                    }
                    let known = |entry: NameEntry| NameHolder {
                        id: entry.id,
                        state: state_of(&traces, entry),
                    };
                    Ok(entries.into_iter().map(|entry| entry.map(known)).collect())
                }
            })
            .await
    }

    /// Frees at most `count_max` expired names whose tasks are final. Returns the counts of freed
    /// and prolonged entries.
    pub async fn sweep(&self, count_max: i64) -> Result<Swept, PostgresError> {
        self.pool
            .run("free expired names", async |open| {
                let mut transaction = open.begin().await?;
                let rows =
                    sqlx::query(LOCK_EXPIRED).bind(count_max).fetch_all(&mut *transaction).await?;
                let swept = self.free(&mut transaction, &rows).await?;
                transaction.commit().await?;
                Ok(swept)
            })
            .await
    }

    async fn free_of(
        &self,
        open: &mut PgConnection,
        topics: &[&str],
        names: &[&str],
    ) -> Result<Swept, sqlx::Error> {
        let mut transaction = open.begin().await?;
        let rows = sqlx::query(LOCK_EXPIRED_OF)
            .bind(topics)
            .bind(names)
            .fetch_all(&mut *transaction)
            .await?;
        let swept = self.free(&mut transaction, &rows).await?;
        transaction.commit().await?;
        Ok(swept)
    }

    /// Frees those of the locked entries `rows` whose task is final, and prolongs the others.
    async fn free(&self, open: &mut PgConnection, rows: &[PgRow]) -> Result<Swept, sqlx::Error> {
        let mut expired = Vec::with_capacity(rows.len());
        for row in rows {
            let (topic, name) = (row.try_get("topic")?, row.try_get("name")?);
            let first = TaskId::from_uuid(row.try_get("id")?);
            expired.push(Expired {
                topic,
                name,
                first,
                row: TaskId::from_uuid(row.try_get("row_id")?),
            });
        }
        if expired.is_empty() {
            return Ok(Swept::default());
        }
        let ids: Vec<Uuid> = expired.iter().map(|entry| entry.row.uuid()).collect();
        let firsts: Vec<Uuid> = expired.iter().map(|entry| entry.first.uuid()).collect();
        let shards = shards_of(expired.iter().map(|entry| entry.row));
        let from = self.unsettled.get().of(expired.iter().map(|entry| entry.row));
        let pending: Vec<Uuid> = sqlx::query_scalar(PENDING)
            .bind(ids)
            .bind(shards)
            .bind(from)
            .bind(firsts)
            .fetch_all(&mut *open)
            .await?;
        let pending: HashSet<Uuid> = pending.into_iter().collect();
        let (kept, free): (Vec<&Expired>, Vec<&Expired>) =
            expired.iter().partition(|entry| pending.contains(&entry.row.uuid()));
        let keys = |entries: &[&Expired]| -> (Vec<String>, Vec<String>) {
            entries.iter().map(|entry| (entry.topic.clone(), entry.name.clone())).unzip()
        };
        if !kept.is_empty() {
            let (topics, names) = keys(&kept);
            sqlx::query(PROLONG)
                .bind(topics)
                .bind(names)
                .bind(self.retention.as_secs_f64())
                .execute(&mut *open)
                .await?;
        }
        if !free.is_empty() {
            let (topics, names) = keys(&free);
            sqlx::query(FREE).bind(topics).bind(names).execute(&mut *open).await?;
        }
        Ok(Swept { freed_count: free.len(), prolonged_count: kept.len() })
    }
}

/// The result of a sweep.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Swept {
    pub freed_count: usize,
    /// Entries whose tasks are still pending.
    pub prolonged_count: usize,
}

pub(super) fn entry_of(row: &PgRow) -> Result<NameEntry, sqlx::Error> {
    Ok(NameEntry {
        id: TaskId::from_uuid(row.try_get("id")?),
        row: TaskId::from_uuid(row.try_get("row_id")?),
        is_expired: row.try_get("is_expired")?,
        outcome: match row.try_get::<Option<i16>, _>("outcome")? {
            Some(DEAD) => Some(TaskState::Dead),
            Some(CANCELLED) => Some(TaskState::Cancelled),
            Some(FINISHED) => Some(TaskState::Finished),
            Some(EXPIRED) => Some(TaskState::Expired),
            _ => None,
        },
    })
}

/// Reads the entries of names, in the order of the names. `None` stands for a name without an
/// entry.
async fn entries_of(
    open: &mut PgConnection,
    topics: &[&str],
    names: &[&str],
) -> Result<Vec<Option<NameEntry>>, sqlx::Error> {
    let mut entries: Vec<Option<NameEntry>> = vec![None; names.len()];
    for row in &sqlx::query(ENTRIES).bind(topics).bind(names).fetch_all(open).await? {
        let position: i64 = row.try_get("position")?;
        let entry = usize::try_from(position).ok().and_then(|position| entries.get_mut(position));
        *entry.ok_or_else(|| sqlx::Error::Decode("an entry that was not requested".into()))? =
            Some(entry_of(row)?);
    }
    Ok(entries)
}

/// The place where a trace of a task was found. The most informative place comes first.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
enum Trace {
    Scheduled,
    Claimed,
    Cancelled,
    Dead,
    /// The task was deferred and is not final.
    Follow,
}

impl Trace {
    fn state(self) -> TaskState {
        match self {
            Self::Scheduled | Self::Follow => TaskState::Scheduled,
            Self::Claimed => TaskState::Claimed,
            Self::Cancelled => TaskState::Cancelled,
            Self::Dead => TaskState::Dead,
        }
    }
}

/// Finds the traces of the tasks of `entries`, by the ids of their rows (scheduled, claimed) and by
/// their first ids.
async fn traces_of(
    open: &mut PgConnection,
    entries: &[NameEntry],
    unsettled: UnsettledFloor,
) -> Result<HashMap<Uuid, Trace>, sqlx::Error> {
    let mut traces = HashMap::new();
    if entries.is_empty() {
        return Ok(traces);
    }
    let rows: Vec<Uuid> = entries.iter().map(|entry| entry.row.uuid()).collect();
    let firsts: Vec<Uuid> = entries.iter().map(|entry| entry.id.uuid()).collect();
    let from = unsettled.of(entries.iter().map(|entry| entry.row));
    let found = sqlx::query(STATES)
        .bind(rows)
        .bind(shards_of(entries.iter().map(|entry| entry.row)))
        .bind(firsts)
        .bind(from);
    for row in found.fetch_all(open).await? {
        let trace = match row.try_get("state")? {
            "scheduled" => Trace::Scheduled,
            "claimed" => Trace::Claimed,
            "cancelled" => Trace::Cancelled,
            "dead" => Trace::Dead,
            _ => Trace::Follow,
        };
        traces
            .entry(row.try_get("id")?)
            .and_modify(|known: &mut Trace| *known = trace.min(*known))
            .or_insert(trace);
    }
    Ok(traces)
}

fn state_of(traces: &HashMap<Uuid, Trace>, entry: NameEntry) -> TaskState {
    outcome_of(traces, entry).unwrap_or(TaskState::Published)
}

/// Returns the state that a trace or the entry tells.
fn outcome_of(traces: &HashMap<Uuid, Trace>, entry: NameEntry) -> Option<TaskState> {
    let found = [entry.row, entry.id].iter().filter_map(|id| traces.get(&id.uuid())).min();
    found.map(|trace| trace.state()).or(entry.outcome)
}

/// Takes over the outcomes of entries that were read again, for the same tasks.
fn note_outcomes(entries: &mut [Option<NameEntry>], again: &[Option<NameEntry>]) {
    for (entry, again) in entries.iter_mut().zip(again) {
        if let (Some(entry), Some(again)) = (entry, again)
            && entry.id == again.id
        {
            entry.outcome = again.outcome;
        }
    }
}

fn shards_of(rows: impl Iterator<Item = TaskId>) -> Vec<i16> {
    rows.map(|row| row.shard().as_smallint()).collect()
}
