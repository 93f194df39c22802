//! Claim: take due tasks out of `task` into the execlog, durably, before anything is sent.

use std::time::Duration;

use sqlx::postgres::{PgConnection, PgRow};
use sqlx::{AssertSqlSafe, Connection as _, Row};
use uuid::Uuid;

use crate::domain::batch::TaskParts;
use crate::domain::ids::floor_of;
use crate::domain::{Batch, BatchBuilder, BatchId, IdRange, NodeId, Shard, TaskId, Timestamp, TopicName};
use crate::postgres::connection::arrays::{Elements, array};
use crate::postgres::connection::error::Error;
use crate::postgres::connection::{Connection, Purpose, Settings};

/// A claim that would take more rows takes none.
pub const ROWS_MAX: i64 = 4_000;
/// A claim of more than one row that would take more bytes takes none.
pub const BYTES_MAX: i64 = 16 << 20;

const PURPOSE: Purpose = Purpose {
    name: "claim",
    deadline: Duration::from_secs(5),
    // A generic plan locks every leaf: 602 locks at 300 leaves, and one retirement of an unrelated leaf then fails or blocks all claims.
    // Somebody's lock on one row must not hold up all others for long: what cannot be had now is claimed in its turn.
    // A bitmap of all that a range holds is made before the first row of it is counted: 150,000 entries for a crowd, of which 4001 are looked at.
    settings: &[("plan_cache_mode", "force_custom_plan"), ("enable_bitmapscan", "off"), ("lock_timeout", "200ms")],
};

/// Where tasks are claimed from.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Source {
    /// The leaves.
    Task,
    /// What became due while no node moved it.
    Far,
}

/// What to claim.
#[derive(Clone, Copy, Debug)]
pub struct Request<'a> {
    pub batch: BatchId,
    pub owner: NodeId,
    pub shards: &'a [i16],
    pub range: IdRange,
    /// Topics whose tasks stay where they are.
    pub left_out: &'a [TopicName],
    /// Ids that could not be claimed before.
    pub quarantined: &'a [Uuid],
    /// Most of the range is left out: the rows are read in the order in which they lie, not in that of their ids.
    pub is_beside_a_crowd: bool,
}

impl<'a> Request<'a> {
    /// Of all that is in a range of some shards.
    pub const fn of_all(batch: BatchId, owner: NodeId, shards: &'a [i16], range: IdRange) -> Self {
        Self { batch, owner, shards, range, left_out: &[], quarantined: &[], is_beside_a_crowd: false }
    }
}

#[derive(Debug)]
pub enum Claimed {
    Nothing,
    Batch(Batch),
    /// There is too much in the range; nothing was taken, and nothing lies below `first`.
    TooLarge {
        first: Option<Uuid>,
    },
}

/// What a claim answers.
#[derive(Debug)]
pub struct Answer {
    pub claimed: Claimed,
    /// Postgres's clock.
    pub now: Timestamp,
    /// Postgres's time for the statement, without the commit.
    pub spent: Duration,
}

/// One loop's connection for claims.
#[derive(Debug)]
pub struct Claims {
    connection: Connection,
}

impl Claims {
    pub fn new(settings: &Settings) -> Self {
        Self { connection: Connection::new(settings, PURPOSE).beginning_with(KEEP_MEMORY) }
    }

    /// Claims what `request` names.
    ///
    /// # Errors
    /// After [`Error::Unanswered`] the batch may exist or come into being seconds later: the check of the node's own unsettled batches decides.
    pub async fn claim(&mut self, source: Source, request: Request<'_>) -> Result<Answer, Error> {
        let what = format!("claim tasks {:?} of {} shards", request.range, request.shards.len());
        let row = self.connection.run(&what, async |connection| carry_out(connection, source, request).await).await?;
        let mut answer = read(&row, request.batch).map_err(|error| Error::new(what, error.into()))?;
        if let Claimed::TooLarge { first } = &mut answer.claimed {
            *first = self.lowest(source, request).await?;
        }
        Ok(answer)
    }

