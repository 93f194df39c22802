//! How far a schedule has come after a change: where the next plan begins, and what it has counted.
//!
//! A change withdraws the runs that are not claimed, and the plan after it decides their instants
//! again. Claimed runs stay.

use std::time::Duration;

use super::Specification;
use crate::domain::Timestamp;
use crate::domain::cluster::WINDOW_MAX;

/// The longest time that a run is claimed before its instant: the longest window, and 5 s for
/// clocks that differ.
pub const CLAIMED_AHEAD_MAX: Duration = WINDOW_MAX.saturating_add(Duration::from_secs(5));

/// The instants of a changed schedule.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Instants {
    /// Those of before, unless the timing is another one.
    Kept,
    /// Computed anew, by other rules of its time zone.
    Renewed,
}

/// The runs that a change has withdrawn.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Withdrawn {
    pub earliest: Option<Timestamp>,
    /// The number of instants right before `earliest` without a run, which that run has counted.
    pub missed: u64,
    pub count: u64,
}

/// A change of a schedule.
#[derive(Clone, Copy, Debug)]
pub struct Change<'a> {
    pub before: &'a Specification,
    pub after: &'a Specification,
    pub instants: Instants,
    /// How far the schedule has come before the change.
    pub reached: Reached,
    pub withdrawn: Withdrawn,
    /// The last run up to [`CLAIMED_AHEAD_MAX`] after now. Later ones are not claimed: if they are
    /// still there, a caller has moved or cancelled them.
    pub last_run_at: Option<Timestamp>,
}

/// How far a schedule has come, without the instants that have a run.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Reached {
    /// `None` when the schedule has ended.
    pub next_run_at: Option<Timestamp>,
    pub runs_made: u64,
    /// Instants right before `next_run_at` that got no run, and that no run has counted.
    pub skipped: u64,
}

impl Change<'_> {
    /// Returns how far the schedule has come after the change at `now`. The next plan begins at the
    /// earliest withdrawn run. With another timing it begins after now and after the last claimed
    /// run. `shift` is how much later than their instants runs are due: the smaller value of before
    /// and after the change. Runs that are not due yet are decided again.
    pub fn outcome(&self, now: Timestamp, shift: Duration) -> Reached {
        let now = now.minus(shift);
        let Self { after, reached, withdrawn, .. } = self;
        let runs_made = reached.runs_made.saturating_sub(withdrawn.count);
        let is_same_timing = self.before.timing == after.timing;
        let has_more = after.runs_max.is_none_or(|runs_max| runs_made < runs_max);
        let last = self.last_run_at.unwrap_or_default();
        let earliest = [withdrawn.earliest, reached.next_run_at].into_iter().flatten().min();
        let skipped =
            if earliest == withdrawn.earliest { withdrawn.missed } else { reached.skipped };
        let (next_run_at, skipped) = match earliest {
            Some(earliest) if self.instants == Instants::Renewed => {
                // Instants that have passed are still to be made up for.
                let before = now.min(earliest.minus(Duration::from_millis(1)));
                (after.next_after(before.max(last), runs_made), skipped)
            }
            Some(earliest) if is_same_timing && has_more => (Some(earliest), skipped),
            _ => (after.next_after(now.max(last), runs_made), 0),
        };
        Reached { next_run_at, runs_made, skipped }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;
    use crate::domain::schedule::plan::{MissedRuns, RunOverlap};
    use crate::domain::schedule::timing::{Recurrence, Timing};

    fn at(second: i64) -> Timestamp {
        Timestamp::from_millis(second * 1000)
    }

    fn every(seconds: u64) -> Specification {
        let recurrence = Recurrence::every(Duration::from_secs(seconds), Duration::ZERO).unwrap();
        Specification {
            timing: Timing::new(recurrence, None, None, BTreeSet::new()).unwrap(),
            runs_max: None,
            missed: MissedRuns::LAST,
            run_overlap: RunOverlap::Allow,
            spread: Duration::ZERO,
            is_paused: false,
            note: None,
        }
    }

    /// A schedule that has made 7 runs, up to 400, and is changed at 250.
    fn reached_after(after: &Specification, withdrawn: Withdrawn) -> Reached {
        let reached = Reached { next_run_at: Some(at(500)), runs_made: 7, skipped: 3 };
        let (before, instants) = (&every(100), Instants::Kept);
        let last_run_at = Some(at(if withdrawn.count == 0 { 400 } else { 200 }));
        Change { before, after, instants, reached, withdrawn, last_run_at }
            .outcome(at(250), Duration::ZERO)
    }

    #[test]
    fn another_timing_decides_runs_again_whose_instants_have_passed_and_that_are_not_due() {
        let reached = Reached { next_run_at: Some(at(500)), runs_made: 7, skipped: 0 };
        let withdrawn = Withdrawn { earliest: Some(at(200)), missed: 0, count: 1 };
        let (before, after, instants) = (&every(100), &every(50), Instants::Kept);
        let last_run_at = Some(at(100));
        let change = Change { before, after, instants, reached, withdrawn, last_run_at };
        // The runs are due 80 s after their instants. At 250, that of 200 is still to come.
        let outcome = change.outcome(at(250), Duration::from_secs(80));
        assert_eq!(outcome.next_run_at, Some(at(200)));
    }

    #[test]
    fn the_next_plan_begins_at_the_earliest_withdrawn_run_with_what_it_has_counted() {
        let none = Withdrawn::default();
        let two = Withdrawn { earliest: Some(at(300)), missed: 4, count: 2 };
        let reached = |second, runs_made, skipped| Reached {
            next_run_at: Some(at(second)),
            runs_made,
            skipped,
        };
        assert_eq!(reached_after(&every(100), none), reached(500, 7, 3));
        assert_eq!(reached_after(&every(100), two), reached(300, 5, 4));
        // Another timing begins after now, and after the last run that stays.
        assert_eq!(reached_after(&every(60), two), reached(300, 5, 0));
        assert_eq!(reached_after(&every(60), none), reached(420, 7, 0));
    }

    #[test]
    fn a_schedule_that_has_all_its_runs_has_ended() {
        let five = Specification { runs_max: Some(5), ..every(100) };
        let one = Withdrawn { earliest: Some(at(400)), missed: 0, count: 1 };
        assert_eq!(reached_after(&five, one).next_run_at, None);
        let three = Withdrawn { count: 3, ..one };
        assert_eq!(reached_after(&five, three).next_run_at, Some(at(400)));
    }
}
