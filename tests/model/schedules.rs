//! The protocol of a schedule of three instants: two nodes plan runs and make them, callers change,
//! pause and resume the schedule, and its runs are claimed meanwhile. Plans, and what a change
//! leaves, are decided by the program's own code.
//!
//! A plan may be as old as it likes, an answer may be lost after its commit, and a node may die. A
//! change holds the row of the schedule from its first look at the runs to its commit. Claims do
//! not wait for it. Nor does the row of a run, which moves when its topic is paused, when a claim
//! defers it, and when a caller moves it. So a change looks again until no run is left. A pause
//! looks for all unclaimed runs, and another change for those that are not due when it looks.

mod scopes;
mod state;

use std::time::Duration;

use punctual::domain::Timestamp;
use punctual::domain::schedule::Specification;
use punctual::domain::schedule::change::{Change, Instants, Reached, Shifts, Withdrawn};
use punctual::domain::schedule::plan::{NotMissed, Plan, Progress, RunOverlap};

use self::scopes::{CONTROLS, Mistake, Scope};
use crate::checker::Model;
use crate::searches::{ScopeSearches, unnoticed};

const ONE_RUN: &str = "an instant has one run at most";
const COUNTED: &str = "an instant without a run is counted by a run, or by the schedule";
const NUMBERED: &str = "the schedule counts the runs that it has";
const NEWEST: &str = "an unclaimed run has the record of the last change before it was due";
const MADE_AGAIN: &str = "a run that a change takes back is made again, unless by a pause";
const PAUSED: &str = "a paused schedule has no unclaimed run";
const IN_TURN: &str = "a schedule that skips has one unfinished run";

const NODES: usize = 2;
const INSTANTS: usize = 3;
const NO_SHIFT: Shifts = Shifts { before: Duration::ZERO, after: Duration::ZERO };
/// Seconds between two instants: more than the time for which runs are made ahead.
const PERIOD: i64 = 100;
const BASE: i64 = 1_800_000_000;
/// The seconds at which the time stands: before the first instant, then right after each one, and
/// when it is long past.
const TIMES: [i64; 7] = [50, 101, 150, 201, 250, 301, 350];
const CHANGES_MAX: u8 = 2;
const FAULTS_MAX: u8 = 1;

fn at(second: i64) -> Timestamp {
    Timestamp::from_millis((BASE + second) * 1000)
}

/// Returns the place of an instant.
fn place(at: Timestamp) -> usize {
    usize::try_from((at.as_millis() / 1000 - BASE) / PERIOD - 1).unwrap()
}

fn instant(place: usize) -> Timestamp {
    at((place as i64 + 1) * PERIOD)
}

/// A run with its row in the table of runs.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
enum Run {
    Unclaimed {
        /// The revision of the schedule. A run that was due at a change has the later one.
        revision: u8,
        /// How often it has become another row.
        row: u8,
    },
    /// Deleted by the open transaction of a change. The revision 0 is that of a claimed run, for a
    /// mistake.
    Withdrawn {
        revision: u8,
        row: u8,
    },
    Claimed,
    Finished,
    /// Withdrawn, but its row is still there, for a mistake.
    Stays,
}

/// What is stored of one instant.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
struct Place {
    run: Option<Run>,
    /// The number of instants right before it that the run counts.
    missed: u8,
    claims: u8,
    /// A change has withdrawn its run, which is to be made again.
    is_owed: bool,
}

/// A plan, with the place and the revision at which it found the schedule.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
struct Planned {
    found: u8,
    revision: u8,
    next: Option<u8>,
    look_at: Option<i64>,
    made: u8,
    skipped: u8,
    /// The runs, and the instants that each counts.
    runs: [Option<u8>; INSTANTS],
}

#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
enum Kind {
    Put,
    Pause,
    Resume,
}

/// The transaction of a change.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
enum Phase {
    Idle,
    /// Has seen these rows of unclaimed runs.
    Looked {
        kind: Kind,
        seen: Seen,
    },
    Deleted {
        kind: Kind,
    },
    /// Has seen no unclaimed run any more.
    Done {
        kind: Kind,
    },
}

