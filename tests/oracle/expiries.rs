//! Tests the rules about expiries.

use super::history::{Expiry, History, STEADY};
use super::oracle::{Rule, judge};
use super::plan::{Kind, Server};
use super::{START, history, line, operation, publish, rules, submit};

/// Adds a task that expires this long after its due time, and has expired. Returns its due time.
fn expire(history: &mut History, after: i64) -> i64 {
    let due_at = START + 5000;
    let expires_at = due_at + after;
    history.submits.push(submit(1, STEADY, due_at));
    history.submits[0].expires_at = Some(expires_at);
    let mut line = line(history, 1, STEADY, due_at, "expired");
    line.claimed_at = Some(expires_at + 10);
    line.expiry = Some(Expiry { expires_at, settled_at: expires_at + 50 });
    history.lines.push(line);
    due_at
}

/// Returns a history with a task that is published 2 ms after its due time and expires then.
fn published(after: i64) -> History {
    let mut history = history();
    let due_at = publish(&mut history, 1, STEADY);
    history.submits[0].expires_at = Some(due_at + after);
    history.records[0].expires_header = Some(due_at + after);
    history
}

fn append_at(history: &mut History, after_due: i64) {
    let due_at = history.lines[0].due_at;
    history.records[0].at = due_at + after_due;
    (history.lines[0].published_at, history.lines[0].lateness) =
        (Some(due_at + after_due), Some(after_due));
}

#[test]
fn a_task_with_an_expiry_ends_as_published_or_as_expired() {
    assert_eq!(rules(&published(500)), []);
    let mut history = history();
    expire(&mut history, 2000);
    assert_eq!(rules(&history), []);
    assert_eq!(judge(&history, false).counts.expired, 1);
    history.lines.push(history.lines[0].clone());
    assert_eq!(rules(&history), [Rule::EndedTwice]);
    history.lines.clear();
    assert_eq!(rules(&history), [Rule::Lost]);
}

#[test]
fn an_expired_task_has_an_expiry_which_was_reached_and_no_record() {
    let mut history = history();
    let due_at = expire(&mut history, 2000);
    history.submits[0].expires_at = None;
    assert_eq!(rules(&history), [Rule::WrongVerdict], "it has no expiry");
    history.submits[0].expires_at = Some(due_at + 2001);
    assert_eq!(rules(&history), [Rule::Changed], "another expiry");
    history.submits[0].expires_at = Some(due_at + 2000);
    history.lines[0].expiry = Some(Expiry { expires_at: due_at + 2000, settled_at: due_at + 1000 });
    assert_eq!(rules(&history), [Rule::WrongVerdict], "a second too early");
    history.lines[0].expiry = None;
    let record = super::record(1, STEADY, due_at);
    history.records.push(super::Arrival { expires_header: Some(due_at + 2000), ..record });
    assert_eq!(rules(&history), [Rule::WrongVerdict], "there is a record of it");
}

#[test]
fn no_record_is_handed_over_after_the_expiry() {
    let mut history = published(1000);
    for (after, broken) in [(6900, &[][..]), (8000, &[Rule::AfterExpiry])] {
        append_at(&mut history, after);
        assert_eq!(rules(&history), broken, "{after} ms after it was due");
    }
    let due_at = history.lines[0].due_at;
    operation(&mut history, Kind::PostgresStop, due_at, due_at + 7000);
    operation(&mut history, Kind::KillNode, due_at, due_at + 7000);
    assert_eq!(rules(&history), [Rule::AfterExpiry], "neither holds back what was handed over");
    operation(&mut history, Kind::Stall(Server::Postgres), due_at, due_at + 7000);
    assert_eq!(rules(&history), [Rule::AfterExpiry], "neither does a slow Postgres");
    for kind in [Kind::KafkaStop, Kind::Stall(Server::Kafka)] {
        history.spans.clear();
        operation(&mut history, kind, due_at, due_at + 7000);
        assert_eq!(rules(&history), [], "{}", kind.name());
    }
}

#[test]
fn the_header_has_the_expiry_that_was_asked_for() {
    for header in [None, Some(START)] {
        let mut history = published(1000);
        history.records[0].expires_header = header;
        assert_eq!(rules(&history), [Rule::Changed]);
    }
    let mut history = published(1000);
    history.submits[0].expires_at = None;
    assert_eq!(rules(&history), [Rule::Changed], "it has none");
}

#[test]
fn a_task_that_had_long_to_be_published_and_expired_was_late() {
    let mut history = history();
    let due_at = expire(&mut history, 40_000);
    assert_eq!(rules(&history), [Rule::Late]);
    operation(&mut history, Kind::PostgresStop, due_at + 5000, due_at + 20_000);
    assert_eq!(rules(&history), []);
    history.spans.clear();
    history.submits[0].answered_at = due_at + 30_000;
    assert_eq!(rules(&history), [], "it was submitted late");
}

#[test]
fn a_task_is_given_up_for_its_expiry_only_if_it_may_have_been_sent() {
    let mut history = history();
    let due_at = expire(&mut history, 2000);
    (history.lines[0].state, history.lines[0].expiry) = ("dead".to_owned(), None);
    let reason = "the task expired at 2026-11-26T12:00:00Z; it was not published again";
    history.lines[0].reason = Some(reason.to_owned());
    assert_eq!(rules(&history), [Rule::WrongDeadLetter], "nothing explains it");
    operation(&mut history, Kind::EtcdStop, due_at - 1000, due_at + 1000);
    assert_eq!(rules(&history), [Rule::WrongDeadLetter], "this sends nothing twice");
    operation(&mut history, Kind::KillNode, due_at - 1000, due_at + 1000);
    assert_eq!(rules(&history), []);
    history.submits[0].expires_at = None;
    assert_eq!(rules(&history), [Rule::WrongDeadLetter], "it has no expiry");
}
