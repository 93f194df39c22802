//! The command lines of the scenarios with tracked tasks at a steady rate.

use std::net::SocketAddr;
use std::time::Duration;

use clap::Args;

use super::steady::{Steady, connections};
use crate::domain::Ttr;
use crate::domain::time::duration;

/// Tracked tasks at a steady rate.
#[derive(Args, Clone, Debug)]
pub struct TrackedSteady {
    #[command(flatten)]
    pub steady: Steady,
    /// The measured time.
    #[arg(long = "for", value_name = "SPAN", value_parser = duration::parse, default_value = "60s")]
    pub measured: Duration,
    /// The time to run of each attempt, 1 s to 7 d.
    #[arg(long, value_name = "SPAN", value_parser = duration::parse, default_value = "10s")]
    pub ttr: Duration,
}

#[derive(Args, Clone, Debug)]
#[command(after_help = "Examples:\n  punctual bench tracked --topic demo --rate 2000 --pending \
                  1000000\n  punctual bench tracked --topic demo --unfinished 10 --ttr 2s \
                  --backoff 1s")]
pub struct TrackedBenchArgs {
    #[command(flatten)]
    pub tracked: TrackedSteady,
    /// The wait after each attempt, at most 1 s: longer waits are shortened at random.
    #[arg(long, value_name = "SPAN", value_parser = duration::parse, default_value = "1s")]
    pub backoff: Duration,
    /// The number of tasks in a hundred that are not finished at their first attempt.
    #[arg(
        long,
        value_name = "COUNT",
        default_value_t = 0,
        value_parser = clap::value_parser!(u8).range(0..=100)
    )]
    pub unfinished: u8,
    /// Time from the arrival of a record to the request that finishes it.
    #[arg(long, value_name = "SPAN", value_parser = duration::parse, default_value = "20ms")]
    pub work: Duration,
    /// Number of connections of the consumer.
    #[arg(long, value_name = "COUNT", default_value_t = 128, value_parser = connections())]
    pub consumers: u16,
    /// Submits untracked tasks, which nobody finishes, to compare with.
    #[arg(long, conflicts_with = "unfinished")]
    pub untracked: bool,
}

impl TrackedSteady {
    pub(super) fn check(&self) -> Result<(), String> {
        Ttr::new(self.ttr).map(|_ttr| ()).map_err(|error| format!("--ttr: {error}"))
    }
}

impl TrackedBenchArgs {
    pub(super) fn check(&self) -> Result<(), String> {
        self.tracked.check()?;
        if self.backoff > Duration::from_secs(1) {
            return Err(format!("--backoff must be at most 1 s, not {:?}", self.backoff));
        }
        Ok(())
    }
}

#[derive(Args, Clone, Debug)]
#[command(
    after_help = "Examples:\n  punctual bench pop --topic demo --rate 1000 --pollers 50 --max 10"
)]
pub struct PopBenchArgs {
    #[command(flatten)]
    pub tracked: TrackedSteady,
    /// Number of callers, each with a connection of its own.
    #[arg(long, value_name = "COUNT", default_value_t = 200, value_parser = connections())]
    pub pollers: u16,
    /// The most tasks of an answer. They are finished together.
    #[arg(
        long,
        value_name = "COUNT",
        default_value_t = 10,
        value_parser = clap::value_parser!(u16).range(1..=1_000)
    )]
    pub max: u16,
}

#[derive(Args, Clone, Debug)]
#[command(after_help = "Examples:\n  punctual bench callback --topic demo --rate 1000")]
pub struct CallbackBenchArgs {
    #[command(flatten)]
    pub tracked: TrackedSteady,
    /// The address of the service, at which the nodes reach it.
    #[arg(long, value_name = "IP:PORT", default_value = "127.0.0.1:7180")]
    pub listen: SocketAddr,
    /// The most requests that wait for an answer.
    #[arg(
        long,
        value_name = "COUNT",
        default_value_t = 600,
        value_parser = clap::value_parser!(u16).range(1..=1_000)
    )]
    pub concurrency: u16,
}
