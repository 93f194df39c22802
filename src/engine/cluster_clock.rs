//! Bounds of Postgres's clock, made of stamps in its answers and the monotonic time since.
//!
//! The authority is Postgres's `clock_timestamp()`. A stamp was taken somewhere between the question and the answer, so when the answer arrives
//! Postgres's clock shows the stamp at least, and the stamp and the whole round trip at most. From then on the bounds run on with the monotonic
//! time, and apart by what two clocks may differ in rate; each further stamp narrows them. Decisions use the lower bound, which is never ahead.
//!
//! The monotonic time is read from two clocks. One is slewed when NTP corrects this machine's clock (chrony: by up to 8 % for as long as it takes), the other
//! never is, but stands still while the machine is suspended. The lower bound runs on with the slower of them, the upper one with the faster.
//!
//! | a stamp shows Postgres's clock | then |
//! |---|---|
//! | between the bounds | they are narrowed |
//! | outside of them by up to 500 ms | it was set, or slewed quickly: only the new stamp counts |
//! | outside of them by more | a jump: only the new stamp counts, and the clock is not steady until it has held for a minute |
//!
//! Answers of several connections overtake each other: one that was asked for before the bounds were last confirmed may hold the older stamp. When such a
//! one contradicts them, the lower of the two counts until a later question settles it: too low a bound is late for a moment, too high a one is early.

use std::time::Duration;

use crate::domain::{Monotonic, Timestamp};

/// One reading of Postgres's clock, taken somewhere between the question and the answer.
#[derive(Clone, Copy, Debug)]
pub struct Stamp {
    pub at: Timestamp,
    pub asked_at: Monotonic,
    pub arrived_at: Moment,
}

/// A moment of this node, by its two monotonic clocks.
#[derive(Clone, Copy, Debug)]
pub struct Moment {
    /// Goes on while the machine is suspended; slewed by NTP.
    pub at: Monotonic,
    /// Never slewed; stands still while the machine is suspended.
    pub raw: Monotonic,
}

/// What Postgres's clock and this node's raw one may differ in rate, in parts per million: the 500 by which ntpd and the kernel slew a clock, and the 100 of a
/// poor quartz.
pub const DRIFT_PPM_MAX: u32 = 600;
/// A difference to the monotonic time beyond this is a jump of Postgres's clock.
pub const JUMP_MIN: Duration = Duration::from_millis(500);
/// How long the clock must have held after a jump.
pub const HOLD: Duration = Duration::from_secs(60);

/// The clock of the cluster as one node knows it.
#[derive(Debug, Default)]
pub struct StampedClock {
    bounds: Option<Bounds>,
    /// When the last answer arrived that the bounds agree with.
    agreed_at: Monotonic,
    jumped_at: Option<Monotonic>,
}

/// Postgres's clock at `at` of this node's monotonic clock: not before `low`, not after `high`.
#[derive(Clone, Copy, Debug)]
struct Bounds {
    low: Timestamp,
    high: Timestamp,
    at: Moment,
}

/// What the two clocks of a node may be apart by, beside an eighth of the time, for other reasons than that the machine was suspended.
const APART_MAX: Duration = Duration::from_millis(500);

impl Moment {
    fn was_suspended_until(self, now: Self) -> bool {
        let (age, awake) = (now.at.since(self.at), now.raw.since(self.raw));
        age.saturating_sub(awake) > age / 8 + APART_MAX
    }
}

impl From<Monotonic> for Moment {
    /// Of clocks that run alike.
    fn from(at: Monotonic) -> Self {
        Self { at, raw: at }
    }
}

impl StampedClock {
    /// The lower bound: never ahead of Postgres's clock, late by at most the way back of the best answer and by what the rates may differ since, and
    /// by what the machine was suspended since. `None` before the first stamp.
    pub fn now(&self, now: Moment) -> Option<Timestamp> {
        self.bounds.map(|bounds| bounds.run_on(now).low)
    }

    /// True after the machine was suspended, until the next stamp: the bound is behind by as much.
    pub fn is_behind(&self, now: Moment) -> bool {
        self.bounds.is_some_and(|bounds| bounds.at.was_suspended_until(now))
    }

    /// Takes in a stamp; true when it shows that Postgres's clock has jumped.
    pub fn take_in(&mut self, stamp: Stamp) -> bool {
        let shown = Bounds::of(stamp);
        let Some(known) = self.bounds.map(|bounds| bounds.run_on(stamp.arrived_at)) else {
            (self.bounds, self.agreed_at) = (Some(shown), stamp.arrived_at.at);
            return false;
        };
        let outside = known.low.micros_after(shown.high).max(shown.low.micros_after(known.high));
        let has_jumped = outside > micros(JUMP_MIN);
        if has_jumped {
            self.jumped_at = Some(stamp.arrived_at.at);
        } else if self.jumped_at.is_some_and(|jumped_at| stamp.arrived_at.at.since(jumped_at) >= HOLD) {
            self.jumped_at = None;
        }
        let may_be_older = stamp.asked_at < self.agreed_at;
        if outside <= 0 {
            (self.bounds, self.agreed_at) = (Some(known.narrowed_by(shown)), stamp.arrived_at.at);
        } else if !may_be_older || shown.low < known.low {
            (self.bounds, self.agreed_at) = (Some(shown), stamp.arrived_at.at);
        }
        has_jumped
    }

