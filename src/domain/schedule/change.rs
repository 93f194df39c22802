//! How far a schedule has come after a change: where the next plan begins, and what it has counted.
//!
//! A change withdraws the runs that are not claimed, and the plan after it decides their instants
//! again. Claimed runs stay.

use std::time::Duration;

use super::Specification;
use crate::domain::Timestamp;

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

/// A change of a schedule that has come as far as `reached`.
#[derive(Clone, Copy, Debug)]
pub struct Change<'a> {
    pub before: &'a Specification,
    pub after: &'a Specification,
    pub instants: Instants,
    pub reached: Reached,
    pub withdrawn: Withdrawn,
    /// The last run that is still there.
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
    /// earliest withdrawn run. With another timing it begins after now and after the last run.
    pub fn reached(&self, now: Timestamp) -> Reached {
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
