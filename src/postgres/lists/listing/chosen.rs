//! Lists pending tasks of a topic that are chosen by their ids or names.
//!
//! `task_follow` and `task_name` lead from the choice to the current rows, and the keys of the
//! tables lead to these. So the cost depends on the choice alone, however many tasks are pending.

use std::collections::HashMap;

use az::SaturatingAs as _;
use sqlx::postgres::{PgConnection, PgRow};
use sqlx::{Connection as _, Row as _};
use uuid::Uuid;

use super::{ListedTask, Listing, TaskPage, listed_of, state_of_row};
use crate::domain::{Choice, Cursor, PendingState, Selection, TaskId, TopicName};
use crate::postgres::PostgresError;
use crate::postgres::tasks::principals::FIND;
use crate::sealing::KeySet;

/// Maximum number of rows that one statement fetches.
const ROWS_MAX: usize = 1000;

/// The result of a look at selected tasks.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Selected {
    Page(TaskPage),
    /// More names than [`Choice::PREFIXED_MAX`] begin with the prefix.
    TooManyNames,
}

/// Builds the statement that finds the current rows of the tasks in `$entries`. A name may still
/// have a former row while a follow-up is being made, so `task_follow` wins.
macro_rules! rows_of {
    ($entries:literal) => {
        concat!(
            "-- current rows of chosen tasks
select e.id as first_id, coalesce(f.row_id, e.row_id) as row_id
from ",
            $entries,
            " e
left join task_follow f on f.first_id = e.id"
        )
    };
}

const OF_IDS: &str = rows_of!("(select w.id, w.id as row_id from unnest($1::uuid[]) as w (id))");
const OF_NAMES: &str = rows_of!(
    "(
  select n.id, n.row_id from unnest($2::text[]) as w (name)
  join task_name n on n.topic = $1 and n.name = w.name
)"
);
/// Names are compared by their bytes, so the names with a prefix are a range of the key.
const OF_PREFIX: &str = rows_of!(
    "(
  select id, row_id from task_name
  where topic = $1 and name >= $2 and ($3::text is null or name < $3)
  order by topic, name limit $4
)"
);

