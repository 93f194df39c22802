//! Stand-in until the module itself is merged: the metric types, and the text that `/metrics` answers.

pub use prometheus_client::{
    metrics::{counter::Counter, family::Family, gauge::Gauge, histogram::Histogram},
    registry::Registry,
};

/// All metrics in the OpenMetrics text format.
pub fn text_of(registry: &Registry) -> Result<String, std::fmt::Error> {
    let mut text = String::new();
    prometheus_client::encoding::text::encode(&mut text, registry)?;
    Ok(text)
}
