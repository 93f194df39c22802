//! Punctual: a delay scheduler for Kafka. ARCHITECTURE.md is the map.

pub mod api;
pub mod client;

pub mod clock;
pub mod domain;
pub mod engine;
pub mod node;
pub mod postgres;
pub mod shutdown;
pub mod telemetry;
