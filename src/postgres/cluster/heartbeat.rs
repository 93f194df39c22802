//! Heartbeats: every node writes its own and reads all of them.
//!
//! **An answered heartbeat is a barrier.** A heartbeat commits synchronously and always writes, so
//! the WAL is flushed up to it. Everything answered to the node before the heartbeat was sent is
//! durable then, including settles, which do not wait for the disk.

use std::time::Duration;

use sqlx::Row;
use sqlx::postgres::{PgConnection, PgRow};
use uuid::Uuid;

use crate::domain::{NodeId, Timestamp};
use crate::postgres::connection::error::PostgresError;
use crate::postgres::connection::{Connection, ConnectionPurpose, PostgresSettings};
use crate::postgres::unsettled::SharedUnsettledFloor;

const BEAT: &str = "-- heartbeat
with mine as (
  insert into heartbeat as h (node, name, address, version, counter, has_broker, can_publish,
    has_left, level, started_at, beat_at)
  values ($1, $2, $3, $4, $5, $6, $7, $8, $9, clock_timestamp(), clock_timestamp())
  on conflict (node) do update
  set name = excluded.name, address = excluded.address, counter = excluded.counter,
    has_broker = excluded.has_broker,
    can_publish = excluded.can_publish, has_left = excluded.has_left, beat_at = excluded.beat_at
  returning h.dead, h.started_at
), others as (
  select * from heartbeat where node <> $1 order by dead, beat_at desc limit 1000
)
select (extract(epoch from clock_timestamp()) * 1000000)::bigint as now, mine.dead as was_dead,
  (extract(epoch from mine.started_at) * 1000000)::bigint as my_started_at,
  o.node, o.name, o.address, o.version, o.counter, o.has_broker, o.can_publish, o.has_left, o.dead,
  o.level,
  (extract(epoch from o.started_at) * 1000000)::bigint as started_at,
  (extract(epoch from o.beat_at) * 1000000)::bigint as beat_at
from mine left join others o on true";

const READ: &str = "-- heartbeat: read
select (extract(epoch from clock_timestamp()) * 1000000)::bigint as now, null::boolean as was_dead,
  null::bigint as my_started_at,
  o.node, o.name, o.address, o.version, o.counter, o.has_broker, o.can_publish, o.has_left, o.dead,
  o.level,
  (extract(epoch from o.started_at) * 1000000)::bigint as started_at,
  (extract(epoch from o.beat_at) * 1000000)::bigint as beat_at
from (select) one left join (select * from heartbeat where node <> $1 order by dead, beat_at desc
  limit 1000) o on true";

const REVIVE: &str = "-- heartbeat: revive
update heartbeat set dead = false where node = $1 and dead";

const STAMP: &str = "-- heartbeat: stamp
select (extract(epoch from clock_timestamp()) * 1000000)::bigint";

const DECLARE_DEAD: &str = "-- heartbeat: declare dead
update heartbeat set dead = true where node = $1 and counter = $2 and not dead";

const RETIRE: &str = "-- heartbeat: retire
update heartbeat set dead = true, has_left = true where node = $1";

const FORGET: &str = "-- heartbeat: forget
delete from heartbeat h
where h.dead and h.beat_at < clock_timestamp() - $1 * interval '1 second'
  and not exists (select from execlog_batch b where b.settled_at is null and b.batch >= $2
    and b.owner = h.node)";

/// The first level of features with tracked tasks. A node of a version without levels has level 0.
const LEVEL_WITH_TRACKED_TASKS: i16 = 1;
/// The first level whose claims leave out paused topics.
const LEVEL_WITH_PAUSED_TOPICS: i16 = 2;
/// The first level that does not publish expired tasks.
const LEVEL_WITH_EXPIRY: i16 = 3;
/// The first level that knows the overlap and the spread of schedules, and keeps the rows of their
/// runs long enough for a backfill.
const LEVEL_WITH_OVERLAP: i16 = 4;
/// The first level that decrypts records. Migration 0022 has it, too.
pub(super) const LEVEL_WITH_SEALING: i16 = 5;
/// The level of this version. A version with a feature that older nodes would handle wrongly has a
/// higher level than the version before.
const LEVEL: i16 = LEVEL_WITH_SEALING;

/// The contents of the node's heartbeat.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Beat {
    pub node: NodeId,
    pub name: String,
    pub address: String,
    pub version: String,
    /// Higher than in the previous heartbeat. Observers compare it.
    pub counter: i64,
    pub has_broker: bool,
    pub can_publish: bool,
    pub has_left: bool,
}

