//! Tests the oracle on histories of tracked tasks and their consumers.

use super::deliveries::{Delivered, Route};
use super::history::{
    Arrival, Call, CallKind, CallVerdict, DEAD, DELETED, History, Line, Outcome, STEADY, Tracked,
};
use super::oracle::{Rule, judge};
use super::plan::Kind;
use super::{START, history, id, line, operation, publish, record, rules, submit};

const DUE: i64 = START + 5000;
/// The append of the first attempt.
const FIRST: i64 = DUE + 2;
const TTR: i64 = 1000;
/// The earliest append of an attempt after a silent one: the time to run, and the window.
const STEP: i64 = TTR + 200;
const FAIL: CallKind = CallKind::Fail { retry_in: None, is_final: false };
const FAIL_FOR_GOOD: CallKind = CallKind::Fail { retry_in: None, is_final: true };
const EXTEND: CallKind = CallKind::Extend { by: 3000 };
const FINISHED: CallVerdict = CallVerdict::Finished { in_flight: false };
const SILENT: &str = "attempt 2 of 2 was not finished in its time to run";

/// Returns a history with one tracked task that was accepted.
fn tracked(dead_topic: Option<usize>) -> History {
    let mut history = history();
    let mut submit = submit(1, STEADY, DUE);
    submit.tracked = Some(Tracked { ttr_ms: TTR, attempts_max: 2, backoff_ms: 0, dead_topic });
    history.submits.push(submit);
    history
}

/// Adds the record and the line of an attempt.
fn attempt(history: &mut History, number: u16, at: i64) {
    let offset = i64::from(number);
    let arrival = Arrival { at, offset, attempt: Some(number), ..record(1, STEADY, DUE) };
    history.records.push(arrival);
    history.lines.push(Line {
        published_at: Some(at),
        position: Some((0, offset)),
        lateness: Some(2),
        claimed_at: Some(at - 150),
        ..line(history, 1, STEADY, DUE, "attempted")
    });
}

/// Adds the final line.
fn end(history: &mut History, state: &str, at: i64) {
    let claimed_at = Some(at);
    history.lines.push(Line { claimed_at, ..line(history, 1, STEADY, DUE, state) });
}

fn call(history: &mut History, number: u16, kind: CallKind, at: i64, verdict: CallVerdict) {
    history.calls.push(Call {
        node: 1,
        sent_at: at,
        answered_at: at + 10,
        id: id(1),
        attempt: Some(number),
        kind,
        verdict,
    });
}

fn unknown() -> CallVerdict {
    CallVerdict::Unknown { why: "timeout".to_owned() }
}

fn refused(verdict: &str) -> CallVerdict {
    CallVerdict::Refused(verdict.to_owned())
}

/// Returns a task whose second attempt was finished.
fn finished() -> History {
    let mut history = tracked(None);
    attempt(&mut history, 1, FIRST);
    attempt(&mut history, 2, FIRST + STEP);
    call(&mut history, 2, CallKind::Finish, FIRST + STEP + 50, FINISHED);
    end(&mut history, "finished", FIRST + STEP + 55);
    history
}

/// Returns a task whose two attempts were not finished.
fn exhausted(dead_topic: Option<usize>) -> History {
    let mut history = tracked(dead_topic);
    attempt(&mut history, 1, FIRST);
    attempt(&mut history, 2, FIRST + STEP);
    end(&mut history, "dead", FIRST + STEP + TTR);
    history.lines[2].reason = Some(SILENT.to_owned());
    history
}

/// Adds the record of the dead task to a topic, where its line says.
fn bury(history: &mut History, topic: usize) {
    let at = FIRST + STEP + TTR + 200;
    history.lines[2].position = Some((0, 9));
    history.records.push(Arrival {
        at,
        offset: 9,
        topic,
        attempt: Some(2),
        is_dead_letter: true,
        ..record(1, STEADY, DUE)
    });
}

