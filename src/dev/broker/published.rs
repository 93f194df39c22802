//! Reads the records of a topic without a client.

use super::records;
use super::state::Broker;
use crate::api::dev_port::{PublishedRecord, Unpublished};
use crate::error_chain::chain;

impl Broker {
    /// Returns the records of a topic, the latest `count_max`, in the order of their appends.
    ///
    /// # Errors
    /// When there is no such topic, or when it has records that only clients can read.
    pub fn published(
        &self,
        topic: &str,
        count_max: usize,
    ) -> Result<Vec<PublishedRecord>, Unpublished> {
        let batches: Vec<_> = {
            let topics = self.shared.topics.lock();
            let partitions = &topics.get(topic).ok_or(Unpublished::UnknownTopic)?.partitions;
            (0..)
                .zip(partitions)
                .flat_map(|(index, partition)| {
                    partition.batches_from(0).map(move |batch| (index, batch.clone()))
                })
                .collect()
        };
        let mut published = Vec::new();
        for (partition, batch) in batches {
            let read = records::read(&batch)
                .map_err(|error| Unpublished::Unreadable(chain(error.as_ref())))?;
            published.extend(read.into_iter().map(|record| {
                PublishedRecord {
                    partition,
                    offset: record.offset,
                    appended_at: batch.appended_at,
                    key: record.key,
                    value: record.value,
                    headers: record
                        .headers
                        .into_iter()
                        .map(|(name, value)| (name.to_string(), value.unwrap_or_default()))
                        .collect(),
                }
            }));
        }
        published.sort_by_key(|record| (record.appended_at, record.partition, record.offset));
        let surplus = published.len().saturating_sub(count_max);
        Ok(published.split_off(surplus))
    }
}
