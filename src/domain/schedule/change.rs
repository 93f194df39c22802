//! How far a schedule has come after a change: where the next plan begins, and what it has counted.
//!
//! A change withdraws runs that are not claimed, and the plan after it decides their instants
//! again. Claimed runs stay. Unless the change is a pause or another timing, each withdrawn run is
//! made anew. Then runs that are due stay as well, if their key is the same.

use std::collections::BTreeSet;
use std::time::Duration;

use super::Specification;
use super::plan::{MISSED_AFTER, NotMissed};
use super::timing::Timing;
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
    /// The first run of the last unbroken series of withdrawn runs: see [`unbroken_from`].
    pub unbroken_from: Option<Timestamp>,
    pub latest: Option<Timestamp>,
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
    /// The last of the runs that are due up to [`CLAIMED_AHEAD_MAX`] after now, whatever spread
    /// they were made with. Runs that are due later are not claimed: if they are still there, a
    /// caller has moved or cancelled them.
    pub last_run_at: Option<Timestamp>,
    /// When the schedule was created. Plans make no run before it; a backfill may.
    pub created_at: Timestamp,
}

/// How far a schedule has come, without the instants that have a run.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Reached {
    /// `None` when the schedule has ended.
    pub next_run_at: Option<Timestamp>,
    pub runs_made: u64,
    /// Instants right before `next_run_at` that got no run, and that no run has counted.
    pub skipped: u64,
    pub not_missed: NotMissed,
}

/// How much later than their instants runs are due.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Shifts {
    pub before: Duration,
    pub after: Duration,
}

const MILLISECOND: Duration = Duration::from_millis(1);
/// Maximum number of runs in which [`unbroken_from`] looks for a gap.
pub const UNBROKEN_MAX: usize = 10_000;

impl Change<'_> {
    /// Returns how far the schedule has come after the change at `at`. The next plan begins at the
    /// earliest withdrawn run. Another timing begins at the first instant that is not due at `at`,
    /// after the last claimed run and after the creation. Runs that are not due yet are decided
    /// again.
    pub fn outcome(&self, at: Timestamp, shifts: Shifts) -> Reached {
        let now = at.minus(shifts.before.min(shifts.after)).max(self.created_at);
        let Self { after, reached, withdrawn, .. } = self;
        let runs_made = reached.runs_made.saturating_sub(withdrawn.count);
        let is_same_timing = self.is_same_timing();
        let has_more = after.runs_max.is_none_or(|runs_max| runs_made < runs_max);
        let last = self.last_run_at.unwrap_or_default();
        let earliest = [withdrawn.earliest, reached.next_run_at].into_iter().flatten().min();
        let skipped =
            if earliest == withdrawn.earliest { withdrawn.missed } else { reached.skipped };
        let (next_run_at, skipped) = match earliest {
            Some(earliest) if self.instants == Instants::Renewed => {
                // Instants that have passed are still to be made up for.
                let before = now.min(earliest.minus(MILLISECOND));
                (after.next_after(before.max(last), runs_made), skipped)
            }
            Some(earliest) if is_same_timing && has_more => (Some(earliest), skipped),
            _ => (after.next_after(now.max(last), runs_made), 0),
        };
        let not_missed = self.not_missed(next_run_at, at, shifts);
        Reached { next_run_at, runs_made, skipped, not_missed }
    }

    fn is_same_timing(&self) -> bool {
        self.before.timing == self.after.timing
    }

    /// Returns the instants that the plans after the change must not take for missed ones: those of
    /// the last withdrawn runs, and those that only a smaller shift has made due. The instants of a
    /// paused schedule are missed, and another timing begins at the change.
    fn not_missed(
        &self,
        next_run_at: Option<Timestamp>,
        at: Timestamp,
        shifts: Shifts,
    ) -> NotMissed {
        let Some(next_run_at) = next_run_at else { return NotMissed::default() };
        if !self.is_same_timing() || self.after.is_paused {
            return NotMissed::default();
        }
        let Withdrawn { unbroken_from, latest, .. } = self.withdrawn;
        let withdrawn = unbroken_from.zip(latest);
        let withdrawn = withdrawn.map(|(from, to)| NotMissed { from, to: to.plus(MILLISECOND) });
        let undue = NotMissed {
            from: at.minus(shifts.before).minus(MISSED_AFTER),
            to: at.minus(shifts.after),
        };
        // The plans may not have reached the instants of the previous change yet.
        let earlier = self.reached.not_missed;
        let ranges = [
            withdrawn,
            (shifts.after < shifts.before).then_some(undue),
            earlier.is_ahead_of(next_run_at).then_some(earlier),
        ];
        ranges.into_iter().flatten().fold(NotMissed::default(), NotMissed::with)
    }
}