/// Returns a task whose first attempt got a call, and whose second one arrived this much later than
/// the first and was finished.
fn retried(calls: &[(CallKind, CallVerdict)], later: i64) -> Vec<Rule> {
    let mut history = tracked(None);
    attempt(&mut history, 1, FIRST);
    attempt(&mut history, 2, FIRST + later);
    for (kind, verdict) in calls {
        call(&mut history, 1, *kind, FIRST + 100, verdict.clone());
    }
    call(&mut history, 2, CallKind::Finish, FIRST + later + 50, FINISHED);
    end(&mut history, "finished", FIRST + later + 55);
    rules(&history)
}

#[test]
fn tracked_tasks_that_keep_every_promise_are_found_so() {
    let judgement = judge(&finished(), false);
    assert_eq!(judgement.violations, []);
    assert_eq!((judgement.counts.tracked, judgement.counts.finished), (1, 1));
    let judgement = judge(&exhausted(None), false);
    assert_eq!(judgement.violations, []);
    assert_eq!((judgement.counts.dead, judgement.counts.exhausted), (1, 1));
    let mut history = exhausted(Some(DEAD));
    bury(&mut history, DEAD);
    assert_eq!(rules(&history), []);
}

#[test]
fn a_tracked_task_that_nobody_finished_is_not_forgotten_and_ends_once() {
    let mut history = exhausted(None);
    let end = history.lines.pop().expect("its end");
    assert_eq!(rules(&history), [Rule::Lost], "its attempts are no end");
    history.pending.insert(id(1), super::END + 100_000);
    assert_eq!(rules(&history), [Rule::Lost], "it waits for no attempt any more");
    history.ended_at = FIRST;
    assert_eq!(rules(&history), [], "its first attempt came after the run");
    let mut history = finished();
    history.lines.push(end);
    assert!(rules(&history).contains(&Rule::EndedTwice));
}

#[test]
fn there_are_no_more_attempts_than_the_task_may_have() {
    let mut history = finished();
    attempt(&mut history, 3, FIRST + STEP);
    let arrival = history.records.pop().expect("the record of the attempt");
    assert_eq!(
        judge(&history, false).count_of(Rule::TooManyAttempts),
        1,
        "three attempts by the execlog"
    );
    history.lines.pop();
    history.records.push(arrival);
    assert_eq!(judge(&history, false).count_of(Rule::TooManyAttempts), 1, "its number is 3");
}

#[test]
fn nothing_is_claimed_after_the_finish_and_nothing_arrives_unless_it_was_announced() {
    let told_at = FIRST + 60;
    let told = |in_flight: bool| {
        let mut history = tracked(None);
        attempt(&mut history, 1, FIRST);
        let verdict = CallVerdict::Finished { in_flight };
        call(&mut history, 1, CallKind::Finish, told_at - 10, verdict);
        end(&mut history, "finished", told_at - 5);
        attempt(&mut history, 2, FIRST + STEP);
        history
    };
    let mut history = told(true);
    assert_eq!(rules(&history), [Rule::AfterFinish], "it was claimed afterwards");
    history.lines[2].claimed_at = Some(told_at);
    assert_eq!(rules(&history), []);
    let mut history = told(false);
    history.lines[2].claimed_at = Some(told_at);
    assert_eq!(rules(&history), [Rule::AfterFinish], "nothing was in flight, it was said");
    history.calls[0].verdict = unknown();
    assert_eq!(rules(&history), [], "a call without an answer promises nothing");
}

#[test]
fn the_end_is_what_consumers_were_told() {
    for (kind, verdict) in [
        (FAIL, CallVerdict::Dying),
        (FAIL_FOR_GOOD, CallVerdict::Noted),
        (FAIL, refused("dead")),
        (FAIL, refused("cancelled")),
    ] {
        let mut history = finished();
        call(&mut history, 2, kind, FIRST + STEP + 20, verdict.clone());
        assert_eq!(rules(&history), [Rule::WrongVerdict], "{verdict:?}");
    }
    for verdict in [FINISHED, refused("already_finished")] {
        let mut history = exhausted(None);
        // The answer came after the verdict was claimed.
        call(&mut history, 2, CallKind::Finish, FIRST + STEP + TTR + 100, verdict.clone());
        assert_eq!(rules(&history), [Rule::WrongVerdict], "{verdict:?}");
    }
    let mut history = finished();
    history.lines[2].state = "published".to_owned();
    history.lines[2].published_at = Some(FIRST);
    assert!(rules(&history).contains(&Rule::WrongVerdict), "it awaits its consumer");
}

