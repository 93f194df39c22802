//! Tests the rules for the doors beside REST on histories made by hand, and the plan of their
//! faults.

use std::collections::HashSet;

use super::door_history::{Door, Op, Rejection, Request};
use super::history::{Arrival, BY_RECORD, BY_SQL, History, Outcome, Submit};
use super::oracle::{Rule, judge};
use super::plan::{COMPLETE_FROM_SECONDS, Kind, Plan};
use super::{START, history, id, line, operation, record, rules, submit};

const DUE: i64 = START + 5000;
const TOO_LATE: &str = "the task of this name is claimed: nothing was replaced";
const NAMED: Option<&str> = Some("n");

/// Returns a request that was committed, and taken long before it was due.
fn request(serial: u64, op: Op, name: Option<&str>) -> Request {
    let has_task = matches!(op, Op::Submit | Op::Replace);
    Request {
        serial,
        door: Door::Sql,
        op,
        topic: BY_SQL,
        name: name.map(str::to_owned),
        due_at: if has_task { DUE } else { 0 },
        is_exact: true,
        is_wrong: false,
        sent_at: DUE - 4000,
        ended_at: DUE - 3990,
        is_committed: true,
        taken_by: Some(DUE - 3900),
        finishes: None,
    }
}

/// Adds a request, and what the oracle knows about its task.
fn ask(history: &mut History, request: Request, state: Option<&str>) {
    let Request { serial, topic, .. } = request;
    if matches!(request.op, Op::Submit | Op::Replace) && !request.is_wrong {
        let outcome = match request.is_committed {
            true => Outcome::Committed,
            false => Outcome::Refused { why: "rolled back".to_owned() },
        };
        let (name, is_put) = (request.name.clone(), request.op == Op::Replace);
        history.submits.push(Submit { outcome, name, is_put, ..submit(serial, topic, DUE) });
    }
    if let Some(state) = state {
        let found = line(history, serial, topic, DUE, state);
        history.lines.push(found);
        if state == "published" {
            history.records.push(record(serial, topic, DUE));
        }
    }
    history.doors.requests.push(request);
}

fn reject(history: &mut History, serial: u64, reason: &str) {
    history.doors.rejections.push(Rejection { serial, reason: reason.to_owned() });
}

#[test]
fn doors_that_keep_every_promise_are_found_so() {
    let mut history = history();
    ask(&mut history, request(1, Op::Submit, None), Some("published"));
    // Submitted, replaced, cancelled.
    ask(&mut history, request(2, Op::Submit, NAMED), Some("cancelled"));
    ask(&mut history, request(3, Op::Submit, NAMED), None);
    ask(&mut history, request(4, Op::Replace, NAMED), Some("cancelled"));
    ask(&mut history, request(5, Op::Cancel, NAMED), None);
    // A cancel that came first found nothing.
    ask(&mut history, request(6, Op::Cancel, Some("m")), None);
    ask(&mut history, request(7, Op::Submit, Some("m")), Some("published"));
    let rolled_back = Request { is_committed: false, ..request(8, Op::Submit, None) };
    ask(&mut history, rolled_back, None);
    ask(&mut history, Request { is_wrong: true, ..request(9, Op::Submit, None) }, None);
    reject(&mut history, 9, "Kafka has no topic");
    let by_record =
        Request { door: Door::Record, topic: BY_RECORD, ..request(10, Op::Submit, None) };
    ask(&mut history, by_record, Some("published"));
    let judgement = judge(&history, false);
    assert_eq!(judgement.violations, []);
    assert_eq!((judgement.counts.committed, judgement.counts.refused), (6, 1));
}

