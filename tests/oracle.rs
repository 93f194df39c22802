//! Tests the oracle of the fault runner on histories made by hand: one that keeps every promise,
//! and one for each broken promise. An oracle that cannot fail proves nothing.
#![expect(
    clippy::expect_used,
    clippy::as_conversions,
    reason = "a test ends where something is not as it should be"
)]

#[path = "faults/clock.rs"]
mod clock;
#[path = "oracle/clocks_and_quotas.rs"]
mod clocks_and_quotas;
#[path = "faults/counts.rs"]
mod counts;
#[path = "faults/deliveries.rs"]
mod deliveries;
#[path = "faults/door_history.rs"]
#[expect(dead_code, reason = "the runner shows the figures")]
mod door_history;
#[path = "faults/door_plan.rs"]
mod door_plan;
#[path = "faults/door_rules.rs"]
mod door_rules;
#[path = "oracle/doors.rs"]
mod doors;
#[path = "faults/duplicates.rs"]
mod duplicates;
#[path = "oracle/expiries.rs"]
mod expiries;
#[path = "faults/expiry.rs"]
mod expiry;
#[path = "faults/history.rs"]
#[expect(dead_code, reason = "the runner fills in and shows what the oracle does not look at")]
mod history;
#[path = "faults/lateness.rs"]
mod lateness;
#[path = "oracle/moved_tasks.rs"]
mod moved_tasks;
#[path = "faults/moves.rs"]
mod moves;
#[path = "oracle/named_tasks.rs"]
mod named_tasks;
#[path = "faults/names.rs"]
mod names;
#[path = "faults/oracle.rs"]
#[expect(dead_code, reason = "the runner shows more of what was found")]
mod oracle;
#[path = "oracle/paused_topics.rs"]
mod paused_topics;
#[path = "faults/pauses.rs"]
mod pauses;
#[path = "faults/plan.rs"]
mod plan;
#[path = "faults/plan_text.rs"]
mod plan_text;
#[path = "oracle/plans.rs"]
mod plans;
#[path = "faults/replicated_plan.rs"]
mod replicated_plan;
#[path = "oracle/replicated_servers.rs"]
mod replicated_servers;
#[path = "oracle/runs.rs"]
mod runs;
#[path = "faults/schedule_history.rs"]
mod schedule_history;
#[path = "faults/schedules.rs"]
mod schedules;
#[path = "oracle/services.rs"]
mod services;
#[path = "oracle/stakes.rs"]
mod stakes;
#[path = "faults/tracked.rs"]
mod tracked;
#[path = "oracle/tracked_tasks.rs"]
mod tracked_tasks;
#[path = "faults/verdicts.rs"]
mod verdicts;

use history::{
    Arrival, Cancel, DELETED, History, LIMITED, Line, Outcome, STEADY, Span, Submit, Target, Topic,
    UNAVAILABLE, Verdict,
};
use oracle::{Judgement, Rule, judge};
use plan::{Kind, Operation, STEPS_MAX, Server};
use uuid::Uuid;

const START: i64 = 1_000_000;
const END: i64 = START + 60_000;

/// Returns a history to which tests add complete, correct tasks. A test then spoils a part of it.
fn history() -> History {
    let names = "steady unavailable deleted limited paused scheduled served prompt dead by-sql \
                 by-record";
    let topic = |name: &str| Topic { name: name.to_owned(), ..Topic::default() };
    let topics = names.split(' ').map(topic).collect();
    History { topics, started_at: START, ended_at: END, ..History::default() }
}

fn id(number: u64) -> Uuid {
    Uuid::from_u128(u128::from(number))
}

fn submit(number: u64, topic: usize, due_at: i64) -> Submit {
    Submit {
        serial: number,
        node: 1,
        sent_at: due_at - 1000,
        answered_at: due_at - 990,
        topic,
        name: None,
        is_put: false,
        when: None,
        due_at,
        key: Some("k".to_owned()),
        payload_hash: number,
        size: 100,
        expires_at: None,
        tracked: None,
        outcome: Outcome::Accepted { id: id(number), due_at, has_replaced: false },
    }
}

