//! Rule 20: a moved task is due at its new time, and the verdicts on moves are true. A move without
//! an answer may or may not have taken effect.

use uuid::Uuid;

use super::history::{Move, MoveVerdict, Outcome, Submit, Verdict};
use super::oracle::{Case, Rule};

/// The due time of a move without an answer, which counts from when a node has taken it, if that is
/// later. No request takes longer.
const TAKEN_MAX_MS: i64 = 20_000;

/// A time at which a task may be due.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct DueTime {
    pub(super) at: i64,
    is_exact: bool,
}

impl DueTime {
    const fn exactly(at: i64) -> Self {
        Self { at, is_exact: true }
    }

    fn may_be(self, due_at: i64) -> bool {
        let latest = if self.is_exact { self.at } else { self.at + TAKEN_MAX_MS };
        (self.at..=latest).contains(&due_at)
    }
}

impl Move {
    /// Returns true when the move has taken effect, or may have done so.
    pub(super) fn may_count(&self) -> bool {
        matches!(self.verdict, MoveVerdict::Moved { .. } | MoveVerdict::Unknown { .. })
    }
}

impl<'a> Case<'a> {
    /// Returns the times at which a task may be due in the end.
    pub(super) fn due_times(&self, id: Uuid, submit: &Submit) -> Vec<DueTime> {
        self.due_times_at(id, submit, (i64::MAX, i64::MAX))
    }

    /// Returns the times at which a task may be due between two moments.
    pub(super) fn due_times_at(
        &self,
        id: Uuid,
        submit: &Submit,
        (from, to): (i64, i64),
    ) -> Vec<DueTime> {
        let due_at = match submit.outcome {
            Outcome::Accepted { due_at, .. } => due_at,
            _ => submit.due_at,
        };
        let (mut times, mut unknown) = (vec![DueTime::exactly(due_at)], Vec::new());
        for one in self.moves_of(id).iter().filter(|one| one.sent_at <= to) {
            match one.verdict {
                MoveVerdict::Moved { due_at } => {
                    if one.answered_at <= from {
                        times.clone_from(&unknown);
                    }
                    // Tasks that are moved together to the past are due at once.
                    let is_exact =
                        due_at != one.due_at || due_at > self.history.clock.latest(one.answered_at);
                    times.push(DueTime { at: due_at, is_exact });
                }
                MoveVerdict::Unknown { .. } => {
                    let time = DueTime { at: one.due_at, is_exact: false };
                    unknown.push(time);
                    times.push(time);
                }
                _ => {}
            }
        }
        times
    }

    /// Returns true when a task may be due at this time in the end.
    pub(super) fn may_be_due(&self, id: Uuid, submit: &Submit, due_at: i64) -> bool {
        self.due_times(id, submit).into_iter().any(|time| time.may_be(due_at))
    }

    /// Returns when a task was submitted, or moved for the last time.
    pub(super) fn placed_at(&self, id: Uuid, submit: &Submit) -> i64 {
        let moves = self.moves_of(id).iter().filter(|one| one.may_count());
        moves.map(|one| one.answered_at).fold(submit.answered_at, i64::max)
    }

    fn moves_of(&self, id: Uuid) -> &[&'a Move] {
        self.moves.get(&id).map_or(&[], Vec::as_slice)
    }

    /// Checks the verdicts on moves.
    pub(super) fn check_moves(&mut self) {
        let history = self.history;
        for one in &history.moves {
            if let Some((rule, what)) = self.check_move(one) {
                self.add(rule, Some(one.id), what);
            }
        }
    }

    /// Returns true when a task may have been due at the time of a move before it.
    fn may_be_due_then(&self, one: &Move) -> bool {
        let during = (one.sent_at, one.answered_at);
        let submit = self.tasks.get(&one.id).and_then(|task| task.submit);
        submit.is_some_and(|submit| {
            self.due_times_at(one.id, submit, during).iter().any(|time| time.at == one.due_at)
        })
    }

    /// Returns true when a task expires before it would be due.
    fn would_expire(&self, one: &Move) -> bool {
        let submit = self.tasks.get(&one.id).and_then(|task| task.submit);
        submit.and_then(|submit| submit.expires_at).is_some_and(|at| at <= one.due_at)
    }

    fn check_move(&self, one: &Move) -> Option<(Rule, String)> {
        let wrong = |what: String| Some((Rule::WrongVerdict, what));
        let task = self.tasks.get(&one.id)?;
        match one.verdict {
            MoveVerdict::Moved { .. } if self.would_expire(one) => {
                wrong("told `moved`, and the task expires before it is due".to_owned())
            }
            MoveVerdict::Moved { due_at } => {
                let taken = self.history.clock.latest(one.answered_at);
                if due_at != one.due_at && !(one.due_at..=taken).contains(&due_at) {
                    let what = format!("asked to be due at {}, moved to {due_at}", one.due_at);
                    return Some((Rule::Changed, what));
                }
                let is_cancelled = self.history.cancels.iter().any(|cancel| {
                    matches!(cancel.verdict, Verdict::Cancelled { id } if id == Some(one.id))
                        && cancel.answered_at < one.sent_at
                });
                if is_cancelled {
                    return wrong("told `moved`, and `cancelled` before".to_owned());
                }
                let before = task.records.iter().find(|record| record.at < one.sent_at)?;
                wrong(format!("told `moved`, and a record was appended before: {before:?}"))
            }
            MoveVerdict::TooLate if task.state() == Some("cancelled") => None,
            // A request for several tasks does not count one that is due then already.
            MoveVerdict::TooLate if self.may_be_due_then(one) => None,
            // Nor does it count one that would expire.
            MoveVerdict::TooLate if self.would_expire(one) => None,
            MoveVerdict::TooLate => self
                .check_in_time(one.id, (one.sent_at, one.answered_at))
                .and_then(|what| wrong(format!("a move: {what}"))),
            MoveVerdict::NotFound => {
                wrong("a move was told `not_found`, and the task was accepted before".to_owned())
            }
            MoveVerdict::Refused { .. } | MoveVerdict::Unknown { .. } => None,
        }
    }
}
