//! Settle: writes the outcomes and receipts of batches. Only their owner can, and only once.

use std::collections::HashSet;
use std::time::Duration;

use az::SaturatingAs as _;
use sqlx::postgres::{PgArguments, PgConnection};
use sqlx::query::QueryScalar;
use sqlx::{Postgres, Row as _};
use uuid::Uuid;

use self::tracked::Tracked;
use crate::domain::{
    Batch, BatchId, IdRange, NodeId, Outcome, TaskId, Timestamp, width_class::Reach,
};
use crate::postgres::connection::error::PostgresError;
use crate::postgres::connection::{Connection, ConnectionPurpose, PostgresSettings};

/// Settles several batches in one statement: their arrays are concatenated, and each batch takes
/// its slice. The ids are given twice: a join alone is not an index condition, and each settle
/// would scan the whole index, with an entry for each batch since the last vacuum (7 ms for
/// 540,000).
macro_rules! settle_text {
    ($name:literal, $next_ids:literal, $returning:literal) => {
        concat!(
            "-- ",
            $name,
            "
update execlog_batch b
set settled_at = clock_timestamp(),
  width_class = s.width_class, id_from = s.id_from, id_to = s.id_to,
  topic_names = ($7::text[])[s.topic_low:s.topic_high],
  topic_indexes = case when s.has_indexes then ($8::smallint[])[s.low:s.high] end,
  outcomes = ($9::smallint[])[s.low:s.high],
  partitions = ($10::integer[])[s.low:s.high],
  offsets = ($11::bigint[])[s.low:s.high],
  published_ats = ($12::bigint[])[s.low:s.high]",
            $next_ids,
            "
from unnest($2::uuid[], $3::smallint[], $4::uuid[], $5::uuid[], $6::boolean[], $13::integer[],
  $14::integer[], $15::integer[], $16::integer[])
  as s(batch, width_class, id_from, id_to, has_indexes, low, high, topic_low, topic_high)
where b.batch = any($2) and b.batch = s.batch and b.owner = $1 and b.settled_at is null
returning b.batch",
            $returning
        )
    };
}

// The module uses the macro above it.
mod tracked;
pub(in crate::postgres::tasks) use self::tracked::follow_of;

const PURPOSE: ConnectionPurpose = ConnectionPurpose {
    name: "settle",
    deadline: Duration::from_secs(10),
    // A settle that a crash of Postgres undoes is repeated from memory, or its batch is published
    // again. So a settle need not wait for the disk. No other statement may do this.
    settings: &[("synchronous_commit", "off"), ("plan_cache_mode", "force_custom_plan")],
};

/// The entry of a named task that is published later than this after its due time is kept for that
/// much longer. The retention of names is not exact below this.
const LATE: Duration = Duration::from_secs(60);

/// The outcomes of one batch, ready to be written.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Settlement {
    pub batch: BatchId,
    width_class: i16,
    id_from: Uuid,
    id_to: Uuid,
    topic_names: Vec<String>,
    topic_indexes: Option<Vec<i16>>,
    outcomes: Vec<i16>,
    partitions: Vec<i32>,
    offsets: Vec<i64>,
    published_ats: Vec<i64>,
    next_ids: Option<Vec<Option<Uuid>>>,
    follow_ups: Vec<FollowUp>,
    dead: Vec<DeadTask>,
    /// Later attempts that are final now.
    ended: Vec<Ended>,
    /// Names that are kept for longer than their due time requires.
    moves: Vec<Move>,
    tracked: Vec<Tracked>,
}

/// The facts that a settle does not have in memory.
#[derive(Clone, Copy, Debug, Default)]
pub struct SettleTerms {
    /// Leaves are attached up to here. Attempts that are due later go to `task_far`.
    pub leaves_end: Timestamp,
    /// A lower bound of Postgres's clock.
    pub now: Timestamp,
    /// See [`ClusterSettings::window`](crate::domain::ClusterSettings).
    pub window: Duration,
}

