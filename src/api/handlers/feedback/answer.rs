//! The answers to the calls of consumers: each verdict with its status, in one table.

use serde::Serialize;

use crate::api::json::answers::{Shows, TaskJson};
use crate::api::problems::problem::Problem;
use crate::api::problems::problem_type::ProblemType;
use crate::domain::task::feedback::Verdict;
use crate::domain::{TaskState, TaskView};

/// The answer to a call that took effect, now or before.
#[derive(Debug)]
pub struct Heeded {
    pub verdict: &'static str,
    /// A record of the finished task may still reach its topic.
    pub in_flight: bool,
    /// Another attempt was made meanwhile.
    pub superseded: bool,
    pub task: Box<TaskView>,
    pub shows: Shows,
}

/// The same in JSON.
#[derive(Serialize)]
pub struct HeededJson<'a> {
    verdict: &'static str,
    in_flight: bool,
    superseded: bool,
    task: TaskJson<'a>,
}

impl Heeded {
    pub fn json(&self) -> HeededJson<'_> {
        let Self { verdict, in_flight, superseded, task, shows } = self;
        HeededJson {
            verdict,
            in_flight: *in_flight,
            superseded: *superseded,
            task: TaskJson::of_view(task, *shows),
        }
    }
}

/// Returns the answer for a verdict on a tracked task, which is shown as it is after the call.
pub fn of_verdict(verdict: Verdict, task: Box<TaskView>, shows: Shows) -> Result<Heeded, Problem> {
    use ProblemType as P;
    let attempt = task.tracked.as_ref().map_or(0, |tracked| tracked.attempt);
    let (refusal, detail) = match verdict {
        Verdict::Finished | Verdict::FinishedInFlight | Verdict::FinishedSuperseded => {
            return Ok(heeded("finished", verdict, task, shows));
        }
        Verdict::Noted => return Ok(heeded("noted", verdict, task, shows)),
        Verdict::Retrying | Verdict::RetryingAsBefore => {
            return Ok(heeded("retrying", verdict, task, shows));
        }
        Verdict::Dying => return Ok(heeded("dead", verdict, task, shows)),
        Verdict::Extended => return Ok(heeded("extended", verdict, task, shows)),
        Verdict::Busy => return Err(Problem::call_found_no_place()),
        Verdict::NotPublishedYet => {
            let detail = "no attempt of the task was published yet; to withdraw it, cancel it";
            ((P::NotPublishedYet, "not_published_yet"), detail.to_owned())
        }
        Verdict::AttemptTooHigh => (
            (P::AttemptTooHigh, "attempt_too_high"),
            format!("the last attempt that was published is number {attempt}"),
        ),
        Verdict::AttemptSuperseded => (
            (P::AttemptSuperseded, "attempt_superseded"),
            format!(
                "the time to run of this attempt was over; the last attempt that was published is \
                 number {attempt}, and only its consumer may fail or extend it"
            ),
        ),
        Verdict::AlreadyFailed => (
            (P::AlreadyFailed, "already_failed"),
            "the attempt has failed already, so it cannot be extended".to_owned(),
        ),
        Verdict::AlreadyFinished => {
            let detail = "its consumer has done the work, so no attempt is left to fail or extend";
            ((P::AlreadyFinished, "already_finished"), detail.to_owned())
        }
        Verdict::Dead if task.state == TaskState::Expired => {
            let detail = "the task has expired: no record of it was or will be published";
            ((P::Dead, "dead"), detail.to_owned())
        }
        Verdict::Dead if task.actors.dropped.is_some() => {
            let detail = "the task was a dead letter, and was dropped: no attempt can follow";
            ((P::Dead, "dead"), detail.to_owned())
        }
        Verdict::Dead => {
            let detail = "the task is a dead letter, or about to be one; a redrive makes further \
                          attempts";
            ((P::Dead, "dead"), detail.to_owned())
        }
        Verdict::Cancelled => ((P::Cancelled, "cancelled"), "the task is cancelled".to_owned()),
    };
    Err(Problem::call_refused(refusal, detail, *task, shows))
}

