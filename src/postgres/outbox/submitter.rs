//! Writes rows into an outbox, as an application does, to measure a cluster from outside.

use sqlx::postgres::PgConnection;

use super::PURPOSE;
use crate::postgres::{Connection, PostgresError, PostgresSettings};

/// Submits to write, as columns.
#[derive(Debug)]
pub struct NewRows<'a> {
    pub topics: Vec<&'a str>,
    pub keys: Vec<String>,
    pub payloads: Vec<&'a str>,
    /// Milliseconds since the epoch.
    pub due_at: Vec<i64>,
}

/// A session of an application. It inserts into the outbox, and commits.
#[derive(Debug)]
pub struct OutboxSubmitter {
    connection: Connection,
}

const INSERT: &str = "-- insert rows into an outbox
insert into punctual.outbox (topic, key, payload_text, due_at)
select r.topic, r.key, r.payload, to_timestamp(r.due_at::float8 / 1000)
from unnest($1::text[], $2::text[], $3::text[], $4::bigint[]) as r (topic, key, payload, due_at)";

impl OutboxSubmitter {
    pub fn new(settings: &PostgresSettings) -> Self {
        Self { connection: Connection::new(settings, PURPOSE).plain() }
    }

    /// Writes rows in one transaction.
    ///
    /// # Errors
    /// After [`PostgresError::Unanswered`] the rows may be there. After any other error they are
    /// not.
    pub async fn submit(&mut self, rows: &NewRows<'_>) -> Result<(), PostgresError> {
        let insert = async |open: &mut PgConnection| {
            let query = sqlx::query(INSERT).bind(&rows.topics).bind(&rows.keys);
            let query = query.bind(&rows.payloads).bind(&rows.due_at);
            query.persistent(false).execute(open).await
        };
        self.connection.run("insert rows into the outbox", insert).await.map(|_inserted| ())
    }
}
