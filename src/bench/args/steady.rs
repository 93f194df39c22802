//! The arguments of a steady rate.

use std::time::Duration;

use clap::Args;
use clap::builder::RangedI64ValueParser;

use crate::domain::TopicName;
use crate::domain::time::duration;

/// A steady rate.
#[derive(Args, Clone, Debug)]
pub struct Steady {
    /// Tasks per second.
    #[arg(long, value_name = "COUNT", default_value_t = 2_000, value_parser = up_to(1_000_000))]
    pub rate: u32,
    /// Minimum time between a submit and its due time.
    #[arg(long, value_name = "SPAN", value_parser = duration::parse, default_value = "1s")]
    pub ahead_min: Duration,
    /// Maximum time between a submit and its due time. The measurement begins later by this time.
    #[arg(long, value_name = "SPAN", value_parser = duration::parse, default_value = "5s")]
    pub ahead_max: Duration,
    /// Maximum number of tasks per request.
    #[arg(long, value_name = "COUNT", default_value_t = 100, value_parser = up_to(10_000))]
    pub batch: u32,
    /// Number of connections.
    #[arg(long, value_name = "COUNT", default_value_t = 8, value_parser = connections())]
    pub connections: u16,
    /// Number of tasks to store first. They are due hours later, and stay stored.
    #[arg(long, value_name = "COUNT", default_value_t = 0)]
    pub pending: u64,
    /// Time at the full rate before the measurement.
    #[arg(long, value_name = "SPAN", value_parser = duration::parse, default_value = "5s")]
    pub warmup: Duration,
}

/// Parses a count of 1 to `max`.
pub(super) fn up_to(max: i64) -> RangedI64ValueParser<u32> {
    clap::value_parser!(u32).range(1..=max)
}

/// Parses a number of connections.
pub(super) fn connections() -> RangedI64ValueParser<u16> {
    clap::value_parser!(u16).range(1..=4096)
}

pub(super) fn topic(text: &str) -> Result<TopicName, String> {
    TopicName::new(text).map_err(|error| error.to_string())
}
