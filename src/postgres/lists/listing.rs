//! Lists pending tasks in due order, page by page.
//!
//! The key of a leaf is (shard, id), so due order is a merge over the shards. A look reads the next
//! few rows of each shard. The result is complete up to the lowest of the last ids that were read.
//! When one shard holds most of the next tasks (one key), the next look is wider, not longer. The
//! far table is one more stream.
//!
//! Within one millisecond due order is the order of the shards. A merge would complete no more than
//! the first shard's share of each look. So a hotspot that is due at one instant is read shard
//! after shard, as one stream.
//!
//! A page is one snapshot: in it each row is in exactly one place, even while rows are moved,
//! claimed, attached or retired. The next page begins behind the last id that was read. Ids never
//! change, so no row is seen twice, and no row that existed throughout is missed. See
//! docs/decisions/0009.

pub mod chosen;

use std::fmt::Write as _;
use std::sync::Arc;
use std::time::Duration;

use az::SaturatingAs as _;
use sqlx::postgres::{PgConnection, PgRow};
use sqlx::{AssertSqlSafe, Connection as _, Row};
use uuid::Uuid;

use crate::domain::leaves::{Parent, Partition, Rules};
use crate::domain::task::feedback::Note;
use crate::domain::{
    Choice, ClusterSettings, Cursor, IdRange, PendingState, Selection, Shard, ShardCount, TaskId,
    TaskState, TaskView, TopicName, ids,
};
use crate::postgres::connection::ConnectionPurpose;
use crate::postgres::connection::pool::Pool;
use crate::postgres::tasks::look_up::{StoredTerms, listed_key, moved_of, tracked_of};
use crate::postgres::tasks::principals::{FIND, actors_of};
use crate::postgres::{PostgresError, PostgresSettings};
use crate::sealing::{KeySet, PayloadKeys, RecordOwner};

/// Without statistics of leaves, the planner must be kept from reading and sorting whole leaves.
const PURPOSE: ConnectionPurpose = ConnectionPurpose {
    name: "list",
    deadline: Duration::from_secs(3),
    settings: &[
        ("plan_cache_mode", "force_custom_plan"),
        ("enable_seqscan", "off"),
        ("enable_bitmapscan", "off"),
        ("enable_sort", "off"),
        ("enable_hashjoin", "off"),
        ("enable_mergejoin", "off"),
    ],
};
/// Approximate number of rows that are read for a page of an interactive list. The page ends there,
/// full or not.
pub const READ_MAX: u64 = 2_000;
/// The same limit for bulk operations, which continue by themselves.
pub const READ_MAX_OF_BULK: u64 = 10_000;
/// Maximum number of leaves that one statement reads. The first statement reads one leaf, because
/// most pages end there.
const LEAVES_MAX: usize = 8;
/// A look that reached the end of the leaves with at most this many rows has read sparse leaves.
const LITTLE: u64 = 64;
/// Number of rows of each stream that the first look reads in addition to the stream's share of the
/// page.
const SHARE_MIN: u64 = 4;
/// Maximum number of attempts at a page. A leaf that is dropped while the page is being read makes
/// it start again.
const TRIES_MAX: usize = 3;

/// Reads pages, over a few connections of its own.
#[derive(Debug)]
pub struct Listing {
    pool: Pool,
    rules: Rules,
    shard_count: ShardCount,
    shards: Vec<i16>,
    keys: PayloadKeys,
}

/// A pending task, and its current row.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ListedTask {
    pub row: TaskId,
    /// Holds only the key of the record, and only if the key is not long.
    pub view: TaskView,
}

/// A page of pending tasks.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct TaskPage {
    pub tasks: Vec<ListedTask>,
    /// `None` when no tasks follow.
    pub next: Option<Cursor>,
    /// Number of rows that were read for the page.
    pub looked: u64,
}

impl Listing {
    pub fn new(
        settings: &PostgresSettings,
        cluster: &ClusterSettings,
        connections_max: usize,
    ) -> Self {
        Self {
            pool: Pool::new(settings, PURPOSE, connections_max),
            rules: Rules::new(cluster),
            shard_count: cluster.shards,
            shards: shards_of(cluster.shards),
            keys: settings.payload_keys().clone(),
        }
    }