type Seen = [Option<u8>; INSTANTS];

#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
struct State {
    time: u8,
    next: Option<u8>,
    look_at: Option<i64>,
    made: u8,
    skipped: u8,
    revision: u8,
    is_paused: bool,
    /// The first and the last place that is not missed.
    not_missed: Option<(u8, u8)>,
    places: [Place; INSTANTS],
    plans: [Option<Planned>; NODES],
    /// Runs that are still to be stored, for a mistake.
    to_store: Option<Planned>,
    phase: Phase,
    is_overlapping: bool,
    moves: u8,
    changes: u8,
    faults: u8,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Action {
    Tick,
    Look(usize),
    Make(usize),
    StoreRuns,
    Claim(usize),
    Finish(usize),
    Move(usize),
    Begin(Kind),
    Delete,
    LookAgain,
    Commit,
    Abort,
    Die(usize),
}

const KINDS: [&str; 12] = [
    "tick",
    "look",
    "make",
    "claim",
    "finish",
    "begin a change",
    "delete runs",
    "commit a change",
    "abort a change",
    "die",
    "move",
    "look again",
];

struct Scheduled {
    scope: Scope,
    mistake: Option<Mistake>,
}

impl Scheduled {
    fn is(&self, mistake: Mistake) -> bool {
        self.mistake == Some(mistake)
    }

    fn skips(&self) -> bool {
        self.scope.specification.run_overlap == RunOverlap::Skip
    }

    fn plan(&self, state: &State, next: u8) -> Planned {
        let from = usize::from(next);
        let has_run = |place: &usize| state.places[*place].run.is_some();
        let taken: Vec<Timestamp> = (from..INSTANTS).filter(has_run).map(instant).collect();
        let progress = Progress {
            next_run_at: instant(from),
            runs_made: state.made.into(),
            skipped: state.skipped.into(),
            is_busy: state.is_busy() && !self.is(Mistake::BusyIsNotAsked),
            taken: if self.is(Mistake::TakenIsNotAsked) { &[] } else { &taken },
            not_missed: state.range(),
        };
        let now = at(TIMES[usize::from(state.time)]);
        let Plan { runs, next_run_at, look_at, runs_made, skipped, .. } =
            self.scope.specification.plan(progress, now, Duration::ZERO, INSTANTS);
        let mut counts = [None; INSTANTS];
        for run in runs {
            counts[place(run.at)] = Some(u8::try_from(run.missed).unwrap());
        }
        Planned {
            found: next,
            revision: state.revision,
            next: next_run_at.map(|at| u8::try_from(place(at)).unwrap()),
            look_at: look_at.map(|at| at.as_millis() / 1000 - BASE),
            made: u8::try_from(runs_made).unwrap(),
            skipped: u8::try_from(skipped).unwrap(),
            runs: counts,
        }
    }

    /// Takes the step of the statement that makes the runs of a plan.
    fn make(&self, state: &mut State, plan: Planned) {
        let is_same = state.next == Some(plan.found) || self.is(Mistake::NoCompare);
        let is_unchanged = state.revision == plan.revision
            || self.is(Mistake::NoCompare)
            || self.is(Mistake::NoRevision);
        if !is_same || !is_unchanged || state.is_paused {
            return;
        }
        (state.next, state.look_at) = (plan.next, plan.look_at);
        (state.made, state.skipped) = (plan.made, plan.skipped);
        if self.is(Mistake::TwoTransactions) {
            state.to_store = Some(plan);
        } else {
            self.store(state, plan);
        }
    }

    fn store(&self, state: &mut State, plan: Planned) {
        let revision = if self.is(Mistake::NoRevision) { plan.revision } else { state.revision };
        for (place, missed) in state.places.iter_mut().zip(plan.runs) {
            if let (None, Some(missed)) = (place.run, missed) {
                (place.run, place.missed) = (Some(Run::Unclaimed { revision, row: 0 }), missed);
                place.is_owed = false;
            }
        }
    }

