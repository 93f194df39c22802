//! Plans: what is made ahead, and what becomes of missed instants.

use std::collections::BTreeSet;

use proptest::prelude::*;

use super::*;
use crate::domain::schedule::Specification;
use crate::domain::schedule::timing::{Recurrence, Timing};

const T: i64 = 1_800_000_000;

fn at(second: i64) -> Timestamp {
    Timestamp::from_millis((T + second) * 1000)
}

fn specification(period: u64, missed: MissedRuns, runs_max: Option<u64>) -> Specification {
    let recurrence = Recurrence::every(Duration::from_secs(period), Duration::ZERO).unwrap();
    let timing = Timing::new(recurrence, None, None, BTreeSet::new()).unwrap();
    Specification {
        timing,
        runs_max,
        missed,
        run_overlap: RunOverlap::Allow,
        spread: Duration::ZERO,
        is_paused: false,
        note: None,
    }
}

fn progress(next: i64) -> Progress<'static> {
    let not_missed = NotMissed::default();
    let next_run_at = at(next);
    Progress { next_run_at, runs_made: 7, skipped: 0, is_busy: false, taken: &[], not_missed }
}

fn not_missed(from: i64, to: i64) -> NotMissed {
    NotMissed { from: at(from), to: at(to) }
}

/// The runs as seconds, with their missed instants.
fn runs(plan: &Plan) -> Vec<(i64, u64)> {
    plan.runs.iter().map(|run| (run.at.as_millis() / 1000 - T, run.missed)).collect()
}

#[test]
fn one_run_lies_always_ahead_and_the_next_is_made_when_it_is_due() {
    let hourly = specification(3600, MissedRuns::LAST, None);
    let plan = hourly.plan(progress(1200), at(0), Duration::ZERO, RUNS_MAX);
    assert_eq!(runs(&plan), [(1200, 0)]);
    assert_eq!((plan.next_run_at, plan.look_at), (Some(at(3600)), Some(at(1200))));
    let plan = hourly.plan(progress(3600), at(1200), Duration::ZERO, RUNS_MAX);
    assert_eq!((runs(&plan), plan.look_at), (vec![(3600, 0)], Some(at(3600))));
}

#[test]
fn runs_of_short_periods_are_made_a_minute_ahead() {
    let plan = specification(20, MissedRuns::LAST, None).plan(
        progress(20),
        at(5),
        Duration::ZERO,
        RUNS_MAX,
    );
    assert_eq!(runs(&plan), [(20, 0), (40, 0), (60, 0)]);
    assert_eq!((plan.next_run_at, plan.look_at), (Some(at(80)), Some(at(50))));
    assert_eq!(plan.runs.iter().map(|run| run.number).collect::<Vec<_>>(), [8, 9, 10]);
}

#[test]
fn after_an_outage_each_policy_makes_its_runs() {
    let minute = |missed| {
        specification(60, missed, None).plan(progress(0), at(3600 + 30), Duration::ZERO, RUNS_MAX)
    };
    let all = |within, count| {
        MissedRuns::new(MissedPolicy::All, Some(Duration::from_secs(within)), Some(count)).unwrap()
    };
    // 61 instants have passed: 0 to 3600.
    assert_eq!(runs(&minute(MissedRuns::NONE)), [(3660, 61)]);
    assert_eq!(runs(&minute(MissedRuns::LAST)), [(3600, 60), (3660, 0)]);
    assert_eq!(runs(&minute(all(7200, 3))), [(3480, 58), (3540, 0), (3600, 0), (3660, 0)]);
    assert_eq!(runs(&minute(all(100, 50))), [(3540, 59), (3600, 0), (3660, 0)]);
    let young = MissedRuns::new(MissedPolicy::Last, Some(Duration::from_secs(20)), None).unwrap();
    assert_eq!(runs(&minute(young)), [(3660, 61)]);
}

#[test]
fn an_instant_that_has_just_passed_is_not_missed() {
    let plan = specification(60, MissedRuns::NONE, None).plan(
        progress(0),
        at(9),
        Duration::ZERO,
        RUNS_MAX,
    );
    assert_eq!(runs(&plan), [(0, 0), (60, 0)]);
}

#[test]
fn the_last_run_ends_the_schedule() {
    let plan = specification(10, MissedRuns::LAST, Some(9)).plan(
        progress(10),
        at(5),
        Duration::ZERO,
        RUNS_MAX,
    );
    assert_eq!(runs(&plan), [(10, 0), (20, 0)]);
    assert_eq!((plan.next_run_at, plan.look_at, plan.runs_made), (None, None, 9));
}

