//! Outages with promised figures. Each is a plan with requirements on the history besides those of
//! the oracle.

use std::collections::{HashMap, HashSet};
use std::fmt;

use uuid::Uuid;

use super::history::{History, Outcome, PROMPT, SERVED, Span, Submit, UNAVAILABLE};
use super::plan::{Kind, Plan, Server, ServiceFault};

const TASKS_PER_SECOND: u32 = 500;
/// The default session TTL.
const TTL_MS: i64 = 3000;
/// How far ahead tasks are claimed, plus the same again for a claim in progress.
const WINDOW_MS: i64 = 400;
/// A task later than this was not published by the owner of the shard: the shard had no owner.
const OVERDUE_MS: i64 = 1000;
/// Lateness counts only tasks whose submit was answered this long before the due time. A task
/// submitted at the last moment is late because of the submit.
const SETTLED_MS: i64 = 500;
/// The interval before the first operation that serves as a baseline.
const BASE_MS: (i64, i64) = (10_000, 30_000);

/// A measured outage.
pub struct Scenario {
    pub name: &'static str,
    operations: &'static str,
    /// Untracked tasks submitted per second.
    pub tasks_per_second: u32,
    /// Tracked tasks for a hundred others.
    pub tracked_percent: u32,
    /// The cluster and its traffic are those of a round of faults, with services.
    pub is_varied: bool,
    pub measure: fn(&History) -> Vec<Figure>,
}

/// A figure and its limit.
pub struct Figure {
    what: String,
    measured: i64,
    limit: Limit,
    unit: &'static str,
}

enum Limit {
    AtMost(i64),
    AtLeast(i64),
    None,
}

const SCENARIOS: [Scenario; 8] = [
    Scenario {
        name: "etcd-stopped",
        operations: "# seed=1 seconds=110\n\
                     30000 etcd-stop for=60000\n\
                     60000 kill-node node=2 for=25000\n",
        tasks_per_second: TASKS_PER_SECOND,
        tracked_percent: 0,
        is_varied: false,
        measure: etcd_stopped,
    },
    Scenario {
        name: "topic-unavailable",
        operations: "# seed=1 seconds=75\n30000 topic-unavailable for=30000\n",
        tasks_per_second: TASKS_PER_SECOND,
        tracked_percent: 0,
        is_varied: false,
        measure: topic_unavailable,
    },
    Scenario {
        name: "postgres-down",
        operations: "# seed=1 seconds=75\n30000 postgres-stop for=30000\n",
        tasks_per_second: TASKS_PER_SECOND,
        tracked_percent: 0,
        is_varied: false,
        measure: postgres_down,
    },
    Scenario {
        name: "cut-off-from-postgres",
        operations: "# seed=1 seconds=65\n30000 cut-postgres node=1 for=25000\n",
        tasks_per_second: TASKS_PER_SECOND,
        tracked_percent: 0,
        is_varied: false,
        measure: cut_off_from_postgres,
    },
    Scenario {
        name: "cut-off-from-etcd",
        operations: "# seed=1 seconds=65\n30000 cut-etcd node=1 for=25000\n",
        tasks_per_second: TASKS_PER_SECOND,
        tracked_percent: 0,
        is_varied: false,
        measure: cut_off_from_etcd,
    },
    Scenario {
        name: "cut-off-from-kafka",
        operations: "# seed=1 seconds=70\n30000 cut-kafka node=1 for=30000\n",
        tasks_per_second: TASKS_PER_SECOND,
        tracked_percent: 0,
        is_varied: false,
        measure: cut_off_from_kafka,
    },
    Scenario {
        name: "consumers",
        operations: "# seed=1 seconds=132\n\
                     8000 kill-node node=1 for=2500\n\
                     17000 freeze-node node=2 for=5000\n\
                     26000 kill-node node=3 for=2500\n\
                     35000 freeze-node node=1 for=5000\n\
                     44000 kill-node node=2 for=2500\n\
                     53000 freeze-node node=3 for=5000\n\
                     62000 kill-node node=1 for=2500\n\
                     71000 freeze-node node=2 for=5000\n\
                     80000 kill-node node=3 for=2500\n\
                     89000 freeze-node node=1 for=5000\n\
                     98000 kill-node node=2 for=2500\n\
                     107000 freeze-node node=3 for=5000\n\
                     116000 kill-node node=1 for=2500\n",
        tasks_per_second: 80,
        tracked_percent: 500,
        is_varied: false,
        measure: consumers,
    },
    Scenario {
        name: "service-500s",
        operations: "# seed=1 seconds=700\n\
                     30000 service-500s for=600000\n\
                     50000 kill-node node=1 for=2500\n\
                     88000 freeze-node node=2 for=5000\n\
                     126000 kill-node node=3 for=2500\n\
                     164000 freeze-node node=1 for=5000\n\
                     202000 kill-node node=2 for=2500\n\
                     240000 freeze-node node=3 for=5000\n\
                     278000 kill-node node=1 for=2500\n\
                     316000 freeze-node node=2 for=5000\n\
                     354000 kill-node node=3 for=2500\n\
                     392000 freeze-node node=1 for=5000\n\
                     430000 kill-node node=2 for=2500\n\
                     468000 freeze-node node=3 for=5000\n\
                     506000 kill-node node=1 for=2500\n\
                     544000 freeze-node node=2 for=5000\n\
                     582000 kill-node node=3 for=2500\n\
                     620000 freeze-node node=1 for=5000\n",
        tasks_per_second: 60,
        tracked_percent: 12,
        is_varied: true,
        measure: service_500s,
    },
];

