//! Appends records to an intake topic, as an application does, to measure a cluster from outside.

use std::fmt;
use std::time::Duration;

use rdkafka::message::{Header, OwnedHeaders};
use rdkafka::producer::{DeliveryFuture, FutureProducer, FutureRecord};

use crate::domain::TopicName;
use crate::kafka::{ClientError, KafkaSettings, Mode};

/// The wait for more records of a batch: the default of Kafka's Java client since version 4.0. With
/// less, the five requests in flight of a producer have one or two records each, and 2,000
/// records/s to eight partitions wait for the broker (27 November 2026).
const LINGER_MS: &str = "5";
/// How long the client tries to append a record.
const GIVE_UP_AFTER: Duration = Duration::from_secs(10);

/// A record to append. Kafka chooses the partition by the key.
#[derive(Clone, Copy, Debug)]
pub struct NewRecord<'a> {
    pub key: &'a [u8],
    pub payload: &'a [u8],
    pub headers: &'a [(&'a str, &'a str)],
}

/// Appends records to one topic. Clones share a producer.
#[derive(Clone)]
pub struct RecordAppender {
    inner: FutureProducer,
    topic: TopicName,
}

impl fmt::Debug for RecordAppender {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RecordAppender").field("topic", &self.topic).finish_non_exhaustive()
    }
}

impl RecordAppender {
    pub fn new(settings: &KafkaSettings, topic: TopicName) -> Result<Self, ClientError> {
        let mut config = settings.producer_config(Mode::Together);
        config
            .set("linger.ms", LINGER_MS)
            .set("statistics.interval.ms", "0")
            .set("message.timeout.ms", GIVE_UP_AFTER.as_millis().to_string());
        let create = |source| ClientError::Create { what: "Kafka producer", source };
        Ok(Self { inner: config.create().map_err(create)?, topic })
    }

    /// Appends records, and waits for their acknowledgements.
    ///
    /// # Errors
    /// The reason for the first record that was not acknowledged. It may be there, and so may the
    /// others.
    pub async fn append(&self, records: &[NewRecord<'_>]) -> Result<(), String> {
        let mut sent = Vec::with_capacity(records.len());
        for record in records {
            sent.push(self.send(record)?);
        }
        for delivery in sent {
            match delivery.await {
                Ok(Ok(_place)) => {}
                Ok(Err((error, _record))) => return Err(error.to_string()),
                Err(_cancelled) => return Err("the producer ended before its report".to_owned()),
            }
        }
        Ok(())
    }

    fn send(&self, record: &NewRecord<'_>) -> Result<DeliveryFuture, String> {
        let mut headers = OwnedHeaders::new_with_capacity(record.headers.len());
        for (key, value) in record.headers {
            headers = headers.insert(Header { key, value: Some(*value) });
        }
        let record: FutureRecord<'_, [u8], [u8]> = FutureRecord {
            topic: self.topic.as_str(),
            partition: None,
            payload: Some(record.payload),
            key: Some(record.key),
            timestamp: None,
            headers: Some(headers),
        };
        self.inner.send_result(record).map_err(|(error, _record)| error.to_string())
    }
}
