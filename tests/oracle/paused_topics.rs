//! Tests the rules about pauses and policies.

use super::history::{History, PAUSED, STEADY};
use super::oracle::Rule;
use super::plan::Kind;
use super::{history, operation, publish, rules};

/// Returns a history with a task that is due while its topic is paused, and published after it.
/// Also returns the begin and the end of the pause.
fn paused() -> (History, i64, i64) {
    let mut history = history();
    let due_at = publish(&mut history, 1, PAUSED);
    let (begin, end) = (due_at - 1000, due_at + 4000);
    history.topics[PAUSED].pauses.push((begin, end));
    operation(&mut history, Kind::Pause, begin, end);
    claim_at(&mut history, end + 50);
    append_at(&mut history, end + 60);
    (history, begin, end)
}

fn claim_at(history: &mut History, at: i64) {
    history.lines[0].claimed_at = Some(at);
}

fn append_at(history: &mut History, at: i64) {
    history.records[0].at = at;
    let late = at - history.lines[0].due_at;
    (history.lines[0].published_at, history.lines[0].lateness) = (Some(at), Some(late));
}

#[test]
fn no_task_of_a_paused_topic_is_claimed() {
    let (mut history, begin, end) = paused();
    assert_eq!(rules(&history), []);
    claim_at(&mut history, end - 1);
    assert_eq!(rules(&history), [Rule::WhilePaused]);
    claim_at(&mut history, begin + 1000);
    assert_eq!(rules(&history), [], "the claim had begun before");
    history.submits[0].topic = STEADY;
    history.records[0].topic = STEADY;
    history.lines[0].topic = Some(history.topics[STEADY].name.clone());
    claim_at(&mut history, end - 1);
    assert_eq!(rules(&history), [], "another topic");
}

#[test]
fn what_was_claimed_before_the_pause_goes_out_at_once() {
    let (mut history, begin, _) = paused();
    claim_at(&mut history, begin - 10);
    append_at(&mut history, begin + 2500);
    assert_eq!(rules(&history), []);
    append_at(&mut history, begin + 4500);
    assert_eq!(rules(&history), [Rule::WhilePaused]);
    operation(&mut history, Kind::KafkaStop, begin, begin + 3000);
    assert_eq!(rules(&history), [], "Kafka was away");
}

#[test]
fn a_pause_makes_no_other_topic_late() {
    let (mut history, _, end) = paused();
    append_at(&mut history, end + 14_000);
    claim_at(&mut history, end + 13_000);
    assert_eq!(rules(&history), []);
    history.submits[0].topic = STEADY;
    history.records[0].topic = STEADY;
    history.lines[0].topic = Some(history.topics[STEADY].name.clone());
    assert_eq!(rules(&history), [Rule::Late]);
}

#[test]
fn a_task_takes_the_expiry_of_its_topic() {
    let (mut history, _, _) = paused();
    history.topics[PAUSED].expire_after = Some(6000);
    assert_eq!(rules(&history), [Rule::Changed], "the record does not tell it");
    let due_at = history.lines[0].due_at;
    history.records[0].expires_header = Some(due_at + 6000);
    assert_eq!(rules(&history), []);
    history.submits[0].expires_at = Some(due_at + 7000);
    assert_eq!(rules(&history), [Rule::Changed], "that of the task wins");
    history.records[0].expires_header = Some(due_at + 7000);
    assert_eq!(rules(&history), []);
}
