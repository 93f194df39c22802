//! Which runs of a schedule to make now: all runs due within the next minute, and always one that
//! lies ahead. Past instants without a run are missed, and the schedule decides about missed
//! instants.
//!
//! A plan is a value. The statement for the plan takes effect only while the schedule stands where
//! the plan found the schedule (`postgres/schedules/make.rs`).

use std::collections::VecDeque;
use std::time::Duration;

use az::SaturatingAs as _;

use super::name::ScheduleName;
use super::timing::{SpecificationError, Timing};
use crate::domain::{Headers, Timestamp};

/// A plan makes the runs of this much time.
pub const AHEAD: Duration = Duration::from_secs(60);
/// A schedule is planned again when its runs reach no further than this. A schedule of seconds is
/// thus planned every half minute, and not every second: each plan rewrites its row.
pub const PLANNED_AHEAD: Duration = Duration::from_secs(30);
/// Lead time of the runs of a schedule that skips: two turns of the loop of the runs, so the
/// decision is made about a second before the instant.
pub const SKIPPING_AHEAD: Duration = Duration::from_secs(2);
/// An instant is missed when it passed this long ago without a run.
pub const MISSED_AFTER: Duration = Duration::from_secs(10);
/// The most missed runs that are made up for.
pub const MISSED_MAX: u16 = 1_000;
/// The default of `all`: the most missed runs, and how long ago they may be.
pub const MISSED_DEFAULT: (u16, Duration) = (100, Duration::from_secs(3600));
/// The most runs of one plan; a plan of large records has fewer. The next plan makes the others,
/// at once.
pub const RUNS_MAX: usize = 100;
/// Maximum number of missed instants, and of later ones, that one plan looks at, so that a year of
/// missed seconds blocks no other schedule. The next plan continues.
const STEPS_MAX: usize = 10_000;
/// The most plans of an answer about the runs to come.
const PLANS_MAX: usize = 10;

/// Which runs are made for instants that were missed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct MissedRuns {
    /// The most runs, for the latest instants: 0, 1, or up to [`MISSED_MAX`].
    count_max: u16,
    /// `None` for any age.
    within: Option<Duration>,
}

/// The three policies by their names.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum MissedPolicy {
    None,
    Last,
    All,
}

/// The rule for an instant at which an earlier run is not finished.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum RunOverlap {
    #[default]
    Allow,
    /// No run. The runs are tracked tasks, because nothing else tells when a run is finished.
    Skip,
}

impl RunOverlap {
    pub const ALL: [Self; 2] = [Self::Allow, Self::Skip];

    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Allow => "allow",
            Self::Skip => "skip",
        }
    }

    pub fn named(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|overlap| overlap.as_str() == name)
    }
}

/// Instants that are not missed, although they may have passed: a change has withdrawn their runs,
/// or has made them due earlier. Each of them gets a run. The range is empty by default.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct NotMissed {
    pub from: Timestamp,
    /// The end, which does not belong to the range.
    pub to: Timestamp,
}

/// How far a schedule has come.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Progress<'a> {
    /// The first instant whose run is not made.
    pub next_run_at: Timestamp,
    pub runs_made: u64,
    /// Instants before `next_run_at` that got no run, since the last run.
    pub skipped: u64,
    /// A run is not finished. Known only of a schedule that skips.
    pub is_busy: bool,
    /// Instants from `next_run_at` on that have a run already, in order. A change of the schedule
    /// goes back to the earliest run that it has withdrawn, and later runs may have stayed: moved,
    /// cancelled or claimed ones.
    pub taken: &'a [Timestamp],
    pub not_missed: NotMissed,
}

#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Plan {
    pub runs: Vec<Run>,
    /// `None` when the schedule has ended.
    pub next_run_at: Option<Timestamp>,
    /// When to plan again. `None` when the schedule has ended.
    pub look_at: Option<Timestamp>,
    pub runs_made: u64,
    pub skipped: u64,
    /// Instants that get no run because a run before is not finished. `skipped` counts them, too.
    pub overlapping: u64,
}

