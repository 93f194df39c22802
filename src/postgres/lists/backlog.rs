//! Counts late and waiting tasks: overdue unclaimed tasks, tracked tasks awaiting consumers, and
//! dead letters.

use std::time::Duration;

use sqlx::Row;
use uuid::Uuid;

use crate::domain::{Backlog, IdRange, ShardCount, TaskId, Timestamp, TopicName};
use crate::postgres::connection::ConnectionPurpose;
use crate::postgres::connection::pool::Pool;
use crate::postgres::{PostgresError, PostgresSettings};

const PURPOSE: ConnectionPurpose = ConnectionPurpose {
    name: "backlog",
    deadline: Duration::from_secs(2),
    // A bitmap of a range has all its entries, however few rows are wanted.
    settings: &[
        ("plan_cache_mode", "force_custom_plan"),
        ("enable_seqscan", "off"),
        ("enable_bitmapscan", "off"),
    ],
};
/// Maximum number of tasks counted in leaves, and in the far table.
const COUNT_MAX: i64 = 10_000;
/// The same while topics are paused: their tasks are read, but not counted.
const READ_MAX: i64 = 50_000;

/// Counts rows up to a limit, or those on a limited number of pages. So it is cheap however many
/// there are.
#[derive(Debug)]
pub struct BacklogCounter {
    pool: Pool,
    shards: Vec<i16>,
}

/// The number of rows of a table, counted or estimated by a sample of its pages.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct RowCount {
    pub count: u64,
    /// True when the table was counted as a whole.
    pub is_exact: bool,
}

/// The number of dead letters of each topic, counted or estimated by a sample of their pages. Then
/// topics with few of them may be missing.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct DeadLetterCounts {
    pub topics: Vec<(TopicName, u64)>,
    /// True when all dead letters were counted.
    pub is_exact: bool,
}

impl BacklogCounter {
    pub fn new(settings: &PostgresSettings, shards: ShardCount) -> Self {
        Self {
            pool: Pool::new(settings, PURPOSE, 1),
            shards: shards.all().map(|shard| shard.as_smallint()).collect(),
        }
    }

    /// Counts tasks due from `oldest` (the start of the oldest attached leaf) up to `now`, except
    /// those of paused topics, and those in quarantine. When paused topics have more than
    /// [`READ_MAX`] tasks there, the count is not exact, and the oldest task may be missing.
    pub async fn count(&self, oldest: Timestamp, now: Timestamp) -> Result<Backlog, PostgresError> {
        let range = IdRange::of_times(oldest, now);
        self.pool
            .read("count the overdue tasks", || {
                async |open| {
                    let row = sqlx::query(COUNT_OVERDUE)
                        .bind(&self.shards)
                        .bind(range.from)
                        .bind(range.to)
                        .bind(COUNT_MAX)
                        .bind(READ_MAX)
                        .fetch_one(open)
                        .await?;
                    let (near, far): (i64, i64) = (row.try_get("near")?, row.try_get("far")?);
                    let is_all: bool = row.try_get("is_all")?;
                    let oldest: Option<Uuid> = row.try_get("oldest")?;
                    Ok(Backlog {
                        task_count: u64::try_from(near.min(COUNT_MAX) + far.min(COUNT_MAX))
                            .unwrap_or(0),
                        is_exact: is_all && near.max(far) <= COUNT_MAX,
                        oldest_due_at: oldest.map(|id| TaskId::from_uuid(id).due_at()),
                    })
                }
            })
            .await
    }

    /// Counts the tasks in the state `awaiting`.
    pub async fn awaiting(&self) -> Result<RowCount, PostgresError> {
        self.pool
            .read("count the awaiting tasks", || {
                async |open| {
                    let row = sqlx::query(COUNT_AWAITING).bind(PAGES_MAX).fetch_one(open).await?;
                    let count: i64 = row.try_get("count")?;
                    Ok(RowCount {
                        count: u64::try_from(count).unwrap_or(0),
                        is_exact: row.try_get("is_exact")?,
                    })
                }
            })
            .await
    }