    /// True once there is a stamp, unless the clock has jumped and stamps have not shown since that it held for a minute.
    pub fn is_steady(&self) -> bool {
        self.bounds.is_some() && self.jumped_at.is_none()
    }
}

impl Bounds {
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

    fn narrowed_by(self, other: Self) -> Self {
        Self { low: self.low.max(other.low), high: self.high.min(other.high), at: self.at }
    }
}

/// What a clock that showed `at` shows at most after `span`; a microsecond more, for it cuts off what it does not show.
fn after_at_most(at: Timestamp, span: Duration) -> Timestamp {
    at.plus(span.saturating_add(drift(span))).plus(Duration::from_micros(1))
}

/// What two clocks may differ by after `span`, rounded up to whole microseconds.
fn drift(span: Duration) -> Duration {
    let nanos = (span.as_nanos() * u128::from(DRIFT_PPM_MAX)).div_ceil(1_000_000);
    Duration::from_micros(u64::try_from(nanos.div_ceil(1_000)).unwrap_or(u64::MAX))
}

fn micros(span: Duration) -> i64 {
    i64::try_from(span.as_micros()).unwrap_or(i64::MAX)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const START: i64 = 1_700_000_000_000_000;

    /// Postgres's clock after `elapsed` of true monotonic microseconds, `ppm` faster than this node's and `step` away from where it started.
    fn server(elapsed: u64, ppm: i64, step: i64) -> Timestamp {
        let elapsed = i64::try_from(elapsed).unwrap();
        Timestamp::from_micros(START + step + elapsed + (elapsed * ppm).div_euclid(1_000_000))
    }

    fn monotonic(micros: u64) -> Monotonic {
        Monotonic::from_start(Duration::from_micros(micros))
    }

    fn at(micros: u64) -> Moment {
        monotonic(micros).into()
    }

    /// An exchange: microseconds of silence before the question, of the way there, and of the way back.
    type Exchange = (u64, u64, u64);

    fn exchanges() -> impl Strategy<Value = Vec<Exchange>> {
        let way = || prop_oneof![4 => 0_u64..2_000, 1 => 0_u64..3_000_000];
        prop::collection::vec((prop_oneof![4 => 0_u64..1_000_000, 1 => 0_u64..10_000_000_000], way(), way()), 1..40)
    }

    /// Asks a server, whose clock is given, and lets the stamp arrive; answers the moment of arrival and whether a jump was seen.
    fn ask(clock: &mut StampedClock, from: u64, (idle, there, back): Exchange, shows: impl Fn(u64) -> Timestamp) -> (u64, bool) {
        let arrived = from + idle + there + back;
        let stamp = Stamp { at: shows(from + idle + there), asked_at: monotonic(from + idle), arrived_at: at(arrived) };
        (arrived, clock.take_in(stamp))
    }

    proptest! {
        #[test]
        fn the_bound_is_never_ahead_and_no_jump_is_seen_where_there_is_none(
            exchanges in exchanges(), ppm in -600_i64..=600, later in 0_u64..100_000_000
        ) {
            let mut clock = StampedClock::default();
            let mut now = 0;
            for exchange in exchanges {
                let (arrived, has_jumped) = ask(&mut clock, now, exchange, |moment| server(moment, ppm, 0));
                now = arrived;
                prop_assert!(!has_jumped);
                prop_assert!(clock.is_steady());
                for moment in [now, now + later] {
                    prop_assert!(clock.now(at(moment)).unwrap() <= server(moment, ppm, 0));
                }
            }
        }

        #[test]
        fn the_bound_is_late_by_the_quickest_way_back_and_the_drift_at_most(exchanges in exchanges(), ppm in -600_i64..=600) {
            let mut clock = StampedClock::default();
            let mut now = 0;
            for exchange in exchanges {
                now = ask(&mut clock, now, exchange, |moment| server(moment, ppm, 0)).0;
                let late = server(now, ppm, 0).micros_after(clock.now(at(now)).unwrap());
                prop_assert!(late <= i64::try_from(exchange.2 + exchange.2 / 1_600 + 2).unwrap(), "late by {late}");
            }
        }

        #[test]
        fn a_jump_either_way_is_noticed_by_the_first_stamp_and_the_clock_is_unsteady_for_a_minute(
            before in exchanges(), step in 600_000_i64..10_000_000_000, is_back: bool, quick in 0_u64..20_000
        ) {
            let mut clock = StampedClock::default();
            let mut now = 0;
            for exchange in before {
                now = ask(&mut clock, now, exchange, |moment| server(moment, 0, 0)).0;
            }
            // A stamp of a quick exchange: what is unsure about the one before must not hide the jump.
            now = ask(&mut clock, now, (0, quick, quick), |moment| server(moment, 0, 0)).0;
            let step = if is_back { -step } else { step };
            let (jumped, has_jumped) = ask(&mut clock, now, (500_000, quick, quick), |moment| server(moment, 0, step));
            prop_assert!(has_jumped);
            now = jumped;
            while now < jumped + 60_000_000 {
                prop_assert!(!clock.is_steady());
                prop_assert!(clock.now(at(now)).unwrap() <= server(now, 0, step));
                let (arrived, again) = ask(&mut clock, now, (500_000, quick, quick), |moment| server(moment, 0, step));
                prop_assert!(!again);
                now = arrived;
            }
            prop_assert!(clock.is_steady());
        }

        #[test]
        fn a_step_of_less_than_half_a_second_does_not_make_it_early(
            exchanges in exchanges(), step in -490_000_i64..490_000, there in 0_u64..2_000, back in 0_u64..2_000
        ) {
            let mut clock = StampedClock::default();
            let mut now = 0;
            for exchange in exchanges {
                now = ask(&mut clock, now, exchange, |moment| server(moment, 0, 0)).0;
            }
            let (now, has_jumped) = ask(&mut clock, now, (500_000, there, back), |moment| server(moment, 0, step));
            prop_assert!(!has_jumped);
            // A step back by less than the round trip cannot be told from a slow way there; nothing else may remain.
            let unseen = i64::try_from(there + back + 2).unwrap();
            let allowed = if step < 0 { unseen } else { 0 };
            prop_assert!(clock.now(at(now)).unwrap().micros_after(server(now, 0, step)) <= allowed);
        }
    }

    #[test]
    fn a_clock_without_a_stamp_tells_nothing_and_is_not_steady() {
        let clock = StampedClock::default();
        assert_eq!(clock.now(at(5)), None);
        assert!(!clock.is_steady());
    }

    #[test]
    fn a_long_outage_of_postgres_is_no_jump() {
        let mut clock = StampedClock::default();
        let (now, _) = ask(&mut clock, 0, (0, 100, 100), |moment| server(moment, 600, 0));
        let day = 86_400_000_000;
        let (_, has_jumped) = ask(&mut clock, now, (day, 100, 100), |moment| server(moment, 600, 0));
        assert!(!has_jumped);
    }

    #[test]
    fn a_second_jump_starts_the_minute_anew() {
        let mut clock = StampedClock::default();
        ask(&mut clock, 0, (0, 0, 0), |moment| server(moment, 0, 0));
        assert!(ask(&mut clock, 0, (1_000_000, 0, 0), |moment| server(moment, 0, 5_000_000)).1);
        assert!(ask(&mut clock, 0, (50_000_000, 0, 0), |moment| server(moment, 0, 0)).1);
        ask(&mut clock, 0, (109_000_000, 0, 0), |moment| server(moment, 0, 0));
        assert!(!clock.is_steady());
        ask(&mut clock, 0, (110_000_000, 0, 0), |moment| server(moment, 0, 0));
        assert!(clock.is_steady());
    }

    #[test]
    fn a_slewed_clock_of_the_node_or_a_suspended_machine_makes_nothing_early() {
        for (slew_percent, suspended) in [(8_i64, 0_u64), (-8, 0), (0, 3_600_000_000)] {
            let mut clock = StampedClock::default();
            ask(&mut clock, 0, (0, 0, 0), |moment| server(moment, 0, 0));
            let awake = 3_000_000_i64;
            let elapsed = u64::try_from(awake).unwrap() + suspended;
            let slewed = u64::try_from(awake + awake * slew_percent / 100).unwrap() + suspended;
            let now = Moment { at: monotonic(slewed), raw: monotonic(u64::try_from(awake).unwrap()) };
            assert!(clock.now(now).unwrap() <= server(elapsed, 0, 0), "{slew_percent} %, {suspended} us");
            assert_eq!(clock.is_behind(now), suspended > 0);
            // The next stamp is right, and no jump: the clock of Postgres has done nothing.
            let stamp = Stamp { at: server(elapsed, 0, 0), asked_at: now.at, arrived_at: now };
            assert!(!clock.take_in(stamp));
            assert_eq!((clock.now(now), clock.is_behind(now)), (Some(server(elapsed, 0, 0)), false));
        }
    }
}
