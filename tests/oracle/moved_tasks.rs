//! Tests the rules about moves, and about PUTs with conditions.

use super::history::{History, Move, MoveVerdict, Outcome, STEADY, Target, Verdict, When};
use super::oracle::Rule;
use super::{START, cancel, history, id, line, publish, record, rules, submit};

/// When the moves of these tests are sent.
const SENT: i64 = START + 3000;
const DUE: i64 = START + 5010;

/// Adds a move of task 1.
fn move_to(history: &mut History, due_at: i64, verdict: MoveVerdict) {
    history.moves.push(Move {
        node: 1,
        sent_at: SENT,
        answered_at: SENT + 10,
        id: id(1),
        due_at,
        verdict,
    });
}

/// Returns a history with a task that was accepted for `DUE` and published at another time, and
/// with a move to that time.
fn moved_to(due_at: i64, verdict: MoveVerdict) -> History {
    let mut history = history();
    history.submits.push(submit(1, STEADY, DUE));
    history.records.push(record(1, STEADY, due_at));
    history.lines.push(line(&history, 1, STEADY, due_at, "published"));
    move_to(&mut history, due_at, verdict);
    history
}

fn lost() -> MoveVerdict {
    MoveVerdict::Unknown { why: "timeout".to_owned() }
}

#[test]
fn a_moved_task_is_due_at_its_new_time() {
    for due_at in [DUE - 1000, DUE + 4000] {
        assert_eq!(rules(&moved_to(due_at, MoveVerdict::Moved { due_at })), []);
        let mut early = moved_to(due_at, MoveVerdict::Moved { due_at });
        early.records[0].at = due_at - 1;
        (early.lines[0].published_at, early.lines[0].lateness) = (Some(due_at - 1), Some(-1));
        assert_eq!(rules(&early), [Rule::Early]);
        for verdict in [MoveVerdict::TooLate, MoveVerdict::Refused { why: "busy".to_owned() }] {
            assert!(rules(&moved_to(due_at, verdict)).contains(&Rule::Changed), "it was not moved");
        }
    }
    let mut at_the_old_time = history();
    publish(&mut at_the_old_time, 1, STEADY);
    let due_at = DUE + 4000;
    move_to(&mut at_the_old_time, due_at, MoveVerdict::Moved { due_at });
    assert_eq!(rules(&at_the_old_time), [Rule::Early, Rule::Changed]);
}

#[test]
fn a_move_without_an_answer_counts_either_way() {
    assert_eq!(rules(&moved_to(DUE + 4000, lost())), []);
    let mut history = history();
    publish(&mut history, 1, STEADY);
    move_to(&mut history, DUE + 4000, lost());
    assert_eq!(rules(&history), []);
    history.records[0].due_header = Some(DUE + 3000);
    history.lines[0].due_at = DUE + 3000;
    assert!(rules(&history).contains(&Rule::Changed), "neither time");
    // The move without an answer may take effect after a later one that was answered.
    let mut late = moved_to(DUE + 4000, lost());
    move_to(&mut late, DUE + 2000, MoveVerdict::Moved { due_at: DUE + 2000 });
    (late.moves[1].sent_at, late.moves[1].answered_at) = (SENT + 100, SENT + 110);
    assert_eq!(rules(&late), []);
    late.moves[0].verdict = MoveVerdict::Moved { due_at: DUE + 4000 };
    assert!(rules(&late).contains(&Rule::Changed), "the last one that was answered counts");
}

#[test]
fn a_move_to_the_past_is_due_at_once() {
    let told = |due_at: i64| {
        let mut history = moved_to(due_at, MoveVerdict::Moved { due_at });
        history.moves[0].due_at = SENT - 500;
        rules(&history)
    };
    assert_eq!(told(SENT + 5), []);
    assert_eq!(told(SENT + 200), [Rule::Changed], "later than it was answered");
    assert!(told(SENT - 600).contains(&Rule::Changed), "before the requested time");
}

