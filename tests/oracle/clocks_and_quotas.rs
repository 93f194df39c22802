//! Tests the oracle on histories in which Postgres's clock is moved, and on histories in which
//! Kafka is slow but not dead.

use super::clock::{Change, PostgresClock, Reading};
use super::history::{History, STEADY, Target, Verdict};
use super::oracle::{Rule, judge};
use super::plan::{Kind, Plan};
use super::{START, cancel, history, id, operation, publish, record, rules};

/// Adds a change of Postgres's clock that took 2 ms to make.
fn change(history: &mut History, at: i64, offset_ms: i64, ppm: i64) {
    let (before_us, offset_us) = (at * 1000, offset_ms * 1000);
    history.clock.changes.push(Change { before_us, after_us: before_us + 2000, offset_us, ppm });
}

/// Moves the first task's record, and its receipt with it.
fn append_at(history: &mut History, at: i64) {
    let due_at = history.lines[0].due_at;
    history.records[0].at = at;
    (history.lines[0].published_at, history.lines[0].lateness) = (Some(at), Some(at - due_at));
}

#[test]
fn early_is_by_the_clock_of_postgres() {
    let mut history = history();
    let due_at = publish(&mut history, 1, STEADY);
    change(&mut history, START, 3000, 0);
    append_at(&mut history, due_at - 3000);
    assert_eq!(rules(&history), [], "Postgres's clock showed the due time");
    assert_eq!(judge(&history, false).lateness_at(1.0), 0);
    append_at(&mut history, due_at - 3001);
    assert_eq!(rules(&history), [Rule::Early]);
    history.clock.changes.clear();
    append_at(&mut history, due_at - 1);
    assert_eq!(rules(&history), [Rule::Early]);
}

#[test]
fn a_step_excuses_nothing_that_was_appended_before_it() {
    let mut history = history();
    let due_at = publish(&mut history, 1, STEADY);
    change(&mut history, due_at - 1000, 5000, 0);
    append_at(&mut history, due_at - 1001);
    assert_eq!(rules(&history), [Rule::Early]);
    for while_it_was_made in [due_at - 1000, due_at - 998] {
        append_at(&mut history, while_it_was_made);
        assert_eq!(rules(&history), [], "either time may have been shown");
    }
    assert_eq!(history.clock.reached(due_at), due_at - 1000, "due when the step was made");
}

#[test]
fn a_slewed_clock_gains_or_loses_what_its_rate_says() {
    for (ppm, gained) in [(500, 3), (-500, -2)] {
        let mut history = history();
        let due_at = publish(&mut history, 1, STEADY);
        change(&mut history, due_at - 5000, 0, ppm);
        append_at(&mut history, due_at - gained);
        assert_eq!(rules(&history), [], "{ppm} ppm");
        append_at(&mut history, due_at - gained - 1);
        assert_eq!(rules(&history), [Rule::Early], "{ppm} ppm");
    }
}

#[test]
fn times_are_translated_there_and_back() {
    let mut clock = PostgresClock::default();
    assert_eq!(
        (clock.latest(START), clock.earliest(START), clock.reached(START)),
        (START, START, START)
    );
    for (seconds, offset_us, ppm) in [(1, 700_000, 400), (4, 8_701_200, -300), (9, 8_699_700, 0)] {
        let before_us = (START + seconds * 1000) * 1000;
        clock.changes.push(Change { before_us, after_us: before_us + 300, offset_us, ppm });
    }
    let mut shown_before = 0;
    for machine_ms in START..START + 20_000 {
        let (low, high) = (clock.earliest(machine_ms), clock.latest(machine_ms));
        assert!(
            low <= high && high >= shown_before,
            "{machine_ms}: {low} to {high} after {shown_before}"
        );
        assert!(
            high - low <= 1 || [1000, 4000, 9000].contains(&(machine_ms - START)),
            "{machine_ms}: {low} to {high}"
        );
        let reached = clock.reached(high);
        assert!(
            (machine_ms - 1..=machine_ms + 1).contains(&reached),
            "{machine_ms} shows {high}, reached at {reached}"
        );
        shown_before = high;
    }
    assert_eq!(clock.reached(START + 2000), START + 1299, "while it runs fast");
    assert_eq!(clock.reached(START + 8000), START + 4000, "jumped over");
}

