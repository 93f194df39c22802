//! A session that somebody forgot: its snapshot keeps Postgres from cleaning up. `bench` holds one, to show that tasks are on time all the same.

use std::time::Duration;

use super::connection::error::Error;
use super::connection::{Connection, Purpose, Settings};

/// It is the time between two statements that has no bound.
const PURPOSE: Purpose =
    Purpose { name: "old snapshot", deadline: Duration::from_secs(5), settings: &[("idle_in_transaction_session_timeout", "0")] };

/// Held until it is dropped.
#[derive(Debug)]
pub struct OldSnapshot {
    _connection: Connection,
}

impl OldSnapshot {
    /// Begins a repeatable-read transaction and takes its snapshot.
    ///
    /// # Errors
    /// When Postgres cannot be reached.
    pub async fn hold(settings: &Settings) -> Result<Self, Error> {
        let mut connection = Connection::new(settings, PURPOSE);
        connection
            .run("hold an old snapshot", async |open| {
                sqlx::query("-- begin to hold\nbegin isolation level repeatable read").execute(&mut *open).await?;
                sqlx::query("-- hold\nselect txid_current_snapshot()").execute(open).await
            })
            .await?;
        Ok(Self { _connection: connection })
    }
}
