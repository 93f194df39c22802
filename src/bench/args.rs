//! The command lines of `bench`. The comments on the fields are the text of `--help`.

use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, Subcommand};

use super::cpu::WatchedProcess;
use crate::client::args::Credentials;
use crate::domain::TopicName;
use crate::domain::time::duration;

const EXAMPLES: &str = "\
Examples:
  punctual bench lateness --topic demo --rate 2000 --for 60s --pid node=$(pidof punctual) --svg lateness.svg
  punctual bench burst --topic demo --count 100000
  punctual bench submit --topic demo --connections 64 --json submit.json

The topic must keep append times (message.timestamp.type=LogAppendTime). Postgres's, Kafka's and this machine's clocks
should agree: due times are told by this machine's.

Exit codes: 0 done and every promise kept; 1 it could not be measured, or something was early, lost or published twice;
2 wrong usage.";

#[derive(Args, Clone, Debug)]
#[command(after_help = EXAMPLES)]
pub struct BenchArgs {
    #[command(subcommand)]
    pub scenario: Scenario,
    #[command(flatten)]
    pub common: Common,
}

#[derive(Args, Clone, Debug)]
#[command(next_help_heading = "Of every scenario")]
pub struct Common {
    /// A node of the cluster; repeatable: connections are spread over them.
    #[arg(
        long = "url",
        global = true,
        env = "PUNCTUAL_URL",
        value_name = "URL",
        value_delimiter = ',',
        default_value = "http://127.0.0.1:7070"
    )]
    pub urls: Vec<String>,
    /// The authorities that the certificates of https:// nodes are checked against, in PEM, in place
    /// of the public ones.
    #[arg(long = "ca-file", global = true, env = "PUNCTUAL_CA_FILE", value_name = "FILE")]
    pub ca_file: Option<PathBuf>,
    #[command(flatten)]
    pub credentials: Credentials,
    /// Kafka's bootstrap servers, for the consumer.
    #[arg(
        long,
        global = true,
        env = "PUNCTUAL_KAFKA",
        value_name = "HOST:PORT",
        default_value = "127.0.0.1:9092"
    )]
    pub kafka: String,
    /// The topic, with append times. Give it to nobody else meanwhile.
    #[arg(long, global = true, value_name = "TOPIC", value_parser = topic, default_value = "punctual-bench")]
    pub topic: TopicName,
    /// Bytes of each payload, at most 131072.
    #[arg(long, global = true, value_name = "BYTES", default_value_t = 256, value_parser = clap::value_parser!(u32).range(0..=131_072))]
    pub payload_bytes: u32,
    /// A process whose processor time (with that of its children) and memory are told: node=123, or
    /// node=FILE with a file that holds the number. Repeatable.
    #[arg(long = "pid", global = true, value_name = "NAME=PID")]
    pub pids: Vec<WatchedProcess>,
    /// Writes the report as JSON.
    #[arg(long, global = true, value_name = "FILE")]
    pub json: Option<PathBuf>,
    /// Draws the distribution and how it went on over time.
    #[arg(long, global = true, value_name = "FILE")]
    pub svg: Option<PathBuf>,
}

impl BenchArgs {
    /// Refuses command lines that cannot give a meaningful result, before the run starts.
    ///
    /// # Errors
    /// Returns the reason as text.
    pub fn check(&self) -> Result<(), String> {
        let (measured, steady) = match &self.scenario {
            Scenario::Lateness(args) => (Some(args.measured), Some(&args.steady)),
            Scenario::Soak(args) => (Some(args.measured), Some(&args.steady)),
            Scenario::Submit(args) => (Some(args.measured), None),
            Scenario::Immediate(args) => (Some(args.measured), None),
            Scenario::Cancel(args) if args.warmup >= args.count => {
                return Err(format!(
                    "--warmup {} leaves none of --count {} to be measured",
                    args.warmup, args.count
                ));
            }
            Scenario::Burst(_) | Scenario::Drain(_) | Scenario::Cancel(_) => (None, None),
        };
        if measured.is_some_and(|span| span < Duration::from_secs(1)) {
            return Err("--for is less than a second: nothing would be measured".to_owned());
        }
        if let Some(Steady { ahead_min, ahead_max, .. }) = steady
            && ahead_min > ahead_max
        {
            return Err(format!(
                "--ahead-min {ahead_min:?} is more than --ahead-max {ahead_max:?}"
            ));
        }
        for file in [&self.common.json, &self.common.svg].into_iter().flatten() {
            let folder = file.parent().filter(|folder| !folder.as_os_str().is_empty());
            if folder.is_some_and(|folder| !folder.is_dir()) {
                return Err(format!("{}: there is no such folder to write to", file.display()));
            }
        }
        Ok(())
    }
}

