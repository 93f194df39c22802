//! Makes the runs of schedules: ordinary tasks, a minute before they are due.
//!
//! The owner of a shard makes the runs of the shard's schedules. Ownership only decides who does
//! the work: a run is made once even with two nodes that believe in owning the shard
//! (`postgres/schedules/make.rs`). While claims stop because the clock may be wrong, no runs are
//! made either. An outage is not a failure: each schedule has a policy for missed runs.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use az::SaturatingAs as _;
use tokio::sync::{Notify, mpsc, watch};
use tokio_util::sync::CancellationToken;

use super::COUNTING_SHARD;
use super::run_scans::RunScans;
use crate::clock;
use crate::domain::schedule::ScheduleId;
use crate::domain::schedule::plan::{Progress, RUNS_MAX};
use crate::domain::{IdRange, Monotonic, TaskId, Throttle, Timestamp};
use crate::error_chain::chain;
use crate::node::membership::Bulletin;
use crate::node::requests::placing::RunPlacing;
use crate::node::shared::NodeShared;
use crate::postgres::PostgresError;
use crate::postgres::schedules::make::{DueSchedule, DueSchedules, PlannedSchedule, RunMaker};
use crate::postgres::tasks::claim::smallints;
use crate::shutdown::TaskFailure;
use crate::telemetry::{Counter, Family, Gauge, Registry};

/// The pause between two looks. Runs are made a minute ahead.
const INTERVAL: Duration = Duration::from_secs(1);
/// The most schedules of one look, and the most runs of one statement, unless one schedule alone
/// has more.
const SCHEDULES_MAX: usize = 500;
const STATEMENT_RUNS_MAX: usize = 1_000;
/// The most bytes of the records of one statement, unless one run alone has more.
const STATEMENT_BYTES_MAX: usize = 8 << 20;
/// The most failed schedules that a turn skips.
const FAILED_MAX: usize = 10_000;
/// How long a turn goes on with schedules that one plan does not bring up to date.
const CATCH_UP_MAX: Duration = Duration::from_secs(1);
/// The most schedules that wait for a first run. The owner of the shard finds the others.
const NEW_MAX: usize = 1_000;
/// The pause between two looks for schedules with older rules of their time zone.
const RENEW_INTERVAL: Duration = Duration::from_secs(15);
/// The pause between two counts of all schedules.
const COUNT_INTERVAL: Duration = Duration::from_secs(30);
/// The interval of looks for deleted schedules with runs.
const SWEEP_INTERVAL: Duration = Duration::from_secs(10);
const LOG_FAILURE_EVERY: Duration = Duration::from_secs(60);

/// The metrics of schedules.
#[derive(Clone, Debug, Default)]
pub struct ScheduleMetrics {
    schedules: Family<Vec<(&'static str, &'static str)>, Gauge>,
    late: Gauge,
    runs_made: Counter,
    missed: Counter,
    overlapping: Counter,
    renewed: Counter,
    failures: Counter,
}

impl ScheduleMetrics {
    pub fn register(registry: &mut Registry) -> Self {
        let metrics = Self::default();
        for state in ["active", "paused"] {
            metrics.schedules.get_or_create(&vec![("state", state)]).set(0);
        }
        registry.register(
            "punctual_schedules",
            "Schedules of the cluster; the owner of shard 0 counts them, other nodes show 0",
            metrics.schedules.clone(),
        );
        registry.register(
            "punctual_schedules_late",
            "Schedules whose runs should have been made more than 10 s ago; should be 0",
            metrics.late.clone(),
        );
        registry.register(
            "punctual_schedule_runs",
            "Runs of schedules that this node made as tasks",
            metrics.runs_made.clone(),
        );
        registry.register(
            "punctual_schedule_missed",
            "Instants of schedules that passed without a run, and got none by the schedule's \
             policy",
            metrics.missed.clone(),
        );
        registry.register(
            "punctual_schedule_overlapping",
            "Instants of schedules that got no run because a run before was not finished",
            metrics.overlapping.clone(),
        );
        registry.register(
            "punctual_schedule_renewed",
            "Schedules whose runs this node moved by newer rules of their time zone",
            metrics.renewed.clone(),
        );
        registry.register(
            "punctual_schedule_failures",
            "Attempts to make the runs of one schedule that failed; they are repeated",
            metrics.failures.clone(),
        );
        metrics
    }
}