/// The result of a settle.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Settled {
    /// The batches that were unsettled and owned by this node.
    pub batches: HashSet<BatchId>,
    /// The ids of new rows of tracked tasks in `task`.
    pub rows: Option<IdRange>,
    /// Attempts whose consumers stayed silent for their time to run.
    pub timed_out: u64,
    /// Tracked tasks that were given up because they were not finished.
    pub exhausted: u64,
}

/// A change of the entry of a name. The entry follows its task: to its next row, or to the moment
/// at which it became final.
#[derive(Clone, PartialEq, Eq, Debug)]
struct Move {
    topic: String,
    name: String,
    first_id: Uuid,
    /// The row of the follow-up, or `None` when the task is final.
    next: Option<Uuid>,
    is_dead: bool,
}

/// A task that has ended as a later row than its first. Its line leads from the first id to the
/// receipt, for as long as the receipt is kept.
#[derive(Clone, PartialEq, Eq, Debug)]
struct Ended {
    first_id: Uuid,
    row_id: Uuid,
}

#[derive(Clone, PartialEq, Eq, Debug)]
struct SettleRow {
    first_id: Uuid,
    topic: String,
    key: Option<Vec<u8>>,
    payload: Option<Vec<u8>>,
    headers: Option<Vec<u8>>,
    name: Option<String>,
    attempt: i16,
    /// 1-based place in the arrays of the batch, which have the submitter.
    position: i32,
}

#[derive(Clone, PartialEq, Eq, Debug)]
struct FollowUp {
    id: Uuid,
    shard: i16,
    maybe_sent: bool,
    row: SettleRow,
}

#[derive(Clone, PartialEq, Eq, Debug)]
struct DeadTask {
    row_id: Uuid,
    reason: String,
    row: SettleRow,
}

impl Settlement {
    /// Prepares the settle of `batch`. `outcomes` are in the order of its tasks.
    ///
    /// # Panics
    /// When there is not exactly one outcome per task.
    pub fn new(batch: &Batch, outcomes: &[Outcome]) -> Self {
        assert_eq!(
            batch.len(),
            outcomes.len(),
            "a batch is settled when each of its tasks has an outcome"
        );
        let reach = Reach::of((0..batch.len()).map(|index| batch.id_of(index)));
        let has_one_topic = batch.topics().len() == 1;
        let has_next = outcomes
            .iter()
            .any(|outcome| matches!(outcome, Outcome::Deferred { .. } | Outcome::Attempted { .. }));
        let mut settlement = Self {
            batch: batch.id,
            width_class: reach.map_or(0, |reach| reach.width_class.as_smallint()),
            id_from: reach.map_or_else(Uuid::nil, |reach| reach.from.uuid()),
            id_to: reach.map_or_else(Uuid::nil, |reach| reach.to.uuid()),
            topic_names: batch.topics().iter().map(ToString::to_string).collect(),
            topic_indexes: (!has_one_topic).then(|| {
                batch
                    .tasks()
                    .map(|task| task.topic.saturating_as::<i16>().saturating_add(1))
                    .collect()
            }),
            outcomes: outcomes.iter().map(Outcome::code).collect(),
            partitions: Vec::with_capacity(outcomes.len()),
            offsets: Vec::with_capacity(outcomes.len()),
            published_ats: Vec::with_capacity(outcomes.len()),
            next_ids: has_next.then(|| vec![None; outcomes.len()]),
            follow_ups: Vec::new(),
            dead: Vec::new(),
            ended: Vec::new(),
            moves: Vec::new(),
            tracked: Vec::new(),
        };
        for (index, outcome) in outcomes.iter().enumerate() {
            settlement.add(batch, index, outcome);
        }
        // All statements lock entries in this order.
        settlement.moves.sort_unstable_by(|a, b| (&a.topic, &a.name).cmp(&(&b.topic, &b.name)));
        settlement
    }

