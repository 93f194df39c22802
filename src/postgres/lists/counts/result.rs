//! The result of a count: the tasks by topic or submitter, and by ranges of due times.

use std::collections::HashMap;
use std::time::Duration;

use az::SaturatingAs as _;
use uuid::Uuid;

use super::sample::whole;
use crate::domain::{Timestamp, ids};

pub(super) const MINUTE: Duration = Duration::from_secs(60);
/// The minutes that are counted exactly if they can be.
pub(super) const HOUR_MINUTES: usize = 60;
/// Minutes and days that have figures of their own. The first ones are the current ones.
const MINUTES: u32 = 120;
const DAYS: u32 = 30;
const DAY: Duration = Duration::from_hours(24);

/// The result of a count.
#[derive(Clone, PartialEq, Debug)]
pub struct CountResult {
    pub as_of: Timestamp,
    pub(super) buckets: Buckets,
    /// By topic or submitter, and bucket.
    pub(super) tally: HashMap<(String, usize), f64>,
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
pub(super) struct Buckets {
    pub(super) now: Timestamp,
    /// The start of the current minute.
    pub(super) minute: Timestamp,
    /// The ends of the minutes and days in order, without doubles.
    ends: Vec<Timestamp>,
}

impl Buckets {
    pub(super) fn new(now: Timestamp) -> Self {
        let minute = start_of(now, MINUTE);
        let minutes = (1..=MINUTES).map(|number| minute.plus(MINUTE * number));
        let last = minute.plus(MINUTE * MINUTES);
        let day = start_of(now, DAY);
        let days = (1..=DAYS).map(|number| day.plus(DAY * number)).filter(|end| *end > last);
        Self { now, minute, ends: minutes.chain(days).collect() }
    }

    /// Returns the first ids of all buckets but the first.
    pub(super) fn bounds(&self) -> Vec<Uuid> {
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

#[cfg(test)]
mod tests {
    use super::*;

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
}
