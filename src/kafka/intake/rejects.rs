//! Writes rejected records of an intake topic to its rejected topic.

use std::fmt;
use std::time::Duration;

use rdkafka::error::RDKafkaErrorCode as Code;
use rdkafka::message::{Header, OwnedHeaders};
use rdkafka::producer::{DeliveryFuture, FutureProducer, FutureRecord};

use crate::domain::task::intake_record::IntakeRecord;
use crate::domain::{Failure, TopicName};
use crate::kafka::context::QuietContext;
use crate::kafka::delivery::DeliveryOutcome;
use crate::kafka::intake::{CLOSE_DEADLINE, end};
use crate::kafka::{ClientError, KafkaSettings, Mode, Reason};

/// The reason of a rejection.
const REASON: &str = "punctual-rejected-reason";
/// The place of the record in the intake topic.
const TOPIC: &str = "punctual-rejected-topic";
const PARTITION: &str = "punctual-rejected-partition";
const OFFSET: &str = "punctual-rejected-offset";
/// Headers of an earlier rejection are replaced.
const PREFIX: &str = "punctual-rejected-";

/// How long the client tries. Meanwhile all partitions of the topic wait that this node reads.
const GIVE_UP_AFTER: Duration = Duration::from_secs(10);

/// A record to reject.
#[derive(Clone, Copy, Debug)]
pub struct Reject<'a> {
    pub record: &'a IntakeRecord,
    pub partition: i32,
    pub reason: &'a str,
}

/// The outcome of a write.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum RejectOutcome {
    Acknowledged,
    /// The topic will never take this record.
    Refused {
        reason: String,
    },
    /// The record may or may not be written.
    Away {
        reason: String,
    },
}

/// Writes rejected records of one intake topic.
pub struct RejectProducer {
    inner: FutureProducer<QuietContext>,
    intake: TopicName,
    topic: TopicName,
}

impl fmt::Debug for RejectProducer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RejectProducer").field("topic", &self.topic).finish_non_exhaustive()
    }
}

impl RejectProducer {
    /// Makes a producer that writes rejected records of `intake` to `topic`.
    pub fn new(
        settings: &KafkaSettings,
        intake: TopicName,
        topic: TopicName,
    ) -> Result<Self, ClientError> {
        // Each record has its own batch, so that a refusal concerns one record.
        let mut config = settings.producer_config(Mode::Alone);
        config
            .set("statistics.interval.ms", "0")
            .set("message.timeout.ms", GIVE_UP_AFTER.as_millis().to_string());
        let create = |source| ClientError::Create { what: "Kafka producer", source };
        let inner = config.create_with_context(QuietContext).map_err(create)?;
        Ok(Self { inner, intake, topic })
    }

    /// Ends the producer: see [`end`].
    pub async fn close(self) {
        let topic = self.topic.clone();
        end(self, "producer of rejected records", &topic, CLOSE_DEADLINE).await;
    }

    /// Writes records. Returns their outcomes, in their order.
    pub async fn send(&self, rejects: &[Reject<'_>]) -> Vec<RejectOutcome> {
        let sent: Vec<_> = rejects.iter().map(|reject| self.send_one(reject)).collect();
        let mut outcomes = Vec::with_capacity(sent.len());
        for sent in sent {
            outcomes.push(match sent {
                Ok(delivery) => outcome_of(delivery).await,
                Err(code) => failed(code),
            });
        }
        outcomes
    }

    fn send_one(&self, reject: &Reject<'_>) -> Result<DeliveryFuture, Code> {
        let Reject { record, partition, reason } = reject;
        let own = record.headers.iter().flatten();
        let own = own.filter(|(name, _)| !name.starts_with(PREFIX) && !name.contains('\0'));
        let mut headers = OwnedHeaders::new();
        for (name, value) in own {
            headers = headers.insert(Header { key: name, value: value.as_deref() });
        }
        let partition = partition.to_string();
        let offset = record.offset.to_string();
        for (key, value) in [
            (REASON, *reason),
            (TOPIC, self.intake.as_str()),
            (PARTITION, &partition),
            (OFFSET, &offset),
        ] {
            headers = headers.insert(Header { key, value: Some(value) });
        }
        let rejected: FutureRecord<'_, [u8], [u8]> = FutureRecord {
            topic: self.topic.as_str(),
            partition: None,
            payload: record.payload.as_deref(),
            key: record.key.as_deref(),
            timestamp: None,
            headers: Some(headers),
        };
        let sent = self.inner.send_result(rejected);
        sent.map_err(|(error, _record)| error.rdkafka_error_code().unwrap_or(Code::Unknown))
    }
}

async fn outcome_of(delivery: DeliveryFuture) -> RejectOutcome {
    match delivery.await {
        Ok(Ok(written)) => acknowledged(written.offset),
        Ok(Err((error, _record))) => failed(error.rdkafka_error_code().unwrap_or(Code::Unknown)),
        Err(_cancelled) => {
            RejectOutcome::Away { reason: "the producer ended before its report".to_owned() }
        }
    }
}

/// Returns the outcome of a success. One without an offset may be none: see
/// [`DeliveryOutcome::of_success`].
fn acknowledged(offset: i64) -> RejectOutcome {
    match offset {
        0.. => RejectOutcome::Acknowledged,
        _ => failed(Code::DuplicateSequenceNumber),
    }
}

fn failed(code: Code) -> RejectOutcome {
    let reason = Reason::new(code).to_string();
    match DeliveryOutcome::of_report(code, Mode::Alone, 0) {
        DeliveryOutcome::Failed(failed) if failed.failure == Failure::RefusedForGood => {
            RejectOutcome::Refused { reason }
        }
        _ => RejectOutcome::Away { reason },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_success_without_an_offset_is_written_again() {
        assert!(matches!(acknowledged(0), RejectOutcome::Acknowledged));
        assert!(matches!(acknowledged(-1001), RejectOutcome::Away { .. }));
    }

    #[test]
    fn only_a_refusal_of_the_record_itself_is_final() {
        assert!(matches!(failed(Code::MessageSizeTooLarge), RejectOutcome::Refused { .. }));
        for code in [Code::UnknownTopic, Code::MessageTimedOut, Code::TopicAuthorizationFailed] {
            assert!(matches!(failed(code), RejectOutcome::Away { .. }), "{code:?}");
        }
    }
}
