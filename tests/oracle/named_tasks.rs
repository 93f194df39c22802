//! Tests the oracle on histories of requests about one name.

use super::history::{Outcome, STEADY};
use super::oracle::Rule;
use super::{START, history, id, line, record, rules, submit};

/// Checks requests of one name, in order: the answer to each, and the rules that it breaks.
fn named(requests: &[(bool, Outcome)], states: &[(u64, &str)]) -> Vec<Rule> {
    let mut history = history();
    for (index, (is_put, outcome)) in requests.iter().enumerate() {
        let number = index as u64 + 1;
        let mut submit = submit(number, STEADY, START + 5000);
        (submit.sent_at, submit.name, submit.is_put) =
            (START + index as i64, Some("order-1".to_owned()), *is_put);
        submit.outcome = outcome.clone();
        if matches!(outcome, Outcome::TooLate { .. }) {
            submit.answered_at = START + 5000;
        }
        history.submits.push(submit);
    }
    for (number, state) in states {
        history.lines.push(line(&history, *number, STEADY, START + 5000, state));
        if *state == "published" {
            history.records.push(record(*number, STEADY, START + 5000));
        }
    }
    rules(&history)
}

#[test]
fn a_name_stands_for_one_task_until_it_is_replaced() {
    let new = |number: u64| Outcome::Accepted {
        id: id(number),
        due_at: START + 5000,
        has_replaced: false,
    };
    let replaced = |number: u64| Outcome::Accepted {
        id: id(number),
        due_at: START + 5000,
        has_replaced: true,
    };
    let lost = || Outcome::Unknown { why: "timeout".to_owned() };
    assert_eq!(
        named(&[(false, new(1)), (false, Outcome::Known { id: id(1) })], &[(1, "published")]),
        []
    );
    assert_eq!(
        named(&[(false, new(1)), (true, replaced(2))], &[(1, "cancelled"), (2, "published")]),
        []
    );
    assert_eq!(
        named(&[(false, new(1)), (true, Outcome::TooLate { id: id(1) })], &[(1, "published")]),
        []
    );
    let wrong = [Rule::WrongVerdict];
    assert_eq!(
        named(&[(false, new(1)), (true, replaced(2))], &[(1, "published"), (2, "published")]),
        wrong
    );
    assert_eq!(
        named(&[(false, new(1)), (false, Outcome::Known { id: id(9) })], &[(1, "published")]),
        [Rule::WrongVerdict, Rule::Stranger]
    );
    assert_eq!(
        named(&[(false, new(1)), (false, new(2))], &[(1, "published"), (2, "published")]),
        [Rule::WrongVerdict, Rule::Stranger],
        "a POST made a second task"
    );
    assert_eq!(
        named(&[(false, lost()), (false, new(2))], &[(1, "published"), (2, "published")]),
        [Rule::Stranger],
        "the repetition of a submit without an answer made a second task"
    );
    assert_eq!(
        named(&[(true, lost()), (true, new(2))], &[(1, "cancelled"), (2, "published")]),
        [],
        "a PUT counts either way"
    );
}
