//! Retires partitions whose time has passed. At no moment is a task lost, or does a claim have to
//! wait.
//!
//! ```text
//! attached --(not needed)--> truncated (leaves only) --> detaching --> orphan --> dropped
//!     ^                                                      |            |
//!     |                                            cut off: FINALIZE      |
//!     +--------------------------- needed after all ----------------------+
//! ```
//!
//! The catalog is the authority: every step looks at the existing partitions, so the next node
//! continues after a killed one. A plain DROP would lock the parent, and behind one open reader
//! stall every claim. DETACH CONCURRENTLY waits for readers instead, for up to an hour, on its own
//! connection. A detach that is cut off leaves the partition neither attached nor detached until
//! finalized. The need for a partition is checked *after* the detach, when no transaction can write
//! there any more. Before the detach, a batch or a row could still slip in. A needed partition is
//! attached again unchanged.

use std::time::Duration;

use sqlx::postgres::PgConnection;
use sqlx::{AssertSqlSafe, Connection as _};

use super::locks::{self, HeldFor, retire_lock};
use super::{attach_statement, execute, take_census};
use crate::domain::leaves::{Parent, Partition, Rules};
use crate::domain::{Timestamp, ids};
use crate::failpoint::{Failpoint, reach};
use crate::postgres::connection::ConnectionPurpose;
use crate::postgres::{Connection, PostgresError, PostgresSettings};

/// Nearly all rows of a leaf at its end are dead, and passed by until the first live one. An index
/// has less to read than the table.
const WORK: ConnectionPurpose = ConnectionPurpose {
    name: "retire",
    deadline: Duration::from_secs(30),
    settings: &[("enable_seqscan", "off"), ("enable_bitmapscan", "off")],
};
/// A detach waits for the readers of the table, and should not be cut off, because it must then be
/// finalized. The deadline is for a server that has vanished silently. The session holds the lock
/// for retiring, and detached rows are invisible. So the session of a node that stalls between two
/// steps ends, and another node continues. No step between two uses of the session takes that long.
const DETACH: ConnectionPurpose = ConnectionPurpose {
    name: "detach",
    deadline: Duration::from_secs(3600),
    settings: &[("lock_timeout", "0"), ("idle_session_timeout", "5min")],
};

/// Retires the partitions of one table.
#[derive(Debug)]
pub struct Retirer {
    parent: Parent,
    rules: Rules,
    work: Connection,
    detach: Connection,
}

/// The result of a round.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Retired {
    /// Detaches that were left half-done and are finalized now.
    pub finalized_count: u64,
    pub dropped_count: u64,
    /// Partitions that were attached again because they are still needed.
    pub kept_count: u64,
}

impl Retirer {
    pub fn new(settings: &PostgresSettings, parent: Parent, rules: Rules) -> Self {
        let (work, detach) = (Connection::new(settings, WORK), Connection::new(settings, DETACH));
        Self { parent, rules, work, detach }
    }

    /// Retires all partitions that may go. This may take as long as an open transaction that has
    /// read the table, so run it in a task of its own. Each partition is added to `retired` when it
    /// is done, whatever fails later.
    pub async fn round(&mut self, retired: &mut Retired) -> Result<(), PostgresError> {
        let outcome = self.retire_all(retired).await;
        // The lock is released explicitly, also after a failure: a connection that is merely closed
        // keeps it until the server notices. A server that is away would not answer.
        let is_away = outcome.as_ref().is_err_and(PostgresError::is_away);
        let unlocked = if is_away { Ok(()) } else { self.unlock().await };
        // Rounds with work are rare, so no connections are kept between them.
        self.work.close();
        self.detach.close();
        outcome.and(unlocked)
    }

