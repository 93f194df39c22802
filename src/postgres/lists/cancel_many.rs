//! Cancels the tasks on a page of a list, with the same deletes as single cancels, and counts them.

use std::time::Duration;

use az::SaturatingAs as _;
use sqlx::postgres::PgConnection;
use uuid::Uuid;

use super::listing::ListedTask;
use crate::domain::PrincipalId;
use crate::postgres::connection::ConnectionPurpose;
use crate::postgres::connection::pool::Pool;
use crate::postgres::tasks::cancel::{
    CancelRow, FAR, FOLLOW, NEAR, PURPOSE, TaskTable, delete_rows, note_names, tell_unnoted,
    unnoted,
};
use crate::postgres::{PostgresError, PostgresSettings};

/// Cancels many tasks, on a connection beside that of single cancels.
#[derive(Debug)]
pub struct CancelMany {
    pool: Pool,
    name_retention: Duration,
}

/// A group of tasks that is being cancelled.
#[derive(Clone, Debug)]
pub struct CancelGroup {
    wanted: Vec<CancelRow>,
    /// Number of tasks cancelled so far, whatever becomes of the others.
    pub cancelled_count: u64,
}

impl CancelGroup {
    /// Takes at most [`crate::postgres::tasks::cancel::GROUP_MAX`] tasks. `by` is the caller.
    pub fn new(tasks: &[ListedTask], by: Option<PrincipalId>) -> Self {
        let wanted =
            tasks.iter().map(|task| CancelRow { row: task.row, first: task.view.id, by }).collect();
        Self { wanted, cancelled_count: 0 }
    }
}

impl CancelMany {
    /// Cancels one group at a time. Names are kept for `name_retention` after that.
    pub fn new(settings: &PostgresSettings, name_retention: Duration) -> Self {
        let purpose = ConnectionPurpose { name: "cancel many", ..PURPOSE };
        Self { pool: Pool::new(settings, purpose, 1), name_retention }
    }

    /// Cancels the tasks of the group that are neither claimed nor perhaps sent, each with a line
    /// in the execlog, and counts them. Repeat after giving way: finished cancels are counted once.
    ///
    /// # Errors
    /// After an [unknown](PostgresError::is_unknown) error, more tasks may be cancelled than are
    /// counted.
    pub async fn cancel(&self, group: &mut CancelGroup) -> Result<(), PostgresError> {
        // The far table comes first: a task moves from there to a leaf, never back.
        self.delete(group, FAR).await?;
        self.delete(group, NEAR).await
    }

    async fn delete(&self, group: &mut CancelGroup, table: TaskTable) -> Result<(), PostgresError> {
        if group.wanted.is_empty() {
            return Ok(());
        }
        group.wanted.sort_unstable_by_key(table.order);
        let (wanted, retention) = (&group.wanted, self.name_retention);
        let deleted = self
            .pool
            .run(table.what, async |open| {
                delete_rows(open, wanted, table.statement, retention).await
            })
            .await?;
        group.cancelled_count += deleted.len().saturating_as::<u64>();
        let names = unnoted(&deleted);
        let deleted: std::collections::HashSet<_> =
            deleted.into_iter().map(|one| one.view.id).collect();
        group.wanted.retain(|wanted| !deleted.contains(&wanted.first));
        if !names.is_empty() {
            let noted = self.pool.run("note the cancel of names", async |open| {
                note_names(open, &names, retention).await
            });
            tell_unnoted(noted.await);
        }
        Ok(())
    }

    /// Returns how many of `tasks` could be cancelled now: all except those that were perhaps sent.
    pub async fn count(&self, tasks: &[ListedTask]) -> Result<u64, PostgresError> {
        let first_attempts = tasks.iter().filter(|task| task.row == task.view.id).count();
        let others: Vec<Uuid> = tasks
            .iter()
            .filter(|task| task.row != task.view.id)
            .map(|task| task.view.id.uuid())
            .collect();
        let mut count = first_attempts;
        if !others.is_empty() {
            let statement = async |open: &mut PgConnection| {
                sqlx::query(FOLLOW).bind(others).fetch_all(open).await
            };
            count +=
                self.pool.run("find the follow-ups of tasks to cancel", statement).await?.len();
        }
        Ok(count.saturating_as::<u64>())
    }
}
