//! Counts pending tasks: exactly where there are few, and by a sample of pages where there are
//! many.
//!
//! There is no counter, because every transaction would have to update it. Leaves are never
//! analyzed, so Postgres has no statistics of them. The exact count scans the index, up to a limit
//! of rows. The estimate is a stratified sample: evenly spread pages of each leaf, and the live
//! rows on them times the pages that each one stands for. The leaves of the coming hour get a share
//! of their own. So the number of pages limits the work, however many tasks are pending. Everything
//! is read in one snapshot. See docs/decisions/0010.

use std::collections::HashMap;
use std::fmt::Write as _;
use std::time::Duration;

use az::SaturatingAs as _;
use sqlx::postgres::{PgConnection, PgRow};
use sqlx::{AssertSqlSafe, Connection as _, Row};
use uuid::Uuid;

use super::listing::{shards_of, state_of_row};
use crate::domain::leaves::{Parent, Partition, Rules};
use crate::domain::{ClusterSettings, IdRange, PendingState, PrincipalName, Timestamp, ids};
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
/// The golden ratio. Its multiples are spread evenly, however many there are.
const GOLDEN: f64 = 0.618_033_988_749_895;
const MINUTE: Duration = Duration::from_secs(60);
/// The minutes that are counted exactly if they can be.
const HOUR_MINUTES: usize = 60;
/// Minutes and days that have figures of their own. The first ones are the current ones.
pub const MINUTES: u32 = 120;
pub const DAYS: u32 = 30;
const DAY: Duration = Duration::from_hours(24);

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

/// The result of a count.
#[derive(Clone, PartialEq, Debug)]
pub struct CountResult {
    pub as_of: Timestamp,
    buckets: Buckets,
    /// By topic or submitter, and bucket.
    tally: HashMap<(String, usize), f64>,
    /// True if everything was counted exactly.
    pub is_exact: bool,
    /// True if the coming hour was counted exactly.
    pub is_exact_of_hour: bool,
}

/// The bucket of the tasks that were due before now.
const OVERDUE: usize = 0;

/// The ranges of due times that are counted apart: the minutes, then the rest of the day that the
/// last minute is in, then days. Bucket [`OVERDUE`] is before now, and the last is after all days.
#[derive(Clone, PartialEq, Eq, Debug)]
struct Buckets {
    now: Timestamp,
    /// The start of the current minute.
    minute: Timestamp,
    /// The ends of the minutes and days in order, without doubles.
    ends: Vec<Timestamp>,
}

impl Buckets {
    fn new(now: Timestamp) -> Self {
        let minute = start_of(now, MINUTE);
        let minutes = (1..=MINUTES).map(|number| minute.plus(MINUTE * number));
        let last = minute.plus(MINUTE * MINUTES);
        let day = start_of(now, DAY);
        let days = (1..=DAYS).map(|number| day.plus(DAY * number)).filter(|end| *end > last);
        Self { now, minute, ends: minutes.chain(days).collect() }
    }

    /// Returns the first ids of all buckets but the first.
    fn bounds(&self) -> Vec<Uuid> {
        std::iter::once(&self.now).chain(&self.ends).map(|at| ids::floor_of(*at)).collect()
    }

    /// Returns the start of a bucket that has one.
    fn start_of(&self, place: usize) -> Option<Timestamp> {
        match place {
            OVERDUE => None,
            1 => Some(self.minute),
            place => self.ends.get(place - 2).copied(),
        }
    }
}