    /// Returns the rows of unclaimed runs that a change finds.
    fn seen(&self, state: &State, kind: Kind) -> Seen {
        if kind == Kind::Pause && self.is(Mistake::PauseLeavesRuns) {
            return [None; INSTANTS];
        }
        let mut seen = [None; INSTANTS];
        for (index, place) in state.places.iter().enumerate() {
            seen[index] = match place.run {
                Some(Run::Claimed) if self.is(Mistake::WithdrawsClaimed) => Some(0),
                Some(Run::Unclaimed { row, .. }) if kind == Kind::Pause || !state.is_due(index) => {
                    (row == 0 || !self.is(Mistake::RowsAreNotFollowed)).then_some(row)
                }
                _ => None,
            };
        }
        seen
    }

    /// Takes the step of the statement that deletes the rows of unclaimed runs.
    fn delete(&self, state: &mut State, seen: Seen) {
        for (place, seen) in state.places.iter_mut().zip(seen) {
            match place.run {
                Some(Run::Unclaimed { revision, row }) if seen == Some(row) => {
                    place.run = Some(Run::Withdrawn { revision, row });
                }
                Some(Run::Claimed) if seen.is_some() && self.is(Mistake::WithdrawsClaimed) => {
                    place.run = Some(Run::Withdrawn { revision: 0, row: 0 });
                }
                _ => {}
            }
        }
    }

    fn commit(&self, state: &mut State, kind: Kind) {
        let mut withdrawn = Withdrawn::default();
        let is_due: [bool; INSTANTS] = std::array::from_fn(|index| state.is_due(index));
        for (index, place) in state.places.iter_mut().enumerate() {
            place.is_owed &= kind != Kind::Pause;
            match &mut place.run {
                Some(Run::Withdrawn { .. }) => {}
                Some(Run::Unclaimed { revision, .. }) if kind != Kind::Pause && is_due[index] => {
                    *revision = state.revision + 1;
                    continue;
                }
                _ => continue,
            }
            if !self.is(Mistake::NoStepBack) {
                if withdrawn.earliest.is_none() {
                    withdrawn.earliest = Some(instant(index));
                    withdrawn.missed = place.missed.into();
                }
                withdrawn.unbroken_from = withdrawn.earliest;
                withdrawn.latest = Some(instant(index));
            }
            withdrawn.count += 1;
            place.run = self.is(Mistake::RowStays).then_some(Run::Stays);
            place.missed = 0;
            place.is_owed = kind != Kind::Pause;
        }
        if self.is(Mistake::CountsAreForgotten) {
            withdrawn.missed = 0;
        }
        let before = &self.scope.specification;
        let after = &Specification { is_paused: kind == Kind::Pause, ..before.clone() };
        let last = state.places.iter().rposition(|place| place.run.is_some());
        let change = Change {
            before,
            after,
            instants: Instants::Kept,
            reached: Reached {
                next_run_at: state.next.map(|next| instant(next.into())),
                runs_made: state.made.into(),
                skipped: state.skipped.into(),
                not_missed: state.range(),
            },
            withdrawn,
            last_run_at: last.map(instant),
            created_at: Timestamp::EPOCH,
        };
        let now = TIMES[usize::from(state.time)];
        let reached = change.outcome(at(now), NO_SHIFT);
        let number = |at| u8::try_from(place(at)).unwrap();
        state.next = reached.next_run_at.map(number);
        let NotMissed { from, to } = reached.not_missed;
        let has_range = from < to && !self.is(Mistake::WithdrawnAreMissed);
        state.not_missed = has_range.then(|| (number(from), number(to)));
        state.made = u8::try_from(reached.runs_made).unwrap();
        state.skipped = u8::try_from(reached.skipped).unwrap();
        state.revision += 1;
        state.is_paused = kind == Kind::Pause;
        state.look_at = state.next.filter(|_| !state.is_paused).map(|_| now);
        state.phase = Phase::Idle;
    }
}

impl Model for Scheduled {
    type State = State;
    type Action = Action;

