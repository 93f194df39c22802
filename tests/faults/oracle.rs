//! The oracle: checks a history against the promises. docs/faults.md lists the rules in prose, by
//! the same numbers. `tests/oracle.rs` breaks each rule in a history.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::fmt;

use uuid::Uuid;

use super::counts::Counts;
use super::duplicates;
use super::history::{
    Arrival, History, Line, Move, Outcome, SCHEDULED, Submit, Target, UNAVAILABLE, Verdict,
};
use super::lateness;
use super::names;
use super::plan::Kind;

/// A payload above this size may exceed the limit of the topic whose limit is lowered (2,000 bytes,
/// including headers and the batch's overhead).
const SMALL_MAX: usize = 1000;

/// The promise that is broken.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Rule {
    Lost,
    EndedTwice,
    Early,
    Changed,
    WrongVerdict,
    WrongReceipt,
    Stranger,
    Unattributed,
    WrongDeadLetter,
    WrongAnswer,
    BrokenNode,
    Late,
    TooManyAttempts,
    AfterFinish,
    AfterExpiry,
    WhilePaused,
    WrongRun,
    OutOfOrder,
    WrongRejection,
    WrongDelivery,
    Uncovered,
}

#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Violation {
    pub rule: Rule,
    pub task: Option<Uuid>,
    pub what: String,
}

/// The findings of the oracle.
#[derive(Debug, Default)]
pub struct Judgement {
    pub violations: Vec<Violation>,
    pub counts: Counts,
    /// The number of records beyond the first of each task, by the kind of operation that explains
    /// them.
    pub duplicates: BTreeMap<Kind, usize>,
    /// For each kind: the number of operations, and of records at stake. Records at stake are due
    /// before the end and appended after the beginning.
    pub stakes: BTreeMap<Kind, (usize, usize)>,
    /// The time from each task's due time, by Postgres's clock, until its first record was
    /// appended. Sorted.
    pub lateness: Vec<i64>,
    /// The longest wait of a task without a reason.
    pub unexplained_max: i64,
}

/// Everything that the history contains about one task.
#[derive(Default)]
pub(super) struct Traces<'a> {
    pub(super) submit: Option<&'a Submit>,
    pub(super) records: Vec<&'a Arrival>,
    pub(super) lines: Vec<&'a Line>,
}

pub(super) struct Case<'a> {
    pub(super) history: &'a History,
    pub(super) tasks: HashMap<Uuid, Traces<'a>>,
    /// The moves of each task, in the order of their requests.
    pub(super) moves: HashMap<Uuid, Vec<&'a Move>>,
    /// Ids, and names by topic, that some request may have cancelled.
    withdrawn_ids: HashSet<Uuid>,
    withdrawn_names: HashSet<(usize, &'a str)>,
    pub(super) found: Judgement,
}

/// Judges a run. `is_whole` demands each kind of operation, with records at stake.
pub fn judge(history: &History, is_whole: bool) -> Judgement {
    let mut case = Case::new(history);
    case.count();
    case.bind_strangers();
    let ids: Vec<Uuid> = case.tasks.keys().copied().collect();
    for id in ids {
        case.check_task(id);
    }
    case.check_cancels();
    case.check_moves();
    case.check_pauses();
    case.check_schedules();
    case.check_tracked();
    case.check_deliveries();
    case.check_prompt();
    case.check_faults_of_consumers(is_whole);
    case.check_doors(is_whole);
    case.found
        .violations
        .extend(names::check(history, |id| case.tasks.get(&id).and_then(|task| task.state())));
    let (duplicates, unattributed) = duplicates::attribute(history);
    case.found.duplicates = duplicates;
    case.found.violations.extend(unattributed);
    for oddity in &history.oddities {
        case.add(Rule::WrongAnswer, None, oddity.clone());
    }
    case.check_stakes(is_whole);
    case.found.lateness.sort_unstable();
    case.found
}

impl<'a> Traces<'a> {
    /// Returns the final state, if there is exactly one.
    pub(super) fn state(&self) -> Option<&'a str> {
        let mut last = self.lines.iter().filter(|line| line.is_final());
        last.next().filter(|_| last.next().is_none()).map(|line| line.state.as_str())
    }

    /// Returns true when the task may wait for a due time after `ended_at`. That of a later attempt
    /// is known only since the first one, which was due after the run.
    fn may_wait(&self, ended_at: i64) -> bool {
        let is_tracked = self.submit.is_some_and(|submit| submit.tracked.is_some());
        self.records.iter().all(|record| is_tracked && record.at >= ended_at)
    }

    pub(super) fn was_deferred(&self) -> bool {
        self.lines.iter().any(|line| line.state == "deferred")
    }
}

