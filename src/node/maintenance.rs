//! Maintenance: creates partitions ahead, retires past ones, moves far tasks to their leaves, and
//! frees expired names. `run_keeper` makes the runs of schedules, with the limits of `run_scans`,
//! `backlog_keeper` counts the tasks of the cluster for its metrics, and `key_keeper` reads the
//! file with the payload keys.
//!
//! Every node does it every minute. Advisory locks keep two nodes from doing it at the same time,
//! and the catalog shows the next node how far the last one came. An outage is not a failure: the
//! existing partitions last for days, and the next round continues.

pub mod backlog_keeper;
pub mod key_keeper;
pub mod run_keeper;
mod run_scans;

pub use self::key_keeper::KeyKeeper;

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use az::SaturatingAs as _;
use parking_lot::RwLock;
use tokio_util::sync::CancellationToken;

use crate::clock::{self, ClusterClock};
use crate::domain::leaves::{Parent, Rules};
use crate::domain::{IdRange, Shard, Timestamp};
use crate::error_chain::chain;
use crate::postgres::connection::ConnectionPurpose;
use crate::postgres::partitions::mover::{Moved, Mover};
use crate::postgres::partitions::retire::{Retired, Retirer};
use crate::postgres::partitions::{self, Census};
use crate::postgres::tasks::names::Names;
use crate::postgres::{Connection, PostgresError, PostgresSettings};
use crate::shutdown::{TaskFailure, Tasks};
use crate::telemetry::{Counter, Family, Gauge, Registry};

const PURPOSE: ConnectionPurpose =
    ConnectionPurpose { name: "maintenance", deadline: Duration::from_secs(10), settings: &[] };
/// The owner of this shard counts the tasks and the schedules of the cluster.
const COUNTING_SHARD: Shard = Shard::new(0);
/// Maximum pause after a failed round.
const RETRY: Duration = Duration::from_secs(5);
/// Maximum number of expired names that one transaction frees, and of such transactions per round.
/// The rest waits for the next round.
const NAMES_MAX: usize = 1000;
const CHUNKS_MAX: usize = 500;

/// The existing leaves, as the catalog last showed them. Shared by everything that inserts, claims
/// or sweeps. Cheap to read.
#[derive(Debug, Default)]
pub struct Leaves {
    now: RwLock<Attached>,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
struct Attached {
    oldest: Option<Timestamp>,
    end: Option<Timestamp>,
}

impl Leaves {
    /// Returns the end of the leaves attached without a gap from now on. Tasks due at or after it
    /// belong in `task_far`. `None` before the first look: new tasks go to `task_far`.
    pub fn end(&self) -> Option<Timestamp> {
        self.read().end
    }

    /// Returns the start of the oldest leaf: no task in `task` is due before. `None` before the
    /// first look.
    pub fn oldest(&self) -> Option<Timestamp> {
        self.read().oldest
    }

    /// Takes over the leaves that `other` knows: a dev server has set the clock.
    pub fn follow(&self, other: &Self) {
        let attached = other.read();
        *self.now.write() = attached;
    }

    fn read(&self) -> Attached {
        *self.now.read()
    }

