//! The limit on the number of schedules of the cluster (`--schedules-max`).
//!
//! A count of all schedules reads all of them, and so is not made for each new one. The node keeps
//! the result of the last count with the highest id at that time, and counts only the schedules
//! with higher ids. Schedules that were deleted since make this too high, so the last word has a
//! count of all. A request does not see schedules that others are creating at the same moment:
//! together, they may pass the limit by one for each of these requests.

use az::SaturatingAs as _;
use parking_lot::Mutex;
use sqlx::Row as _;
use sqlx::postgres::PgConnection;

use crate::domain::Timestamp;

/// The most schedules with higher ids that are counted, before all are counted again. An entry of
/// the index is read for each.
const NEWER_MAX: i64 = 1_000;

const TIME: &str = "-- the time for a schedule
select (extract(epoch from clock_timestamp()) * 1000000)::bigint as now,
  (select count(*) from (select 1 from schedule where id > $1 limit $2) newer) as newer";

/// Other statements about schedules read few of them, and their connections read no table as a
/// whole.
const READ_WHOLE: &str = "-- read a table as a whole
select set_config('enable_seqscan', 'on', true)";

const COUNT: &str = "-- count all schedules for the limit
select count(*) as total, coalesce(max(id), 0) as last from schedule";

/// The most schedules that the cluster may have, and what is known of their number.
#[derive(Debug)]
pub(super) struct ScheduleLimit {
    max: u64,
    counted: Mutex<Option<Counted>>,
}

/// The number of schedules when all were counted.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Counted {
    total: i64,
    /// The highest id.
    last: i64,
}

impl Counted {
    /// Returns the most schedules that there can be, with `newer` of a higher id. `None` when so
    /// many are newer that all must be counted again.
    fn at_most(self, newer: i64) -> Option<u64> {
        let sum = self.total.saturating_add(newer).saturating_as::<u64>();
        (newer <= NEWER_MAX).then_some(sum)
    }
}

impl ScheduleLimit {
    pub(super) fn new(schedules_max: usize) -> Self {
        Self { max: schedules_max.saturating_as::<u64>(), counted: Mutex::default() }
    }

    /// Returns the time of Postgres's clock for a new schedule. Returns the limit instead when the
    /// cluster has as many schedules already.
    pub(super) async fn time_with_room(
        &self,
        open: &mut PgConnection,
    ) -> Result<Result<Timestamp, u64>, sqlx::Error> {
        let counted = *self.counted.lock();
        let last = counted.map_or(0, |counted| counted.last);
        let row = sqlx::query(TIME).bind(last).bind(NEWER_MAX + 1).fetch_one(&mut *open).await?;
        let now = Timestamp::from_micros(row.try_get("now")?);
        let newer: i64 = row.try_get("newer")?;
        if counted.and_then(|counted| counted.at_most(newer)).is_some_and(|sum| sum < self.max) {
            return Ok(Ok(now));
        }
        sqlx::query(READ_WHOLE).execute(&mut *open).await?;
        let row = sqlx::query(COUNT).fetch_one(open).await?;
        let counted = Counted { total: row.try_get("total")?, last: row.try_get("last")? };
        *self.counted.lock() = Some(counted);
        Ok(if counted.total.saturating_as::<u64>() < self.max { Ok(now) } else { Err(self.max) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_schedules_are_counted_again_when_many_are_newer() {
        let counted = Counted { total: 5, last: 70 };
        assert_eq!(counted.at_most(0), Some(5));
        assert_eq!(counted.at_most(NEWER_MAX), Some(1_005));
        assert_eq!(counted.at_most(NEWER_MAX + 1), None);
    }
}