/// Returns the start of the `span` that a moment is in: of the minute, or of the day in UTC.
fn start_of(at: Timestamp, span: Duration) -> Timestamp {
    let micros = span.as_micros().saturating_as::<i64>().max(1);
    Timestamp::from_micros(at.as_micros().div_euclid(micros) * micros)
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

impl CountResult {
    /// Returns the number of pending tasks of each topic that is meant.
    pub fn topics(&self, is_meant: impl Fn(&str) -> bool) -> Vec<(String, u64)> {
        self.topics_in(is_meant, |_place| true)
    }

    /// Returns the number of overdue tasks of each topic that is meant and has some.
    pub fn overdue_topics(&self, is_meant: impl Fn(&str) -> bool) -> Vec<(String, u64)> {
        self.topics_in(is_meant, |place| place == OVERDUE)
    }

    /// Adds up the buckets that are meant, by topic. The topic with the most tasks comes first.
    fn topics_in(
        &self,
        is_meant: impl Fn(&str) -> bool,
        is_place: impl Fn(usize) -> bool,
    ) -> Vec<(String, u64)> {
        let mut topics: HashMap<&str, f64> = HashMap::new();
        let meant = |((of, place), _): &(&(String, usize), &f64)| is_meant(of) && is_place(*place);
        for ((of, _), count) in self.tally.iter().filter(meant) {
            *topics.entry(of).or_default() += count;
        }
        let mut topics: Vec<(String, u64)> =
            topics.into_iter().map(|(of, count)| (of.to_owned(), whole(count))).collect();
        topics.sort_by(|a, b| b.1.cmp(&a.1).then_with(|| a.0.cmp(&b.0)));
        topics
    }

    /// Returns each minute from the current one on, with the number of tasks of the topics that are
    /// meant, and whether the number is exact.
    pub fn minutes(&self, is_meant: impl Fn(&str) -> bool) -> Vec<(Timestamp, u64, bool)> {
        let minutes = self.slots(self.buckets.minute, (MINUTE, MINUTES), is_meant);
        let in_hour = |index: usize| index < HOUR_MINUTES && self.is_exact_of_hour;
        let minutes = minutes.into_iter().enumerate();
        minutes.map(|(index, (at, count))| (at, count, self.is_exact || in_hour(index))).collect()
    }

    /// Returns each day in UTC from today on, as [`Self::minutes`]. Today counts from now on.
    pub fn days(&self, is_meant: impl Fn(&str) -> bool) -> Vec<(Timestamp, u64, bool)> {
        let days = self.slots(start_of(self.as_of, DAY), (DAY, DAYS), is_meant);
        days.into_iter().map(|(at, count)| (at, count, self.is_exact)).collect()
    }

    /// Adds the buckets up to `count` slots of the length `span` from `from` on.
    fn slots(
        &self,
        from: Timestamp,
        (span, count): (Duration, u32),
        is_meant: impl Fn(&str) -> bool,
    ) -> Vec<(Timestamp, u64)> {
        let mut slots: Vec<(Timestamp, f64)> =
            (0..count).map(|number| (from.plus(span * number), 0.0)).collect();
        for ((_, place), tasks) in self.tally.iter().filter(|((of, _), _)| is_meant(of)) {
            let Some(start) = self.buckets.start_of(*place) else { continue };
            // The last slot that begins no later than the bucket holds it, unless it ends before.
            let next = slots.partition_point(|(slot, _)| *slot <= start);
            let slot = next.checked_sub(1).and_then(|index| slots.get_mut(index));
            if let Some((_, sum)) = slot.filter(|(slot, _)| start < slot.plus(span)) {
                *sum += tasks;
            }
        }
        slots.into_iter().map(|(at, sum)| (at, whole(sum))).collect()
    }
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

/// Returns the share of `budget` for `pages` out of `all`, at least one.
fn share_of(pages: u64, all: u64, budget: u64) -> u64 {
    let share = u128::from(pages) * u128::from(budget) / u128::from(all.max(1));
    share.saturating_as::<u64>().clamp(1, pages.max(1)).min(pages)
}

/// Returns the start of a stratum's sample, from 0 to 1. Leaves that were filled in the same order
/// are alike, so with one start for all, their errors would add up.
fn chance_of(stratum: usize, chance: f64) -> f64 {
    (chance + GOLDEN * real(stratum.saturating_as())).fract()
}

/// Returns `count` evenly spread numbers below `pages`.
fn spread(pages: u64, count: u64, chance: f64) -> impl Iterator<Item = u64> {
    // Calculated in thousandths of a page, in whole numbers.
    let shift = u128::from(whole(chance.clamp(0.0, 0.999) * 1000.0));
    let place = move |index: u64| {
        (u128::from(index) * 1000 + shift) * u128::from(pages) / (u128::from(count.max(1)) * 1000)
    };
    (0..count).map(move |index| place(index).saturating_as::<u64>())
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

#[expect(
    clippy::as_conversions,
    reason = "a count of tasks is far below 2^53, where a float ceases to be exact"
)]
fn real(count: u64) -> f64 {
    count as f64
}

#[expect(
    clippy::as_conversions,
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "a float becomes the nearest whole number, and no negative one comes here"
)]
fn whole(count: f64) -> u64 {
    count.round() as u64
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn pages_of_a_sample_are_different_ones_of_the_table(
            pages in 1_u64..5_000_000,
            budget in 1_u64..2000,
            chance in 0.0..1.0,
        ) {
            let share = share_of(pages, pages, budget);
            let chosen: Vec<u64> = spread(pages, share, chance).collect();
            prop_assert_eq!(u64::try_from(chosen.len()), Ok(budget.min(pages)));
            prop_assert!(chosen.windows(2).all(|pair| pair[0] < pair[1]));
            prop_assert!(chosen.iter().all(|page| *page < pages));
        }
    }

    #[test]
    fn minutes_and_days_add_their_buckets_up() {
        // 30 January 2030, 23:30:20: the minutes reach into the next day.
        let now = Timestamp::from_millis(1_896_046_220_000);
        let buckets = Buckets::new(now);
        let bounds = buckets.bounds();
        assert!(bounds.is_sorted_by(|a, b| a < b) && bounds.len() == 1 + 120 + 29);
        let place_of = |at: Timestamp| bounds.partition_point(|bound| *bound <= ids::floor_of(at));
        let (minute, hour) = (MINUTE, Duration::from_hours(1));
        let mut tally = HashMap::new();
        for (at, tasks) in [
            (now.minus(minute), 1.0),
            (now, 2.0),
            (now.plus(minute * 29), 4.0),
            (now.plus(minute * 31), 8.0),
            (now.plus(hour * 23), 16.0),
            (now.plus(hour * 25), 32.0),
            (now.plus(DAY * 29), 64.0),
            (now.plus(DAY * 31), 128.0),
        ] {
            *tally.entry(("t".to_owned(), place_of(at))).or_default() += tasks;
        }
        let count =
            CountResult { as_of: now, buckets, tally, is_exact: false, is_exact_of_hour: true };
        let counts = |slots: Vec<(Timestamp, u64, bool)>| -> Vec<u64> {
            slots.into_iter().map(|(_, count, _)| count).collect()
        };
        let minutes = count.minutes(|_| true);
        assert_eq!((minutes[0].2, minutes[59].2, minutes[60].2), (true, true, false));
        let minutes = counts(minutes);
        assert_eq!((minutes[0], minutes[29], minutes[31], minutes.len()), (2, 4, 8, 120));
        assert_eq!(minutes.iter().sum::<u64>(), 14);
        let days = counts(count.days(|_| true));
        assert_eq!((days[0], days[1], days[2], days[29], days.len()), (6, 24, 32, 64, 30));
        assert_eq!(count.days(|topic| topic == "u")[1].1, 0);
        assert_eq!(count.topics(|_| true), [("t".to_owned(), 255)]);
        assert_eq!(count.overdue_topics(|_| true), [("t".to_owned(), 1)]);
        assert_eq!(count.overdue_topics(|topic| topic == "u"), []);
    }

    /// Leaves of 100 pages: the first 50 have 2 rows each, the others none. Three are read.
    #[test]
    fn leaves_that_are_alike_do_not_add_their_errors_up() {
        for start in [0.0, 0.3, 0.6, 0.9] {
            let rows_of = |leaf| {
                let pages = spread(100, 3, chance_of(leaf, start));
                pages.filter(|page| *page < 50).count() * 2 * 100 / 3
            };
            let rows: usize = (0..32).map(rows_of).sum();
            assert!(rows.abs_diff(32 * 100) < 32 * 100 / 20, "{rows} rows from {start}");
        }
    }

    #[test]
    fn each_stratum_is_seen_and_no_more_than_all_of_it() {
        assert_eq!(
            (share_of(0, 10, 5), share_of(1, 1_000_000, 5), share_of(3, 3, 1000)),
            (0, 1, 3)
        );
        assert_eq!(share_of(500_000, 1_000_000, 1000), 500);
    }
}
