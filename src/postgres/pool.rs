//! A few connections that callers share, each for the time of a call.

use std::sync::{Mutex, PoisonError};

use sqlx::postgres::PgConnection;
use tokio::sync::Semaphore;

use super::connection::Purpose;
use super::error::Cause;
use super::{Connection, Error, Settings};

/// Connections with one purpose. Callers may be dropped in the middle of a statement: then that connection is closed, and opened anew when it is needed.
#[derive(Debug)]
pub struct Pool {
    settings: Settings,
    purpose: Purpose,
    permits: Semaphore,
    idle: Mutex<Vec<Connection>>,
}

impl Pool {
    /// At most `connections_max` at a time; none is open before the first call.
    pub fn new(settings: &Settings, purpose: Purpose, connections_max: usize) -> Self {
        Self { settings: settings.clone(), purpose, permits: Semaphore::new(connections_max), idle: Mutex::default() }
    }

    /// Runs a statement, as [`Connection::run`] does. Waiting for a connection is bounded by the same deadline.
    pub async fn run<T, F>(&self, what: &str, statement: F) -> Result<T, Error>
    where
        F: AsyncFnOnce(&mut PgConnection) -> Result<T, sqlx::Error>,
    {
        let mut taken = self.take(what).await?;
        let outcome = taken.connection.run(what, statement).await;
        self.put_back(taken.connection);
        outcome
    }

    async fn take(&self, what: &str) -> Result<Taken<'_>, Error> {
        let deadline = self.purpose.deadline;
        let permit = match tokio::time::timeout(deadline, self.permits.acquire()).await {
            Ok(Ok(permit)) => permit,
            Ok(Err(_closed)) => return Err(Error::new(what, Cause::Fact("the connections are closed"))),
            // Nothing was asked for.
            Err(_elapsed) => return Err(Error::Unreachable { what: what.to_owned(), source: Cause::Deadline(deadline) }),
        };
        let idle = self.idle.lock().unwrap_or_else(PoisonError::into_inner).pop();
        Ok(Taken { connection: idle.unwrap_or_else(|| Connection::new(&self.settings, self.purpose)), _permit: permit })
    }

    fn put_back(&self, connection: Connection) {
        self.idle.lock().unwrap_or_else(PoisonError::into_inner).push(connection);
    }
}

struct Taken<'a> {
    connection: Connection,
    _permit: tokio::sync::SemaphorePermit<'a>,
}
