//! Turns the answer to a bulk submit into an outcome for each line. Pure, so a table of answers
//! tests it.

use std::time::Duration;

use serde::Deserialize;
use serde_json::value::RawValue;

use super::difference::DifferingMember;
use super::line::TaskLine;
use crate::client::answer::{Ending, Exit, NodeAnswer, NodeProblem};

/// A line in flight.
#[derive(PartialEq, Eq, Debug)]
pub struct Pending {
    pub line: TaskLine,
    /// True once an attempt failed in a way that leaves open whether the task was stored.
    pub may_be_stored: bool,
}

/// The final outcome of a line.
#[derive(Debug)]
pub struct SettledLine {
    pub number: u64,
    pub outcome: LineOutcome,
}

#[derive(Debug)]
pub enum LineOutcome {
    /// The new task.
    Accepted(Box<RawValue>),
    /// The line is already stored: its name stands for this task.
    Known(Box<RawValue>),
    /// The line is not stored: the task of its name differs in these members.
    Differs(Box<RawValue>, Vec<DifferingMember>),
    Refused(RefusedLine),
    /// The task may be stored.
    Unknown,
    NotSubmitted,
}

#[derive(PartialEq, Eq, Debug)]
pub struct RefusedLine {
    pub status: u16,
    /// The message for people.
    pub text: String,
    /// The problem as JSON (RFC 9457).
    pub problem: serde_json::Value,
}

/// The result of one attempt.
#[derive(Debug, Default)]
pub struct Round {
    pub settled: Vec<SettledLine>,
    /// Lines with the earlier tasks of the same names, for the caller to compare.
    pub known: Vec<(TaskLine, Box<RawValue>)>,
    pub next: NextAttempt,
}

#[derive(Debug, Default)]
pub enum NextAttempt {
    #[default]
    Done,
    /// The batch is too large, or one line spoils the others: send each half separately.
    Split(Vec<Pending>),
    Again(Again),
    /// The server does not accept bulk submits, and a retry would not help.
    GiveUp(Vec<Pending>, Ending),
}

/// Lines that a later attempt may settle.
#[derive(Debug)]
pub struct Again {
    pub lines: Vec<Pending>,
    /// The error to report when no later attempt succeeds.
    pub why: Ending,
    pub retry_after: Option<Duration>,
    /// True when the attempt got no answer at all.
    pub is_unanswered: bool,
}

#[derive(Deserialize)]
struct BatchAnswer {
    results: Vec<ResultItem>,
}

#[derive(Deserialize)]
struct ResultItem {
    status: u16,
    task: Option<Box<RawValue>>,
    problem: Option<Box<RawValue>>,
}

/// Sorts the lines of a batch by the answer.
pub fn judge(asked: Result<NodeAnswer, Ending>, lines: Vec<Pending>) -> Round {
    let unsettled = |next| Round { next, ..Round::default() };
    let answer = match asked {
        Ok(answer) => answer,
        Err(why) if matches!(why.exit, Exit::NothingDone | Exit::Unknown) => {
            return unsettled(again(lines, why, None));
        }
        Err(ending) => return unsettled(NextAttempt::GiveUp(lines, ending)),
    };
    if let Some(problem) = answer.problem() {
        return judge_whole(&problem, &answer, lines);
    }
    match answer.read::<BatchAnswer>() {
        Ok(batch) if batch.results.len() == lines.len() => judge_each(batch.results, lines),
        Ok(batch) => {
            let text = format!(
                "{} tasks were sent, but {} were answered; is this the URL of a node?",
                lines.len(),
                batch.results.len()
            );
            unsettled(NextAttempt::GiveUp(spoiled(lines), Ending::new(Exit::Unknown, text)))
        }
        Err(ending) => unsettled(NextAttempt::GiveUp(spoiled(lines), ending)),
    }
}

fn spoiled(lines: Vec<Pending>) -> Vec<Pending> {
    lines.into_iter().map(|pending| Pending { may_be_stored: true, ..pending }).collect()
}

fn again(lines: Vec<Pending>, why: Ending, retry_after: Option<Duration>) -> NextAttempt {
    let is_unanswered = why.exit == Exit::Unknown;
    let lines = if is_unanswered { spoiled(lines) } else { lines };
    NextAttempt::Again(Again { lines, why, retry_after, is_unanswered })
}