#[test]
fn a_task_is_finished_by_a_consumer_and_a_call_without_an_answer_counts_either_way() {
    let mut history = finished();
    history.calls[0].verdict = unknown();
    assert_eq!(rules(&history), []);
    for verdict in [CallVerdict::NotTaken { why: "busy".to_owned() }, refused("dead")] {
        history.calls[0].verdict = verdict;
        assert_eq!(rules(&history), [Rule::WrongVerdict], "it had no effect");
    }
    history.calls.clear();
    assert_eq!(rules(&history), [Rule::WrongVerdict], "nobody has said so");
    let mut history = exhausted(None);
    call(&mut history, 2, CallKind::Finish, FIRST + STEP + 20, unknown());
    assert_eq!(rules(&history), []);
}

#[test]
fn a_refusal_about_an_attempt_that_has_arrived_is_true() {
    for verdict in ["attempt_too_high", "not_published_yet", "not_found", "not_tracked"] {
        let mut history = finished();
        call(&mut history, 2, FAIL, FIRST + STEP + 20, refused(verdict));
        assert_eq!(rules(&history), [Rule::WrongVerdict], "{verdict}");
    }
    let mut history = finished();
    call(&mut history, 1, FAIL, FIRST + STEP + 20, refused("attempt_superseded"));
    assert_eq!(rules(&history), []);
    history.lines.remove(1);
    assert_eq!(rules(&history), [], "the second was finished before it was settled");
    history.records.remove(1);
    assert_eq!(rules(&history), [Rule::WrongVerdict], "there is no other attempt");
    history.calls[0].attempt = Some(1);
    history.calls[0].verdict = CallVerdict::Finished { in_flight: true };
    assert_eq!(rules(&history), [], "the second was claimed, and expired before it was sent");
    history.calls[0].verdict = unknown();
    assert_eq!(rules(&history), [], "the answer may have told so");
    let mut history = finished();
    call(&mut history, 2, EXTEND, FIRST + STEP + 20, refused("already_failed"));
    assert_eq!(rules(&history), [Rule::WrongVerdict], "nobody has failed it");
    call(&mut history, 2, FAIL, FIRST + STEP + 10, unknown());
    assert_eq!(rules(&history), []);
}

#[test]
fn a_repeated_failure_is_told_the_same_due_time() {
    let told = |at: i64| (FAIL, CallVerdict::Retrying { at: Some(at) });
    let (at, later) = (FIRST + 1100, FIRST + 1101);
    assert_eq!(retried(&[told(at), told(at)], 1500), []);
    assert_eq!(retried(&[told(at), told(later)], 1500), [Rule::WrongVerdict]);
}

