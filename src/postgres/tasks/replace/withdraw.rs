//! Cancels the task of a name if a precondition allows it. The decision is made under the lock of
//! the entry.

use sqlx::Connection as _;
use sqlx::postgres::PgConnection;

use super::{Replaces, current_of, lock};
use crate::domain::{Precondition, PrincipalId, TaskName, TaskView, TopicName};
use crate::postgres::connection::error::PostgresError;
use crate::postgres::tasks::cancel::{CancelRow, FAR, NEAR, delete_rows};
use crate::postgres::tasks::names::{NameEntry, NameTerms};

/// The result of a cancel by name that has a precondition.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Withdrawal {
    Cancelled(Box<TaskView>),
    /// No change: the precondition allows the cancel, but the task is claimed, perhaps sent, or
    /// final. A look-up tells.
    Gone(NameEntry),
    /// No change: the name stands for a task that the precondition does not allow.
    Unmet(NameEntry),
    /// The name stands for no task.
    NotFound,
}

impl Replaces {
    /// Cancels the task that a name stands for, if `condition` allows it. `by` is the caller.
    ///
    /// # Errors
    /// After [`PostgresError::Unanswered`] the cancel may or may not have taken effect. After any
    /// other error it has not.
    pub async fn withdraw(
        &self,
        topic: &TopicName,
        name: &TaskName,
        condition: &Precondition,
        by: Option<PrincipalId>,
    ) -> Result<Withdrawal, PostgresError> {
        let names = self.terms();
        let statement = async |open: &mut PgConnection| {
            withdraw(open, (topic, name), condition, (by, names)).await
        };
        self.pool.run("cancel a task by its name", statement).await
    }
}

pub(in crate::postgres) async fn withdraw(
    open: &mut PgConnection,
    (topic, name): (&TopicName, &TaskName),
    condition: &Precondition,
    (by, names): (Option<PrincipalId>, NameTerms),
) -> Result<Withdrawal, sqlx::Error> {
    let mut transaction = open.begin().await?;
    let entry = lock(&mut transaction, topic.as_str(), name.as_str()).await?;
    let current = current_of(&mut transaction, entry, names).await?;
    let Some(entry) = entry.filter(|_entry| current.is_some()) else {
        transaction.rollback().await?;
        return Ok(Withdrawal::NotFound);
    };
    if !condition.allows(current) {
        transaction.rollback().await?;
        return Ok(Withdrawal::Unmet(entry));
    }
    let wanted = [CancelRow { row: entry.row, first: entry.id, by }];
    // The far table comes first: a task moves from there to a leaf, never back.
    for table in [FAR, NEAR] {
        let deleted =
            delete_rows(&mut transaction, &wanted, table.statement, names.retention).await?;
        if let Some(cancelled) = deleted.into_iter().next() {
            transaction.commit().await?;
            return Ok(Withdrawal::Cancelled(Box::new(cancelled.view)));
        }
    }
    transaction.rollback().await?;
    Ok(Withdrawal::Gone(entry))
}