/// Handles an answer that rejects the batch as a whole.
fn judge_whole(problem: &NodeProblem, answer: &NodeAnswer, mut lines: Vec<Pending>) -> Round {
    let exit = problem.exit();
    if matches!(exit, Exit::NothingDone | Exit::Unknown) {
        return Round {
            next: again(lines, problem.ending(), answer.retry_after),
            ..Round::default()
        };
    }
    if !matches!(answer.status, 400 | 413 | 422) {
        return Round { next: NextAttempt::GiveUp(lines, problem.ending()), ..Round::default() };
    }
    if lines.len() > 1 {
        return Round { next: NextAttempt::Split(lines), ..Round::default() };
    }
    let refused = |pending: Pending| SettledLine {
        number: pending.line.number,
        outcome: LineOutcome::Refused(refused(answer.status, problem, &answer.text)),
    };
    Round { settled: lines.pop().map(refused).into_iter().collect(), ..Round::default() }
}

fn judge_each(results: Vec<ResultItem>, lines: Vec<Pending>) -> Round {
    let mut settled = Vec::with_capacity(lines.len());
    let (mut known, mut left) = (Vec::new(), Vec::new());
    let mut why: Option<(Ending, Option<Duration>)> = None;
    for (item, mut pending) in results.into_iter().zip(lines) {
        let number = pending.line.number;
        let outcome = match (item.status, item.task) {
            (201, Some(task)) => LineOutcome::Accepted(task),
            // Perhaps an earlier attempt without an answer has stored this task.
            (200, Some(task)) => {
                known.push((pending.line, task));
                continue;
            }
            (status, _) => {
                let text = item.problem.as_deref().map_or("{}", RawValue::get);
                let problem = NodeAnswer {
                    status,
                    retry_after: None,
                    has_token: false,
                    text: text.to_owned(),
                }
                .problem()
                .unwrap_or_default();
                if let exit @ (Exit::NothingDone | Exit::Unknown) = problem.exit() {
                    pending.may_be_stored |= exit == Exit::Unknown;
                    let wait = problem.retry_after.map(Duration::from_secs);
                    why = Some((problem.ending(), why.and_then(|(_, longest)| longest).max(wait)));
                    left.push(pending);
                    continue;
                }
                LineOutcome::Refused(refused(status, &problem, text))
            }
        };
        settled.push(SettledLine { number, outcome });
    }
    let next = match why {
        None => NextAttempt::Done,
        Some((why, retry_after)) => {
            NextAttempt::Again(Again { lines: left, why, retry_after, is_unanswered: false })
        }
    };
    Round { settled, known, next }
}

/// Rewrites a refusal for a file of lines: the line's position in its batch means little to the
/// user.
fn refused(status: u16, problem: &NodeProblem, text: &str) -> RefusedLine {
    let mut json = serde_json::from_str(text)
        .unwrap_or_else(|_not_ours| serde_json::json!({ "detail": problem.detail }));
    let field = problem.field.as_deref().and_then(field_of_task);
    if let Some(object) = json.as_object_mut() {
        object.remove("field");
        if let Some(field) = &field {
            object.insert("field".to_owned(), serde_json::Value::from(field.as_str()));
        }
    }
    RefusedLine { status, text: problem.line(field.as_deref()), problem: json }
}