    /// The lowest id of a range that is too large or cannot be claimed, so that the next, smaller one begins where there is something; it may be one that is
    /// left out.
    pub async fn lowest(&mut self, source: Source, request: Request<'_>) -> Result<Option<Uuid>, Error> {
        let text = match source {
            Source::Task => LOWEST_IN_TASK,
            Source::Far => LOWEST_IN_FAR,
        };
        let range = request.range;
        self.connection
            .run("look for the lowest id of a range", async |connection| {
                sqlx::query_scalar(text).bind(request.shards).bind(range.from).bind(range.to).fetch_optional(connection).await
            })
            .await
    }

    /// True when nothing could be claimed: a look that costs a third of a claim, for a node that has nothing to do.
    pub async fn is_empty(&mut self, request: Request<'_>) -> Result<bool, Error> {
        let left_out = names(request.left_out);
        self.connection
            .run("look whether there is anything to claim", async |connection| {
                sqlx::query_scalar::<_, bool>(IS_EMPTY)
                    .bind(request.shards)
                    .bind(request.range.from)
                    .bind(request.range.to)
                    .bind(left_out)
                    .bind(request.quarantined)
                    .fetch_one(connection)
                    .await
            })
            .await
    }

    /// The due time of the first task in `task_far` that is due before `before`.
    pub async fn oldest_far(&mut self, before: Timestamp) -> Result<Option<Timestamp>, Error> {
        let id = self
            .connection
            .run("look for the oldest far task", async |connection| {
                sqlx::query_scalar::<_, Uuid>(OLDEST_FAR).bind(floor_of(before)).fetch_optional(connection).await
            })
            .await?;
        Ok(id.map(|id| TaskId::from_uuid(id).due_at()))
    }

    /// Notes that a task cannot be claimed.
    pub async fn quarantine(&mut self, id: Uuid, reason: &str) -> Result<(), Error> {
        let shard = TaskId::from_uuid(id).shard().as_smallint();
        self.connection
            .run("put a task into quarantine", async |connection| {
                sqlx::query(QUARANTINE).bind(id).bind(shard).bind(reason).execute(connection).await
            })
            .await?;
        Ok(())
    }

    /// The ids in quarantine, at most `count_max`.
    pub async fn quarantined(&mut self, count_max: usize) -> Result<Vec<Uuid>, Error> {
        let count_max = i64::try_from(count_max).unwrap_or(i64::MAX);
        self.connection
            .run("read the quarantine", async |connection| {
                sqlx::query_scalar::<_, Uuid>(QUARANTINED).bind(count_max).fetch_all(connection).await
            })
            .await
    }
}

const IS_EMPTY: &str = "-- is empty
select not exists (
  select from task where shard = any($1) and id >= $2 and id < $3 and topic <> all($4) and id <> all($5))";

const QUARANTINE: &str = "-- quarantine
insert into quarantine (id, shard, reason) values ($1, $2, $3) on conflict (id) do update set reason = excluded.reason";

const QUARANTINED: &str = "-- quarantined
select id from quarantine order by id limit $1";

impl Source {
    const fn table(self) -> &'static str {
        match self {
            Self::Task => "task",
            Self::Far => "task_far",
        }
    }
}

/// The key of `task` begins with the shard, that of `task_far` does not.
const LOWEST_IN_TASK: &str = "-- lowest in task
select lowest.id from unnest($1) as shards (shard) cross join lateral (
  select id from task where task.shard = shards.shard and id >= $2 and id < $3 order by id limit 1
) lowest
order by lowest.id limit 1";
const LOWEST_IN_FAR: &str = "-- lowest in far
select id from task_far where shard = any($1) and id >= $2 and id < $3 order by id limit 1";

const OLDEST_FAR: &str = "-- oldest far
select id from task_far where id < $1 order by id limit 1";

/// A claim makes and frees some megabytes of arrays. glibc's malloc gives what is freed back to the kernel, and each claim has it mapped and zeroed anew, page
/// by page: a fifth of its CPU. Once a block of 4 MiB was freed, it keeps up to twice as much instead (mallopt(3), on the dynamic threshold); another malloc
/// takes no harm from it. See docs/decisions/0019.
const KEEP_MEMORY: &str = "-- keep memory\nselect octet_length(repeat(repeat('x', 4096), 1024))";