#[test]
fn an_instant_that_has_a_run_already_is_neither_counted_nor_missed() {
    let ten = |missed| specification(10, missed, Some(12));
    let taken = [at(10), at(30)];
    let progress = Progress { taken: &taken, ..progress(10) };
    let plan = ten(MissedRuns::LAST).plan(progress, at(15), Duration::ZERO, RUNS_MAX);
    assert_eq!(runs(&plan), [(20, 0), (40, 0), (50, 0), (60, 0), (70, 0)]);
    let numbers: Vec<u64> = plan.runs.iter().map(|run| run.number).collect();
    assert_eq!((numbers, plan.runs_made), (vec![8, 9, 10, 11, 12], 12));
    assert_eq!(plan.next_run_at, None, "five more of twelve");
    // The missed instants 20, 40 and 50 have no run.
    let plan = ten(MissedRuns::LAST).plan(progress, at(65), Duration::ZERO, RUNS_MAX);
    assert_eq!(runs(&plan)[..2], [(50, 2), (60, 0)]);
}

#[test]
fn each_instant_that_a_change_has_made_due_gets_a_run() {
    let minute = |missed| specification(60, missed, None);
    // At 300, a change made the instants from 120 on due. Those before were missed.
    let changed = Progress { not_missed: not_missed(120, 300), ..progress(0) };
    let plan = minute(MissedRuns::NONE).plan(changed, at(300), Duration::ZERO, RUNS_MAX);
    assert_eq!(runs(&plan), [(120, 2), (180, 0), (240, 0), (300, 0), (360, 0)]);
    let plan = minute(MissedRuns::LAST).plan(changed, at(300), Duration::ZERO, RUNS_MAX);
    assert_eq!(runs(&plan)[..2], [(60, 1), (120, 0)]);
    // A late plan leaves the instants since the change to the next one: they may be missed.
    let plan = minute(MissedRuns::NONE).plan(changed, at(1000), Duration::ZERO, RUNS_MAX);
    assert_eq!(runs(&plan), [(120, 2), (180, 0), (240, 0)]);
    assert_eq!((plan.next_run_at, plan.look_at), (Some(at(300)), Some(at(1000))));
    let next = Progress { next_run_at: at(300), ..changed };
    let plan = minute(MissedRuns::NONE).plan(next, at(1000), Duration::ZERO, RUNS_MAX);
    assert_eq!(runs(&plan), [(1020, 12)]);
}

#[test]
fn of_the_instants_that_a_change_has_made_due_a_schedule_that_skips_runs_one() {
    let changed = Progress { not_missed: not_missed(0, 300), ..progress(0) };
    let plan = skipping(60, MissedRuns::NONE).plan(changed, at(300), Duration::ZERO, RUNS_MAX);
    assert_eq!((runs(&plan), plan.skipped, plan.overlapping), (vec![(0, 0)], 5, 5));
    assert_eq!((plan.next_run_at, plan.look_at), (Some(at(360)), Some(at(358))));
}

/// The next runs at `now`, in seconds from then on.
fn coming_at(schedule: &Specification, progress: Progress<'_>, now: i64) -> Vec<i64> {
    let coming = coming(schedule.rules(3), progress, at(now));
    coming.iter().map(|run| run.as_millis() / 1000 - T - now).collect()
}

#[test]
fn of_the_instants_that_have_passed_only_those_come_that_get_a_run() {
    let all = MissedRuns::new(MissedPolicy::All, None, Some(2)).unwrap();
    let year = 366 * 86_400;
    for (missed, expected) in [
        (MissedRuns::NONE, [-10, -9, -8]),
        (MissedRuns::LAST, [-11, -10, -9]),
        (all, [-12, -11, -10]),
    ] {
        let secondly = specification(1, missed, None);
        assert_eq!(coming_at(&secondly, progress(0), year), expected);
        let yesterday = progress(year - 86_400);
        assert_eq!(coming_at(&secondly, yesterday, year), expected);
    }
    let two_more = specification(1, MissedRuns::LAST, Some(9));
    assert_eq!(coming_at(&two_more, progress(0), year), [-11, -10]);
    let changed = Progress { not_missed: not_missed(120, 300), ..progress(0) };
    let minute = specification(60, MissedRuns::NONE, None);
    assert_eq!(coming_at(&minute, changed, 300), [-180, -120, -60]);
}

