//! Publish: batches wait in the wheel for their millisecond, and their records go to Kafka.

mod exact_timer;
pub mod producer_keeper;
pub mod publisher;
pub mod wheel;