    /// Counts the dead letters by topic.
    pub async fn dead_letters(&self) -> Result<DeadLetterCounts, PostgresError> {
        self.pool
            .read("count the dead letters", || {
                async |open| {
                    let rows =
                        sqlx::query(COUNT_DEAD_LETTERS).bind(PAGES_MAX).fetch_all(open).await?;
                    let mut counts = DeadLetterCounts { topics: Vec::new(), is_exact: true };
                    for row in rows {
                        counts.is_exact &= row.try_get::<bool, _>("is_exact")?;
                        // Without dead letters there is a row without a topic.
                        if let Some(topic) = row.try_get::<Option<String>, _>("topic")? {
                            let count: i64 = row.try_get("count")?;
                            let count = u64::try_from(count).unwrap_or(0);
                            counts.topics.push((TopicName::stored(&topic), count));
                        }
                    }
                    Ok(counts)
                }
            })
            .await
    }
}

/// The oldest task of each shard is a short index scan. Postgres before 18 has no min(uuid).
const COUNT_OVERDUE: &str = "-- backlog
with paused as materialized (
  select array(select topic from topic_policy where is_paused) as topics
), skipped as materialized (
  select array(select id from quarantine limit 1000) as ids
), room as materialized (
  select case when topics = '{}' then $4 else $5 end as rows from paused
), near as materialized (
  select id, topic <> all((select topics from paused)::text[])
      and id <> all((select ids from skipped)::uuid[]) as is_meant
    from task where shard = any($1) and id >= $2 and id < $3
    limit (select rows + 1 from room)
), far as materialized (
  select id, topic <> all((select topics from paused)::text[])
      and id <> all((select ids from skipped)::uuid[]) as is_meant
    from task_far where id < $3 order by id
    limit (select rows + 1 from room)
), first as materialized (
  select o.id from unnest($1) as s (shard) cross join lateral (
    select id from (
      select id, topic from task
        where shard = s.shard and id >= $2 and id < $3 order by id
        limit (select rows / cardinality($1) + 1 from room)
    ) read where topic <> all((select topics from paused)::text[])
      and id <> all((select ids from skipped)::uuid[])
    order by id limit 1) o
)
select (select count(*) from near where is_meant) as near,
  (select count(*) from far where is_meant) as far,
  (select greatest((select count(*) from near), (select count(*) from far))
    <= rows from room) as is_all,
  (select id from (
     select id from near where is_meant union all
     select id from far where is_meant union all select id from first) t
   order by id limit 1) as oldest";

/// Number of pages of 8 KiB in a sample of a table. A smaller table is counted as a whole.
const PAGES_MAX: i64 = 500;

/// Each row of the sample stands for several, by the share of pages read. A note of 1 is on a
/// finished task with a record that may still be in flight, and 2 on a failed attempt.
const COUNT_AWAITING: &str = "-- count awaiting tasks
with size as materialized (
  select greatest(pg_relation_size('task_follow')
    / current_setting('block_size')::bigint, 1) as pages
)
select (count(f.first_id) * greatest(size.pages::float8 / $1, 1))::bigint as count,
  size.pages <= $1 as is_exact
from size
left join lateral (
  select first_id from task_follow tablesample system (least(100.0 * $1 / size.pages, 100))
  where attempt > 0 and (note is null or note = 3)
) f on true
group by size.pages";

/// Each row of the sample stands for as many as the share of its pages says.
const COUNT_DEAD_LETTERS: &str = "-- count dead letters
with size as materialized (
  select greatest(pg_relation_size('dead_letter')
    / current_setting('block_size')::bigint, 1) as pages
)
select d.topic, (count(d.topic) * greatest(size.pages::float8 / $1, 1))::bigint as count,
  size.pages <= $1 as is_exact
from size
left join lateral (
  select topic from dead_letter tablesample system (least(100.0 * $1 / size.pages, 100))
) d on true
group by d.topic, size.pages";
