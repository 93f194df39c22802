//! A few shared connections. A caller has one for the time of a call.

use std::sync::Arc;

use parking_lot::Mutex;
use sqlx::postgres::PgConnection;
use tokio::runtime::Handle;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use super::error::{Cause, PostgresError};
use super::{Connection, ConnectionPurpose, PostgresSettings};

/// Connections with one purpose. A caller may be dropped in the middle of a statement. Its
/// connection is then closed after the server has ended the statement. Until then the connection
/// counts as used. So the number of active sessions stays within the limit, even when callers often
/// give up.
#[derive(Debug)]
pub struct Pool {
    settings: PostgresSettings,
    purpose: ConnectionPurpose,
    permits: Arc<Semaphore>,
    idle: Mutex<Vec<Connection>>,
}

impl Pool {
    /// Creates a pool of at most `connections_max` connections. None is open before the first call
    /// of `run` or `keep_open`.
    pub fn new(
        settings: &PostgresSettings,
        purpose: ConnectionPurpose,
        connections_max: usize,
    ) -> Self {
        Self {
            settings: settings.clone(),
            purpose,
            permits: Arc::new(Semaphore::new(connections_max)),
            idle: Mutex::default(),
        }
    }

    /// Runs a statement, as [`Connection::run`] does. The same deadline limits the wait for a
    /// connection.
    pub async fn run<T, F>(&self, what: &str, statement: F) -> Result<T, PostgresError>
    where
        F: AsyncFnOnce(&mut PgConnection) -> Result<T, sqlx::Error>,
    {
        let mut taken = self.take(what).await?;
        let outcome = taken.connection().run(what, statement).await;
        taken.is_at_rest = true;
        outcome
    }

    /// Runs a statement that changes nothing, as [`Connection::read`] does.
    pub async fn read<T, F>(
        &self,
        what: &str,
        statement: impl Fn() -> F,
    ) -> Result<T, PostgresError>
    where
        F: AsyncFnOnce(&mut PgConnection) -> Result<T, sqlx::Error>,
    {
        let mut taken = self.take(what).await?;
        let outcome = taken.connection().read(what, statement).await;
        taken.is_at_rest = true;
        outcome
    }

    /// Ensures that one of the connections is open, unless all are in use.
    pub async fn keep_open(&self) -> Result<(), PostgresError> {
        let Ok(permit) = Arc::clone(&self.permits).try_acquire_owned() else { return Ok(()) };
        let mut taken = self.taken(permit);
        let outcome = taken.connection().keep_open().await;
        taken.is_at_rest = true;
        outcome
    }

    async fn take(&self, what: &str) -> Result<PooledConnection<'_>, PostgresError> {
        let deadline = self.purpose.deadline;
        let permit = match tokio::time::timeout(deadline, Arc::clone(&self.permits).acquire_owned())
            .await
        {
            Ok(Ok(permit)) => permit,
            Ok(Err(_closed)) => {
                return Err(PostgresError::new(what, Cause::Fact("the connections are closed")));
            }
            // No statement was sent.
            Err(_elapsed) => {
                return Err(PostgresError::Unreachable {
                    what: what.to_owned(),
                    source: Cause::Deadline(deadline),
                });
            }
        };
        Ok(self.taken(permit))
    }

    fn taken(&self, permit: OwnedSemaphorePermit) -> PooledConnection<'_> {
        let connection = self.idle.lock().pop();
        PooledConnection { pool: self, connection, permit: Some(permit), is_at_rest: false }
    }
}

/// A connection that a caller is using, and the permit for it.
struct PooledConnection<'a> {
    pool: &'a Pool,
    /// `None` before the connection is made.
    connection: Option<Connection>,
    permit: Option<OwnedSemaphorePermit>,
    /// False while the server may be at work for this connection.
    is_at_rest: bool,
}

impl PooledConnection<'_> {
    fn connection(&mut self) -> &mut Connection {
        let Pool { settings, purpose, .. } = self.pool;
        self.connection.get_or_insert_with(|| Connection::new(settings, *purpose))
    }
}

impl Drop for PooledConnection<'_> {
    fn drop(&mut self) {
        let (Some(connection), Some(permit)) = (self.connection.take(), self.permit.take()) else {
            return;
        };
        if self.is_at_rest {
            self.pool.idle.lock().push(connection);
        } else if let Ok(runtime) = Handle::try_current() {
            // The permits limit the number of these tasks, and the deadline their time. Not by
            // `Tasks`: a close that fails or panics costs a connection, which is made again, and
            // gives its permit back. So it must not end the node.
            runtime.spawn(async move {
                connection.wind_up().await;
                drop(permit);
            });
        }
    }
}