impl NotMissed {
    /// Returns the smallest range with the instants of both.
    #[must_use]
    pub fn with(self, other: Self) -> Self {
        match (self.is_empty(), other.is_empty()) {
            (_, true) => self,
            (true, false) => other,
            (false, false) => Self { from: self.from.min(other.from), to: self.to.max(other.to) },
        }
    }

    fn is_empty(self) -> bool {
        self.from >= self.to
    }

    /// Returns true when a schedule whose next run is at `next_run_at` has not passed the range.
    pub fn is_ahead_of(self, next_run_at: Timestamp) -> bool {
        !self.is_empty() && next_run_at < self.to
    }

    /// Returns the time before which instants are missed at `now`.
    fn missed_before(self, next_run_at: Timestamp, now: Timestamp) -> Timestamp {
        let before = now.minus(MISSED_AFTER);
        if self.is_ahead_of(next_run_at) { before.min(self.from) } else { before }
    }
}

impl MissedRuns {
    /// No run for missed instants.
    pub const NONE: Self = Self { count_max: 0, within: None };
    /// One run for the last missed instant, with the number of earlier missed ones.
    pub const LAST: Self = Self { count_max: 1, within: None };

    /// # Errors
    /// Names the field that is wrong, or that the policy does not take.
    pub fn new(
        policy: MissedPolicy,
        within: Option<Duration>,
        count_max: Option<u16>,
    ) -> Result<Self, SpecificationError> {
        let refuse = |field, what| Err(SpecificationError::new(field, what));
        match policy {
            MissedPolicy::None if within.is_some() => {
                refuse("missed.within", "with the policy none, no missed run is made: leave it out")
            }
            MissedPolicy::None | MissedPolicy::Last if count_max.is_some() => {
                refuse("missed.count_max", "only the policy all takes it: leave it out")
            }
            MissedPolicy::None => Ok(Self::NONE),
            MissedPolicy::Last => Ok(Self { within, ..Self::LAST }),
            MissedPolicy::All => match count_max.unwrap_or(MISSED_DEFAULT.0) {
                count_max @ 1..=MISSED_MAX => {
                    Ok(Self { count_max, within: Some(within.unwrap_or(MISSED_DEFAULT.1)) })
                }
                _ => refuse("missed.count_max", "expected 1 to 1000"),
            },
        }
    }

    pub fn policy(self) -> MissedPolicy {
        match (self.count_max, self.within) {
            (0, _) => MissedPolicy::None,
            (1, _) => MissedPolicy::Last,
            _ => MissedPolicy::All,
        }
    }

    pub fn count_max(self) -> u16 {
        self.count_max
    }

    pub fn within(self) -> Option<Duration> {
        self.within
    }
}

impl MissedPolicy {
    pub const ALL: [Self; 3] = [Self::None, Self::Last, Self::All];

    pub const fn as_str(self) -> &'static str {
        match self {
            Self::None => "none",
            Self::Last => "last",
            Self::All => "all",
        }
    }
}

/// A run of a schedule.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Run {
    /// The nominal instant.
    pub at: Timestamp,
    /// Counts the runs of the schedule from 1.
    pub number: u64,
    /// The number of instants right before this one that got no run.
    pub missed: u64,
}

impl Run {
    /// Returns the headers of the run's record besides the schedule's own.
    pub fn headers(&self, schedule: &ScheduleName) -> Headers {
        let headers = triggered_headers(schedule, self.at)
            .followed_by(&Headers::own([("punctual-run", self.number.to_string())]));
        if self.missed == 0 {
            return headers;
        }
        headers.followed_by(&Headers::own([("punctual-missed", self.missed.to_string())]))
    }
}

/// Returns the headers of a run that a caller has triggered at `at`. It has no number, because it
/// is none of the instants of the schedule.
pub fn triggered_headers(schedule: &ScheduleName, at: Timestamp) -> Headers {
    Headers::own([("punctual-schedule", schedule.to_string()), ("punctual-run-at", at.to_string())])
}

/// The state of a schedule that a plan depends on.
#[derive(Clone, Copy, Debug)]
pub struct Rules<'a> {
    pub timing: &'a Timing,
    /// The schedule ends after this many runs.
    pub runs_max: Option<u64>,
    pub missed: MissedRuns,
    pub overlap: RunOverlap,
    /// The most runs of the plan.
    pub count_max: usize,
}