    /// Returns the next pending tasks behind `from`: at most `limit`, found among about
    /// `looked_max` rows.
    pub async fn page(
        &self,
        selection: &Selection,
        from: Option<Cursor>,
        limit: usize,
        looked_max: u64,
    ) -> Result<TaskPage, PostgresError> {
        let mut tries = 1;
        loop {
            let reading = || {
                async |open: &mut PgConnection| {
                    // The transaction only reads, so a rollback ends it. Dropping it rolls back as
                    // well.
                    let mut snapshot =
                        open.begin_with("begin isolation level repeatable read, read only").await?;
                    let mut walk = Walk::new(self, selection, (limit, looked_max));
                    if let Some(name) = &selection.submitted_by {
                        walk.submitter = sqlx::query_scalar(FIND)
                            .bind(name.as_str())
                            .fetch_optional(&mut *snapshot)
                            .await?;
                        if walk.submitter.is_none() {
                            snapshot.rollback().await?;
                            return Ok(walk.page);
                        }
                    }
                    for range in selection.rows() {
                        walk.run(&mut snapshot, range, from).await?;
                    }
                    snapshot.rollback().await?;
                    Ok(walk.page)
                }
            };
            match self.pool.read("list pending tasks", reading).await {
                Err(error) if tries < TRIES_MAX && error.code().as_deref() == Some("42P01") => {
                    tries += 1
                }
                other => return other,
            }
        }
    }
}

pub(super) fn shards_of(count: ShardCount) -> Vec<i16> {
    count.all().map(|shard| shard.as_smallint()).collect()
}

/// The state of one page while it is being read.
struct Walk<'a> {
    listing: &'a Listing,
    /// The shards that may hold selected tasks, in order. A key has one shard.
    shards: Vec<i16>,
    topic: Option<&'a str>,
    key: Option<&'a [u8]>,
    /// To open the keys of sealed records.
    keys: Arc<KeySet>,
    submitter: Option<i16>,
    state: Option<PendingState>,
    /// The rest of the selection. Its lower end is exclusive.
    rest: IdRange,
    limit: usize,
    looked_max: u64,
    page: TaskPage,
    /// Number of rows of each stream that a look reads.
    share: u64,
    /// True when the last look did not get past the millisecond in which it began.
    is_in_hotspot: bool,
}

/// The result of one statement.
struct PageRows {
    /// The statement has read everything up to this id, inclusive. `None` means up to the end.
    bound: Option<Uuid>,
    looked: u64,
    tasks: Vec<ListedTask>,
    /// The last row of an answer with as many rows as were asked for: there may be more before
    /// `bound`.
    cut_at: Option<Uuid>,
}

impl<'a> Walk<'a> {
    fn new(
        listing: &'a Listing,
        selection: &'a Selection,
        (limit, looked_max): (usize, u64),
    ) -> Self {
        let topic = selection.topic.as_ref().map(TopicName::as_str);
        let key = match &selection.choice {
            Some(Choice::Key(key)) => Some(key.as_ref()),
            _ => None,
        };
        let shards = match (topic, key) {
            (Some(topic), Some(key)) => {
                vec![listing.shard_count.slot_of(topic, key).0.as_smallint()]
            }
            _ => listing.shards.clone(),
        };
        Self {
            listing,
            shards,
            topic,
            key,
            keys: listing.keys.current(),
            submitter: None,
            state: selection.state,
            rest: IdRange { from: Uuid::nil(), to: Uuid::nil() },
            limit,
            looked_max,
            page: TaskPage { tasks: Vec::new(), next: None, looked: 0 },
            share: 0,
            is_in_hotspot: false,
        }
    }

    /// Adds the tasks whose rows are in `range` and behind `from` to the page, unless the page has
    /// its end already.
    async fn run(
        &mut self,
        open: &mut PgConnection,
        range: IdRange,
        from: Option<Cursor>,
    ) -> Result<(), sqlx::Error> {
        let after =
            from.map_or_else(|| before(range.from), |from| from.after.max(before(range.from)));
        self.rest = IdRange { from: after, to: range.to };
        if self.page.next.is_some() || self.rest.from >= before(self.rest.to) {
            return Ok(());
        }
        if self.is_full() {
            // Only held tasks are left, and mostly there are none.
            self.page.next = is_far_row_in(open, self.rest).await?.then_some(Cursor { after });
            return Ok(());
        }
        (self.share, self.is_in_hotspot) = (0, false);
        let leaves = leaves(open, &self.listing.rules, self.rest).await?;
        let mut leaves = leaves.as_slice();
        let mut leaf_count = 1;
        while self.rest.from < before(self.rest.to) {
            if self.is_full() {
                self.page.next = Some(Cursor { after: self.rest.from });
                break;
            }
            let (group, others) = leaves.split_at(leaf_count.min(leaves.len()));
            let end = group.last().map_or(self.rest.to, |last| {
                ids::floor_of(self.listing.rules.end_of(*last)).min(self.rest.to)
            });
            let end_of_millisecond = end_of_millisecond(self.rest.from);
            let end = if self.is_in_hotspot { end.min(end_of_millisecond) } else { end };
            self.widen(group);
            let found = self.read_group(open, group, end).await?;
            let looked = found.looked;
            self.page.looked += looked;
            self.page.tasks.extend(found.tasks);
            let was_in_hotspot = self.is_in_hotspot;
            self.is_in_hotspot = found.bound.is_some_and(|bound| bound < end_of_millisecond);
            if was_in_hotspot != self.is_in_hotspot {
                self.share = 0;
            }
            match (found.bound, found.cut_at) {
                (_, Some(last)) => self.rest.from = last,
                (Some(bound), _) => self.rest.from = bound,
                (None, _) if was_in_hotspot => self.rest.from = before(end),
                (None, _) => {
                    self.rest.from = before(end);
                    leaves = others;
                    // Sparse leaves are read several at a time.
                    leaf_count =
                        if looked <= LITTLE { (leaf_count * 2).min(LEAVES_MAX) } else { 1 };
                }
            }
        }
        Ok(())
    }