#[test]
fn no_attempt_is_early() {
    assert_eq!(retried(&[], STEP), []);
    assert_eq!(retried(&[], STEP - 1), [Rule::Early], "the consumer had more time");
    // A failure is retried after a second, or when it or its answer says.
    for verdict in [CallVerdict::Noted, CallVerdict::Retrying { at: None }, unknown()] {
        assert_eq!(retried(&[(FAIL, verdict.clone())], 1100), []);
        assert_eq!(retried(&[(FAIL, verdict)], 1099), [Rule::Early]);
    }
    let soon = CallKind::Fail { retry_in: Some(300), is_final: false };
    assert_eq!(retried(&[(soon, CallVerdict::Noted)], 400), []);
    assert_eq!(retried(&[(soon, CallVerdict::Noted)], 399), [Rule::Early]);
    let told = CallVerdict::Retrying { at: Some(FIRST + 500) };
    assert_eq!(retried(&[(soon, told.clone())], 500), []);
    assert_eq!(retried(&[(soon, told)], 499), [Rule::Early]);
    let refused = CallVerdict::NotTaken { why: "busy".to_owned() };
    assert_eq!(retried(&[(soon, refused)], STEP - 1), [Rule::Early]);
    // An extension moves the deadline, and without an answer perhaps.
    assert_eq!(retried(&[(EXTEND, CallVerdict::Extended)], 3300), []);
    assert_eq!(retried(&[(EXTEND, CallVerdict::Extended)], 3299), [Rule::Early]);
    assert_eq!(retried(&[(EXTEND, unknown())], STEP), []);
    assert_eq!(retried(&[(EXTEND, unknown())], STEP - 1), [Rule::Early]);
    assert_eq!(retried(&[(EXTEND, CallVerdict::Extended), (FAIL, unknown())], 1100), []);
}

#[test]
fn no_task_is_dead_while_its_consumer_has_time() {
    let mut history = exhausted(None);
    history.lines[2].claimed_at = Some(FIRST + STEP + TTR - 1);
    assert_eq!(rules(&history), [Rule::Early]);
    call(&mut history, 2, FAIL, FIRST + STEP + 100, CallVerdict::Dying);
    history.lines[2].reason = Some("attempt 2 of 2 failed: no stock".to_owned());
    assert_eq!(rules(&history), []);
}

#[test]
fn a_task_that_is_given_up_has_had_its_chances() {
    let reasons = [
        "attempt 1 of 2 was not finished in its time to run",
        "attempt 3 of 3 was not finished in its time to run",
        "attempt 2 of 2 failed: no stock",
    ];
    for reason in reasons {
        let mut history = exhausted(None);
        history.lines[2].reason = Some(reason.to_owned());
        assert_eq!(rules(&history), [Rule::WrongDeadLetter], "{reason}");
    }
    let mut history = exhausted(None);
    call(&mut history, 2, FAIL, FIRST + STEP + 20, CallVerdict::Dying);
    assert_eq!(rules(&history), [Rule::WrongDeadLetter], "it has failed");
    history.lines[2].reason = None;
    assert!(rules(&history).contains(&Rule::WrongDeadLetter), "there is no dead letter");
    // A failure for good ends it early.
    let mut history = tracked(None);
    attempt(&mut history, 1, FIRST);
    call(&mut history, 1, FAIL_FOR_GOOD, FIRST + 50, CallVerdict::Dying);
    end(&mut history, "dead", FIRST + 60);
    history.lines[1].reason = Some("attempt 1 of 2 failed: poison".to_owned());
    assert_eq!(rules(&history), []);
    history.calls[0].kind = FAIL;
    assert!(rules(&history).contains(&Rule::WrongDeadLetter), "one attempt was left");
}

#[test]
fn the_record_of_a_dead_task_is_in_its_dead_topic_or_the_reason_says_why_not() {
    let history = exhausted(Some(DEAD));
    assert_eq!(rules(&history), [Rule::WrongDeadLetter], "it is not there");
    let mut history = exhausted(None);
    bury(&mut history, DEAD);
    assert!(rules(&history).contains(&Rule::WrongDeadLetter), "it has no dead topic");
    let mut history = exhausted(Some(DEAD));
    bury(&mut history, DEAD);
    history.lines[2].position = Some((0, 10));
    assert_eq!(rules(&history), [Rule::WrongDeadLetter], "it is elsewhere");
    let mut history = exhausted(Some(DELETED));
    let refused = format!("{SILENT}; the dead topic deleted did not take the record: gone");
    history.lines[2].reason = Some(refused);
    assert_eq!(rules(&history), [Rule::WrongDeadLetter], "nothing was done to the topic");
    history.topics[DELETED].absences.push((FIRST + STEP, FIRST + STEP + 2000));
    assert_eq!(rules(&history), []);
    let mut history = finished();
    history.submits[0].tracked.as_mut().expect("it is tracked").dead_topic = Some(DEAD);
    bury(&mut history, DEAD);
    history.lines[2].position = None;
    assert_eq!(rules(&history), [Rule::WrongDeadLetter], "it is finished");
}

