//! Finds the topics of many tasks in a few statements, for the rights of callers.
//!
//! The statements take the steps of a look-up for all tasks at once: first the places outside the
//! batches, then the batches. The module above says why a task in none of them never existed. A
//! task that changes its place meanwhile, and one in a hidden leaf, are left to look-ups of single
//! tasks.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::iter;

use sqlx::Row as _;
use sqlx::postgres::{PgConnection, PgRow};
use uuid::Uuid;

use crate::domain::leaves::{Parent, Rules};
use crate::domain::{Outcome, TaskId, TopicName, WidthClass};
use crate::postgres::PostgresError;
use crate::postgres::connection::pool::Pool;
use crate::postgres::unsettled::{UnsettledFloor, lowest_batch_of};

/// Maximum number of tasks of one call. A statement about 500 tasks takes 10 to 80 ms, and 220 ms
/// when they are in all leaves of three days (2 cores, Postgres 15, 8 days of the execlog and 200
/// unsettled batches of 1,000 tasks, 2026-11-30).
pub const TOPICS_MAX: usize = 500;

const WHAT: &str = "look up the topics of tasks";

/// `$1` are the current rows, `$2` their shards, `$3` the ids with which the tasks were submitted.
/// A line without a topic is one of `task_follow`. A task has at most one other line, or several
/// with the same topic: only a redrive changes the topic, and the redriven task has left the other
/// places.
const PLACES: &str = "-- look up topics outside of batches
select t.id as row_id, coalesce(t.first_id, t.id) as id, t.topic
from task_far t where t.id = any($1)
union all
select t.id, coalesce(t.first_id, t.id), t.topic
from unnest($2::smallint[], $1::uuid[]) as w (shard, id)
join task t on t.shard = w.shard and t.id = w.id and t.id = any($1)
union all
select null, id, topic from execlog_cancelled where id = any($3)
union all
select null, id, topic from dead_letter where id = any($3)
union all
select null, id, topic from execlog_finished where id = any($3)
union all
select null, id, topic from execlog_dropped where id = any($3)
union all
select row_id, first_id, null from task_follow where first_id = any($3)";

/// Reads batches as a look-up of one task does. `$1` are the rows, `$2` the lowest batch of each,
/// `$3` the width classes, `$4` the lowest starts (those of all classes for each row), and `$5` the
/// lowest unsettled batch. Few ids are compared with all ids of the unsettled batches, which is
/// quicker than to unpack these batches.
const ENTRIES: &str = "-- look up topics in batches
select w.id, b.topic, b.outcome, b.next
from unnest($1::uuid[], $2::uuid[]) with ordinality as w (id, lowest, place)
cross join lateral (
  select s.topic_names[coalesce(s.topic_indexes[s.position], 1)] as topic,
    s.outcomes[s.position] as outcome, s.next_ids[s.position] as next
  from unnest($3::smallint[]) with ordinality as c (width_class, place)
  cross join lateral (
    select *, array_position(ids, w.id) as position
    from execlog_batch
    where batch >= w.lowest and width_class = c.width_class
      and id_from >= ($4::uuid[])[(w.place - 1) * cardinality($3) + c.place]
      and id_from <= w.id and id_to >= w.id and w.id = any(ids)
    limit 1
  ) s
  limit 1
) b
union all
select u.id, p.topics[u.place], null, null
from execlog_batch b
cross join lateral unnest(b.ids) with ordinality as u (id, place)
left join execlog_payload p on p.batch = b.batch
where b.settled_at is null and b.batch >= $5 and (cardinality($1) > 8 or b.ids && $1)
  and u.id = any($1)";