impl<'a> Case<'a> {
    fn new(history: &'a History) -> Self {
        let mut tasks: HashMap<Uuid, Traces<'a>> = HashMap::new();
        let mut withdrawn_names = HashSet::new();
        for submit in &history.submits {
            if let Some(id) = submit.accepted() {
                tasks.entry(id).or_default().submit = Some(submit);
            }
            let may_replace = matches!(
                submit.outcome,
                Outcome::Accepted { has_replaced: true, .. } | Outcome::Unknown { .. }
            );
            if let Some(name) = submit.name.as_deref().filter(|_| submit.is_put && may_replace) {
                withdrawn_names.insert((submit.topic, name));
            }
        }
        // Runs of schedules have rules of their own.
        let is_run = |topic: Option<usize>| topic == Some(SCHEDULED);
        for record in history.records.iter().filter(|record| !is_run(Some(record.topic))) {
            tasks.entry(record.id).or_default().records.push(record);
        }
        for line in history.lines.iter().filter(|line| !is_run(history.topic_of(line))) {
            tasks.entry(line.id).or_default().lines.push(line);
        }
        let mut withdrawn_ids = HashSet::new();
        for cancel in history.cancels.iter().filter(|cancel| {
            matches!(cancel.verdict, Verdict::Cancelled { .. } | Verdict::Unknown { .. })
        }) {
            match &cancel.target {
                Target::Id(id) => _ = withdrawn_ids.insert(*id),
                Target::Name(topic, name) => _ = withdrawn_names.insert((*topic, name)),
            }
        }
        tasks.values_mut().for_each(|task| task.records.sort_by_key(|record| record.at));
        let mut moves: HashMap<Uuid, Vec<&Move>> = HashMap::new();
        history.moves.iter().for_each(|one| moves.entry(one.id).or_default().push(one));
        moves.values_mut().for_each(|moves| moves.sort_by_key(|one| one.sent_at));
        let found = Judgement::default();
        Self { history, tasks, moves, withdrawn_ids, withdrawn_names, found }
    }

    pub(super) fn add(&mut self, rule: Rule, task: Option<Uuid>, what: String) {
        self.found.violations.push(Violation { rule, task, what });
    }

    /// Rule 6: a task never reported as accepted may exist only if its submit has no answer, and a
    /// submit is stored at most once.
    fn bind_strangers(&mut self) {
        let by_serial: HashMap<u64, &'a Submit> =
            self.history.submits.iter().map(|submit| (submit.serial, submit)).collect();
        let mut owners: HashMap<u64, Uuid> =
            self.tasks.iter().filter_map(|(id, task)| Some((task.submit?.serial, *id))).collect();
        let unknown: Vec<&Submit> = self
            .history
            .submits
            .iter()
            .filter(|submit| matches!(submit.outcome, Outcome::Unknown { .. } | Outcome::Committed))
            .collect();
        let strangers: Vec<Uuid> = self
            .tasks
            .iter()
            .filter(|(_, task)| task.submit.is_none())
            .map(|(id, _)| *id)
            .collect();
        for id in strangers {
            let task = &self.tasks[&id];
            let serial = task.records.iter().find_map(|record| record.serial);
            let Some(serial) = serial else {
                let line = task.lines.first();
                let topic = line.and_then(|line| self.history.topic_of(line));
                let due_at = line.map_or(i64::MAX, |line| line.due_at);
                if !unknown
                    .iter()
                    .any(|submit| Some(submit.topic) == topic && submit.due_at <= due_at)
                {
                    self.add(Rule::Stranger, Some(id), "nobody has asked for it".to_owned());
                }
                continue;
            };
            let submit = by_serial.get(&serial).copied();
            match submit.map(|submit| &submit.outcome) {
                Some(Outcome::Unknown { .. }) => self.found.counts.unknown_stored += 1,
                Some(Outcome::Committed) => {}
                Some(outcome) => {
                    let what = format!(
                        "its submit (serial {serial}) was answered {outcome:?}, and yet it is there"
                    );
                    self.add(Rule::Stranger, Some(id), what);
                }
                None => self.add(
                    Rule::Stranger,
                    Some(id),
                    format!("there is no submit with serial {serial}"),
                ),
            }
            if let Some(other) = owners.insert(serial, id).filter(|other| *other != id) {
                self.add(
                    Rule::Stranger,
                    Some(id),
                    format!("its submit (serial {serial}) is stored twice, also as {other}"),
                );
            }
            if let Some(task) = self.tasks.get_mut(&id) {
                task.submit = submit;
            }
        }
    }

