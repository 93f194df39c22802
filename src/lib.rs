//! Punctual: a delay scheduler for Kafka. ARCHITECTURE.md is the map.

pub mod clock;
pub mod domain;
pub mod engine;
pub mod kafka;
pub mod node;
pub mod postgres;
pub mod shutdown;
pub mod telemetry;