    fn take_in(&self, rules: &Rules, attached: &BTreeSet<Timestamp>, now: Timestamp) {
        let end = rules.end_of_run(Parent::Task, attached, now);
        let oldest = attached.first().copied().unwrap_or(now);
        let mut known = self.now.write();
        known.oldest = Some(oldest);
        // Without the leaf of the present, nothing is known about later ones.
        let is_known = end > now;
        known.end = Some(known.end.filter(|_| !is_known).map_or(end, |before| before.max(end)));
    }
}

type OfTable = Family<Vec<(&'static str, &'static str)>, Gauge>;
type CountOfTable = Family<Vec<(&'static str, &'static str)>, Counter>;

/// The metrics of maintenance.
#[derive(Clone, Debug, Default)]
pub struct MaintenanceMetrics {
    attached: OfTable,
    ahead_seconds: OfTable,
    missing: OfTable,
    retired: CountOfTable,
    finalized: CountOfTable,
    failures: CountOfTable,
    far_tasks: Gauge,
    far_moved: Counter,
    far_stuck: Gauge,
    names_freed: Counter,
    names_prolonged: Counter,
}

impl MaintenanceMetrics {
    pub fn register(registry: &mut Registry) -> Self {
        let metrics = Self::default();
        let Self {
            attached,
            ahead_seconds,
            missing,
            retired,
            finalized,
            failures,
            far_tasks,
            far_moved,
            far_stuck,
            ..
        } = &metrics;
        let Self { names_freed, names_prolonged, .. } = &metrics;
        for counters in [retired, finalized, failures] {
            // Series start at 0: an alert on an increase would miss the first event of a series
            // beginning with it.
            for parent in Parent::ALL {
                counters.get_or_create(&label(parent)).inc_by(0);
            }
        }
        registry.register(
            "punctual_partitions",
            "Attached partitions (of the table task: leaves)",
            attached.clone(),
        );
        registry.register(
            "punctual_partitions_ahead_seconds",
            "How far ahead of now partitions are attached without a gap; at 0, new tasks go to the \
             far table (task), or nothing can be claimed (execlog)",
            ahead_seconds.clone(),
        );
        registry.register(
            "punctual_partitions_missing",
            "Partitions that should exist but could not be created; should be 0",
            missing.clone(),
        );
        registry.register(
            "punctual_partitions_retired",
            "Partitions that this node dropped after their retention",
            retired.clone(),
        );
        registry.register(
            "punctual_partitions_finalized",
            "Interrupted detaches of partitions that this node completed",
            finalized.clone(),
        );
        registry.register(
            "punctual_partitions_failures",
            "Rounds of maintenance that failed because Postgres was unavailable or refused; they \
             are repeated",
            failures.clone(),
        );
        registry.register(
            "punctual_far_tasks",
            "Tasks due after the last leaf; above 10,000 an estimate",
            far_tasks.clone(),
        );
        registry.register(
            "punctual_far_moved_tasks",
            "Tasks that this node moved from the far table to their leaves",
            far_moved.clone(),
        );
        registry.register(
            "punctual_far_stuck_tasks",
            "Far tasks that Postgres refused to move to their leaves; should be 0",
            far_stuck.clone(),
        );
        registry.register(
            "punctual_names_freed",
            "Expired names that this node freed",
            names_freed.clone(),
        );
        registry.register(
            "punctual_names_prolonged",
            "Expired names that were kept because their task was still pending",
            names_prolonged.clone(),
        );
        metrics
    }
}

fn label(parent: Parent) -> Vec<(&'static str, &'static str)> {
    vec![("table", parent.table())]
}

/// Creates partitions ahead and moves far tasks.
#[derive(Debug)]
pub struct Maintenance {
    rules: Rules,
    leaves: Arc<Leaves>,
    connection: Connection,
    mover: Mover,
    metrics: MaintenanceMetrics,
}

impl Maintenance {
    pub fn new(
        settings: &PostgresSettings,
        rules: Rules,
        leaves: Arc<Leaves>,
        metrics: MaintenanceMetrics,
    ) -> Self {
        Self {
            rules,
            leaves,
            connection: Connection::new(settings, PURPOSE),
            mover: Mover::new(settings),
            metrics,
        }
    }

    /// Runs rounds until `stopping`.
    pub async fn run(mut self, stopping: CancellationToken) -> Result<(), TaskFailure> {
        let interval = self.rules.interval();
        loop {
            // A round may be cut off anywhere, because every statement commits by itself.
            let Some(outcome) = stopping.run_until_cancelled(self.round()).await else {
                return Ok(());
            };
            let pause = match outcome {
                Ok(()) => interval,
                Err(error) => {
                    self.metrics.failures.get_or_create(&label(Parent::Task)).inc();
                    tracing::warn!(
                        error = chain(&error),
                        "maintenance of the partitions failed; retrying"
                    );
                    interval.min(RETRY)
                }
            };
            tokio::select! {
                () = stopping.cancelled() => return Ok(()),
                () = clock::sleep(pause) => {}
            }
        }
    }

