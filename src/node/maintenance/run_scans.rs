//! The lower limits of the scans for schedules whose runs are to be made.
//!
//! A scan follows the index of `look_at` from its low end. While some transaction has an old
//! snapshot, each schedule that moved on leaves an entry there that every scan must pass. So a scan
//! begins a little before the last complete one, and only now and then at the low end.

use std::time::Duration;

use crate::domain::{Monotonic, Timestamp};

/// How far a scan goes back before the last complete one: longer than a transaction that changes a
/// schedule takes, and than shards are without an owner.
const OVERLAP: Duration = Duration::from_secs(60);
/// The interval of scans from the low end. They find what no other scan does.
const FULL_INTERVAL: Duration = Duration::from_secs(60);

/// A step of the clock that is less than [`OVERLAP`] needs no scan from the low end.
const STEP_MIN: Duration = Duration::from_secs(30);

/// The scans of one node.
#[derive(Debug, Default)]
pub struct RunScans {
    shards: Vec<i16>,
    /// Runs of all schedules that were to be looked at before are made.
    done_to: Option<Timestamp>,
    /// When a scan from the low end was complete, or took too long.
    full_at: Option<Monotonic>,
    /// The last scan began at the low end.
    is_full: bool,
}

impl RunScans {
    /// Returns the lowest `look_at` of a scan for schedules of these shards. `None`: from the low
    /// end.
    pub fn begin(&mut self, shards: &[i16], now: Monotonic) -> Option<Timestamp> {
        if self.shards != shards {
            *self = Self { shards: shards.to_vec(), ..Self::default() };
        }
        let is_time = self.full_at.is_none_or(|at| now.since(at) >= FULL_INTERVAL);
        let from = self.done_to.filter(|_to| !is_time);
        self.is_full = from.is_none();
        from.map(|to| to.minus(OVERLAP))
    }

    /// Notes the time before a scan. After a large step back of the clock, the scan begins at the
    /// low end.
    pub fn saw(&mut self, now: Timestamp) {
        if self.done_to.is_some_and(|to| to > now.plus(STEP_MIN)) {
            *self = Self::default();
        }
    }

    /// Notes that a scan has made the runs of all schedules. `began_at` is the time of Postgres,
    /// which a scan that finds no schedule does not tell.
    pub fn completed(&mut self, began_at: Option<Timestamp>, now: Monotonic) {
        self.done_to = began_at.or(self.done_to);
        if self.is_full {
            self.full_at = Some(now);
        }
    }

    /// Notes that a scan from the low end took too long. The next ones go on without it. `at` is
    /// the time of Postgres.
    pub fn full_is_slow(&mut self, at: Timestamp, now: Monotonic) {
        self.done_to.get_or_insert(at);
        self.full_at = Some(now);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(second: u64) -> (Monotonic, Timestamp) {
        let span = Duration::from_secs(second);
        (Monotonic::default().plus(span), Timestamp::EPOCH.plus(span))
    }

    #[test]
    fn a_look_begins_before_the_last_complete_one_and_now_and_then_at_the_low_end() {
        let mut scans = RunScans::default();
        let begin =
            |scans: &mut RunScans, shards: &[i16], second| scans.begin(shards, at(second).0);
        let complete = |scans: &mut RunScans, second| {
            scans.completed(Some(at(second).1), at(second).0);
        };
        assert_eq!(begin(&mut scans, &[1], 1_000), None);
        assert_eq!(begin(&mut scans, &[1], 1_001), None, "the first scan was not completed");
        complete(&mut scans, 1_001);
        assert_eq!(begin(&mut scans, &[1], 1_002), Some(at(941).1));
        assert_eq!(begin(&mut scans, &[1], 1_060), Some(at(941).1), "the scans since then failed");
        assert_eq!(begin(&mut scans, &[1], 1_061), None, "it is time");
        assert_eq!(begin(&mut scans, &[1], 1_062), None, "that scan failed");
        complete(&mut scans, 1_062);
        assert_eq!(begin(&mut scans, &[1, 2], 1_063), None, "a shard is new");
        assert_eq!(begin(&mut scans, &[1, 2], 1_064), None, "that scan failed");
        complete(&mut scans, 1_064);
        assert_eq!(begin(&mut scans, &[1, 2], 1_065), Some(at(1_004).1));
        assert_eq!(begin(&mut scans, &[1, 2], 1_124), None);
        scans.completed(None, at(1_124).0);
        assert_eq!(begin(&mut scans, &[1, 2], 1_125), Some(at(1_004).1), "nothing was found");
        scans.saw(at(1_060).1);
        assert_eq!(begin(&mut scans, &[1, 2], 1_126), Some(at(1_004).1));
        scans.saw(at(900).1);
        assert_eq!(begin(&mut scans, &[1, 2], 1_127), None, "the clock went back");
    }

    #[test]
    fn looks_go_on_without_the_low_end_when_that_takes_too_long() {
        let mut scans = RunScans::default();
        assert_eq!(scans.begin(&[1], at(1_000).0), None);
        scans.full_is_slow(at(1_005).1, at(1_005).0);
        assert_eq!(scans.begin(&[1], at(1_006).0), Some(at(945).1));
        scans.completed(Some(at(1_006).1), at(1_006).0);
        assert_eq!(scans.begin(&[1], at(1_065).0), None);
        scans.full_is_slow(at(1_070).1, at(1_070).0);
        assert_eq!(scans.begin(&[1], at(1_071).0), Some(at(946).1));
    }
}
