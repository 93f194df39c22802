//! Counts pending tasks: exactly where there are few, and by a sample of pages where there are
//! many.
//!
//! There is no counter, because every transaction would have to update it. Leaves are never
//! analyzed, so Postgres has no statistics of them. The exact count scans the index, up to a limit
//! of rows. The estimate is a stratified sample: evenly spread pages of each leaf, and the live
//! rows on them times the pages that each one stands for. The leaves of the coming hour get a share
//! of their own. So the number of pages limits the work, however many tasks are pending. Everything
//! is read in one snapshot. See docs/decisions/0010.

mod result;
mod sample;

use std::collections::HashMap;
use std::fmt::Write as _;
use std::time::Duration;

use az::SaturatingAs as _;
use sqlx::postgres::{PgConnection, PgRow};
use sqlx::{AssertSqlSafe, Connection as _, Row};
use uuid::Uuid;

pub use self::result::CountResult;
use self::result::{Buckets, HOUR_MINUTES, MINUTE};
use self::sample::{chance_of, real, share_of, spread};
use super::listing::{shards_of, state_of_row};
use crate::domain::leaves::{Parent, Partition, Rules};
use crate::domain::{ClusterSettings, IdRange, PendingState, PrincipalName, Timestamp};
use crate::postgres::connection::ConnectionPurpose;
use crate::postgres::connection::pool::Pool;
use crate::postgres::{PostgresError, PostgresSettings};

const PURPOSE: ConnectionPurpose = ConnectionPurpose {
    name: "counts",
    deadline: Duration::from_secs(3),
    settings: &[
        ("plan_cache_mode", "force_custom_plan"),
        ("enable_seqscan", "off"),
        ("enable_bitmapscan", "off"),
    ],
};
/// Maximum number of rows counted one by one: of the coming hour, and of everything else.
const ROWS_MAX: u64 = 10_000;
/// Number of pages of 8 KiB in a sample of all leaves and the far table, and again of the leaves of
/// the coming hour.
const PAGES_MAX: u64 = 600;
const HOUR_PAGES_MAX: u64 = 400;
/// Number of leaves that one statement scans.
const LEAVES_MAX: usize = 32;
/// Maximum number of attempts: a leaf that is dropped meanwhile restarts the count.
const TRIES_MAX: usize = 3;

/// Counts, one call at a time, because a call may lock all leaves.
#[derive(Debug)]
pub struct TaskCounter {
    pool: Pool,
    rules: Rules,
    shards: Vec<i16>,
}

/// The member that tasks are counted by.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum CountedBy {
    Topic,
    Submitter,
}

impl CountedBy {
    /// Returns the expression of a row, as text. An anonymous submitter is 0.
    const fn expression(self) -> &'static str {
        match self {
            Self::Topic => "topic",
            Self::Submitter => "coalesce(submitted_by, 0)::text",
        }
    }
}

/// A leaf or the far table, with its size.
#[derive(Clone, PartialEq, Eq, Debug)]
struct Stratum {
    name: String,
    ids: IdRange,
    pages: u64,
}

/// One count in progress.
struct Count<'a> {
    shards: &'a [i16],
    by: CountedBy,
    /// `None` for all states.
    state: Option<PendingState>,
    buckets: Buckets,
    strata: Vec<Stratum>,
    tally: HashMap<(String, usize), f64>,
}

impl TaskCounter {
    pub fn new(settings: &PostgresSettings, cluster: &ClusterSettings) -> Self {
        Self {
            pool: Pool::new(settings, PURPOSE, 1),
            rules: Rules::new(cluster),
            shards: shards_of(cluster.shards),
        }
    }

    /// Counts the pending tasks in `state`, or estimates their number. `chance`, from 0 to 1,
    /// decides which pages the sample reads.
    pub async fn count(
        &self,
        chance: f64,
        state: Option<PendingState>,
    ) -> Result<CountResult, PostgresError> {
        self.count_by(CountedBy::Topic, chance, state).await
    }

