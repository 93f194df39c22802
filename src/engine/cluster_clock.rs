//! Keeps a lower and an upper bound of Postgres's clock, from stamps in its answers and the
//! monotonic time since.
//!
//! The authority is Postgres's `clock_timestamp()`. A stamp was taken somewhere between the
//! question and the answer. When the answer arrives, Postgres's clock shows at least the stamp, and
//! at most the stamp plus the whole round trip. From then on the bounds run on with the monotonic
//! time. They also move apart by the possible difference between the rates of the two clocks. Each
//! further stamp narrows them. Decisions use the lower bound, which is never ahead.
//!
//! The monotonic time is read from two clocks. The first is slewed when NTP corrects this machine's
//! clock (chrony: by up to 8 % for as long as the correction takes). The second is never slewed,
//! but stands still while the machine is suspended. The lower bound runs on with the slower of
//! them, the upper bound with the faster.
//!
//! A stamp may show Postgres's clock:
//! - between the bounds: the bounds are narrowed;
//! - outside of the bounds by up to 500 ms: the clock was set or slewed quickly, and only the new
//!   stamp counts;
//! - ahead of the bounds by up to 10 s: a step forward, and only the new stamp counts, at once;
//! - ahead by more: only the new stamp counts, and the clock is not steady for a minute. Steps
//!   forward within that minute do not prolong it;
//! - behind the bounds by more than 500 ms: only the new stamp counts, and the clock is not steady
//!   until a minute has passed without a step back.
//!
//! A host may step a clock forward again and again (a hypervisor that resumes its guests: 0.6 s
//! every 45 s). No part of the node may wait until such a clock stops stepping.
//!
//! Answers of several connections overtake each other. An answer whose question is older than the
//! last confirmation of the bounds may carry an older stamp. When such a stamp contradicts the
//! bounds, the node uses the lower of the two until the answer to a later question decides. A bound
//! that is too low makes records late for a moment; a bound that is too high makes them early. Only
//! that later answer proves a step forward. A step back is in doubt until then, and the clock is
//! not steady: perhaps the stamp was only overtaken by the first answer after a step forward.

#[cfg(test)]
mod tests;

use std::time::Duration;

use az::SaturatingAs as _;

use crate::domain::{Monotonic, Timestamp};

/// A reading of Postgres's clock, taken somewhere between the question and the answer.
#[derive(Clone, Copy, Debug)]
pub struct Stamp {
    pub at: Timestamp,
    pub asked_at: Monotonic,
    pub arrived_at: Moment,
}

/// A moment of this node, by its two monotonic clocks.
#[derive(Clone, Copy, Debug)]
pub struct Moment {
    /// This clock goes on while the machine is suspended. NTP slews it.
    pub at: Monotonic,
    /// This clock is never slewed. It stands still while the machine is suspended.
    pub raw: Monotonic,
}

/// The maximum difference in rate between Postgres's clock and this node's raw one, in parts per
/// million. It consists of the 500 by which ntpd and the kernel slew a clock, and the 100 of a poor
/// quartz.
pub const DRIFT_PPM_MAX: u32 = 600;
/// A larger difference to the monotonic time is a step of Postgres's clock.
pub const STEP_MIN: Duration = Duration::from_millis(500);
/// A larger step forward may be a mistake that will be corrected: the clock does not follow it at
/// once.
pub const FOLLOWED_MAX: Duration = Duration::from_secs(10);
/// How long claims stop after a step forward that is not followed at once, and how long the clock
/// must have held after a step back.
pub const HOLD: Duration = Duration::from_secs(60);
/// Stamps come twice a second. The stamp that ends a pause may show a step from within the pause.
const PAUSE_END: Duration = Duration::from_secs(2);

/// The clock of the cluster as one node knows it.
#[derive(Debug, Default)]
pub struct StampedClock {
    bounds: Option<ClockBounds>,
    /// Arrival of the last answer that agreed with the bounds.
    agreed_at: Monotonic,
    /// Time of the first step forward of a pause.
    set_ahead_at: Option<Monotonic>,
    /// Time of the last step back.
    set_back_at: Option<Monotonic>,
    in_doubt: Option<StepInDoubt>,
    /// True for the clock of a dev server, which is set on purpose.
    follows_every_step: bool,
}

