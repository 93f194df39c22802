//! Tests the oracle on histories of services that are called back, and the plan of their faults.

use std::collections::HashSet;

use super::deliveries::{Delivered, Route};
use super::history::{
    Arrival, Call, CallKind, CallVerdict, History, LIMITED, Line, PROMPT, SERVED, Tracked,
};
use super::oracle::{Rule, judge};
use super::plan::{COMPLETE_FROM_SECONDS, Kind, Plan, ServiceFault};
use super::{START, history, id, line, operation, record, rules, submit};

const DUE: i64 = START + 5000;
/// The append of the record.
const APPENDED: i64 = DUE + 2;
const DOWN: Kind = Kind::Service(ServiceFault::Down);
const FAILS: Kind = Kind::Service(ServiceFault::Fails);
const STUCK: Kind = Kind::Service(ServiceFault::Stuck);

fn call(number: u64, kind: CallKind, at: i64) -> Call {
    let verdict = CallVerdict::Unknown { why: "the answer of the service".to_owned() };
    let (sent_at, answered_at, attempt) = (at, at, Some(1));
    Call { node: 0, sent_at, answered_at, id: id(number), attempt, kind, verdict }
}

/// Returns a history with one task, which its service got and finished at a moment.
fn called(topic: usize, at: i64) -> History {
    let mut history = history();
    let mut submit = submit(1, topic, DUE);
    submit.tracked =
        Some(Tracked { ttr_ms: 20_000, attempts_max: 2, backoff_ms: 0, dead_topic: None });
    history.submits.push(submit);
    history.records.push(Arrival { attempt: Some(1), ..record(1, topic, DUE) });
    history.lines.push(Line {
        published_at: Some(APPENDED),
        position: Some((0, 1)),
        lateness: Some(2),
        ..line(&history, 1, topic, DUE, "attempted")
    });
    history
        .lines
        .push(Line { claimed_at: Some(at + 5), ..line(&history, 1, topic, DUE, "finished") });
    let (route, payload_hash) = (Route::Callback, 1);
    history.delivered.push(Delivered { at, topic, id: id(1), attempt: 1, payload_hash, route });
    history.calls.push(call(1, CallKind::Finish, at));
    history
}

#[test]
fn a_task_that_its_service_has_got_and_finished_is_found_so() {
    for topic in [LIMITED, SERVED, PROMPT] {
        assert_eq!(rules(&called(topic, APPENDED + 30)), []);
    }
}

#[test]
fn a_task_is_finished_only_by_an_answer_of_its_service() {
    let mut history = called(SERVED, APPENDED + 30);
    operation(&mut history, FAILS, APPENDED - 100, APPENDED + 1000);
    history.calls[0].kind = CallKind::Fail { retry_in: None, is_final: false };
    assert_eq!(rules(&history), [Rule::WrongVerdict], "it was answered 500");
}

#[test]
fn a_service_that_nothing_is_done_to_gets_its_requests_on_time() {
    assert_eq!(rules(&called(PROMPT, APPENDED + 5000)), []);
    let late = || called(PROMPT, APPENDED + 5001);
    assert_eq!(rules(&late()), [Rule::Late]);
    assert_eq!(rules(&called(SERVED, APPENDED + 5001)), [], "that of the other one may wait");
    for kind in [DOWN, FAILS, STUCK, Kind::KillCallers, Kind::TopicDeleted, Kind::Pause] {
        let mut history = late();
        operation(&mut history, kind, APPENDED - 10, APPENDED + 4000);
        assert!(rules(&history).contains(&Rule::Late), "{}", kind.name());
    }
    for kind in [Kind::KillNode, Kind::KafkaStop, Kind::ClockStep] {
        let mut history = late();
        operation(&mut history, kind, APPENDED - 10, APPENDED + 4000);
        assert_eq!(rules(&history), [], "{}", kind.name());
    }
    let mut history = called(PROMPT, APPENDED + 30);
    history.delivered.clear();
    assert_eq!(rules(&history), [Rule::Late], "it never came");
}

#[test]
fn what_is_done_to_a_service_explains_no_second_delivery_and_no_duplicate() {
    for kind in [DOWN, FAILS, STUCK, Kind::KillCallers] {
        let mut history = called(SERVED, APPENDED + 30);
        operation(&mut history, kind, APPENDED + 31, APPENDED + 40);
        history.delivered.push(Delivered { at: APPENDED + 60, ..history.delivered[0] });
        assert_eq!(rules(&history), [Rule::WrongDelivery], "{}", kind.name());
        let again = Arrival { at: APPENDED + 500, offset: 77, ..history.records[0].clone() };
        history.records.push(again);
        history.delivered.pop();
        assert_eq!(rules(&history), [Rule::Unattributed], "{}", kind.name());
    }
}

#[test]
fn a_fault_of_a_service_is_evidence_only_if_it_has_an_effect() {
    let at = APPENDED + 30;
    let uncovered = |kinds: &[(Kind, i64, i64)]| {
        let mut history = called(SERVED, at);
        kinds.iter().for_each(|(kind, begin, end)| operation(&mut history, *kind, *begin, *end));
        let found = judge(&history, true).violations;
        let is_of_consumers = |what: &str| {
            let names = Kind::of_consumers().map(|kind| format!("{} was not done", kind.name()));
            what.contains("a service that ") || names.into_iter().any(|name| name == what)
        };
        found.into_iter().filter(|one| is_of_consumers(&one.what)).count()
    };
    assert_eq!(uncovered(&[]), Kind::of_consumers().count() + 1, "and no request has met one");
    let done = [
        (DOWN, at + 1000, at + 4000),
        (FAILS, at - 10, at + 10),
        (STUCK, at + 500, at + 600),
        (Kind::KillCallers, at, at + 10),
    ];
    assert_eq!(uncovered(&done), 0);
    let up = (DOWN, at - 1000, at + 1000);
    assert_eq!(uncovered(&[&done[1..], &[up]].concat()), 1, "it was not down");
    let unmet = (FAILS, at + 1, at + 9);
    assert_eq!(uncovered(&[&done[..1], &done[2..], &[unmet]].concat()), 1, "no request met it");
}

#[test]
fn a_plan_breaks_consumers_without_kafka_and_is_read_as_it_was_written() {
    for seconds in [COMPLETE_FROM_SECONDS, 48, 120, 720] {
        for seed in 0..50 {
            let mut plan = Plan::new(seed, seconds);
            let others = plan.operations.clone();
            plan.break_consumers();
            let (of_consumers, rest): (Vec<_>, Vec<_>) = plan
                .operations
                .iter()
                .copied()
                .partition(|operation| operation.kind.is_of_consumers());
            assert_eq!(rest, others, "the other operations stay");
            let kinds: HashSet<Kind> = of_consumers.iter().map(|one| one.kind).collect();
            assert_eq!(kinds.len(), Kind::of_consumers().count(), "seed {seed}, {seconds} s");
            let end = of_consumers.iter().map(|one| one.over_at()).max().unwrap_or_default();
            assert!(end <= seconds * 1000 + 10_000, "seed {seed}, {seconds} s: until {end}");
            assert_eq!(plan.to_string().parse(), Ok(plan));
        }
    }
}
