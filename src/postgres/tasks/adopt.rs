//! Adopt: takes over the unsettled batches of dead nodes. Also reads what a starting node needs to
//! know: its unsettled batches, and the topics of recent batches.

use std::ops::Range;
use std::time::Duration;

use sqlx::{Connection as _, Row as _};
use uuid::Uuid;

use super::claim::read_batch;
use crate::domain::{Batch, BatchId, NodeId, TopicName};
use crate::postgres::connection::error::PostgresError;
use crate::postgres::connection::{Connection, ConnectionPurpose, PostgresSettings};
use crate::sealing::PayloadKeys;

const PURPOSE: ConnectionPurpose = ConnectionPurpose {
    name: "adopt",
    deadline: Duration::from_secs(10),
    settings: &[("plan_cache_mode", "force_custom_plan")],
};

/// Maximum number of batches per round. The next round, or another node, adopts the rest.
pub const BATCHES_MAX: i64 = 64;

/// The living nodes are read into arrays once. When another node has adopted a row in between,
/// Postgres checks the condition again with the new owner of the row, and a `not exists` would
/// check with the old one (tried: two nodes took the same 64 batches). `$3` limits the index scan,
/// because the index keeps an entry for every batch that was ever settled under an old snapshot.
const ADOPT: &str = "-- adopt
update execlog_batch b
set owner = $1
where b.settled_at is null
  and b.batch = any (array(
    select u.batch
    from execlog_batch u
    where u.settled_at is null
      and u.batch >= $3
      and (u.owner is null
        or u.owner <> all (array(select h.node from heartbeat h where not h.dead)))
    order by u.batch
    limit $2
    for update skip locked))
  and (b.owner is null or b.owner <> all (array(select h.node from heartbeat h where not h.dead)))
returning b.batch";

const OWN_UNSETTLED: &str = "-- own unsettled
select batch from execlog_batch where settled_at is null and owner = $1 and batch >= $2";

const OLDEST: &str = "-- oldest batch
select batch from execlog_batch order by batch limit 1";

const OLDEST_UNSETTLED: &str = "-- oldest unsettled
select batch from execlog_batch where settled_at is null and batch >= $1 and batch < $2
  order by batch limit 1";

const LIMIT_LOOK_BACK: &str = "-- limit a look back
select set_config('statement_timeout', $1, true)";

const LOAD: &str = "-- load
select b.ids, b.first_ids, b.attempts, b.names, p.topics, p.keys, p.payloads, p.headers,
  b.trackings, b.moved_tos, array(select topic from topic_policy where is_paused) as paused
from execlog_batch b
join execlog_payload p on p.batch = b.batch
where b.batch = $1 and b.owner = $2 and b.settled_at is null";

const FREE: &str = "-- free
update execlog_batch set owner = null where batch = any($1) and owner = $2 and settled_at is null
  returning batch";

/// The connection for batches that this node does not have in memory.
#[derive(Debug)]
pub struct Adoptions {
    connection: Connection,
    node: NodeId,
    keys: PayloadKeys,
}

impl Adoptions {
    pub fn new(settings: &PostgresSettings, node: NodeId) -> Self {
        let keys = settings.payload_keys().clone();
        Self { connection: Connection::new(settings, PURPOSE), node, keys }
    }

    /// Makes this node the owner of unsettled batches without a living owner, from `from` on, at
    /// most [`BATCHES_MAX`]. The condition is the absence of a living owner, not a list of the
    /// dead: a batch of an unknown node is adopted as well.
    ///
    /// # Errors
    /// After [`PostgresError::Unanswered`] the batches may or may not have been adopted. After any
    /// other error none was.
    pub async fn adopt(&mut self, from: BatchId) -> Result<Vec<BatchId>, PostgresError> {
        let (node, from) = (self.node.uuid(), from.uuid());
        let adopted = self
            .connection
            .run("adopt batches", async |connection| {
                sqlx::query_scalar::<_, Uuid>(ADOPT)
                    .bind(node)
                    .bind(BATCHES_MAX)
                    .bind(from)
                    .fetch_all(connection)
                    .await
            })
            .await?;
        Ok(adopted.into_iter().map(BatchId::from_uuid).collect())
    }

    /// Returns the oldest batch, settled or not.
    pub async fn oldest(&mut self) -> Result<Option<BatchId>, PostgresError> {
        let oldest = self
            .connection
            .run("look for the oldest batch", async |connection| {
                sqlx::query_scalar::<_, Uuid>(OLDEST).fetch_optional(connection).await
            })
            .await?;
        Ok(oldest.map(BatchId::from_uuid))
    }