#[test]
fn the_instants_to_come_are_those_without_a_run() {
    let hourly = specification(3600, MissedRuns::LAST, None);
    let taken = [at(7200)];
    let ahead = Progress { taken: &taken, ..progress(3600) };
    assert_eq!(coming_at(&hourly, ahead, 0), [3600, 10_800, 14_400]);
    assert_eq!(coming_at(&skipping(60, MissedRuns::LAST), progress(60), 0), [60, 120, 180]);
}

#[test]
fn a_year_of_missed_seconds_takes_several_plans_and_makes_one_run() {
    let secondly = specification(1, MissedRuns::LAST, None);
    let now = at(366 * 86_400);
    let mut progress = progress(0);
    let mut count = 0;
    let made = loop {
        let plan = secondly.plan(progress, now, Duration::ZERO, RUNS_MAX);
        count += 1;
        let next_run_at = plan.next_run_at.unwrap();
        assert!(next_run_at > progress.next_run_at && count < 4_000);
        if let Some(first) = plan.runs.first() {
            break *first;
        }
        let (runs_made, skipped) = (plan.runs_made, plan.skipped);
        progress = Progress { next_run_at, runs_made, skipped, ..progress };
    };
    assert_eq!(made.at, now.minus(MISSED_AFTER + Duration::from_secs(1)));
    assert_eq!((made.number, made.missed), (8, 366 * 86_400 - 11));
}

#[test]
fn members_that_a_policy_does_not_take_are_refused() {
    let span = Some(Duration::from_secs(60));
    for (policy, within, count_max, field) in [
        (MissedPolicy::None, span, None, "missed.within"),
        (MissedPolicy::None, None, Some(1), "missed.count_max"),
        (MissedPolicy::Last, span, Some(1), "missed.count_max"),
        (MissedPolicy::All, span, Some(0), "missed.count_max"),
        (MissedPolicy::All, span, Some(1001), "missed.count_max"),
    ] {
        assert_eq!(MissedRuns::new(policy, within, count_max).unwrap_err().field, field);
    }
}

fn skipping(period: u64, missed: MissedRuns) -> Specification {
    Specification { run_overlap: RunOverlap::Skip, ..specification(period, missed, None) }
}

#[test]
fn a_schedule_that_skips_decides_two_seconds_before_the_instant() {
    let schedule = skipping(60, MissedRuns::LAST);
    let plan = schedule.plan(progress(60), at(57), Duration::ZERO, RUNS_MAX);
    assert_eq!(runs(&plan), []);
    assert_eq!((plan.next_run_at, plan.look_at), (Some(at(60)), Some(at(58))));
    let plan = schedule.plan(progress(60), at(58), Duration::ZERO, RUNS_MAX);
    assert_eq!((runs(&plan), plan.overlapping), (vec![(60, 0)], 0));
    assert_eq!((plan.next_run_at, plan.look_at), (Some(at(120)), Some(at(118))));
}

#[test]
fn an_instant_gets_no_run_while_one_is_not_finished_and_the_next_run_counts_it() {
    let schedule = skipping(60, MissedRuns::LAST);
    let busy = Progress { is_busy: true, ..progress(60) };
    let plan = schedule.plan(busy, at(58), Duration::ZERO, RUNS_MAX);
    assert_eq!((runs(&plan), plan.skipped, plan.overlapping), (vec![], 1, 1));
    assert_eq!((plan.next_run_at, plan.runs_made), (Some(at(120)), 7));
    let free = Progress { skipped: plan.skipped, ..progress(120) };
    assert_eq!(runs(&schedule.plan(free, at(118), Duration::ZERO, RUNS_MAX)), [(120, 1)]);
    // A schedule that allows overlaps asks nothing.
    let allowing = specification(60, MissedRuns::LAST, None);
    assert_eq!(runs(&allowing.plan(busy, at(58), Duration::ZERO, RUNS_MAX)), [(60, 0)]);
}

#[test]
fn one_plan_of_a_schedule_that_skips_makes_one_run() {
    let all = MissedRuns::new(MissedPolicy::All, None, Some(10)).unwrap();
    // 0 to 10 were missed, and 20 has just passed.
    let plan = skipping(10, all).plan(progress(0), at(21), Duration::ZERO, RUNS_MAX);
    assert_eq!((runs(&plan), plan.skipped, plan.overlapping), (vec![(10, 1)], 1, 1));
    assert_eq!((plan.next_run_at, plan.look_at), (Some(at(30)), Some(at(28))));
}

