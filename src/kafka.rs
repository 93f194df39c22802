//! The way out: records go to Kafka, and what became of each comes back. All of rdkafka stays in
//! here.
//!
//! - A [`Producer`] takes records without blocking and reports the [`DeliveryOutcome`] of each
//!   exactly once, on a thread of its own. Two of them make a node's way out: one that batches, and
//!   one of [`Mode::Alone`] for records whose batch was refused.
//! - [`Topics`] knows which topics there are and what they take. Its one thread also finds out
//!   whether a broker can be reached at all: [`Contact`].
//! - A [`Reader`] is the other side of a topic, for `bench` alone.
//!
//! Nothing here retries beyond what librdkafka does until a record is taken back, and nothing here
//! decides what a outcome means for a task.

mod compression;
mod contact;
mod context;
mod delivery;
mod metrics;
mod patience;
mod producer;
mod reader;
mod settings;
mod signs;
mod topics;

pub use compression::{Codec, TopicCompression};
pub use contact::Contact;
pub use context::Hooks;
pub use delivery::{Failed, DeliveryOutcome, Reason, DeliveryReport, SendError};
pub use metrics::Metrics;
pub use producer::Producer;
pub use reader::{Appended, ReadError, Reader};
pub use settings::{Error, Mode, Settings, is_property, problems_of_properties};
pub use topics::{LookUpError, TopicFacts, Topics};
