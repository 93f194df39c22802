//! Rules 16 to 18: a request committed at a door is accepted exactly once, and one rolled back
//! never; the requests of one name take effect in their order; only wrong requests are rejected.

use std::collections::{HashMap, HashSet};

use uuid::Uuid;

use super::door_history::{Door, Op, Rejection, Request};
use super::history::{BY_RECORD, BY_SQL};
use super::oracle::{Case, Rule};
use super::plan::Kind;

/// The window of the cluster, plus the error of the nodes' clocks. A cancel or a replacement that
/// takes effect earlier is in time.
const WINDOW_MS: i64 = 200 + 100;
/// The reason of a replacement that came too late.
const TOO_LATE: &str = "nothing was replaced";

/// The known facts about the requests of the doors.
struct Facts<'a> {
    rejected: HashMap<u64, Vec<&'a Rejection>>,
    /// The tasks that have records, by the serial of their request.
    arrived: HashMap<u64, HashSet<Uuid>>,
}

impl Facts<'_> {
    fn has_arrived(&self, request: &Request) -> bool {
        self.arrived.contains_key(&request.serial)
    }

    fn is_rejected(&self, request: &Request) -> bool {
        self.rejected.contains_key(&request.serial)
    }
}

impl<'a> Case<'a> {
    /// Checks all requests of the doors.
    pub(super) fn check_doors(&mut self, is_whole: bool) {
        let doors = &self.history.doors;
        if doors.requests.is_empty() {
            return;
        }
        for left in &doors.left {
            self.add(Rule::Lost, None, left.clone());
        }
        let mut facts = Facts { rejected: HashMap::new(), arrived: HashMap::new() };
        for rejection in &doors.rejections {
            facts.rejected.entry(rejection.serial).or_default().push(rejection);
        }
        for record in &self.history.records {
            let tasks = facts.arrived.entry(record.serial.unwrap_or_default()).or_default();
            tasks.insert(record.id);
        }
        self.check_rejections(&facts);
        let mut names: HashMap<(usize, &str), Vec<&Request>> = HashMap::new();
        let committed = || doors.requests.iter().filter(|request| request.is_committed);
        for request in committed().filter(|request| !request.is_wrong) {
            match &request.name {
                Some(name) => names.entry((request.topic, name)).or_default().push(request),
                None if request.op == Op::Submit => self.check_there(request, &facts),
                None => {}
            }
        }
        let mut stored: HashMap<usize, usize> = HashMap::new();
        for ((topic, _), requests) in names {
            *stored.entry(topic).or_default() += self.check_name(&requests, &facts);
        }
        let is_plain = |request: &&Request| {
            let is_taken = !request.is_wrong && !facts.is_rejected(request);
            request.name.is_none() && request.op == Op::Submit && is_taken
        };
        for request in committed().filter(is_plain) {
            *stored.entry(request.topic).or_default() += 1;
        }
        for topic in [BY_SQL, BY_RECORD] {
            self.check_number(topic, stored.get(&topic).copied().unwrap_or_default());
        }
        committed().for_each(|request| self.check_due_time(request, &facts));
        if is_whole {
            self.check_faults_of_doors();
        }
    }

    /// Rule 16: a committed submit is accepted. Tasks of the doors' topics do not become dead
    /// letters before they are published.
    fn check_there(&mut self, request: &Request, facts: &Facts<'_>) {
        if !facts.has_arrived(request) && !facts.is_rejected(request) {
            self.add(Rule::Lost, None, format!("committed, and never published: {request:?}"));
        }
    }

    /// Rule 16: a topic of a door has as many tasks as were committed for the topic. A cancelled
    /// task that was stored twice has no record as evidence.
    fn check_number(&mut self, topic: usize, stored: usize) {
        let Some(name) = self.history.topics.get(topic).map(|topic| topic.name.as_str()) else {
            return;
        };
        let lines = self.history.lines.iter();
        let tasks: HashSet<Uuid> =
            lines.filter(|line| line.topic.as_deref() == Some(name)).map(|line| line.id).collect();
        if tasks.len() != stored {
            let rule = if tasks.len() < stored { Rule::Lost } else { Rule::Stranger };
            let what = format!("{name} has {} tasks, and {stored} were committed", tasks.len());
            self.add(rule, None, what);
        }
    }

    /// Rule 18: what is wrong is rejected, and what is right is not, unless it comes too late.
    fn check_rejections(&mut self, facts: &Facts<'_>) {
        let requests: HashMap<u64, &Request> =
            self.history.doors.requests.iter().map(|request| (request.serial, request)).collect();
        for (serial, rejections) in &facts.rejected {
            let reason = &rejections[0].reason;
            let Some(request) = requests.get(serial).copied() else {
                self.add(Rule::Stranger, None, format!("nobody wrote what was rejected: {reason}"));
                continue;
            };
            let wrong = if !request.is_committed {
                Some((Rule::Stranger, "rolled back, and rejected"))
            } else if facts.has_arrived(request) {
                Some((Rule::WrongRejection, "rejected, and accepted"))
            } else if request.door == Door::Sql && rejections.len() > 1 {
                Some((Rule::WrongRejection, "rejected more than once"))
            } else {
                let is_late = request.op == Op::Replace && reason.contains(TOO_LATE);
                // An attempt that is over, or a task that has ended.
                let may_be = request.is_wrong || is_late || request.op == Op::Finish;
                (!may_be).then_some((Rule::WrongRejection, "rejected, and right"))
            };
            if let Some((rule, what)) = wrong {
                self.add(rule, None, format!("{what} ({reason}): {request:?}"));
            }
        }
        let requests = self.history.doors.requests.iter();
        for request in requests.filter(|request| request.is_wrong && request.is_committed) {
            if !facts.is_rejected(request) {
                let what = format!("wrong, and not rejected: {request:?}");
                self.add(Rule::WrongRejection, None, what);
            }
        }
    }