#[derive(Subcommand, Clone, Debug)]
pub enum Scenario {
    /// How late tasks are at a steady rate, submitted meanwhile at the same rate.
    Lateness(Lateness),
    /// Many tasks due at one instant.
    Burst(Burst),
    /// A backlog that is overdue when the nodes are started; says when to stop and when to start
    /// them.
    Drain(Drain),
    /// How many submits a second are taken, and how long their answers take. What it stores is due
    /// two to four hours later, and left there.
    Submit(SubmitBenchArgs),
    /// How many cancels a second are answered.
    Cancel(CancelBenchArgs),
    /// Tasks without a delay: from the request to the append.
    Immediate(Immediate),
    /// Lateness for hours: the first, the second and the last sixth of it beside each other, with
    /// the memory of the processes.
    Soak(Soak),
}

#[derive(Args, Clone, Debug)]
#[command(
    after_help = "Examples:\n  punctual bench lateness --topic demo --rate 5000 --for 60s --ahead-min 5s --ahead-max 60s --svg lateness.svg"
)]
pub struct Lateness {
    #[command(flatten)]
    pub steady: Steady,
    /// How long tasks are measured.
    #[arg(long = "for", value_name = "SPAN", value_parser = duration::parse, default_value = "60s")]
    pub measured: Duration,
}

#[derive(Args, Clone, Debug)]
#[command(
    after_help = "Examples:\n  punctual bench soak --topic demo --rate 3000 --for 30m --json soak.json"
)]
pub struct Soak {
    #[command(flatten)]
    pub steady: Steady,
    /// How long tasks are measured.
    #[arg(long = "for", value_name = "SPAN", value_parser = duration::parse, default_value = "30m")]
    pub measured: Duration,
    /// Holds an old snapshot (a repeatable-read transaction) in this database all the while, as a
    /// forgotten session or a long report does. The variable PGPASSWORD can hold the password.
    #[arg(long, value_name = "POSTGRES-URL")]
    pub hold_snapshot: Option<String>,
}

/// A steady rate.
#[derive(Args, Clone, Debug)]
pub struct Steady {
    /// Tasks per second.
    #[arg(long, value_name = "COUNT", default_value_t = 2_000, value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    pub rate: u32,
    /// How far ahead tasks are submitted, at least.
    #[arg(long, value_name = "SPAN", value_parser = duration::parse, default_value = "1s")]
    pub ahead_min: Duration,
    /// How far ahead tasks are submitted, at most. What is measured begins so much later.
    #[arg(long, value_name = "SPAN", value_parser = duration::parse, default_value = "5s")]
    pub ahead_max: Duration,
    /// Tasks in one call, at most.
    #[arg(long, value_name = "COUNT", default_value_t = 100, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    pub batch: u32,
    /// Connections.
    #[arg(long, value_name = "COUNT", default_value_t = 8, value_parser = clap::value_parser!(u16).range(1..=4096))]
    pub connections: u16,
    /// Tasks that are stored first, due hours later, and left there.
    #[arg(long, value_name = "COUNT", default_value_t = 0)]
    pub pending: u64,
    /// The first seconds at the full rate, which are not measured.
    #[arg(long, value_name = "SPAN", value_parser = duration::parse, default_value = "5s")]
    pub warmup: Duration,
}

#[derive(Args, Clone, Debug)]
#[command(
    after_help = "Examples:\n  punctual bench burst --topic demo --count 100000 --json burst.json"
)]
pub struct Burst {
    /// Tasks that are due at the instant.
    #[arg(long, value_name = "COUNT", default_value_t = 100_000, value_parser = clap::value_parser!(u32).range(1..=20_000_000))]
    pub count: u32,
    /// From the first submit to the instant.
    #[arg(long, value_name = "SPAN", value_parser = duration::parse, default_value = "20s")]
    pub lead: Duration,
}

