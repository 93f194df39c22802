//! Submits tasks as records of an intake topic, as an application does.

use std::sync::Arc;

use az::SaturatingAs as _;

use super::intake::{CallResult, LoadConnection, LoadTarget};
use super::record::Records;
use crate::bench::ledger::Planned;
use crate::domain::TopicName;
use crate::error_chain::chain;
use crate::kafka::{KafkaSettings, NewRecord, RecordAppender};

/// An intake topic.
#[derive(Clone, Debug)]
pub struct IntakeTarget {
    appender: RecordAppender,
    /// Never empty. Tasks go to them in turn.
    topics: Arc<[TopicName]>,
    records: Records,
}

impl IntakeTarget {
    /// # Errors
    /// Returns the reason as text when the settings make no producer.
    pub fn new(
        kafka: &KafkaSettings,
        intake: TopicName,
        topics: Vec<TopicName>,
        records: Records,
    ) -> Result<Self, String> {
        let appender = RecordAppender::new(kafka, intake).map_err(|error| chain(&error))?;
        Ok(Self { appender, topics: topics.into(), records })
    }
}

impl LoadTarget for IntakeTarget {
    type Connection = Self;

    /// All connections share a producer, as the threads of an application do.
    async fn open(&self, _number: usize) -> Result<Self, String> {
        Ok(self.clone())
    }
}

impl LoadConnection for IntakeTarget {
    async fn submit(&mut self, tasks: &[Planned]) -> Result<CallResult, String> {
        let keys: Vec<[u8; 16]> = tasks.iter().map(|task| self.records.key(task.key)).collect();
        let due_at: Vec<String> = tasks.iter().map(|task| task.due_at.to_string()).collect();
        let topic_of = |task: &Planned| {
            self.topics[task.key.saturating_as::<usize>() % self.topics.len()].as_str()
        };
        let headers: Vec<[(&str, &str); 2]> = tasks
            .iter()
            .zip(&due_at)
            .map(|(task, due_at)| {
                [("punctual-topic", topic_of(task)), ("punctual-due-at", due_at.as_str())]
            })
            .collect();
        let records: Vec<NewRecord<'_>> = tasks
            .iter()
            .zip(keys.iter().zip(&headers))
            .map(|(task, (key, headers))| NewRecord {
                key,
                payload: self.records.payload(task.key).as_bytes(),
                headers,
            })
            .collect();
        self.appender.append(&records).await?;
        Ok(CallResult::All)
    }
}
