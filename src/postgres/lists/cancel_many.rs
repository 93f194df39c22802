//! Cancels of what a list has found: the same deletes as those of single cancels, counted.

use sqlx::postgres::PgConnection;
use uuid::Uuid;

use super::listing::Listed;
use crate::postgres::connection::Purpose;
use crate::postgres::connection::pool::Pool;
use crate::postgres::tasks::cancel::{FAR, FOLLOW, NEAR, PURPOSE, Table, Wanted, delete_rows};
use crate::postgres::{Error, Settings};

/// Cancels many tasks, beside the lane of the single cancels.
#[derive(Debug)]
pub struct CancelMany {
    pool: Pool,
}

/// A group of tasks that is being cancelled.
#[derive(Clone, Debug)]
pub struct CancelGroup {
    wanted: Vec<Wanted>,
    /// Tasks that were cancelled for this group, whatever came of the others.
    pub cancelled_count: u64,
}

impl CancelGroup {
    /// At most [`crate::postgres::tasks::cancel::GROUP_MAX`] tasks.
    pub fn new(tasks: &[Listed]) -> Self {
        let wanted = tasks.iter().map(|task| Wanted { row: task.row, first: task.view.id }).collect();
        Self { wanted, cancelled_count: 0 }
    }
}

impl CancelMany {
    /// One group at a time.
    pub fn new(settings: &Settings) -> Self {
        Self { pool: Pool::new(settings, Purpose { name: "cancel many", ..PURPOSE }, 1) }
    }

    /// Withdraws those of the group that are neither claimed nor perhaps sent, each with its line in the execlog, and counts them. To be repeated after it gave
    /// way: what is done is done, and counted once.
    ///
    /// # Errors
    /// After an [unknown](Error::is_unknown) one, more of the group may be cancelled than are counted.
    pub async fn cancel(&self, group: &mut CancelGroup) -> Result<(), Error> {
        // The far table first: a task moves from there to a leaf, never back.
        self.delete(group, FAR).await?;
        self.delete(group, NEAR).await
    }

    async fn delete(&self, group: &mut CancelGroup, table: Table) -> Result<(), Error> {
        if group.wanted.is_empty() {
            return Ok(());
        }
        group.wanted.sort_unstable_by_key(table.order);
        let wanted = &group.wanted;
        let deleted = self.pool.run(table.what, async |open| delete_rows(open, wanted, table.statement).await).await?;
        group.cancelled_count += u64::try_from(deleted.len()).unwrap_or(u64::MAX);
        let deleted: std::collections::HashSet<_> = deleted.into_iter().map(|view| view.id).collect();
        group.wanted.retain(|wanted| !deleted.contains(&wanted.first));
        Ok(())
    }

    /// How many of `tasks` could be cancelled now: all but those that were perhaps sent.
    pub async fn count(&self, tasks: &[Listed]) -> Result<u64, Error> {
        let first_attempts = tasks.iter().filter(|task| task.row == task.view.id).count();
        let others: Vec<Uuid> = tasks.iter().filter(|task| task.row != task.view.id).map(|task| task.view.id.uuid()).collect();
        let mut count = first_attempts;
        if !others.is_empty() {
            let statement = async |open: &mut PgConnection| sqlx::query(FOLLOW).bind(others).fetch_all(open).await;
            count += self.pool.run("find the follow-ups of tasks to cancel", statement).await?.len();
        }
        Ok(u64::try_from(count).unwrap_or(u64::MAX))
    }
}
