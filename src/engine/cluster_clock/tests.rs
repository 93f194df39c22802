//! Tests of the clock: properties over any exchange of stamps, and the cases that found bugs.

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
        let (arrived, seen) = ask(&mut clock, now, (0, 100, 100), |moment| server(moment, 0, step));
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
        let now = Moment { at: monotonic(slewed), raw: monotonic(u64::try_from(awake).unwrap()) };
        assert!(
            clock.now(now).unwrap() <= server(elapsed, 0, 0),
            "{slew_percent} %, {suspended} us"
        );
        assert_eq!(clock.is_behind(now), suspended > 0);
        // The next stamp is right and shows no jump, because Postgres's clock was not changed.
        let stamp = Stamp { at: server(elapsed, 0, 0), asked_at: now.at, arrived_at: now };
        assert_eq!(clock.take_in(stamp), None);
        assert_eq!((clock.now(now), clock.is_behind(now)), (Some(server(elapsed, 0, 0)), false));
    }
}