    /// Rule 17: the requests of one name take effect in their order. Returns how many of them have
    /// stored a task.
    fn check_name(&mut self, requests: &[&Request], facts: &Facts<'_>) -> usize {
        let (mut stored, mut is_known) = (0, false);
        // The request of the task that the name stands for, and which is not withdrawn.
        let mut current: Option<&Request> = None;
        for (index, request) in requests.iter().copied().enumerate() {
            match request.op {
                Op::Finish => {}
                Op::Submit if is_known => {
                    if facts.has_arrived(request) {
                        let what = format!("the name was known, and it is stored: {request:?}");
                        self.add(Rule::OutOfOrder, None, what);
                    }
                }
                Op::Submit => {
                    (stored, is_known, current) = (stored + 1, true, Some(request));
                    self.check_stays(index, requests, facts);
                }
                Op::Cancel => {
                    current = current.filter(|task| self.outlives(task, request, facts));
                }
                Op::Replace if facts.is_rejected(request) => {
                    let is_late = current.is_some_and(|task| !self.is_in_time(task, request));
                    if !is_late {
                        let what = format!("rejected as too late, and in time: {request:?}");
                        self.add(Rule::OutOfOrder, None, what);
                    }
                }
                Op::Replace => {
                    if let Some(task) = current {
                        self.outlives(task, request, facts);
                    }
                    (stored, is_known, current) = (stored + 1, true, Some(request));
                    self.check_stays(index, requests, facts);
                }
            }
        }
        stored
    }

    /// Checks that the task of a request is published, unless a later request may withdraw it.
    fn check_stays(&mut self, index: usize, requests: &[&Request], facts: &Facts<'_>) {
        let may_withdraw = |later: &&Request| match later.op {
            Op::Cancel => true,
            Op::Replace => !facts.is_rejected(later),
            Op::Submit | Op::Finish => false,
        };
        if facts.has_arrived(requests[index])
            || requests[index + 1..].iter().copied().any(|later| may_withdraw(&later))
        {
            return;
        }
        let what = format!(
            "committed, never published, and no later request withdraws it: {:?}",
            requests[index]
        );
        self.add(Rule::Lost, None, what);
    }

    /// Returns true when the task of a request was published in spite of a later withdrawal. That
    /// is wrong when the withdrawal has come in time.
    fn outlives(&mut self, task: &Request, withdrawal: &Request, facts: &Facts<'_>) -> bool {
        let is_there = facts.has_arrived(task);
        if is_there && self.is_in_time(task, withdrawal) {
            let what =
                format!("withdrawn in time, and published: {task:?}, withdrawn by {withdrawal:?}");
            let id = facts.arrived[&task.serial].iter().next().copied();
            self.add(Rule::OutOfOrder, id, what);
        }
        is_there
    }

    /// Returns true when a withdrawal has certainly taken effect before the task may be claimed.
    fn is_in_time(&self, task: &Request, withdrawal: &Request) -> bool {
        withdrawal
            .taken_by
            .is_some_and(|at| task.due_at - self.history.clock.latest(at) > WINDOW_MS)
    }

    /// Rule 16: a task has the due time of its request. One that was taken late is due when it was
    /// taken.
    fn check_due_time(&mut self, request: &Request, facts: &Facts<'_>) {
        let Some(ids) = facts.arrived.get(&request.serial) else { return };
        for id in ids {
            let task = &self.tasks[id];
            let (records, was_deferred) = (task.records.clone(), task.was_deferred());
            let Some(due_at) = records.iter().find_map(|record| record.due_header) else {
                continue;
            };
            let is_late = request
                .taken_by
                .is_none_or(|taken_by| request.due_at <= self.history.clock.latest(taken_by));
            if due_at < request.due_at || request.is_exact && due_at != request.due_at && !is_late {
                let what = format!("due at {due_at}: {request:?}");
                self.add(Rule::Changed, Some(*id), what);
            }
            let first = records.iter().find(|record| record.attempt.is_none_or(|it| it == 1));
            if let Some((record, taken_by)) = first.zip(request.taken_by) {
                let due_at = self.history.clock.reached(due_at);
                let wait = (due_at.max(taken_by), record.at);
                self.check_span(*id, Some(request.topic), wait, was_deferred);
            }
        }
    }

    /// Rule 10 for the doors: each fault was done, and nodes died between a store and a commit.
    fn check_faults_of_doors(&mut self) {
        for kind in Kind::of_doors() {
            if !self.history.spans.iter().any(|span| span.operation.kind == kind) {
                self.add(Rule::Uncovered, None, format!("{} was not done", kind.name()));
            }
        }
        if self.history.doors.kills_at_store == 0 {
            let what = "no node was killed between a store and its commit";
            self.add(Rule::Uncovered, None, what.to_owned());
        }
    }
}