    async fn retire_all(&mut self, retired: &mut Retired) -> Result<(), PostgresError> {
        let (census, now) = take_census(&mut self.work, self.parent).await?;
        let past = self.rules.past(self.parent, &census.attached, now);
        if (past.is_empty() && census.detaching.is_empty() && census.orphans.is_empty())
            || !self.lock().await?
        {
            return Ok(());
        }
        // Another node may have retired partitions before this one got the lock.
        let (census, now) = take_census(&mut self.work, self.parent).await?;
        let past = self.rules.past(self.parent, &census.attached, now);
        // One partition that fails must not stop the others. The first error is returned at the
        // end.
        let mut trouble = None;
        for &start in &census.detaching {
            let outcome = self.finalize(self.partition(start), now, retired).await;
            keep_first(&mut trouble, outcome)?;
        }
        for &start in &census.orphans {
            let outcome = self.drop_or_keep(self.partition(start), now, retired).await;
            keep_first(&mut trouble, outcome)?;
        }
        for partition in past {
            let outcome = self.retire(partition, now, retired).await;
            keep_first(&mut trouble, outcome)?;
        }
        trouble.map_or(Ok(()), Err)
    }

    async fn retire(
        &mut self,
        partition: Partition,
        now: Timestamp,
        retired: &mut Retired,
    ) -> Result<(), PostgresError> {
        if self.prepare(partition).await? {
            reach(Failpoint::LeafTruncated);
            // A refused detach ends the session, and with it the lock.
            if !self.detach.is_open() && !self.lock().await? {
                return Ok(());
            }
            self.detach(partition).await?;
            reach(Failpoint::LeafDetached);
            self.drop_or_keep(partition, now, retired).await?;
        }
        Ok(())
    }

    fn partition(&self, start: Timestamp) -> Partition {
        Partition { parent: self.parent, start }
    }

    /// Takes the lock for the session, so that one node retires at a time. It saves errors only: a
    /// second node gives way to the locks of each step, and decides under them.
    pub async fn lock(&mut self) -> Result<bool, PostgresError> {
        let lock = retire_lock(self.parent);
        let statement =
            async |open: &mut PgConnection| locks::take(open, lock, HeldFor::Session).await;
        self.detach.run("take the lock for retiring", statement).await
    }

    async fn unlock(&mut self) -> Result<(), PostgresError> {
        let statement = async |open: &mut PgConnection| {
            sqlx::query("-- unlock after retiring\nselect pg_advisory_unlock_all()")
                .execute(open)
                .await
                .map(|_done| ())
        };
        if self.detach.is_open() {
            self.detach.run_in_session("release the lock for retiring", statement).await
        } else {
            Ok(())
        }
    }

    /// Returns whether the partition should be detached. Empties a leaf, so that its space is free
    /// at once.
    pub async fn prepare(&mut self, partition: Partition) -> Result<bool, PostgresError> {
        let what = format!("check whether {} can be retired", partition.name());
        let range = self.range(partition);
        let outcome = self
            .work
            .run(&what, async |open| match partition.parent {
                Parent::Task => truncate_if_empty(open, partition).await,
                Parent::ExeclogBatch | Parent::ExeclogPayload => {
                    Ok(!has_unsettled(open, "execlog_batch", range).await?)
                }
                Parent::ExeclogCancelled
                | Parent::ExeclogRedriven
                | Parent::ExeclogEnded
                | Parent::ExeclogDropped
                | Parent::ExeclogFinished
                | Parent::ExeclogAttempt => Ok(true),
            })
            .await;
        match outcome {
            // The leaf is being read. The next round tries again.
            Err(error) if error.is_lock_conflict() => Ok(false),
            other => other,
        }
    }

    /// Detaches the partition, in the session that has the lock.
    pub async fn detach(&mut self, partition: Partition) -> Result<(), PostgresError> {
        let name = partition.name();
        let statement = format!(
            "alter table {} detach partition {name} concurrently",
            partition.parent.table()
        );
        self.detach
            .run_in_session(&format!("detach {name}"), async |open| execute(open, statement).await)
            .await
    }

    /// Finalizes a detach that was cut off. Another cut does no harm, so there is a deadline,
    /// because the lock makes new leaves wait.
    async fn finalize(
        &mut self,
        partition: Partition,
        now: Timestamp,
        retired: &mut Retired,
    ) -> Result<(), PostgresError> {
        let name = partition.name();
        let statement =
            format!("alter table {} detach partition {name} finalize", partition.parent.table());
        self.work
            .run(&format!("finalize the detach of {name}"), async |open| {
                execute(open, statement).await
            })
            .await?;
        retired.finalized_count += 1;
        self.drop_or_keep(partition, now, retired).await
    }