/// An answer has shown that Postgres's clock was set back, but may be older than these bounds.
#[derive(Clone, Copy, Debug)]
struct StepInDoubt {
    bounds: ClockBounds,
    /// Arrival of that answer. A later question decides.
    since: Monotonic,
}

/// A step of Postgres's clock by more than [`STEP_MIN`], as shown by a stamp.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Step {
    /// A step forward that is followed at once: by up to [`FOLLOWED_MAX`], or within the pause
    /// after a larger one.
    Followed(Duration),
    /// A larger step forward: the clock is not steady for [`HOLD`].
    Ahead(Duration),
    /// A step back: the clock is not steady until it has held for [`HOLD`].
    Back(Duration),
}

/// Postgres's clock at `at` of this node's monotonic clock: not before `low`, not after `high`.
#[derive(Clone, Copy, Debug)]
struct ClockBounds {
    low: Timestamp,
    high: Timestamp,
    at: Moment,
}

/// The two clocks of a node may differ by this, plus an eighth of the time, without a suspension of
/// the machine.
const APART_MAX: Duration = Duration::from_millis(500);

impl Moment {
    fn was_suspended_until(self, now: Self) -> bool {
        let (age, awake) = (now.at.since(self.at), now.raw.since(self.raw));
        age.saturating_sub(awake) > age / 8 + APART_MAX
    }
}

impl From<Monotonic> for Moment {
    /// A moment of clocks that run alike.
    fn from(at: Monotonic) -> Self {
        Self { at, raw: at }
    }
}

impl StampedClock {
    /// Makes the clock of a dev server: it follows every step at once, in both directions.
    pub fn following_every_step() -> Self {
        Self { follows_every_step: true, ..Self::default() }
    }

    /// Returns the lower bound, or `None` before the first stamp. The bound is never ahead of
    /// Postgres's clock. It lags by at most the sum of three durations: the time that the best
    /// answer took to arrive, the drift between the rates since then, and the suspensions of the
    /// machine since then.
    pub fn now(&self, now: Moment) -> Option<Timestamp> {
        self.bounds.map(|bounds| bounds.run_on(now).low)
    }

    /// Returns true after the machine was suspended, until the next stamp: the lower bound is
    /// behind by the time of the suspension.
    pub fn is_behind(&self, now: Moment) -> bool {
        self.bounds.is_some_and(|bounds| bounds.at.was_suspended_until(now))
    }

    /// Returns the upper bound, or `None` before the first stamp. The bound is never behind
    /// Postgres's clock, unless this clock was stepped forward since the last stamp. It is ahead by
    /// at most the time that the best question took to reach Postgres, plus the drift between the
    /// rates since then.
    pub fn at_most(&self, now: Moment) -> Option<Timestamp> {
        // While a possibly older answer is in doubt, the bounds from before it may be the right
        // ones.
        let in_doubt = self.in_doubt.map(|it| it.bounds);
        self.bounds.into_iter().chain(in_doubt).map(|bounds| bounds.run_on(now).high).max()
    }

    /// Takes in a stamp, and returns the step of Postgres's clock that it shows.
    pub fn take_in(&mut self, stamp: Stamp) -> Option<Step> {
        let (shown, arrived_at) = (ClockBounds::of(stamp), stamp.arrived_at.at);
        let Some(known) = self.bounds.map(|bounds| bounds.run_on(stamp.arrived_at)) else {
            self.agree(shown, arrived_at);
            return None;
        };
        if let Some(step) = self.in_doubt.take_if(|it| stamp.asked_at >= it.since) {
            let step = self.step_of(step.bounds.run_on(stamp.arrived_at), shown, arrived_at);
            self.agree(shown, arrived_at);
            return step;
        }
        let (behind, ahead) = (shown.micros_behind(known), known.micros_behind(shown));
        if behind.max(ahead) <= 0 {
            self.agree(known.narrowed_by(shown), arrived_at);
            return None;
        }
        if stamp.asked_at >= self.agreed_at {
            let step = self.step_of(known, shown, arrived_at);
            self.agree(shown, arrived_at);
            return step;
        }
        if shown.low < known.low {
            if behind > micros(STEP_MIN) {
                self.in_doubt.get_or_insert(StepInDoubt { bounds: known, since: arrived_at });
            }
            self.agree(shown, arrived_at);
        }
        None
    }