fn record(number: u64, topic: usize, due_at: i64) -> Arrival {
    Arrival {
        id: id(number),
        topic,
        incarnation: 0,
        partition: 0,
        offset: number as i64,
        at: due_at + 2,
        key: Some(b"k".to_vec()),
        payload_hash: Some(number),
        serial: Some(number),
        due_header: Some(due_at),
        expires_header: None,
        attempt: None,
        run: None,
        is_dead_letter: false,
    }
}

fn line(history: &History, number: u64, topic: usize, due_at: i64, state: &str) -> Line {
    let is_published = state == "published";
    Line {
        id: id(number),
        topic: Some(history.topics[topic].name.clone()),
        due_at,
        state: state.to_owned(),
        published_at: is_published.then_some(due_at + 2),
        position: is_published.then_some((0, number as i64)),
        lateness: is_published.then_some(2),
        claimed_at: Some(due_at - 150),
        reason: None,
        expiry: None,
    }
}

/// Adds a task that was accepted and published. Returns its due time.
fn publish(history: &mut History, number: u64, topic: usize) -> i64 {
    let due_at = START + 5000 + number as i64 * 10;
    history.submits.push(submit(number, topic, due_at));
    history.records.push(record(number, topic, due_at));
    history.lines.push(line(history, number, topic, due_at, "published"));
    due_at
}

fn cancel(history: &mut History, target: Target, verdict: Verdict) {
    history.cancels.push(Cancel {
        node: 1,
        sent_at: START + 4850,
        answered_at: START + 4860,
        target,
        verdict,
    });
}

/// Adds a task that was accepted and cancelled.
fn withdraw(history: &mut History, number: u64) {
    let due_at = START + 5000 + number as i64 * 10;
    history.submits.push(submit(number, STEADY, due_at));
    history.lines.push(line(history, number, STEADY, due_at, "cancelled"));
    cancel(history, Target::Id(id(number)), Verdict::Cancelled { id: Some(id(number)) });
}

fn operation(history: &mut History, kind: Kind, begin: i64, end: i64) {
    history.spans.push(Span {
        operation: Operation { at: 0, kind, node: 0, lasts: 0, by: 0, steps: [0; STEPS_MAX] },
        begin,
        end,
    });
}

fn rules(history: &History) -> Vec<Rule> {
    let Judgement { violations, .. } = judge(history, false);
    let mut rules: Vec<Rule> = violations.iter().map(|violation| violation.rule).collect();
    rules.sort_unstable();
    rules.dedup();
    rules
}

#[test]
fn a_history_that_keeps_every_promise_is_found_so() {
    let mut history = history();
    (1..20).for_each(|number| _ = publish(&mut history, number, STEADY));
    (20..25).for_each(|number| withdraw(&mut history, number));
    let judgement = judge(&history, false);
    assert_eq!(judgement.violations, []);
    assert_eq!(
        (judgement.counts.published, judgement.counts.withdrawn, judgement.counts.records),
        (19, 5, 19)
    );
    assert_eq!(judgement.lateness_at(0.99), 2);
}

#[test]
fn a_task_without_a_final_line_or_without_the_record_of_its_receipt_is_lost() {
    let mut history = history();
    publish(&mut history, 1, STEADY);
    let lines = std::mem::take(&mut history.lines);
    assert_eq!(rules(&history), [Rule::Lost]);
    history.records.clear();
    assert_eq!(rules(&history), [Rule::Lost]);
    history.lines = lines;
    assert_eq!(rules(&history), [Rule::Lost], "its receipt says that it is in its topic");
    history.lines.clear();
    history.lines.push(line(&history, 1, STEADY, START + 5010, "claimed"));
    assert_eq!(rules(&history), [Rule::Lost], "an unsettled batch is not an end");
}

#[test]
fn a_task_that_waits_for_a_time_to_come_is_not_lost_and_one_that_waits_for_a_past_one_is() {
    let mut history = history();
    history.submits.push(submit(1, STEADY, END + 100_000));
    history.pending.insert(id(1), END + 100_000);
    assert_eq!(rules(&history), []);
    history.pending.insert(id(1), END - 10);
    assert_eq!(rules(&history), [Rule::Lost]);
}

