//! Takes rows out of an outbox, in the user's database.
//!
//! One transaction reads the rows, and deletes them after their tasks are stored. Each read looks
//! at all rows, never behind a cursor: a transaction with a late commit has a low number.
//!
//! A lock of the transaction keeps two nodes from reading the same rows, which saves work. The
//! epoch in Punctual's database makes two nodes harmless. The lock is one of a table, and not an
//! advisory one: any role of the database could take that, and stop the outbox.

use std::collections::HashSet;
use std::time::Duration;

use sqlx::Row;
use sqlx::postgres::{PgConnection, PgRow};
use uuid::Uuid;

use super::{BEGIN, PURPOSE, objects};
use crate::domain::Timestamp;
use crate::domain::task::outbox_row::{OutboxOperation, OutboxRow, RejectedRow};
use crate::postgres::connection::holder::holder_of;
use crate::postgres::{Connection, PostgresError, PostgresSettings};

/// The most rows of a turn, and the bytes after which no further row is taken.
const ROWS_MAX: i64 = 1_000;
const BYTES_MAX: i64 = 8 << 20;
/// The most rows among which those of other topics are looked for, while some topics wait.
const SEARCHED_MAX: i64 = 10_000;

/// An outbox in a user's database, over a connection of its own.
#[derive(Debug)]
pub struct OutboxSource {
    connection: Connection,
}

/// A look at an outbox.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Peek {
    /// The clock of the user's database.
    pub now: Timestamp,
    pub has_rows: bool,
}

/// The state of an outbox, for its metrics. Rows are counted up to
/// [`ROWS_COUNTED_MAX`](super::setup::ROWS_COUNTED_MAX).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct OutboxState {
    pub waiting: i64,
    pub oldest: Duration,
    pub rejected: i64,
}

const INSTALLATION: &str =
    "-- installation of an outbox\nselect id, version from punctual.installation";

const PEEK: &str = "-- peek at an outbox
select (extract(epoch from clock_timestamp()) * 1000000)::bigint as now,
  (select seq from punctual.outbox order by seq limit 1) is not null as has_rows";

/// This mode conflicts with itself, but with no insert, read or delete. Only roles with the right
/// to update, delete or truncate may take it, so submitters may not. Autovacuum takes it for the
/// four tables of the rows, and never for this one, which has no rows of its own: hence `only`.
const LOCK: &str = "-- lock an outbox
lock table only punctual.outbox in share update exclusive mode nowait";

const READ: &str = "-- read rows of an outbox
select o.seq, o.id, o.op, (extract(epoch from o.called_at) * 1000000)::bigint as called_at,
  o.topic, o.name, o.task_id, o.attempt,
  (extract(epoch from o.due_at) * 1000000)::bigint as due_at,
  (extract(epoch from o.delay) * 1000000)::bigint as delay, o.payload::text as payload,
  o.payload_text, o.payload_bytes, o.tombstone, o.key, o.key_bytes, o.headers::text as headers,
  (extract(epoch from o.ttr) * 1000000)::bigint as ttr, o.retry::text as retry
from (
  select seq, slot, sum(bytes) over (order by seq rows unbounded preceding) - bytes as before
  from (
    select seq, slot, bytes
    from (select seq, slot, bytes, topic from punctual.outbox order by seq limit $4) head
    where topic <> all($3)
    order by seq
    limit $1
  ) wanted
) chosen
join punctual.outbox o on o.slot = chosen.slot and o.seq = chosen.seq
where chosen.before < $2
order by o.seq";

