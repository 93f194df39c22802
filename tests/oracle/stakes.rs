//! Tests that a run is evidence only while its operations meet records.

use super::history::{STEADY, UNAVAILABLE};
use super::oracle::{Rule, judge};
use super::plan::Kind;
use super::{START, history, operation, publish, rules};

#[test]
fn a_run_that_is_to_be_whole_holds_each_kind_with_records_at_stake() {
    let mut history = history();
    assert_eq!(judge(&history, true).count_of(Rule::Uncovered), Kind::all().count());
    for kind in Kind::all() {
        operation(&mut history, kind, START + 10_000, START + 12_000);
    }
    assert_eq!(
        judge(&history, true).count_of(Rule::Uncovered),
        Kind::all().count(),
        "nothing was at stake"
    );
    for number in 0..2000 {
        publish(&mut history, number, STEADY);
    }
    assert_eq!(judge(&history, true).count_of(Rule::Uncovered), 0);
}

#[test]
fn an_outage_of_a_topic_during_which_it_takes_records_is_none() {
    let mut history = history();
    let appended_at = publish(&mut history, 1, UNAVAILABLE) + 2;
    history.topics[UNAVAILABLE].refusals.push((appended_at - 500, appended_at));
    assert_eq!(rules(&history), [], "it took it again");
    history.topics[UNAVAILABLE].refusals.push((appended_at, appended_at + 500));
    assert_eq!(rules(&history), [Rule::Uncovered]);
}

#[test]
fn at_stake_is_what_is_due_before_an_operation_ends_and_appended_after_it_began() {
    let at_stake = |appended_at: i64| {
        let mut history = history();
        let due_at = publish(&mut history, 1, STEADY);
        history.records[0].at = due_at + appended_at;
        operation(&mut history, Kind::PostgresStop, due_at + 1000, due_at + 4000);
        judge(&history, true).stakes[&Kind::PostgresStop]
    };
    assert_eq!(at_stake(999), (1, 0), "it was out before");
    assert_eq!(at_stake(2000), (1, 1));
    assert_eq!(at_stake(30_000), (1, 1), "it had to wait for long");
}