#[test]
fn a_shift_moves_the_making_of_runs_and_not_their_instants() {
    let shift = Duration::from_secs(30);
    let hourly = specification(3600, MissedRuns::LAST, None);
    let plan = hourly.plan(progress(1200), at(1215), shift, RUNS_MAX);
    assert_eq!(runs(&plan), [(1200, 0)]);
    assert_eq!((plan.next_run_at, plan.look_at), (Some(at(3600)), Some(at(1230))));
    // A run that is due 9 s ago is not missed.
    let plan = specification(60, MissedRuns::NONE, None).plan(progress(0), at(39), shift, RUNS_MAX);
    assert_eq!(runs(&plan)[0], (0, 0));
}

#[test]
fn the_shift_of_a_schedule_is_decided_by_its_topic_and_name() {
    let spread = Duration::from_secs(3600);
    let schedule = Specification { spread, ..specification(60, MissedRuns::LAST, None) };
    let topic = crate::domain::TopicName::new("reports").unwrap();
    let shift = |name: &str| schedule.shift(&topic, &ScheduleName::new(name).unwrap());
    assert!(shift("a") < spread && shift("a") != shift("b"));
    assert_eq!(shift("a"), shift("a"));
    let exact = Specification { spread: Duration::ZERO, ..schedule.clone() };
    assert_eq!(exact.shift(&topic, &ScheduleName::new("a").unwrap()), Duration::ZERO);
}

proptest! {
    /// Plans follow each other at any moments. Each instant gets one run, in order, unless the
    /// policy leaves it out; then the next run counts it.
    #[test]
    fn no_instant_is_planned_twice_and_none_is_lost(
        period in 1_u64..500,
        count_max in 0_u16..4,
        pauses in proptest::collection::vec(0_i64..4_000, 1..12),
    ) {
        let missed = match count_max {
            0 => MissedRuns::NONE,
            1 => MissedRuns::LAST,
            more => MissedRuns::new(MissedPolicy::All, Some(Duration::from_secs(90_000)), Some(more)).unwrap(),
        };
        let schedule = specification(period, missed, None);
        let first = schedule.timing.next_after(at(0)).unwrap();
        let mut progress = Progress { next_run_at: first, runs_made: 0, ..progress(0) };
        let (mut now, mut before) = (0, first.minus(Duration::from_secs(period)));
        for pause in pauses {
            now += pause;
            let plan = schedule.plan(progress, at(now), Duration::ZERO, RUNS_MAX);
            for run in &plan.runs {
                let steps = run.at.since(before).as_secs() / period;
                prop_assert_eq!(steps, run.missed + 1, "{:?} after {:?}", run, before);
                before = run.at;
            }
            let next_run_at = plan.next_run_at.unwrap();
            let left = next_run_at.since(before).as_secs() / period;
            prop_assert_eq!(left, plan.skipped + 1);
            let is_ahead = plan.runs.last().is_none_or(|run| run.at > at(now));
            prop_assert!(is_ahead || plan.look_at == Some(at(now)));
            let (runs_made, skipped) = (plan.runs_made, plan.skipped);
            progress = Progress { next_run_at, runs_made, skipped, ..progress };
        }
    }
}

#[test]
fn one_run_of_a_record_that_fills_a_plan_lies_ahead_and_no_more() {
    let hourly = specification(3600, MissedRuns::LAST, None);
    let plan = hourly.plan(progress(1200), at(0), Duration::ZERO, 1);
    assert_eq!((runs(&plan), plan.look_at), (vec![(1200, 0)], Some(at(1200))));
    let secondly = specification(1, MissedRuns::LAST, None);
    let plan = secondly.plan(progress(1), at(0), Duration::ZERO, 1);
    assert_eq!((runs(&plan), plan.look_at), (vec![(1, 0)], Some(at(0))));
}

#[test]
fn a_plan_of_large_records_has_few_runs_and_the_next_plans_make_the_others() {
    let secondly = specification(1, MissedRuns::LAST, None);
    let (mut next, mut made) = (progress(-100), Vec::new());
    for _plan in 0..30 {
        let plan = secondly.plan(next, at(0), Duration::ZERO, 3);
        assert!(plan.runs.len() <= 3);
        made.extend(runs(&plan));
        let Plan { next_run_at, runs_made, skipped, .. } = plan;
        next = Progress { next_run_at: next_run_at.unwrap(), runs_made, skipped, ..next };
    }
    let at_once = secondly.plan(progress(-100), at(0), Duration::ZERO, RUNS_MAX);
    assert_eq!(made[..at_once.runs.len()], runs(&at_once));
}
