//! Submit: stores tasks. Tasks that are due within the window are claimed by their insert.

use std::time::Duration;

use sqlx::postgres::{PgArguments, PgConnection};
use sqlx::query::QueryScalar;
use sqlx::{AssertSqlSafe, Postgres};
use uuid::Uuid;

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
    let text = text_of(group);
    let mut query = sqlx::query_scalar::<_, i64>(AssertSqlSafe(text));
    if !group.near.is_empty() {
        query = bind_tasks(query, &group.near);
    }
    if !group.far.is_empty() {
        query = bind_tasks(query, &group.far);
    }
    if let Some((batch, tasks)) = &group.claimed {
        query = bind_batch(query, node, *batch, tasks);
    }
    query.fetch_one(connection).await
}

/// Builds the statement. It has one part for each kind of task in the group, so there are at most
/// seven texts, and each is prepared once for a connection.
fn text_of(group: &Group<'_>) -> String {
    let mut parts = Vec::new();
    let mut parameters = 0;
    for (name, table, tasks) in [("near", "task", &group.near), ("far", "task_far", &group.far)] {
        if !tasks.is_empty() {
            parts.push(insert_part(name, table, parameters));
            parameters += 6;
        }
    }
    if group.claimed.is_some() {
        let p = |n: usize| format!("${}", parameters + n);
        parts.push(format!(
            "batch as (
  insert into execlog_batch (batch, owner, claimed_at, task_count, ids)
  values ({}, {}, clock_timestamp(), cardinality({}::uuid[]), {})
), payload as (
  insert into execlog_payload (batch, topics, keys, payloads, headers)
  values ({}, {}, {}, {}, {})
)",
            p(1),
            p(2),
            p(3),
            p(3),
            p(1),
            p(4),
            p(5),
            p(6),
            p(7)
        ));
    }
    let with =
        if parts.is_empty() { String::new() } else { format!("with {}\n", parts.join(", ")) };
    format!("-- submit\n{with}select (extract(epoch from clock_timestamp()) * 1000000)::bigint")
}

fn insert_part(name: &str, table: &str, parameters: usize) -> String {
    let p = |n: usize| format!("${}", parameters + n);
    format!(
        "{name} as (
  insert into {table} (shard, id, topic, key, payload, headers)
  select * from unnest({}::smallint[], {}::uuid[], {}::text[], {}::bytea[], {}::bytea[],
    {}::bytea[])
)",
        p(1),
        p(2),
        p(3),
        p(4),
        p(5),
        p(6)
    )
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