    fn add(&mut self, batch: &Batch, index: usize, outcome: &Outcome) {
        let task = batch.task(index);
        let (partition, offset, published_at) = outcome.receipt().map_or((-1, -1, 0), |receipt| {
            (receipt.partition, receipt.offset, receipt.published_at.as_millis())
        });
        self.partitions.push(partition);
        self.offsets.push(offset);
        self.published_ats.push(published_at);
        let is_later_attempt = task.first_id != task.id;
        if let Some(tracked) = Tracked::of(batch, index, outcome) {
            if let (Some(next_ids), Some(next)) = (&mut self.next_ids, tracked.next) {
                next_ids[index] = Some(next.uuid());
            }
            self.tracked.push(tracked);
            return;
        }
        if let Some(name) = task.name {
            self.keep_name(batch, index, outcome, name);
        }
        match outcome {
            Outcome::Published(_) | Outcome::Attempted { .. } => {}
            Outcome::Deferred { next, maybe_sent } => {
                if let Some(next_ids) = &mut self.next_ids {
                    next_ids[index] = Some(next.uuid());
                }
                let row = SettleRow::of(batch, index, task.attempt.saturating_add(1));
                self.follow_ups.push(FollowUp {
                    id: next.uuid(),
                    shard: next.shard().as_smallint(),
                    maybe_sent: *maybe_sent,
                    row,
                });
                return;
            }
            Outcome::Dead { reason, .. } => {
                let row = SettleRow::of(batch, index, task.attempt);
                self.dead.push(DeadTask {
                    row_id: task.id.uuid(),
                    reason: reason.replace('\0', " "),
                    row,
                });
            }
        }
        if is_later_attempt {
            self.ended.push(Ended { first_id: task.first_id.uuid(), row_id: task.id.uuid() });
        }
    }

    /// Keeps the entry of a name for longer where that is necessary. Most tasks are published on
    /// time, and their entry is right already.
    fn keep_name(&mut self, batch: &Batch, index: usize, outcome: &Outcome, name: &[u8]) {
        let task = batch.task(index);
        let next = match outcome {
            Outcome::Published(receipt)
                if receipt.published_at <= task.first_id.due_at().plus(LATE) =>
            {
                return;
            }
            Outcome::Published(_) | Outcome::Attempted { .. } | Outcome::Dead { .. } => None,
            Outcome::Deferred { next, .. } => Some(next.uuid()),
        };
        self.moves.push(Move {
            topic: batch.topics()[usize::from(task.topic)].to_string(),
            name: String::from_utf8_lossy(name).into_owned(),
            first_id: task.first_id.uuid(),
            next,
            is_dead: matches!(outcome, Outcome::Dead { .. }),
        });
    }

    /// Moves follow-ups that are due before `now` to `now`. When a settle is repeated after a long
    /// outage, their leaf may be gone, and the settle would be refused for ever.
    pub fn put_off_until(&mut self, now: Timestamp) {
        let put_off = |id: &mut Uuid| *id = TaskId::from_uuid(*id).due_at_least(now).uuid();
        self.follow_ups.iter_mut().for_each(|follow_up| put_off(&mut follow_up.id));
        self.next_ids.iter_mut().flatten().flatten().for_each(put_off);
        self.moves.iter_mut().filter_map(|moved| moved.next.as_mut()).for_each(put_off);
        for next in self.tracked.iter_mut().filter_map(|tracked| tracked.next.as_mut()) {
            *next = next.due_at_least(now);
        }
    }

    /// Returns true when only the row of the batch itself is written.
    fn is_plain(&self) -> bool {
        self.follow_ups.is_empty()
            && self.dead.is_empty()
            && self.ended.is_empty()
            && self.moves.is_empty()
            && self.tracked.is_empty()
    }

    pub fn task_count(&self) -> usize {
        self.outcomes.len()
    }

    /// Returns the ids of the new rows of deferred tasks.
    pub fn follow_up_ids(&self) -> Option<IdRange> {
        IdRange::spanning(self.follow_ups.iter().map(|follow_up| TaskId::from_uuid(follow_up.id)))
    }
}

impl SettleRow {
    fn of(batch: &Batch, index: usize, attempt: i16) -> Self {
        let task = batch.task(index);
        Self {
            first_id: task.first_id.uuid(),
            topic: batch.topics()[usize::from(task.topic)].to_string(),
            key: task.key.map(<[u8]>::to_vec),
            payload: task.payload.map(<[u8]>::to_vec),
            headers: Some(task.headers.to_vec()).filter(|headers| !headers.is_empty()),
            name: task.name.map(|name| String::from_utf8_lossy(name).into_owned()),
            attempt,
            position: index.saturating_as::<i32>().saturating_add(1),
        }
    }
}