    /// Runs one round: creates partitions, and moves far tasks.
    pub async fn round(&mut self) -> Result<(), PostgresError> {
        let made = self.make_all().await;
        // A table whose partitions cannot be created must not keep far tasks from the existing
        // leaves.
        let moved = self.move_far().await;
        made.and(moved)
    }

    /// Creates partitions. Returns true when the partitions of the present exist for all tables.
    /// Before that, a node can neither claim nor insert.
    pub async fn make_all(&mut self) -> Result<bool, PostgresError> {
        let mut outcome = Ok(true);
        for parent in Parent::ALL {
            // A failure for one table must not stop the others. Without Postgres, all would fail.
            outcome = match (outcome, self.make_ahead(parent).await) {
                (Ok(all), Ok(this)) => Ok(all && this),
                (_, Err(error)) if error.is_away() => return Err(error),
                (Err(error), _) | (_, Err(error)) => Err(error),
            };
        }
        outcome
    }

    /// Returns true when tasks that are due now have a partition.
    async fn make_ahead(&mut self, parent: Parent) -> Result<bool, PostgresError> {
        let (census, now) = partitions::take_census(&mut self.connection, parent).await?;
        let missing = self.rules.missing(parent, &census.attached, now);
        let made = partitions::create(&mut self.connection, &self.rules, &missing).await;
        let (census, now) = match missing.is_empty() {
            true => (census, now),
            false => partitions::take_census(&mut self.connection, parent).await?,
        };
        self.report(parent, &census, now);
        made?;
        Ok(self.rules.end_of_run(parent, &census.attached, now) > now)
    }

    fn report(&self, parent: Parent, census: &Census, now: Timestamp) {
        let end = self.rules.end_of_run(parent, &census.attached, now);
        let missing_count = self.rules.missing(parent, &census.attached, now).len();
        if parent == Parent::Task {
            self.leaves.take_in(&self.rules, &census.attached, now);
        }
        self.metrics
            .attached
            .get_or_create(&label(parent))
            .set(census.attached.len().saturating_as());
        self.metrics.missing.get_or_create(&label(parent)).set(missing_count.saturating_as());
        let ahead_seconds = end.since(now).as_secs().saturating_as::<i64>();
        self.metrics.ahead_seconds.get_or_create(&label(parent)).set(ahead_seconds);
        if ahead_seconds == 0 {
            tracing::error!(table = parent.table(), "there is no partition for new rows");
        }
    }