    /// Rules 1 to 5, for one task.
    fn check_task(&mut self, id: Uuid) {
        let task = std::mem::take(self.tasks.get_mut(&id).expect("it is one of them"));
        let finals: Vec<&Line> =
            task.lines.iter().copied().filter(|line| line.is_final()).collect();
        let pending = self.history.pending.get(&id).copied();
        match (finals.as_slice(), pending) {
            ([], Some(due_at))
                if due_at > self.history.clock.earliest(self.history.ended_at)
                    && task.may_wait(self.history.ended_at) =>
            {
                self.found.counts.pending += 1
            }
            ([], _) => {
                let states: Vec<&str> = task.lines.iter().map(|line| line.state.as_str()).collect();
                let what = format!(
                    "no final line (lines: {states:?}, row that waits: {pending:?}, records: {})",
                    task.records.len()
                );
                self.add(Rule::Lost, Some(id), what);
            }
            ([line], None) => self.check_end(id, &task, line),
            (lines, _) => {
                let states: Vec<&str> = lines.iter().map(|line| line.state.as_str()).collect();
                self.add(
                    Rule::EndedTwice,
                    Some(id),
                    format!("final lines: {states:?}, row that waits: {pending:?}"),
                );
            }
        }
        self.check_records(id, &task);
        self.check_expiry(id, &task);
        self.tasks.insert(id, task);
    }

    fn check_end(&mut self, id: Uuid, task: &Traces<'a>, line: &'a Line) {
        if let Some(submit) = task.submit.filter(|submit| submit.accepted().is_some())
            && !self.may_be_due(id, submit, line.due_at)
        {
            let times = self.due_times(id, submit);
            let what = format!("accepted for {times:?}, due at {} by the execlog", line.due_at);
            self.add(Rule::Changed, Some(id), what);
        }
        match line.state.as_str() {
            "published" => {
                self.found.counts.published += 1;
                self.check_receipt(id, task, line);
            }
            "finished" => self.found.counts.finished += 1,
            "expired" => {
                self.found.counts.expired += 1;
                self.check_expired(id, task, line);
            }
            "cancelled" => {
                self.found.counts.withdrawn += 1;
                self.check_withdrawn(id, task);
            }
            _dead if line.is_exhausted() => {
                self.found.counts.dead += 1;
                self.found.counts.exhausted += 1;
            }
            _dead if line.is_too_late() => {
                self.found.counts.dead += 1;
                self.check_too_late(id, task, line);
            }
            _dead => {
                self.found.counts.dead += 1;
                self.check_dead(id, task, line);
            }
        }
    }

    pub(super) fn check_receipt(&mut self, id: Uuid, task: &Traces<'a>, line: &Line) {
        let Some((position, at)) = line.position.zip(line.published_at) else {
            self.add(Rule::WrongReceipt, Some(id), "published, and has no receipt".to_owned());
            return;
        };
        if position.1 < 0 {
            let rule = if task.records.is_empty() { Rule::Lost } else { Rule::WrongReceipt };
            self.add(
                rule,
                Some(id),
                format!("published by a receipt without an offset: {position:?} at {at}"),
            );
            return;
        }
        // Two incarnations of a topic may have the record at the same place.
        let there = || {
            task.records.iter().filter(|record| {
                !record.is_dead_letter && (record.partition, record.offset) == position
            })
        };
        // The lateness of an attempt counts from the due time of its row, which no record has.
        let is_of_attempt = line.state == "attempted";
        let is_right = is_of_attempt || line.lateness == Some(at - line.due_at);
        match there().find(|record| record.at == at).or_else(|| there().next()) {
            Some(record) if record.at == at && is_right => {}
            Some(record) => {
                let what = format!(
                    "published at {at} by its receipt, {} late; appended at {}",
                    line.lateness.unwrap_or(-1),
                    record.at
                );
                // A record at this place of another incarnation of the topic is another record.
                if !self.may_be_unread(line, at) {
                    self.add(Rule::WrongReceipt, Some(id), what);
                }
            }
            None if self.may_be_unread(line, at) => self.found.counts.by_receipt += 1,
            None if task.records.is_empty() => {
                self.add(
                    Rule::Lost,
                    Some(id),
                    format!(
                        "published by its receipt ({position:?} at {at}), and not in its topic"
                    ),
                );
            }
            None => self.add(
                Rule::WrongReceipt,
                Some(id),
                format!("not at {position:?}, where its receipt says"),
            ),
        }
    }