impl Scenario {
    pub fn plan(&self) -> Plan {
        self.operations.parse().expect("the plans of the scenarios can be read")
    }
}

/// Returns the scenarios of these names; `all` returns all of them.
pub fn of_names(names: &[String]) -> impl Iterator<Item = &'static Scenario> {
    SCENARIOS
        .iter()
        .filter(|scenario| names.iter().any(|name| name == scenario.name || name == "all"))
}

pub fn check_names(names: &[String]) -> Result<(), String> {
    let known = SCENARIOS.map(|scenario| scenario.name);
    match names.iter().find(|name| *name != "all" && !known.contains(&name.as_str())) {
        Some(name) => {
            Err(format!("there is no scenario `{name}`; there are all, {}", known.join(", ")))
        }
        None => Ok(()),
    }
}

fn etcd_stopped(history: &History) -> Vec<Figure> {
    let (outage, kill) = (span(history, Kind::EtcdStop), span(history, Kind::KillNode));
    let mut figures =
        same_lateness(history, "etcd away", (outage.begin + 1000, kill.begin - 1000), 3, |_| true);
    figures.push(taken_over(history, kill, 3 * TTL_MS + 3000));
    figures
}

fn topic_unavailable(history: &History) -> Vec<Figure> {
    let outage = span(history, Kind::TopicUnavailable);
    let mut figures =
        same_lateness(history, "other topics", (outage.begin + 500, outage.end), 5, |submit| {
            submit.topic != UNAVAILABLE
        });
    let waited =
        appended(history, (outage.begin, outage.end), |submit| submit.topic == UNAVAILABLE);
    figures.push(at_least(
        "tasks of the topic that fell due meanwhile, and arrived",
        count(&waited),
        100,
        "tasks",
    ));
    let last = waited.iter().map(|(_, at)| *at).max().unwrap_or(i64::MAX);
    figures.push(figure(
        "the last of them arrived after the end of the outage by",
        last - outage.end,
        Limit::None,
        "ms",
    ));
    figures
}