    async fn move_far(&mut self) -> Result<(), PostgresError> {
        let (census, now) = partitions::take_census(&mut self.connection, Parent::Task).await?;
        // Tasks already due are claimed from the far table itself, because their leaf may be gone.
        let end = self.rules.end_of_run(Parent::Task, &census.attached, now);
        let mut moved = Moved::default();
        let outcome = self.mover.round(IdRange::of_times(now, end), &mut moved).await;
        // The chunks before a failed one have committed.
        self.metrics.far_moved.inc_by(moved.task_count);
        outcome?;
        self.metrics.far_stuck.set(moved.stuck_count.saturating_as::<i64>());
        let far_count = self.mover.count().await?;
        self.metrics.far_tasks.set(far_count.saturating_as::<i64>());
        Ok(())
    }
}

/// Interval between two looks at whether the clock is steady.
const STEADY_POLL: Duration = Duration::from_secs(1);

/// Frees expired names until `stopping`. Pauses while Postgres's clock may be wrong, because freed
/// names cannot be restored.
pub async fn sweep_names(
    names: Arc<Names>,
    clock: Arc<ClusterClock>,
    interval: Duration,
    metrics: MaintenanceMetrics,
    stopping: CancellationToken,
) -> Result<(), TaskFailure> {
    loop {
        let chunks_max = if clock.is_steady() { CHUNKS_MAX } else { 0 };
        for _chunk in 0..chunks_max {
            match names.sweep(NAMES_MAX.saturating_as::<i64>()).await {
                Ok(swept) => {
                    metrics.names_freed.inc_by(swept.freed_count.saturating_as::<u64>());
                    metrics.names_prolonged.inc_by(swept.prolonged_count.saturating_as::<u64>());
                    if swept.freed_count + swept.prolonged_count < NAMES_MAX
                        || stopping.is_cancelled()
                    {
                        break;
                    }
                }
                Err(error) => {
                    // An expired name counts as free before it is deleted, so nobody waits for
                    // this.
                    tracing::warn!(error = chain(&error), "freeing expired names failed; retrying");
                    break;
                }
            }
        }
        tokio::select! {
            () = stopping.cancelled() => return Ok(()),
            () = clock::sleep(interval) => {}
        }
    }
}

/// Starts the maintenance of partitions: one task that creates and moves, and one task per table
/// that retires, because a detach may wait hours for a reader.
pub fn start(
    tasks: &Tasks,
    settings: &PostgresSettings,
    maintenance: Maintenance,
    clock: &Arc<ClusterClock>,
) {
    for parent in Parent::ALL {
        let retirer = Retirer::new(settings, parent, maintenance.rules);
        let retiring = retire(
            retirer,
            Arc::clone(clock),
            parent,
            maintenance.rules,
            maintenance.metrics.clone(),
        );
        let stopping = tasks.stopping.clone();
        tasks.spawn("retire partitions", async move {
            // A retirement may be cut off anywhere: the next node continues it.
            stopping.run_until_cancelled(Box::pin(retiring)).await;
            Ok(())
        });
    }
    tasks.spawn("keep partitions", maintenance.run(tasks.stopping.clone()));
}

/// Pauses while Postgres's clock may be wrong, because retired partitions cannot be restored.
async fn retire(
    mut retirer: Retirer,
    clock: Arc<ClusterClock>,
    parent: Parent,
    rules: Rules,
    metrics: MaintenanceMetrics,
) {
    loop {
        if !clock.is_steady() {
            clock::sleep(STEADY_POLL).await;
            continue;
        }
        let mut retired = Retired::default();
        let outcome = retirer.round(&mut retired).await;
        metrics.retired.get_or_create(&label(parent)).inc_by(retired.dropped_count);
        metrics.finalized.get_or_create(&label(parent)).inc_by(retired.finalized_count);
        if let Err(error) = outcome {
            metrics.failures.get_or_create(&label(parent)).inc();
            tracing::warn!(
                table = parent.table(),
                error = chain(&error),
                "retiring partitions failed; retrying"
            );
        }
        clock::sleep(rules.interval()).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::domain::ClusterSettings;

    #[test]
    fn the_end_of_the_leaves_does_not_go_back_when_the_leaf_of_the_moment_is_not_seen() {
        let (leaves, rules) = (Leaves::default(), Rules::new(&ClusterSettings::DEFAULT));
        let at = |seconds: i64| Timestamp::from_millis(seconds * 1000);
        assert_eq!((leaves.oldest(), leaves.end()), (None, None));
        leaves.take_in(&rules, &BTreeSet::from([at(0), at(900)]), at(100));
        assert_eq!((leaves.oldest(), leaves.end()), (Some(at(0)), Some(at(1800))));
        leaves.take_in(&rules, &BTreeSet::from([at(900)]), at(1000));
        assert_eq!((leaves.oldest(), leaves.end()), (Some(at(900)), Some(at(1800))));
        leaves.take_in(&rules, &BTreeSet::new(), at(1000));
        assert_eq!(leaves.end(), Some(at(1800)));
    }

    #[test]
    fn what_was_made_while_the_clock_was_ahead_does_not_hide_the_gap_before_it() {
        let (leaves, rules) = (Leaves::default(), Rules::new(&ClusterSettings::DEFAULT));
        let at = |seconds: i64| Timestamp::from_millis(seconds * 1000);
        leaves.take_in(&rules, &BTreeSet::from([at(0), at(9000), at(9900)]), at(9100));
        assert_eq!(leaves.end(), Some(at(10_800)));
        leaves.take_in(&rules, &BTreeSet::from([at(0), at(9000), at(9900)]), at(200));
        assert_eq!(leaves.end(), Some(at(900)));
    }
}