    pub(super) fn may_be_unread(&self, line: &Line, at: i64) -> bool {
        let topic = self.history.topic_of(line).map(|topic| &self.history.topics[topic]);
        topic.is_some_and(|topic| topic.may_be_unread(at, &self.history.spans))
    }

    fn check_withdrawn(&mut self, id: Uuid, task: &Traces<'a>) {
        if !task.records.is_empty() {
            self.add(
                Rule::WrongVerdict,
                Some(id),
                "cancelled, and there is a record of it".to_owned(),
            );
        }
        let name = task.submit.and_then(|submit| Some((submit.topic, submit.name.as_deref()?)));
        let is_wanted = self.withdrawn_ids.contains(&id)
            || name.is_some_and(|name| self.withdrawn_names.contains(&name));
        // If a submit has neither an answer nor a record, its name is not known.
        if !is_wanted && task.submit.is_some() {
            self.add(
                Rule::WrongVerdict,
                Some(id),
                "cancelled, and nobody has asked for it".to_owned(),
            );
        }
    }

    /// Rule 5: a task is dead only because of an operation on its topic.
    fn check_dead(&mut self, id: Uuid, task: &Traces<'a>, line: &Line) {
        let Some(topic) = self.history.topic_of(line).map(|topic| &self.history.topics[topic])
        else {
            self.add(
                Rule::WrongDeadLetter,
                Some(id),
                format!("a dead letter of an unknown topic: {line:?}"),
            );
            return;
        };
        let is_large = task.submit.is_none_or(|submit| submit.size > SMALL_MAX);
        let was_refused = is_large && !topic.limits.is_empty();
        if topic.absences.is_empty() && !was_refused {
            self.add(
                Rule::WrongDeadLetter,
                Some(id),
                format!("nothing was done to {} that would explain it", topic.name),
            );
        }
        let is_tracked = task.submit.is_some_and(|submit| submit.tracked.is_some());
        if let Some(record) = task.records.first().filter(|_| !is_tracked)
            && duplicates::cause(self.history, record, self.history.ended_at).is_none()
        {
            self.add(
                Rule::WrongDeadLetter,
                Some(id),
                "given up on, and in its topic, with no lost acknowledgement".to_owned(),
            );
        }
    }

    /// Rules 2 and 3: no record is early, and no record is changed.
    fn check_records(&mut self, id: Uuid, task: &Traces<'a>) {
        let times = task.submit.map(|submit| self.due_times(id, submit)).unwrap_or_default();
        let due_at = times.iter().map(|time| time.at).min();
        for record in &task.records {
            let latest = [due_at, record.due_header].into_iter().flatten().max();
            let shown = self.history.clock.latest(record.at);
            if let Some(due_at) = latest.filter(|due_at| shown < *due_at) {
                let what = format!(
                    "due at {due_at}, appended when Postgres's clock showed {shown}: {} ms early",
                    due_at - shown
                );
                self.add(Rule::Early, Some(id), what);
            }
            let Some(submit) = task.submit else { continue };
            let dead_topic = submit.tracked.and_then(|tracked| tracked.dead_topic);
            let topic = if record.is_dead_letter { dead_topic } else { Some(submit.topic) };
            let is_same = record.payload_hash == Some(submit.payload_hash)
                && record.key.as_deref() == submit.key.as_deref().map(str::as_bytes)
                && Some(record.topic) == topic
                && record.attempt.is_some() == submit.tracked.is_some()
                && record.serial == Some(submit.serial)
                && (submit.accepted().is_none()
                    || record.due_header.is_some_and(|at| self.may_be_due(id, submit, at)));
            if !is_same {
                self.add(
                    Rule::Changed,
                    Some(id),
                    format!("asked for {submit:?}, arrived as {record:?}"),
                );
            }
        }
        // The first attempt of a tracked task may be in a topic that was deleted.
        let is_first = |record: &&&Arrival| record.attempt.is_none_or(|attempt| attempt == 1);
        let first = task.records.first().filter(is_first);
        if let Some((record, due_at)) = first.and_then(|first| Some((first, first.due_header?))) {
            let due_at = self.history.clock.reached(due_at);
            self.found.lateness.push(record.at - due_at);
            self.check_wait(id, task, (due_at, record.at));
        }
    }

