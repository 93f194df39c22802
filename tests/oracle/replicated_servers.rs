//! Tests the plans for a replicated stack, and which faults its operations explain.

use std::collections::HashSet;

use super::history::STEADY;
use super::oracle::{Rule, judge};
use super::plan::{Kind, Plan};
use super::replicated_plan::Replicated;
use super::{START, history, operation, publish, rules};

const FAILOVER: Kind = Kind::Replicated(Replicated::PostgresFailover);
const BROKER_LOST: Kind = Kind::Replicated(Replicated::BrokerLost);
const BROKERS_RESTARTED: Kind = Kind::Replicated(Replicated::BrokersRestarted);

#[test]
fn a_plan_holds_each_kind_of_a_replicated_stack_and_is_read_as_it_was_written() {
    for seconds in [60, 120, 720] {
        for seed in 0..100 {
            let plan = Plan::replicated(seed, seconds);
            assert!(plan.is_replicated() && plan.kind_of_single_servers().is_none(), "seed {seed}");
            let kinds: HashSet<Kind> = plan.operations.iter().map(|one| one.kind).collect();
            assert_eq!(kinds, Kind::all_replicated().collect(), "seed {seed}, {seconds} s");
            for (index, first) in plan.operations.iter().enumerate() {
                let is_over = |second: u64| first.at + first.lasts <= second;
                for second in &plan.operations[index + 1..] {
                    let is_apart = first.resource() != second.resource();
                    assert!(is_over(second.at) || is_apart, "seed {seed}: {first} and {second}");
                }
            }
            assert_eq!(plan.to_string().parse(), Ok(plan));
        }
    }
    assert!(!Plan::new(1, 120).is_replicated());
}

#[test]
fn a_lost_broker_has_a_number_and_a_failover_has_none() {
    let read = |line: &str| format!("# seed=1 seconds=5\n{line}\n").parse::<Plan>();
    for line in ["100 broker-lost for=500 by=3", "100 postgres-failover for=500"] {
        assert!(read(line).is_ok_and(|plan| plan.is_replicated()), "{line}");
    }
    for line in ["100 broker-lost for=500", "100 broker-lost by=4", "100 postgres-failover by=1"] {
        read(line).expect_err(line);
    }
    let kind = read("100 kafka-stop for=500").map(|plan| plan.kind_of_single_servers());
    assert_eq!(kind, Ok(Some(Kind::KafkaStop)));
}

#[test]
fn a_whole_run_on_a_replicated_stack_holds_its_own_kinds() {
    let mut history = history();
    for number in 0..2000 {
        publish(&mut history, number, STEADY);
    }
    for kind in Kind::all_replicated().filter(|kind| *kind != BROKER_LOST) {
        operation(&mut history, kind, START + 10_000, START + 12_000);
    }
    assert_eq!(judge(&history, true).count_of(Rule::Uncovered), 1, "no broker was lost");
    operation(&mut history, BROKER_LOST, START + 10_000, START + 12_000);
    assert_eq!(judge(&history, true).count_of(Rule::Uncovered), 0);
}

#[test]
fn a_failover_and_lost_brokers_explain_a_duplicate_and_a_late_task_but_none_that_is_lost() {
    for kind in [FAILOVER, BROKER_LOST, BROKERS_RESTARTED] {
        let mut twice = history();
        let due_at = publish(&mut twice, 1, STEADY);
        let mut again = twice.records[0].clone();
        (again.at, again.offset) = (due_at + 3000, 7);
        twice.records.push(again);
        assert_eq!(rules(&twice), [Rule::Unattributed], "{kind:?}");
        operation(&mut twice, kind, due_at - 500, due_at + 2500);
        assert_eq!(rules(&twice), [], "{kind:?}");
        assert_eq!(judge(&twice, false).duplicates[&kind], 1);

        let mut lost = history();
        let due_at = publish(&mut lost, 1, STEADY);
        operation(&mut lost, kind, due_at - 500, due_at + 2500);
        lost.lines.clear();
        lost.records.clear();
        assert_eq!(rules(&lost), [Rule::Lost], "{kind:?}");
    }
}

#[test]
fn only_brokers_that_are_away_hold_back_a_record_that_was_handed_over() {
    let held_back = |kind| {
        let mut history = history();
        operation(&mut history, kind, START, START + 4000);
        super::lateness::not_held_back(&history.spans, (START, START + 6000))
    };
    assert_eq!(held_back(BROKER_LOST), 0);
    assert_eq!(held_back(BROKERS_RESTARTED), 0);
    assert_eq!(held_back(FAILOVER), 6000);
}