#[test]
fn attempts_are_no_duplicates_and_the_same_attempt_twice_is_one() {
    let mut history = finished();
    let again = Arrival { at: FIRST + 500, offset: 77, ..history.records[0].clone() };
    history.records.push(again);
    assert_eq!(rules(&history), [Rule::Unattributed]);
    operation(&mut history, Kind::KillNode, FIRST + 100, FIRST + 400);
    assert_eq!(rules(&history), []);
}

#[test]
fn the_record_of_an_attempt_is_where_its_line_says_and_on_time() {
    let mut history = finished();
    history.lines[1].position = Some((0, 77));
    assert_eq!(rules(&history), [Rule::WrongReceipt]);
    let mut history = finished();
    history.lines[1].lateness = Some(16_000);
    assert_eq!(rules(&history), [Rule::Late]);
}

#[test]
fn the_records_of_tracked_tasks_and_no_others_are_numbered() {
    let mut history = finished();
    history.records[1].attempt = None;
    assert!(rules(&history).contains(&Rule::Changed));
    let mut history = history_of_untracked();
    history.records[0].attempt = Some(1);
    assert_eq!(rules(&history), [Rule::Changed]);
    let mut history = history_of_untracked();
    history.lines[0].state = "attempted".to_owned();
    assert!(rules(&history).contains(&Rule::WrongVerdict), "nobody answers for it");
}

fn history_of_untracked() -> History {
    let mut history = history();
    publish(&mut history, 1, STEADY);
    history
}

#[test]
fn a_submit_without_an_answer_has_its_wishes_all_the_same() {
    let mut history = finished();
    history.submits[0].outcome = Outcome::Unknown { why: "timeout".to_owned() };
    assert_eq!(rules(&history), []);
    history.records[1].at -= 1;
    (history.lines[1].published_at, history.lines[1].lateness) = (Some(FIRST + STEP - 1), Some(1));
    assert_eq!(rules(&history), [Rule::Early]);
}

#[test]
fn a_consumer_without_kafka_gets_what_is_in_the_topic_and_nothing_twice_without_a_cause() {
    let route = Route::Pop { partition: 0, offset: 1 };
    let (at, topic, id_of_task) = (FIRST + 20, STEADY, id(1));
    let delivered = Delivered { at, topic, id: id_of_task, attempt: 1, payload_hash: 1, route };
    let rules_of = |all: &[Delivered], fault: Option<Kind>| {
        let mut history = finished();
        history.delivered.extend(all);
        if let Some(kind) = fault {
            operation(&mut history, kind, FIRST + 5, FIRST + 10);
        }
        rules(&history)
    };
    let again = Delivered { at: FIRST + 60, ..delivered };
    let called = Delivered { route: Route::Callback, ..again };
    assert_eq!(rules_of(&[delivered, called], None), []);
    for twice in [[delivered, delivered], [delivered, again], [again, delivered], [called, called]]
    {
        assert_eq!(rules_of(&twice, None), [Rule::WrongDelivery], "{twice:?}");
        assert_eq!(rules_of(&twice, Some(Kind::EtcdKill)), [Rule::WrongDelivery], "{twice:?}");
        assert_eq!(rules_of(&twice, Some(Kind::KillNode)), [], "{twice:?}");
    }
    let elsewhere = Route::Pop { partition: 0, offset: 7 };
    for wrong in [
        Delivered { attempt: 3, ..called },
        Delivered { topic: DELETED, ..delivered },
        Delivered { route: elsewhere, ..delivered },
        Delivered { id: id(9), ..delivered },
        Delivered { payload_hash: 2, ..called },
    ] {
        assert_eq!(rules_of(&[wrong], None), [Rule::WrongDelivery], "{wrong:?}");
    }
}