#[test]
fn what_was_committed_is_accepted_once_and_what_was_rolled_back_never() {
    let mut lost = history();
    ask(&mut lost, request(1, Op::Submit, None), None);
    assert_eq!(rules(&lost), [Rule::Lost]);

    let mut rolled_back = history();
    let request_of = || Request { is_committed: false, ..request(1, Op::Submit, None) };
    ask(&mut rolled_back, request_of(), Some("published"));
    assert_eq!(rules(&rolled_back), [Rule::Stranger]);

    let mut twice = history();
    ask(&mut twice, request(1, Op::Submit, None), Some("published"));
    let mut twin = line(&twice, 2, BY_SQL, DUE, "published");
    twin.position = Some((0, 9));
    twice.lines.push(twin);
    twice.records.push(Arrival { id: id(2), offset: 9, ..record(1, BY_SQL, DUE) });
    assert_eq!(rules(&twice), [Rule::Stranger]);

    // A replacement that took effect twice has replaced itself.
    let mut itself = history();
    ask(&mut itself, request(1, Op::Replace, NAMED), Some("published"));
    itself.lines.push(line(&itself, 2, BY_SQL, DUE, "cancelled"));
    assert_eq!(rules(&itself), [Rule::Stranger]);

    let mut left = history();
    ask(&mut left, request(1, Op::Submit, None), Some("published"));
    left.doors.left.push("the outbox has 3 rows".to_owned());
    assert_eq!(rules(&left), [Rule::Lost]);
}

#[test]
fn a_withdrawal_that_comes_in_time_wins_and_one_that_comes_late_may_lose() {
    for withdrawal in [Op::Cancel, Op::Replace] {
        let mut history = history();
        ask(&mut history, request(1, Op::Submit, NAMED), Some("published"));
        let state = (withdrawal == Op::Replace).then_some("published");
        ask(&mut history, request(2, withdrawal, NAMED), state);
        assert_eq!(rules(&history), [Rule::OutOfOrder], "{withdrawal:?}");
        history.doors.requests[1].taken_by = Some(DUE - 250);
        assert_eq!(rules(&history), [], "{withdrawal:?} within the window");
        history.doors.requests[1].taken_by = None;
        assert_eq!(rules(&history), [], "{withdrawal:?}, nobody knows when");
    }
}

#[test]
fn an_earlier_cancel_withdraws_nothing() {
    let mut history = history();
    ask(&mut history, request(1, Op::Cancel, NAMED), None);
    ask(&mut history, request(2, Op::Submit, NAMED), Some("cancelled"));
    assert_eq!(rules(&history), [Rule::Lost]);
    // Nor does one that was rolled back.
    history.doors.requests[0].is_committed = false;
    history.doors.requests.swap(0, 1);
    assert_eq!(rules(&history), [Rule::Lost]);
}

#[test]
fn a_known_name_is_not_stored_again() {
    let mut history = history();
    ask(&mut history, request(1, Op::Submit, NAMED), Some("published"));
    ask(&mut history, request(2, Op::Submit, NAMED), Some("published"));
    assert!(rules(&history).contains(&Rule::OutOfOrder));
}

#[test]
fn only_what_is_wrong_or_too_late_is_rejected() {
    let mut right = history();
    ask(&mut right, request(1, Op::Submit, None), None);
    reject(&mut right, 1, "Kafka has no topic");
    assert_eq!(rules(&right), [Rule::WrongRejection]);

    let mut wrong = history();
    ask(&mut wrong, Request { is_wrong: true, ..request(1, Op::Submit, None) }, None);
    assert_eq!(rules(&wrong), [Rule::WrongRejection], "it was not rejected");
    reject(&mut wrong, 1, "Kafka has no topic");
    assert_eq!(rules(&wrong), []);
    reject(&mut wrong, 1, "Kafka has no topic");
    assert_eq!(rules(&wrong), [Rule::WrongRejection], "a row is rejected once");
    wrong.doors.requests[0].door = Door::Record;
    assert_eq!(rules(&wrong), [], "a record may be rejected more than once");
    wrong.doors.requests[0].is_committed = false;
    assert_eq!(rules(&wrong), [Rule::Stranger], "it was rolled back");

    let mut nobody = history();
    ask(&mut nobody, request(1, Op::Submit, None), Some("published"));
    reject(&mut nobody, 2, "?");
    assert_eq!(rules(&nobody), [Rule::Stranger]);
    nobody.doors.rejections[0].serial = 1;
    assert!(rules(&nobody).contains(&Rule::WrongRejection), "rejected, and published");

    let mut late = history();
    ask(&mut late, request(1, Op::Submit, NAMED), Some("published"));
    ask(&mut late, request(2, Op::Replace, NAMED), None);
    reject(&mut late, 2, TOO_LATE);
    assert_eq!(rules(&late), [Rule::OutOfOrder], "it was in time");
    late.doors.requests[1].taken_by = Some(DUE);
    assert_eq!(rules(&late), []);
}