    fn initial(&self) -> State {
        State {
            time: 0,
            next: Some(0),
            look_at: Some(TIMES[0]),
            made: 0,
            skipped: 0,
            revision: 1,
            is_paused: false,
            not_missed: None,
            places: [Place::default(); INSTANTS],
            plans: [None; NODES],
            to_store: None,
            phase: Phase::Idle,
            is_overlapping: false,
            moves: 0,
            changes: 0,
            faults: 0,
        }
    }

    fn actions(&self, _state: &State, actions: &mut Vec<Action>) {
        for node in 0..NODES {
            actions.extend([Action::Look(node), Action::Make(node), Action::Die(node)]);
        }
        for place in 0..INSTANTS {
            actions.extend([Action::Claim(place), Action::Finish(place), Action::Move(place)]);
        }
        actions.extend([Kind::Put, Kind::Pause, Kind::Resume].map(Action::Begin));
        actions.extend([Action::Tick, Action::StoreRuns]);
        actions.extend([Action::Delete, Action::LookAgain, Action::Commit, Action::Abort]);
    }

    fn step(&self, state: &State, action: Action) -> Option<State> {
        let mut next = *state;
        match action {
            Action::Tick => {
                next.time += 1;
                TIMES.get(usize::from(next.time))?;
            }
            Action::Look(node) => {
                let is_due = state.look_at? <= TIMES[usize::from(state.time)];
                if !is_due || state.plans[node].is_some() {
                    return None;
                }
                next.plans[node] = Some(self.plan(state, state.next?));
            }
            Action::Make(node) => {
                if state.is_locked() && !self.is(Mistake::NoLock) {
                    return None;
                }
                let plan = next.plans[node].take()?;
                self.make(&mut next, plan);
            }
            Action::StoreRuns => {
                let plan = next.to_store.take()?;
                self.store(&mut next, plan);
            }
            Action::Claim(index) => {
                let is_there = matches!(state.places[index].run, Some(Run::Unclaimed { .. }));
                if !state.is_due(index) || !is_there {
                    return None;
                }
                let before = state.places[..index].iter();
                let is_unfinished = |place: &Place| place.run == Some(Run::Claimed);
                next.is_overlapping |= self.skips() && before.clone().any(is_unfinished);
                let place = &mut next.places[index];
                (place.run, place.claims) = (Some(Run::Claimed), place.claims + 1);
            }
            Action::Finish(index) => {
                // Nothing else asks for the end of a run.
                if !self.skips() || state.places[index].run != Some(Run::Claimed) {
                    return None;
                }
                next.places[index].run = Some(Run::Finished);
            }
            Action::Move(index) => {
                let Some(Run::Unclaimed { row, .. }) = &mut next.places[index].run else {
                    return None;
                };
                *row += 1;
                next.moves += 1;
                if next.moves > self.scope.moves_max {
                    return None;
                }
            }
            Action::Begin(kind) => {
                let is_wanted = match kind {
                    Kind::Put | Kind::Pause => !state.is_paused && state.changes < CHANGES_MAX,
                    Kind::Resume => state.is_paused,
                };
                if !is_wanted || state.is_locked() {
                    return None;
                }
                next.changes += u8::from(kind != Kind::Resume);
                next.phase = Phase::Looked { kind, seen: self.seen(state, kind) };
            }
            Action::Delete => {
                let Phase::Looked { kind, seen } = state.phase else { return None };
                self.delete(&mut next, seen);
                next.phase = Phase::Deleted { kind };
            }
            Action::LookAgain => {
                let Phase::Deleted { kind } = state.phase else { return None };
                let seen = self.seen(state, kind);
                let is_done = seen.iter().all(Option::is_none) || self.is(Mistake::LooksOnce);
                next.phase =
                    if is_done { Phase::Done { kind } } else { Phase::Looked { kind, seen } };
            }
            Action::Commit => {
                let Phase::Done { kind } = state.phase else { return None };
                self.commit(&mut next, kind);
            }
            Action::Abort => {
                if !state.is_locked() {
                    return None;
                }
                next.put_back();
                next.phase = Phase::Idle;
            }
            Action::Die(node) => {
                next.plans[node].take()?;
                next.to_store = None;
            }
        }
        // Nodes are alike.
        next.plans.sort_unstable();
        if !self.is_progress(action) {
            next.faults += 1;
        }
        (next.faults <= FAULTS_MAX).then_some(next)
    }

