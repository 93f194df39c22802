//! Settle: writes the outcomes and receipts of batches. Only their owner can, and only once.

mod batches;
pub(in crate::postgres::tasks) mod next_rows;
mod settlement;
mod tracked;

use std::time::Duration;

use sqlx::Row as _;
use sqlx::postgres::PgConnection;
use uuid::Uuid;

use self::batches::bind_batches;
use self::settlement::SettleRow;
use super::sealed::refused;
use crate::domain::{BatchId, NodeId};
use crate::postgres::connection::error::PostgresError;
use crate::postgres::connection::{Connection, ConnectionPurpose, PostgresSettings};
use crate::sealing::PayloadKeys;

pub use self::settlement::{SettleTerms, Settled, Settlement};
pub(in crate::postgres::tasks) use self::tracked::follow_of;

const PURPOSE: ConnectionPurpose = ConnectionPurpose {
    name: "settle",
    deadline: Duration::from_secs(10),
    // A settle that a crash of Postgres undoes is repeated from memory, or its batch is published
    // again. So a settle need not wait for the disk. No other statement may do this.
    settings: &[("synchronous_commit", "off"), ("plan_cache_mode", "force_custom_plan")],
};

/// Settles several batches in one statement: their arrays are concatenated, and each batch takes
/// its slice. The ids are given twice: a join alone is not an index condition, and each settle
/// would scan the whole index, with an entry for each batch since the last vacuum (7 ms for
/// 540,000).
const SETTLE: &str = "-- settle
update execlog_batch b
set settled_at = clock_timestamp(),
  width_class = s.width_class, id_from = s.id_from, id_to = s.id_to,
  topic_names = ($7::text[])[s.topic_low:s.topic_high],
  topic_indexes = case when s.has_indexes then ($8::smallint[])[s.low:s.high] end,
  outcomes = ($9::smallint[])[s.low:s.high],
  partitions = ($10::integer[])[s.low:s.high],
  offsets = ($11::bigint[])[s.low:s.high],
  published_ats = ($12::bigint[])[s.low:s.high]
from unnest($2::uuid[], $3::smallint[], $4::uuid[], $5::uuid[], $6::boolean[], $13::integer[],
  $14::integer[], $15::integer[], $16::integer[])
  as s(batch, width_class, id_from, id_to, has_indexes, low, high, topic_low, topic_high)
where b.batch = any($2) and b.batch = s.batch and b.owner = $1 and b.settled_at is null
returning b.batch";

/// Settles one batch with follow-ups, dead letters, ends of later attempts or names to keep. All
/// parts depend on the updated row, so neither the settle of a node that has lost the batch nor a
/// repeated settle creates a second follow-up. Follow-ups and dead letters take the submitters of
/// their tasks, and the times that the tasks were moved to, from the row of the batch. A task that
/// was finished in flight stays finished (5, `names::FINISHED`), whatever the outcome of its
/// record.
///
/// `|| '{}'` makes Postgres unpack a stored array once, not for each element.
const SETTLE_WITH_FOLLOW_UPS: &str = "-- settle with follow-ups
with settled as (
  update execlog_batch
  set settled_at = clock_timestamp(), width_class = $3, id_from = $4, id_to = $5, topic_names = $6,
    topic_indexes = $7, outcomes = $8,
    partitions = $9, offsets = $10, published_ats = $11, next_ids = $12
  where batch = $2 and owner = $1 and settled_at is null
  returning batch, submitted_by || '{}'::smallint[] as submitted_by,
    submitted_ats || '{}'::bigint[] as submitted_ats, moved_tos || '{}'::bigint[] as moved_tos
), follow_up as (
  insert into task (id, shard, first_id, topic, key, payload, headers, name, attempt, submitted_by,
    submitted_at, moved_to)
  select f.id, f.shard, f.first_id, f.topic, f.key, f.payload, f.headers, f.name, f.attempt,
    s.submitted_by[least(f.position, cardinality(s.submitted_by))],
    s.submitted_ats[least(f.position, cardinality(s.submitted_ats))], s.moved_tos[f.position]
  from settled s
  cross join unnest($13::uuid[], $14::smallint[], $15::uuid[], $16::text[], $17::bytea[],
    $18::bytea[], $19::bytea[], $20::text[], $21::smallint[], $22::integer[])
    as f(id, shard, first_id, topic, key, payload, headers, name, attempt, position)
), moved as (
  insert into task_follow (first_id, row_id, maybe_sent)
  select f.first_id, f.id, f.maybe_sent
  from settled
  cross join unnest($13::uuid[], $15::uuid[], $23::boolean[]) as f(id, first_id, maybe_sent)
  order by f.first_id
  on conflict (first_id) do update set row_id = excluded.row_id,
    maybe_sent = task_follow.maybe_sent or excluded.maybe_sent
), dead as (
  insert into dead_letter (row_id, id, topic, key, payload, headers, name, attempts, reason,
    submitted_by, submitted_at, moved_to)
  select d.row_id, d.first_id, d.topic, d.key, d.payload, d.headers, d.name, d.attempt, d.reason,
    s.submitted_by[least(d.position, cardinality(s.submitted_by))],
    s.submitted_ats[least(d.position, cardinality(s.submitted_ats))], s.moved_tos[d.position]
  from settled s
  cross join unnest($24::uuid[], $25::uuid[], $26::text[], $27::bytea[], $28::bytea[],
    $29::bytea[], $30::text[], $31::smallint[], $32::integer[], $33::text[])
    as d(row_id, first_id, topic, key, payload, headers, name, attempt, position, reason)
), ended as (
  delete from task_follow using settled where first_id = any($34::uuid[])
), line as (
  insert into execlog_ended (id, row_id)
  select e.first_id, e.row_id from settled cross join unnest($34::uuid[], $35::uuid[])
    as e(first_id, row_id)
), named as (
  update task_name n
  set row_id = coalesce(m.next, n.row_id),
    outcome = case when n.outcome = 5 then 5 else m.outcome end,
    expires_at = greatest(n.expires_at, coalesce(punctual_time(m.next),
      clock_timestamp()) + make_interval(secs => $41))
  from settled
  cross join unnest($36::text[], $37::text[], $38::uuid[], $39::uuid[], $40::smallint[]) as m(topic,
    name, first_id, next, outcome)
  where n.topic = m.topic and n.name = m.name and n.id = m.first_id
)
select batch from settled";

