//! Derives the outcome of a record from librdkafka's error codes.
//!
//! librdkafka remembers for each record whether it may have been written, but its Rust binding does
//! not show that, so the codes must do. The codes do not tell everything. When the first attempt of
//! a record loses its connection, the record goes back to the queue. It is then purged or times out
//! *in the queue*, although it may be in the topic. Only a record without a partition has certainly
//! never left. An unknown outcome is therefore the default, and every other answer is a line in a
//! list.

use std::fmt;

use rdkafka::error::RDKafkaErrorCode as Code;

use super::Mode;
use crate::domain::{Failure, Receipt};

/// The delivery report of a record: the end of one send.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct DeliveryReport {
    /// The correlation id that the sender gave with the record.
    pub correlation_id: usize,
    pub outcome: DeliveryOutcome,
}

/// The delivery outcome of a record.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum DeliveryOutcome {
    Acknowledged(Receipt),
    Failed(DeliveryFailure),
}

/// The reason why a record was not acknowledged, from librdkafka or a broker.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct DeliveryFailure {
    pub failure: Failure,
    pub reason: Reason,
    /// When false, the record certainly is not in its topic.
    pub maybe_sent: bool,
}

/// The reason why [`super::Producer::send`] did not take a record. The record is not in the
/// producer, and no report will come.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum SendError {
    /// A limit of the producer is reached: wait for reports.
    Full,
    Failed(DeliveryFailure),
}

/// The reason of librdkafka or the broker. `Display` gives it in words.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Reason(Code);

impl Reason {
    pub(super) const fn new(code: Code) -> Self {
        Self(code)
    }
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&self.0, f)
    }
}

impl fmt::Debug for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&self.0, f)
    }
}

impl DeliveryOutcome {
    /// Returns the outcome of a record that librdkafka calls delivered.
    ///
    /// A record without an offset is not delivered. The broker has answered that the sequence
    /// number is known already, and librdkafka takes the answer for a success. In a topic deleted
    /// and created again, the number is known from other records, and this record is not there
    /// (seen: two of 5,000, lost).
    pub(super) fn of_success(receipt: Receipt) -> Self {
        if receipt.offset >= 0 {
            Self::Acknowledged(receipt)
        } else {
            Self::Failed(DeliveryFailure::unknown(Reason(Code::DuplicateSequenceNumber)))
        }
    }

    /// Returns the outcome of a record taken by a producer of `mode` and failed with `code` on
    /// `partition`. A negative `partition`: the record had none yet.
    pub(super) fn of_report(code: Code, mode: Mode, partition: i32) -> Self {
        let reason = Reason(code);
        // An earlier attempt may have been appended, before its acknowledgement was lost and the
        // limit of the topic was lowered, or the right was withdrawn.
        let maybe_sent = partition >= 0;
        let failure = match Meaning::of(code) {
            Meaning::BadRecord if mode == Mode::Together => Failure::BatchRefused,
            Meaning::BadRecord | Meaning::BadName => Failure::RefusedForGood,
            Meaning::BadNeighbour => Failure::BatchRefused,
            Meaning::Forbidden => Failure::Forbidden,
            Meaning::NotNow => Failure::Unavailable,
            Meaning::InDoubt if maybe_sent => Failure::Unknown,
            Meaning::InDoubt => Failure::NotSent,
        };
        Self::Failed(DeliveryFailure { failure, reason, maybe_sent })
    }
}

impl DeliveryFailure {
    /// Makes the failure of a record that certainly is not in its topic.
    const fn certain(failure: Failure, reason: Reason) -> Self {
        Self { failure, reason, maybe_sent: false }
    }

    const fn unknown(reason: Reason) -> Self {
        Self { failure: Failure::Unknown, reason, maybe_sent: true }
    }

    /// Returns true when the record was not refused, but taken back from its producer.
    pub fn is_taken_back(&self) -> bool {
        matches!(self.reason.0, Code::PurgeQueue | Code::PurgeInflight)
    }

    /// Returns the same failure for a record that was taken back because it had waited too long.
    #[must_use]
    pub const fn timed_out(self) -> Self {
        Self { reason: Reason(Code::MessageTimedOut), ..self }
    }
}

