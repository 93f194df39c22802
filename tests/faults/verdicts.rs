//! Rule 4: the verdicts on cancels and late replacements are true.

use uuid::Uuid;

use super::history::{Cancel, Outcome, Target, Verdict};
use super::oracle::{Case, Rule, Traces};

/// The window of the cluster, plus the error of the nodes' clocks. No task is claimed before the
/// window, so no cancel is answered `too_late` before it.
const WINDOW_MS: i64 = 200 + 100;

impl<'a> Case<'a> {
    /// Checks all verdicts.
    pub(super) fn check_cancels(&mut self) {
        let history = self.history;
        for cancel in &history.cancels {
            self.check_cancel(cancel);
        }
        for put in &history.submits {
            if let Outcome::TooLate { id } = put.outcome
                && let Some(wrong) = self.check_in_time(id, (put.sent_at, put.answered_at))
            {
                self.add(Rule::WrongVerdict, Some(id), wrong);
            }
        }
    }

    /// A cancel requested before the window is in time.
    pub(super) fn check_in_time(&self, id: Uuid, during: (i64, i64)) -> Option<String> {
        let submit = self.tasks.get(&id)?.submit.filter(|submit| submit.accepted().is_some())?;
        let times = self.due_times_at(id, submit, during);
        let due_at = times.into_iter().map(|time| time.at).min()?;
        let before = due_at - self.history.clock.latest(during.1);
        (before > WINDOW_MS).then(|| format!("told `too_late` {before} ms before it was due"))
    }

    fn check_cancel(&mut self, cancel: &Cancel) {
        let target = match cancel.target {
            Target::Id(id) => Some(id),
            Target::Name(..) => None,
        };
        // A named task is cancelled by id only after a client was told of the replacement.
        let is_replaced = target
            .and_then(|id| self.tasks.get(&id)?.submit)
            .is_some_and(|submit| submit.name.is_some());
        let (id, wrong) = match &cancel.verdict {
            Verdict::Cancelled { .. } if is_replaced => (
                target,
                Some("told `cancelled`, and another task was put in its place before".to_owned()),
            ),
            Verdict::Replaced { id, by } => {
                let id = target.or(*id);
                (id, self.check_replaced(id, *by))
            }
            Verdict::Cancelled { id } => {
                let id = target.or(*id);
                (
                    id,
                    self.state_of(id)
                        .filter(|state| *state != "cancelled")
                        .map(|state| format!("told `cancelled`, and {state}")),
                )
            }
            Verdict::TooLate { id, receipt } => {
                let id = target.or(*id);
                let task = id.and_then(|id| self.tasks.get(&id));
                // A task that was deferred because it certainly never left may still be cancelled
                // by a later request.
                let is_cancelled = task
                    .is_some_and(|task| task.state() == Some("cancelled") && !task.was_deferred());
                let wrong = is_cancelled.then(|| "told `too_late`, and cancelled".to_owned());
                let during = (cancel.sent_at, cancel.answered_at);
                let wrong = wrong.or_else(|| id.and_then(|id| self.check_in_time(id, during)));
                (
                    id,
                    wrong.or_else(|| {
                        task.zip(*receipt)
                            .and_then(|(task, receipt)| self.check_told(task, receipt))
                    }),
                )
            }
            // Cancels by name are checked against the other requests of the name.
            Verdict::NotFound => {
                (target, target.map(|_| "told `not_found`, and it was accepted before".to_owned()))
            }
            Verdict::Refused { .. } | Verdict::Unknown { .. } => (None, None),
        };
        if let Some(wrong) = wrong {
            let rule =
                if wrong.contains("receipt") { Rule::WrongReceipt } else { Rule::WrongVerdict };
            self.add(rule, id, wrong);
        }
    }

    /// A replaced task is cancelled, and the task in its place has the same name.
    fn check_replaced(&self, id: Option<Uuid>, by: Option<Uuid>) -> Option<String> {
        let state = self.state_of(id);
        if state != Some("cancelled") {
            return Some(format!("told `replaced`, and {state:?}"));
        }
        let Some(by) = by.and_then(|by| self.tasks.get(&by)) else {
            // The task of a PUT without an answer, not published yet.
            let waits = by.is_some_and(|by| self.history.pending.contains_key(&by));
            return (!waits).then(|| format!("told `replaced` by {by:?}, which nobody knows"));
        };
        let name_of =
            |task: &Traces<'a>| task.submit.map(|submit| (submit.topic, submit.name.as_deref()));
        let former = id.and_then(|id| self.tasks.get(&id)).and_then(name_of);
        // After a PUT without an answer the name is unknown, unless its task was published.
        let is_other = name_of(by).zip(former).is_some_and(|(name, former)| name != former);
        is_other.then(|| format!("told `replaced` by a task of another name: {:?}", name_of(by)))
    }

    /// Checks a receipt that a cancel returned.
    fn check_told(&self, task: &Traces<'a>, receipt: (i32, i64)) -> Option<String> {
        let is_there =
            task.records.iter().any(|record| (record.partition, record.offset) == receipt);
        let is_unread = task
            .lines
            .iter()
            .any(|line| line.published_at.is_some_and(|at| self.may_be_unread(line, at)));
        (!is_there && !is_unread).then(|| format!("told a receipt, {receipt:?}, where it is not"))
    }

    fn state_of(&self, id: Option<Uuid>) -> Option<&'a str> {
        id.and_then(|id| self.tasks.get(&id)).and_then(Traces::state)
    }
}
