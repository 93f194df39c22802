//! Encrypts stored records again, so that an old payload key can be removed.
//!
//! A row is read without a lock, and its record is opened and sealed in memory. Then one statement
//! replaces the record where the same version of the row is still there. Nothing but the record
//! changes, and no row is deleted or inserted. So whoever deletes the row, for a claim, a cancel or
//! a move, gets the record of the one key or of the other. The statement waits for no row: locked
//! ones are skipped, so no other transaction can wait for this one in a circle.
//!
//! A claim finds its rows by their places in the table, and a replaced row has another place. The
//! claim passes such a row, and only a sweep finds the row again. So tasks that are due about now
//! keep their record.
//!
//! A callback has the values of its headers encrypted as the payload of a record.
//!
//! A run of a schedule that is stored in the clear may be a copy that a node makes in a statement.
//! So a schedule in the clear stays as it is.

use std::collections::BTreeMap;
use std::fmt;
use std::time::Duration;

use az::SaturatingAs as _;
use sqlx::postgres::{PgConnection, PgRow};
use sqlx::{AssertSqlSafe, Row as _};
use thiserror::Error;
use uuid::Uuid;

use crate::domain::{TaskId, Unopened};
use crate::postgres::connection::ConnectionPurpose;
use crate::postgres::connection::error::rows_differ;
use crate::postgres::tasks::sealed::refused;
use crate::postgres::topics::callbacks::values_of;
use crate::postgres::{Connection, PostgresError, PostgresSettings};
use crate::sealing::{KeySet, OpenedRecord, OwnedColumns, RecordOwner};

/// As for the mover: a transaction that holds a lock on a table makes this one give way.
const RESEAL: ConnectionPurpose = ConnectionPurpose {
    name: "reseal",
    deadline: Duration::from_secs(30),
    settings: &[("plan_cache_mode", "force_custom_plan"), ("lock_timeout", "200ms")],
};
/// A count reads whole tables.
const COUNT: ConnectionPurpose = ConnectionPurpose {
    name: "count payload keys",
    deadline: Duration::from_secs(600),
    settings: &[],
};
/// The most rows that one statement looks at.
const ROWS_MAX: i64 = 500;
/// The most bytes of records that one statement reads and replaces, unless one alone has more. A
/// claim that meets the rows waits for a few milliseconds.
const BYTES_MAX: i64 = 1 << 20;
/// Tasks that are due within this time from now, before or after, stay as they are: see above.
const NEAR: Duration = Duration::from_secs(60);
/// The most passes over a table, while rows are locked.
const PASSES_MAX: u32 = 3;

const REGISTERED: &str = "-- registered payload keys
select id, check_value, first_used_at is not null as is_used from payload_key";

const FORGET: &str = "-- note payload keys that no record has
update payload_key set first_used_at = null where id = any($1) and first_used_at is not null";

const COUNTS: &str = "-- count records by payload key
select 'task' as place, punctual_sealed_by(headers) as key_id, count(*) as count
from task group by 2
union all select 'task_far', punctual_sealed_by(headers), count(*) from task_far group by 2
union all select 'dead_letter', punctual_sealed_by(headers), count(*) from dead_letter group by 2
union all select 'schedule', punctual_sealed_by(headers), count(*) from schedule group by 2
union all select 'topic_callback', punctual_sealed_by(header_mark), count(*)
  from topic_callback where header_names <> '{}' group by 2
union all select 'execlog_payload', punctual_sealed_by(h), count(*)
  from execlog_payload, unnest(headers) h group by 2";

/// The values of the headers of callbacks, as records.
const CALLBACK_RECORDS: &str = "(
      select xmin, topic as id, topic, url, null::bytea as key, header_values as payload,
        header_mark as headers
      from topic_callback where header_names <> '{}'
    ) callback";

/// A table whose rows keep records for long.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum SealedTable {
    TaskFar,
    Task,
    DeadLetter,
    Schedule,
    Callback,
}

/// The place of a row in the order of its table.
type Position = (String, String);