fn postgres_down(history: &History) -> Vec<Figure> {
    let outage = span(history, Kind::PostgresStop);
    // Postgres answers again a moment before the operation is over.
    let back = outage.end - 1500;
    let claimed: Vec<(i64, i64)> = appended(history, (outage.begin, outage.begin + 5000), |_| true);
    let claimed: Vec<(i64, i64)> = claimed.into_iter().filter(|(_, at)| *at < back).collect();
    let worst = claimed.iter().map(|(due_at, at)| at - due_at).max().unwrap_or_default();
    let asked = history
        .submits
        .iter()
        .filter(|submit| submit.sent_at > outage.begin + 1500 && submit.answered_at < back);
    let asked: Vec<&Submit> = asked.collect();
    let refused = asked.iter().filter(|submit| is_503(&submit.outcome)).count();
    let waited = appended(history, (outage.begin, back), |_| true);
    let last = waited.iter().map(|(_, at)| *at).max().unwrap_or(i64::MAX);
    vec![
        at_least("tasks published while Postgres was away", count(&claimed), 10, "tasks"),
        at_most("the latest of them was late by", worst, 200, "ms"),
        at_least("submits answered meanwhile", i64::try_from(asked.len()).unwrap(), 500, "submits"),
        at_most(
            "of these not by a 503",
            i64::try_from(asked.len() - refused).unwrap(),
            0,
            "submits",
        ),
        at_most(
            "the backlog was drained after Postgres was back by",
            last - outage.end,
            10_000,
            "ms",
        ),
    ]
}

fn is_503(outcome: &Outcome) -> bool {
    match outcome {
        Outcome::Refused { why } => ["unavailable", "busy", "not-ready"].contains(&why.as_str()),
        Outcome::Unknown { why } => why == "outcome-unknown",
        _ => false,
    }
}

fn cut_off_from_postgres(history: &History) -> Vec<Figure> {
    vec![taken_over(history, span(history, Kind::Cut(Server::Postgres)), 2 * TTL_MS + 2000)]
}

fn cut_off_from_etcd(history: &History) -> Vec<Figure> {
    let cut = span(history, Kind::Cut(Server::Etcd));
    same_lateness(history, "a node without etcd", (cut.begin, cut.end), 5, |_| true)
}

/// Unclaimed tasks move to other nodes as soon as the node reports that it cannot publish. Claimed
/// tasks move once the node gives up.
fn cut_off_from_kafka(history: &History) -> Vec<Figure> {
    let cut = span(history, Kind::Cut(Server::Kafka));
    let said = history
        .unable
        .iter()
        .find(|(name, at)| name.starts_with("node-1.") && *at > cut.begin)
        .map_or(i64::MAX, |(_, at)| *at);
    let unclaimed = overdue_until(history, (said.saturating_add(WINDOW_MS), cut.end)).max(said);
    let all = overdue_until(history, (cut.begin, cut.end));
    vec![
        at_most("it said that it cannot publish after", said - cut.begin, 3000, "ms"),
        at_most(
            "what it had not claimed was published by the others so long after it said so",
            unclaimed - said,
            3000,
            "ms",
        ),
        at_most(
            "what it had claimed was published by the others after",
            all - cut.begin,
            3 * TTL_MS + 3000,
            "ms",
        ),
    ]
}

/// The oracle checks that each of these tasks has one end, and as many attempts as it should.
fn consumers(history: &History) -> Vec<Figure> {
    let tracked = history.submits.iter().filter(|submit| submit.tracked.is_some());
    let accepted = tracked.filter(|submit| submit.accepted().is_some()).count();
    let lines = |state| history.lines.iter().filter(move |line| line.state == state).count();
    let calls = history.calls.iter().filter(|call| call.counts()).count();
    let many = |what, count: usize, least, unit| {
        at_least(what, i64::try_from(count).unwrap_or(i64::MAX), least, unit)
    };
    vec![
        many("accepted", accepted, 20_000, "tracked tasks"),
        many("finished", lines("finished"), 8000, "tasks"),
        many("dead", lines("dead"), 1000, "tasks"),
        many("attempted", lines("attempted"), 20_000, "records"),
        many("taken effect", calls, 15_000, "calls of consumers"),
    ]
}

