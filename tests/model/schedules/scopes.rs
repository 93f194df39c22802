//! The schedules of the searches, and the mistakes that they must find.

use std::collections::BTreeSet;
use std::time::Duration;

use punctual::domain::schedule::Specification;
use punctual::domain::schedule::plan::{MissedPolicy, MissedRuns, RunOverlap};
use punctual::domain::schedule::timing::{Recurrence, Timing};

use super::{
    COUNTED, IN_TURN, INSTANTS, MADE_AGAIN, NEWEST, NUMBERED, ONE_RUN, PAUSED, PERIOD, at,
};
use crate::checker::NEVER_LOST;

/// A deliberate mistake, which is a control of the checker.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Mistake {
    /// A plan takes effect wherever the schedule stands.
    NoCompare,
    /// A plan compares the next run, but not the revision, and has the record that it found.
    NoRevision,
    /// The next run is stored in one transaction, and the runs in another.
    TwoTransactions,
    /// Plans do not ask for instants that have a run already.
    TakenIsNotAsked,
    /// A change does not go back to the runs that it withdraws.
    NoStepBack,
    /// A change takes back claimed runs.
    WithdrawsClaimed,
    /// The row of a withdrawn run stays.
    RowStays,
    /// A change does not lock the schedule before it looks at the runs.
    NoLock,
    /// A pause leaves the runs that are made.
    PauseLeavesRuns,
    /// A change forgets what withdrawn runs have counted.
    CountsAreForgotten,
    /// A schedule that skips does not ask for unfinished runs.
    BusyIsNotAsked,
    /// A change looks only for the first rows of runs.
    RowsAreNotFollowed,
    /// A change looks for runs once.
    LooksOnce,
    /// A plan takes the instants of withdrawn runs for missed ones.
    WithdrawnAreMissed,
}

pub type Control = (Mistake, fn() -> Scope, &'static str);

pub const CONTROLS: [Control; 14] = [
    (Mistake::NoCompare, all_missed, NUMBERED),
    (Mistake::NoRevision, all_missed, NEWEST),
    (Mistake::TwoTransactions, all_missed, NUMBERED),
    (Mistake::TakenIsNotAsked, all_missed, NUMBERED),
    (Mistake::NoStepBack, all_missed, COUNTED),
    (Mistake::WithdrawsClaimed, all_missed, ONE_RUN),
    (Mistake::RowStays, all_missed, NEVER_LOST),
    (Mistake::NoLock, all_missed, NEWEST),
    (Mistake::PauseLeavesRuns, all_missed, PAUSED),
    (Mistake::CountsAreForgotten, none_missed, COUNTED),
    (Mistake::BusyIsNotAsked, skipping, IN_TURN),
    (Mistake::RowsAreNotFollowed, moving, NEWEST),
    (Mistake::LooksOnce, moving, NEWEST),
    (Mistake::WithdrawnAreMissed, none_missed, MADE_AGAIN),
];

/// The schedule of a search, and the number of its states.
pub struct Scope {
    pub name: &'static str,
    pub specification: Specification,
    pub moves_max: u8,
    pub state_count: usize,
}

fn scope(name: &'static str, missed: MissedPolicy, run_overlap: RunOverlap) -> Scope {
    let period = Duration::from_secs(PERIOD.unsigned_abs());
    let recurrence = Recurrence::every(period, Duration::ZERO).unwrap();
    let end = at(PERIOD * INSTANTS as i64 + 1);
    let timing = Timing::new(recurrence, None, Some(end), BTreeSet::new()).unwrap();
    let specification = Specification {
        timing,
        runs_max: None,
        missed: MissedRuns::new(missed, None, None).unwrap(),
        run_overlap,
        spread: Duration::ZERO,
        is_paused: false,
        note: None,
    };
    Scope { name, specification, moves_max: 0, state_count: 0 }
}

fn all_missed() -> Scope {
    Scope { state_count: 289_992, ..scope("all missed", MissedPolicy::All, RunOverlap::Allow) }
}

fn last_missed() -> Scope {
    Scope { state_count: 360_435, ..scope("last missed", MissedPolicy::Last, RunOverlap::Allow) }
}

fn none_missed() -> Scope {
    Scope { state_count: 587_602, ..scope("none missed", MissedPolicy::None, RunOverlap::Allow) }
}

fn skipping() -> Scope {
    Scope { state_count: 356_860, ..scope("skipping", MissedPolicy::Last, RunOverlap::Skip) }
}

fn moving() -> Scope {
    let scope = scope("moving", MissedPolicy::All, RunOverlap::Allow);
    Scope { moves_max: 2, state_count: 1_770_654, ..scope }
}

pub fn all() -> [Scope; 5] {
    [all_missed(), last_missed(), none_missed(), skipping(), moving()]
}