const SETTLE: &str = settle_text!("settle", "", "");

/// Settles one batch with follow-ups, dead letters, ends of later attempts or names to keep. All of
/// it depends on the updated row, so that neither a zombie's settle nor a repeated one creates a
/// second follow-up. Follow-ups and dead letters take their submitters from the row of the batch.
/// The empty arrays there make Postgres unpack the stored ones once, not for each element.
const SETTLE_WITH_FOLLOW_UPS: &str = "-- settle with follow-ups
with settled as (
  update execlog_batch
  set settled_at = clock_timestamp(), width_class = $3, id_from = $4, id_to = $5, topic_names = $6,
    topic_indexes = $7, outcomes = $8,
    partitions = $9, offsets = $10, published_ats = $11, next_ids = $12
  where batch = $2 and owner = $1 and settled_at is null
  returning batch, submitted_by || '{}'::smallint[] as submitted_by,
    submitted_ats || '{}'::bigint[] as submitted_ats
), follow_up as (
  insert into task (id, shard, first_id, topic, key, payload, headers, name, attempt, submitted_by,
    submitted_at)
  select f.id, f.shard, f.first_id, f.topic, f.key, f.payload, f.headers, f.name, f.attempt,
    s.submitted_by[least(f.position, cardinality(s.submitted_by))],
    s.submitted_ats[least(f.position, cardinality(s.submitted_ats))]
  from settled s
  cross join unnest($13::uuid[], $14::smallint[], $15::uuid[], $16::text[], $17::bytea[],
    $18::bytea[], $19::bytea[], $20::text[], $21::smallint[], $22::integer[])
    as f(id, shard, first_id, topic, key, payload, headers, name, attempt, position)
), moved as (
  insert into task_follow (first_id, row_id, maybe_sent)
  select f.first_id, f.id, f.maybe_sent
  from settled
  cross join unnest($13::uuid[], $15::uuid[], $23::boolean[]) as f(id, first_id, maybe_sent)
  on conflict (first_id) do update set row_id = excluded.row_id,
    maybe_sent = task_follow.maybe_sent or excluded.maybe_sent
), dead as (
  insert into dead_letter (row_id, id, topic, key, payload, headers, name, attempts, reason,
    submitted_by, submitted_at)
  select d.row_id, d.first_id, d.topic, d.key, d.payload, d.headers, d.name, d.attempt, d.reason,
    s.submitted_by[least(d.position, cardinality(s.submitted_by))],
    s.submitted_ats[least(d.position, cardinality(s.submitted_ats))]
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
  set row_id = coalesce(m.next, n.row_id), outcome = case when m.is_dead then 3 end,
    expires_at = greatest(n.expires_at, coalesce(punctual_time(m.next),
      clock_timestamp()) + make_interval(secs => $41))
  from settled
  cross join unnest($36::text[], $37::text[], $38::uuid[], $39::uuid[], $40::boolean[]) as m(topic,
    name, first_id, next, is_dead)
  where n.topic = m.topic and n.name = m.name and n.id = m.first_id
)
select batch from settled";

/// The connection for settles.
#[derive(Debug)]
pub struct Settles {
    connection: Connection,
    node: NodeId,
    name_retention: Duration,
}