/// The result of a look.
#[derive(Debug)]
struct Made {
    /// The schedules that failed.
    failed: Vec<i64>,
    /// Some plan has left instants to another one, which may come at once.
    is_behind: bool,
}

/// Tells the keeper of a node about schedules whose runs are to be made at once.
#[derive(Clone, Debug)]
pub struct NewSchedules(mpsc::Sender<ScheduleId>);

impl NewSchedules {
    /// Has the runs of a schedule made at once, unless too many schedules are new. The owner of the
    /// shard finds those within a second.
    pub fn add(&self, id: ScheduleId) {
        if let Err(error) = self.0.try_send(id) {
            tracing::debug!(error = chain(&error), "a new schedule waits for the next look");
        }
    }
}

/// Makes runs.
#[derive(Debug)]
pub struct RunKeeper {
    shared: Arc<NodeShared>,
    bulletin: watch::Receiver<Bulletin>,
    maker: RunMaker,
    metrics: ScheduleMetrics,
    new: mpsc::Receiver<ScheduleId>,
    scans: RunScans,
    counted_at: Option<Monotonic>,
    /// The last look that found no deleted schedule with runs.
    swept_at: Option<Monotonic>,
    renewed_at: Option<Monotonic>,
    /// The schedules that could not be renewed since the last look from the beginning.
    not_renewed: Vec<i64>,
    failure_log: Throttle,
}

impl RunKeeper {
    pub fn new(
        shared: Arc<NodeShared>,
        bulletin: watch::Receiver<Bulletin>,
        maker: RunMaker,
        metrics: ScheduleMetrics,
    ) -> (Self, NewSchedules) {
        let (sender, new) = mpsc::channel(NEW_MAX);
        let keeper = Self {
            shared,
            bulletin,
            maker,
            metrics,
            new,
            scans: RunScans::default(),
            counted_at: None,
            swept_at: None,
            renewed_at: None,
            not_renewed: Vec::new(),
            failure_log: Throttle::new(LOG_FAILURE_EVERY),
        };
        (keeper, NewSchedules(sender))
    }

    /// Makes runs until the node drains.
    pub async fn run(mut self, draining: CancellationToken) -> Result<(), TaskFailure> {
        let mut looked_at = clock::monotonic();
        loop {
            let pause = INTERVAL.saturating_sub(clock::monotonic().since(looked_at));
            let waiting = next_turn(&mut self.new, &self.shared.calls.runs, pause);
            let Some(new) = draining.run_until_cancelled(waiting).await else { return Ok(()) };
            // A turn may be cut off anywhere: a statement takes effect or it does not.
            let turn = Box::pin(self.turn(new));
            match draining.run_until_cancelled(turn).await {
                None => return Ok(()),
                Some(Ok(())) => {}
                Some(Err(error)) => self.fail("making runs of schedules failed; retrying", &error),
            }
            if new.is_none() {
                looked_at = clock::monotonic();
            }
        }
    }

    async fn turn(&mut self, new: Option<ScheduleId>) -> Result<(), PostgresError> {
        // Without leaves, tasks that are due now would go to the far table.
        if !self.shared.clock.is_steady() || self.shared.leaves.end().is_none() {
            return Ok(());
        }
        if let Some(id) = new {
            let due = self.maker.due_one(id).await?;
            self.make_all(due).await?;
            return Ok(());
        }
        let mine = self.bulletin.borrow().mine.clone();
        let is_mine = mine.contains(&COUNTING_SHARD);
        let made = self.make_mine(&smallints(&mine)).await;
        if is_mine && made.is_ok() {
            self.sweep_deleted().await?;
        }
        // Late schedules are counted above all while no runs can be made.
        self.count(is_mine).await?;
        made
    }

    async fn make_mine(&mut self, shards: &[i16]) -> Result<(), PostgresError> {
        if shards.is_empty() {
            return Ok(());
        }
        self.renew(shards).await?;
        self.make_due(shards).await
    }