#[test]
fn what_stood_in_a_deleted_topic_is_judged_by_its_receipt_and_nothing_else_is() {
    let mut history = history();
    let due_at = publish(&mut history, 1, DELETED);
    history.records.clear();
    history.topics[DELETED].absences.push((due_at + 1000, due_at + 5000));
    assert_eq!(rules(&history), []);
    assert_eq!(judge(&history, false).counts.by_receipt, 1);
    // There was enough time to read the record.
    history.topics[DELETED].absences = vec![(due_at + 30_000, due_at + 35_000)];
    assert_eq!(rules(&history), [Rule::Lost]);
    // Kafka was down for most of that time.
    operation(&mut history, Kind::KafkaKill, due_at + 1000, due_at + 17_000);
    assert_eq!(rules(&history), []);
    // The record was published after the topic was created again.
    history.topics[DELETED].absences = vec![(due_at - 5000, due_at - 1000)];
    assert_eq!(rules(&history), [Rule::Lost]);
}

#[test]
fn a_task_ends_once() {
    let mut history = history();
    let due_at = publish(&mut history, 1, STEADY);
    history.lines.push(line(&history, 1, STEADY, due_at, "published"));
    assert_eq!(rules(&history), [Rule::EndedTwice]);
    history.lines.pop();
    history.pending.insert(id(1), due_at);
    assert_eq!(rules(&history), [Rule::EndedTwice], "it has ended, and waits");
}

#[test]
fn a_record_before_its_due_time_is_early() {
    let mut history = history();
    let due_at = publish(&mut history, 1, STEADY);
    history.records[0].at = due_at - 1;
    (history.lines[0].published_at, history.lines[0].lateness) = (Some(due_at - 1), Some(-1));
    assert_eq!(rules(&history), [Rule::Early]);
}

#[test]
fn a_record_without_an_answered_submit_is_held_against_what_was_asked_for() {
    let mut history = history();
    let due_at = publish(&mut history, 1, STEADY);
    history.submits[0].outcome = Outcome::Unknown { why: "timeout".to_owned() };
    assert_eq!(rules(&history), []);
    assert_eq!(judge(&history, false).counts.unknown_stored, 1);
    history.records[0].at = due_at - 1;
    (history.lines[0].published_at, history.lines[0].lateness) = (Some(due_at - 1), Some(-1));
    assert_eq!(rules(&history), [Rule::Early]);
}

#[test]
fn a_record_with_another_payload_key_topic_or_due_time_is_changed() {
    let spoil: [fn(&mut Arrival); 4] = [
        |record| record.payload_hash = Some(0),
        |record| record.key = None,
        |record| record.topic = LIMITED,
        |record| record.due_header = Some(START),
    ];
    for spoil in spoil {
        let mut history = history();
        publish(&mut history, 1, STEADY);
        spoil(&mut history.records[0]);
        assert_eq!(rules(&history), [Rule::Changed]);
    }
}

#[test]
fn a_cancelled_task_has_no_record_and_was_asked_to_be() {
    let mut history = history();
    withdraw(&mut history, 1);
    history.records.push(record(1, STEADY, START + 5010));
    assert_eq!(rules(&history), [Rule::WrongVerdict]);
    history.records.clear();
    history.cancels.clear();
    assert_eq!(rules(&history), [Rule::WrongVerdict], "nobody has asked for it");
    cancel(&mut history, Target::Id(id(1)), Verdict::Unknown { why: "timeout".to_owned() });
    assert_eq!(rules(&history), [], "a cancel without an answer counts either way");
    history.cancels[0].verdict = Verdict::Refused { why: "busy".to_owned() };
    assert_eq!(rules(&history), [Rule::WrongVerdict], "a cancel that was refused has done nothing");
}

#[test]
fn a_verdict_that_is_not_what_became_of_the_task_is_wrong() {
    for verdict in [Verdict::Cancelled { id: None }, Verdict::NotFound] {
        let mut history = history();
        publish(&mut history, 1, STEADY);
        cancel(&mut history, Target::Id(id(1)), verdict);
        assert_eq!(rules(&history), [Rule::WrongVerdict]);
    }
    let mut history = history();
    withdraw(&mut history, 1);
    cancel(&mut history, Target::Id(id(1)), Verdict::TooLate { id: None, receipt: None });
    assert_eq!(rules(&history), [Rule::WrongVerdict], "told `too_late`, and cancelled");
}