    fn is_full(&self) -> bool {
        self.page.tasks.len() >= self.limit || self.page.looked >= self.looked_max
    }

    /// Widens the share for the next look. The first look should be enough. When it is not, few
    /// streams hold most of the next tasks.
    fn widen(&mut self, group: &[Partition]) {
        let streams = match group {
            [] => 1,
            _ if self.is_in_hotspot => 2,
            _ => self.shards.len().saturating_as::<u64>() + 1,
        };
        let missing: u64 = self.limit.saturating_sub(self.page.tasks.len()).saturating_as();
        let first = missing.saturating_mul(2).div_ceil(streams) + SHARE_MIN;
        self.share = (self.share * 4).min(self.looked_max / streams).max(first);
    }

    /// Returns the shards from this one on. The shards are sorted.
    fn shards_from(&self, first: Shard) -> &[i16] {
        let passed = self.shards.partition_point(|shard| *shard < first.as_smallint());
        &self.shards[passed..]
    }

    async fn read_group(
        &self,
        open: &mut PgConnection,
        group: &[Partition],
        end: Uuid,
    ) -> Result<PageRows, sqlx::Error> {
        let limit = self.limit.saturating_sub(self.page.tasks.len());
        let shards = match self.is_in_hotspot {
            true => self.shards_from(TaskId::from_uuid(after(self.rest.from)).shard()),
            false => &self.shards,
        };
        // The text names leaves, which change, so preparing it is not worthwhile.
        let rows = sqlx::query(AssertSqlSafe(group_text(group, self.is_in_hotspot)))
            .bind(shards)
            .bind(self.rest.from)
            .bind(end)
            .bind(self.share.saturating_as::<i64>())
            .bind(self.topic)
            .bind(limit.saturating_as::<i64>())
            .bind(self.submitter)
            .bind(self.state.map(PendingState::as_str))
            .bind(self.key)
            .persistent(false)
            .fetch_all(open)
            .await?;
        let first = rows.first().ok_or(sqlx::Error::RowNotFound)?;
        let looked: i64 = first.try_get("looked")?;
        let bound = first.try_get("bound")?;
        let looked = u64::try_from(looked).unwrap_or(0);
        let read = |row| listed_of(row, &self.keys, self.key);
        let last: Option<Uuid> = rows.last().map(|row| row.try_get("id")).transpose()?.flatten();
        let cut_at = last.filter(|_last| rows.len() >= limit);
        let tasks = rows.iter().map(read).filter_map(Result::transpose);
        Ok(PageRows { bound, looked, tasks: tasks.collect::<Result<_, _>>()?, cut_at })
    }
}

/// Returns true when the far table has a row in `range`, whose lower end is exclusive.
async fn is_far_row_in(open: &mut PgConnection, range: IdRange) -> Result<bool, sqlx::Error> {
    let text = "-- is a far row in a range
        select exists (select from task_far where id > $1 and id < $2)";
    sqlx::query_scalar(text).bind(range.from).bind(range.to).fetch_one(open).await
}