    /// Makes the runs of all schedules of these shards that are to be looked at.
    async fn make_due(&mut self, shards: &[i16]) -> Result<(), PostgresError> {
        self.scans.saw(self.shared.now());
        let from = self.scans.begin(shards, clock::monotonic());
        let (mut failed, mut began_at) = (Vec::new(), None);
        let catches_up_until = clock::monotonic().plus(CATCH_UP_MAX);
        loop {
            let due = self.maker.due(shards, SCHEDULES_MAX, (from, &failed)).await;
            if let Err(error) = &due
                && from.is_none()
                && began_at.is_none()
                && error.is_slow()
            {
                self.scans.full_is_slow(self.shared.now(), clock::monotonic());
            }
            let due = due?;
            let has_more = due.has_more;
            let began_at = *began_at.get_or_insert((!due.schedules.is_empty()).then_some(due.now));
            let made = self.make_all(due).await?;
            failed.extend(made.failed);
            let now = clock::monotonic();
            if !has_more && failed.is_empty() {
                self.scans.completed(began_at, now);
            }
            let has_more = has_more || made.is_behind && now < catches_up_until;
            if !continues(has_more, failed.len()) || !self.shared.clock.is_steady() {
                return Ok(());
            }
        }
    }

    /// Deletes a piece of the runs of deleted schedules.
    async fn sweep_deleted(&mut self) -> Result<(), PostgresError> {
        let now = clock::monotonic();
        if self.swept_at.is_some_and(|at| now.since(at) < SWEEP_INTERVAL) {
            return Ok(());
        }
        self.swept_at = Some(now);
        match self.maker.sweep_deleted().await {
            Ok(true) => self.swept_at = None,
            Ok(false) => {}
            Err(error) if error.is_away() => return Err(error),
            Err(error) => self.fail("cannot delete runs of a deleted schedule; retrying", &error),
        }
        Ok(())
    }

    /// Moves the runs of schedules whose zone has newer rules in this program. One page a turn.
    async fn renew(&mut self, shards: &[i16]) -> Result<(), PostgresError> {
        let now = clock::monotonic();
        if self.renewed_at.is_some_and(|at| now.since(at) < RENEW_INTERVAL) {
            return Ok(());
        }
        let renewed = match self.maker.renew(shards, &self.not_renewed).await {
            Ok(renewed) => renewed,
            Err(error) => {
                // Runs are still to be made.
                self.renewed_at = Some(now);
                self.not_renewed.clear();
                self.fail("cannot look for older rules of zones; retrying", &error);
                return if error.is_away() { Err(error) } else { Ok(()) };
            }
        };
        for stored in &renewed.changed {
            let (topic, name) = (&stored.schedule.record.topic, &stored.schedule.name);
            tracing::info!(%topic, schedule = %name, "moved the runs by newer rules of the zone");
        }
        self.metrics.renewed.inc_by(renewed.changed.len().saturating_as::<u64>());
        if let Some(error) = &renewed.error {
            self.fail("cannot move the runs of a schedule by newer rules; retrying", error);
        }
        self.not_renewed.extend(renewed.failed);
        if !renewed.has_more || self.not_renewed.len() >= FAILED_MAX {
            self.renewed_at = Some(now);
            self.not_renewed.clear();
        } else {
            self.renewed_at = None;
        }
        Ok(())
    }

    /// Makes the runs of these schedules. A schedule that fails does not hold up the others.
    async fn make_all(&mut self, due: DueSchedules) -> Result<Made, PostgresError> {
        let now = due.now;
        let mut failed = Vec::new();
        let mut planned = Vec::with_capacity(due.schedules.len());
        for schedule in due.schedules {
            let id = schedule.id.0;
            match self.plan(schedule, now) {
                Some(plan) => planned.push(plan),
                None => failed.push(id),
            }
            // A plan after a long outage takes up to some milliseconds.
            tokio::task::yield_now().await;
        }
        let is_behind = planned.iter().any(|one| one.plan.look_at.is_some_and(|at| at <= now));
        for group in groups_of(&planned) {
            match self.make(group, now).await {
                Ok(()) => {}
                Err(error) if error.is_away() => return Err(error),
                Err(error) if group.len() == 1 => {
                    self.fail("a schedule cannot make its runs; retrying", &error);
                    failed.extend(group.iter().map(|one| one.id.0));
                }
                Err(error) => {
                    tracing::debug!(error = chain(&error), "making runs one schedule at a time");
                    for one in group {
                        if !self.make_one(one, now).await? {
                            failed.push(one.id.0);
                        }
                    }
                }
            }
        }
        Ok(Made { failed, is_behind })
    }

    /// Returns false when the schedule cannot make its runs.
    async fn make_one(
        &mut self,
        planned: &PlannedSchedule,
        now: Timestamp,
    ) -> Result<bool, PostgresError> {
        match self.make(std::slice::from_ref(planned), now).await {
            Err(error) if !error.is_away() => {
                self.fail("a schedule cannot make its runs; retrying", &error);
                Ok(false)
            }
            outcome => outcome.map(|()| true),
        }
    }