#[test]
fn too_late_is_by_the_clock_of_postgres() {
    let mut history = history();
    let due_at = publish(&mut history, 1, STEADY);
    cancel(&mut history, Target::Id(id(1)), Verdict::TooLate { id: None, receipt: None });
    history.cancels[0].answered_at = due_at - 3100;
    assert_eq!(rules(&history), [Rule::WrongVerdict]);
    change(&mut history, START, 3000, 0);
    assert_eq!(rules(&history), []);
}

#[test]
fn what_waits_at_the_end_is_due_by_the_clock_of_postgres() {
    let mut history = history();
    let due_at = publish(&mut history, 1, STEADY);
    history.records.clear();
    history.lines.clear();
    history.pending.insert(id(1), due_at);
    history.ended_at = due_at - 1000;
    assert_eq!(rules(&history), []);
    change(&mut history, START, 3000, 0);
    assert_eq!(rules(&history), [Rule::Lost], "it was overdue");
}

#[test]
fn a_step_of_the_clock_holds_up_nobody() {
    let mut history = history();
    let due_at = publish(&mut history, 1, STEADY);
    operation(&mut history, Kind::PostgresClock, due_at - 3000, due_at - 100);
    append_at(&mut history, due_at + 14_000);
    assert_eq!(rules(&history), [], "a busy machine");
    append_at(&mut history, due_at + 60_000);
    assert_eq!(rules(&history), [Rule::Late]);
    operation(&mut history, Kind::PostgresStop, due_at + 10_000, due_at + 35_000);
    assert_eq!(rules(&history), [], "Postgres was away for the most of it");
}

#[test]
fn late_is_counted_from_when_postgres_showed_the_due_time() {
    let mut history = history();
    let due_at = publish(&mut history, 1, STEADY);
    change(&mut history, due_at - 20_000, 8000, 0);
    history.submits[0].answered_at = due_at - 10_000;
    append_at(&mut history, due_at + 6000);
    assert_eq!(judge(&history, false).lateness_at(1.0), 14_000);
    assert_eq!(rules(&history), []);
    append_at(&mut history, due_at + 8000);
    assert_eq!(rules(&history), [Rule::Late]);
    history.submits[0].answered_at = due_at - 6000;
    assert_eq!(rules(&history), [], "it was submitted late");
}

#[test]
fn a_quota_explains_lateness_and_that_it_goes_on_for_a_bounded_time() {
    let mut history = history();
    let due_at = publish(&mut history, 1, STEADY);
    append_at(&mut history, due_at + 58_000);
    assert_eq!(rules(&history), [Rule::Late]);
    operation(&mut history, Kind::Quota, due_at, due_at + 6000);
    assert_eq!(rules(&history), []);
    append_at(&mut history, due_at + 85_000);
    assert_eq!(rules(&history), [Rule::Late]);
}

#[test]
fn what_was_put_off_may_take_longer_but_a_quota_puts_nothing_off() {
    let mut history = history();
    let due_at = publish(&mut history, 1, STEADY);
    operation(&mut history, Kind::KafkaStop, due_at, due_at + 5000);
    append_at(&mut history, due_at + 100_000);
    assert_eq!(rules(&history), [Rule::Late]);
    let deferred = super::Line { state: "deferred".to_owned(), ..history.lines[0].clone() };
    history.lines.push(deferred);
    assert_eq!(rules(&history), []);
    history.spans[0].operation.kind = Kind::Quota;
    assert_eq!(rules(&history), [Rule::Late]);
}