/// `$1` are ids, `$2` the names of leaves. Returns the rows with which tasks have ended, if these
/// were not their first, and the leaves that queries of `task` do not see.
const TRACES: &str = "-- look up traces of tasks
(select distinct on (id) id, row_id, null::text as leaf
from execlog_ended where id = any($1)
order by id, ended_at desc)
union all
select null, null, l.name
from unnest($2::text[]) as l (name)
join pg_class c on c.oid = to_regclass(l.name)
where not exists (select from pg_inherits where inhrelid = c.oid and not inhdetachpending)";

/// The topics of tasks.
#[derive(Debug, Default)]
pub struct FoundTopics {
    pub topics: HashMap<TaskId, TopicName>,
    /// The tasks that must be looked up one by one. All other tasks without a topic do not exist.
    pub undecided: BTreeSet<TaskId>,
}

/// The row that each task is, by the id with which it was submitted.
type Rows = BTreeMap<TaskId, TaskId>;

/// The topics of rows in batches. The topic is `None` when another row may follow, or when the
/// payload of the batch is not visible for a moment.
type Entries = HashMap<TaskId, Option<TopicName>>;

/// A line of [`PLACES`].
#[derive(Debug)]
struct Place {
    first: TaskId,
    /// `None` in tables that have one line for a task.
    row: Option<TaskId>,
    /// `None` in `task_follow`.
    topic: Option<TopicName>,
}

/// A search for topics, over the connections of `places`.
#[derive(Clone, Copy, Debug)]
pub(super) struct Search<'a> {
    pub(super) places: &'a Pool,
    pub(super) rules: &'a Rules,
    pub(super) unsettled: UnsettledFloor,
}

/// The traces of tasks that are in no visible place.
#[derive(Debug, Default)]
struct Traces {
    /// The rows with which tasks have ended.
    ended: Rows,
    /// The tasks whose leaf is hidden.
    hidden: BTreeSet<TaskId>,
}

impl Search<'_> {
    /// Returns the topics of at most [`TOPICS_MAX`] tasks, in at most five statements.
    pub(super) async fn run(self, ids: &[TaskId]) -> Result<FoundTopics, PostgresError> {
        debug_assert!(ids.len() <= TOPICS_MAX, "the caller limits the number of tasks");
        let mut found = FoundTopics::default();
        let mut rows: Rows = ids.iter().map(|id| (*id, *id)).collect();
        let mut moved = self.in_places(&mut rows, &mut found.topics).await?;
        if !moved.is_empty() {
            let again = self.in_places(&mut moved, &mut found.topics).await?;
            moved.extend(again);
        }
        rows.extend(&moved);
        if rows.is_empty() {
            return Ok(found);
        }
        let entries = self.in_batches(&rows).await?;
        rows.retain(|first, row| match entries.get(&*row) {
            Some(Some(topic)) => {
                found.topics.insert(*first, topic.clone());
                false
            }
            Some(None) | None => true,
        });
        if rows.is_empty() {
            return Ok(found);
        }
        let Traces { ended, hidden } = self.traces(&rows).await?;
        let last_entries =
            if ended.is_empty() { Entries::new() } else { self.in_batches(&ended).await? };
        for (first, row) in rows {
            let last = ended.get(&first);
            let is_absent = last.is_none()
                && !entries.contains_key(&row)
                && !moved.contains_key(&first)
                && !hidden.contains(&first);
            if let Some(Some(topic)) = last.and_then(|last| last_entries.get(last)) {
                found.topics.insert(first, topic.clone());
            } else if !is_absent {
                found.undecided.insert(first);
            }
        }
        Ok(found)
    }

    /// Looks for `rows` outside of the batches. The rows that stay in `rows` are in none of the
    /// places. Returns the tasks that are another row now.
    async fn in_places(
        &self,
        rows: &mut Rows,
        topics: &mut HashMap<TaskId, TopicName>,
    ) -> Result<Rows, PostgresError> {
        let sought = &*rows;
        let places = self.places.read(WHAT, || async |open| places_of(open, sought).await).await?;
        Ok(sort_out(places, rows, topics))
    }

    async fn in_batches(&self, rows: &Rows) -> Result<Entries, PostgresError> {
        self.places.read(WHAT, || async |open| entries_of(open, rows, self.unsettled).await).await
    }

    async fn traces(&self, rows: &Rows) -> Result<Traces, PostgresError> {
        let mut leaves: BTreeMap<String, Vec<TaskId>> = BTreeMap::new();
        for (first, row) in rows {
            let leaf = self.rules.partition_of(Parent::Task, row.due_at());
            leaves.entry(leaf.name()).or_default().push(*first);
        }
        let leaves = &leaves;
        self.places.read(WHAT, || async |open| traces_of(open, rows, leaves).await).await
    }
}