    async fn make(
        &mut self,
        planned: &[PlannedSchedule],
        now: Timestamp,
    ) -> Result<(), PostgresError> {
        let made = self.maker.make(planned, now).await?;
        let tasks = || planned.iter().flat_map(|one| &one.tasks);
        let near: Vec<TaskId> = tasks()
            .filter(|task| !task.is_far && made.contains(&task.id))
            .map(|task| task.id)
            .collect();
        self.shared.claim_late(IdRange::spanning(near));
        self.shared.metrics.submitted.inc_by(made.len().saturating_as::<u64>());
        self.metrics.runs_made.inc_by(made.len().saturating_as::<u64>());
        self.metrics.missed.inc_by(missed_count(planned, &made));
        let overlapping = planned.iter().map(|one| one.plan.overlapping).sum();
        self.metrics.overlapping.inc_by(overlapping);
        Ok(())
    }

    /// Plans the runs of a schedule, or returns `None` when this version cannot.
    fn plan(&mut self, due: DueSchedule, now: Timestamp) -> Option<PlannedSchedule> {
        let specification = match &due.specification {
            Ok(specification) => specification,
            Err(reason) => {
                self.fail_plan(&due, reason);
                return None;
            }
        };
        let shift = specification.shift(&due.topic, &due.name);
        let count_max = (STATEMENT_BYTES_MAX / due.record_bytes.max(1)).clamp(1, RUNS_MAX);
        let progress = Progress { taken: &due.taken, ..due.progress };
        let plan = specification.plan(progress, now, shift, count_max);
        let placing = RunPlacing::new(&self.shared, (&due.topic, &due.name), due.key.as_deref());
        let mut tasks = Vec::with_capacity(plan.runs.len().min(RUNS_MAX));
        for run in &plan.runs {
            let Some(task) = placing.place(run.at, shift, run.headers(&due.name)) else {
                self.fail_plan(&due, "a run cannot be placed");
                return None;
            };
            tasks.push(task);
        }
        let (found_at, record_bytes) = (due.progress.next_run_at, due.record_bytes);
        let DueSchedule { id, revision, topic, record, .. } = due;
        Some(PlannedSchedule { id, revision, topic, record, found_at, record_bytes, plan, tasks })
    }

    fn fail_plan(&mut self, due: &DueSchedule, reason: &str) {
        self.metrics.failures.inc();
        if self.failure_log.lets_through(clock::monotonic()) {
            let (topic, name) = (&due.topic, &due.name);
            tracing::error!(%topic, schedule = %name, reason, "cannot read a schedule");
        }
    }

    /// Counts the schedules now and then, if it is this node's turn.
    async fn count(&mut self, is_mine: bool) -> Result<(), PostgresError> {
        let now = clock::monotonic();
        if self.counted_at.is_some_and(|at| now.since(at) < COUNT_INTERVAL) {
            return Ok(());
        }
        self.counted_at = Some(now);
        let counts = match is_mine {
            true => self.maker.counts().await,
            false => Ok(Default::default()),
        };
        let counts = match counts {
            Ok(counts) => counts,
            Err(error) if error.is_away() => return Err(error),
            Err(error) => {
                // Runs are still to be made.
                self.fail("cannot count the schedules; retrying", &error);
                return Ok(());
            }
        };
        let show = |state, count| {
            self.metrics.schedules.get_or_create(&vec![("state", state)]).set(count);
        };
        show("active", counts.total - counts.paused);
        show("paused", counts.paused);
        self.metrics.late.set(counts.late);
        Ok(())
    }

    fn fail(&mut self, what: &'static str, error: &PostgresError) {
        self.metrics.failures.inc();
        if self.failure_log.lets_through(clock::monotonic()) {
            tracing::warn!(error = chain(error), "{what}");
        }
    }
}

/// Waits `pause` for the next look at all schedules, and returns `None`. Returns a new schedule
/// before, if there is one. New schedules do not postpone the look, however many there are.
async fn next_turn(
    new: &mut mpsc::Receiver<ScheduleId>,
    call: &Notify,
    pause: Duration,
) -> Option<ScheduleId> {
    if pause.is_zero() {
        return None;
    }
    tokio::select! {
        Some(id) = new.recv() => Some(id),
        () = call.notified() => None,
        () = clock::sleep(pause) => None,
    }
}

/// Tells whether a turn continues after a look. The next look skips the `failed_count` schedules
/// that have failed in this turn, so that they do not hold up the others.
const fn continues(has_more: bool, failed_count: usize) -> bool {
    has_more && failed_count < FAILED_MAX
}