    /// Counts the pending tasks of each submitter, as [`Self::count`]. Returns true for exact
    /// numbers.
    pub async fn count_by_submitter(
        &self,
        chance: f64,
    ) -> Result<(HashMap<PrincipalName, u64>, bool), PostgresError> {
        let counted = self.count_by(CountedBy::Submitter, chance, None).await?;
        let task_counts: HashMap<i16, u64> = counted
            .topics(|_| true)
            .iter()
            .filter_map(|(number, count)| Some((number.parse().ok()?, *count)))
            .collect();
        let numbers: Vec<i16> = task_counts.keys().copied().collect();
        let names = || {
            async |open: &mut PgConnection| {
                sqlx::query_as(NAMES).bind(&numbers).fetch_all(open).await
            }
        };
        let names: Vec<(i16, String)> =
            self.pool.read("find the names of submitters", names).await?;
        let named = names.iter().map(|(number, name)| (*number, PrincipalName::stored(name)));
        let all = named.chain([(0, PrincipalName::anonymous())]);
        let named = all.filter_map(|(number, name)| Some((name, *task_counts.get(&number)?)));
        Ok((named.collect(), counted.is_exact))
    }

    async fn count_by(
        &self,
        by: CountedBy,
        chance: f64,
        state: Option<PendingState>,
    ) -> Result<CountResult, PostgresError> {
        let mut tries = 1;
        loop {
            let counting = || {
                async |open: &mut PgConnection| {
                    let mut snapshot =
                        open.begin_with("begin isolation level repeatable read, read only").await?;
                    let counted = self.count_in(&mut snapshot, chance, (by, state)).await?;
                    snapshot.rollback().await?;
                    Ok(counted)
                }
            };
            match self.pool.read("count the pending tasks", counting).await {
                Err(error) if tries < TRIES_MAX && error.code().as_deref() == Some("42P01") => {
                    tries += 1
                }
                other => return other,
            }
        }
    }

    async fn count_in(
        &self,
        open: &mut PgConnection,
        chance: f64,
        (by, state): (CountedBy, Option<PendingState>),
    ) -> Result<CountResult, sqlx::Error> {
        let (now, strata) = strata(open, &self.rules).await?;
        let (buckets, tally) = (Buckets::new(now), HashMap::new());
        let mut count = Count { shards: &self.shards, by, state, buckets, strata, tally };
        let has_hour = count.walk(open, &[count.hour()]).await?;
        let has_all = has_hour && count.walk(open, &count.all_but_the_hour()).await?;
        let (mut is_exact, mut is_exact_of_hour) = (has_all, has_hour);
        if !has_all {
            let sampled = count.sample(open, chance, has_hour).await?;
            is_exact = sampled.is_all;
            is_exact_of_hour = has_hour || sampled.is_all_of_hour;
        }
        let Count { buckets, tally, .. } = count;
        Ok(CountResult { as_of: now, buckets, tally, is_exact, is_exact_of_hour })
    }
}

struct Sampled {
    is_all: bool,
    is_all_of_hour: bool,
}