/// Returns a history of two tasks with one name. The second replaced the first, and the first was
/// cancelled by its id.
fn replaced(verdict: Verdict) -> History {
    let mut history = history();
    withdraw(&mut history, 1);
    history.cancels.clear();
    publish(&mut history, 2, STEADY);
    for submit in &mut history.submits {
        submit.name = Some("n".to_owned());
    }
    (history.submits[1].is_put, history.submits[1].outcome) = (
        true,
        Outcome::Accepted { id: id(2), due_at: history.submits[1].due_at, has_replaced: true },
    );
    cancel(&mut history, Target::Id(id(1)), verdict);
    history
}

#[test]
fn a_task_that_was_replaced_is_cancelled_and_its_verdict_names_a_task_of_its_name() {
    let told = |by: Option<u64>| replaced(Verdict::Replaced { id: Some(id(1)), by: by.map(id) });
    assert_eq!(rules(&told(Some(2))), []);
    for by in [None, Some(3)] {
        assert_eq!(rules(&told(by)), [Rule::WrongVerdict], "nobody knows it");
    }
    let mut other = told(Some(2));
    other.submits[1].name = Some("other".to_owned());
    assert!(rules(&other).contains(&Rule::WrongVerdict), "a task of another name");
    let cancelled = replaced(Verdict::Cancelled { id: Some(id(1)) });
    assert_eq!(
        rules(&cancelled),
        [Rule::WrongVerdict],
        "told `cancelled`, and another one stands in its place"
    );
    let mut history = history();
    publish(&mut history, 1, STEADY);
    cancel(&mut history, Target::Id(id(1)), Verdict::Replaced { id: None, by: Some(id(1)) });
    assert_eq!(rules(&history), [Rule::WrongVerdict], "told `replaced`, and published");
}

#[test]
fn nobody_is_told_too_late_before_the_window() {
    let mut history = history();
    publish(&mut history, 1, STEADY);
    cancel(&mut history, Target::Id(id(1)), Verdict::TooLate { id: None, receipt: None });
    let due_at = history.lines[0].due_at;
    history.cancels[0].answered_at = due_at - 150;
    assert_eq!(rules(&history), []);
    history.cancels[0].answered_at = due_at - 400;
    assert_eq!(rules(&history), [Rule::WrongVerdict]);
}

#[test]
fn a_receipt_says_where_the_record_is_and_when_it_came() {
    let spoil: [fn(&mut Line); 4] = [
        |line| line.position = Some((1, 77)),
        |line| line.position = None,
        |line| line.published_at = Some(START),
        |line| line.lateness = Some(0),
    ];
    for spoil in spoil {
        let mut history = history();
        publish(&mut history, 1, STEADY);
        spoil(&mut history.lines[0]);
        assert_eq!(rules(&history), [Rule::WrongReceipt]);
    }
    let mut history = history();
    publish(&mut history, 1, STEADY);
    cancel(&mut history, Target::Id(id(1)), Verdict::TooLate { id: None, receipt: Some((0, 1)) });
    assert_eq!(rules(&history), []);
    cancel(&mut history, Target::Id(id(1)), Verdict::TooLate { id: None, receipt: Some((0, 2)) });
    assert_eq!(rules(&history), [Rule::WrongReceipt], "the receipt that a cancel was told");
}

#[test]
fn a_receipt_may_be_of_a_record_at_the_same_place_of_another_incarnation() {
    let mut history = history();
    let due_at = publish(&mut history, 1, DELETED);
    let (from, to) = (due_at + 30_000, due_at + 35_000);
    history.topics[DELETED].absences.push((from, to));
    operation(&mut history, Kind::TopicDeleted, from, to);
    let again = Arrival { incarnation: 1, at: to + 500, ..history.records[0].clone() };
    (history.lines[0].published_at, history.lines[0].lateness) =
        (Some(again.at), Some(again.at - due_at));
    history.records.push(again);
    assert_eq!(rules(&history), []);
    history.lines[0].lateness = Some(0);
    assert_eq!(rules(&history), [Rule::WrongReceipt]);
}

#[test]
fn a_receipt_without_an_offset_is_none_also_in_a_topic_that_was_deleted() {
    let mut history = history();
    let due_at = publish(&mut history, 1, DELETED);
    history.topics[DELETED].absences.push((due_at + 1000, due_at + 5000));
    history.lines[0].position = Some((0, -1001));
    assert_eq!(rules(&history), [Rule::WrongReceipt]);
    history.records.clear();
    assert_eq!(rules(&history), [Rule::Lost]);
}

