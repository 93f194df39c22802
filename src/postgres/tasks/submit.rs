//! Submit: stores tasks. Tasks that are due within the window are claimed by their insert.

use std::time::Duration;

use sqlx::postgres::{PgArguments, PgConnection};
use sqlx::query::QueryScalar;
use sqlx::{AssertSqlSafe, Postgres};
use uuid::Uuid;

use super::principals::{STAMP, have_submitters, submitters_of, submitters_of_batch};
use super::sealed::StoredRecords;
use crate::domain::{BatchId, NewTask, NodeId, Timestamp};
use crate::postgres::connection::error::PostgresError;
use crate::postgres::connection::{Connection, ConnectionPurpose, PostgresSettings};
use crate::sealing::{KeySet, PayloadKeys};

/// A lock must not delay unrelated tasks. A group that meets a lock is split in halves, which are
/// stored one by one.
const PURPOSE: ConnectionPurpose = ConnectionPurpose {
    name: "submit",
    deadline: Duration::from_secs(5),
    settings: &[("lock_timeout", "200ms")],
};

/// Maximum number of tasks and of bytes in a group. A group is one statement and one commit.
pub const TASKS_MAX: usize = 1_000;
pub const BYTES_MAX: usize = 8 << 20;

/// Tasks without a name that one statement stores, by destination. Named tasks are stored by
/// [`super::submit_named`].
#[derive(Debug, Default)]
pub struct Group<'a> {
    /// Tasks that are due within the leaves.
    pub near: Vec<&'a NewTask>,
    /// Tasks that are due beyond the last leaf.
    pub far: Vec<&'a NewTask>,
    /// Tasks that are due within the window. They go directly into this batch of this node.
    pub claimed: Option<(BatchId, Vec<&'a NewTask>)>,
}

/// The connection for submits.
#[derive(Debug)]
pub struct Submits {
    connection: Connection,
    node: NodeId,
    keys: PayloadKeys,
}

impl Submits {
    pub fn new(settings: &PostgresSettings, node: NodeId) -> Self {
        let keys = settings.payload_keys().clone();
        Self { connection: Connection::new(settings, PURPOSE), node, keys }
    }

    pub async fn keep_open(&mut self) -> Result<(), PostgresError> {
        self.connection.keep_open().await
    }

    /// Stores all tasks of the group, or none. Returns the time of Postgres's clock.
    ///
    /// # Errors
    /// After [`PostgresError::Unanswered`] the group may or may not have been stored. After any
    /// other error no task of it was.
    pub async fn store(&mut self, group: &Group<'_>) -> Result<Timestamp, PostgresError> {
        let claimed_count = group.claimed.as_ref().map_or(0, |(_, tasks)| tasks.len());
        let what = format!("store {} tasks", group.near.len() + group.far.len() + claimed_count);
        let (node, keys) = (self.node.uuid(), self.keys.current());
        let now = self
            .connection
            .run(&what, async |connection| statement(connection, node, group, &keys).await)
            .await?;
        Ok(Timestamp::from_micros(now))
    }
}

/// The optional columns that a statement writes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Extras {
    pub(super) submitters: bool,
    pub(super) tracking: bool,
}

impl Extras {
    pub(super) fn of(tasks: &[&NewTask]) -> Self {
        Self { submitters: have_submitters(tasks), tracking: are_tracked(tasks) }
    }

    fn count(self) -> usize {
        usize::from(self.submitters) + usize::from(self.tracking)
    }
}

pub(in crate::postgres) async fn statement(
    connection: &mut PgConnection,
    node: Uuid,
    group: &Group<'_>,
    keys: &KeySet,
) -> Result<i64, sqlx::Error> {
    let extras = group.extras();
    let (near, far) = (StoredRecords::of(keys, &group.near)?, StoredRecords::of(keys, &group.far)?);
    let claimed = StoredRecords::of(keys, group.claimed_tasks())?;
    let text = text_of(group, extras);
    let mut query = sqlx::query_scalar::<_, i64>(AssertSqlSafe(text));
    for (tasks, records) in [(&group.near, &near), (&group.far, &far)] {
        if tasks.is_empty() {
            continue;
        }
        query = bind_tasks(query, tasks, records);
        if extras.submitters {
            query = query.bind(submitters_of(tasks));
        }
        if extras.tracking {
            query = query.bind(trackings_of(tasks));
        }
    }
    if let Some((batch, tasks)) = &group.claimed {
        query = bind_batch(query, (node, *batch), tasks, &claimed);
        if extras.submitters {
            query = query.bind(submitters_of_batch(tasks));
        }
        if extras.tracking {
            query = query.bind(are_tracked(tasks).then(|| trackings_of(tasks)));
        }
    }
    query.fetch_one(connection).await
}

/// Returns true when one of the tasks is tracked.
fn are_tracked(tasks: &[&NewTask]) -> bool {
    tasks.iter().any(|task| task.tracking.is_some())
}

/// Returns the column `tracking` of each task.
pub(super) fn trackings_of(tasks: &[&NewTask]) -> Vec<Option<Vec<u8>>> {
    let tracking = |task: &&NewTask| Some(task.tracking.as_ref()?.first_row().encode());
    tasks.iter().map(tracking).collect()
}

impl<'a> Group<'a> {
    fn claimed_tasks(&self) -> &[&'a NewTask] {
        self.claimed.as_ref().map_or(&[][..], |(_, tasks)| tasks)
    }

