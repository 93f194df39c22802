//! The statements of claims. Each names the table that has all tasks of its range.

use std::fmt;

use super::super::principals::aggregates_in;
use crate::domain::leaves::Partition;

/// The table that has all tasks of a range.
#[derive(Clone, Copy, Debug)]
pub(super) enum Table {
    /// The usual case. The plan of a statement about one leaf is kept: it locks no other leaf.
    Leaf(Partition),
    /// `task`, for a range that crosses the end of a leaf.
    AllLeaves,
    /// `task_far`.
    Far,
}

impl fmt::Display for Table {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Leaf(leaf) => formatter.write_str(&leaf.name()),
            Self::AllLeaves => formatter.write_str("task"),
            Self::Far => formatter.write_str("task_far"),
        }
    }
}

impl Table {
    /// Returns the settings of the transaction for a statement on this table.
    pub(super) const fn settings(self, is_beside_a_hotspot: bool) -> Option<&'static str> {
        match self {
            Self::AllLeaves => Some(PLANNED_ANEW),
            Self::Leaf(_) | Self::Far if is_beside_a_hotspot => Some(IN_THE_ORDER_OF_THE_HEAP),
            Self::Leaf(_) | Self::Far => None,
        }
    }
}

/// A generic plan would lock every leaf (602 locks at 300 leaves), and one retirement of an
/// unrelated leaf would fail or block all claims.
const PLANNED_ANEW: &str = "set local plan_cache_mode = force_custom_plan";
/// Settings for a claim beside a hotspot. The index leads to every row on another page: 1.0 us for
/// a row that is left in place, 0.4 us by a bitmap of all rows. The number of rows read is not
/// limited, so the time is, because the watermark waits. When it runs out, the claim gives way and
/// a smaller one follows.
const IN_THE_ORDER_OF_THE_HEAP: &str = "set local enable_bitmapscan = on; set local \
                                        enable_indexscan = off; set local enable_seqscan = off; \
                                        set local statement_timeout = '200ms'";

/// Condition of the delete. Reading the rows a second time by their key is 5 % cheaper than by
/// their place (docs/decisions/0023), except as below.
const BY_SHARD: &str = "shard = any($1)";
/// Condition of the delete for a range of which few rows are taken. Places are valid within one
/// table.
const BY_PLACE: &str = "ctid = any(array(select place from found))";

/// The answer to a claim from a leaf that does not exist: the columns of a claim, without a batch.
pub(super) const CLAIM_NOTHING: &str = "-- claim nothing
select (extract(epoch from clock_timestamp()) * 1000000)::bigint as now, 0::bigint as spent,
  false as too_large, null as ids, null as first_ids, null as attempts, null as names,
  null as topics, null as keys, null as payloads, null as headers, null as trackings,
  null as moved_tos";

/// Returns the statement of a claim. The claim refuses to be too large, so no look ahead is needed:
/// the statement counts the rows to be taken, up to the limit. `octet_length` of a toasted value
/// does not fetch the value. Each array is built once, by the insert, and returned from there,
/// because any other use would copy the array. Both inserts read the rows in the order of the
/// delete. An empty range is scanned only once. The submitters stay in the row of the batch: only a
/// settle needs them, and reads them there. Paused topics are read from their table, so a pause
/// holds on all nodes at once; the index there is mostly empty.
pub(super) fn claim_text(table: &Table, is_beside_a_hotspot: bool) -> String {
    let which = match table {
        Table::Leaf(_) | Table::Far if is_beside_a_hotspot => BY_PLACE,
        Table::Leaf(_) | Table::Far | Table::AllLeaves => BY_SHARD,
    };
    let submitters = aggregates_in("");
    format!(
        "-- claim
with paused as materialized (
  select array(select topic from topic_policy where is_paused) as topics
), found as (
  select ctid as place, coalesce(octet_length(payload), 0) + coalesce(octet_length(headers), 0) +
    coalesce(octet_length(key), 0) as bytes
  from {table}
  where shard = any($1) and id >= $2 and id < $3 and topic <> all($4)
    and topic <> all((select topics from paused)::text[]) and id <> all($5)
  limit $8 + 1
), size as materialized (
  select count(*) as rows, coalesce(sum(bytes), 0)::bigint as bytes from found
), taken as (
  delete from {table}
  where {which} and id >= $2 and id < $3 and topic <> all($4)
    and topic <> all((select topics from paused)::text[]) and id <> all($5)
    and (select rows between 1 and $8 and (bytes <= $9 or rows = 1) from size)
  returning id, topic, key, payload, headers, name, first_id, attempt, submitted_by, submitted_at,
    tracking, moved_to
), batch as (
  insert into execlog_batch (batch, owner, claimed_at, task_count, ids, first_ids, attempts, names,
    trackings, moved_tos, submitted_by, submitted_ats)
  select
    $6, $7, clock_timestamp(), count(*), array_agg(id),
    case when count(first_id) > 0 then array_agg(first_id) end,
    case when count(first_id) > 0 then array_agg(attempt) end,
    case when count(name) > 0 then array_agg(name) end,
    case when count(tracking) > 0 then array_agg(tracking) end,
    case when count(moved_to) > 0 then array_agg(moved_to) end,
    {submitters}
  from taken having count(*) > 0
  returning ids, first_ids, attempts, names, trackings, moved_tos
), payload as (
  insert into execlog_payload (batch, topics, keys, payloads, headers)
  select $6, array_agg(topic), array_agg(key), array_agg(payload), array_agg(headers) from taken
    having count(*) > 0
  returning topics, keys, payloads, headers
)
select
  (extract(epoch from clock_timestamp()) * 1000000)::bigint as now,
  (extract(epoch from clock_timestamp() - statement_timestamp()) * 1000000)::bigint as spent,
  size.rows > $8 or (size.bytes > $9 and size.rows > 1) as too_large,
  ids, first_ids, attempts, names, topics, keys, payloads, headers, trackings, moved_tos
from size left join batch on true left join payload on true"
    )
}

pub(super) fn is_empty_text(table: &Table) -> String {
    format!(
        "-- is empty
select not exists (
  select from {table} where shard = any($1) and id >= $2 and id < $3 and topic <> all($4)
    and topic <> all(array(select topic from topic_policy where is_paused)) and id <> all($5))"
    )
}

/// The key of a leaf begins with the shard, that of `task_far` does not.
pub(super) fn lowest_text(table: &Table) -> String {
    match table {
        Table::Far => "-- lowest in far
select id from task_far where shard = any($1) and id >= $2 and id < $3 order by id limit 1"
            .to_owned(),
        Table::Leaf(_) | Table::AllLeaves => format!(
            "-- lowest in task
select lowest.id from unnest($1) as shards (shard) cross join lateral (
  select id from {table} t where t.shard = shards.shard and id >= $2 and id < $3 order by id limit 1
) lowest
order by lowest.id limit 1"
        ),
    }
}