/// Plans the runs of a schedule at `now`, as this module says.
pub(super) fn plan<'a>(rules: Rules<'a>, progress: Progress<'a>, now: Timestamp) -> Plan {
    let Progress { next_run_at, not_missed, .. } = progress;
    // A plan that comes late after a change goes no further than the instants of the change.
    let is_late = not_missed.is_ahead_of(next_run_at) && not_missed.to < now.minus(MISSED_AFTER);
    let mut planning = Planning {
        rules,
        now,
        missed_before: not_missed.missed_before(next_run_at, now),
        ends_before: is_late.then_some(not_missed.to),
        taken: progress.taken,
        next: None,
        is_busy: rules.overlap == RunOverlap::Skip && progress.is_busy,
        plan: Plan {
            runs: Vec::new(),
            next_run_at: None,
            look_at: None,
            runs_made: progress.runs_made,
            skipped: progress.skipped,
            overlapping: 0,
        },
    };
    planning.next = planning.first_free(Some(next_run_at));
    if planning.pass_missed() {
        planning.make_ahead();
    } else {
        planning.plan.look_at = Some(now);
    }
    planning.plan.next_run_at = planning.next;
    planning.plan
}

/// Returns the next instants that get a run, at most `rules.count_max`. Plans at `now` decide about
/// instants that have passed. Of the later ones, each without a run gets one.
pub(super) fn coming<'a>(
    rules: Rules<'a>,
    mut progress: Progress<'a>,
    now: Timestamp,
) -> Vec<Timestamp> {
    let count = rules.count_max;
    let mut coming = Vec::new();
    let Some(start) = late_start(rules, progress, now) else { return coming };
    progress.next_run_at = start;
    for _plan in 0..PLANS_MAX {
        let Plan { runs, next_run_at, look_at, runs_made, skipped, .. } =
            plan(rules, progress, now);
        coming.extend(runs.iter().map(|run| run.at));
        let Some(next_run_at) = next_run_at.filter(|_at| coming.len() < count) else { break };
        progress = Progress { next_run_at, runs_made, skipped, ..progress };
        if look_at != Some(now) {
            let left = rules.runs_max.map_or(u64::MAX, |max| max.saturating_sub(runs_made));
            let wanted = count.saturating_sub(coming.len()).min(left.saturating_as::<usize>());
            let is_free = |at: &Timestamp| progress.taken.binary_search(at).is_err();
            let later = std::iter::successors(Some(next_run_at), |at| rules.timing.next_after(*at));
            coming.extend(later.filter(is_free).take(wanted));
            break;
        }
    }
    coming.truncate(count);
    coming
}

/// Returns an instant from which plans at `now` make the same runs as from `next_run_at`: a later
/// one when many instants were missed, because looking at all of them would take too long. `None`:
/// the timing has ended, and makes no run.
fn late_start(rules: Rules<'_>, progress: Progress<'_>, now: Timestamp) -> Option<Timestamp> {
    let Progress { next_run_at, taken, not_missed, .. } = progress;
    let missed_before = not_missed.missed_before(next_run_at, now);
    // The policy makes runs for so many of the last missed instants, without those that have one.
    let wanted = usize::from(rules.missed.count_max).saturating_add(taken.len());
    let mut span = MISSED_AFTER;
    loop {
        let start = missed_before.minus(span);
        if start <= next_run_at {
            return Some(next_run_at);
        }
        let first = rules.timing.next_after(start);
        let missed = std::iter::successors(first, |at| rules.timing.next_after(*at))
            .take_while(|at| *at < missed_before)
            .take(wanted);
        if missed.count() == wanted {
            return first;
        }
        span = span.saturating_mul(2);
    }
}

struct Planning<'a> {
    rules: Rules<'a>,
    now: Timestamp,
    /// Instants before this time are missed.
    missed_before: Timestamp,
    /// The plan decides no instant from this time on.
    ends_before: Option<Timestamp>,
    taken: &'a [Timestamp],
    /// The first instant that the plan has not decided.
    next: Option<Timestamp>,
    /// The schedule skips, and a run is not finished.
    is_busy: bool,
    plan: Plan,
}

