//! The command lines of the scenarios with policies of topics, and with schedules.

use std::time::Duration;

use clap::Args;

use super::steady::{Steady, topic, up_to};
use crate::domain::TopicName;
use crate::domain::time::duration;

#[derive(Args, Clone, Debug)]
#[command(
    after_help = "Examples:\n  punctual bench resume --topic demo --paused-topic held --count \
                        1000000 --rate 500 --for 20s"
)]
pub struct ResumeBenchArgs {
    #[command(flatten)]
    pub steady: Steady,
    /// The topic that is paused and resumed, with append times. It must not be that of --topic.
    #[arg(long, value_name = "TOPIC", value_parser = topic)]
    pub paused_topic: TopicName,
    /// Number of tasks that wait in the paused topic.
    #[arg(
        long,
        value_name = "COUNT",
        default_value_t = 1_000_000,
        value_parser = up_to(20_000_000)
    )]
    pub count: u32,
    /// Minimum duration of the pause.
    #[arg(long, value_name = "SPAN", value_parser = duration::parse, default_value = "0s")]
    pub pause: Duration,
    /// The measured time before the resume.
    #[arg(long = "for", value_name = "SPAN", value_parser = duration::parse, default_value = "20s")]
    pub measured: Duration,
}

#[derive(Args, Clone, Debug)]
#[command(
    after_help = "Examples:\n  punctual bench spread --topic demo --count 1000000 --spread 10m"
)]
pub struct SpreadBenchArgs {
    /// Number of tasks that ask for the instant.
    #[arg(
        long,
        value_name = "COUNT",
        default_value_t = 1_000_000,
        value_parser = up_to(20_000_000)
    )]
    pub count: u32,
    /// Time from the first submit to the instant.
    #[arg(long, value_name = "SPAN", value_parser = duration::parse, default_value = "60s")]
    pub lead: Duration,
    /// The spread of the topic's policy, at most 1 d.
    #[arg(long, value_name = "SPAN", value_parser = duration::parse, default_value = "10m")]
    pub spread: Duration,
}

#[derive(Args, Clone, Debug)]
#[command(
    after_help = "Examples:\n  punctual bench schedules --topic demo --count 2000 --every 1s\n  \
                        punctual bench schedules --topic demo --count 10000 --every 1m --together \
                        --for 3m"
)]
pub struct SchedulesBenchArgs {
    /// Number of schedules.
    #[arg(long, value_name = "COUNT", default_value_t = 2_000, value_parser = up_to(1_000_000))]
    pub count: u32,
    /// The period of each, at least 1 s.
    #[arg(long, value_name = "SPAN", value_parser = duration::parse, default_value = "1s")]
    pub every: Duration,
    /// Makes all due at the same instants. Otherwise they are spread evenly over the period.
    #[arg(long)]
    pub together: bool,
    /// Number of schedules to store first, which run once a year. They stay stored.
    #[arg(long, value_name = "COUNT", default_value_t = 0)]
    pub others: u32,
    /// The measured time.
    #[arg(long = "for", value_name = "SPAN", value_parser = duration::parse, default_value = "60s")]
    pub measured: Duration,
    /// Time before the measurement.
    #[arg(long, value_name = "SPAN", value_parser = duration::parse, default_value = "5s")]
    pub warmup: Duration,
}