    fn agree(&mut self, bounds: ClockBounds, arrived_at: Monotonic) {
        (self.bounds, self.agreed_at) = (Some(bounds), arrived_at);
        for since in [&mut self.set_ahead_at, &mut self.set_back_at] {
            *since = since.filter(|since| arrived_at.since(*since) < HOLD);
        }
    }

    /// Returns the step from `known` to `shown`, and starts the pause that follows from it.
    fn step_of(
        &mut self,
        known: ClockBounds,
        shown: ClockBounds,
        arrived_at: Monotonic,
    ) -> Option<Step> {
        let (back, forward) =
            (span_of(shown.micros_behind(known)), span_of(known.micros_behind(shown)));
        if self.follows_every_step {
            let by = back.max(forward);
            return (by > STEP_MIN).then_some(Step::Followed(by));
        }
        if back > STEP_MIN {
            self.set_back_at = Some(arrived_at);
            return Some(Step::Back(back));
        }
        if forward <= STEP_MIN {
            return None;
        }
        let is_paused =
            self.set_ahead_at.is_some_and(|since| arrived_at.since(since) < HOLD + PAUSE_END);
        if forward <= FOLLOWED_MAX || is_paused {
            return Some(Step::Followed(forward));
        }
        self.set_ahead_at = Some(arrived_at);
        Some(Step::Ahead(forward))
    }

    /// Returns true once there is a stamp, except within the pause after a step that is not
    /// followed at once. A pause ends with the first stamp after its time.
    pub fn is_steady(&self) -> bool {
        self.bounds.is_some()
            && self.set_ahead_at.is_none()
            && self.set_back_at.is_none()
            && self.in_doubt.is_none()
    }
}

impl ClockBounds {
    fn of(stamp: Stamp) -> Self {
        let round_trip = stamp.arrived_at.at.since(stamp.asked_at);
        Self { low: stamp.at, high: after_at_most(stamp.at, round_trip), at: stamp.arrived_at }
    }

    fn run_on(self, now: Moment) -> Self {
        let ages = (now.at.since(self.at.at), now.raw.since(self.at.raw));
        let (least, most) = (ages.0.min(ages.1), ages.0.max(ages.1));
        let low = self.low.plus(least.saturating_sub(drift(least)));
        let at = Moment { at: self.at.at.plus(ages.0), raw: self.at.raw.plus(ages.1) };
        Self { low, high: after_at_most(self.high, most), at }
    }

    /// Returns by how many microseconds these bounds lie wholly below the others. The result is
    /// zero or less when they do not.
    fn micros_behind(self, other: Self) -> i64 {
        other.low.micros_after(self.high)
    }

    fn narrowed_by(self, other: Self) -> Self {
        Self { low: self.low.max(other.low), high: self.high.min(other.high), at: self.at }
    }
}

/// Returns the maximum reading, after `span`, of a clock that showed `at`. One microsecond is added
/// because a clock cuts off fractions.
fn after_at_most(at: Timestamp, span: Duration) -> Timestamp {
    at.plus(span.saturating_add(drift(span))).plus(Duration::from_micros(1))
}

/// Returns the maximum drift of two clocks after `span`, rounded up to whole microseconds.
fn drift(span: Duration) -> Duration {
    let nanos = (span.as_nanos() * u128::from(DRIFT_PPM_MAX)).div_ceil(1_000_000);
    Duration::from_micros(nanos.div_ceil(1_000).saturating_as::<u64>())
}

fn micros(span: Duration) -> i64 {
    span.as_micros().saturating_as::<i64>()
}

fn span_of(micros: i64) -> Duration {
    Duration::from_micros(u64::try_from(micros).unwrap_or(0))
}
