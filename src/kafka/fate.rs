//! What became of a record, and which of librdkafka's error codes means what.
//!
//! librdkafka keeps for each record whether it may have been written, but its Rust binding does not show it: the codes must do. What they cannot tell:
//! a record whose first attempt lost its connection goes back to the queue, and is then purged or timed out *in the queue* although it may stand in
//! the topic. Only a record without a partition has certainly never left. So doubt is the default, and every other answer is a line in a list.

use std::fmt;

use rdkafka::error::RDKafkaErrorCode as Code;

use super::Mode;
use crate::domain::Receipt;

/// The end of one send.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Report {
    /// What the sender gave with the record.
    pub ticket: usize,
    pub fate: Fate,
}

/// What became of a record.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Fate {
    Acknowledged(Receipt),
    /// It never left the producer, for a reason that is not its topic's.
    NotSent(Reason),
    /// It may stand in the topic: no answer came.
    Unknown(Reason),
    /// The batch in which it travelled was refused, which says nothing of this record: send it alone.
    BatchRefused(Reason),
    /// Too large, malformed, or not allowed: it will not pass when repeated as it is.
    RefusedForGood(Reason),
    /// Its topic or partition does not take records just now.
    Unavailable {
        reason: Reason,
        /// False: it certainly is not in the topic.
        maybe_sent: bool,
    },
}

/// Why [`super::Producer::send`] did not take a record. It is not in the producer, and no report will come.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum SendError {
    /// A bound of the producer is reached: wait for reports.
    Full,
    /// `NotSent`, `RefusedForGood` or `Unavailable`.
    Failed(Fate),
}

/// librdkafka's or the broker's reason, in words by `Display`.
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

impl Fate {
    /// True unless the record certainly is not in its topic.
    pub fn maybe_sent(&self) -> bool {
        match self {
            Self::Acknowledged(_) | Self::Unknown(_) => true,
            Self::Unavailable { maybe_sent, .. } => *maybe_sent,
            Self::NotSent(_) | Self::BatchRefused(_) | Self::RefusedForGood(_) => false,
        }
    }

    /// Of a record that librdkafka calls delivered.
    ///
    /// Without an offset it is not: the broker has answered that it knows the sequence number already, and librdkafka takes that for a success. In a topic
    /// that was deleted and made again the number is known from other records, and this one is not there (seen: two of 5,000, lost).
    pub(super) fn of_success(receipt: Receipt) -> Self {
        if receipt.offset >= 0 { Self::Acknowledged(receipt) } else { Self::Unknown(Reason(Code::DuplicateSequenceNumber)) }
    }

    /// Of a record that a producer of `mode` had taken in, and that failed with `code` on `partition` (negative: it had none yet).
    pub(super) fn of_report(code: Code, mode: Mode, partition: i32) -> Self {
        let reason = Reason(code);
        let has_partition = partition >= 0;
        match Meaning::of(code) {
            Meaning::BadRecord if mode == Mode::Together => Self::BatchRefused(reason),
            Meaning::BadRecord | Meaning::NotAllowed => Self::RefusedForGood(reason),
            Meaning::BadNeighbour => Self::BatchRefused(reason),
            Meaning::NotNow => Self::Unavailable { reason, maybe_sent: has_partition },
            Meaning::Doubt if has_partition => Self::Unknown(reason),
            Meaning::Doubt => Self::NotSent(reason),
        }
    }
}

impl SendError {
    /// Of a record that the producer did not take.
    pub(super) fn of_send(code: Code) -> Self {
        let reason = Reason(code);
        if code == Code::QueueFull {
            return Self::Full;
        }
        Self::Failed(match Meaning::of(code) {
            Meaning::BadRecord | Meaning::NotAllowed => Fate::RefusedForGood(reason),
            Meaning::NotNow => Fate::Unavailable { reason, maybe_sent: false },
            Meaning::BadNeighbour | Meaning::Doubt => Fate::NotSent(reason),
        })
    }
}

/// What a code says of a record.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Meaning {
    /// Something in the batch is not acceptable. A broker may or may not say which record it is.
    BadRecord,
    /// Another record of the batch is not acceptable.
    BadNeighbour,
    /// The topic is not ours to write to.
    NotAllowed,
    /// The topic, its partition or the cluster does not take records at present, and did not take this attempt.
    NotNow,
    /// It may have been written.
    Doubt,
}

