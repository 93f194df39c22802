//! Tests the plans of the fault runner: their contents, and that a written plan is read back
//! unchanged.

use std::collections::HashSet;

use super::plan::{COMPLETE_FROM_SECONDS, Kind, Operation, Plan, STEPS_MAX, Server};

#[test]
fn a_plan_holds_each_kind_and_ends_within_its_time() {
    for seconds in [COMPLETE_FROM_SECONDS, 50, 60, 120, 720] {
        for seed in 0..200 {
            let plan = Plan::new(seed, seconds);
            let kinds: HashSet<Kind> =
                plan.operations.iter().map(|operation| operation.kind).collect();
            assert_eq!(kinds.len(), Kind::all().count(), "seed {seed}, {seconds} s");
            let end = plan
                .operations
                .iter()
                .map(|operation| operation.at + operation.lasts)
                .max()
                .unwrap();
            let late = end.saturating_sub(seconds * 1000);
            assert!(late < 35_000, "seed {seed}, {seconds} s: ends {late} ms after it");
        }
    }
    let laps = Plan::new(7, 720).operations.len() / Kind::all().count();
    assert!(laps >= 4, "twelve minutes have {laps} laps");
}

#[test]
fn operations_that_need_the_same_do_not_overlap() {
    for seed in 0..200 {
        let plan = Plan::new(seed, 50);
        for (index, first) in plan.operations.iter().enumerate() {
            for second in &plan.operations[index + 1..] {
                let is_over = first.at + first.lasts <= second.at;
                assert!(
                    is_over || first.resource() != second.resource(),
                    "seed {seed}: {first} and {second}"
                );
            }
        }
    }
}

#[test]
fn each_kind_is_done_once_at_a_time_when_records_can_flow() {
    for seconds in [COMPLETE_FROM_SECONDS, 48, 720] {
        for seed in 0..200 {
            let operations = Plan::new(seed, seconds).operations;
            let is_at_the_same_time = |one: &Operation, other: &Operation| {
                // An outage is judged by the records around it.
                other != one
                    && other.is_outage()
                    && !one.is_outage()
                    && one.at <= other.at + other.lasts
                    && other.at <= one.at + one.lasts
            };
            for kind in Kind::all() {
                let mut done = operations.iter().filter(|operation| operation.kind == kind);
                let is_alone =
                    done.any(|one| !operations.iter().any(|other| is_at_the_same_time(one, other)));
                assert!(is_alone, "seed {seed}, {seconds} s: each {} meets an outage", kind.name());
            }
        }
    }
}

#[test]
fn a_seed_makes_one_plan_and_a_plan_is_read_as_it_was_written() {
    for seed in 0..50 {
        let plan = Plan::new(seed, 60);
        assert_eq!(plan, Plan::new(seed, 60));
        assert_eq!(plan.to_string().parse(), Ok(plan));
    }
    assert_ne!(Plan::new(1, 60).operations, Plan::new(2, 60).operations);
}

#[test]
fn a_plan_with_a_mistake_is_refused() {
    let read = |line: &str| format!("# seed=1 seconds=5\n{line}\n").parse::<Plan>();
    assert!(read("100 cut-kafka node=1 for=500").is_ok());
    let operation = Operation {
        at: 100,
        kind: Kind::Cut(Server::Kafka),
        node: 1,
        lasts: 500,
        by: 0,
        steps: [0; STEPS_MAX],
    };
    assert_eq!(read("100 cut-kafka node=1 for=500").unwrap().operations, [operation]);
    for line in [
        "cut-kafka",
        "100 cut-zookeeper node=1",
        "100 cut-kafka",
        "100 cut-kafka node=4",
        "100 kill-node node=1 fro=5",
        "100 clock-step node=1",
        "100 stall-kafka",
    ] {
        read(line).expect_err(line);
    }
    "100 postgres-crash".parse::<Plan>().expect_err("no seed");
}
