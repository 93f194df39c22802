//! Rule 22: each instant of a schedule has one run, or none for a reason that the next run counts.

use std::collections::{BTreeMap, HashMap, HashSet};

use uuid::Uuid;

use super::clock::PostgresClock;
use super::history::{Arrival, Line, SCHEDULED};
use super::lateness;
use super::oracle::{Case, Rule, Traces};
use super::schedule_history::{Command, Order, Put};

/// A run that was claimed before a change is noted this much later.
const CLAIM_MAX_MS: i64 = 100;
/// Each schedule has a run within this time, also when it is paused or its servers are away for a
/// while. Shorter histories may have none.
const FIRST_RUN_MAX_MS: i64 = 40_000;

/// A run with everything about its task.
struct Run<'a> {
    at: i64,
    id: Uuid,
    records: Vec<&'a Arrival>,
    lines: Vec<&'a Line>,
}

impl<'a> Run<'a> {
    /// Returns when its row was claimed for the first time, by Postgres's clock.
    fn claimed_at(&self) -> Option<i64> {
        let is_claim = |line: &&&Line| !matches!(line.state.as_str(), "finished" | "cancelled");
        self.lines.iter().filter(is_claim).filter_map(|line| line.claimed_at).min()
    }

    /// Returns when it was finished, or given up, by Postgres's clock.
    fn ended_at(&self) -> Option<i64> {
        let is_end = |line: &&&Line| matches!(line.state.as_str(), "finished" | "dead");
        self.lines.iter().find(is_end).and_then(|line| line.claimed_at)
    }

    fn first(&self) -> Option<&'a Arrival> {
        self.records.first().copied()
    }
}

/// Everything about one schedule.
struct Life<'a> {
    name: &'a str,
    commands: Vec<&'a Command>,
    puts: HashMap<u64, (usize, Put)>,
    runs: Vec<Run<'a>>,
}

impl<'a> Life<'a> {
    fn new(name: &'a str, mut commands: Vec<&'a Command>, runs: Vec<Run<'a>>) -> Self {
        commands.sort_by_key(|command| command.sent_at);
        let puts = commands.iter().enumerate().filter_map(|(index, command)| match command.order {
            Order::Put(put) => Some((put.serial, (index, put))),
            _ => None,
        });
        let puts = puts.collect();
        Self { name, commands, puts, runs }
    }

    /// Returns the PUT whose record a run has, and its place among the commands.
    fn put_of(&self, record: &Arrival) -> Option<(usize, Put)> {
        self.puts.get(&record.serial?).copied()
    }

    /// Returns the command that withdraws a run with the record of a PUT, unless the run is claimed
    /// before. A run that is due at the next PUT keeps its record, until a pause or another timing
    /// withdraws it.
    fn withdrawn_by(
        &self,
        (index, put): (usize, Put),
        run_at: i64,
        clock: &PostgresClock,
    ) -> Option<&'a Command> {
        let (mut was_due, mut is_paused) = (false, false);
        let mut later = self.commands[index + 1..].iter().copied();
        later.find(|command| match command.order {
            Order::Put(next) => {
                let [sent, answered] = [command.sent_at, command.answered_at];
                let is_due = run_at <= clock.latest(sent).max(clock.latest(answered));
                was_due = is_due && next.timing == put.timing && !is_paused;
                !was_due
            }
            Order::Pause => {
                is_paused = true;
                was_due
            }
            Order::Resume => {
                is_paused = false;
                false
            }
            Order::Trigger(_) => false,
        })
    }

    /// Returns true when all PUTs between two have the same instants.
    fn has_one_timing(&self, (one, other): (usize, usize)) -> bool {
        let between = &self.commands[one.min(other)..=one.max(other)];
        let mut timings = between.iter().filter_map(|command| match command.order {
            Order::Put(put) => Some(put.timing),
            _ => None,
        });
        let first = timings.next();
        timings.all(|timing| Some(timing) == first)
    }

    /// Returns when the timing of a PUT was first put, without another one since.
    fn began_at(&self, put: usize) -> i64 {
        let is_one = |first: &usize| self.has_one_timing((*first, put));
        let first = (0..put).rev().take_while(is_one).last().unwrap_or(put);
        self.commands[first].sent_at
    }

    /// Returns the places of all runs, in the order of their instants. `None` if one has no record,
    /// which another rule finds.
    fn places(&self, clock: &PostgresClock) -> Option<Vec<Place>> {
        let place = |run: &Run<'a>| {
            let record = run.first()?;
            let headers = record.run.as_ref()?;
            let (put, Put { timing, .. }) = self.put_of(record)?;
            let claimed_at = clock.reached(run.claimed_at()?);
            let mut resumes = self.commands.iter().enumerate().skip(put).filter(|(_, command)| {
                command.order == Order::Resume && command.sent_at <= claimed_at
            });
            Some(Place {
                id: run.id,
                at: run.at,
                number: i64::try_from(headers.number?).ok()?,
                missed: headers.missed,
                put,
                period_ms: timing.period_ms,
                epoch: resumes.next_back().map_or(put, |(index, _)| index),
            })
        };
        self.runs.iter().map(place).collect()
    }
}