impl SealedTable {
    /// The far tasks come first: the mover takes rows from there to the leaves.
    pub const ALL: [Self; 5] =
        [Self::TaskFar, Self::Task, Self::DeadLetter, Self::Schedule, Self::Callback];

    pub const fn name(self) -> &'static str {
        match self {
            Self::TaskFar => "task_far",
            Self::Task => "task",
            Self::DeadLetter => "dead_letter",
            Self::Schedule => "schedule",
            Self::Callback => "topic_callback",
        }
    }

    /// Returns the table with its records in the columns of [`OwnedColumns`].
    const fn records(self) -> &'static str {
        match self {
            Self::Callback => CALLBACK_RECORDS,
            _ => self.name(),
        }
    }

    /// The columns of the order, and the condition on rows behind `$1` and `$2`.
    const fn order(self) -> (&'static str, &'static str) {
        match self {
            Self::Task => ("shard, id", "(shard, id) > ($1::text::smallint, $2::text::uuid)"),
            Self::TaskFar | Self::DeadLetter => {
                ("id", "$1::text is not null and id > $2::text::uuid")
            }
            Self::Schedule => ("id", "$1::text is not null and id > $2::text::bigint"),
            Self::Callback => ("id", "$1::text is not null and id > $2::text"),
        }
    }

    fn beginning(self) -> Position {
        let minor = match self {
            Self::Schedule => "0".to_owned(),
            Self::Callback => String::new(),
            _ => Uuid::nil().to_string(),
        };
        ("-1".to_owned(), minor)
    }

    /// Returns the rows behind a position whose key is not `$4`, and the last row that was looked
    /// at. Payloads of rows that are left out are not read.
    fn page_text(self) -> String {
        let (order, behind) = self.order();
        let table = self.records();
        let major = if self == Self::Task { "shard::text" } else { "'0'::text" };
        let first = match self {
            Self::Task | Self::TaskFar => "coalesce(first_id, id)",
            Self::DeadLetter => "id",
            Self::Schedule | Self::Callback => "null::uuid",
        };
        let name = match self {
            Self::Schedule => "name",
            Self::Callback => "url",
            _ => "null::text",
        };
        let condition = match self {
            Self::Task => {
                "abs(punctual_millis(minor::uuid)
      - (extract(epoch from statement_timestamp()) * 1000)::bigint) > $6"
            }
            Self::TaskFar | Self::DeadLetter | Self::Callback => "$6::bigint is not null",
            Self::Schedule => "$6::bigint is not null and key_id is not null",
        };
        format!(
            "-- records to encrypt again
with head as materialized (
  select x.*, row_number() over (order by {order}) as place
  from (
    select {major} as major, id::text as minor, {order}, xmin::text as version, {first} as first,
      topic, {name} as name, key, payload, headers, punctual_sealed_by(headers) as key_id,
      coalesce(octet_length(key), 0) + coalesce(octet_length(payload), 0)
        + coalesce(octet_length(headers), 0) as octets
    from {table} where {behind} order by {order} limit $3
  ) x
), old as (
  select major, minor, version, first, topic, name, key, payload, headers, place,
    sum(octets) over (order by place) - octets as before
  from head where key_id is distinct from $4 and {condition}
)
select l.major as last_major, l.minor as last_minor, (select count(*) from head) as looked,
  (select count(*) from old) as found, o.*
from (select major, minor from head order by place desc limit 1) l
left join old o on o.before < $5
order by o.place"
        )
    }

    /// Replaces the records of rows that are still the same.
    fn replace_text(self) -> String {
        let table = self.name();
        let is_row = |other: &str| match self {
            Self::Task => {
                format!("t.shard = {other}.major::smallint and t.id = {other}.minor::uuid")
            }
            Self::TaskFar | Self::DeadLetter => format!("t.id = {other}.minor::uuid"),
            Self::Schedule => format!("t.id = {other}.minor::bigint"),
            Self::Callback => format!("t.topic = {other}.minor"),
        };
        let set = match self {
            Self::Callback => "header_values = l.payload, header_mark = l.headers",
            _ => "key = l.key, payload = l.payload, headers = l.headers",
        };
        // Only the leaves of these tasks are locked.
        let range = match self {
            Self::Task => "t.id between $7::text::uuid and $8::text::uuid",
            _ => "$7::text is not null and $8::text is not null",
        };
        let (found, same) = (is_row("n"), is_row("l"));
        format!(
            "-- encrypt records again
with n as materialized (
  select * from unnest($1::text[], $2::text[], $3::text[], $4::bytea[], $5::bytea[], $6::bytea[])
    as n (major, minor, version, key, payload, headers)
), l as materialized (
  select n.* from n join {table} t on {found}
  where t.xmin::text = n.version and {range}
  for update of t skip locked
)
update {table} t set {set}
from l where {same} and {range}"
        )
    }
}