#[test]
fn a_move_that_is_too_late_leaves_the_task_and_is_not_before_the_window() {
    let mut history = history();
    publish(&mut history, 1, STEADY);
    move_to(&mut history, DUE + 4000, MoveVerdict::TooLate);
    assert_eq!(rules(&history), [Rule::WrongVerdict], "two seconds before it was due");
    (history.moves[0].sent_at, history.moves[0].answered_at) = (DUE - 150, DUE - 140);
    assert_eq!(rules(&history), []);
    history.moves[0].verdict = MoveVerdict::NotFound;
    assert_eq!(rules(&history), [Rule::WrongVerdict]);
    // The due time at the moment of the cancel counts.
    let mut moved = moved_to(DUE + 4000, MoveVerdict::Moved { due_at: DUE + 4000 });
    cancel(&mut moved, Target::Id(id(1)), Verdict::TooLate { id: None, receipt: None });
    assert_eq!(rules(&moved), [Rule::WrongVerdict], "it was due four seconds later");
    moved.moves[0].verdict = lost();
    assert_eq!(rules(&moved), []);
}

#[test]
fn a_task_that_was_cancelled_or_published_is_not_moved() {
    let mut history = moved_to(DUE + 4000, MoveVerdict::Moved { due_at: DUE + 4000 });
    history.records.clear();
    history.lines[0] = line(&history, 1, STEADY, DUE + 4000, "cancelled");
    cancel(&mut history, Target::Id(id(1)), Verdict::Cancelled { id: Some(id(1)) });
    assert_eq!(rules(&history), []);
    history.cancels[0].answered_at = SENT - 10;
    assert_eq!(rules(&history), [Rule::WrongVerdict]);
    let mut published = moved_to(DUE - 4000, MoveVerdict::Moved { due_at: DUE - 4000 });
    (published.submits[0].sent_at, published.submits[0].answered_at) = (START, START + 5);
    assert_eq!(rules(&published), [Rule::WrongVerdict], "a record was there before");
}

#[test]
fn a_put_replaces_what_its_condition_allows() {
    let put = |when: Option<When>, due_at: i64, outcome: fn(i64) -> Outcome| {
        let mut history = history();
        publish(&mut history, 1, STEADY);
        history.submits[0].name = Some("n".to_owned());
        let mut put = submit(2, STEADY, due_at);
        (put.is_put, put.when, put.name) = (true, when, Some("n".to_owned()));
        (put.sent_at, put.answered_at) = (SENT + 1500, SENT + 1510);
        put.outcome = outcome(due_at);
        if put.accepted().is_some() {
            history.records = vec![record(2, STEADY, due_at)];
            history.lines[0] = line(&history, 1, STEADY, DUE, "cancelled");
            history.lines.push(line(&history, 2, STEADY, due_at, "published"));
        }
        history.submits.push(put);
        rules(&history)
    };
    let replaced = |due_at| Outcome::Accepted { id: id(2), due_at, has_replaced: true };
    let kept = |_due_at| Outcome::Kept { id: id(1) };
    let wrong = [Rule::WrongVerdict];
    for (when, due_at, is_replaced) in [
        (None, DUE + 1000, true),
        (Some(When::Absent), DUE + 1000, false),
        (Some(When::Later), DUE + 1000, true),
        (Some(When::Later), DUE, false),
        (Some(When::Later), DUE - 300, false),
        (Some(When::Earlier), DUE + 1000, false),
        (Some(When::Earlier), DUE, false),
        (Some(When::Earlier), DUE - 300, true),
    ] {
        let what = format!("{when:?}, due at {due_at}");
        let (as_replaced, as_kept) = (put(when, due_at, replaced), put(when, due_at, kept));
        assert_eq!(as_replaced, if is_replaced { &[][..] } else { &wrong }, "{what}");
        assert_eq!(as_kept, if is_replaced { &wrong[..] } else { &[] }, "{what}");
    }
    assert_eq!(put(Some(When::Absent), DUE, |_| Outcome::Kept { id: id(9) }), wrong, "unknown");
}