impl Planning<'_> {
    /// Returns the first instant from `at` on that has no run yet.
    fn first_free(&self, mut at: Option<Timestamp>) -> Option<Timestamp> {
        while let Some(taken) = at.filter(|at| self.taken.binary_search(at).is_ok()) {
            at = self.rules.timing.next_after(taken);
        }
        at
    }

    fn next_after(&self, at: Timestamp) -> Option<Timestamp> {
        self.first_free(self.rules.timing.next_after(at))
    }

    /// Decides the missed instants. Returns false when some of them are left for another plan.
    fn pass_missed(&mut self) -> bool {
        let missed_before = self.missed_before;
        let policy = self.rules.missed;
        // A schedule that skips has one run at a time.
        let count_max = if self.skips() { policy.count_max.min(1) } else { policy.count_max };
        let count_max = usize::from(count_max);
        let mut kept = VecDeque::new();
        for _step in 0..STEPS_MAX {
            let Some(at) = self.next.filter(|at| *at < missed_before) else { break };
            self.next = self.next_after(at);
            kept.push_back(at);
            let is_old = policy.within.is_some_and(|within| at < self.now.minus(within));
            if kept.len() > count_max || is_old {
                kept.pop_front();
                self.plan.skipped = self.plan.skipped.saturating_add(1);
            }
        }
        if self.next.is_some_and(|at| at < missed_before) {
            // The kept ones may not be the latest.
            self.next = kept.front().copied().or(self.next);
            return false;
        }
        for at in &kept {
            if self.plan.runs.len() >= self.rules.count_max {
                self.next = Some(*at);
                return false;
            }
            self.push(*at);
        }
        self.end_if_complete();
        true
    }

    fn skips(&self) -> bool {
        self.rules.overlap == RunOverlap::Skip
    }

    /// Makes the runs of the next minute, and one that lies ahead. Of a schedule that skips: only
    /// the run that is about to be due.
    fn make_ahead(&mut self) {
        let ahead = if self.skips() { SKIPPING_AHEAD } else { AHEAD };
        for _step in 0..STEPS_MAX {
            let Some(at) = self.next else { return };
            if self.ends_before.is_some_and(|end| at >= end) {
                break;
            }
            let last = self.plan.runs.last().map(|run| run.at);
            let is_one_ahead = last.is_some_and(|last| last > self.now);
            if at > self.now.plus(ahead) && self.skips() {
                self.plan.look_at = Some(at.minus(ahead));
                return;
            }
            if at > self.now.plus(ahead) && is_one_ahead {
                // At the latest when the last run is due, so that there is one ahead.
                self.plan.look_at = last.map(|last| last.min(at.minus(PLANNED_AHEAD)));
                return;
            }
            // After the checks above: the next plan would not know that one run lies ahead.
            if self.plan.runs.len() >= self.rules.count_max {
                break;
            }
            self.push(at);
            self.next = self.next_after(at);
            self.end_if_complete();
        }
        // The next plan continues, unless the schedule has ended.
        self.plan.look_at = self.next.map(|_next| self.now);
    }

    fn push(&mut self, at: Timestamp) {
        if self.rules.runs_max.is_some_and(|runs_max| self.plan.runs_made >= runs_max) {
            return;
        }
        if self.is_busy {
            self.plan.skipped = self.plan.skipped.saturating_add(1);
            self.plan.overlapping = self.plan.overlapping.saturating_add(1);
            return;
        }
        self.is_busy = self.skips();
        self.plan.runs_made = self.plan.runs_made.saturating_add(1);
        let missed = std::mem::take(&mut self.plan.skipped);
        self.plan.runs.push(Run { at, number: self.plan.runs_made, missed });
    }

    fn end_if_complete(&mut self) {
        if self.rules.runs_max.is_some_and(|runs_max| self.plan.runs_made >= runs_max) {
            self.next = None;
        }
    }
}

#[cfg(test)]
mod tests;