/// Returns the problem of a call for an untracked task.
pub fn not_tracked(task: Box<TaskView>, shows: Shows) -> Problem {
    let detail = "the task was submitted without ttr: it ends when it is published, and no \
                  consumer answers for it";
    let refusal = (ProblemType::NotTracked, "not_tracked");
    Problem::call_refused(refusal, detail.to_owned(), *task, shows)
}

fn heeded(name: &'static str, verdict: Verdict, task: Box<TaskView>, shows: Shows) -> Heeded {
    Heeded {
        verdict: name,
        in_flight: verdict == Verdict::FinishedInFlight || task.is_in_flight(),
        superseded: verdict == Verdict::FinishedSuperseded,
        task,
        shows,
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::domain::task::feedback::{Call, FIRST_IN_FLIGHT, Follow, Note, Place};
    use crate::domain::{
        Actors, Finished, RetryPolicy, Shard, TaskId, TaskState, Timestamp, TopicName, TrackedView,
        Tracking, Ttr,
    };

    const LAST: u16 = 3;
    const AWAITING_1: Follow = Follow { attempt: 1, ..FIRST_IN_FLIGHT };
    const FAILED_1: Follow = Follow { note: Some(Note::Failed), ..AWAITING_1 };

    /// The answer to a call: status, verdict and flags, and the problem if there is one.
    type Cell = (u16, &'static str, (bool, bool), Option<&'static str>);

    const fn ok(verdict: &'static str) -> Cell {
        (200, verdict, (false, false), None)
    }

    const IN_FLIGHT: Cell = (200, "finished", (true, false), None);
    const SUPERSEDED: Cell = (200, "finished", (false, true), None);

    const fn no(verdict: &'static str, slug: &'static str) -> Cell {
        (409, verdict, (false, false), Some(slug))
    }

    const NOT_PUBLISHED: Cell = no("not_published_yet", "not-published-yet");
    const TOO_HIGH: Cell = no("attempt_too_high", "attempt-too-high");
    const OUTDATED: Cell = no("attempt_superseded", "attempt-superseded");
    const FAILED: Cell = no("already_failed", "already-failed");
    const FINISHED: Cell = no("already_finished", "already-finished");
    const DEAD: Cell = no("dead", "dead");
    const CANCELLED: Cell = no("cancelled", "cancelled");

    fn view(in_flight: bool) -> Box<TaskView> {
        let (at, by) = (Timestamp::EPOCH, None);
        let ttr = Ttr::new(Duration::from_secs(1)).unwrap();
        let tracking = Tracking { ttr, retry: RetryPolicy::DEFAULT, dead_topic: None };
        Box::new(TaskView {
            id: TaskId::new(at, Shard::new(0), 1),
            topic: TopicName::new("orders").unwrap(),
            name: None,
            state: TaskState::Awaiting,
            replaced_by: None,
            attempt: 1,
            receipt: None,
            kept: None,
            reason: None,
            died_at: None,
            moved_to: None,
            requested_due_at: None,
            expires_at: None,
            actors: Actors::default(),
            tracked: Some(Box::new(TrackedView {
                tracking,
                attempt: 1,
                attempts_max: LAST,
                finish_by: None,
                next_at: None,
                finished: in_flight.then_some(Finished { at, by, in_flight }),
                attempts: Vec::new(),
            })),
        })
    }

    fn cell(verdict: Verdict, in_flight: bool) -> Cell {
        match of_verdict(verdict, view(in_flight), Shows::All) {
            Ok(Heeded { verdict, in_flight, superseded, .. }) => {
                (200, verdict, (in_flight, superseded), None)
            }
            Err(problem) => {
                let kind = problem.kind();
                let verdict = problem.verdict().unwrap_or_default();
                (kind.status().as_u16(), verdict, (false, false), Some(kind.slug()))
            }
        }
    }

    /// The table of verdicts, as callers see it: for each state finish, fail, and extend.
    #[test]
    fn each_cell_of_the_table_has_its_status_verdict_and_problem() {
        let finished = Follow { note: Some(Note::Finished), ..AWAITING_1 };
        let again = Follow { is_again: true, ..AWAITING_1 };
        let last = Follow { attempt: LAST, is_verdict: true, ..FIRST_IN_FLIGHT };
        let is_final = Follow { is_verdict: true, ..FAILED_1 };
        let awaiting_2 = Follow { attempt: 2, ..AWAITING_1 };
        let (pending, claimed) = (Place::Pending, Place::Claimed);
        let noted = ok("noted");
        let rows: [(&str, Follow, Place, u16, [Cell; 3]); 13] = [
            ("never sent", FIRST_IN_FLIGHT, pending, 1, [NOT_PUBLISHED; 3]),
            ("claimed", FIRST_IN_FLIGHT, claimed, 1, [IN_FLIGHT, noted, noted]),
            ("perhaps sent", again, pending, 1, [IN_FLIGHT, ok("retrying"), ok("extended")]),
            ("awaiting", AWAITING_1, pending, 1, [ok("finished"), ok("retrying"), ok("extended")]),
            (
                "awaiting the last",
                last,
                pending,
                LAST,
                [ok("finished"), ok("dead"), ok("extended")],
            ),
            ("failed", FAILED_1, pending, 1, [ok("finished"), ok("retrying"), FAILED]),
            ("verdict row claimed", last, claimed, LAST, [DEAD; 3]),
            ("final was said", is_final, pending, 1, [DEAD; 3]),
            ("attempt too high", AWAITING_1, pending, 2, [TOO_HIGH; 3]),
            ("next one claimed", AWAITING_1, claimed, 1, [SUPERSEDED, OUTDATED, OUTDATED]),
            ("next one published", awaiting_2, pending, 1, [SUPERSEDED, OUTDATED, OUTDATED]),
            ("finished", finished, pending, 1, [ok("finished"), FINISHED, FINISHED]),
            ("finished, claimed", finished, claimed, 1, [ok("finished"), FINISHED, FINISHED]),
        ];
        for (state, follow, place, attempt, wanted) in rows {
            let calls = [
                Call::Finish { attempt: Some(attempt) },
                Call::Fail { attempt, is_final: false },
                Call::Extend { attempt },
            ];
            let given = calls.map(|call| cell(follow.hear(call, place, LAST).0, false));
            assert_eq!(given, wanted, "{state}");
        }
        let call = Call::Fail { attempt: 1, is_final: true };
        assert_eq!(cell(AWAITING_1.hear(call, pending, LAST).0, false), ok("dead"));
        // The service decides these by a look-up.
        assert_eq!(cell(Verdict::Dead, false), DEAD);
        assert_eq!(cell(Verdict::Cancelled, false), CANCELLED);
        assert_eq!(cell(Verdict::Busy, false), (503, "", (false, false), Some("busy")));
        let problem = not_tracked(view(false), Shows::All);
        assert_eq!(
            (problem.kind(), problem.verdict()),
            (ProblemType::NotTracked, Some("not_tracked"))
        );
    }

    #[test]
    fn a_task_that_was_finished_in_flight_says_so_each_time() {
        for verdict in [Verdict::Finished, Verdict::FinishedInFlight] {
            assert_eq!(cell(verdict, true), IN_FLIGHT);
        }
        let (_, _, flags, _) = cell(Verdict::FinishedSuperseded, true);
        assert_eq!(flags, (true, true));
    }

    #[test]
    fn a_refusal_shows_the_task_as_far_as_its_caller_may_see_it() {
        let problem = of_verdict(Verdict::AttemptSuperseded, view(false), Shows::Metadata);
        let json = serde_json::to_value(problem.unwrap_err().json()).unwrap();
        assert_eq!(
            (&json["task"]["attempt"], &json["task"]["redacted"]),
            (&1.into(), &true.into())
        );
        assert!(json["detail"].as_str().unwrap().contains("number 1"), "{json}");
    }
}
