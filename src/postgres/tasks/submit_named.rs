//! Stores tasks that have a name. Each of them depends on the insert of a new entry for its name.

use std::collections::HashSet;
use std::time::Duration;

use sqlx::postgres::{PgConnection, PgRow};
use sqlx::{AssertSqlSafe, Row};
use uuid::Uuid;

use super::principals::{STAMP, aggregates_in, submitters_of};
use super::sealed::StoredRecords;
use super::submit::{Extras, trackings_of};
use crate::domain::{BatchId, NewTask, NodeId, TaskId, Timestamp};
use crate::postgres::connection::error::PostgresError;
use crate::postgres::connection::{Connection, ConnectionPurpose, PostgresSettings};
use crate::sealing::{KeySet, PayloadKeys};

/// The same purpose as for submits without a name.
const PURPOSE: ConnectionPurpose = ConnectionPurpose {
    name: "submit named",
    deadline: Duration::from_secs(5),
    settings: &[("lock_timeout", "200ms")],
};

/// Named tasks that one statement stores. Each name occurs once. The tasks are sorted by topic and
/// name, so that groups wait for each other's entries in the same order.
#[derive(Clone, Copy, Debug)]
pub struct NamedGroup<'a> {
    pub tasks: &'a [&'a NewTask],
    /// For each task: true when it is due beyond the last leaf.
    pub is_far: &'a [bool],
    /// For each task: true when it is due within the window and goes directly into `batch`.
    pub is_claimed: &'a [bool],
    pub batch: Option<BatchId>,
}

/// The connection for submits of named tasks.
#[derive(Debug)]
pub struct NamedSubmits {
    connection: Connection,
    node: NodeId,
    retention: Duration,
    keys: PayloadKeys,
}

/// Builds the statement. A task row, or a task of the batch, exists exactly when this statement
/// inserted the entry. So the batch holds only tasks with new names, in the order of the
/// parameters. A statement without a batch does not mention the execlog, so that a lock on the
/// execlog causes no delay. A statement without submitters does not mention submitters.
fn store_text(has_batch: bool, extras: Extras) -> String {
    let mut parameter = 10;
    let mut next = || {
        parameter += 1;
        parameter
    };
    let (mut stamp, mut arrays, mut read, mut columns, mut values) =
        (String::new(), String::new(), String::new(), String::new(), String::new());
    if extras.submitters {
        stamp = format!("{STAMP}, ");
        arrays.push_str(&format!(", ${}::smallint[]", next()));
        read.push_str(", submitted_by");
        columns.push_str(", submitted_by, submitted_at");
        values.push_str(&format!(", i.submitted_by, {AT}"));
    }
    if extras.tracking {
        arrays.push_str(&format!(", ${}::bytea[]", next()));
        read.push_str(", tracking");
        columns.push_str(", tracking");
        values.push_str(", i.tracking");
    }
    let check = if has_batch { REFUSE_PAUSED } else { "" };
    let claimed = if has_batch { claimed_part((next(), next()), extras) } else { String::new() };
    format!(
        "-- submit named
with {stamp}input as materialized (
  select *
  from unnest($1::smallint[], $2::uuid[], $3::text[], $4::bytea[], $5::bytea[], $6::bytea[],
    $7::text[], $8::boolean[], $9::boolean[]{arrays})
    with ordinality as i (shard, id, topic, key, payload, headers, name, is_far, is_claimed{read},
      position)
), won as (
  insert into task_name (topic, name, id, row_id, expires_at)
  select topic, name, id, id, punctual_time(id) + make_interval(secs => $10)
  from input
  order by position
  on conflict (topic, name) do nothing
  returning id
), near as (
  insert into task (shard, id, topic, key, payload, headers, name{columns})
  select i.shard, i.id, i.topic, i.key, i.payload, i.headers, i.name{values}
  from won join input i using (id)
  where not i.is_far and not i.is_claimed
), far as (
  insert into task_far (shard, id, topic, key, payload, headers, name{columns})
  select i.shard, i.id, i.topic, i.key, i.payload, i.headers, i.name{values}
  from won join input i using (id)
  where i.is_far and not i.is_claimed
){claimed}
select (extract(epoch from clock_timestamp()) * 1000000)::bigint as now,
  (select array_agg(id) from won) as ids{check}"
    )
}

/// Makes the statement fail when a task that it claims is of a paused topic.
const REFUSE_PAUSED: &str =
    ",\n  punctual_refuse_paused(array(select topic from input where is_claimed))";

/// The time of the submit of a task that has a submitter.
const AT: &str = "case when i.submitted_by is not null then (select at from stamp) end";