#[test]
fn what_nobody_has_asked_for_or_was_refused_is_a_stranger() {
    let mut history = history();
    publish(&mut history, 1, STEADY);
    history.submits[0].outcome = Outcome::Refused { why: "unavailable".to_owned() };
    assert_eq!(rules(&history), [Rule::Stranger], "nothing is stored, it was said");
    history.submits.clear();
    assert_eq!(rules(&history), [Rule::Stranger]);
    history.records.clear();
    history.lines[0].state = "dead".to_owned();
    assert!(rules(&history).contains(&Rule::Stranger));
}

#[test]
fn a_submit_is_stored_once() {
    let mut history = history();
    let due_at = publish(&mut history, 1, STEADY);
    let mut twin = record(2, STEADY, due_at);
    (twin.serial, twin.payload_hash) = (Some(1), Some(1));
    history.records.push(twin);
    history.lines.push(line(&history, 2, STEADY, due_at, "published"));
    assert_eq!(rules(&history), [Rule::Stranger]);
}

#[test]
fn a_duplicate_needs_an_operation_that_can_explain_it() {
    let mut history = history();
    let due_at = publish(&mut history, 1, STEADY);
    let mut again = record(1, STEADY, due_at);
    (again.at, again.offset) = (due_at + 3000, 500);
    history.records.push(again);
    assert_eq!(rules(&history), [Rule::Unattributed]);
    for kind in Kind::all() {
        history.spans.clear();
        operation(&mut history, kind, due_at + 1000, due_at + 1500);
        let is_explained = kind.may_duplicate()
            && !matches!(kind, Kind::TopicDeleted | Kind::TopicUnavailable | Kind::TopicLimit);
        assert_eq!(rules(&history).is_empty(), is_explained, "{}", kind.name());
    }
    for server in [Server::Postgres, Server::Kafka] {
        history.spans.clear();
        operation(&mut history, Kind::Stall(server), due_at + 1000, due_at + 2500);
        assert_eq!(rules(&history), [], "a stall of {server:?}");
    }
    history.spans.clear();
    operation(&mut history, Kind::KillNode, due_at + 4000, due_at + 6000);
    assert_eq!(rules(&history), [Rule::Unattributed], "it began after the second record");
    history.spans.clear();
    operation(&mut history, Kind::KillNode, due_at - 9000, due_at - 4000);
    assert_eq!(rules(&history), [Rule::Unattributed], "it was over long before the first");
}

#[test]
fn what_was_done_to_a_topic_explains_duplicates_of_that_topic_alone() {
    let operations = [(Kind::TopicUnavailable, UNAVAILABLE), (Kind::TopicLimit, LIMITED)];
    for (kind, topic, is_explained) in
        operations.into_iter().flat_map(|(kind, own)| [(kind, own, true), (kind, STEADY, false)])
    {
        let mut history = history();
        let due_at = publish(&mut history, 1, topic);
        let mut again = record(1, topic, due_at);
        (again.at, again.offset) = (due_at + 3000, 500);
        history.records.push(again);
        operation(&mut history, kind, due_at, due_at + 2000);
        assert_eq!(rules(&history).is_empty(), is_explained, "{}", kind.name());
    }
}

#[test]
fn a_dead_letter_needs_a_topic_that_was_deleted_or_lowered_its_limit() {
    let mut history = history();
    let due_at = START + 5000;
    for (number, topic) in [(1, STEADY), (2, DELETED), (3, LIMITED)] {
        history.submits.push(submit(number, topic, due_at));
        history.lines.push(line(&history, number, topic, due_at, "dead"));
    }
    assert_eq!(judge(&history, false).count_of(Rule::WrongDeadLetter), 3);
    history.topics[DELETED].absences.push((START, START + 4000));
    history.topics[LIMITED].limits.push((START, START + 4000));
    assert_eq!(
        judge(&history, false).count_of(Rule::WrongDeadLetter),
        2,
        "a small record is within every limit"
    );
    history.submits[2].size = 3000;
    assert_eq!(
        judge(&history, false).count_of(Rule::WrongDeadLetter),
        1,
        "nothing was done to the steady topic"
    );
}

#[test]
fn what_no_request_should_be_answered_is_told() {
    let mut history = history();
    history.oddities.push("500".to_owned());
    assert_eq!(rules(&history), [Rule::WrongAnswer]);
}