impl Count<'_> {
    fn hour_end(&self) -> Timestamp {
        self.buckets.minute.plus(MINUTE * 60)
    }

    /// Returns the rest of the coming hour: claimed tasks leave dead entries behind, and those all
    /// lie before it.
    fn hour(&self) -> IdRange {
        IdRange::of_times(self.buckets.now, self.hour_end())
    }

    fn all_but_the_hour(&self) -> [IdRange; 2] {
        let hour = self.hour();
        [IdRange { from: Uuid::nil(), to: hour.from }, IdRange { from: hour.to, to: Uuid::max() }]
    }

    /// Counts `ranges` by an index scan. If they hold more rows than the limit, counts none of them
    /// and returns false.
    async fn walk(
        &mut self,
        open: &mut PgConnection,
        ranges: &[IdRange],
    ) -> Result<bool, sqlx::Error> {
        let (mut counted, mut looked) = (Vec::new(), 0);
        for range in ranges {
            let names: Vec<&str> = self
                .strata
                .iter()
                .filter(|stratum| stratum.meets(*range))
                .map(|stratum| stratum.name.as_str())
                .collect();
            for names in names.chunks(LEAVES_MAX) {
                let rows = sqlx::query(AssertSqlSafe(walk_text(names, self.by)))
                    .bind(self.shards)
                    .bind(range.from)
                    .bind(range.to)
                    .bind((ROWS_MAX - looked + 1).saturating_as::<i64>())
                    .bind(self.buckets.bounds())
                    .bind(self.state.map(PendingState::as_str))
                    .persistent(false)
                    .fetch_all(&mut *open)
                    .await?;
                for row in &rows {
                    looked += u64::try_from(row.try_get::<i64, _>("looked")?).unwrap_or(0);
                    let (key, count) = tallied(row)?;
                    if count > 0 {
                        counted.push((key, count));
                    }
                }
                if looked > ROWS_MAX {
                    return Ok(false);
                }
            }
        }
        for (key, count) in counted {
            *self.tally.entry(key).or_default() += real(count);
        }
        Ok(true)
    }

    /// Estimates everything, except the hour if counted already.
    async fn sample(
        &mut self,
        open: &mut PgConnection,
        chance: f64,
        has_hour: bool,
    ) -> Result<Sampled, sqlx::Error> {
        let hour = self.hour();
        let of_hour = |stratum: &Stratum| stratum.name != FAR && stratum.meets(hour);
        let pages = |strata: &mut dyn Iterator<Item = &Stratum>| {
            strata.map(|stratum| stratum.pages).sum::<u64>()
        };
        let all = pages(&mut self.strata.iter());
        let all_of_hour = pages(&mut self.strata.iter().filter(|stratum| of_hour(stratum)));
        let mut sampled = Sampled { is_all: true, is_all_of_hour: true };
        let (bounds, shares): (Vec<Uuid>, Vec<u64>) = (
            self.buckets.bounds(),
            self.strata
                .iter()
                .map(|stratum| {
                    let share = share_of(stratum.pages, all, PAGES_MAX);
                    if of_hour(stratum) {
                        share.max(share_of(stratum.pages, all_of_hour, HOUR_PAGES_MAX))
                    } else {
                        share
                    }
                })
                .collect(),
        );
        for (strata, shares) in self.strata.chunks(LEAVES_MAX).zip(shares.chunks(LEAVES_MAX)) {
            let mut blocks: (Vec<i32>, Vec<i64>) = (Vec::new(), Vec::new());
            for (index, (stratum, &share)) in strata.iter().zip(shares).enumerate() {
                sampled.is_all &= share == stratum.pages;
                sampled.is_all_of_hour &= share == stratum.pages || !stratum.meets(hour);
                for block in spread(stratum.pages, share, chance_of(index, chance)) {
                    blocks.0.push(index.saturating_as::<i32>());
                    blocks.1.push(block.saturating_as::<i64>());
                }
            }
            let query = sqlx::query(AssertSqlSafe(sample_text(strata, self.by)));
            let rows = query
                .bind(blocks.0)
                .bind(blocks.1)
                .bind(&bounds)
                .bind(self.state.map(PendingState::as_str))
                .persistent(false)
                .fetch_all(&mut *open)
                .await?;
            for row in &rows {
                let (key, count) = tallied(row)?;
                let index =
                    usize::try_from(row.try_get::<i32, _>("stratum")?).unwrap_or(usize::MAX);
                let (Some(stratum), Some(&share)) = (strata.get(index), shares.get(index)) else {
                    continue;
                };
                if count > 0 && !(has_hour && (1..=HOUR_MINUTES).contains(&key.1)) {
                    *self.tally.entry(key).or_default() +=
                        real(count) * real(stratum.pages) / real(share.max(1));
                }
            }
        }
        Ok(sampled)
    }
}

impl Stratum {
    fn meets(&self, range: IdRange) -> bool {
        self.ids.from < range.to && range.from < self.ids.to
    }
}

const FAR: &str = "task_far";

const NAMES: &str = "-- names of submitters
select id, name from principal where id = any($1)";