const DELETE: &str = "-- delete rows of an outbox
with d as (
  delete from punctual.outbox where seq = any($1) returning *
), r as (
  insert into punctual.outbox_rejected (seq, slot, id, op, called_at, topic, name, task_id,
    attempt, due_at, delay, payload, payload_text, payload_bytes, tombstone, key, key_bytes,
    headers, ttr, retry, bytes, status, reason)
  select d.seq, d.slot, d.id, d.op, d.called_at, d.topic, d.name, d.task_id, d.attempt, d.due_at,
    d.delay, d.payload, d.payload_text, d.payload_bytes, d.tombstone, d.key, d.key_bytes,
    d.headers, d.ttr, d.retry, d.bytes, r.status, r.reason
  from d join unnest($2::bigint[], $3::smallint[], $4::text[]) as r (seq, status, reason)
    on r.seq = d.seq
)
select count(*) from d";

const STILL_THERE: &str = "-- are rows in an outbox\n\
                           select seq from punctual.outbox where seq = any($1)";

const STATE: &str = "-- state of an outbox
select (select count(*) from (select from punctual.outbox limit 100000) x) as waiting,
  coalesce((select (extract(epoch from clock_timestamp() - called_at) * 1000)::bigint
    from punctual.outbox order by seq limit 1), 0) as oldest,
  (select count(*) from (select from punctual.outbox_rejected limit 100000) x) as rejected";

/// Finds the tables of an outbox that take rows neither now nor one turn ago, and that still have
/// pages on the disk.
const IDLE: &str = "-- idle tables of an outbox
select c.relname::text
from unnest(array[1, 2]) as ahead
join pg_class c on c.oid = to_regclass('punctual.outbox_' || (punctual.slot() + ahead) % 4)
where pg_relation_size(c.oid) > 0";

impl OutboxSource {
    pub fn new(settings: &PostgresSettings) -> Self {
        Self { connection: Connection::new(settings, PURPOSE).plain() }
    }

    /// Ends the transaction, if there is one, and the session. Nothing of it has taken effect,
    /// unless its commit got no answer.
    pub fn close(&mut self) {
        self.connection.close();
    }

    /// Returns the id and the version of the installation. The inner error says why it is not read:
    /// the code of a look-alike would run as this role.
    pub async fn installation(&mut self) -> Result<Result<(Uuid, i32), String>, PostgresError> {
        let read = async |open: &mut PgConnection| {
            if let Some(reason) = objects::look_alike(&mut *open).await? {
                return Ok(Err(reason));
            }
            let row = sqlx::raw_sql(INSTALLATION).fetch_one(open).await?;
            Ok(Ok((row.try_get("id")?, row.try_get("version")?)))
        };
        self.connection.run("find the outbox", read).await
    }

    /// Looks at the clock of the database, and whether there are rows.
    pub async fn peek(&mut self) -> Result<Peek, PostgresError> {
        let read = async |open: &mut PgConnection| {
            let row = sqlx::raw_sql(PEEK).fetch_one(open).await?;
            Ok(Peek {
                now: Timestamp::from_micros(row.try_get("now")?),
                has_rows: row.try_get("has_rows")?,
            })
        };
        self.connection.run("look into the outbox", read).await
    }

    /// Begins a transaction and reads the first rows, in their order, without those of the topics
    /// `waiting`. Returns `None` when another node is at work.
    pub async fn read(
        &mut self,
        waiting: &[&str],
    ) -> Result<Option<Vec<OutboxRow>>, PostgresError> {
        let searched = if waiting.is_empty() { ROWS_MAX } else { SEARCHED_MAX };
        let read = async |open: &mut PgConnection| {
            sqlx::raw_sql(BEGIN).execute(&mut *open).await?;
            match sqlx::raw_sql(LOCK).execute(&mut *open).await {
                Ok(_locked) => {}
                Err(error) if is_taken(&error) => return Ok(None),
                Err(error) => return Err(error),
            }
            let rows =
                sqlx::query(READ).bind(ROWS_MAX).bind(BYTES_MAX).bind(waiting).bind(searched);
            let rows = rows.persistent(false).fetch_all(open).await?;
            rows.iter().map(row_of).collect::<Result<Vec<_>, _>>().map(Some)
        };
        let outcome = self.connection.run("read rows of the outbox", read).await;
        if !matches!(outcome, Ok(Some(_))) {
            self.close();
        }
        outcome
    }

