//! The part that all settles have: the outcomes of batches.

use az::SaturatingAs as _;
use sqlx::Postgres;
use sqlx::postgres::PgArguments;
use uuid::Uuid;

use super::settlement::Settlement;

/// Settles several batches in one statement: their arrays are concatenated, and each batch takes
/// its slice. The ids are given twice: a join alone is not an index condition, and each settle
/// would scan the whole index, with an entry for each batch since the last vacuum (7 ms for
/// 540,000).
macro_rules! settle_text {
    ($name:literal, $next_ids:literal, $returning:literal) => {
        concat!(
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
pub(super) use settle_text;

/// Binds the sixteen parameters of [`settle_text`].
pub(super) fn bind_batches<'q>(
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

/// Inserts the rows of next attempts.
pub(in crate::postgres::tasks) const INSERT_NEAR: &str = "-- insert next attempts
insert into task (id, shard, first_id, topic, key, payload, headers, name, attempt, submitted_by,
  submitted_at, tracking)
select * from unnest($1::uuid[], $2::smallint[], $3::uuid[], $4::text[], $5::bytea[], $6::bytea[],
  $7::bytea[], $8::text[], $9::smallint[], $10::smallint[], $11::bigint[], $12::bytea[])";

pub(in crate::postgres::tasks) const INSERT_FAR: &str = "-- insert far next attempts
insert into task_far (id, shard, first_id, topic, key, payload, headers, name, attempt, submitted_by,
  submitted_at, tracking)
select * from unnest($1::uuid[], $2::smallint[], $3::uuid[], $4::text[], $5::bytea[], $6::bytea[],
  $7::bytea[], $8::text[], $9::smallint[], $10::smallint[], $11::bigint[], $12::bytea[])";