/// Where a run stands among the others of its schedule.
struct Place {
    id: Uuid,
    at: i64,
    number: i64,
    missed: i64,
    /// The PUT whose record it has.
    put: usize,
    period_ms: i64,
    /// The PUT or resume by which it was made.
    epoch: usize,
}

impl<'a> Case<'a> {
    /// Checks all schedules and their runs.
    pub(super) fn check_schedules(&mut self) {
        let history = self.history;
        let mut tasks = self.tasks_of_schedules();
        let mut commands: BTreeMap<&str, Vec<&Command>> = BTreeMap::new();
        for command in &history.commands {
            commands.entry(&command.schedule).or_default().push(command);
        }
        for (name, commands) in commands {
            let made = history.runs.iter().filter(|run| run.schedule == name);
            let mut runs: Vec<Run<'a>> = made
                .map(|run| {
                    let task = tasks.remove(&run.id).unwrap_or_default();
                    Run { at: run.at, id: run.id, records: task.records, lines: task.lines }
                })
                .collect();
            runs.sort_by_key(|run| run.at);
            let life = Life::new(name, commands, runs);
            for run in &life.runs {
                self.check_run(&life, run);
            }
            self.check_sequence(&life);
            self.check_overlap(&life);
            self.check_tail(&life);
        }
        self.check_others(tasks);
    }