/// The connection for settles.
#[derive(Debug)]
pub struct Settles {
    connection: Connection,
    node: NodeId,
    name_retention: Duration,
    keys: PayloadKeys,
}

impl Settles {
    /// A name is kept for `name_retention` after its task is final.
    pub fn new(settings: &PostgresSettings, node: NodeId, name_retention: Duration) -> Self {
        let keys = settings.payload_keys().clone();
        Self { connection: Connection::new(settings, PURPOSE), node, name_retention, keys }
    }

    /// Settles batches. The answer contains the batches that were unsettled and owned by this node.
    /// Any other batch was adopted by another node, or was settled by an earlier statement whose
    /// answer was lost.
    ///
    /// There are several transactions. On an error, batches that were settled before it are part of
    /// the answer. Nothing is known about the others.
    pub async fn settle(
        &mut self,
        settlements: &[&Settlement],
        terms: SettleTerms,
    ) -> (Settled, Result<(), PostgresError>) {
        let mut settled = Settled::default();
        let keys = self.keys.current();
        // Records are opened in memory. Those of new rows are sealed again.
        let sealed =
            settlements.iter().filter(|_one| keys.seals_now()).map(|one| one.sealed(&keys));
        let sealed = match sealed.collect::<Result<Vec<_>, _>>() {
            Ok(sealed) => sealed,
            Err(error) => {
                let error = PostgresError::new("settle batches", refused(error).into());
                return (settled, Err(error));
            }
        };
        let settlements: Vec<&Settlement> = settlements
            .iter()
            .enumerate()
            .map(|(index, plain)| sealed.get(index).and_then(Option::as_ref).unwrap_or(plain))
            .collect();
        let outcome = self.settle_each(&settlements, terms, &mut settled).await;
        (settled, outcome)
    }

