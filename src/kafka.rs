//! Sends records to Kafka and reports their outcomes. Only this module uses rdkafka.
//!
//! - A [`Producer`] takes records without blocking and reports the [`DeliveryOutcome`] of each
//!   exactly once, on a thread of its own. A node has `--producers` batching producers, and one of
//!   [`Mode::Alone`] for records of refused batches.
//! - [`TopicCache`] knows the existing topics and the limits on their records. The one thread of
//!   the cache also finds out whether a broker can be reached at all: [`KafkaContact`].
//! - A [`TopicReader`] reads a topic, and a [`RecordAppender`] writes to an intake topic, both for
//!   `bench` only.
//! - A [`GroupMember`] reads a topic as a member of a consumer group.
//! - An [`IntakeReader`] reads the node's partitions of an intake topic, and a [`RejectProducer`]
//!   writes the bad records.
//!
//! This module does not retry beyond librdkafka's own retries, and those end when a record is taken
//! back. The consequence of an outcome for a task is decided elsewhere.

mod compression;
mod contact;
mod context;
mod delivery;
mod intake;
mod metrics;
mod patience;
mod producer;
mod reader;
mod settings;
mod signs;
mod topics;

pub use compression::{Codec, TopicCompression};
pub use contact::KafkaContact;
pub use context::Hooks;
pub use delivery::{DeliveryFailure, DeliveryOutcome, DeliveryReport, Reason, SendError};
pub use intake::appender::{NewRecord, RecordAppender};
pub use intake::ends::{EndsClient, FoundPartitions, LogBounds};
pub use intake::rejects::{Reject, RejectOutcome, RejectProducer};
pub use intake::stalls::Stall;
pub use intake::{IntakeError, IntakeReader, ReadFailure};
pub use metrics::KafkaMetrics;
pub use producer::Producer;
pub use reader::group::{Assignment, AttemptHeaders, GroupMember, GroupRecord, GroupRefusal};
pub use reader::{Appended, AppendedAttempt, ReadError, ReadMode, TopicReader};
pub use settings::{
    ClientError, KafkaProperties, KafkaSettings, Mode, is_property, problems_of_properties,
    try_properties,
};
pub use topics::{LookUpError, TopicCache, TopicFacts};