/// Returns the first run of the last unbroken series of `withdrawn` runs. The series ends, going
/// back, at an instant without a run: an earlier plan has decided that it gets none. The runs at
/// the instants of `kept` stay, and do not end the series.
pub fn unbroken_from(
    timing: &Timing,
    withdrawn: &BTreeSet<Timestamp>,
    kept: &BTreeSet<Timestamp>,
) -> Option<Timestamp> {
    let mut from = *withdrawn.last()?;
    let mut next = from;
    let all = withdrawn | kept;
    for &at in all.range(..from).rev().take(UNBROKEN_MAX) {
        if timing.next_after(at).is_some_and(|between| between < next) {
            break;
        }
        if withdrawn.contains(&at) {
            from = at;
        }
        next = at;
    }
    Some(from)
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

    fn reached(second: i64, runs_made: u64, skipped: u64, not_missed: NotMissed) -> Reached {
        Reached { next_run_at: Some(at(second)), runs_made, skipped, not_missed }
    }

    fn range(from: i64, to: i64) -> NotMissed {
        NotMissed { from: at(from), to: at(to).plus(MILLISECOND) }
    }

    fn shifts(before: u64, after: u64) -> Shifts {
        let [before, after] = [before, after].map(Duration::from_secs);
        Shifts { before, after }
    }

    fn one_withdrawn(second: i64) -> Withdrawn {
        let run = Some(at(second));
        Withdrawn { earliest: run, unbroken_from: run, latest: run, missed: 0, count: 1 }
    }

    #[test]
    fn runs_before_an_instant_without_a_run_are_not_the_last_ones() {
        let timing = every(100).timing;
        let set = |seconds: &[i64]| seconds.iter().map(|second| at(*second)).collect();
        let from = |withdrawn: &[i64], kept: &[i64]| {
            unbroken_from(&timing, &set(withdrawn), &set(kept)).map(|at| at.as_millis() / 1000)
        };
        assert_eq!(from(&[], &[100]), None);
        assert_eq!(from(&[300, 400, 500], &[]), Some(300));
        assert_eq!(from(&[100, 400, 500], &[]), Some(400), "200 and 300 were missed");
        assert_eq!(from(&[100, 400, 500], &[200, 300]), Some(100));
        assert_eq!(from(&[100, 500], &[300, 400]), Some(500), "200 was missed");
        // Runs of a former timing are at instants of their own.
        assert_eq!(from(&[100, 150, 200], &[]), Some(100));
    }

    const NONE: NotMissed = NotMissed { from: Timestamp::EPOCH, to: Timestamp::EPOCH };

    /// A schedule that has made 7 runs, up to 400, and is changed at 250.
    fn reached_after(after: &Specification, withdrawn: Withdrawn) -> Reached {
        let (before, instants) = (&every(100), Instants::Kept);
        let last_run_at = Some(at(if withdrawn.count == 0 { 400 } else { 200 }));
        let (reached, created_at) = (reached(500, 7, 3, NONE), Timestamp::EPOCH);
        Change { before, after, instants, reached, withdrawn, last_run_at, created_at }
            .outcome(at(250), shifts(0, 0))
    }

    #[test]
    fn another_timing_decides_runs_again_whose_instants_have_passed_and_that_are_not_due() {
        let withdrawn = one_withdrawn(200);
        let (before, after, instants) = (&every(100), &every(50), Instants::Kept);
        let (reached, last_run_at) = (reached(500, 7, 0, NONE), Some(at(100)));
        let created_at = Timestamp::EPOCH;
        let change =
            Change { before, after, instants, reached, withdrawn, last_run_at, created_at };
        // The runs are due 80 s after their instants. At 250, that of 200 is still to come.
        let outcome = change.outcome(at(250), shifts(80, 80));
        assert_eq!((outcome.next_run_at, outcome.not_missed), (Some(at(200)), NONE));
    }

    /// A spread makes runs due later. The instants of the last hours may have run before it.
    #[test]
    fn another_timing_repeats_no_run_of_a_smaller_spread_and_no_instant_before_the_creation() {
        let (before, withdrawn, reached) =
            (&every(100), one_withdrawn(900), reached(1000, 9, 0, NONE));
        let next = |after: &Specification, instants, last: Option<i64>, created: i64| {
            let (last_run_at, created_at) = (last.map(at), at(created));
            Change { before, after, instants, reached, withdrawn, last_run_at, created_at }
                .outcome(at(850), shifts(600, 600))
                .next_run_at
        };
        let (other, same) = (&every(70), &every(100));
        assert_eq!(next(other, Instants::Kept, Some(200), 0), Some(at(280)));
        assert_eq!(next(other, Instants::Kept, Some(800), 0), Some(at(840)), "800 has run");
        assert_eq!(next(other, Instants::Kept, None, 820), Some(at(840)), "created at 820");
        // Newer rules of a zone begin at the earliest withdrawn run, or before.
        assert_eq!(next(same, Instants::Renewed, None, 0), Some(at(300)));
        assert_eq!(next(same, Instants::Renewed, Some(800), 0), Some(at(900)));
        assert_eq!(next(same, Instants::Renewed, None, 820), Some(at(900)));
    }

    #[test]
    fn the_next_plan_begins_at_the_earliest_withdrawn_run_with_what_it_has_counted() {
        let none = Withdrawn::default();
        let two = Withdrawn { latest: Some(at(400)), missed: 4, count: 2, ..one_withdrawn(300) };
        assert_eq!(reached_after(&every(100), none), reached(500, 7, 3, NONE));
        assert_eq!(reached_after(&every(100), two), reached(300, 5, 4, range(300, 400)));
        // Another timing begins after now, and after the last run that stays.
        assert_eq!(reached_after(&every(60), two), reached(300, 5, 0, NONE));
        assert_eq!(reached_after(&every(60), none), reached(420, 7, 0, NONE));
        let paused = Specification { is_paused: true, ..every(100) };
        assert_eq!(reached_after(&paused, two), reached(300, 5, 4, NONE), "a pause");
    }

    #[test]
    fn a_schedule_that_has_all_its_runs_has_ended() {
        let five = Specification { runs_max: Some(5), ..every(100) };
        let one = one_withdrawn(400);
        assert_eq!(reached_after(&five, one).next_run_at, None);
        let three = Withdrawn { count: 3, ..one };
        assert_eq!(reached_after(&five, three).next_run_at, Some(at(400)));
    }

    #[test]
    fn instants_that_a_smaller_shift_makes_due_are_not_missed() {
        let (before, after) = (&every(100), &every(100));
        let (instants, last_run_at, created_at) = (Instants::Kept, None, Timestamp::EPOCH);
        // At 1000, the runs of before 400 are due. That of 400 was made, and is withdrawn.
        let withdrawn = one_withdrawn(400);
        let reached_before = |not_missed| reached(500, 4, 0, not_missed);
        let outcome = |withdrawn, reached, to| {
            Change { before, after, instants, reached, withdrawn, last_run_at, created_at }
                .outcome(at(1000), shifts(600, to))
        };
        let undue = |to: i64| NotMissed { from: at(390), to: at(to) };
        let change = outcome(withdrawn, reached_before(NONE), 50);
        assert_eq!(change, reached(400, 3, 0, undue(950)));
        assert_eq!(outcome(withdrawn, reached_before(NONE), 700).not_missed, range(400, 400));
        let none = Withdrawn::default();
        assert_eq!(outcome(none, reached_before(NONE), 0).not_missed, undue(1000));
        // A change before has made instants due that the plans have not come to.
        let earlier = NotMissed { from: at(300), to: at(501) };
        let both = NotMissed { from: at(300), to: at(950) };
        assert_eq!(outcome(none, reached_before(earlier), 50).not_missed, both);
        let passed = NotMissed { from: at(300), to: at(500) };
        assert_eq!(outcome(none, reached_before(passed), 50).not_missed, undue(950));
        assert_eq!(outcome(none, reached_before(passed), 600).not_missed, NONE);
    }
}