/// The rows with records, by table and id of the payload key. `None` is a record in the clear.
pub type KeyCounts = BTreeMap<(String, Option<u32>), u64>;

/// The progress in one table.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Resealed {
    pub looked: u64,
    pub replaced: u64,
    /// Rows that another transaction had locked or taken.
    pub skipped: u64,
    /// Rows whose key the file lacks.
    pub without_key: u64,
    /// Rows whose records cannot be decrypted.
    pub damaged: u64,
}

impl fmt::Display for Resealed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} rows read, {} stored again", self.looked, self.replaced)?;
        for (count, what) in [
            (self.skipped, "in use by others"),
            (self.without_key, "with a key that the file lacks"),
            (self.damaged, "damaged"),
        ] {
            if count > 0 {
                write!(f, ", {count} {what}")?;
            }
        }
        Ok(())
    }
}

#[derive(Debug, Error)]
pub enum ResealError {
    #[error(transparent)]
    Postgres(#[from] PostgresError),
    #[error("payload key {0} is another key in this cluster; use the file of its nodes")]
    Differs(u32),
    #[error(
        "no node has encrypted with payload key {0} yet; first make it `current` in the files of \
         all nodes, so that no node lacks it"
    )]
    NotUsed(u32),
}

/// Encrypts the records of a database again.
#[derive(Debug)]
pub struct Resealer {
    connection: Connection,
    counting: Connection,
    keys: KeySet,
}

struct Page {
    rows: Vec<PgRow>,
    looked: u64,
    /// `None`: there are no rows behind.
    next: Option<Position>,
}

impl Resealer {
    pub fn new(settings: &PostgresSettings, keys: KeySet) -> Self {
        let [connection, counting] =
            [RESEAL, COUNT].map(|purpose| Connection::new(settings, purpose));
        Self { connection, counting, keys }
    }

    /// Checks that the keys are those of the cluster, and that its nodes have the current one.
    ///
    /// # Errors
    /// When a key differs from the cluster's, or no node has used the current key. The caller must
    /// not encrypt then.
    pub async fn check(&mut self) -> Result<(), ResealError> {
        let statement = async |open: &mut PgConnection| {
            let rows = sqlx::query(REGISTERED).fetch_all(open).await?;
            rows.iter()
                .map(|row| {
                    let id: i64 = row.try_get("id")?;
                    let check: Vec<u8> = row.try_get("check_value")?;
                    Ok((id.saturating_as::<u32>(), check, row.try_get::<bool, _>("is_used")?))
                })
                .collect::<Result<Vec<_>, sqlx::Error>>()
        };
        let registered = self.connection.run("read the payload keys", statement).await?;
        for (id, check) in self.keys.checks() {
            let known = registered.iter().find(|(known, ..)| *known == id);
            if known.is_some_and(|(_, known, _)| known.as_slice() != check.as_slice()) {
                return Err(ResealError::Differs(id));
            }
            if self.keys.current() == Some(id) && !known.is_some_and(|(_, _, is_used)| *is_used) {
                return Err(ResealError::NotUsed(id));
            }
        }
        Ok(())
    }

