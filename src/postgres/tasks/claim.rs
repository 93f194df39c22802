//! Claim: moves due tasks out of `task` into the execlog, durably, before anything is sent.

mod statements;

use std::time::Duration;

use az::SaturatingAs as _;
use sqlx::postgres::{PgArguments, PgConnection, PgRow};
use sqlx::query::Query;
use sqlx::{AssertSqlSafe, Connection as _, Postgres, Row};
use uuid::Uuid;

use self::statements::{CLAIM_NOTHING, Table, claim_text, is_empty_text, lowest_text};
use crate::domain::batch::TaskParts;
use crate::domain::ids::floor_of;
use crate::domain::leaves::{Parent, Rules};
use crate::domain::{
    Batch, BatchBuilder, BatchId, IdRange, NodeId, Shard, TaskId, Timestamp, TopicName,
};
use crate::postgres::connection::arrays::{Elements, array};
use crate::postgres::connection::error::PostgresError;
use crate::postgres::connection::{Connection, ConnectionPurpose, PostgresSettings};
use crate::sealing::{Columns as RecordColumns, KeySet, OpenedRecord, PayloadKeys, RecordOwner};

/// Maximum number of rows of a claim. A larger claim takes nothing.
pub const ROWS_MAX: i64 = 4_000;
/// Maximum size of a claim of more than one row, in bytes. A larger claim takes nothing.
pub const BYTES_MAX: i64 = 16 << 20;

const PURPOSE: ConnectionPurpose = ConnectionPurpose {
    name: "claim",
    deadline: Duration::from_secs(5),
    // Statements name one leaf, so that their plans can be kept: a claim of 50 tasks takes longer
    // to plan than to carry out (docs/decisions/0038). A kept plan must read the index, although
    // the leaf may have been empty when it was made. No bitmap scans: Postgres builds a bitmap of
    // the whole range before it counts the first row, 150,000 entries for a hotspot of which 4,001
    // are looked at. The short lock timeout keeps a lock on one row from holding up all others:
    // that row is claimed later.
    settings: &[
        ("plan_cache_mode", "force_generic_plan"),
        ("enable_seqscan", "off"),
        ("enable_bitmapscan", "off"),
        ("lock_timeout", "200ms"),
    ],
};

/// SQLSTATE of a statement that names a table that does not exist.
const UNDEFINED_TABLE: &str = "42P01";

/// The table to claim from.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Source {
    /// The leaves of `task`.
    Task,
    /// `task_far`: tasks that became due while no node moved them.
    Far,
}

/// The tasks to claim.
#[derive(Clone, Copy, Debug)]
pub struct ClaimRequest<'a> {
    pub batch: BatchId,
    pub owner: NodeId,
    pub shards: &'a [i16],
    pub range: IdRange,
    /// Topics whose tasks are left in place.
    pub left_out: &'a [TopicName],
    /// Ids that could not be claimed before.
    pub quarantined: &'a [Uuid],
    /// Most tasks of the range are left out, so rows are read in the order of the heap, not of
    /// their ids.
    pub is_beside_a_hotspot: bool,
}

impl<'a> ClaimRequest<'a> {
    /// Requests all tasks in a range of some shards.
    pub const fn of_all(batch: BatchId, owner: NodeId, shards: &'a [i16], range: IdRange) -> Self {
        Self {
            batch,
            owner,
            shards,
            range,
            left_out: &[],
            quarantined: &[],
            is_beside_a_hotspot: false,
        }
    }
}

#[derive(Debug)]
pub enum Claimed {
    Nothing,
    Batch(Batch),
    /// The range holds too much. Nothing was taken, and no id lies below `first`.
    TooLarge {
        first: Option<Uuid>,
    },
}

/// The answer to a claim.
#[derive(Debug)]
pub struct ClaimAnswer {
    pub claimed: Claimed,
    /// Postgres's clock.
    pub now: Timestamp,
    /// Postgres time for the statement, without the commit.
    pub spent: Duration,
}

/// The connection for the claims of one loop.
#[derive(Debug)]
pub struct Claims {
    connection: Connection,
    keys: PayloadKeys,
    rules: Rules,
}

impl Claims {
    pub fn new(settings: &PostgresSettings, rules: Rules) -> Self {
        let connection = Connection::new(settings, PURPOSE).beginning_with(KEEP_MEMORY);
        Self { connection, keys: settings.payload_keys().clone(), rules }
    }