/// The claim refuses to be too large, so it needs no look ahead: the size of the range is counted, up to the bound, from the rows that it is about to take.
/// `octet_length` of a toasted value does not fetch it. Each array is built once, by the insert that keeps it, and answered from there: what else holds them
/// copies them all. Both inserts read the rows in the one order in which the delete left them. Where there is nothing, nobody looks twice.
fn claim_text(source: Source, which: &str) -> String {
    let table = source.table();
    format!(
        "-- claim
with found as (
  select ctid as place, coalesce(octet_length(payload), 0) + coalesce(octet_length(headers), 0) + coalesce(octet_length(key), 0) as bytes
  from {table}
  where shard = any($1) and id >= $2 and id < $3 and topic <> all($4) and id <> all($5)
  limit $8 + 1
), size as materialized (
  select count(*) as rows, coalesce(sum(bytes), 0)::bigint as bytes from found
), taken as (
  delete from {table}
  where {which} and id >= $2 and id < $3 and topic <> all($4) and id <> all($5)
    and (select rows between 1 and $8 and (bytes <= $9 or rows = 1) from size)
  returning id, topic, key, payload, headers, name, first_id, attempt
), batch as (
  insert into execlog_batch (batch, owner, claimed_at, task_count, ids, first_ids, attempts, names)
  select
    $6, $7, clock_timestamp(), count(*), array_agg(id),
    case when count(first_id) > 0 then array_agg(first_id) end,
    case when count(first_id) > 0 then array_agg(attempt) end,
    case when count(name) > 0 then array_agg(name) end
  from taken having count(*) > 0
  returning ids, first_ids, attempts, names
), payload as (
  insert into execlog_payload (batch, topics, keys, payloads, headers)
  select $6, array_agg(topic), array_agg(key), array_agg(payload), array_agg(headers) from taken having count(*) > 0
  returning topics, keys, payloads, headers
)
select
  (extract(epoch from clock_timestamp()) * 1000000)::bigint as now,
  (extract(epoch from clock_timestamp() - statement_timestamp()) * 1000000)::bigint as spent,
  size.rows > $8 or (size.bytes > $9 and size.rows > 1) as too_large,
  ids, first_ids, attempts, names, topics, keys, payloads, headers
from size left join batch on true left join payload on true"
    )
}

async fn statement(connection: &mut PgConnection, source: Source, request: Request<'_>) -> Result<PgRow, sqlx::Error> {
    let which = if request.is_beside_a_crowd { BY_PLACE } else { BY_SHARD };
    sqlx::query(AssertSqlSafe(claim_text(source, which)))
        .bind(request.shards)
        .bind(request.range.from)
        .bind(request.range.to)
        .bind(names(request.left_out))
        .bind(request.quarantined)
        .bind(request.batch.uuid())
        .bind(request.owner.uuid())
        .bind(ROWS_MAX)
        .bind(BYTES_MAX)
        .fetch_one(connection)
        .await
}

/// The rows are read a second time. To go to each by its place would cost 5 % more (docs/decisions/0023), ..
const BY_SHARD: &str = "shard = any($1)";
/// .. but for a range of which few rows are taken. It is a strip's, so it lies within one leaf, and the places are there.
const BY_PLACE: &str = "ctid = any(array(select place from found))";
/// The index leads to each row on another page: 1.0 us for a row that is left where it is, 0.4 us by a bitmap of them all. What is left out is read without a
/// bound on its rows, so the time has one: the front waits for it. Then the claim gives way, and a smaller one follows.
const IN_THE_ORDER_OF_THE_HEAP: &str = "set local enable_bitmapscan = on; set local enable_indexscan = off; set local enable_seqscan = off; set local statement_timeout = '200ms'";

async fn carry_out(connection: &mut PgConnection, source: Source, request: Request<'_>) -> Result<PgRow, sqlx::Error> {
    if !request.is_beside_a_crowd {
        return statement(connection, source, request).await;
    }
    let mut transaction = connection.begin().await?;
    sqlx::raw_sql(IN_THE_ORDER_OF_THE_HEAP).execute(&mut *transaction).await?;
    let row = statement(&mut transaction, source, request).await?;
    transaction.commit().await?;
    Ok(row)
}