    /// Counts the records of all tables by their keys.
    pub async fn counts(&mut self) -> Result<KeyCounts, PostgresError> {
        let statement = async |open: &mut PgConnection| {
            let rows = sqlx::query(COUNTS).fetch_all(open).await?;
            let entry = |row: &PgRow| {
                let (place, key): (String, Option<i64>) =
                    (row.try_get("place")?, row.try_get("key_id")?);
                let count: i64 = row.try_get("count")?;
                let key = key.map(|key| key.saturating_as::<u32>());
                Ok(((place, key), count.saturating_as::<u64>()))
            };
            rows.iter().map(entry).collect::<Result<KeyCounts, sqlx::Error>>()
        };
        self.counting.run("count the records by payload key", statement).await
    }

    /// Gives the records of a table the current key, or stores them in the clear when no key is
    /// current. Each batch is a transaction. Calls `progress` after each of them.
    ///
    /// # Errors
    /// The batches before stay. A repetition goes on with the others.
    pub async fn reseal(
        &mut self,
        table: SealedTable,
        mut progress: impl FnMut(&Resealed),
    ) -> Result<Resealed, PostgresError> {
        let mut done = Resealed::default();
        for _ in 0..PASSES_MAX {
            let replaced = done.replaced;
            done = Resealed { replaced, ..Resealed::default() };
            let mut from = Some(table.beginning());
            while let Some(behind) = from {
                let page = self.page(table, &behind).await?;
                done.looked += page.looked;
                self.replace(table, &page.rows, &mut done).await?;
                progress(&done);
                from = page.next;
            }
            if done.skipped == 0 {
                break;
            }
        }
        Ok(done)
    }

    async fn page(&mut self, table: SealedTable, behind: &Position) -> Result<Page, PostgresError> {
        let current = self.keys.current().map(i64::from);
        let statement = async |open: &mut PgConnection| {
            let rows = sqlx::query(AssertSqlSafe(table.page_text()))
                .bind(&behind.0)
                .bind(&behind.1)
                .bind(ROWS_MAX)
                .bind(current)
                .bind(BYTES_MAX)
                .bind(NEAR.as_millis().saturating_as::<i64>())
                .fetch_all(open)
                .await?;
            page_of(rows)
        };
        self.connection.run("read records to encrypt again", statement).await
    }

    async fn replace(
        &mut self,
        table: SealedTable,
        rows: &[PgRow],
        done: &mut Resealed,
    ) -> Result<(), PostgresError> {
        let keys = &self.keys;
        let statement = async |open: &mut PgConnection| {
            let mut seen = Resealed::default();
            let mut records = Vec::with_capacity(rows.len());
            for row in rows {
                match resealed(row, table, keys)? {
                    Ok(record) => records.push(record),
                    Err(Unopened::NoKey(_)) => seen.without_key += 1,
                    Err(Unopened::Damaged) => seen.damaged += 1,
                }
            }
            if !records.is_empty() {
                let asked = records.len().saturating_as::<u64>();
                seen.replaced = replace(open, table, &records).await?;
                if seen.replaced > asked {
                    return Err(rows_differ(seen.replaced, asked));
                }
                seen.skipped = asked - seen.replaced;
            }
            Ok(seen)
        };
        let seen = self.connection.run("encrypt records again", statement).await?;
        done.replaced += seen.replaced;
        done.skipped += seen.skipped;
        done.without_key += seen.without_key;
        done.damaged += seen.damaged;
        Ok(())
    }

    /// Notes that no record has these keys. A node may lack them from now on. A node that still
    /// encrypts with one of them notes it as used again.
    pub async fn note_unused(&mut self, ids: &[u32]) -> Result<(), PostgresError> {
        let ids: Vec<i64> = ids.iter().map(|id| i64::from(*id)).collect();
        let statement = async |open: &mut PgConnection| {
            let noted = sqlx::query(FORGET).bind(&ids).execute(open).await?.rows_affected();
            let asked = ids.len().saturating_as::<u64>();
            if noted > asked { Err(rows_differ(noted, asked)) } else { Ok(()) }
        };
        self.connection.run("note the payload keys that no record has", statement).await
    }
}