/// The heartbeat row of a node.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct HeartbeatRow {
    pub node: NodeId,
    pub name: String,
    pub address: String,
    pub version: String,
    pub counter: i64,
    pub has_broker: bool,
    pub can_publish: bool,
    pub has_left: bool,
    pub is_dead: bool,
    pub knows_tracked_tasks: bool,
    pub knows_paused_topics: bool,
    pub knows_expiry: bool,
    pub knows_overlap: bool,
    pub started_at: Timestamp,
    pub beat_at: Timestamp,
}

/// The answer to a heartbeat, or to a read.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct HeartbeatAnswer {
    /// Postgres's clock, read between the question and the answer.
    pub postgres_now: Timestamp,
    /// The rows of all other nodes. Of more than 1,000 rows, far above any number of nodes, the
    /// living and the latest.
    pub rows: Vec<HeartbeatRow>,
    /// When the row of the node was created. `None` in the answer to a read.
    pub started_at: Option<Timestamp>,
    /// The node had been declared dead, or its row was gone, so the batches may have been adopted.
    /// The node counts as alive again.
    pub is_revived: bool,
}

/// The connection for heartbeats. Nothing else waits on it.
#[derive(Debug)]
pub struct Heartbeats {
    connection: Connection,
    started_at: Option<Timestamp>,
    /// A revival that no answer has reported yet.
    is_revived: bool,
    unsettled: SharedUnsettledFloor,
}

impl Heartbeats {
    /// `ttl` is the TTL of sessions. The deadline of each call is half of it. A later answer would
    /// be useless, because it is a gap that restarts the observation of all others. Half a TTL also
    /// leaves time for a second attempt before the node is fenced at 5/6 of the TTL.
    pub fn new(settings: &PostgresSettings, ttl: Duration) -> Self {
        let purpose = ConnectionPurpose { name: "heartbeat", deadline: ttl / 2, settings: &[] };
        let (connection, unsettled) =
            (Connection::new(settings, purpose), settings.unsettled_floor().clone());
        Self { connection, started_at: None, is_revived: false, unsettled }
    }

    /// Writes the row of the node and reads all others, in one round trip. The top of the file says
    /// what an answer proves. If the node was declared dead, a second statement revives it before
    /// the caller gets the answer. So no other node adopts its batches any more when the caller
    /// learns of the revival.
    pub async fn beat(&mut self, beat: &Beat) -> Result<HeartbeatAnswer, PostgresError> {
        let rows = self
            .connection
            .run("write the heartbeat", async |connection| send(connection, beat).await)
            .await?;
        let (mut answer, was_dead) = decode(&rows)
            .map_err(|source| PostgresError::new("read the heartbeats", source.into()))?;
        // A row that was deleted and created again has another start time.
        let was_forgotten = self.started_at.is_some() && self.started_at != answer.started_at;
        self.started_at = answer.started_at;
        // Kept until an answer has reported it: a revival may be committed while its own answer is
        // lost.
        self.is_revived |= was_dead || was_forgotten;
        if was_dead {
            let node = beat.node.uuid();
            self.execute("revive this node", async |connection| {
                sqlx::query(REVIVE).bind(node).execute(connection).await
            })
            .await?;
        }
        answer.is_revived = std::mem::take(&mut self.is_revived);
        Ok(answer)
    }

    /// Reads the rows of all nodes except `node`, and writes nothing.
    pub async fn read(&mut self, node: NodeId) -> Result<HeartbeatAnswer, PostgresError> {
        let rows = self
            .connection
            .run("read the heartbeats", async |connection| {
                sqlx::query(READ).bind(node.uuid()).fetch_all(connection).await
            })
            .await?;
        let (answer, _) = decode(&rows)
            .map_err(|source| PostgresError::new("read the heartbeats", source.into()))?;
        Ok(answer)
    }

    /// Reads Postgres's clock only. A heartbeat waits for the disk between stamp and answer, which
    /// would make the estimate of the clock late.
    pub async fn stamp(&mut self) -> Result<Timestamp, PostgresError> {
        let micros: i64 = self
            .connection
            .run("read the clock", async |connection| {
                sqlx::query_scalar(STAMP).fetch_one(connection).await
            })
            .await?;
        Ok(Timestamp::from_micros(micros))
    }

