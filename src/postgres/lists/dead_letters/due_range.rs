//! Selects dead letters by the due times that they show: `moved_to` of a moved task, and the time
//! of the id of any other.
//!
//! The order is that of the ids, the first due times of the tasks, for all of them: so a position
//! is one id, and a page begins behind it.

use sqlx::Postgres;
use sqlx::postgres::PgArguments;
use sqlx::query::Query;
use uuid::Uuid;

use crate::domain::{Cursor, IdRange, Selection, Timestamp};

/// The dead letters that are due in a range of times, behind a position.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct DueRange {
    /// The ids of tasks that were not moved. Without `moved_to`, of all tasks.
    ids: IdRange,
    /// The due times of moved tasks in ms since the epoch, from the first to before the second.
    /// `None` for all due times.
    moved_to: Option<(i64, i64)>,
    /// The lowest id behind the position.
    behind: Uuid,
}

impl DueRange {
    /// Returns the due times of a selection.
    pub fn of(selection: &Selection) -> Self {
        let moved_to = match (selection.due_from, selection.due_to) {
            (None, None) => None,
            (from, to) => Some((
                from.map_or(i64::MIN, Timestamp::as_millis),
                to.map_or(i64::MAX, Timestamp::as_millis),
            )),
        };
        Self { ids: selection.ids(), moved_to, behind: Uuid::nil() }
    }

    /// Returns the part behind a position. Without a position, all.
    #[must_use]
    pub fn behind(self, from: Option<Cursor>) -> Self {
        let rest = IdRange { from: self.behind, to: Uuid::max() }.behind(from);
        Self { ids: self.ids.behind(from), behind: rest.from, ..self }
    }

    /// Returns the ids, if all due times are meant.
    pub(super) fn of_all_times(self) -> Option<IdRange> {
        self.moved_to.is_none().then_some(self.ids)
    }

    /// Returns the first text for all due times, or the second for some, with the parameters that
    /// both begin with: the topic, the range, and the most rows. More may be bound.
    pub(super) fn query<'q>(
        self,
        [all, some]: [&'static str; 2],
        topic: Option<&'q str>,
        count_max: i64,
    ) -> Query<'q, Postgres, PgArguments> {
        let query = sqlx::query(if self.moved_to.is_some() { some } else { all });
        let query = query.bind(topic).bind(self.ids.from).bind(self.ids.to).bind(count_max);
        match self.moved_to {
            None => query,
            Some((from, to)) => query.bind(from).bind(to).bind(self.behind),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::domain::ids;

    #[test]
    fn a_range_selects_moved_tasks_by_their_new_times_and_all_others_by_their_ids() {
        let at = Timestamp::from_millis;
        let selection = |from: Option<i64>, to: Option<i64>| Selection {
            due_from: from.map(at),
            due_to: to.map(at),
            ..Selection::default()
        };
        let all = DueRange::of(&selection(None, None));
        assert_eq!(all.of_all_times(), Some(IdRange { from: Uuid::nil(), to: Uuid::max() }));
        let some = DueRange::of(&selection(Some(5), Some(9)));
        assert_eq!(some.of_all_times(), None);
        assert_eq!((some.ids, some.moved_to), (IdRange::of_times(at(5), at(9)), Some((5, 9))));
        let old = DueRange::of(&selection(None, Some(9)));
        assert_eq!((old.ids.from, old.moved_to), (Uuid::nil(), Some((i64::MIN, 9))));
        // A moved task may have any id, so the position limits only the ids of the others.
        let position = ids::floor_of(at(2));
        let rest = some.behind(Some(Cursor { after: position }));
        let next = Uuid::from_u128(position.as_u128() + 1);
        assert_eq!((rest.ids, rest.moved_to, rest.behind), (some.ids, Some((5, 9)), next));
        assert_eq!(some.behind(None), some);
    }
}