    async fn settle_each(
        &mut self,
        settlements: &[&Settlement],
        terms: SettleTerms,
        settled: &mut Settled,
    ) -> Result<(), PostgresError> {
        let (plain, others): (Vec<&Settlement>, Vec<&Settlement>) =
            settlements.iter().partition(|settlement| settlement.is_plain());
        let (tracked, others): (Vec<&Settlement>, Vec<&Settlement>) =
            others.iter().partition(|settlement| !settlement.tracked.is_empty());
        let (node, name_retention) = (self.node.uuid(), self.name_retention);
        if !plain.is_empty() {
            let rows = self
                .connection
                .run("settle batches", async |connection| {
                    settle_plain(connection, node, &plain).await
                })
                .await?;
            settled.batches.extend(rows.into_iter().map(BatchId::from_uuid));
        }
        for settlement in others {
            let rows = self
                .connection
                .run("settle a batch with follow-ups", async |connection| {
                    settle_with_follow_ups(connection, node, settlement, name_retention).await
                })
                .await?;
            settled.batches.extend(rows.into_iter().map(BatchId::from_uuid));
        }
        if !tracked.is_empty() {
            let done = self
                .connection
                .run("settle batches with tracked tasks", async |connection| {
                    tracked::settle(connection, node, &tracked, terms, name_retention).await
                })
                .await?;
            settled.batches.extend(done.batches);
            (settled.rows, settled.timed_out, settled.exhausted) =
                (done.rows, done.timed_out, done.exhausted);
        }
        Ok(())
    }
}

async fn settle_plain(
    connection: &mut PgConnection,
    node: Uuid,
    settlements: &[&Settlement],
) -> Result<Vec<Uuid>, sqlx::Error> {
    let rows = bind_batches(sqlx::query(SETTLE), node, settlements).fetch_all(connection).await?;
    rows.iter().map(|row| row.try_get(0)).collect()
}

async fn settle_with_follow_ups(
    connection: &mut PgConnection,
    node: Uuid,
    settlement: &Settlement,
    name_retention: Duration,
) -> Result<Vec<Uuid>, sqlx::Error> {
    let query = sqlx::query_scalar::<_, Uuid>(SETTLE_WITH_FOLLOW_UPS)
        .bind(node)
        .bind(settlement.batch.uuid())
        .bind(settlement.width_class)
        .bind(settlement.id_from)
        .bind(settlement.id_to)
        .bind(&settlement.topic_names)
        .bind(&settlement.topic_indexes)
        .bind(&settlement.outcomes)
        .bind(&settlement.partitions)
        .bind(&settlement.offsets)
        .bind(&settlement.published_ats)
        .bind(&settlement.next_ids);
    let follow_ups = || settlement.follow_ups.iter();
    let query = query
        .bind(follow_ups().map(|f| f.id).collect::<Vec<_>>())
        .bind(follow_ups().map(|f| f.shard).collect::<Vec<_>>());
    let query = bind_rows(query, follow_ups().map(|f| &f.row))
        .bind(follow_ups().map(|f| f.maybe_sent).collect::<Vec<_>>());
    let dead = || settlement.dead.iter();
    let query = query.bind(dead().map(|d| d.row_id).collect::<Vec<_>>());
    let query = bind_rows(query, dead().map(|d| &d.row))
        .bind(dead().map(|d| d.reason.as_str()).collect::<Vec<_>>());
    let moves = || settlement.moves.iter();
    let ended = || settlement.ended.iter();
    query
        .bind(ended().map(|e| e.first_id).collect::<Vec<_>>())
        .bind(ended().map(|e| e.row_id).collect::<Vec<_>>())
        .bind(moves().map(|m| m.topic.as_str()).collect::<Vec<_>>())
        .bind(moves().map(|m| m.name.as_str()).collect::<Vec<_>>())
        .bind(moves().map(|m| m.first_id).collect::<Vec<_>>())
        .bind(moves().map(|m| m.next).collect::<Vec<_>>())
        .bind(moves().map(|m| m.outcome).collect::<Vec<_>>())
        .bind(name_retention.as_secs_f64())
        .fetch_all(connection)
        .await
}

type Query<'q> = sqlx::query::QueryScalar<'q, sqlx::Postgres, Uuid, sqlx::postgres::PgArguments>;

/// Binds eight arrays: first ids, topics, keys, payloads, headers, names, attempts, positions.
fn bind_rows<'q>(query: Query<'q>, rows: impl Iterator<Item = &'q SettleRow> + Clone) -> Query<'q> {
    let each = || rows.clone();
    query
        .bind(each().map(|row| row.first_id).collect::<Vec<_>>())
        .bind(each().map(|row| row.topic.as_str()).collect::<Vec<_>>())
        .bind(each().map(|row| row.key.as_deref()).collect::<Vec<_>>())
        .bind(each().map(|row| row.payload.as_deref()).collect::<Vec<_>>())
        .bind(each().map(|row| row.headers.as_deref()).collect::<Vec<_>>())
        .bind(each().map(|row| row.name.as_deref()).collect::<Vec<_>>())
        .bind(each().map(|row| row.attempt).collect::<Vec<_>>())
        .bind(each().map(|row| row.position).collect::<Vec<_>>())
}