    /// Declares `node` dead, provided that the counter is still `counter`. Returns false when the
    /// counter has moved, or another node was quicker.
    pub async fn declare_dead(
        &mut self,
        node: NodeId,
        counter: i64,
    ) -> Result<bool, PostgresError> {
        let touched = self
            .execute("declare a node dead", async |connection| {
                sqlx::query(DECLARE_DEAD).bind(node.uuid()).bind(counter).execute(connection).await
            })
            .await?;
        Ok(touched == 1)
    }

    /// Deletes the rows of dead nodes that no unsettled batch names and whose last heartbeat is
    /// older than `age`. A node without a row counts as dead.
    pub async fn forget(&mut self, age: Duration) -> Result<u64, PostgresError> {
        let (seconds, from) = (age.as_secs_f64(), self.unsettled.get().uuid());
        self.execute("forget dead nodes", async |connection| {
            sqlx::query(FORGET).bind(seconds).bind(from).execute(connection).await
        })
        .await
    }

    async fn execute<F>(&mut self, what: &str, statement: F) -> Result<u64, PostgresError>
    where
        F: AsyncFnOnce(&mut PgConnection) -> Result<sqlx::postgres::PgQueryResult, sqlx::Error>,
    {
        Ok(self.connection.run(what, statement).await?.rows_affected())
    }
}

async fn send(connection: &mut PgConnection, beat: &Beat) -> Result<Vec<PgRow>, sqlx::Error> {
    sqlx::query(BEAT)
        .bind(beat.node.uuid())
        .bind(&beat.name)
        .bind(&beat.address)
        .bind(&beat.version)
        .bind(beat.counter)
        .bind(beat.has_broker)
        .bind(beat.can_publish)
        .bind(beat.has_left)
        .bind(LEVEL)
        .fetch_all(connection)
        .await
}

/// Returns the answer, and whether the node's own row says dead. Without other nodes, the statement
/// returns one row whose `node` is NULL.
fn decode(rows: &[PgRow]) -> Result<(HeartbeatAnswer, bool), sqlx::Error> {
    let first = rows.first().ok_or(sqlx::Error::RowNotFound)?;
    let was_dead: Option<bool> = first.try_get("was_dead")?;
    let started_at = first.try_get::<Option<i64>, _>("my_started_at")?.map(Timestamp::from_micros);
    let mut others = Vec::with_capacity(rows.len());
    for row in rows {
        if row.try_get::<Option<Uuid>, _>("node")?.is_some() {
            others.push(other(row)?);
        }
    }
    let answer = HeartbeatAnswer {
        postgres_now: timestamp(first, "now")?,
        rows: others,
        started_at,
        is_revived: false,
    };
    Ok((answer, was_dead.unwrap_or(false)))
}

fn other(row: &PgRow) -> Result<HeartbeatRow, sqlx::Error> {
    let level: i16 = row.try_get("level")?;
    Ok(HeartbeatRow {
        node: NodeId::from_uuid(row.try_get("node")?),
        name: row.try_get("name")?,
        address: row.try_get("address")?,
        version: row.try_get("version")?,
        counter: row.try_get("counter")?,
        has_broker: row.try_get("has_broker")?,
        can_publish: row.try_get("can_publish")?,
        has_left: row.try_get("has_left")?,
        is_dead: row.try_get("dead")?,
        knows_tracked_tasks: level >= LEVEL_WITH_TRACKED_TASKS,
        knows_paused_topics: level >= LEVEL_WITH_PAUSED_TOPICS,
        knows_expiry: level >= LEVEL_WITH_EXPIRY,
        knows_overlap: level >= LEVEL_WITH_OVERLAP,
        started_at: timestamp(row, "started_at")?,
        beat_at: timestamp(row, "beat_at")?,
    })
}

fn timestamp(row: &PgRow, column: &str) -> Result<Timestamp, sqlx::Error> {
    Ok(Timestamp::from_micros(row.try_get(column)?))
}

/// Marks an ended node as dead, so others adopt the unsettled batches at once. Returns false when
/// there was no heartbeat.
pub async fn retire(settings: &PostgresSettings, node: NodeId) -> Result<bool, PostgresError> {
    let mut connection = Connection::new(
        settings,
        ConnectionPurpose { name: "retire", deadline: Duration::from_secs(2), settings: &[] },
    );
    let done = connection
        .run("mark the heartbeat of this node as dead", async |open| {
            sqlx::query(RETIRE).bind(node.uuid()).execute(open).await
        })
        .await?;
    Ok(done.rows_affected() == 1)
}
