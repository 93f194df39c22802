//! The ways in beside the API: outboxes in databases of applications, and intake topics of Kafka.
//!
//! `outbox` and `intake` read requests, each exactly once and in their order. [`carrier`] checks
//! them as REST does, and stores their tasks.

pub mod carrier;
pub mod intake;
pub mod outbox;
