//! A broker that speaks Kafka's protocol, inside the process and in memory.
//!
//! It is one broker that leads every partition: enough for producers, consumers and consumer
//! groups of any language (docs/decisions/0027 has the reasons against librdkafka's mock cluster).
//! It has no transactions, no quotas and no security, it does not detect duplicates, and nothing
//! survives its end. Records carry the time of their append by the clock of the dev server.

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
