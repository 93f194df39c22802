//! What the parts of a node count and measure.

pub use prometheus_client::metrics::{counter::Counter, family::Family, gauge::Gauge, histogram::Histogram};
pub use prometheus_client::registry::Registry;