impl SendError {
    /// Returns the error for a record that the producer did not take.
    pub(super) fn of_send(code: Code) -> Self {
        let reason = Reason(code);
        if code == Code::QueueFull {
            return Self::Full;
        }
        Self::Failed(match Meaning::of(code) {
            Meaning::BadRecord | Meaning::BadName => {
                DeliveryFailure::certain(Failure::RefusedForGood, reason)
            }
            Meaning::Forbidden => DeliveryFailure::certain(Failure::Forbidden, reason),
            Meaning::NotNow => DeliveryFailure::certain(Failure::Unavailable, reason),
            Meaning::BadNeighbour | Meaning::InDoubt => {
                DeliveryFailure::certain(Failure::NotSent, reason)
            }
        })
    }
}

/// The meaning of an error code for a record.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Meaning {
    /// Some record of the batch is not acceptable. The broker may or may not say which one.
    BadRecord,
    /// Another record of the batch is not acceptable.
    BadNeighbour,
    /// No topic can have such a name.
    BadName,
    /// The node may not write to the topic at present.
    Forbidden,
    /// The topic, its partition or the cluster takes no records at present, and did not take this
    /// attempt.
    NotNow,
    /// The record may have been written.
    InDoubt,
}

impl Meaning {
    fn of(code: Code) -> Self {
        match code {
            Code::MessageSizeTooLarge
            | Code::MessageBatchTooLarge
            | Code::InvalidMessage
            | Code::InvalidMessageSize
            | Code::InvalidRecord
            | Code::UnsupportedForMessageFormat => Self::BadRecord,
            Code::InvalidDifferentRecord => Self::BadNeighbour,
            Code::InvalidTopic => Self::BadName,
            Code::TopicAuthorizationFailed => Self::Forbidden,
            // Codes of the topic or its partition.
            Code::UnknownTopicOrPartition
            | Code::UnknownTopic
            | Code::UnknownPartition
            | Code::UnknownTopicId
            | Code::LeaderNotAvailable
            | Code::NotLeaderForPartition
            | Code::FencedLeaderEpoch
            | Code::UnknownLeaderEpoch
            | Code::ReplicaNotAvailable
            | Code::NotEnoughReplicas
            | Code::ISRInsufficient
            | Code::KafkaStorageError
            | Code::PolicyViolation
            | Code::UnsupportedCompressionType
            // The clocks of Postgres and of the broker are too far apart. The next attempt has
            // another time.
            | Code::InvalidTimestamp
            // Codes of the broker or the cluster. A right that the whole producer lacks is an
            // operator's mistake, and no task may die of it.
            | Code::BrokerNotAvailable
            | Code::ThrottlingQuotaExceeded
            | Code::ClusterAuthorizationFailed
            | Code::TransactionalIdAuthorizationFailed
            | Code::SaslAuthenticationFailed
            | Code::Authentication
            | Code::InvalidRequiredAcks
            | Code::UnsupportedVersion => Self::NotNow,
            // Timed out, purged, connection lost, sequence lost, appended but not replicated
            // (NotEnoughReplicasAfterAppend), fatal, and any code that a later librdkafka adds.
            _ => Self::InDoubt,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn outcome(code: Code) -> DeliveryOutcome {
        DeliveryOutcome::of_report(code, Mode::Together, 0)
    }

    fn failed(failure: Failure, code: Code) -> DeliveryOutcome {
        DeliveryOutcome::Failed(DeliveryFailure::certain(failure, Reason(code)))
    }

    fn perhaps_sent(failure: Failure, code: Code) -> DeliveryOutcome {
        DeliveryOutcome::Failed(DeliveryFailure { failure, reason: Reason(code), maybe_sent: true })
    }

    fn unknown(code: Code) -> DeliveryOutcome {
        perhaps_sent(Failure::Unknown, code)
    }

    #[test]
    fn a_success_without_an_offset_is_none() {
        let receipt = |offset| Receipt {
            partition: 0,
            offset,
            published_at: crate::domain::Timestamp::from_millis(1),
        };
        assert_eq!(
            DeliveryOutcome::of_success(receipt(0)),
            DeliveryOutcome::Acknowledged(receipt(0))
        );
        // RD_KAFKA_OFFSET_INVALID
        assert_eq!(
            DeliveryOutcome::of_success(receipt(-1001)),
            unknown(Code::DuplicateSequenceNumber)
        );
    }

    #[test]
    fn what_may_have_been_written_is_unknown() {
        for code in [
            Code::MessageTimedOut,
            Code::PurgeInflight,
            // The record was purged in the queue, perhaps after an attempt that lost its
            // connection.
            Code::PurgeQueue,
            Code::BrokerTransportFailure,
            Code::OperationTimedOut,
            Code::RequestTimedOut,
            Code::NetworkException,
            Code::NotEnoughReplicasAfterAppend,
            Code::OutOfOrderSequenceNumber,
            Code::DuplicateSequenceNumber,
            Code::InvalidProducerEpoch,
            Code::UnknownProducerId,
            Code::Fatal,
            Code::Unknown,
        ] {
            assert_eq!(outcome(code), unknown(code));
        }
    }

    #[test]
    fn a_record_without_a_partition_has_never_left() {
        for code in [Code::PurgeQueue, Code::MessageTimedOut, Code::Fatal] {
            assert_eq!(
                DeliveryOutcome::of_report(code, Mode::Together, -1),
                failed(Failure::NotSent, code)
            );
        }
        let unknown_topic = DeliveryOutcome::of_report(Code::UnknownTopic, Mode::Together, -1);
        assert_eq!(unknown_topic, failed(Failure::Unavailable, Code::UnknownTopic));
    }

    #[test]
    fn a_refused_batch_condemns_nobody_and_a_refused_record_is_refused() {
        for code in [Code::MessageSizeTooLarge, Code::MessageBatchTooLarge, Code::InvalidRecord] {
            let failure_of = |mode, partition| {
                let report = DeliveryOutcome::of_report(code, mode, partition);
                let DeliveryOutcome::Failed(failed) = report else { panic!("no failure") };
                // An attempt before may have been appended.
                assert_eq!(failed.maybe_sent, partition >= 0, "{code:?}");
                failed.failure
            };
            for partition in [-1, 0] {
                assert_eq!(failure_of(Mode::Together, partition), Failure::BatchRefused);
                assert_eq!(failure_of(Mode::Alone, partition), Failure::RefusedForGood);
            }
            let refused = DeliveryFailure::certain(Failure::RefusedForGood, Reason(code));
            assert_eq!(SendError::of_send(code), SendError::Failed(refused));
        }
        assert_eq!(
            outcome(Code::InvalidDifferentRecord),
            perhaps_sent(Failure::BatchRefused, Code::InvalidDifferentRecord)
        );
    }

    #[test]
    fn a_right_that_is_missing_condemns_no_record_at_once() {
        let of_the_topic = Code::TopicAuthorizationFailed;
        let DeliveryOutcome::Failed(refused) = outcome(of_the_topic) else { panic!("no failure") };
        assert_eq!((refused.failure, refused.maybe_sent), (Failure::Forbidden, true));
        let unplaced = DeliveryOutcome::of_report(of_the_topic, Mode::Together, -1);
        assert_eq!(unplaced, failed(Failure::Forbidden, of_the_topic));
        assert_eq!(
            SendError::of_send(of_the_topic),
            SendError::Failed(DeliveryFailure::certain(Failure::Forbidden, Reason(of_the_topic)))
        );
        assert_eq!(
            DeliveryOutcome::of_report(Code::InvalidTopic, Mode::Together, -1),
            failed(Failure::RefusedForGood, Code::InvalidTopic)
        );
        let DeliveryOutcome::Failed(of_all) = outcome(Code::ClusterAuthorizationFailed) else {
            panic!("no failure")
        };
        assert_eq!(of_all.failure, Failure::Unavailable);
    }

    #[test]
    fn a_full_queue_is_no_outcome() {
        assert_eq!(SendError::of_send(Code::QueueFull), SendError::Full);
    }

    #[test]
    fn what_the_producer_did_not_take_is_certainly_not_sent() {
        for code in [
            Code::UnknownTopic,
            Code::UnknownPartition,
            Code::Fatal,
            Code::State,
            Code::TopicAuthorizationFailed,
        ] {
            let SendError::Failed(failed) = SendError::of_send(code) else { panic!("{code:?}") };
            assert!(!failed.maybe_sent, "{code:?}");
        }
    }
}
