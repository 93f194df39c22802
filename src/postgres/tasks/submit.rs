//! Submit: stores tasks. Tasks that are due within the window are claimed by their insert.

use std::time::Duration;

use sqlx::postgres::{PgArguments, PgConnection};
use sqlx::query::QueryScalar;
use sqlx::{AssertSqlSafe, Postgres};
use uuid::Uuid;

use super::principals::{STAMP, have_submitters, submitters_of, submitters_of_batch};
use crate::domain::{BatchId, NewTask, NodeId, Timestamp};
use crate::postgres::connection::error::PostgresError;
use crate::postgres::connection::{Connection, ConnectionPurpose, PostgresSettings};

/// A lock must not delay tasks that it does not concern. A group that meets a lock is split in
/// halves, which are stored one by one.
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
}

impl Submits {
    pub fn new(settings: &PostgresSettings, node: NodeId) -> Self {
        Self { connection: Connection::new(settings, PURPOSE), node }
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
        let node = self.node.uuid();
        let now = self
            .connection
            .run(&what, async |connection| statement(connection, node, group).await)
            .await?;
        Ok(Timestamp::from_micros(now))
    }
}

async fn statement(
    connection: &mut PgConnection,
    node: Uuid,
    group: &Group<'_>,
) -> Result<i64, sqlx::Error> {
    let has_submitters = group.has_submitters();
    let text = text_of(group, has_submitters);
    let mut query = sqlx::query_scalar::<_, i64>(AssertSqlSafe(text));
    for tasks in [&group.near, &group.far].into_iter().filter(|tasks| !tasks.is_empty()) {
        query = bind_tasks(query, tasks);
        if has_submitters {
            query = query.bind(submitters_of(tasks));
        }
    }
    if let Some((batch, tasks)) = &group.claimed {
        query = bind_batch(query, node, *batch, tasks);
        if has_submitters {
            query = query.bind(submitters_of_batch(tasks));
        }
    }
    query.fetch_one(connection).await
}

impl Group<'_> {
    fn has_submitters(&self) -> bool {
        let claimed = self.claimed.as_ref().map_or(&[][..], |(_, tasks)| tasks);
        [&self.near, &self.far, claimed].into_iter().any(have_submitters)
    }
}

/// Builds the statement. It has one part for each kind of task in the group, with submitters or
/// without, so there are at most fourteen texts, and each is prepared once for a connection.
fn text_of(group: &Group<'_>, has_submitters: bool) -> String {
    let mut parts = Vec::new();
    let mut parameters = 0;
    if has_submitters {
        parts.push(STAMP.to_owned());
    }
    for (name, table, tasks) in [("near", "task", &group.near), ("far", "task_far", &group.far)] {
        if !tasks.is_empty() {
            parts.push(insert_part(name, table, parameters, has_submitters));
            parameters += if has_submitters { 7 } else { 6 };
        }
    }
    if group.claimed.is_some() {
        parts.push(batch_part(parameters, has_submitters));
    }
    let with =
        if parts.is_empty() { String::new() } else { format!("with {}\n", parts.join(", ")) };
    format!("-- submit\n{with}select (extract(epoch from clock_timestamp()) * 1000000)::bigint")
}

fn insert_part(name: &str, table: &str, parameters: usize, has_submitters: bool) -> String {
    let [shards, ids, topics, keys, payloads, headers, submitters] = numbered(parameters);
    let records = format!(
        "{shards}::smallint[], {ids}::uuid[], {topics}::text[], {keys}::bytea[],
    {payloads}::bytea[], {headers}::bytea[]"
    );
    if has_submitters {
        format!(
            "{name} as (
  insert into {table} (shard, id, topic, key, payload, headers, submitted_by, submitted_at)
  select t.*, case when t.submitted_by is not null then (select at from stamp) end
  from unnest({records}, {submitters}::smallint[]) as t (shard, id, topic, key, payload, headers,
    submitted_by)
)"
        )
    } else {
        format!(
            "{name} as (
  insert into {table} (shard, id, topic, key, payload, headers)
  select * from unnest({records})
)"
        )
    }
}

fn batch_part(parameters: usize, has_submitters: bool) -> String {
    let [batch, owner, ids, topics, keys, payloads, headers, submitters] = numbered(parameters);
    let (columns, values) = if has_submitters {
        let at = format!(
            "(select array_agg(case when s is not null then (select at from stamp) end)
              from unnest({submitters}) s)"
        );
        (", submitted_by, submitted_ats", format!(", {submitters}::smallint[], {at}"))
    } else {
        ("", String::new())
    };
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

fn bind_tasks<'q>(query: Query<'q>, tasks: &[&'q NewTask]) -> Query<'q> {
    let query = query
        .bind(tasks.iter().map(|task| task.id.shard().as_smallint()).collect::<Vec<_>>())
        .bind(tasks.iter().map(|task| task.id.uuid()).collect::<Vec<_>>());
    bind_records(query, tasks)
}

fn bind_batch<'q>(
    query: Query<'q>,
    node: Uuid,
    batch: BatchId,
    tasks: &[&'q NewTask],
) -> Query<'q> {
    let query = query
        .bind(batch.uuid())
        .bind(node)
        .bind(tasks.iter().map(|task| task.id.uuid()).collect::<Vec<_>>());
    bind_records(query, tasks)
}

/// Binds four arrays: topics, keys, payloads, headers.
fn bind_records<'q>(query: Query<'q>, tasks: &[&'q NewTask]) -> Query<'q> {
    assert!(
        tasks.iter().all(|task| task.name.is_none()),
        "a task with a name goes another way, or its entry is missing"
    );
    query
        .bind(tasks.iter().map(|task| task.record.topic.as_str()).collect::<Vec<_>>())
        .bind(tasks.iter().map(|task| task.record.key.as_deref()).collect::<Vec<_>>())
        .bind(tasks.iter().map(|task| task.record.payload.as_deref()).collect::<Vec<_>>())
        .bind(tasks.iter().map(|task| task.record.headers.as_column()).collect::<Vec<_>>())
}