#[derive(Args, Clone, Debug)]
#[command(after_help = "Examples:\n  punctual bench drain --topic demo --count 500000")]
pub struct Drain {
    /// Tasks in the backlog.
    #[arg(long, value_name = "COUNT", default_value_t = 500_000, value_parser = clap::value_parser!(u32).range(1..=20_000_000))]
    pub count: u32,
    /// From the first submit to the first due time: within it all are submitted and the nodes
    /// stopped.
    #[arg(long, value_name = "SPAN", value_parser = duration::parse, default_value = "60s")]
    pub lead: Duration,
    /// The span in which the tasks are due, in random order.
    #[arg(long, value_name = "SPAN", value_parser = duration::parse, default_value = "60s")]
    pub spread: Duration,
}

#[derive(Args, Clone, Debug)]
#[command(after_help = "Examples:\n  punctual bench submit --topic demo --connections 64")]
pub struct SubmitBenchArgs {
    /// Calls in progress at once, each on a connection of its own.
    #[arg(long, value_name = "COUNT", default_value_t = 64, value_parser = clap::value_parser!(u16).range(1..=4096))]
    pub connections: u16,
    /// Tasks in one call.
    #[arg(long, value_name = "COUNT", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    pub batch: u32,
    /// Tasks per second; as many as there can be unless told.
    #[arg(long, value_name = "COUNT", value_parser = clap::value_parser!(u32).range(1..=10_000_000))]
    pub rate: Option<u32>,
    /// How long submits are measured.
    #[arg(long = "for", value_name = "SPAN", value_parser = duration::parse, default_value = "20s")]
    pub measured: Duration,
    /// The first seconds, which are not measured.
    #[arg(long, value_name = "SPAN", value_parser = duration::parse, default_value = "5s")]
    pub warmup: Duration,
}

#[derive(Args, Clone, Debug)]
#[command(after_help = "Examples:\n  punctual bench cancel --topic demo")]
pub struct CancelBenchArgs {
    /// Tasks that are submitted and cancelled.
    #[arg(long, value_name = "COUNT", default_value_t = 50_000, value_parser = clap::value_parser!(u32).range(1..=10_000_000))]
    pub count: u32,
    /// Of these, the first so many are not measured.
    #[arg(long, value_name = "COUNT", default_value_t = 5_000)]
    pub warmup: u32,
    /// Connections.
    #[arg(long, value_name = "COUNT", default_value_t = 64, value_parser = clap::value_parser!(u16).range(1..=4096))]
    pub connections: u16,
}

#[derive(Args, Clone, Debug)]
#[command(after_help = "Examples:\n  punctual bench immediate --topic demo --rate 2000 --for 30s")]
pub struct Immediate {
    /// Requests per second.
    #[arg(long, value_name = "COUNT", default_value_t = 2_000, value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    pub rate: u32,
    /// Connections.
    #[arg(long, value_name = "COUNT", default_value_t = 64, value_parser = clap::value_parser!(u16).range(1..=4096))]
    pub connections: u16,
    /// How long requests are measured.
    #[arg(long = "for", value_name = "SPAN", value_parser = duration::parse, default_value = "30s")]
    pub measured: Duration,
    /// The first seconds, which are not measured.
    #[arg(long, value_name = "SPAN", value_parser = duration::parse, default_value = "5s")]
    pub warmup: Duration,
}

fn topic(text: &str) -> Result<TopicName, String> {
    TopicName::new(text).map_err(|error| error.to_string())
}

#[cfg(test)]
mod tests {
    use clap::Parser as _;

    use super::*;

    #[derive(clap::Parser)]
    struct Line {
        #[command(flatten)]
        bench: BenchArgs,
    }

    #[test]
    fn what_would_measure_nothing_is_refused() {
        let check = |line: &str| {
            Line::try_parse_from(format!("bench {line}").split(' ')).unwrap().bench.check()
        };
        for good in [
            "lateness",
            "soak --for 1s",
            "burst",
            "drain",
            "submit --json x.json",
            "cancel --count 10 --warmup 9",
            "immediate",
        ] {
            assert_eq!(check(good), Ok(()), "{good}");
        }
        for (wrong, said) in [
            ("lateness --for 0s", "--for"),
            ("submit --for 900ms", "--for"),
            ("soak --ahead-min 5s --ahead-max 1s", "--ahead-min 5s"),
            ("cancel --count 10 --warmup 10", "--warmup 10"),
            ("burst --json /there-is-no-such-folder/x.json", "/there-is-no-such-folder/x.json"),
        ] {
            assert!(check(wrong).unwrap_err().contains(said), "{wrong}");
        }
    }
}