/// Removes each task whose topic was found from `rows`, and puts the topic into `topics`. Also
/// removes the tasks that are another row now, and returns them with that row.
fn sort_out(places: Vec<Place>, rows: &mut Rows, topics: &mut HashMap<TaskId, TopicName>) -> Rows {
    let mut moved = Rows::new();
    for Place { first, row, topic } in places {
        match (row, topic) {
            (Some(row), None) => {
                moved.insert(first, row);
            }
            // The id of a later row is no id of a task.
            (row, Some(topic)) if row.is_none() || row.as_ref() == rows.get(&first) => {
                topics.insert(first, topic);
            }
            _ => {}
        }
    }
    moved.retain(|first, _row| !topics.contains_key(first));
    rows.retain(|first, _row| !topics.contains_key(first) && !moved.contains_key(first));
    moved
}

async fn places_of(open: &mut PgConnection, rows: &Rows) -> Result<Vec<Place>, sqlx::Error> {
    let ids: Vec<Uuid> = rows.values().map(|row| row.uuid()).collect();
    let shards: Vec<i16> = rows.values().map(|row| row.shard().as_smallint()).collect();
    let firsts: Vec<Uuid> = rows.keys().map(|first| first.uuid()).collect();
    let found = sqlx::query(PLACES).bind(ids).bind(shards).bind(firsts).fetch_all(open).await?;
    found.iter().map(place_of).collect()
}

fn place_of(row: &PgRow) -> Result<Place, sqlx::Error> {
    Ok(Place {
        first: TaskId::from_uuid(row.try_get("id")?),
        row: row.try_get::<Option<Uuid>, _>("row_id")?.map(TaskId::from_uuid),
        topic: row.try_get::<Option<&str>, _>("topic")?.map(TopicName::stored),
    })
}

async fn entries_of(
    open: &mut PgConnection,
    rows: &Rows,
    unsettled: UnsettledFloor,
) -> Result<Entries, sqlx::Error> {
    let rows: BTreeSet<TaskId> = rows.values().copied().collect();
    let ids: Vec<Uuid> = rows.iter().map(|row| row.uuid()).collect();
    let lowest: Vec<Uuid> = rows.iter().map(|row| lowest_batch_of(iter::once(*row))).collect();
    let width_classes: Vec<i16> = WidthClass::all().map(WidthClass::as_smallint).collect();
    let starts: Vec<Uuid> =
        rows.iter().flat_map(|row| WidthClass::all().map(|one| one.lowest_start(*row))).collect();
    let found = sqlx::query(ENTRIES)
        .bind(ids)
        .bind(lowest)
        .bind(width_classes)
        .bind(starts)
        .bind(unsettled.of(rows.iter().copied()))
        .fetch_all(open)
        .await?;
    found.iter().map(entry_of).collect()
}

fn entry_of(row: &PgRow) -> Result<(TaskId, Option<TopicName>), sqlx::Error> {
    let (outcome, next): (Option<i16>, Option<Uuid>) =
        (row.try_get("outcome")?, row.try_get("next")?);
    // A dead letter may have been redriven to another topic just now.
    let is_last = next.is_none() && outcome != Some(Outcome::DEAD);
    let topic = row.try_get::<Option<&str>, _>("topic")?.filter(|_topic| is_last);
    Ok((TaskId::from_uuid(row.try_get("id")?), topic.map(TopicName::stored)))
}