const TASKS: &str = concat!(
    "-- list chosen tasks
select t.id, t.first_id, t.topic, t.name, t.attempt,
  case when octet_length(t.key) <= 1057 then t.key end as key,
  (select p.name from principal p where p.id = t.submitted_by) as submitted_by, t.submitted_at,
  t.tracking, t.moved_to, t.terms, f.attempt as followed, f.note, f.is_verdict
from (
  select n.id, n.first_id, n.topic, n.name, n.attempt, n.key, n.submitted_by, n.submitted_at,
    n.tracking, n.moved_to, punctual_terms(n.headers) as terms
  from unnest($1::smallint[], $2::uuid[]) as w (shard, id)
  join task n on n.shard = w.shard and n.id = w.id and n.id = any($2)
  union all
  select id, first_id, topic, name, attempt, key, submitted_by, submitted_at, tracking, moved_to,
    punctual_terms(headers)
  from task_far where id = any($2)
) t
left join task_follow f
  on t.tracking is not null and f.first_id = coalesce(t.first_id, t.id) and f.attempt > 0
where t.topic = $3 and ($4::smallint is null or t.submitted_by = $4)
  and ($5::text is null or $5 = ",
    state_of_row!(),
    ")"
);

impl Listing {
    /// Returns the next selected tasks behind `from`: at most `limit`, found among about
    /// `looked_max` rows.
    pub async fn select(
        &self,
        selection: &Selection,
        from: Option<Cursor>,
        limit: usize,
        looked_max: u64,
    ) -> Result<Selected, PostgresError> {
        let choice = match &selection.choice {
            None | Some(Choice::Key(_)) => {
                return self.page(selection, from, limit, looked_max).await.map(Selected::Page);
            }
            Some(choice) => choice,
        };
        let keys = &self.keys.current();
        let reading = || {
            async |open: &mut PgConnection| {
                // As for any page, a rollback ends the transaction.
                let mut snapshot =
                    open.begin_with("begin isolation level repeatable read, read only").await?;
                let selected =
                    page_of(&mut snapshot, (selection, choice), (from, limit), keys).await?;
                snapshot.rollback().await?;
                Ok(selected)
            }
        };
        self.pool.read("list chosen tasks", reading).await
    }
}

/// Reads a page. Its order is that of the rows.
async fn page_of(
    open: &mut PgConnection,
    (selection, choice): (&Selection, &Choice),
    (from, limit): (Option<Cursor>, usize),
    keys: &KeySet,
) -> Result<Selected, sqlx::Error> {
    let mut page = TaskPage { tasks: Vec::new(), next: None, looked: 0 };
    let submitter: Option<i16> = match &selection.submitted_by {
        Some(name) => {
            sqlx::query_scalar(FIND).bind(name.as_str()).fetch_optional(&mut *open).await?
        }
        None => None,
    };
    if selection.submitted_by.is_some() && submitter.is_none() {
        return Ok(Selected::Page(page));
    }
    let topic = selection.topic.as_ref().map_or("", TopicName::as_str);
    let Some(mut rows) = current_rows(open, topic, choice).await? else {
        return Ok(Selected::TooManyNames);
    };
    page.looked = rows.len().saturating_as::<u64>();
    let ranges = selection.rows().map(|range| range.behind(from));
    rows.retain(|(row, _first)| ranges.iter().any(|range| range.contains(row.uuid())));
    rows.sort_unstable();
    let firsts: HashMap<TaskId, TaskId> = rows.iter().copied().collect();
    rows.dedup();
    for some in rows.chunks(ROWS_MAX) {
        let mut found = tasks_of(open, some, topic, (submitter, selection.state), keys).await?;
        // An id may be that of a follow-up's row, which is no id of a task.
        found.retain(|task| firsts.get(&task.row) == Some(&task.view.id));
        found.sort_unstable_by_key(|task| task.row);
        for task in found {
            if let Some(last) = page.tasks.last().filter(|_last| page.tasks.len() >= limit) {
                page.next = Some(Cursor { after: last.row.uuid() });
                return Ok(Selected::Page(page));
            }
            page.tasks.push(task);
        }
    }
    Ok(Selected::Page(page))
}

/// Returns the rows that the chosen tasks may be, with the first id of each. Returns `None` for a
/// prefix of too many names.
async fn current_rows(
    open: &mut PgConnection,
    topic: &str,
    choice: &Choice,
) -> Result<Option<Vec<(TaskId, TaskId)>>, sqlx::Error> {
    let rows = match choice {
        Choice::Ids(ids) => {
            let ids: Vec<Uuid> = ids.iter().map(|id| id.uuid()).collect();
            sqlx::query(OF_IDS).bind(ids).fetch_all(open).await?
        }
        Choice::Names(names) => {
            let names: Vec<&str> = names.iter().map(|name| name.as_str()).collect();
            sqlx::query(OF_NAMES).bind(topic).bind(names).fetch_all(open).await?
        }
        Choice::NamePrefix(prefix) => {
            let limit = i64::try_from(Choice::PREFIXED_MAX).unwrap_or(i64::MAX).saturating_add(1);
            sqlx::query(OF_PREFIX)
                .bind(topic)
                .bind(&**prefix)
                .bind(end_of_prefix(prefix))
                .bind(limit)
                .fetch_all(open)
                .await?
        }
        // A list by key reads the shard of the key in order, without ids.
        Choice::Key(_) => Vec::new(),
    };
    if rows.len() > Choice::PREFIXED_MAX {
        return Ok(None);
    }
    let ids_of = |row: &PgRow| -> Result<(TaskId, TaskId), sqlx::Error> {
        let (row_id, first): (Uuid, Uuid) = (row.try_get("row_id")?, row.try_get("first_id")?);
        Ok((TaskId::from_uuid(row_id), TaskId::from_uuid(first)))
    };
    rows.iter().map(ids_of).collect::<Result<_, _>>().map(Some)
}

/// Fetches the pending ones of `rows`.
async fn tasks_of(
    open: &mut PgConnection,
    rows: &[(TaskId, TaskId)],
    topic: &str,
    (submitter, state): (Option<i16>, Option<PendingState>),
    keys: &KeySet,
) -> Result<Vec<ListedTask>, sqlx::Error> {
    let shards: Vec<i16> = rows.iter().map(|(row, _)| row.shard().as_smallint()).collect();
    let ids: Vec<Uuid> = rows.iter().map(|(row, _)| row.uuid()).collect();
    let found = sqlx::query(TASKS)
        .bind(shards)
        .bind(ids)
        .bind(topic)
        .bind(submitter)
        .bind(state.map(PendingState::as_str))
        .fetch_all(open)
        .await?;
    found.iter().map(|row| listed_of(row, keys, None)).filter_map(Result::transpose).collect()
}

/// Returns the least text above all texts with this prefix, by their bytes. `None`: there is no
/// such text.
fn end_of_prefix(prefix: &str) -> Option<String> {
    let mut end: Vec<char> = prefix.chars().collect();
    while let Some(last) = end.pop() {
        // The range of characters leaves out the surrogates.
        if let Some(next) = (last..=char::MAX).nth(1) {
            end.push(next);
            return Some(end.into_iter().collect());
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_prefix_ends_before_its_successor() {
        for (prefix, end) in [
            ("a", Some("b")),
            ("order-", Some("order.")),
            ("a\u{d7ff}", Some("a\u{e000}")),
            ("a\u{10ffff}", Some("b")),
            ("\u{10ffff}", None),
            ("", None),
        ] {
            assert_eq!(end_of_prefix(prefix).as_deref(), end, "{prefix:?}");
        }
    }

    proptest! {
        #[test]
        fn a_text_has_the_prefix_if_it_lies_before_the_end(prefix: String, text: String) {
            for text in [format!("{prefix}{text}"), text] {
                let end = end_of_prefix(&prefix);
                let is_inside =
                    text >= prefix && end.as_ref().is_none_or(|end| text < *end);
                prop_assert_eq!(is_inside, text.starts_with(&prefix));
            }
        }
    }
}