/// The oracle checks that no task is lost, and that each dead one has had its attempts.
fn service_500s(history: &History) -> Vec<Figure> {
    let outage = span(history, Kind::Service(ServiceFault::Fails));
    let meanwhile = |at: i64| (outage.begin + SETTLED_MS..outage.end).contains(&at);
    let requests = history.delivered.iter().filter(|one| one.topic == SERVED && meanwhile(one.at));
    let tasks: HashMap<Uuid, &Submit> = history
        .submits
        .iter()
        .filter(|submit| submit.topic == SERVED)
        .filter_map(|submit| Some((submit.accepted()?, submit)))
        .collect();
    let ended = |state: &str| -> Vec<(&Submit, i64)> {
        let lines = history.lines.iter().filter(|line| line.state == state);
        lines.filter_map(|line| Some((*tasks.get(&line.id)?, line.claimed_at?))).collect()
    };
    let is_patient = |submit: &Submit| {
        let attempts_max = submit.tracked.map_or(0, |tracked| tracked.attempts_max);
        attempts_max > 100 && submit.answered_at < outage.end - 60_000
    };
    let outlived: Vec<i64> = ended("finished")
        .into_iter()
        .filter(|(submit, at)| is_patient(submit) && *at >= outage.end)
        .map(|(_, at)| at - outage.end)
        .collect();
    let size = |count: usize| i64::try_from(count).unwrap();
    vec![
        at_least("answered 500", size(requests.count()), 200, "requests"),
        at_most(
            "finished meanwhile",
            size(ended("finished").iter().filter(|(_, at)| meanwhile(*at)).count()),
            0,
            "of its tasks",
        ),
        at_least("dead meanwhile", size(ended("dead").len()), 100, "of its tasks"),
        at_most(
            "dead although they have 1,000 attempts",
            size(ended("dead").iter().filter(|(submit, _)| is_patient(submit)).count()),
            0,
            "tasks",
        ),
        at_least("outlived it, and finished", size(outlived.len()), 100, "tasks"),
        at_most(
            "the last of them was finished after its end by",
            outlived.into_iter().max().unwrap_or(i64::MAX),
            120_000,
            "ms",
        ),
        figure(
            "the other service: half of its requests came within, before",
            median_until_called(history, (outage.begin - 20_000, outage.begin)),
            Limit::None,
            "ms",
        ),
        at_most(
            "and meanwhile",
            median_until_called(history, (outage.begin, outage.end)),
            500,
            "ms",
        ),
    ]
}

/// Returns the median time from the append of a record to the request to the service that nothing
/// is done to.
fn median_until_called(history: &History, (from, to): (i64, i64)) -> i64 {
    let called: HashMap<(Uuid, u16), i64> = history
        .delivered
        .iter()
        .rev()
        .filter(|one| one.topic == PROMPT)
        .map(|one| ((one.id, one.attempt), one.at))
        .collect();
    let records = history.records.iter().filter(|record| (from..to).contains(&record.at));
    let mut waits: Vec<i64> = records
        .filter_map(|record| Some(called.get(&(record.id, record.attempt?))? - record.at))
        .collect();
    waits.sort_unstable();
    waits.get(waits.len() / 2).copied().unwrap_or(i64::MAX)
}

fn span(history: &History, kind: Kind) -> &Span {
    history
        .spans
        .iter()
        .find(|span| span.operation.kind == kind)
        .expect("the scenario's own operation was carried out")
}