    /// Drops a detached partition that is past at `now`, or attaches a needed one again.
    pub async fn drop_or_keep(
        &mut self,
        partition: Partition,
        now: Timestamp,
        retired: &mut Retired,
    ) -> Result<(), PostgresError> {
        let (name, rules, range) = (partition.name(), self.rules, self.range(partition));
        // After the clock was set back, an orphan of a time to come is kept, empty or not.
        let is_past = rules.end_of(partition).plus(rules.kept(partition.parent)) < now;
        let is_dropped = self
            .work
            .run(&format!("drop {name}"), async |open| {
                let mut transaction = open.begin().await?;
                execute(&mut transaction, format!("lock table {name} in access exclusive mode"))
                    .await?;
                let is_needed = !is_past
                    || match partition.parent {
                        Parent::Task => has_rows(&mut transaction, partition).await?,
                        Parent::ExeclogBatch => {
                            has_unsettled(&mut transaction, &name, range).await?
                        }
                        Parent::ExeclogPayload => {
                            has_unsettled(&mut transaction, "execlog_batch", range).await?
                        }
                        Parent::ExeclogCancelled
                        | Parent::ExeclogRedriven
                        | Parent::ExeclogEnded
                        | Parent::ExeclogDropped
                        | Parent::ExeclogFinished
                        | Parent::ExeclogAttempt => false,
                    };
                let statement = if is_needed {
                    attach_statement(&rules, partition)
                } else {
                    format!("drop table {name}")
                };
                execute(&mut transaction, statement).await?;
                transaction.commit().await?;
                Ok(!is_needed)
            })
            .await?;
        if is_dropped {
            retired.dropped_count += 1;
        } else {
            tracing::warn!(
                partition = name,
                "a detached partition is still needed; attached it again"
            );
            retired.kept_count += 1;
        }
        Ok(())
    }

    fn range(&self, partition: Partition) -> (uuid::Uuid, uuid::Uuid) {
        (ids::floor_of(partition.start), ids::floor_of(self.rules.end_of(partition)))
    }
}

/// Keeps the first error and continues, unless Postgres is away.
fn keep_first(
    first: &mut Option<PostgresError>,
    outcome: Result<(), PostgresError>,
) -> Result<(), PostgresError> {
    match outcome {
        Ok(()) => Ok(()),
        Err(error) if error.is_away() => Err(error),
        Err(error) => {
            first.get_or_insert(error);
            Ok(())
        }
    }
}

async fn truncate_if_empty(open: &mut PgConnection, leaf: Partition) -> Result<bool, sqlx::Error> {
    // A leaf that keeps a row is asked each minute, and must not be locked each time.
    if has_rows(open, leaf).await? {
        return Ok(false);
    }
    let name = leaf.name();
    let mut transaction = open.begin().await?;
    // Other statements on the leaf wait behind this lock, so the wait for the lock is short.
    execute(&mut transaction, "set local lock_timeout = '100ms'".to_owned()).await?;
    execute(&mut transaction, format!("lock table {name} in access exclusive mode")).await?;
    let is_empty = !has_rows(&mut transaction, leaf).await?;
    if is_empty {
        execute(&mut transaction, format!("truncate table {name}")).await?;
        transaction.commit().await?;
    } else {
        transaction.rollback().await?;
    }
    Ok(is_empty)
}

async fn has_rows(open: &mut PgConnection, leaf: Partition) -> Result<bool, sqlx::Error> {
    let statement = format!("-- has a leaf rows\nselect exists (select from {})", leaf.name());
    sqlx::query_scalar(AssertSqlSafe(statement)).persistent(false).fetch_one(open).await
}

/// Returns whether `table` (the execlog or a day of it) has unsettled batches in `range`.
async fn has_unsettled(
    open: &mut PgConnection,
    table: &str,
    range: (uuid::Uuid, uuid::Uuid),
) -> Result<bool, sqlx::Error> {
    let statement = format!(
        "-- has unsettled batches\n\
         select exists (select from {table} where settled_at is null and batch >= $1 and batch < \
         $2)"
    );
    sqlx::query_scalar(AssertSqlSafe(statement))
        .bind(range.0)
        .bind(range.1)
        .persistent(false)
        .fetch_one(open)
        .await
}