impl Meaning {
    fn of(code: Code) -> Self {
        match code {
            Code::MessageSizeTooLarge
            | Code::MessageBatchTooLarge
            | Code::InvalidMessage
            | Code::InvalidMessageSize
            | Code::InvalidRecord
            | Code::InvalidTimestamp
            | Code::UnsupportedForMessageFormat => Self::BadRecord,
            Code::InvalidDifferentRecord => Self::BadNeighbour,
            Code::TopicAuthorizationFailed | Code::InvalidTopic => Self::NotAllowed,
            // Of the topic or its partition.
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
            // Of the broker or the cluster. A right that the whole producer lacks is an operator's mistake: nobody's task may die of it.
            | Code::BrokerNotAvailable
            | Code::ThrottlingQuotaExceeded
            | Code::ClusterAuthorizationFailed
            | Code::TransactionalIdAuthorizationFailed
            | Code::SaslAuthenticationFailed
            | Code::Authentication
            | Code::InvalidRequiredAcks
            | Code::UnsupportedVersion => Self::NotNow,
            // Timed out, purged, connection lost, sequence lost, appended but not replicated (NotEnoughReplicasAfterAppend), fatal, and whatever a
            // later librdkafka adds.
            _ => Self::Doubt,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fate(code: Code) -> Fate {
        Fate::of_report(code, Mode::Together, 0)
    }

    #[test]
    fn a_success_without_an_offset_is_none() {
        let receipt = |offset| Receipt { partition: 0, offset, published_at: crate::domain::Timestamp::from_millis(1) };
        assert_eq!(Fate::of_success(receipt(0)), Fate::Acknowledged(receipt(0)));
        // RD_KAFKA_OFFSET_INVALID
        assert_eq!(Fate::of_success(receipt(-1001)), Fate::Unknown(Reason(Code::DuplicateSequenceNumber)));
    }

    #[test]
    fn what_may_have_been_written_is_unknown() {
        for code in [
            Code::MessageTimedOut,
            Code::PurgeInflight,
            // Purged in the queue, perhaps after an attempt that lost its connection.
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
            assert_eq!(fate(code), Fate::Unknown(Reason(code)));
            assert!(fate(code).maybe_sent());
        }
    }

    #[test]
    fn a_record_without_a_partition_has_never_left() {
        for code in [Code::PurgeQueue, Code::MessageTimedOut, Code::Fatal] {
            assert_eq!(Fate::of_report(code, Mode::Together, -1), Fate::NotSent(Reason(code)));
        }
        let unknown_topic = Fate::of_report(Code::UnknownTopic, Mode::Together, -1);
        assert_eq!(unknown_topic, Fate::Unavailable { reason: Reason(Code::UnknownTopic), maybe_sent: false });
    }

    #[test]
    fn a_refused_batch_condemns_nobody_and_a_refused_record_is_refused() {
        for code in [Code::MessageSizeTooLarge, Code::MessageBatchTooLarge, Code::InvalidRecord, Code::InvalidTimestamp] {
            assert_eq!(fate(code), Fate::BatchRefused(Reason(code)));
            assert_eq!(Fate::of_report(code, Mode::Alone, 0), Fate::RefusedForGood(Reason(code)));
            assert_eq!(SendError::of_send(code), SendError::Failed(Fate::RefusedForGood(Reason(code))));
        }
        assert_eq!(fate(Code::InvalidDifferentRecord), Fate::BatchRefused(Reason(Code::InvalidDifferentRecord)));
    }

    #[test]
    fn a_topic_that_is_not_ours_is_refused_and_a_right_that_all_lack_is_not() {
        assert_eq!(fate(Code::TopicAuthorizationFailed), Fate::RefusedForGood(Reason(Code::TopicAuthorizationFailed)));
        assert!(matches!(fate(Code::ClusterAuthorizationFailed), Fate::Unavailable { .. }));
    }

    #[test]
    fn a_full_queue_is_no_fate() {
        assert_eq!(SendError::of_send(Code::QueueFull), SendError::Full);
    }

    #[test]
    fn what_the_producer_did_not_take_is_certainly_not_sent() {
        for code in [Code::UnknownTopic, Code::UnknownPartition, Code::Fatal, Code::State, Code::TopicAuthorizationFailed] {
            let SendError::Failed(fate) = SendError::of_send(code) else { panic!("{code:?}") };
            assert!(!fate.maybe_sent(), "{code:?}");
        }
    }
}