#[test]
fn a_task_of_a_door_is_not_early_and_has_the_due_time_of_its_request() {
    let mut early = history();
    ask(&mut early, request(1, Op::Submit, None), Some("published"));
    early.records[0].at = DUE - 1;
    (early.lines[0].published_at, early.lines[0].lateness) = (Some(DUE - 1), Some(-1));
    assert_eq!(rules(&early), [Rule::Early]);

    let mut other = history();
    ask(&mut other, request(1, Op::Submit, None), Some("published"));
    other.doors.requests[0].due_at = DUE - 100;
    assert_eq!(rules(&other), [Rule::Changed]);
    other.doors.requests[0].is_exact = false;
    assert_eq!(rules(&other), [], "a delay has a lower bound only");
    let late = Request { is_exact: true, taken_by: Some(DUE), ..other.doors.requests[0].clone() };
    other.doors.requests[0] = late;
    assert_eq!(rules(&other), [], "it was due before it was taken");
}

#[test]
fn a_run_that_broke_no_door_is_no_evidence() {
    let mut history = history();
    ask(&mut history, request(1, Op::Submit, None), Some("published"));
    let missing = |history: &History| {
        let found = judge(history, true).violations;
        let of_doors: HashSet<String> = Kind::of_doors()
            .map(|kind| format!("{} was not done", kind.name()))
            .chain(["no node was killed between a store and its commit".to_owned()])
            .collect();
        found.into_iter().filter(|violation| of_doors.contains(&violation.what)).count()
    };
    assert_eq!(missing(&history), Kind::of_doors().count() + 1);
    for kind in Kind::of_doors() {
        operation(&mut history, kind, START, START + 10);
    }
    history.doors.kills_at_store = 1;
    assert_eq!(missing(&history), 0);
}

#[test]
fn a_plan_breaks_each_door_and_is_read_as_it_was_written() {
    for seconds in [COMPLETE_FROM_SECONDS, 48, 120, 720] {
        for seed in 0..50 {
            let mut plan = Plan::new(seed, seconds);
            let others = plan.operations.clone();
            assert!(!plan.has_doors(), "only on request");
            plan.break_doors();
            assert!(plan.has_doors());
            let (of_doors, rest): (Vec<_>, Vec<_>) =
                plan.operations.iter().copied().partition(|operation| operation.kind.is_of_doors());
            assert_eq!(rest, others, "the other operations stay");
            let kinds: HashSet<Kind> = of_doors.iter().map(|operation| operation.kind).collect();
            assert_eq!(kinds.len(), Kind::of_doors().count(), "seed {seed}, {seconds} s");
            let end = of_doors.iter().map(|operation| operation.over_at()).max().unwrap();
            assert!(end <= seconds * 1000 + 10_000, "seed {seed}, {seconds} s: until {end}");
            for pair in of_doors.windows(2) {
                assert!(
                    pair[0].over_at() <= pair[1].at,
                    "seed {seed}: {} and {}",
                    pair[0],
                    pair[1]
                );
            }
            assert_eq!(plan.to_string().parse(), Ok(plan));
        }
    }
}
