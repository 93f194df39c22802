//! The promises, shown on the real program with a real Postgres, Kafka and etcd. Each test has a cluster of its own, so they run in parallel.
#![expect(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::as_conversions,
    clippy::print_stderr,
    clippy::disallowed_methods,
    reason = "a test ends where something is not as it should be, and reads this machine's clock and settings itself"
)]

#[path = "../support/mod.rs"]
mod support;

mod bad_input;
mod cancel;
mod cluster;
mod examples;
mod far;
mod heartbeats;
mod kafka_edge;
mod kafka_outage;
mod kafka_refusals;
mod kafka_support;
mod large;
mod leaves;
mod main_job;
mod membership;
mod membership_outages;
mod membership_support;
mod names;
mod outages;
mod refusals;
mod replay;
mod restart;
mod settings;
mod storage;
mod take_over;