#[test]
fn a_quota_explains_no_duplicate_and_delays_the_end_of_what_does() {
    let mut history = history();
    let due_at = publish(&mut history, 1, STEADY);
    let mut again = record(1, STEADY, due_at);
    (again.at, again.offset) = (due_at + 3000, 500);
    history.records.push(again);
    operation(&mut history, Kind::Quota, due_at - 5000, due_at + 1000);
    assert_eq!(rules(&history), [Rule::Unattributed]);
    operation(&mut history, Kind::KillNode, due_at - 9000, due_at - 4000);
    assert_eq!(rules(&history), [], "what the dead node had sent was held back");
    history.spans[1].end = due_at - 8000;
    assert_eq!(rules(&history), [Rule::Unattributed], "it was over before the quota began");
    operation(&mut history, Kind::PostgresClock, due_at, due_at + 2000);
    assert_eq!(rules(&history), [Rule::Unattributed], "a clock explains no duplicate either");
}

#[test]
fn a_quota_that_holds_nothing_back_is_none() {
    let mut history = history();
    (0..400).for_each(|number| _ = publish(&mut history, number, STEADY));
    operation(&mut history, Kind::Quota, START + 5000, START + 9000);
    assert_eq!(rules(&history), [Rule::Uncovered]);
    let mut hold_back = |count: usize| {
        for (record, line) in history.records.iter_mut().zip(&mut history.lines).take(count) {
            record.at = line.due_at + 1500;
            (line.published_at, line.lateness) = (Some(record.at), Some(1500));
        }
        rules(&history)
    };
    assert_eq!(hold_back(100), [Rule::Uncovered], "a busy machine");
    assert_eq!(hold_back(200), []);
}

#[test]
fn a_clock_that_does_not_show_its_steps_was_not_moved() {
    let mut history = history();
    change(&mut history, START, 3000, 0);
    let asked_us = (START + 100) * 1000;
    let mut read = |shown_us| {
        history.clock.readings = vec![Reading { asked_us, shown_us, answered_us: asked_us + 500 }];
        rules(&history)
    };
    assert_eq!(read(asked_us + 3_000_200), []);
    assert_eq!(read(asked_us + 200), [Rule::Uncovered], "the clock of the machine");
    assert_eq!(read(asked_us + 3_000_600), [Rule::Uncovered], "ahead of what was set");
}

#[test]
fn steps_are_read_as_they_were_written_and_mistakes_are_refused() {
    let read = |line: &str| format!("# seed=1 seconds=5\n{line}\n").parse::<Plan>();
    let plan =
        read("100 postgres-clock for=4000 by=-300 steps=600,8000\n200 quota for=5000 by=8000")
            .unwrap();
    assert_eq!(plan.operations[0].steps().collect::<Vec<_>>(), [600, 8000]);
    assert_eq!(plan.to_string().parse(), Ok(plan));
    for line in [
        "100 postgres-clock for=4000",
        "100 postgres-clock steps=600,0",
        "100 postgres-clock steps=1,2,3,4,5",
        "100 postgres-clock steps=-600",
        "100 postgres-clock node=1 steps=600",
        "100 quota for=5000",
        "100 quota for=5000 by=8000 steps=5",
        "100 clock-step node=3 by=100 steps=5",
    ] {
        read(line).expect_err(line);
    }
}

#[test]
fn the_steps_of_a_plan_together_are_what_a_node_follows_at_once() {
    for seed in 0..200 {
        let operations = Plan::new(seed, 50).operations.into_iter();
        for clock in operations.filter(|operation| operation.kind == Kind::PostgresClock) {
            let steps: Vec<u16> = clock.steps().collect();
            assert!(
                steps.len() >= 2 && steps.iter().all(|step| (200..=8000).contains(step)),
                "{clock}"
            );
            assert!(
                steps.iter().sum::<u16>() <= 9000 && (100..=500).contains(&clock.by.abs()),
                "{clock}"
            );
        }
    }
}