    /// Describes the session that keeps others from reading rows, as far as this role may see it.
    pub async fn holder(&mut self) -> Result<Option<String>, PostgresError> {
        let find = async |open: &mut PgConnection| holder_of(open, "punctual.outbox").await;
        self.connection.run("find the holder of the outbox", find).await
    }

    /// Ends the transaction that has read rows, without a change.
    pub async fn give_back(&mut self) -> Result<(), PostgresError> {
        let end = async |open: &mut PgConnection| sqlx::raw_sql("rollback").execute(open).await;
        let outcome = self.connection.run_in_session("give rows of the outbox back", end).await;
        if outcome.is_err() {
            self.close();
        }
        outcome.map(|_done| ())
    }

    /// Deletes rows read in this transaction, keeps the `rejected` ones, and commits. Returns the
    /// number of rows found.
    ///
    /// # Errors
    /// After [`PostgresError::Unanswered`] the rows may or may not be deleted. After any other
    /// error they are not.
    pub async fn delete(
        &mut self,
        seqs: &[i64],
        rejected: &[RejectedRow],
    ) -> Result<u64, PostgresError> {
        let refused: Vec<i64> = rejected.iter().map(|row| row.seq).collect();
        let statuses: Vec<i16> =
            rejected.iter().map(|row| i16::try_from(row.status).unwrap_or(i16::MAX)).collect();
        let reasons: Vec<&str> = rejected.iter().map(|row| row.reason.as_str()).collect();
        let delete = async |open: &mut PgConnection| {
            let query = sqlx::query_scalar(DELETE).bind(seqs).bind(refused).bind(statuses);
            let count: i64 = query.bind(reasons).persistent(false).fetch_one(&mut *open).await?;
            sqlx::raw_sql("commit").execute(open).await?;
            Ok(count)
        };
        let what = "delete rows of the outbox";
        let outcome = self.connection.run_in_session(what, delete).await;
        if outcome.is_err() {
            self.close();
        }
        Ok(u64::try_from(outcome?).unwrap_or_default())
    }

    /// Returns those of `seqs` whose rows are in the outbox.
    pub async fn still_there(&mut self, seqs: &[i64]) -> Result<HashSet<i64>, PostgresError> {
        let read = async |open: &mut PgConnection| {
            sqlx::raw_sql(BEGIN).execute(&mut *open).await?;
            let query = sqlx::query_scalar(STILL_THERE).bind(seqs).persistent(false);
            let found: Vec<i64> = query.fetch_all(&mut *open).await?;
            sqlx::raw_sql("commit").execute(open).await?;
            Ok(found.into_iter().collect())
        };
        let outcome = self.connection.run("look for rows of the outbox", read).await;
        if outcome.is_err() {
            self.close();
        }
        outcome
    }

    /// Returns the state for the metrics.
    pub async fn state(&mut self) -> Result<OutboxState, PostgresError> {
        let read = async |open: &mut PgConnection| {
            let row = sqlx::raw_sql(STATE).fetch_one(open).await?;
            let oldest: i64 = row.try_get("oldest")?;
            Ok(OutboxState {
                waiting: row.try_get("waiting")?,
                oldest: Duration::from_millis(u64::try_from(oldest).unwrap_or(0)),
                rejected: row.try_get("rejected")?,
            })
        };
        self.connection.run("count the rows of the outbox", read).await
    }

