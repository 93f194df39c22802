//! A broker that speaks Kafka's protocol, inside the process and in memory.
//!
//! One broker leads every partition: enough for producers, consumers and consumer groups of any
//! language (docs/decisions/0027 has the reasons against librdkafka's mock cluster). There are no
//! transactions, no quotas, no security and no detection of duplicates, and nothing survives the
//! end of the process. Records carry the time of the append by the clock of the dev server.

mod connection;
mod group_requests;
mod groups;
mod published;
mod records;
mod requests;
mod server;
mod state;
mod topics;

pub use self::server::start;
pub use self::state::Broker;
