//! A lower bound of Postgres's clock, made of stamps in its answers and the monotonic time since.

use std::collections::VecDeque;
use std::time::Duration;

use crate::domain::{Monotonic, Timestamp};

/// One reading of Postgres's clock, taken somewhere between the question and the answer.
#[derive(Clone, Copy, Debug)]
pub struct Stamp {
    pub at: Timestamp,
    pub asked_at: Monotonic,
    pub arrived_at: Monotonic,
}

/// As many stamps count: with one each half second, those of the last four seconds.
const STAMPS_MAX: usize = 8;
/// What two machines' monotonic clocks may differ in rate, in parts per million: twice the 100 ppm of a poor quartz.
const DRIFT_PPM_MAX: u32 = 200;
/// A difference to the monotonic time beyond this is a jump of Postgres's clock.
const JUMP_MIN: Duration = Duration::from_millis(500);
/// How long the clock must have held after a jump.
const HOLD: Duration = Duration::from_secs(60);

/// The clock of the cluster as one node knows it.
#[derive(Debug, Default)]
pub struct StampedClock {
    stamps: VecDeque<Stamp>,
    jumped_at: Option<Monotonic>,
}

impl StampedClock {
    /// The highest of the lower bounds that the latest stamps give: never ahead of Postgres's clock, and late by at most the quickest of the ways back.
    pub fn now(&self, now: Monotonic) -> Option<Timestamp> {
        self.stamps.iter().map(|stamp| lower_bound(stamp, now)).max()
    }

    /// Takes in a stamp; true when it shows that Postgres's clock has jumped.
    pub fn take_in(&mut self, stamp: Stamp) -> bool {
        let has_jumped = self.now(stamp.arrived_at).is_some_and(|expected| {
            let ahead = stamp.at.micros_after(expected);
            let tolerated = micros(JUMP_MIN);
            // The stamp may be older than its arrival by the whole round trip, so it looks behind by that much without a jump; and the bound itself may
            // be behind by as much as the longest way back.
            let round_trip = micros(stamp.arrived_at.since(stamp.asked_at));
            ahead < -tolerated - round_trip || ahead > tolerated + round_trip + self.slack_micros()
        });
        if has_jumped {
            self.jumped_at = Some(stamp.arrived_at);
            self.stamps.clear();
        }
        if self.stamps.len() == STAMPS_MAX {
            self.stamps.pop_front();
        }
        self.stamps.push_back(stamp);
        has_jumped
    }

    /// True once there is a stamp, unless the clock has jumped within the last minute.
    pub fn is_steady(&self, now: Monotonic) -> bool {
        !self.stamps.is_empty() && self.jumped_at.is_none_or(|jumped_at| now.since(jumped_at) >= HOLD)
    }

    /// How far the bound may be behind: the shortest round trip of the stamps.
    fn slack_micros(&self) -> i64 {
        self.stamps.iter().map(|stamp| micros(stamp.arrived_at.since(stamp.asked_at))).min().unwrap_or(0)
    }
}

fn lower_bound(stamp: &Stamp, now: Monotonic) -> Timestamp {
    let age = now.since(stamp.arrived_at);
    stamp.at.plus(age.saturating_sub(age / 1_000_000 * DRIFT_PPM_MAX))
}

fn micros(span: Duration) -> i64 {
    i64::try_from(span.as_micros()).unwrap_or(i64::MAX)
}