impl Settles {
    /// A name is kept for `name_retention` after its task is final.
    pub fn new(settings: &PostgresSettings, node: NodeId, name_retention: Duration) -> Self {
        Self { connection: Connection::new(settings, PURPOSE), node, name_retention }
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
        let outcome = self.settle_each(settlements, terms, &mut settled).await;
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

/// Binds the sixteen parameters of [`settle_text`].
fn bind_batches<'q>(
    query: sqlx::query::Query<'q, Postgres, PgArguments>,
    node: Uuid,
    settlements: &[&'q Settlement],
) -> sqlx::query::Query<'q, Postgres, PgArguments> {
    let (mut lows, mut highs, mut topic_lows, mut topic_highs) =
        (Vec::new(), Vec::new(), Vec::new(), Vec::new());
    let (mut end, mut topic_end) = (0_i32, 0_i32);
    for settlement in settlements {
        lows.push(end.saturating_add(1));
        end = end.saturating_add(settlement.outcomes.len().saturating_as::<i32>());
        highs.push(end);
        topic_lows.push(topic_end.saturating_add(1));
        topic_end = topic_end.saturating_add(settlement.topic_names.len().saturating_as::<i32>());
        topic_highs.push(topic_end);
    }
    let each = settlements;
    query
        .bind(node)
        .bind(each.iter().map(|s| s.batch.uuid()).collect::<Vec<_>>())
        .bind(each.iter().map(|s| s.width_class).collect::<Vec<_>>())
        .bind(each.iter().map(|s| s.id_from).collect::<Vec<_>>())
        .bind(each.iter().map(|s| s.id_to).collect::<Vec<_>>())
        .bind(each.iter().map(|s| s.topic_indexes.is_some()).collect::<Vec<_>>())
        .bind(
            each.iter().flat_map(|s| s.topic_names.iter().map(String::as_str)).collect::<Vec<_>>(),
        )
        .bind(each.iter().flat_map(|s| indexes_of(s)).collect::<Vec<_>>())
        .bind(each.iter().flat_map(|s| s.outcomes.iter().copied()).collect::<Vec<_>>())
        .bind(each.iter().flat_map(|s| s.partitions.iter().copied()).collect::<Vec<_>>())
        .bind(each.iter().flat_map(|s| s.offsets.iter().copied()).collect::<Vec<_>>())
        .bind(each.iter().flat_map(|s| s.published_ats.iter().copied()).collect::<Vec<_>>())
        .bind(lows)
        .bind(highs)
        .bind(topic_lows)
        .bind(topic_highs)
}

/// Returns the topic indexes of a batch, as many as it has outcomes, so that the slices of all
/// arrays agree.
fn indexes_of(settlement: &Settlement) -> impl Iterator<Item = i16> {
    (0..settlement.outcomes.len())
        .map(|index| settlement.topic_indexes.as_ref().map_or(1, |indexes| indexes[index]))
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
        .bind(moves().map(|m| m.is_dead).collect::<Vec<_>>())
        .bind(name_retention.as_secs_f64())
        .fetch_all(connection)
        .await
}

type Query<'q> = QueryScalar<'q, Postgres, Uuid, PgArguments>;

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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::domain::batch::TaskParts;
    use crate::domain::{BatchBuilder, Shard};

    fn at(second: i64) -> Timestamp {
        Timestamp::from_millis(second * 1000)
    }

    fn id(second: i64) -> TaskId {
        TaskId::new(at(second), Shard::new(1), 7)
    }

    #[test]
    fn a_follow_up_that_is_overdue_is_due_now_wherever_the_settlement_names_it() {
        let mut builder = BatchBuilder::new(BatchId::new(at(1), 0, 1), 1, 16);
        let (key, payload, headers) = (None, Some(&b"p"[..]), None);
        let name = Some(&b"n"[..]);
        builder.push(TaskParts {
            id: id(1),
            first_id: None,
            attempt: None,
            topic: "t",
            key,
            payload,
            headers,
            name,
            tracking: None,
        });
        let mut settlement = Settlement::new(
            &builder.build(),
            &[Outcome::Deferred { next: id(5), maybe_sent: false }],
        );
        let before = settlement.clone();
        settlement.put_off_until(at(5));
        assert_eq!(settlement, before, "what is not overdue stays");
        settlement.put_off_until(at(9));
        let next = id(9).uuid();
        assert_eq!(
            settlement.follow_ups.iter().map(|follow_up| follow_up.id).collect::<Vec<_>>(),
            [next]
        );
        assert_eq!(settlement.next_ids, Some(vec![Some(next)]));
        assert_eq!(
            settlement.moves.iter().map(|moved| moved.next).collect::<Vec<_>>(),
            [Some(next)]
        );
    }
}