    fn extras(&self) -> Extras {
        let all = [self.near.as_slice(), self.far.as_slice(), self.claimed_tasks()].map(Extras::of);
        Extras {
            submitters: all.iter().any(|extras| extras.submitters),
            tracking: all.iter().any(|extras| extras.tracking),
        }
    }
}

/// Builds the statement. It has one part for each kind of task in the group, with submitters or
/// without, tracked or not. So there are at most 28 texts, and each is prepared once for a
/// connection.
fn text_of(group: &Group<'_>, extras: Extras) -> String {
    let mut parts = Vec::new();
    let mut parameters = 0;
    if extras.submitters {
        parts.push(STAMP.to_owned());
    }
    for (name, table, tasks) in [("near", "task", &group.near), ("far", "task_far", &group.far)] {
        if !tasks.is_empty() {
            parts.push(insert_part(name, table, parameters, extras));
            parameters += 6 + extras.count();
        }
    }
    let mut check = String::new();
    if group.claimed.is_some() {
        // The topics of the batch.
        check = format!(", punctual_refuse_paused(${})", parameters + 4);
        parts.push(batch_part(parameters, extras));
    }
    let with =
        if parts.is_empty() { String::new() } else { format!("with {}\n", parts.join(", ")) };
    format!(
        "-- submit\n{with}select (extract(epoch from clock_timestamp()) * 1000000)::bigint{check}"
    )
}

fn insert_part(name: &str, table: &str, parameters: usize, extras: Extras) -> String {
    let [shards, ids, topics, keys, payloads, headers, first, second] = numbered(parameters);
    let (mut arrays, mut read, mut columns, mut values) =
        (String::new(), String::new(), String::new(), String::new());
    if extras.submitters {
        arrays.push_str(&format!(", {first}::smallint[]"));
        read.push_str(", submitted_by");
        columns.push_str(", submitted_by, submitted_at");
        values.push_str(
            ", t.submitted_by, case when t.submitted_by is not null then (select at from stamp) end",
        );
    }
    if extras.tracking {
        let tracking = if extras.submitters { second } else { first };
        arrays.push_str(&format!(", {tracking}::bytea[]"));
        read.push_str(", tracking");
        columns.push_str(", tracking");
        values.push_str(", t.tracking");
    }
    format!(
        "{name} as (
  insert into {table} (shard, id, topic, key, payload, headers{columns})
  select t.shard, t.id, t.topic, t.key, t.payload, t.headers{values}
  from unnest({shards}::smallint[], {ids}::uuid[], {topics}::text[], {keys}::bytea[],
    {payloads}::bytea[], {headers}::bytea[]{arrays})
    as t (shard, id, topic, key, payload, headers{read})
)"
    )
}

fn batch_part(parameters: usize, extras: Extras) -> String {
    let [batch, owner, ids, topics, keys, payloads, headers, first, second] = numbered(parameters);
    let (mut columns, mut values) = (String::new(), String::new());
    if extras.submitters {
        columns.push_str(", submitted_by, submitted_ats");
        values.push_str(&format!(
            ", {first}::smallint[], (select array_agg(case when s is not null
              then (select at from stamp) end) from unnest({first}) s)"
        ));
    }
    if extras.tracking {
        let tracking = if extras.submitters { second } else { first };
        columns.push_str(", trackings");
        values.push_str(&format!(", {tracking}::bytea[]"));
    }
    format!(
        "batch as (
  insert into execlog_batch (batch, owner, claimed_at, task_count, ids{columns})
  values ({batch}, {owner}, clock_timestamp(), cardinality({ids}::uuid[]), {ids}{values})
), payload as (
  insert into execlog_payload (batch, topics, keys, payloads, headers)
  values ({batch}, {topics}, {keys}, {payloads}, {headers})
)"
    )
}

/// Returns the names of the next parameters behind the first `count`.
fn numbered<const N: usize>(count: usize) -> [String; N] {
    std::array::from_fn(|index| format!("${}", count + index + 1))
}

type Query<'q> = QueryScalar<'q, Postgres, i64, PgArguments>;

fn bind_tasks<'q>(
    query: Query<'q>,
    tasks: &[&'q NewTask],
    records: &'q StoredRecords,
) -> Query<'q> {
    let query = query
        .bind(tasks.iter().map(|task| task.id.shard().as_smallint()).collect::<Vec<_>>())
        .bind(tasks.iter().map(|task| task.id.uuid()).collect::<Vec<_>>());
    bind_records(query, tasks, records)
}

fn bind_batch<'q>(
    query: Query<'q>,
    (node, batch): (Uuid, BatchId),
    tasks: &[&'q NewTask],
    records: &'q StoredRecords,
) -> Query<'q> {
    let query = query
        .bind(batch.uuid())
        .bind(node)
        .bind(tasks.iter().map(|task| task.id.uuid()).collect::<Vec<_>>());
    bind_records(query, tasks, records)
}

/// Binds four arrays: topics, keys, payloads, headers.
fn bind_records<'q>(
    query: Query<'q>,
    tasks: &[&'q NewTask],
    records: &'q StoredRecords,
) -> Query<'q> {
    assert!(
        tasks.iter().all(|task| task.name.is_none()),
        "a task with a name goes another way, or its entry is missing"
    );
    query
        .bind(tasks.iter().map(|task| task.record.topic.as_str()).collect::<Vec<_>>())
        .bind(records.each(tasks).map(|record| record.key).collect::<Vec<_>>())
        .bind(records.each(tasks).map(|record| record.payload).collect::<Vec<_>>())
        .bind(records.each(tasks).map(|record| record.headers).collect::<Vec<_>>())
}