    /// Claims the tasks that `request` names.
    ///
    /// # Errors
    /// After [`PostgresError::Unanswered`] the batch may exist, or may be committed seconds later:
    /// the check of the node's own unsettled batches decides. The same holds for an answer that
    /// cannot be decoded, which is [`PostgresError::Refused`].
    pub async fn claim(
        &mut self,
        source: Source,
        request: ClaimRequest<'_>,
    ) -> Result<ClaimAnswer, PostgresError> {
        let what = format!("claim tasks {:?} of {} shards", request.range, request.shards.len());
        let table = self.table(source, request.range);
        let row = self
            .connection
            .run(&what, async |connection| {
                let settings = table.settings(request.is_beside_a_hotspot);
                let text = claim_text(&table, request.is_beside_a_hotspot);
                let query = bind(sqlx::query(AssertSqlSafe(text)), request);
                match fetch(connection, settings, query).await? {
                    Some(row) => Ok(row),
                    None => sqlx::query(CLAIM_NOTHING).fetch_one(connection).await,
                }
            })
            .await?;
        let mut answer = read(&row, request.batch, &self.keys.current())
            .map_err(|error| PostgresError::new(what, error.into()))?;
        if let Claimed::TooLarge { first } = &mut answer.claimed {
            *first = self.lowest(source, request).await?;
        }
        Ok(answer)
    }

    /// Returns the lowest id of a range that is too large or cannot be claimed, so that the next,
    /// smaller claim begins at an existing row. The row may be one that is left out.
    pub async fn lowest(
        &mut self,
        source: Source,
        request: ClaimRequest<'_>,
    ) -> Result<Option<Uuid>, PostgresError> {
        let table = self.table(source, request.range);
        let row = self
            .connection
            .run("look for the lowest id of a range", async |connection| {
                let text = lowest_text(&table);
                let query = sqlx::query(AssertSqlSafe(text))
                    .bind(request.shards)
                    .bind(request.range.from)
                    .bind(request.range.to);
                fetch(connection, table.settings(false), query).await
            })
            .await?;
        row.map(|row| row.try_get(0))
            .transpose()
            .map_err(|error| PostgresError::new("read the lowest id of a range", error.into()))
    }

    /// Returns true when nothing can be claimed. This look costs a third of a claim; idle nodes use
    /// it.
    pub async fn is_empty(&mut self, request: ClaimRequest<'_>) -> Result<bool, PostgresError> {
        let table = self.table(Source::Task, request.range);
        let row = self
            .connection
            .run("look for anything to claim", async |connection| {
                let text = is_empty_text(&table);
                let query = sqlx::query(AssertSqlSafe(text))
                    .bind(request.shards)
                    .bind(request.range.from)
                    .bind(request.range.to)
                    .bind(names(request.left_out))
                    .bind(request.quarantined);
                fetch(connection, table.settings(false), query).await
            })
            .await?;
        row.map_or(Ok(true), |row| row.try_get(0))
            .map_err(|error| PostgresError::new("look for anything to claim", error.into()))
    }

    /// Returns the table that has all tasks of `range`. The width of leaves never changes, so the
    /// name of a leaf says which range it has.
    fn table(&self, source: Source, range: IdRange) -> Table {
        let leaf = self.rules.partition_of(Parent::Task, TaskId::from_uuid(range.from).due_at());
        match source {
            Source::Far => Table::Far,
            Source::Task if range.to <= floor_of(self.rules.end_of(leaf)) => Table::Leaf(leaf),
            Source::Task => Table::AllLeaves,
        }
    }

    /// Returns the due time of the first task in `task_far` that is due before `before`.
    pub async fn oldest_far(
        &mut self,
        before: Timestamp,
    ) -> Result<Option<Timestamp>, PostgresError> {
        let id = self
            .connection
            .run("look for the oldest far task", async |connection| {
                sqlx::query_scalar::<_, Uuid>(OLDEST_FAR)
                    .bind(floor_of(before))
                    .fetch_optional(connection)
                    .await
            })
            .await?;
        Ok(id.map(|id| TaskId::from_uuid(id).due_at()))
    }

    /// Quarantines a task that cannot be claimed.
    pub async fn quarantine(&mut self, id: Uuid, reason: &str) -> Result<(), PostgresError> {
        let shard = TaskId::from_uuid(id).shard().as_smallint();
        self.connection
            .run("put a task into quarantine", async |connection| {
                sqlx::query(QUARANTINE).bind(id).bind(shard).bind(reason).execute(connection).await
            })
            .await?;
        Ok(())
    }