/// `leaves` has the tasks of each leaf.
async fn traces_of(
    open: &mut PgConnection,
    rows: &Rows,
    leaves: &BTreeMap<String, Vec<TaskId>>,
) -> Result<Traces, sqlx::Error> {
    let ids: Vec<Uuid> = rows.keys().map(|first| first.uuid()).collect();
    let names: Vec<&str> = leaves.keys().map(String::as_str).collect();
    let found = sqlx::query(TRACES).bind(ids).bind(names).fetch_all(open).await?;
    let mut traces = Traces::default();
    for row in &found {
        let ended: (Option<Uuid>, Option<Uuid>) = (row.try_get("id")?, row.try_get("row_id")?);
        if let (Some(first), Some(last)) = ended {
            traces.ended.insert(TaskId::from_uuid(first), TaskId::from_uuid(last));
        }
        let leaf: Option<&str> = row.try_get("leaf")?;
        traces.hidden.extend(leaf.and_then(|leaf| leaves.get(leaf)).into_iter().flatten());
    }
    Ok(traces)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::domain::{Shard, Timestamp};

    fn id(random: u64) -> TaskId {
        TaskId::new(Timestamp::EPOCH, Shard::new(0), random)
    }

    fn rows(pairs: &[(u64, u64)]) -> Rows {
        pairs.iter().map(|(first, row)| (id(*first), id(*row))).collect()
    }

    /// Returns the rows that are left, and the rows that are followed. Checks that each sought task
    /// is in one of them, or has a topic.
    fn sorted(places: &[(u64, Option<u64>, Option<&str>)], sought: &[(u64, u64)]) -> [Rows; 2] {
        let place = |(first, row, topic): &(u64, Option<u64>, Option<&str>)| Place {
            first: id(*first),
            row: row.map(id),
            topic: topic.map(TopicName::stored),
        };
        let (mut left, mut topics) = (rows(sought), HashMap::new());
        let moved = sort_out(places.iter().map(place).collect(), &mut left, &mut topics);
        for first in left.keys().chain(moved.keys()) {
            assert!(!topics.contains_key(first), "{topics:?}");
        }
        assert_eq!(left.len() + moved.len() + topics.len(), sought.len());
        [left, moved]
    }

    #[test]
    fn a_task_is_found_by_its_row_or_followed_or_left_for_the_batches() {
        let nothing = Rows::new();
        let found = sorted(&[(1, Some(1), Some("a")), (2, None, Some("b"))], &[(1, 1), (2, 2)]);
        assert_eq!(found, [nothing.clone(), nothing.clone()]);
        let followed = sorted(&[(1, Some(7), None)], &[(1, 1), (2, 2)]);
        assert_eq!(followed, [rows(&[(2, 2)]), rows(&[(1, 7)])]);
        // The row that was followed is there, and still has its entry.
        let there = sorted(&[(1, Some(7), Some("a")), (1, Some(7), None)], &[(1, 7)]);
        assert_eq!(there, [nothing.clone(), nothing.clone()]);
        let claimed = sorted(&[(1, Some(7), None)], &[(1, 7)]);
        assert_eq!(claimed, [nothing, rows(&[(1, 7)])]);
    }

    #[test]
    fn the_id_of_a_later_row_finds_no_task() {
        let left = sorted(&[(1, Some(7), Some("a"))], &[(7, 7)]);
        assert_eq!(left, [rows(&[(7, 7)]), Rows::new()]);
        let both = sorted(&[(1, Some(7), Some("a")), (1, Some(7), None)], &[(1, 1), (7, 7)]);
        assert_eq!(both, [rows(&[(7, 7)]), rows(&[(1, 7)])], "the id of the task is followed");
    }
}