    /// Truncates the empty tables whose turn is over. A table that any transaction has used, and
    /// still holds, is left for later: to wait for its lock would make inserts wait behind.
    pub async fn truncate_idle(&mut self) -> Result<(), PostgresError> {
        let find = async |open: &mut PgConnection| {
            let rows = sqlx::raw_sql(IDLE).fetch_all(open).await?;
            rows.iter().map(|row| row.try_get(0)).collect::<Result<Vec<String>, _>>()
        };
        for table in self.connection.run("find idle tables of the outbox", find).await? {
            let Some(statements) = truncation_of(&table) else { continue };
            let truncate =
                async |open: &mut PgConnection| truncate_if_empty(open, statements).await;
            match self.connection.run("truncate a table of the outbox", truncate).await {
                Ok(()) => {}
                // The transaction is over with its session.
                Err(error) if error.is_lock_conflict() => self.close(),
                Err(error) => {
                    self.close();
                    return Err(error);
                }
            }
        }
        Ok(())
    }
}

/// Returns true when another session has the lock.
fn is_taken(error: &sqlx::Error) -> bool {
    error.as_database_error().is_some_and(|said| said.code().as_deref() == Some("55P03"))
}

/// The statements that lock a table without waiting, look whether it is empty, and truncate it.
type Truncation = [&'static str; 3];

macro_rules! truncation {
    ($table:literal) => {
        [
            concat!("lock table punctual.", $table, " in access exclusive mode nowait"),
            concat!("-- is a table empty\nselect exists (select from punctual.", $table, ")"),
            concat!("truncate punctual.", $table),
        ]
    };
}

fn truncation_of(table: &str) -> Option<Truncation> {
    match table {
        "outbox_0" => Some(truncation!("outbox_0")),
        "outbox_1" => Some(truncation!("outbox_1")),
        "outbox_2" => Some(truncation!("outbox_2")),
        "outbox_3" => Some(truncation!("outbox_3")),
        _ => None,
    }
}

async fn truncate_if_empty(
    open: &mut PgConnection,
    [lock, look, truncate]: Truncation,
) -> Result<(), sqlx::Error> {
    sqlx::raw_sql(BEGIN).execute(&mut *open).await?;
    sqlx::raw_sql(lock).execute(&mut *open).await?;
    // The lock comes first, so this snapshot has every row that was committed before it.
    let has_rows: bool = sqlx::query_scalar(look).persistent(false).fetch_one(&mut *open).await?;
    if !has_rows {
        sqlx::raw_sql(truncate).execute(&mut *open).await?;
    }
    sqlx::raw_sql("commit").execute(open).await.map(|_done| ())
}

fn row_of(row: &PgRow) -> Result<OutboxRow, sqlx::Error> {
    let time = |column: &str| {
        Ok::<_, sqlx::Error>(row.try_get::<Option<i64>, _>(column)?.map(Timestamp::from_micros))
    };
    let span = |column: &str| {
        let micros: Option<i64> = row.try_get(column)?;
        let span = |micros| Duration::from_micros(u64::try_from(micros).unwrap_or(0));
        Ok::<_, sqlx::Error>(micros.map(span))
    };
    let operation = match row.try_get("op")? {
        "submit" => OutboxOperation::Submit,
        "replace" => OutboxOperation::Replace,
        "cancel" => OutboxOperation::Cancel,
        "finish" => OutboxOperation::Finish,
        _ => return Err(sqlx::Error::Decode("an operation that no outbox has".into())),
    };
    Ok(OutboxRow {
        seq: row.try_get("seq")?,
        id: row.try_get("id")?,
        operation,
        called_at: Timestamp::from_micros(row.try_get("called_at")?),
        topic: row.try_get("topic")?,
        name: row.try_get("name")?,
        task_id: row.try_get("task_id")?,
        attempt: row.try_get("attempt")?,
        due_at: time("due_at")?,
        delay: span("delay")?,
        payload: row.try_get("payload")?,
        payload_text: row.try_get("payload_text")?,
        payload_bytes: row.try_get("payload_bytes")?,
        is_tombstone: row.try_get("tombstone")?,
        key: row.try_get("key")?,
        key_bytes: row.try_get("key_bytes")?,
        headers: row.try_get("headers")?,
        ttr: span("ttr")?,
        retry: row.try_get("retry")?,
    })
}