    /// Returns the quarantined ids, at most `count_max`.
    pub async fn quarantined(&mut self, count_max: usize) -> Result<Vec<Uuid>, PostgresError> {
        let count_max = count_max.saturating_as::<i64>();
        self.connection
            .run("read the quarantine", async |connection| {
                sqlx::query_scalar::<_, Uuid>(QUARANTINED)
                    .bind(count_max)
                    .fetch_all(connection)
                    .await
            })
            .await
    }
}

const QUARANTINE: &str = "-- quarantine
insert into quarantine (id, shard, reason) values ($1, $2, $3) on conflict (id) do update
  set reason = excluded.reason";

const QUARANTINED: &str = "-- quarantined
select id from quarantine order by id limit $1";

const OLDEST_FAR: &str = "-- oldest far
select id from task_far where id < $1 order by id limit 1";

/// Makes the server process keep its memory. A claim allocates and frees megabytes of arrays.
/// glibc's malloc returns freed memory to the kernel, and every claim has it mapped and zeroed
/// again: a fifth of its CPU. After a block of 4 MiB was freed, malloc keeps up to twice as much
/// (mallopt(3), dynamic threshold). Other allocators are not affected. See docs/decisions/0019.
const KEEP_MEMORY: &str = "-- keep memory\nselect octet_length(repeat(repeat('x', 4096), 1024))";

fn bind<'q>(
    query: Query<'q, Postgres, PgArguments>,
    request: ClaimRequest<'q>,
) -> Query<'q, Postgres, PgArguments> {
    query
        .bind(request.shards)
        .bind(request.range.from)
        .bind(request.range.to)
        .bind(names(request.left_out))
        .bind(request.quarantined)
        .bind(request.batch.uuid())
        .bind(request.owner.uuid())
        .bind(ROWS_MAX)
        .bind(BYTES_MAX)
}

/// Returns the row of a statement, which is run in a transaction with `settings` if there are any.
/// Returns `None` when there is no row, and when the leaf does not exist: no task is in that range.
async fn fetch(
    connection: &mut PgConnection,
    settings: Option<&str>,
    query: Query<'_, Postgres, PgArguments>,
) -> Result<Option<PgRow>, sqlx::Error> {
    let outcome = match settings {
        None => query.fetch_one(connection).await,
        Some(settings) => fetch_with(connection, settings, query).await,
    };
    match outcome {
        Ok(row) => Ok(Some(row)),
        Err(sqlx::Error::RowNotFound) => Ok(None),
        Err(sqlx::Error::Database(error)) if error.code().as_deref() == Some(UNDEFINED_TABLE) => {
            Ok(None)
        }
        Err(error) => Err(error),
    }
}

async fn fetch_with(
    connection: &mut PgConnection,
    settings: &str,
    query: Query<'_, Postgres, PgArguments>,
) -> Result<PgRow, sqlx::Error> {
    let mut transaction = connection.begin().await?;
    sqlx::raw_sql(AssertSqlSafe(settings)).execute(&mut *transaction).await?;
    let row = query.fetch_one(&mut *transaction).await?;
    transaction.commit().await?;
    Ok(row)
}

/// Number of columns of a batch that [`read_batch`] reads.
const COLUMN_COUNT: usize = 10;

fn names(topics: &[TopicName]) -> Vec<&str> {
    topics.iter().map(TopicName::as_str).collect()
}

fn read(row: &PgRow, batch: BatchId, keys: &KeySet) -> Result<ClaimAnswer, sqlx::Error> {
    let now = Timestamp::from_micros(row.try_get(0)?);
    let spent = Duration::from_micros(u64::try_from(row.try_get::<i64, _>(1)?).unwrap_or(0));
    let claimed = match row.try_get(2)? {
        true => Claimed::TooLarge { first: None },
        false => read_batch(row, 3, batch, keys)?.map_or(Claimed::Nothing, Claimed::Batch),
    };
    Ok(ClaimAnswer { claimed, now, spent })
}

/// Reads a batch from ten columns: ids, first_ids, attempts, names, topics, keys, payloads,
/// headers, trackings, moved_tos. Returns `None` when the ids are NULL.
pub(super) fn read_batch(
    row: &PgRow,
    first: usize,
    batch: BatchId,
    keys: &KeySet,
) -> Result<Option<Batch>, sqlx::Error> {
    let mut arrays = [None; COLUMN_COUNT];
    for (index, array_of) in arrays.iter_mut().enumerate() {
        *array_of = array(row, first + index)?;
    }
    if arrays[0].is_none() {
        return Ok(None);
    }
    let wrong =
        || sqlx::Error::Decode("the arrays of a batch differ in length, or are not arrays".into());
    batch_of(batch, arrays, keys).map(Some).ok_or_else(wrong)
}