fn page_of(mut rows: Vec<PgRow>) -> Result<Page, sqlx::Error> {
    let Some(head) = rows.first() else {
        return Ok(Page { rows, looked: 0, next: None });
    };
    let (looked, found): (i64, i64) = (head.try_get("looked")?, head.try_get("found")?);
    let last = (head.try_get("last_major")?, head.try_get("last_minor")?);
    rows.retain(|row| row.try_get::<Option<i64>, _>("place").is_ok_and(|place| place.is_some()));
    let is_cut = rows.len().saturating_as::<i64>() < found;
    let next = match rows.last() {
        // The rows behind are read again.
        Some(row) if is_cut => Some((row.try_get("major")?, row.try_get("minor")?)),
        _ if looked < ROWS_MAX => None,
        _ => Some(last),
    };
    let looked = if is_cut { rows.len().saturating_as::<u64>() } else { looked.saturating_as() };
    Ok(Page { rows, looked, next })
}

/// A record as it is to be stored, and the version of its row.
struct NewRecord {
    position: Position,
    version: String,
    record: OwnedColumns,
}

fn resealed(
    row: &PgRow,
    table: SealedTable,
    keys: &KeySet,
) -> Result<Result<NewRecord, Unopened>, sqlx::Error> {
    let stored = OwnedColumns {
        key: row.try_get("key")?,
        payload: row.try_get("payload")?,
        headers: row.try_get("headers")?,
    };
    let (topic, name): (String, Option<String>) = (row.try_get("topic")?, row.try_get("name")?);
    let first: Option<Uuid> = row.try_get("first")?;
    let name = name.as_deref().unwrap_or_default();
    let owner = match (first, table) {
        (Some(first), _) => RecordOwner::Task(TaskId::from_uuid(first), &topic),
        (None, SealedTable::Callback) => RecordOwner::Callback(&topic, name),
        (None, _) => RecordOwner::Schedule(&topic, name),
    };
    let plain = match keys.open(owner, stored.as_columns()) {
        OpenedRecord::Plain => stored,
        OpenedRecord::Opened(plain) => plain,
        OpenedRecord::Unopened(why) => return Ok(Err(why)),
    };
    // Without its mark, an encrypted value would be encrypted once more.
    let is_callback = table == SealedTable::Callback;
    if is_callback && values_of(plain.payload.as_deref().unwrap_or_default()).is_err() {
        return Ok(Err(Unopened::Damaged));
    }
    let sealed = keys.seal(owner, plain.as_columns()).map_err(refused)?;
    Ok(Ok(NewRecord {
        position: (row.try_get("major")?, row.try_get("minor")?),
        version: row.try_get("version")?,
        record: sealed.unwrap_or(plain),
    }))
}

/// Returns the number of replaced records.
async fn replace(
    open: &mut PgConnection,
    table: SealedTable,
    records: &[NewRecord],
) -> Result<u64, sqlx::Error> {
    let each = || records.iter().map(|one| one.record.as_columns());
    let minors = || records.iter().map(|one| one.position.1.as_str());
    // Ids are compared by their text: its digits are in the order of the bytes.
    let done = sqlx::query(AssertSqlSafe(table.replace_text()))
        .bind(records.iter().map(|one| one.position.0.as_str()).collect::<Vec<_>>())
        .bind(minors().collect::<Vec<_>>())
        .bind(records.iter().map(|one| one.version.as_str()).collect::<Vec<_>>())
        .bind(each().map(|record| record.key).collect::<Vec<_>>())
        .bind(each().map(|record| record.payload).collect::<Vec<_>>())
        .bind(each().map(|record| record.headers).collect::<Vec<_>>())
        .bind(minors().min().unwrap_or_default())
        .bind(minors().max().unwrap_or_default())
        .execute(open)
        .await?;
    Ok(done.rows_affected())
}
