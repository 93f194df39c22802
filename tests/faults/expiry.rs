//! Rule 19: no record of a task is handed over after its expiry. An expired task was never sent. A
//! late task that may have been sent is a dead letter.

use uuid::Uuid;

use super::duplicates::may_be_sent_twice;
use super::history::{Line, Submit};
use super::lateness;
use super::oracle::{Case, Rule, Traces};

/// A record that a Kafka client has got before the expiry is appended within this time, unless an
/// operation holds it back. With three brokers on two cores, 3.9 s were seen.
const UNDER_WAY_MAX_MS: i64 = 6000;
/// A node's upper bound of Postgres's clock may be ahead of it by this much.
const AHEAD_MAX_MS: i64 = 500;

impl<'a> Case<'a> {
    /// Checks the records of a task against its expiry.
    pub(super) fn check_expiry(&mut self, id: Uuid, task: &Traces<'a>) {
        let Some(submit) = task.submit else { return };
        // The record of a dead task has no expiry any more.
        for record in task.records.iter().filter(|record| !record.is_dead_letter) {
            let expires_at = record.due_header.and_then(|due_at| self.expiry_of(submit, due_at));
            if record.expires_header != expires_at {
                let what = format!("expires at {expires_at:?}, arrived as {record:?}");
                self.add(Rule::Changed, Some(id), what);
            }
            let Some(expires_at) = expires_at else { continue };
            let after = self.history.clock.known_at(record.at) - expires_at;
            let wait = (record.at - after, record.at);
            let unexplained = lateness::not_held_back(&self.history.spans, wait);
            if unexplained > UNDER_WAY_MAX_MS {
                let what = format!(
                    "expired at {expires_at}, appended {after} ms later, and nothing explains \
                     {unexplained} ms of it"
                );
                self.add(Rule::AfterExpiry, Some(id), what);
            }
        }
    }

    /// Returns from when on a task that is due then is not published.
    pub(super) fn expiry_of(&self, submit: &Submit, due_at: i64) -> Option<i64> {
        let after = self.history.topics[submit.topic].expire_after;
        submit.expires_at.or_else(|| Some(due_at + after?))
    }

    /// An expired task has an expiry that was reached, and no record.
    pub(super) fn check_expired(&mut self, id: Uuid, task: &Traces<'a>, line: &Line) {
        if let Some(record) = task.records.first() {
            let what = format!("expired, and there is a record of it: {record:?}");
            self.add(Rule::WrongVerdict, Some(id), what);
        }
        // A submit without an answer and without a record is not known.
        let Some(submit) = task.submit else { return };
        let Some(expires_at) = self.expiry_of(submit, line.due_at) else {
            self.add(Rule::WrongVerdict, Some(id), "expired, and it has no expiry".to_owned());
            return;
        };
        if let Some(end) = line.expiry {
            if end.expires_at != expires_at {
                let what = format!("expires at {expires_at}, expired for {}", end.expires_at);
                self.add(Rule::Changed, Some(id), what);
            }
            let early = expires_at - end.settled_at;
            if early > AHEAD_MAX_MS {
                let what = format!("expired {early} ms before its expiry");
                self.add(Rule::WrongVerdict, Some(id), what);
            }
        }
        let clock = &self.history.clock;
        let wait = (clock.reached(line.due_at), clock.reached(expires_at));
        self.check_wait(id, task, wait);
    }

    /// A task that was given up for its expiry may have been sent.
    pub(super) fn check_too_late(&mut self, id: Uuid, task: &Traces<'a>, line: &Line) {
        let Some(submit) = task.submit else { return };
        let wrong = |what: &str| (Rule::WrongDeadLetter, Some(id), what.to_owned());
        let was_attempted = submit.tracked.is_some()
            && (!task.records.is_empty()
                || task.lines.iter().any(|line| line.state == "attempted"));
        let since = self.history.clock.reached(line.due_at);
        let found = if self.expiry_of(submit, line.due_at).is_none() {
            Some(wrong("given up for its expiry, and it has none"))
        } else if !was_attempted && !may_be_sent_twice(self.history, since) {
            Some(wrong("given up for its expiry, and nothing explains that it may have been sent"))
        } else {
            None
        };
        if let Some((rule, task, what)) = found {
            self.add(rule, task, what);
        }
    }
}