/// Builds a batch from the bytes of its arrays as Postgres sends them, in the order of
/// [`read_batch`]. The second to fourth array and the last two may be missing. Returns `None` when
/// the bytes are not arrays, or do not belong together. Sealed records are opened with
/// `payload_keys`; those that cannot be opened stay sealed, and the batch says so.
pub fn batch_of(
    batch: BatchId,
    arrays: [Option<&[u8]>; COLUMN_COUNT],
    payload_keys: &KeySet,
) -> Option<Batch> {
    let [ids, first_ids, attempts, names, topics, keys, payloads, headers, trackings, moved_tos] =
        arrays;
    let maybe = |array: Option<_>| array.map_or(Some(None), |bytes| Elements::new(bytes).map(Some));
    let ids = Elements::new(ids?)?;
    let mut columns = Columns {
        first_ids: maybe(first_ids)?,
        attempts: maybe(attempts)?,
        names: maybe(names)?,
        trackings: maybe(trackings)?,
        moved_tos: maybe(moved_tos)?,
        topics: Elements::new(topics?)?,
        keys: Elements::new(keys?)?,
        payloads: Elements::new(payloads?)?,
        headers: Elements::new(headers?)?,
    };
    let bytes = columns.keys.bytes() + columns.payloads.bytes() + columns.headers.bytes();
    let (count, mut builder) =
        (ids.declared_count(), BatchBuilder::new(batch, ids.count_max(), bytes));
    for id in ids {
        push_opened(&mut builder, columns.next(id)?, payload_keys);
    }
    // A truncated array must not become a batch without some of its tasks.
    Some(builder.build()).filter(|built| built.len() == count)
}

/// Appends a task with its record, opened if it is sealed.
fn push_opened(builder: &mut BatchBuilder, parts: TaskParts<'_>, keys: &KeySet) {
    let owner = RecordOwner::Task(parts.first_id.unwrap_or(parts.id), parts.topic);
    let stored = RecordColumns::new(parts.key, parts.payload, parts.headers);
    match keys.open(owner, stored) {
        OpenedRecord::Plain => builder.push(parts),
        OpenedRecord::Opened(opened) => {
            let RecordColumns { key, payload, headers } = opened.as_columns();
            builder.push(TaskParts { key, payload, headers, ..parts });
        }
        OpenedRecord::Unopened(why) => builder.push_unopened(parts, why),
    }
}

struct Columns<'a> {
    first_ids: Option<Elements<'a>>,
    attempts: Option<Elements<'a>>,
    names: Option<Elements<'a>>,
    trackings: Option<Elements<'a>>,
    moved_tos: Option<Elements<'a>>,
    topics: Elements<'a>,
    keys: Elements<'a>,
    payloads: Elements<'a>,
    headers: Elements<'a>,
}

impl<'a> Columns<'a> {
    fn next(&mut self, id: Option<&'a [u8]>) -> Option<TaskParts<'a>> {
        Some(TaskParts {
            id: task_id(id?)?,
            first_id: optional(&mut self.first_ids)?.map(task_id).unwrap_or_default(),
            attempt: optional(&mut self.attempts)?
                .and_then(|bytes| Some(i16::from_be_bytes(bytes.try_into().ok()?))),
            name: optional(&mut self.names)?,
            tracking: optional(&mut self.trackings)?,
            moved_to: optional(&mut self.moved_tos)?
                .and_then(|bytes| Some(i64::from_be_bytes(bytes.try_into().ok()?)))
                .map(Timestamp::from_millis),
            topic: std::str::from_utf8(self.topics.next()??).ok()?,
            key: self.keys.next()?,
            payload: self.payloads.next()?,
            headers: self.headers.next()?,
        })
    }
}

/// Returns the next element of an array that may be missing as a whole.
fn optional<'a>(elements: &mut Option<Elements<'a>>) -> Option<Option<&'a [u8]>> {
    elements.as_mut().map_or(Some(None), Iterator::next)
}

fn task_id(bytes: &[u8]) -> Option<TaskId> {
    Uuid::from_slice(bytes).ok().map(TaskId::from_uuid)
}

/// Returns the sorted numbers of `shards`. All claims, except those beside a hotspot, then lock
/// rows in the same order.
pub fn smallints(shards: &[Shard]) -> Vec<i16> {
    let mut numbers: Vec<i16> = shards.iter().map(|shard| shard.as_smallint()).collect();
    numbers.sort_unstable();
    numbers
}
