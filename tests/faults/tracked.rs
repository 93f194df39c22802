//! Rules 12 to 15: tracked tasks end once, no attempt is early or one too many, the verdicts on the
//! calls of consumers are true, and a dead task has had its chances.

use std::collections::{BTreeMap, HashMap};

use uuid::Uuid;

use super::history::{Arrival, Call, CallKind, CallVerdict, History, Line, Tracked};
use super::oracle::{Case, Rule, Traces};

/// Rows are claimed this long before they are due. No row after an attempt is due earlier than the
/// end of the time to run and this.
const WINDOW_MS: i64 = 200;
/// A failed attempt waits at least this long, unless its consumer names another time.
const FAILURE_WAIT_MIN_MS: i64 = 1000;

type Found = Vec<(Rule, String)>;

/// Everything about one tracked task.
struct Life<'a> {
    history: &'a History,
    wishes: Tracked,
    /// The records in its topic by attempt, in the order of their appends.
    attempts: BTreeMap<u16, Vec<&'a Arrival>>,
    dead_records: Vec<&'a Arrival>,
    lines: Vec<&'a Line>,
    state: Option<&'a str>,
    calls: Vec<&'a Call>,
}

/// The reason of a dead letter that no consumer has finished.
struct DeadReason {
    attempt: u16,
    attempts_max: u16,
    is_failed: bool,
    /// The dead topic did not take the record.
    is_refused: bool,
}

impl<'a> Case<'a> {
    /// Checks all tracked tasks.
    pub(super) fn check_tracked(&mut self) {
        let mut calls: HashMap<Uuid, Vec<&'a Call>> = HashMap::new();
        for call in &self.history.calls {
            calls.entry(call.id).or_default().push(call);
        }
        let ids: Vec<Uuid> = self.tasks.keys().copied().collect();
        for id in ids {
            let Some(submit) = self.tasks[&id].submit else { continue };
            let Some(wishes) = submit.tracked else {
                self.check_untracked(id);
                continue;
            };
            let calls = calls.remove(&id).unwrap_or_default();
            let life = Life::new(self.history, wishes, &self.tasks[&id], calls);
            let found = [
                life.check_count(),
                life.check_after_finish(),
                life.check_end(),
                life.check_refusals(),
                life.check_due_times(),
                life.check_dead_letter(),
            ];
            for (rule, what) in found.into_iter().flatten() {
                self.add(rule, Some(id), what);
            }
            self.check_attempts(id);
        }
    }

    fn check_untracked(&mut self, id: Uuid) {
        let is_wrong = |line: &&Line| {
            matches!(line.state.as_str(), "attempted" | "finished") || line.is_exhausted()
        };
        if let Some(line) = self.tasks[&id].lines.iter().copied().find(is_wrong) {
            let what = format!("untracked, and {}: {:?}", line.state, line.reason);
            self.add(Rule::WrongVerdict, Some(id), what);
        }
    }

    /// Checks the receipts of attempts, and that later attempts are on time.
    fn check_attempts(&mut self, id: Uuid) {
        let task = std::mem::take(self.tasks.get_mut(&id).expect("it is one of them"));
        for line in task.lines.iter().filter(|line| line.state == "attempted") {
            self.check_receipt(id, &task, line);
            if let Some((at, lateness)) = line.published_at.zip(line.lateness) {
                let due_at = self.history.clock.reached(at - lateness);
                let topic = task.submit.map(|submit| submit.topic);
                self.check_span(id, topic, (due_at, at), task.was_deferred());
            }
        }
        self.tasks.insert(id, task);
    }
}

impl<'a> Life<'a> {
    fn new(
        history: &'a History,
        wishes: Tracked,
        task: &Traces<'a>,
        mut calls: Vec<&'a Call>,
    ) -> Self {
        calls.sort_by_key(|call| call.sent_at);
        let mut attempts: BTreeMap<u16, Vec<&Arrival>> = BTreeMap::new();
        let (dead_records, records): (Vec<_>, Vec<_>) =
            task.records.iter().copied().partition(|record| record.is_dead_letter);
        for record in records {
            attempts.entry(record.attempt.unwrap_or_default()).or_default().push(record);
        }
        let (lines, state) = (task.lines.clone(), task.state());
        Self { history, wishes, attempts, dead_records, lines, state, calls }
    }