    /// Rule 11: lateness has a reason. A task that was submitted late is due when it was accepted.
    pub(super) fn check_wait(&mut self, id: Uuid, task: &Traces<'a>, (due_at, at): (i64, i64)) {
        let Some(submit) = task.submit.filter(|submit| submit.accepted().is_some()) else { return };
        let wait = (due_at.max(self.placed_at(id, submit)), at);
        self.check_span(id, Some(submit.topic), wait, task.was_deferred());
    }

    /// Checks that something explains the wait of a record between two moments, if it was long.
    pub(super) fn check_span(
        &mut self,
        id: Uuid,
        topic: Option<usize>,
        wait: (i64, i64),
        was_deferred: bool,
    ) {
        let unexplained = lateness::unexplained(&self.history.spans, topic, wait, was_deferred);
        self.found.unexplained_max = self.found.unexplained_max.max(unexplained);
        if unexplained > lateness::UNEXPLAINED_MAX_MS {
            let what = format!(
                "waited from {} to {}, and nothing explains {unexplained} ms of it",
                wait.0, wait.1
            );
            self.add(Rule::Late, Some(id), what);
        }
    }

    /// Rule 10: a fault is evidence only while there are records that it can affect.
    fn check_stakes(&mut self, is_whole: bool) {
        for span in &self.history.spans {
            let kind = span.operation.kind;
            let (begin, end) = (span.begin, span.end.max(span.begin + 2000));
            let shown_end = self.history.clock.latest(end);
            // Later attempts are due later than their headers say.
            let is_at_stake = |record: &&Arrival| {
                record.attempt.is_none()
                    && record.due_header.is_some_and(|due_at| due_at <= shown_end)
                    && record.at >= begin
            };
            let count = self.history.records.iter().filter(is_at_stake).count();
            let entry = self.found.stakes.entry(kind).or_default();
            entry.0 += 1;
            entry.1 += count;
        }
        // An operation without an effect is no evidence either.
        for (begin, end) in &self.history.topics[UNAVAILABLE].refusals {
            let is_taken = |record: &&Arrival| {
                record.topic == UNAVAILABLE && (*begin..*end).contains(&record.at)
            };
            if let Some(taken) = self.history.records.iter().find(is_taken) {
                let what = format!(
                    "{} had no effect: a record was appended at {}",
                    Kind::TopicUnavailable.name(),
                    taken.at
                );
                self.add(Rule::Uncovered, None, what);
            }
        }
        if let Some(reading) = self.history.clock.wrong_reading() {
            let what = format!(
                "Postgres's clock is not as {} has set it: {reading:?}",
                Kind::PostgresClock.name()
            );
            self.add(Rule::Uncovered, None, what);
        }
        if lateness::is_quota_without_effect(self.history) {
            self.add(
                Rule::Uncovered,
                None,
                format!("{} had no effect: hardly a record was held back", Kind::Quota.name()),
            );
        }
        for kind in Kind::all_of_run(&self.history.spans).into_iter().filter(|_| is_whole) {
            match self.found.stakes.get(&kind) {
                None => self.add(Rule::Uncovered, None, format!("{} was not done", kind.name())),
                Some((_, 0)) => self.add(
                    Rule::Uncovered,
                    None,
                    format!("no records were at stake at any {}", kind.name()),
                ),
                Some(_) => {}
            }
        }
    }
}

impl Judgement {
    pub fn count_of(&self, rule: Rule) -> usize {
        self.violations.iter().filter(|violation| violation.rule == rule).count()
    }

    /// Returns the lateness in milliseconds that this share of the tasks does not exceed; 0 without
    /// records.
    pub fn lateness_at(&self, quantile: f64) -> i64 {
        let rank = (quantile * self.lateness.len() as f64).ceil() as usize;
        self.lateness.get(rank.max(1) - 1).copied().unwrap_or_default()
    }
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}: ", self.rule)?;
        if let Some(task) = self.task {
            write!(f, "task {task}: ")?;
        }
        f.write_str(&self.what)
    }
}