    /// Returns all tasks in the topic of the schedules.
    fn tasks_of_schedules(&self) -> HashMap<Uuid, Traces<'a>> {
        let mut tasks: HashMap<Uuid, Traces<'a>> = HashMap::new();
        for record in self.history.records.iter().filter(|record| record.topic == SCHEDULED) {
            tasks.entry(record.id).or_default().records.push(record);
        }
        for line in
            self.history.lines.iter().filter(|line| self.history.topic_of(line) == Some(SCHEDULED))
        {
            tasks.entry(line.id).or_default().lines.push(line);
        }
        tasks.values_mut().for_each(|task| task.records.sort_by_key(|record| record.at));
        tasks
    }

    /// A run has one final line and one record, which is not early, and that of the schedule.
    fn check_run(&mut self, life: &Life<'a>, run: &Run<'a>) {
        self.found.counts.runs += 1;
        let finals: Vec<&str> = run
            .lines
            .iter()
            .filter(|line| line.is_final())
            .map(|line| line.state.as_str())
            .collect();
        let named = format!("the run {}@{}", life.name, run.at);
        match finals.as_slice() {
            ["published" | "finished" | "dead"] => {}
            [] => self.add(Rule::Lost, Some(run.id), format!("{named} has no final line")),
            [state] => {
                self.add(Rule::WrongRun, Some(run.id), format!("{named} is {state}"));
            }
            _ => self.add(Rule::EndedTwice, Some(run.id), format!("{named}: {finals:?}")),
        }
        for record in &run.records {
            self.check_record_of_run(life, run, record);
        }
        let (Some(first), Some(claimed_at)) = (run.first(), run.claimed_at()) else { return };
        let Some(put) = life.put_of(first) else { return };
        let clock = &self.history.clock;
        let next = life.withdrawn_by(put, run.at, clock);
        let stale = next.filter(|next| claimed_at > clock.latest(next.answered_at + CLAIM_MAX_MS));
        let stale = stale.map(|next| format!("has the record from before {next:?}"));
        let during = life.commands.windows(2).find(|pair| {
            pair[0].order == Order::Pause
                && claimed_at > clock.latest(pair[0].answered_at + CLAIM_MAX_MS)
                && claimed_at < clock.earliest(pair[1].sent_at)
        });
        let paused = during.map(|pair| format!("was claimed in spite of {:?}", pair[0]));
        for what in stale.into_iter().chain(paused) {
            self.add(
                Rule::WrongRun,
                Some(run.id),
                format!("{named}, claimed at {claimed_at}: {what}"),
            );
        }
        let since = life.commands.iter().filter(|command| command.sent_at <= first.at);
        let since = since.filter(|command| !matches!(command.order, Order::Trigger(_)));
        let since = since.map(|command| command.answered_at).max().unwrap_or_default();
        let due_at = self.history.clock.reached(run.at).max(since);
        self.found.lateness.push(first.at - due_at);
        let was_deferred = run.lines.iter().any(|line| line.state == "deferred");
        self.check_span(run.id, Some(SCHEDULED), (due_at, first.at), was_deferred);
    }

    fn check_record_of_run(&mut self, life: &Life<'a>, run: &Run<'a>, record: &Arrival) {
        let shown = self.history.clock.latest(record.at);
        if shown < run.at.max(record.due_header.unwrap_or_default()) {
            let what = format!("its instant is {}, and it arrived at {shown}", run.at);
            self.add(Rule::Early, Some(run.id), what);
        }
        let is_of_run = record.run.as_ref().is_some_and(|headers| {
            headers.schedule == life.name && headers.at == run.at && headers.number.is_some()
        });
        let is_of_put = life.put_of(record).is_some_and(|(_, put)| {
            record.payload_hash == Some(put.payload_hash) && run.at % put.timing.period_ms == 0
        });
        if !is_of_run || !is_of_put {
            let what = format!("the run {}@{} arrived as {record:?}", life.name, run.at);
            self.add(Rule::Changed, Some(run.id), what);
        }
    }

    /// Each run counts the instants without a run since the run before. A change may withdraw runs
    /// that are not claimed, even before a claimed one. Then they are made again, or the first run
    /// made after the change counts them and the instants that they have counted.
    fn check_sequence(&mut self, life: &Life<'a>) {
        let Some(places) = life.places(&self.history.clock) else { return };
        let mut found = Vec::new();
        // Instants without a run that no run has counted: all, and those since the last change.
        let (mut owed_in_all, mut owed) = (0, 0);
        for (index, place) in places.iter().enumerate() {
            let before = index.checked_sub(1).map(|before| &places[before]);
            let is_same = before.is_some_and(|before| place.epoch == before.epoch);
            let before = before.filter(|before| life.has_one_timing((before.put, place.put)));
            if let Some(before) = before {
                let between = (place.at - before.at) / place.period_ms - 1;
                let there = if is_same { owed } else { 0 } + between;
                owed_in_all += between;
                let gap_at = before.at + place.period_ms;
                let is_lost = there > place.missed && !self.may_withdraw(life, place, gap_at);
                if place.missed > owed_in_all || is_lost {
                    let what = format!(
                        "the run {}@{} counts {} instants without a run, and there are {there} to \
                         {owed_in_all}",
                        life.name, place.at, place.missed,
                    );
                    found.push((place.id, what));
                }
                owed = if is_same { (there - place.missed).max(0) } else { 0 };
                owed_in_all = (owed_in_all - place.missed).max(0);
            } else {
                // No run of this timing is before. Its instants begin with its first PUT.
                let since = self.history.clock.earliest(life.began_at(place.put));
                let there = (place.at - since).max(0) / place.period_ms;
                (owed, owed_in_all) = (0, (there - place.missed).max(0));
            }
            found.extend(check_number(&places, index, owed_in_all).map(|what| {
                (place.id, format!("the run {}@{} has the number {what}", life.name, place.at))
            }));
        }
        for (id, what) in found {
            self.add(Rule::WrongRun, Some(id), what);
        }
    }

    /// Returns true when a run of this instant may not have been claimed when the next order came.
    fn may_withdraw(&self, life: &Life<'a>, place: &Place, instant: i64) -> bool {
        let is_change = |command: &&&Command| !matches!(command.order, Order::Trigger(_));
        let next = life.commands[place.epoch + 1..].iter().find(is_change);
        next.is_some_and(|next| {
            let wait = (self.history.clock.reached(instant), next.answered_at);
            let unexplained = lateness::unexplained(&self.history.spans, None, wait, false);
            unexplained <= lateness::UNEXPLAINED_MAX_MS
        })
    }

    /// No run begins before the one before is finished, if the schedule says so.
    fn check_overlap(&mut self, life: &Life<'a>) {
        if !life.puts.values().all(|(_, put)| put.skips) {
            return;
        }
        for pair in life.runs.windows(2) {
            let Some((ended_at, claimed_at)) = pair[0].ended_at().zip(pair[1].claimed_at()) else {
                continue;
            };
            if claimed_at < ended_at {
                let what = format!(
                    "the run {}@{} began at {claimed_at}, and the one before ended at {ended_at}",
                    life.name, pair[1].at
                );
                self.add(Rule::WrongRun, Some(pair[1].id), what);
            }
        }
    }

    /// Runs are made until the schedule is paused for good.
    fn check_tail(&mut self, life: &Life<'a>) {
        let (Some(last), Some((end, before))) = (life.runs.last(), life.commands.split_last())
        else {
            if self.history.ended_at - self.history.started_at >= FIRST_RUN_MAX_MS {
                let what = format!("the schedule {} has no run", life.name);
                self.add(Rule::WrongRun, None, what);
            }
            return;
        };
        let Some((_, put)) = life.puts.values().max_by_key(|(index, _)| *index) else { return };
        if put.skips {
            return;
        }
        let changes = before.iter().filter(|command| !matches!(command.order, Order::Trigger(_)));
        let since = changes.map(|command| command.answered_at).max().unwrap_or_default();
        let from = self.history.clock.reached(last.at + put.timing.period_ms).max(since);
        let spans = &self.history.spans;
        let unexplained = lateness::unexplained(spans, None, (from, end.sent_at), false);
        if unexplained > lateness::UNEXPLAINED_MAX_MS {
            let what = format!(
                "no run of {} after {}, and nothing explains {unexplained} ms of it",
                life.name, last.at
            );
            self.add(Rule::Late, Some(last.id), what);
        }
    }

    /// All other tasks were withdrawn, or triggered.
    fn check_others(&mut self, tasks: HashMap<Uuid, Traces<'a>>) {
        let orders = || self.history.commands.iter().map(|command| &command.order);
        let triggered: HashSet<Uuid> = orders()
            .filter_map(|order| match order {
                Order::Trigger(id) => *id,
                _ => None,
            })
            .collect();
        let unknown = orders().filter(|order| **order == Order::Trigger(None)).count();
        let mut strangers = 0;
        for id in triggered.iter().filter(|id| !tasks.contains_key(*id)) {
            self.add(Rule::Lost, Some(*id), "it was triggered, and has no line".to_owned());
        }
        for (id, task) in tasks {
            let finals = task.lines.iter().filter(|line| line.is_final()).count();
            if finals != 1 {
                let rule = if finals == 0 { Rule::Lost } else { Rule::EndedTwice };
                let what = format!("{finals} final lines, {} records", task.records.len());
                self.add(rule, Some(id), what);
            }
            if task.state() == Some("cancelled") && task.records.is_empty() {
                continue;
            }
            let number = |record: &&Arrival| record.run.as_ref().and_then(|run| run.number);
            if let Some(record) = task.records.iter().find(|record| number(record).is_some()) {
                let what = format!("a run that the schedule does not have: {record:?}");
                self.add(Rule::WrongRun, Some(id), what);
            } else if !triggered.contains(&id) {
                strangers += 1;
                if strangers > unknown {
                    let what = "neither a run nor triggered".to_owned();
                    self.add(Rule::Stranger, Some(id), what);
                }
            }
        }
    }
}

/// Checks that the number of a run is its place among the runs that existed when it was made. Some
/// of those may have been withdrawn later. `gaps` is the number of instants before the run that
/// have no run and are not counted by one: each may have had one. So may the instant of each
/// earlier run that was made later, and the instants that such a run counts.
fn check_number(places: &[Place], index: usize, gaps: i64) -> Option<String> {
    let place = &places[index];
    let earlier = places.iter().filter(|other| other.epoch < place.epoch).count();
    let same = places[..=index].iter().filter(|other| other.epoch == place.epoch).count();
    let later = places[..index].iter().filter(|other| other.epoch > place.epoch);
    let again: i64 = later.map(|other| 1 + other.missed).sum();
    let expected = i64::try_from(earlier + same).ok()?;
    let most = expected + gaps + again;
    let is_right = (expected..=most).contains(&place.number);
    (!is_right).then(|| format!("{}, and should have {expected} to {most}", place.number))
}