/// Cuts plans into groups for one statement each.
fn groups_of(planned: &[PlannedSchedule]) -> Vec<&[PlannedSchedule]> {
    let mut groups = Vec::new();
    let (mut begin, mut count, mut bytes) = (0, 0, 0);
    for (index, one) in planned.iter().enumerate() {
        let one_count = one.tasks.len();
        let one_bytes = one.record_bytes.saturating_mul(one_count);
        let is_full = count + one_count > STATEMENT_RUNS_MAX
            || one_bytes.saturating_add(bytes) > STATEMENT_BYTES_MAX;
        if index > begin && is_full {
            groups.push(&planned[begin..index]);
            (begin, count, bytes) = (index, 0, 0);
        }
        count += one_count;
        bytes = one_bytes.saturating_add(bytes);
    }
    if begin < planned.len() {
        groups.push(&planned[begin..]);
    }
    groups
}

/// Returns how many instants passed without a run before the runs that were made.
fn missed_count(planned: &[PlannedSchedule], made: &HashSet<TaskId>) -> u64 {
    let runs = planned.iter().flat_map(|one| one.plan.runs.iter().zip(&one.tasks));
    runs.filter(|(_run, task)| made.contains(&task.id)).map(|(run, _task)| run.missed).sum()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::domain::schedule::plan::Plan;
    use crate::domain::{Headers, TaskName};
    use crate::postgres::schedules::make::RunTask;

    fn planned(task_count: usize) -> PlannedSchedule {
        planned_with(task_count, 100)
    }

    fn planned_with(task_count: usize, record_bytes: usize) -> PlannedSchedule {
        let task = RunTask {
            at: Timestamp::EPOCH,
            id: TaskId::new(Timestamp::EPOCH, COUNTING_SHARD, 0),
            name: TaskName::new("a").unwrap(),
            front: Headers::default(),
            headers: Headers::default(),
            tracking: None,
            is_far: false,
        };
        PlannedSchedule {
            id: ScheduleId(0),
            revision: 1,
            topic: crate::domain::TopicName::stored("t"),
            record: None,
            found_at: Timestamp::EPOCH,
            record_bytes,
            plan: Plan {
                runs: vec![],
                next_run_at: None,
                look_at: None,
                runs_made: 0,
                skipped: 0,
                overlapping: 0,
            },
            tasks: vec![task; task_count],
        }
    }

    #[test]
    fn a_turn_goes_on_behind_schedules_that_fail() {
        assert!(continues(true, 0));
        assert!(continues(true, SCHEDULES_MAX), "the others are behind them");
        assert!(!continues(false, 0));
        assert!(!continues(true, FAILED_MAX), "a turn ends");
    }

    #[tokio::test]
    async fn new_schedules_do_not_postpone_the_look_at_all() {
        let (sender, mut new) = mpsc::channel(10);
        let call = Notify::new();
        for id in 0..3 {
            sender.send(ScheduleId(id)).await.unwrap();
        }
        assert_eq!(next_turn(&mut new, &call, INTERVAL).await, Some(ScheduleId(0)));
        assert_eq!(next_turn(&mut new, &call, Duration::ZERO).await, None);
        assert_eq!(next_turn(&mut new, &call, INTERVAL).await, Some(ScheduleId(1)));
    }

    #[test]
    fn a_statement_has_a_limited_number_of_bytes() {
        let mib = 1 << 20;
        let planned: Vec<_> =
            [(4, mib), (4, mib), (1, mib), (1, 20 * mib)].map(|(n, of)| planned_with(n, of)).into();
        let sizes: Vec<usize> = groups_of(&planned).into_iter().map(<[_]>::len).collect();
        assert_eq!(sizes, [2, 1, 1]);
    }

    #[test]
    fn a_statement_has_a_limited_number_of_runs_and_at_least_one_schedule() {
        let sizes = |counts: &[usize]| -> Vec<usize> {
            let planned: Vec<PlannedSchedule> =
                counts.iter().map(|count| planned(*count)).collect();
            groups_of(&planned).iter().map(|group| group.len()).collect()
        };
        assert_eq!(sizes(&[]), [0; 0]);
        assert_eq!(sizes(&[1000, 1]), [1, 1]);
        assert_eq!(sizes(&[2000]), [1]);
        assert_eq!(sizes(&[500, 500, 0, 1]), [3, 1]);
    }
}