    /// Returns the calls that have taken effect, or may have done so.
    fn effective(&self) -> impl Iterator<Item = &'a Call> {
        self.calls.iter().copied().filter(|call| call.may_count())
    }

    fn finishes(&self) -> impl Iterator<Item = &'a Call> {
        self.effective().filter(|call| call.kind == CallKind::Finish)
    }

    fn calls_of(&self, attempt: u16) -> impl Iterator<Item = &'a Call> {
        self.effective().filter(move |call| call.attempt == Some(attempt))
    }

    fn fails_of(&self, attempt: u16) -> impl Iterator<Item = &'a Call> {
        self.calls_of(attempt).filter(|call| matches!(call.kind, CallKind::Fail { .. }))
    }

    /// Rule 12: there are at most `attempts_max` attempts.
    fn check_count(&self) -> Found {
        let max = self.wishes.attempts_max;
        let mut found = Found::new();
        if let Some(attempt) = self.attempts.keys().find(|attempt| !(1..=max).contains(*attempt)) {
            found.push((Rule::TooManyAttempts, format!("attempt {attempt} of {max} has arrived")));
        }
        let count = self.lines.iter().filter(|line| line.state == "attempted").count();
        if count > usize::from(max) {
            found
                .push((Rule::TooManyAttempts, format!("{count} attempts of {max} by the execlog")));
        }
        found
    }

    /// Rule 13: no row is claimed after `finished` was told. If no answer said that an attempt is
    /// in flight, no further attempt arrives.
    fn check_after_finish(&self) -> Found {
        let told = |call: &&Call| matches!(call.verdict, CallVerdict::Finished { .. });
        let Some(at) = self.finishes().filter(told).map(|call| call.answered_at).min() else {
            return Found::new();
        };
        let mut found = Found::new();
        let shown = self.history.clock.latest(at);
        let is_later = |line: &&&Line| {
            !matches!(line.state.as_str(), "finished" | "cancelled")
                && line.claimed_at.is_some_and(|claimed_at| claimed_at > shown)
        };
        if let Some(line) = self.lines.iter().find(is_later) {
            let what = format!("told `finished` at {shown}, and claimed afterwards: {line:?}");
            found.push((Rule::AfterFinish, what));
        }
        let is_announced = |call: &Call| call.verdict != CallVerdict::Finished { in_flight: false };
        let news = self.attempts.iter().find(|(_, records)| records[0].at > at);
        if let Some((attempt, records)) = news
            && !self.finishes().any(is_announced)
        {
            let what = format!(
                "told `finished` at {at}, with nothing in flight, and attempt {attempt} arrived at \
                 {}",
                records[0].at
            );
            found.push((Rule::AfterFinish, what));
        }
        found
    }

    /// Rule 14: the end agrees with what consumers were told, and has a cause.
    fn check_end(&self) -> Found {
        let mut found = Found::new();
        let Some(state) = self.state else { return found };
        for call in &self.calls {
            let is_last = call.attempt == Some(self.wishes.attempts_max);
            let is_final = match call.kind {
                CallKind::Fail { is_final, .. } => is_final || is_last,
                CallKind::Finish | CallKind::Extend { .. } => false,
            };
            let wanted = match &call.verdict {
                CallVerdict::Finished { .. } => "finished",
                CallVerdict::Dying => "dead",
                CallVerdict::Noted if is_final => "dead",
                CallVerdict::Refused(verdict) => match verdict.as_str() {
                    "already_finished" => "finished",
                    "dead" => "dead",
                    "cancelled" => "cancelled",
                    _ => continue,
                },
                _ => continue,
            };
            if state != wanted {
                let what = format!("told {:?}, and {state}", call.verdict);
                found.push((Rule::WrongVerdict, what));
            }
        }
        if state == "finished" && self.finishes().next().is_none() {
            found.push((Rule::WrongVerdict, "finished, and no consumer has said so".to_owned()));
        }
        if state == "published" {
            found.push((Rule::WrongVerdict, "tracked, and ended when it was published".to_owned()));
        }
        found
    }

    /// Rule 14: a refusal is true. Consumers name only attempts that they have received.
    fn check_refusals(&self) -> Found {
        let mut found = Found::new();
        let claims = self
            .lines
            .iter()
            .filter(|line| !matches!(line.state.as_str(), "finished" | "cancelled"))
            .count();
        // Such an attempt was claimed, and had neither a record nor a line when its task ended. A
        // finish whose answer is not known may have met one.
        let is_one_in_flight = self.finishes().any(|call| {
            matches!(
                call.verdict,
                CallVerdict::Finished { in_flight: true } | CallVerdict::Unknown { .. }
            )
        });
        for call in &self.calls {
            let CallVerdict::Refused(verdict) = &call.verdict else { continue };
            // An attempt that was finished before its settle has a record, and no line of its own.
            let has_later = self.attempts.keys().any(|attempt| Some(*attempt) > call.attempt);
            let is_true = match verdict.as_str() {
                "already_finished" | "dead" | "cancelled" => true,
                "attempt_superseded" => claims > 1 || has_later || is_one_in_flight,
                "already_failed" => {
                    call.attempt.is_some_and(|attempt| self.fails_of(attempt).next().is_some())
                }
                _ => false,
            };
            if !is_true {
                let what = format!("told `{verdict}` about an attempt that had arrived: {call:?}");
                found.push((Rule::WrongVerdict, what));
            }
        }
        for attempt in self.attempts.keys() {
            let mut told: Vec<i64> = self
                .fails_of(*attempt)
                .filter_map(|call| match call.verdict {
                    CallVerdict::Retrying { at } => at,
                    _ => None,
                })
                .collect();
            told.sort_unstable();
            told.dedup();
            if told.len() > 1 {
                let what = format!("attempt {attempt} was told several due times: {told:?}");
                found.push((Rule::WrongVerdict, what));
            }
        }
        found
    }

    /// Rule 15: no attempt and no verdict comes before the row after the last attempt is due.
    fn check_due_times(&self) -> Found {
        let mut found = Found::new();
        for (attempt, records) in &self.attempts {
            let Some(before) = attempt.checked_sub(1).filter(|before| *before > 0) else {
                continue;
            };
            let shown = self.history.clock.latest(records[0].at);
            if let Some(due_at) = self.due_after(before).filter(|due_at| shown < *due_at) {
                let what = format!(
                    "attempt {attempt} arrived when Postgres's clock showed {shown}, {} ms before \
                     it was due",
                    due_at - shown
                );
                found.push((Rule::Early, what));
            }
        }
        let line = self.lines.iter().find(|line| line.is_exhausted());
        let claimed_at = line.and_then(|line| line.claimed_at);
        let last = self.attempts.keys().next_back();
        let due_at = last.and_then(|last| self.due_after(*last));
        if let Some((claimed_at, due_at)) = claimed_at.zip(due_at)
            && claimed_at < due_at - WINDOW_MS
        {
            let what = format!("dead at {claimed_at}, and its consumer had time until {due_at}");
            found.push((Rule::Early, what));
        }
        found
    }

    /// Returns when the row after an attempt is due at the earliest, by Postgres's clock. `None`
    /// when no record of the attempt was seen.
    fn due_after(&self, attempt: u16) -> Option<i64> {
        let appended_at = self.history.clock.known_at(self.attempts.get(&attempt)?.first()?.at);
        let is_last = attempt >= self.wishes.attempts_max;
        let backoff = if is_last { 0 } else { self.wishes.backoff_after(attempt) };
        let (mut silent, wait) = (Vec::new(), backoff.max(WINDOW_MS));
        let (mut failed, mut told) = (Vec::new(), None);
        let (mut is_extended, mut is_failed) = (false, false);
        for call in self.calls_of(attempt) {
            let sent_at = self.history.clock.known_at(call.sent_at);
            match call.kind {
                CallKind::Finish => {}
                CallKind::Extend { by } => {
                    silent.push(sent_at + by + wait);
                    is_extended |= call.counts();
                }
                CallKind::Fail { retry_in, is_final } => {
                    let retry_in = retry_in.unwrap_or(backoff.max(FAILURE_WAIT_MIN_MS));
                    failed.push(sent_at + if is_final || is_last { 0 } else { retry_in });
                    is_failed |= call.counts();
                }
            }
            if let CallVerdict::Retrying { at: Some(at) } = call.verdict {
                told = Some(at);
            }
        }
        if !is_extended {
            silent.push(appended_at + self.wishes.ttr_ms + wait);
        }
        if !is_failed {
            failed.extend(silent);
        }
        told.or_else(|| failed.into_iter().min())
    }

    /// Rule 15: a task that is given up has had its chances. Its record is in its dead topic, or
    /// its reason says why not.
    fn check_dead_letter(&self) -> Found {
        let wrong = |what: &str| vec![(Rule::WrongDeadLetter, what.to_owned())];
        let Some(line) = self.lines.iter().find(|line| line.state == "dead") else {
            let is_early = !self.dead_records.is_empty() && self.state.is_some();
            return if is_early {
                wrong("a record is in its dead topic, and it is not dead")
            } else {
                Found::new()
            };
        };
        let Some(text) = &line.reason else { return wrong("dead, and there is no dead letter") };
        let Some(reason) = DeadReason::read(text) else {
            // Kafka did not take the record of an attempt: rule 5.
            return Found::new();
        };
        let mut found = Found::new();
        let (attempt, max) = (reason.attempt, self.wishes.attempts_max);
        let may_end = |call: &Call| {
            attempt == max || matches!(call.kind, CallKind::Fail { is_final: true, .. })
        };
        let is_right = if reason.is_failed {
            self.fails_of(attempt).any(may_end)
        } else {
            attempt == max && !self.fails_of(attempt).any(Call::counts)
        };
        if !is_right || reason.attempts_max != max {
            found.push((Rule::WrongDeadLetter, format!("no cause for its reason: {text}")));
        }
        found.extend(self.check_dead_record(line, &reason));
        found
    }

    fn check_dead_record(&self, line: &Line, reason: &DeadReason) -> Found {
        let wrong = |what: String| vec![(Rule::WrongDeadLetter, what)];
        let Some(dead_topic) = self.wishes.dead_topic else {
            let is_right = !reason.is_refused && self.dead_records.is_empty();
            return if is_right { Found::new() } else { wrong("it has no dead topic".to_owned()) };
        };
        let topic = &self.history.topics[dead_topic];
        if reason.is_refused {
            let has_cause = !topic.absences.is_empty() || !topic.limits.is_empty();
            let what = || format!("nothing was done to {}, which refused its record", topic.name);
            return if has_cause { Found::new() } else { wrong(what()) };
        }
        let is_there = |record: &&Arrival| {
            line.position == Some((record.partition, record.offset)) && record.topic == dead_topic
        };
        let claimed_at = self.history.clock.reached(line.claimed_at.unwrap_or_default());
        if self.dead_records.iter().copied().any(|record| is_there(&record))
            || line.position.is_some() && topic.may_be_unread(claimed_at, &self.history.spans)
        {
            return Found::new();
        }
        wrong(format!("its record is not in {}, at {:?}", topic.name, line.position))
    }
}

impl DeadReason {
    /// Reads `attempt 2 of 3 was not finished in its time to run` or `attempt 2 of 3 failed: ..`,
    /// perhaps with the dead topic's refusal.
    fn read(text: &str) -> Option<Self> {
        let (attempt, rest) = text.strip_prefix("attempt ")?.split_once(" of ")?;
        let (attempts_max, rest) = rest.split_once(' ')?;
        Some(Self {
            attempt: attempt.parse().ok()?,
            attempts_max: attempts_max.parse().ok()?,
            is_failed: rest.starts_with("failed: "),
            is_refused: rest.contains("did not take the record: "),
        })
    }
}