fn names(topics: &[TopicName]) -> Vec<&str> {
    topics.iter().map(TopicName::as_str).collect()
}

fn read(row: &PgRow, batch: BatchId) -> Result<Answer, sqlx::Error> {
    let now = Timestamp::from_micros(row.try_get(0)?);
    let spent = Duration::from_micros(u64::try_from(row.try_get::<i64, _>(1)?).unwrap_or(0));
    let claimed = match row.try_get(2)? {
        true => Claimed::TooLarge { first: None },
        false => read_batch(row, 3, batch)?.map_or(Claimed::Nothing, Claimed::Batch),
    };
    Ok(Answer { claimed, now, spent })
}

/// Reads a batch from eight columns: ids, first_ids, attempts, names, topics, keys, payloads, headers. `None` when the ids are NULL.
pub(super) fn read_batch(row: &PgRow, first: usize, batch: BatchId) -> Result<Option<Batch>, sqlx::Error> {
    let mut arrays = [None; 8];
    for (index, array_of) in arrays.iter_mut().enumerate() {
        *array_of = array(row, first + index)?;
    }
    if arrays[0].is_none() {
        return Ok(None);
    }
    let wrong = || sqlx::Error::Decode("the arrays of a batch differ in length, or are none".into());
    batch_of(batch, arrays).map(Some).ok_or_else(wrong)
}

/// A batch from the bytes of its arrays as Postgres sends them, in the order of [`read_batch`]; the second to fourth may be missing. `None` when they are
/// no arrays, or do not belong together.
pub fn batch_of(batch: BatchId, arrays: [Option<&[u8]>; 8]) -> Option<Batch> {
    let [ids, first_ids, attempts, names, topics, keys, payloads, headers] = arrays;
    let maybe = |array: Option<_>| array.map_or(Some(None), |bytes| Elements::new(bytes).map(Some));
    let ids = Elements::new(ids?)?;
    let mut columns = Columns {
        first_ids: maybe(first_ids)?,
        attempts: maybe(attempts)?,
        names: maybe(names)?,
        topics: Elements::new(topics?)?,
        keys: Elements::new(keys?)?,
        payloads: Elements::new(payloads?)?,
        headers: Elements::new(headers?)?,
    };
    let bytes = columns.keys.bytes() + columns.payloads.bytes() + columns.headers.bytes();
    let (count, mut builder) = (ids.declared_count(), BatchBuilder::new(batch, ids.count_max(), bytes));
    for id in ids {
        builder.push(columns.next(id)?);
    }
    // An array that ends early must not become a batch without some of its tasks.
    Some(builder.build()).filter(|built| built.len() == count)
}

struct Columns<'a> {
    first_ids: Option<Elements<'a>>,
    attempts: Option<Elements<'a>>,
    names: Option<Elements<'a>>,
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
            attempt: optional(&mut self.attempts)?.and_then(|bytes| Some(i16::from_be_bytes(bytes.try_into().ok()?))),
            name: optional(&mut self.names)?,
            topic: std::str::from_utf8(self.topics.next()??).ok()?,
            key: self.keys.next()?,
            payload: self.payloads.next()?,
            headers: self.headers.next()?,
        })
    }
}

/// The next element of an array that may be missing as a whole.
fn optional<'a>(elements: &mut Option<Elements<'a>>) -> Option<Option<&'a [u8]>> {
    elements.as_mut().map_or(Some(None), Iterator::next)
}

fn task_id(bytes: &[u8]) -> Option<TaskId> {
    Uuid::from_slice(bytes).ok().map(TaskId::from_uuid)
}

/// The numbers of `shards` as claims take them, in order: all claims then lock rows in the same order, but for those beside a crowd.
pub fn smallints(shards: &[Shard]) -> Vec<i16> {
    let mut numbers: Vec<i16> = shards.iter().map(|shard| shard.as_smallint()).collect();
    numbers.sort_unstable();
    numbers
}
