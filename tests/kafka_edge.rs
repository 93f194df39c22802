//! The Kafka edge against a real broker.

#[path = "integration/kafka_edge.rs"]
mod kafka_edge;
#[path = "integration/kafka_outage.rs"]
mod kafka_outage;
#[path = "integration/kafka_refusals.rs"]
mod kafka_refusals;
#[path = "integration/kafka_support.rs"]
mod kafka_support;