/// Returns the leaves with rows that may lie in `range`, in order. Finds leaves by name, not by
/// parent, so that a leaf in the middle of a detach is found as well.
async fn leaves(
    open: &mut PgConnection,
    rules: &Rules,
    range: IdRange,
) -> Result<Vec<Partition>, sqlx::Error> {
    let first = rules.partition_of(Parent::Task, TaskId::from_uuid(range.from).due_at());
    let rows: Vec<String> = sqlx::query_scalar(
        "-- leaves with rows
        with leaf as materialized (
          select c.oid, c.relname::text collate \"C\" as name
          from pg_class p
          join pg_class c on c.relnamespace = p.relnamespace and c.relkind = 'r'
            and starts_with(c.relname::text, 'task_')
          where p.oid = to_regclass('task') and c.relname::text collate \"C\" >= $1
        )
        select name from leaf where pg_relation_size(oid) > 0 order by name",
    )
    .bind(first.name())
    .fetch_all(open)
    .await?;
    let leaves = rows.iter().filter_map(|name| Partition::of_name(Parent::Task, name));
    Ok(leaves.filter(|leaf| ids::floor_of(leaf.start) < range.to).collect())
}

const COLUMNS: &str = "id, first_id, topic, name, attempt, key, submitted_by, submitted_at, \
                       tracking, moved_to, punctual_terms(headers) as terms";

/// Builds the statement for a group of leaves. `$1` are the shards, `$2` and `$3` the ends of the
/// range, both exclusive, `$4` rows of each stream, `$5` the topic, `$6` rows of the answer, `$7`
/// the submitter, `$8` the state, `$9` the key. In a hotspot the range lies within a millisecond,
/// and the shards together are one stream.
fn group_text(leaves: &[Partition], is_in_hotspot: bool) -> String {
    let (shards_begin, shards_end) =
        if is_in_hotspot { (HOTSPOT_BEGIN, HOTSPOT_END) } else { (SHARDS_BEGIN, SHARDS_END) };
    let mut text = String::with_capacity(1200 + leaves.len() * 130);
    text.push_str("-- list pending tasks\nwith looked as materialized (\n");
    for (index, leaf) in leaves.iter().enumerate() {
        let (begin, name) =
            (if index == 0 { shards_begin } else { "      union all\n" }, leaf.name());
        let written = writeln!(
            text,
            "{begin}      (select {COLUMNS} from {name} where shard = s.shard and id > $2 and id < \
             $3)"
        );
        debug_assert!(written.is_ok(), "to write to a String never fails");
    }
    if !leaves.is_empty() {
        text.push_str(shards_end);
    }
    text.push_str(REST);
    text
}

const SHARDS_BEGIN: &str = "  (select x.*
  from unnest($1::smallint[]) as s (shard)
  cross join lateral (
    select n.*, row_number() over (order by n.id) as place
    from (select u.* from (
";
const SHARDS_END: &str = "    ) u order by u.id limit $4) n
  ) x)
  union all
";
/// A nested loop goes through the shards in the order of the array, and ends with the row that
/// fills the share. The shards behind that row are not read.
const HOTSPOT_BEGIN: &str = "  (select n.*, row_number() over (order by n.id) as place
  from (select x.*
    from unnest($1::smallint[]) as s (shard)
    cross join lateral (select u.* from (
";
const HOTSPOT_END: &str = "    ) u order by u.id limit $4) x
    limit $4) n)
  union all
";
/// The state of a row `t` of `task` or `task_far`, as [`in_its_state`] tells it.
macro_rules! state_of_row {
    () => {
        "case when t.tracking is null then 'scheduled' else coalesce((
      select case when s.note is distinct from 2 then 'awaiting' when s.is_verdict then 'dead'
        else 'retrying' end
      from task_follow s where s.first_id = coalesce(t.first_id, t.id) and s.attempt > 0
    ), 'scheduled') end"
    };
}
pub(super) use state_of_row;

/// Keys of more than 1 KiB are not shown, so that a page is limited in bytes, too. A sealed key is
/// compared when it is opened.
const REST: &str = concat!(
    "  (select n.*, row_number() over (order by n.id) as place
  from (select id, first_id, topic, name, attempt, key, submitted_by, submitted_at, tracking,
      moved_to, punctual_terms(headers) as terms
    from task_far where id > $2 and id < $3 order by id limit $4) n)
), bound as materialized (
  select (select id from looked where place = $4 order by id limit 1) as id,
    (select count(*) from looked) as looked
)
select b.id as bound, b.looked, t.id, t.first_id, t.topic, t.name, t.attempt, t.key,
  (select p.name from principal p where p.id = t.submitted_by) as submitted_by, t.submitted_at,
  t.tracking, t.moved_to, t.terms, f.attempt as followed, f.note, f.is_verdict
from bound b
left join lateral (
  select id, first_id, topic, name, attempt, case when octet_length(key) <= 1057
      or $9::bytea is not null then key end as key, submitted_by, submitted_at, tracking,
    moved_to, terms
  from looked t
  where ($5::text is null or topic = $5) and ($7::smallint is null or submitted_by = $7)
    and (b.id is null or id <= b.id) and ($9::bytea is null or t.key = $9
      or (t.key is not null and punctual_sealed_by(t.terms) is not null))
      and ($8::text is null or $8 = ",
    state_of_row!(),
    ")
  order by id
  limit $6
) t on true
left join task_follow f
  on t.tracking is not null and f.first_id = coalesce(t.first_id, t.id) and f.attempt > 0
order by t.id"
);

