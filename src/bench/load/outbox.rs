//! Submits tasks as rows of an outbox, as an application does: one transaction for each call.

use std::sync::Arc;

use az::SaturatingAs as _;

use super::intake::{CallResult, LoadConnection, LoadTarget};
use super::record::Records;
use crate::bench::ledger::Planned;
use crate::domain::TopicName;
use crate::error_chain::chain;
use crate::postgres::connection::PostgresSettings;
use crate::postgres::outbox::submitter::{NewRows, OutboxSubmitter};

/// An outbox in the database of an application.
#[derive(Clone, Debug)]
pub struct OutboxTarget {
    database: PostgresSettings,
    /// Never empty. Tasks go to them in turn.
    topics: Arc<[TopicName]>,
    records: Records,
}

impl OutboxTarget {
    pub fn new(database: PostgresSettings, topics: Vec<TopicName>, records: Records) -> Self {
        Self { database, topics: topics.into(), records }
    }
}

/// One session of the application.
#[derive(Debug)]
pub struct OutboxConnection {
    session: OutboxSubmitter,
    target: OutboxTarget,
}

impl LoadTarget for OutboxTarget {
    type Connection = OutboxConnection;

    async fn open(&self, _number: usize) -> Result<OutboxConnection, String> {
        Ok(OutboxConnection { session: OutboxSubmitter::new(&self.database), target: self.clone() })
    }
}

impl LoadConnection for OutboxConnection {
    async fn submit(&mut self, tasks: &[Planned]) -> Result<CallResult, String> {
        let OutboxTarget { topics, records, .. } = &self.target;
        let key_of = |task: &Planned| String::from_utf8_lossy(&records.key(task.key)).into_owned();
        let topic_of =
            |task: &Planned| topics[task.key.saturating_as::<usize>() % topics.len()].as_str();
        let rows = NewRows {
            topics: tasks.iter().map(topic_of).collect(),
            keys: tasks.iter().map(key_of).collect(),
            payloads: tasks.iter().map(|task| records.payload(task.key)).collect(),
            due_at: tasks.iter().map(|task| task.due_at).collect(),
        };
        // After any error, the rows may be there.
        self.session.submit(&rows).await.map_err(|error| chain(&error))?;
        Ok(CallResult::All)
    }
}