/// Returns the field within the task: `tasks[3].due_at` is `due_at`. The task itself is no field.
fn field_of_task(field: &str) -> Option<String> {
    match field.strip_prefix("tasks[").and_then(|rest| rest.split_once(']')) {
        Some((_, rest)) => rest.strip_prefix('.').map(str::to_owned),
        None => Some(field.to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lines(numbers: std::ops::Range<u64>) -> Vec<Pending> {
        numbers
            .map(|number| Pending {
                line: TaskLine { number, json: "{}".to_owned() },
                may_be_stored: false,
            })
            .collect()
    }

    fn answer(status: u16, text: &str) -> Result<NodeAnswer, Ending> {
        Ok(NodeAnswer {
            status,
            retry_after: Some(Duration::from_secs(3)),
            has_token: false,
            text: text.to_owned(),
        })
    }

    fn numbers(lines: &[Pending]) -> Vec<(u64, bool)> {
        lines.iter().map(|pending| (pending.line.number, pending.may_be_stored)).collect()
    }

    #[test]
    fn each_line_is_judged_by_its_own_result() {
        let text = r#"{"results":[
            {"status":201,"task":{"id":"a"}}, {"status":200,"task":{"id":"b"}},
            {"status":422,"problem":{"type":"urn:punctual:problem:unknown-topic","title":"T",
              "detail":"D","field":"tasks[2].topic"}},
            {"status":503,"problem":{"type":"urn:punctual:problem:busy","title":"B",
              "detail":"nothing was done","retry_after":2}},
            {"status":503,"problem":{"type":"urn:punctual:problem:outcome-unknown","title":"U",
              "detail":"who knows"}}]}"#;
        let round = judge(answer(200, text), lines(11..16));
        let outcomes: Vec<_> =
            round.settled.iter().map(|settled| (settled.number, &settled.outcome)).collect();
        assert!(
            matches!(
                outcomes[..],
                [
                    (11, LineOutcome::Accepted(_)),
                    (13, LineOutcome::Refused(RefusedLine { status: 422, .. }))
                ]
            ),
            "{outcomes:?}"
        );
        assert_eq!(round.known.iter().map(|(line, _)| line.number).collect::<Vec<_>>(), [12]);
        let LineOutcome::Refused(refused) = &round.settled[1].outcome else {
            panic!("not refused")
        };
        assert_eq!(
            (refused.text.as_str(), refused.problem["field"].as_str()),
            ("T (topic): D", Some("topic"))
        );
        let NextAttempt::Again(again) = round.next else { panic!("{:?}", round.next) };
        assert_eq!(numbers(&again.lines), [(14, false), (15, true)]);
        assert_eq!(again.retry_after, Some(Duration::from_secs(2)));
    }

    #[test]
    fn what_was_not_answered_or_not_done_is_sent_again() {
        let unavailable = r#"{"type":"urn:punctual:problem:unavailable","detail":"d"}"#;
        for (asked, may_be_stored) in [
            (Err(Ending::new(Exit::NothingDone, "refused")), false),
            (Err(Ending::new(Exit::Unknown, "broken off")), true),
            (answer(503, unavailable), false),
            (answer(429, "{}"), false),
            (answer(503, r#"{"type":"urn:punctual:problem:outcome-unknown"}"#), true),
            (answer(500, "a proxy's page"), true),
            (answer(504, ""), true),
        ] {
            let shown = format!("{asked:?}");
            let NextAttempt::Again(again) = judge(asked, lines(1..3)).next else {
                panic!("{shown}")
            };
            assert_eq!(numbers(&again.lines), [(1, may_be_stored), (2, may_be_stored)], "{shown}");
        }
    }

    #[test]
    fn a_batch_that_is_not_taken_whole_is_halved_down_to_the_line() {
        let too_large = concat!(
            r#"{"type":"urn:punctual:problem:body-too-large","title":"The body is too large","#,
            r#""detail":"d"}"#,
        );
        assert!(matches!(
            judge(answer(413, too_large), lines(1..3)).next,
            NextAttempt::Split(lines) if lines.len() == 2
        ));
        let round = judge(answer(413, too_large), lines(5..6));
        assert!(matches!(round.next, NextAttempt::Done));
        assert!(matches!(
            &round.settled[..],
            [SettledLine {
                number: 5,
                outcome: LineOutcome::Refused(RefusedLine { status: 413, .. })
            }]
        ));
    }

    #[test]
    fn who_does_not_answer_as_a_node_does_is_not_asked_again() {
        for asked in [
            answer(404, "{}"),
            answer(401, ""),
            answer(200, "<html>"),
            answer(200, r#"{"results":[]}"#),
        ] {
            let shown = format!("{asked:?}");
            assert!(
                matches!(
                    judge(asked, lines(1..3)).next,
                    NextAttempt::GiveUp(lines, _) if lines.len() == 2
                ),
                "{shown}"
            );
        }
    }

    #[test]
    fn what_a_lost_answer_may_have_stored_is_compared() {
        let in_doubt = vec![Pending { may_be_stored: true, ..lines(1..2).pop().unwrap() }];
        let round =
            judge(answer(200, r#"{"results":[{"status":200,"task":{"id":"a"}}]}"#), in_doubt);
        let numbers: Vec<u64> = round.known.iter().map(|(line, _)| line.number).collect();
        assert_eq!((numbers, round.settled.len()), (vec![1], 0));
    }

    #[test]
    fn a_line_stays_in_doubt_until_it_is_settled() {
        let in_doubt = vec![Pending { may_be_stored: true, ..lines(1..2).pop().unwrap() }];
        let NextAttempt::Again(again) =
            judge(Err(Ending::new(Exit::NothingDone, "away")), in_doubt).next
        else {
            panic!("again")
        };
        assert_eq!(numbers(&again.lines), [(1, true)]);
    }
}