const NOT_COMPARED: &str = "the key of a task cannot be decrypted, so it cannot be compared";

/// Decodes a row of the answer. Returns `None` for the row of an empty answer, which only carries
/// the number of rows read, and for a sealed record without the wanted key.
///
/// # Errors
/// Also when a key is wanted, and that of the row cannot be opened: a list or a bulk change without
/// the row would be wrong.
fn listed_of(
    row: &PgRow,
    keys: &KeySet,
    wanted: Option<&[u8]>,
) -> Result<Option<ListedTask>, sqlx::Error> {
    let Some(id) = row.try_get::<Option<Uuid>, _>("id")? else { return Ok(None) };
    let first: Option<Uuid> = row.try_get("first_id")?;
    let first = TaskId::from_uuid(first.unwrap_or(id));
    let terms = row.try_get::<Option<Vec<u8>>, _>("terms")?.unwrap_or_default();
    let owner = RecordOwner::Task(first, row.try_get("topic")?);
    let key = keys.open_key(owner, &terms, row.try_get("key")?);
    match (wanted, &key) {
        (Some(_), Err(_)) => return Err(sqlx::Error::Decode(NOT_COMPARED.into())),
        (Some(wanted), Ok(key)) if key.as_deref() != Some(wanted) => return Ok(None),
        _ => {}
    }
    let mut view = TaskView {
        id: first,
        topic: TopicName::stored(row.try_get("topic")?),
        name: row.try_get("name")?,
        state: TaskState::Scheduled,
        replaced_by: None,
        attempt: row.try_get::<Option<i16>, _>("attempt")?.unwrap_or(1),
        receipt: None,
        kept: key.ok().map(listed_key),
        reason: None,
        died_at: None,
        moved_to: moved_of(row)?,
        requested_due_at: None,
        expires_at: None,
        actors: actors_of(row)?,
        tracked: tracked_of(row)?,
    };
    StoredTerms::split(&terms).0.show_in(&mut view);
    let view = in_its_state(view, row, TaskId::from_uuid(id))?;
    Ok(Some(ListedTask { row: TaskId::from_uuid(id), view }))
}

/// Returns the view of a pending row with the state of its task: an attempt of a tracked task may
/// be with a consumer.
fn in_its_state(mut view: TaskView, row: &PgRow, id: TaskId) -> Result<TaskView, sqlx::Error> {
    let Some(tracked) = view.tracked.as_mut() else { return Ok(view) };
    let Some(attempt) = row.try_get::<Option<i16>, _>("followed")? else {
        tracked.attempt = tracked.attempt.saturating_sub(1);
        return Ok(view);
    };
    tracked.attempt = attempt.saturating_as();
    let note: Option<i16> = row.try_get("note")?;
    if note.and_then(Note::of_code) == Some(Note::Failed) {
        let is_verdict = row.try_get::<Option<bool>, _>("is_verdict")?.unwrap_or(false);
        tracked.finish_by = None;
        tracked.next_at = (!is_verdict).then(|| id.due_at_unheld());
        view.state = if is_verdict { TaskState::Dead } else { TaskState::Retrying };
    } else {
        view.state = TaskState::Awaiting;
    }
    Ok(view)
}

/// Returns the greatest id below `id`.
fn before(id: Uuid) -> Uuid {
    Uuid::from_u128(id.as_u128().saturating_sub(1))
}

fn after(id: Uuid) -> Uuid {
    Uuid::from_u128(id.as_u128().saturating_add(1))
}

/// Returns the end of the millisecond in which the ids behind `id` begin.
fn end_of_millisecond(id: Uuid) -> Uuid {
    ids::floor_of(TaskId::from_uuid(after(id)).due_at().plus(Duration::from_millis(1)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::domain::Timestamp;

    #[test]
    fn a_statement_names_its_leaves_and_always_the_far_table() {
        let leaf = |start| Partition { parent: Parent::Task, start: Timestamp::from_millis(start) };
        for is_in_hotspot in [false, true] {
            let both = group_text(&[leaf(0), leaf(900_000)], is_in_hotspot);
            assert_eq!(
                (both.matches("from task_1970").count(), both.matches("from task_far").count()),
                (2, 1),
                "{both}"
            );
            assert!(!group_text(&[], is_in_hotspot).contains("s.shard"));
        }
    }
}
