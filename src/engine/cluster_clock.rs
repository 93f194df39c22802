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
//! every 45 s). No part of the node may wait for such a clock to hold.
//!
//! Answers of several connections overtake each other. An answer whose question is older than the
//! last confirmation of the bounds may hold an older stamp. When such a stamp contradicts the
//! bounds, the lower of the two counts until a later question settles it: a bound that is too low
//! is late for a moment, but one that is too high is early. A step forward is shown by that later
//! question alone. A step back is in doubt until then, and the clock is not steady: the answer may
//! only have been overtaken by the first one after a step forward.

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

    /// Returns the lower bound, or `None` before the first stamp. It is never ahead of Postgres's
    /// clock. It is late by at most three times: the way back of the best answer, the drift between
    /// the rates since then, and the time of suspensions since then.
    pub fn now(&self, now: Moment) -> Option<Timestamp> {
        self.bounds.map(|bounds| bounds.run_on(now).low)
    }

    /// Returns true after the machine was suspended, until the next stamp: the lower bound is
    /// behind by the time of the suspension.
    pub fn is_behind(&self, now: Moment) -> bool {
        self.bounds.is_some_and(|bounds| bounds.at.was_suspended_until(now))
    }

    /// Returns the upper bound, or `None` before the first stamp. It is never behind Postgres's
    /// clock, unless that was stepped forward since the last stamp. It is ahead by at most the way
    /// there of the best question and the drift between the rates since then.
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

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const START: i64 = 1_700_000_000_000_000;

    /// Returns Postgres's clock after `elapsed` true monotonic microseconds. It runs `ppm` faster
    /// than this node's, and is `step` away from its start.
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

    /// An exchange, in microseconds: the silence before the question, the way there, and the way
    /// back.
    type Exchange = (u64, u64, u64);

    /// Returns a clock after some exchanges. The last one was quick, so that the uncertainty of
    /// those before cannot hide a step.
    fn known_clock(before: Vec<Exchange>, quick: u64) -> (StampedClock, u64) {
        let mut clock = StampedClock::default();
        let mut now = 0;
        for exchange in before.into_iter().chain([(0, quick, quick)]) {
            now = ask(&mut clock, now, exchange, |moment| server(moment, 0, 0)).0;
        }
        (clock, now)
    }

    fn exchanges() -> impl Strategy<Value = Vec<Exchange>> {
        let way = || prop_oneof![4 => 0_u64..2_000, 1 => 0_u64..3_000_000];
        prop::collection::vec(
            (prop_oneof![4 => 0_u64..1_000_000, 1 => 0_u64..10_000_000_000], way(), way()),
            1..40,
        )
    }

    /// Asks a server with the given clock, and lets the stamp arrive. Returns the moment of arrival
    /// and the step that was seen.
    fn ask(
        clock: &mut StampedClock,
        from: u64,
        (idle, there, back): Exchange,
        shows: impl Fn(u64) -> Timestamp,
    ) -> (u64, Option<Step>) {
        let arrived = from + idle + there + back;
        let stamp = Stamp {
            at: shows(from + idle + there),
            asked_at: monotonic(from + idle),
            arrived_at: at(arrived),
        };
        (arrived, clock.take_in(stamp))
    }

    #[test]
    fn the_clock_of_a_dev_server_follows_every_step_at_once() {
        let mut clock = StampedClock::following_every_step();
        let mut now = 0;
        for step in [0, 86_400_000_000, -86_400_000_000] {
            let (arrived, seen) =
                ask(&mut clock, now, (0, 100, 100), |moment| server(moment, 0, step));
            now = arrived;
            assert_eq!(seen.is_some(), now > 200);
            assert!(clock.is_steady());
            let late = server(now, 0, step).since(clock.now(at(now)).unwrap());
            assert!(late < Duration::from_millis(1), "{late:?}");
        }
    }

    proptest! {
        #[test]
        fn the_bounds_hold_and_no_step_is_seen_where_there_is_none(
            exchanges in exchanges(),
            ppm in -600_i64..=600,
            later in 0_u64..100_000_000,
        ) {
            let mut clock = StampedClock::default();
            let mut now = 0;
            for exchange in exchanges {
                let (arrived, seen) =
                    ask(&mut clock, now, exchange, |moment| server(moment, ppm, 0));
                now = arrived;
                prop_assert_eq!(seen, None);
                prop_assert!(clock.is_steady());
                for moment in [now, now + later] {
                    prop_assert!(clock.now(at(moment)).unwrap() <= server(moment, ppm, 0));
                    prop_assert!(clock.at_most(at(moment)).unwrap() >= server(moment, ppm, 0));
                }
            }
        }

        #[test]
        fn the_bound_is_late_by_the_quickest_way_back_and_the_drift_at_most(
            exchanges in exchanges(),
            ppm in -600_i64..=600,
        ) {
            let mut clock = StampedClock::default();
            let mut now = 0;
            for exchange in exchanges {
                now = ask(&mut clock, now, exchange, |moment| server(moment, ppm, 0)).0;
                let late = server(now, ppm, 0).micros_after(clock.now(at(now)).unwrap());
                prop_assert!(
                    late <= i64::try_from(exchange.2 + exchange.2 / 1_600 + 2).unwrap(),
                    "late by {late}"
                );
            }
        }

        #[test]
        fn a_step_back_is_noticed_by_the_first_stamp_and_the_clock_is_unsteady_for_a_minute(
            before in exchanges(), step in 600_000_i64..10_000_000_000, quick in 0_u64..20_000
        ) {
            let (mut clock, mut now) = known_clock(before, quick);
            let (stepped, seen) =
                ask(&mut clock, now, (500_000, quick, quick), |moment| server(moment, 0, -step));
            prop_assert!(matches!(seen, Some(Step::Back(_))));
            now = stepped;
            while now < stepped + 60_000_000 {
                prop_assert!(!clock.is_steady());
                prop_assert!(clock.now(at(now)).unwrap() <= server(now, 0, -step));
                let (arrived, again) = ask(&mut clock, now, (500_000, quick, quick), |moment| {
                    server(moment, 0, -step)
                });
                prop_assert_eq!(again, None);
                now = arrived;
            }
            prop_assert!(clock.is_steady());
        }

        #[test]
        fn steps_forward_stop_nothing_up_to_ten_seconds_and_beyond_that_for_a_minute(
            before in exchanges(),
            steps in prop::collection::vec(
                (
                    1_u64..100_000_000,
                    prop_oneof![
                        3 => 600_000_i64..9_900_000,
                        1 => 10_100_000_i64..1_000_000_000,
                    ],
                ),
                1..12,
            ),
            quick in 0_u64..20_000,
        ) {
            let (mut clock, mut now) = known_clock(before, quick);
            let (mut step, mut paused_since, mut steps) = (0, None, steps.into_iter());
            let mut next = steps.next().map(|(wait, by)| (now + wait, by));
            while let Some((moment, by)) = next {
                let is_stepped = now + 500_000 >= moment;
                if is_stepped {
                    step += by;
                    next = steps.next().map(|(wait, by)| (now + 500_000 + wait, by));
                }
                let within = !clock.is_steady();
                let (arrived, seen) =
                    ask(&mut clock, now, (500_000, quick, quick), |moment| server(moment, 0, step));
                now = arrived;
                match seen {
                    None => prop_assert!(!is_stepped),
                    Some(Step::Followed(_)) => {
                        prop_assert!(is_stepped && (by < 10_000_000 || within))
                    }
                    Some(Step::Ahead(_)) => {
                        prop_assert!(is_stepped && by > 10_000_000 && !within);
                        paused_since = Some(now);
                    }
                    Some(Step::Back(_)) => prop_assert!(false, "nothing was set back"),
                }
                // The clock follows at once, and is never ahead.
                let late = server(now, 0, step).micros_after(clock.now(at(now)).unwrap());
                prop_assert!(
                    (0..=i64::try_from(quick + quick / 1_600 + 2).unwrap()).contains(&late),
                    "late by {late}"
                );
                prop_assert!(clock.at_most(at(now)).unwrap() >= server(now, 0, step));
                prop_assert_eq!(
                    clock.is_steady(),
                    paused_since.is_none_or(|since| now - since >= 60_000_000)
                );
            }
        }

        #[test]
        fn answers_that_overtake_each_other_show_only_the_step_that_was_made(
            step in prop_oneof![-9_000_000_i64..-600_000, 600_000_i64..9_000_000],
            moment in 1_000_000_u64..5_000_000,
            // Questions of several connections: when each is asked, and its ways.
            mut questions in prop::collection::vec(
                (0_u64..6_000_000, 0_u64..50_000, 0_u64..50_000),
                20..200,
            ),
        ) {
            let shows = |now: u64| server(now, 0, if now >= moment { step } else { 0 });
            questions.push((0, 10, 10));
            questions.push((6_500_000, 10, 10));
            questions.sort_by_key(|(asked, there, back)| asked + there + back);
            let (mut clock, mut seen) = (StampedClock::default(), Vec::new());
            for (asked, there, back) in questions {
                let arrived = asked + there + back;
                let stamp = Stamp {
                    at: shows(asked + there),
                    asked_at: monotonic(asked),
                    arrived_at: at(arrived),
                };
                seen.extend(clock.take_in(stamp));
                if asked >= moment {
                    prop_assert!(clock.now(at(arrived)).unwrap().micros_after(shows(arrived)) <= 0);
                }
            }
            prop_assert_eq!(seen.len(), 1, "{:?}", &seen);
            prop_assert_eq!(matches!(seen[0], Step::Back(_)), step < 0);
            prop_assert_eq!(clock.is_steady(), step > 0);
        }

        #[test]
        fn a_step_of_less_than_half_a_second_does_not_make_it_early(
            exchanges in exchanges(),
            step in -490_000_i64..490_000,
            there in 0_u64..2_000,
            back in 0_u64..2_000,
        ) {
            let mut clock = StampedClock::default();
            let mut now = 0;
            for exchange in exchanges {
                now = ask(&mut clock, now, exchange, |moment| server(moment, 0, 0)).0;
            }
            let (now, seen) =
                ask(&mut clock, now, (500_000, there, back), |moment| server(moment, 0, step));
            prop_assert_eq!(seen, None);
            // A step back by less than the round trip cannot be told from a slow way there. No
            // other error may remain.
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
        let (_, seen) = ask(&mut clock, now, (day, 100, 100), |moment| server(moment, 600, 0));
        assert_eq!(seen, None);
    }

    /// Gives the clock a stamp of Postgres's clock every half second, from `now` to `end`.
    fn hold(clock: &mut StampedClock, now: u64, end: u64, step: i64) {
        for moment in (now..=end).step_by(500_000) {
            ask(clock, moment, (0, 0, 0), |moment| server(moment, 0, step));
        }
    }

    #[test]
    fn a_second_step_back_starts_the_minute_anew() {
        let mut clock = StampedClock::default();
        hold(&mut clock, 0, 1_000_000, 0);
        hold(&mut clock, 1_500_000, 51_000_000, -5_000_000);
        hold(&mut clock, 51_500_000, 111_000_000, -6_000_000);
        assert!(!clock.is_steady());
        hold(&mut clock, 111_500_000, 111_500_000, -6_000_000);
        assert!(clock.is_steady());
    }

    #[test]
    fn a_step_forward_does_not_prolong_the_minute_after_a_step_back_and_one_back_begins_its_own() {
        let mut clock = StampedClock::default();
        hold(&mut clock, 0, 1_000_000, 0);
        hold(&mut clock, 1_500_000, 30_000_000, -5_000_000);
        hold(&mut clock, 30_500_000, 61_000_000, -4_000_000);
        assert!(!clock.is_steady());
        hold(&mut clock, 61_500_000, 61_500_000, -4_000_000);
        assert!(clock.is_steady());
        // Twenty seconds forward, and half a minute later back.
        hold(&mut clock, 62_000_000, 92_000_000, 16_000_000);
        assert!(!clock.is_steady());
        hold(&mut clock, 92_500_000, 152_000_000, -4_000_000);
        assert!(!clock.is_steady());
        hold(&mut clock, 152_500_000, 152_500_000, -4_000_000);
        assert!(clock.is_steady());
    }

    #[test]
    fn a_clock_that_is_set_far_forward_every_half_minute_is_followed_between_two_pauses() {
        let mut clock = StampedClock::default();
        hold(&mut clock, 0, 29_500_000, 0);
        let mut steady = 0;
        for round in 1..20_u64 {
            let from = round * 30_000_000;
            hold(&mut clock, from, from + 29_500_000, i64::try_from(round).unwrap() * 20_000_000);
            steady += u64::from(clock.is_steady());
        }
        assert!(steady >= 6, "steady in {steady} rounds of 19");
    }

    #[test]
    fn a_step_forward_every_three_quarters_of_a_minute_stops_nothing() {
        // Hypervisors do this.
        let mut clock = StampedClock::default();
        hold(&mut clock, 0, 44_500_000, 0);
        for round in 1..10_u64 {
            let from = round * 45_000_000;
            hold(&mut clock, from, from, i64::try_from(round).unwrap() * 600_000);
            assert!(clock.is_steady());
            hold(
                &mut clock,
                from + 500_000,
                from + 44_500_000,
                i64::try_from(round).unwrap() * 600_000,
            );
            assert!(clock.is_steady());
        }
    }

    #[test]
    fn a_slewed_clock_of_the_node_or_a_suspended_machine_makes_nothing_early() {
        for (slew_percent, suspended) in [(8_i64, 0_u64), (-8, 0), (0, 3_600_000_000)] {
            let mut clock = StampedClock::default();
            ask(&mut clock, 0, (0, 0, 0), |moment| server(moment, 0, 0));
            let awake = 3_000_000_i64;
            let elapsed = u64::try_from(awake).unwrap() + suspended;
            let slewed = u64::try_from(awake + awake * slew_percent / 100).unwrap() + suspended;
            let now =
                Moment { at: monotonic(slewed), raw: monotonic(u64::try_from(awake).unwrap()) };
            assert!(
                clock.now(now).unwrap() <= server(elapsed, 0, 0),
                "{slew_percent} %, {suspended} us"
            );
            assert_eq!(clock.is_behind(now), suspended > 0);
            // The next stamp is right and shows no jump, because Postgres's clock was not changed.
            let stamp = Stamp { at: server(elapsed, 0, 0), asked_at: now.at, arrived_at: now };
            assert_eq!(clock.take_in(stamp), None);
            assert_eq!(
                (clock.now(now), clock.is_behind(now)),
                (Some(server(elapsed, 0, 0)), false)
            );
        }
    }
}