/// Returns the due time and the append time of each task's first record, for tasks due in
/// `(from, to)` and selected by `is_wanted`.
fn appended(
    history: &History,
    (from, to): (i64, i64),
    is_wanted: impl Fn(&Submit) -> bool,
) -> Vec<(i64, i64)> {
    let mut records: Vec<(Uuid, i64)> =
        history.records.iter().map(|record| (record.id, record.at)).collect();
    records.sort_by_key(|(_, at)| *at);
    let submits =
        history.submits.iter().filter(|submit| is_wanted(submit)).filter_map(|submit| match submit
            .outcome
        {
            Outcome::Accepted { id, due_at, .. } if due_at - submit.answered_at >= SETTLED_MS => {
                Some((id, due_at))
            }
            _ => None,
        });
    let due: HashMap<Uuid, i64> =
        submits.filter(|(_, due_at)| (from..to).contains(due_at)).collect();
    let mut seen = HashSet::new();
    let first = records.into_iter().filter(|(id, _)| seen.insert(*id));
    first.filter_map(|(id, at)| Some((*due.get(&id)?, at))).collect()
}

fn p99(history: &History, span: (i64, i64), is_wanted: impl Fn(&Submit) -> bool) -> i64 {
    let mut lateness: Vec<i64> =
        appended(history, span, is_wanted).into_iter().map(|(due_at, at)| at - due_at).collect();
    lateness.sort_unstable();
    let index = lateness.len() * 99 / 100;
    lateness.get(index).copied().unwrap_or(i64::MAX)
}

/// Checks that the p99 is as before, within a fifth or `more_ms` milliseconds.
fn same_lateness(
    history: &History,
    what: &str,
    during: (i64, i64),
    more_ms: i64,
    is_wanted: fn(&Submit) -> bool,
) -> Vec<Figure> {
    let base =
        p99(history, (history.started_at + BASE_MS.0, history.started_at + BASE_MS.1), is_wanted);
    let limit = (base + more_ms).max(base * 6 / 5);
    vec![
        figure(&format!("{what}: p99 before"), base, Limit::None, "ms"),
        at_most(&format!("{what}: p99 meanwhile"), p99(history, during, is_wanted), limit, "ms"),
    ]
}

/// Returns when the last task was appended that fell due within the span and was overdue by then.
fn overdue_until(history: &History, span: (i64, i64)) -> i64 {
    let late = appended(history, span, |_| true)
        .into_iter()
        .filter(|(due_at, at)| at - due_at > OVERDUE_MS);
    late.map(|(_, at)| at).max().unwrap_or(span.0)
}

fn taken_over(history: &History, span: &Span, limit: i64) -> Figure {
    let until = overdue_until(history, (span.begin - 500, span.end));
    at_most("its share was published by the others after", until - span.begin, limit, "ms")
}

fn count(of: &[(i64, i64)]) -> i64 {
    i64::try_from(of.len()).unwrap()
}

fn figure(what: &str, measured: i64, limit: Limit, unit: &'static str) -> Figure {
    Figure { what: what.to_owned(), measured, limit, unit }
}

fn at_most(what: &str, measured: i64, limit: i64, unit: &'static str) -> Figure {
    figure(what, measured, Limit::AtMost(limit), unit)
}

fn at_least(what: &str, measured: i64, limit: i64, unit: &'static str) -> Figure {
    figure(what, measured, Limit::AtLeast(limit), unit)
}

impl Figure {
    pub fn is_met(&self) -> bool {
        match self.limit {
            Limit::AtMost(limit) => self.measured <= limit,
            Limit::AtLeast(limit) => self.measured >= limit,
            Limit::None => true,
        }
    }
}

impl fmt::Display for Figure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { what, measured, unit, .. } = self;
        write!(f, "{what} {measured} {unit}")?;
        let verdict = if self.is_met() { "ok" } else { "BROKEN" };
        match self.limit {
            Limit::AtMost(limit) => write!(f, " (at most {limit}: {verdict})"),
            Limit::AtLeast(limit) => write!(f, " (at least {limit}: {verdict})"),
            Limit::None => Ok(()),
        }
    }
}
