//! Recurring schedules: the rows, and the statement that makes runs.

pub mod backfill;
pub mod change;
pub mod make;
pub mod read;
pub mod renew;
mod row;

use crate::postgres::connection::pool::Pool;
use crate::postgres::tasks::cancel;
use crate::postgres::{PostgresError, PostgresSettings};
use crate::sealing::PayloadKeys;

/// The connections for calls of the API about schedules. None is open before the first call.
#[derive(Debug)]
pub struct Schedules {
    pool: Pool,
    keys: PayloadKeys,
}

impl Schedules {
    pub fn new(settings: &PostgresSettings, connections_max: usize) -> Self {
        // A change withdraws runs, which has the plans and the locks of a cancel.
        let purpose = super::connection::ConnectionPurpose { name: "schedules", ..cancel::PURPOSE };
        let keys = settings.payload_keys().clone();
        Self { pool: Pool::new(settings, purpose, connections_max), keys }
    }

    /// Opens a connection, or checks one. Calls do so by themselves.
    pub async fn keep_open(&self) -> Result<(), PostgresError> {
        self.pool.keep_open().await
    }
}