    /// Returns the oldest unsettled batch among `ids`, of any owner. The query scans all settled
    /// batches there, so ask rarely. The query takes at most `patience`, also as a deadline of the
    /// server, and at most the deadline of any statement here.
    ///
    /// # Errors
    /// [`PostgresError::GaveWay`] when the server did not finish in time.
    pub async fn oldest_unsettled(
        &mut self,
        ids: Range<BatchId>,
        patience: Duration,
    ) -> Result<Option<BatchId>, PostgresError> {
        // The server gives up before the client does, so that the session survives.
        let (from, to, patience) =
            (ids.start.uuid(), ids.end.uuid(), patience.min(PURPOSE.deadline / 10 * 9));
        let oldest = self
            .connection
            .run("look for the oldest unsettled batch", async |connection| {
                let mut transaction = connection.begin().await?;
                sqlx::query(LIMIT_LOOK_BACK)
                    .bind(patience.as_millis().to_string())
                    .execute(&mut *transaction)
                    .await?;
                let oldest = sqlx::query_scalar::<_, Uuid>(OLDEST_UNSETTLED).bind(from).bind(to);
                let oldest = oldest.fetch_optional(&mut *transaction).await?;
                transaction.commit().await?;
                Ok(oldest)
            })
            .await?;
        Ok(oldest.map(BatchId::from_uuid))
    }

    /// Returns all unsettled batches of this node from `from` on.
    pub async fn own_unsettled(&mut self, from: BatchId) -> Result<Vec<BatchId>, PostgresError> {
        let (node, from) = (self.node.uuid(), from.uuid());
        let own = self
            .connection
            .run("look for own unsettled batches", async |connection| {
                sqlx::query_scalar::<_, Uuid>(OWN_UNSETTLED)
                    .bind(node)
                    .bind(from)
                    .fetch_all(connection)
                    .await
            })
            .await?;
        Ok(own.into_iter().map(BatchId::from_uuid).collect())
    }

    /// Reads a batch of this node. Returns `None` when the batch is not, or no longer, unsettled
    /// and owned by this node, or when its payload is being detached. In the latter case the caller
    /// tries again: a missing payload never means that there is nothing to publish. Returns the
    /// paused topics, too.
    pub async fn load(
        &mut self,
        batch: BatchId,
    ) -> Result<Option<(Batch, Vec<TopicName>)>, PostgresError> {
        let (node, keys) = (self.node.uuid(), self.keys.current());
        self.connection
            .run("load a batch", async |connection| {
                let row = sqlx::query(LOAD)
                    .bind(batch.uuid())
                    .bind(node)
                    .fetch_optional(connection)
                    .await?;
                let Some(row) = row else { return Ok(None) };
                let paused: Vec<String> = row.try_get("paused")?;
                let paused = paused.iter().map(|topic| TopicName::stored(topic)).collect();
                Ok(read_batch(&row, 0, batch, &keys)?.map(|batch| (batch, paused)))
            })
            .await
    }

    /// Releases batches for other nodes to adopt. Returns the ids of those that this node owned.
    ///
    /// # Errors
    /// After [`PostgresError::Unanswered`] the batches may or may not have been released. After any
    /// other error none was.
    pub async fn free(&mut self, batches: &[BatchId]) -> Result<Vec<BatchId>, PostgresError> {
        let ids: Vec<Uuid> = batches.iter().map(|batch| batch.uuid()).collect();
        let node = self.node.uuid();
        let freed = self
            .connection
            .run("free batches", async |connection| {
                sqlx::query_scalar::<_, Uuid>(FREE).bind(ids).bind(node).fetch_all(connection).await
            })
            .await?;
        Ok(freed.into_iter().map(BatchId::from_uuid).collect())
    }
}

const RECENT_PURPOSE: ConnectionPurpose =
    ConnectionPurpose { name: "recent topics", deadline: Duration::from_secs(2), settings: &[] };

const RECENT: &str = "-- recent topics
select distinct unnest(topic_names) as topic
from (select topic_names from execlog_batch where settled_at is not null order by batch desc
  limit 200) latest
limit 100";

/// Returns at most 100 topics of the latest 200 batches. A starting node fetches their metadata
/// before it publishes, because the first second is the slowest.
pub async fn recent_topics(settings: &PostgresSettings) -> Result<Vec<TopicName>, PostgresError> {
    let mut connection = Connection::new(settings, RECENT_PURPOSE);
    let names = connection
        .run("read the topics of the latest batches", async |open| {
            sqlx::query_scalar::<_, String>(RECENT).fetch_all(open).await
        })
        .await?;
    Ok(names.iter().map(|name| TopicName::stored(name)).collect())
}