/// The parameters of the batch, its id and its owner, come last.
fn claimed_part((batch, owner): (usize, usize), extras: Extras) -> String {
    let (mut at, mut columns, mut values) = (String::new(), String::new(), String::new());
    if extras.submitters {
        at = format!(", {AT} as submitted_at");
        columns.push_str(", submitted_by, submitted_ats");
        values.push_str(&format!(",\n    {}", aggregates_in(" order by position")));
    }
    if extras.tracking {
        columns.push_str(", trackings");
        values.push_str(
            ",\n    case when count(tracking) > 0 then array_agg(tracking order by position) end",
        );
    }
    format!(
        ", claimed as materialized (
  select i.*{at} from won join input i using (id) where i.is_claimed
), batch as (
  insert into execlog_batch (batch, owner, claimed_at, task_count, ids, names{columns})
  select ${batch}, ${owner}, clock_timestamp(), count(*), array_agg(id order by position),
    array_agg(name order by position){values}
  from claimed
  having count(*) > 0
), payload as (
  insert into execlog_payload (batch, topics, keys, payloads, headers)
  select ${batch}, array_agg(topic order by position), array_agg(key order by position),
    array_agg(payload order by position),
    array_agg(headers order by position)
  from claimed
  having count(*) > 0
)"
    )
}

impl NamedSubmits {
    /// Creates the connection. An entry expires `retention` after the due time of its task, unless
    /// it is moved later.
    pub fn new(settings: &PostgresSettings, node: NodeId, retention: Duration) -> Self {
        let keys = settings.payload_keys().clone();
        Self { connection: Connection::new(settings, PURPOSE), node, retention, keys }
    }

    pub async fn keep_open(&mut self) -> Result<(), PostgresError> {
        self.connection.keep_open().await
    }

    /// Stores those tasks of the group whose names have no entry. Returns their ids, and the time
    /// of Postgres's clock.
    ///
    /// # Errors
    /// After [`PostgresError::Unanswered`] it is unknown which tasks were stored. After any other
    /// error none was, unless the answer could not be decoded ([`PostgresError::Refused`]).
    pub async fn store(
        &mut self,
        group: &NamedGroup<'_>,
    ) -> Result<(HashSet<TaskId>, Timestamp), PostgresError> {
        let what = format!("store {} named tasks", group.tasks.len());
        let (node, retention) = (self.node.uuid(), self.retention.as_secs_f64());
        let keys = self.keys.current();
        let row = self
            .connection
            .run(&what, async |connection| {
                statement(connection, group, (node, retention), &keys).await
            })
            .await?;
        read(&row).map_err(|error| PostgresError::new(what, error.into()))
    }
}

pub(in crate::postgres) async fn statement(
    connection: &mut PgConnection,
    group: &NamedGroup<'_>,
    (node, retention): (Uuid, f64),
    keys: &KeySet,
) -> Result<PgRow, sqlx::Error> {
    let records = StoredRecords::of(keys, group.tasks)?;
    let stored = || records.each(group.tasks);
    let each = || group.tasks.iter();
    let extras = Extras::of(group.tasks);
    let mut query = sqlx::query(AssertSqlSafe(store_text(group.batch.is_some(), extras)))
        .bind(each().map(|task| task.id.shard().as_smallint()).collect::<Vec<_>>())
        .bind(each().map(|task| task.id.uuid()).collect::<Vec<_>>())
        .bind(each().map(|task| task.record.topic.as_str()).collect::<Vec<_>>())
        .bind(stored().map(|record| record.key).collect::<Vec<_>>())
        .bind(stored().map(|record| record.payload).collect::<Vec<_>>())
        .bind(stored().map(|record| record.headers).collect::<Vec<_>>())
        .bind(each().map(|task| task.name.as_ref().map(|name| name.as_str())).collect::<Vec<_>>())
        .bind(group.is_far)
        .bind(group.is_claimed)
        .bind(retention);
    if extras.submitters {
        query = query.bind(submitters_of(group.tasks));
    }
    if extras.tracking {
        query = query.bind(trackings_of(group.tasks));
    }
    if let Some(batch) = group.batch {
        query = query.bind(batch.uuid()).bind(node);
    }
    query.fetch_one(connection).await
}

pub(in crate::postgres) fn read(row: &PgRow) -> Result<(HashSet<TaskId>, Timestamp), sqlx::Error> {
    let ids: Option<Vec<Uuid>> = row.try_get("ids")?;
    let won = ids.unwrap_or_default().into_iter().map(TaskId::from_uuid).collect();
    Ok((won, Timestamp::from_micros(row.try_get("now")?)))
}