/// Returns Postgres's clock, and the leaves holding anything with their pages. The far table comes
/// last.
async fn strata(
    open: &mut PgConnection,
    rules: &Rules,
) -> Result<(Timestamp, Vec<Stratum>), sqlx::Error> {
    let rows = sqlx::query(
        "-- sizes of leaves
        with leaf as materialized (
          select c.oid, c.relname::text collate \"C\" as name
          from pg_class p
          join pg_class c on c.relnamespace = p.relnamespace and c.relkind = 'r'
            and starts_with(c.relname::text, 'task_')
          where p.oid = to_regclass('task')
        ), sized as materialized (
          select name, pg_relation_size(oid) / current_setting('block_size')::bigint as pages
            from leaf
        )
        select (extract(epoch from clock_timestamp()) * 1000000)::bigint as now, name, pages
          from sized order by name",
    )
    .fetch_all(open)
    .await?;
    let (mut now, mut strata, mut far) = (Timestamp::EPOCH, Vec::new(), Vec::new());
    for row in rows {
        now = Timestamp::from_micros(row.try_get("now")?);
        let (name, pages): (String, Option<i64>) = (row.try_get("name")?, row.try_get("pages")?);
        // A table that was dropped a moment ago has no size.
        let pages = pages.and_then(|pages| u64::try_from(pages).ok()).unwrap_or(0);
        if name == FAR {
            far.push(Stratum { name, ids: IdRange { from: Uuid::nil(), to: Uuid::max() }, pages });
        } else if let Some(leaf) = Partition::of_name(Parent::Task, &name).filter(|_leaf| pages > 0)
        {
            strata.push(Stratum {
                name,
                ids: IdRange::of_times(leaf.start, rules.end_of(leaf)),
                pages,
            });
        }
    }
    strata.append(&mut far);
    Ok((now, strata))
}

fn tallied(row: &PgRow) -> Result<((String, usize), u64), sqlx::Error> {
    let (place, count): (i32, i64) = (row.try_get("place")?, row.try_get("count")?);
    let place = usize::try_from(place).unwrap_or(0);
    Ok(((row.try_get("counted_by")?, place), u64::try_from(count).unwrap_or(0)))
}

/// Counts the rows `t` in a state.
const COUNTED: &str = concat!(
    "count(*) filter (where $STATE::text is null or $STATE = ",
    state_of_row!(),
    ") as count"
);

/// `$1` are the shards, `$2` and `$3` the ends of the range, `$4` is the maximum number of rows,
/// `$5` are the bounds of the buckets, `$6` is the state.
fn walk_text(names: &[&str], by: CountedBy) -> String {
    let by = by.expression();
    let parts = names.iter().map(|name| {
        let key = if *name == FAR { "" } else { "shard = any($1) and " };
        format!(
            "(select id, first_id, {by} as counted_by, tracking from {name}
     where {key}id >= $2 and id < $3)"
        )
    });
    let parts: Vec<String> = parts.collect();
    // For the far table alone, the shards appear nowhere else in the statement.
    format!(
        "-- count pending tasks
with shards as (select $1::smallint[])
select counted_by, width_bucket(id, $5::uuid[]) as place, count(*) as looked, {}
from (select * from ({}) t limit $4) t
group by counted_by, place",
        COUNTED.replace("$STATE", "$6"),
        parts.join("\n  union all ")
    )
}

/// `$1` and `$2` are strata and their blocks, `$3` are the bounds of the buckets, `$4` is the
/// state.
fn sample_text(strata: &[Stratum], by: CountedBy) -> String {
    let by = by.expression();
    let mut text = String::from(
        "-- sample pending tasks
with chosen as materialized (select * from unnest($1::integer[], $2::bigint[]) as c (stratum,
  block))
",
    );
    let counted = COUNTED.replace("$STATE", "$4");
    for (index, stratum) in strata.iter().enumerate() {
        let union = if index == 0 { "" } else { "union all\n" };
        let written = write!(
            text,
            "{union}(select {index} as stratum, t.counted_by,
  width_bucket(t.id, $3::uuid[]) as place, {counted}
from chosen c
cross join lateral (
  select id, first_id, {by} as counted_by, tracking from {}
  where ctid >= format('(%s,0)', c.block)::tid and ctid < format('(%s,0)', c.block + 1)::tid
  offset 0
) t
where c.stratum = {index}
group by t.counted_by, place)
",
            stratum.name
        );
        debug_assert!(written.is_ok(), "to write to a String never fails");
    }
    text
}