    fn kind(&self, action: Action) -> &'static str {
        KINDS[match action {
            Action::Tick => 0,
            Action::Look(_) => 1,
            Action::Make(_) | Action::StoreRuns => 2,
            Action::Claim(_) => 3,
            Action::Finish(_) => 4,
            Action::Begin(_) => 5,
            Action::Delete => 6,
            Action::Commit => 7,
            Action::Abort => 8,
            Action::Die(_) => 9,
            Action::Move(_) => 10,
            Action::LookAgain => 11,
        }]
    }

    fn is_progress(&self, action: Action) -> bool {
        !matches!(action, Action::Abort | Action::Die(_))
    }

    fn broken(&self, state: &State) -> Option<&'static str> {
        if state.places.iter().any(|place| place.claims > 1) {
            return Some(ONE_RUN);
        }
        if state.is_overlapping {
            return Some(IN_TURN);
        }
        if state.is_locked() {
            return None;
        }
        let unclaimed = |place: &Place| match place.run {
            Some(Run::Unclaimed { revision, .. }) => Some(revision),
            _ => None,
        };
        let mut revisions = state.places.iter().filter_map(unclaimed);
        let has_unclaimed = revisions.clone().next().is_some();
        if state.is_paused && has_unclaimed {
            return Some(PAUSED);
        }
        if revisions.any(|revision| revision != state.revision) {
            return Some(NEWEST);
        }
        let count = |is_meant: fn(&Place) -> bool| {
            u8::try_from(state.places.iter().filter(|place| is_meant(place)).count()).unwrap()
        };
        if state.to_store.is_none()
            && state.made != count(|place| place.run.is_some_and(|run| run != Run::Stays))
        {
            return Some(NUMBERED);
        }
        let missed: u8 = state.places.iter().map(|place| place.missed).sum();
        // When a schedule has ended, no run comes any more that could count what is left.
        let end = state.next.map_or(0, usize::from);
        let without = state.places[..end].iter().filter(|place| place.run.is_none()).count();
        let is_counted = usize::from(missed + state.skipped) >= without;
        if !is_counted && state.to_store.is_none() {
            return Some(COUNTED);
        }
        let passed = state.next.map_or(INSTANTS, usize::from);
        let is_lost = |place: &Place| place.is_owed && place.run.is_none();
        let is_wrong = state.to_store.is_none() && state.places[..passed].iter().any(is_lost);
        is_wrong.then_some(MADE_AGAIN)
    }

    fn is_end(&self, state: &State) -> bool {
        let is_left = |place: &Place| match place.run {
            Some(Run::Unclaimed { .. } | Run::Stays) => true,
            Some(Run::Claimed) => self.skips(),
            _ => false,
        };
        usize::from(state.time) + 1 == TIMES.len()
            && state.next.is_none()
            && !state.is_locked()
            && !state.places.iter().any(is_left)
    }
}

#[test]
fn each_instant_of_a_schedule_has_one_run_or_is_counted() {
    let mut searches = ScopeSearches::begin();
    for scope in scopes::all() {
        let expected = (scope.name, scope.state_count);
        searches.search(&Scheduled { scope, mistake: None }, expected);
    }
    searches.end(&KINDS);
}

#[test]
fn each_mistake_at_a_schedule_is_found() {
    let unnoticed = CONTROLS.into_iter().filter_map(|(mistake, scope, property)| {
        unnoticed(&Scheduled { scope: scope(), mistake: Some(mistake) }, mistake, property)
    });
    let unnoticed: Vec<String> = unnoticed.collect();
    assert!(unnoticed.is_empty(), "{}", unnoticed.join("\n"));
}
