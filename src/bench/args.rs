//! The command lines of `bench`. The comments on the fields are the text of `--help`.

mod steady;
mod topics;
mod tracked;

use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, Subcommand};

pub use self::steady::Steady;
use self::steady::{connections, topic, up_to};
pub use self::topics::{ResumeBenchArgs, SchedulesBenchArgs, SpreadBenchArgs};
pub use self::tracked::{CallbackBenchArgs, PopBenchArgs, TrackedBenchArgs, TrackedSteady};
use super::cpu::WatchedProcess;
use crate::client::args::Credentials;
use crate::domain::TopicName;
use crate::domain::time::duration;

const EXAMPLES: &str = "\
Examples:
  punctual bench lateness --topic demo --rate 2000 --for 60s \\
    --pid node=$(pidof punctual) --svg lateness.svg
  punctual bench burst --topic demo --count 100000
  punctual bench submit --topic demo --connections 64 --json submit.json
  punctual bench outbox --topic demo --database-url postgres://app@localhost/shop --rate 1000

The topic must keep append times (message.timestamp.type=LogAppendTime). Due times are by this
machine's clock, so the clocks of Postgres, Kafka and this machine should agree.

Exit codes: 0 done, with every guarantee kept; 1 the measurement failed, or a task was early, lost
or published twice; 2 wrong usage.";

#[derive(Args, Clone, Debug)]
#[command(after_help = EXAMPLES)]
pub struct BenchArgs {
    #[command(subcommand)]
    pub scenario: Scenario,
    #[command(flatten)]
    pub common: Common,
}

#[derive(Args, Clone, Debug)]
#[command(next_help_heading = "For every scenario")]
pub struct Common {
    /// The URL of a node; repeatable. Connections are spread over all nodes.
    #[arg(
        long = "url",
        global = true,
        env = "PUNCTUAL_URL",
        value_name = "URL",
        value_delimiter = ',',
        default_value = "http://127.0.0.1:7070"
    )]
    pub urls: Vec<String>,
    /// The certificate authorities of https:// nodes, in PEM. They replace the public ones.
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
    /// The topic, with append times. Nothing else may write to it during the run.
    #[arg(
        long,
        global = true,
        value_name = "TOPIC",
        value_parser = topic,
        default_value = "punctual-bench"
    )]
    pub topic: TopicName,
    /// Number of topics, at most 10000. With more than one, the topics are TOPIC-0, TOPIC-1 and so
    /// on, and the tasks go to them in turn. All of them must exist.
    #[arg(
        long,
        global = true,
        value_name = "COUNT",
        default_value_t = 1,
        value_parser = clap::value_parser!(u16).range(1..=10_000)
    )]
    pub topics: u16,
    /// Bytes of each payload, at most 131072.
    #[arg(
        long,
        global = true,
        value_name = "BYTES",
        default_value_t = 256,
        value_parser = clap::value_parser!(u32).range(0..=131_072)
    )]
    pub payload_bytes: u32,
    /// Reports the CPU time (including children) and memory of a process: node=123, or node=FILE
    /// with a file with the process id. Repeatable.
    #[arg(long = "pid", global = true, value_name = "NAME=PID")]
    pub pids: Vec<WatchedProcess>,
    /// Writes the report as JSON.
    #[arg(long, global = true, value_name = "FILE")]
    pub json: Option<PathBuf>,
    /// Draws the distribution, and the rate over time.
    #[arg(long, global = true, value_name = "FILE")]
    pub svg: Option<PathBuf>,
}

/// Returns the topics to which the tasks of a run go in turn: `name` itself, or with a `count` of
/// more than one `name-0`, `name-1` and so on.
///
/// # Errors
/// When a name becomes too long.
pub fn topics_in_turn(name: &TopicName, count: u16) -> Result<Vec<TopicName>, String> {
    if count == 1 {
        return Ok(vec![name.clone()]);
    }
    (0..count).map(|number| topic(&format!("{name}-{number}"))).collect()
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
            Scenario::Tracked(args) => {
                args.check()?;
                (Some(args.tracked.measured), Some(&args.tracked.steady))
            }
            Scenario::Pop(PopBenchArgs { tracked, .. })
            | Scenario::Callback(CallbackBenchArgs { tracked, .. }) => {
                tracked.check()?;
                if self.common.topics > 1 {
                    return Err("--topics: the consumers take one topic".to_owned());
                }
                if let Scenario::Callback(CallbackBenchArgs { listen, .. }) = &self.scenario
                    && listen.ip().is_unspecified()
                {
                    return Err(format!("--listen {listen}: nodes need an address to call"));
                }
                (Some(tracked.measured), Some(&tracked.steady))
            }
            Scenario::Finish(FinishBenchArgs { count, warmup, .. })
            | Scenario::Cancel(CancelBenchArgs { count, warmup, .. })
                if warmup >= count =>
            {
                return Err(format!(
                    "--warmup {warmup} leaves none of --count {count} to be measured"
                ));
            }
            Scenario::Outbox(OutboxBenchArgs { write, .. })
            | Scenario::Intake(IntakeBenchArgs { write, .. }) => (Some(write.measured), None),
            Scenario::Resume(args) => {
                if args.paused_topic == self.common.topic {
                    return Err("--paused-topic must not be the topic of --topic".to_owned());
                }
                if self.common.topics > 1 {
                    return Err("--topics: the load beside the resume takes one topic".to_owned());
                }
                (Some(args.measured), Some(&args.steady))
            }
            Scenario::Schedules(args) => (Some(args.measured), None),
            Scenario::Spread(args) => (Some(args.spread), None),
            Scenario::Burst(_) | Scenario::Drain(_) | Scenario::Cancel(_) | Scenario::Finish(_) => {
                (None, None)
            }
        };
        if measured.is_some_and(|span| span < Duration::from_secs(1)) {
            return Err("--for must be at least a second".to_owned());
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
                return Err(format!("{}: the folder does not exist", file.display()));
            }
        }
        Ok(())
    }
}

#[derive(Subcommand, Clone, Debug)]
pub enum Scenario {
    /// Measures lateness at a steady rate of submits and due tasks.
    Lateness(Lateness),
    /// Measures many tasks due at one instant.
    Burst(Burst),
    /// Measures an overdue backlog when the nodes start. Says when to stop and start them.
    Drain(Drain),
    /// Measures submits per second and the time of their answers. The tasks are due two to four
    /// hours later, and stay stored.
    Submit(SubmitBenchArgs),
    /// Measures cancels per second.
    Cancel(CancelBenchArgs),
    /// Measures how many tracked tasks consumers can finish per second, and the time of the
    /// answers.
    Finish(FinishBenchArgs),
    /// Measures tracked tasks at a steady rate, each finished by a consumer. With --unfinished some
    /// are not, and the lateness of their second attempts is measured.
    Tracked(TrackedBenchArgs),
    /// Measures how soon callers of `pop` get tracked tasks at a steady rate, from the append of
    /// the record to the answer. They finish what they get.
    Pop(PopBenchArgs),
    /// Measures how soon a service that is called back gets tracked tasks at a steady rate, from
    /// the append of the record to the request.
    ///
    /// The service is this program, and the callback of the topic is set for the run. If the run is
    /// interrupted, the callback stays: `punctual topic callback TOPIC --delete`. The nodes must
    /// run with --callback-host http://127.0.0.1:7180 --callback-network 127.0.0.1 (that of
    /// --listen) and a --callback-key-file.
    Callback(CallbackBenchArgs),
    /// Measures tasks without a delay, from the request to the append.
    Immediate(Immediate),
    /// Measures submits by rows of an outbox: with --rate from the insert to the append, otherwise
    /// how many rows per second the nodes can take in.
    ///
    /// The outbox must be installed, and the nodes must have it as an --outbox.
    Outbox(OutboxBenchArgs),
    /// Measures submits by records of an intake topic: with --rate from the record to the append in
    /// the topic of the task, otherwise how many records per second the nodes can take in.
    ///
    /// The nodes must have the topic as an --intake-topic.
    Intake(IntakeBenchArgs),
    /// Measures the resume of a paused topic: how fast its tasks are published, and how late those
    /// of another topic are meanwhile. If the run is interrupted, the topic stays paused.
    Resume(ResumeBenchArgs),
    /// Measures how evenly a topic with a spread publishes many tasks that ask for one instant. The
    /// topic gets a policy for the run.
    Spread(SpreadBenchArgs),
    /// Measures the lateness of the runs of schedules. They are deleted afterwards.
    Schedules(SchedulesBenchArgs),
    /// Measures lateness for hours, and compares the first, second and last sixth of the run, with
    /// the memory of the processes.
    Soak(Soak),
}

#[derive(Args, Clone, Debug)]
#[command(after_help = "Examples:\n  punctual bench lateness --topic demo --rate 5000 --for 60s \
                        \\\n    --ahead-min 5s --ahead-max 60s --svg lateness.svg")]
pub struct Lateness {
    #[command(flatten)]
    pub steady: Steady,
    /// The measured time.
    #[arg(long = "for", value_name = "SPAN", value_parser = duration::parse, default_value = "60s")]
    pub measured: Duration,
}

#[derive(Args, Clone, Debug)]
#[command(
    after_help = "Examples:\n  punctual bench soak --topic demo --rate 3000 --for 30m --json \
                  soak.json"
)]
pub struct Soak {
    #[command(flatten)]
    pub steady: Steady,
    /// The measured time.
    #[arg(long = "for", value_name = "SPAN", value_parser = duration::parse, default_value = "30m")]
    pub measured: Duration,
    /// Holds an old snapshot (a repeatable-read transaction) in this database during the run, like
    /// a forgotten session or a long report. The variable PGPASSWORD may have the password.
    #[arg(long, value_name = "POSTGRES-URL")]
    pub hold_snapshot: Option<String>,
}

#[derive(Args, Clone, Debug)]
#[command(
    after_help = "Examples:\n  punctual bench burst --topic demo --count 100000 --json burst.json"
)]
pub struct Burst {
    /// Number of tasks due at the instant.
    #[arg(long, value_name = "COUNT", default_value_t = 100_000, value_parser = up_to(20_000_000))]
    pub count: u32,
    /// Time from the first submit to the instant.
    #[arg(long, value_name = "SPAN", value_parser = duration::parse, default_value = "20s")]
    pub lead: Duration,
}

#[derive(Args, Clone, Debug)]
#[command(after_help = "Examples:\n  punctual bench drain --topic demo --count 500000")]
pub struct Drain {
    /// Number of tasks in the backlog.
    #[arg(long, value_name = "COUNT", default_value_t = 500_000, value_parser = up_to(20_000_000))]
    pub count: u32,
    /// Time from the first submit to the first due time, in which all tasks are submitted and the
    /// nodes are stopped.
    #[arg(long, value_name = "SPAN", value_parser = duration::parse, default_value = "60s")]
    pub lead: Duration,
    /// Length of the range of due times. The order is random.
    #[arg(long, value_name = "SPAN", value_parser = duration::parse, default_value = "60s")]
    pub spread: Duration,
}

#[derive(Args, Clone, Debug)]
#[command(after_help = "Examples:\n  punctual bench submit --topic demo --connections 64")]
pub struct SubmitBenchArgs {
    /// Requests in progress, each on a connection of its own.
    #[arg(long, value_name = "COUNT", default_value_t = 64, value_parser = connections())]
    pub connections: u16,
    /// Tasks per request.
    #[arg(long, value_name = "COUNT", default_value_t = 1, value_parser = up_to(10_000))]
    pub batch: u32,
    /// Tasks per second. [default: as many as possible]
    #[arg(long, value_name = "COUNT", value_parser = up_to(10_000_000))]
    pub rate: Option<u32>,
    /// The measured time.
    #[arg(long = "for", value_name = "SPAN", value_parser = duration::parse, default_value = "20s")]
    pub measured: Duration,
    /// Time before the measurement.
    #[arg(long, value_name = "SPAN", value_parser = duration::parse, default_value = "5s")]
    pub warmup: Duration,
}

#[derive(Args, Clone, Debug)]
#[command(after_help = "Examples:\n  punctual bench cancel --topic demo")]
pub struct CancelBenchArgs {
    /// Number of tasks to submit and cancel.
    #[arg(long, value_name = "COUNT", default_value_t = 50_000, value_parser = up_to(10_000_000))]
    pub count: u32,
    /// Number of cancels before the measurement.
    #[arg(long, value_name = "COUNT", default_value_t = 5_000)]
    pub warmup: u32,
    /// Number of connections.
    #[arg(long, value_name = "COUNT", default_value_t = 64, value_parser = connections())]
    pub connections: u16,
}

#[derive(Args, Clone, Debug)]
#[command(
    after_help = "Examples:\n  punctual bench finish --topic demo\n  punctual bench finish --topic \
                  demo --batch 1000 --connections 4"
)]
pub struct FinishBenchArgs {
    /// Number of tasks to submit and finish.
    #[arg(long, value_name = "COUNT", default_value_t = 100_000, value_parser = up_to(10_000_000))]
    pub count: u32,
    /// Number of finishes before the measurement.
    #[arg(long, value_name = "COUNT", default_value_t = 10_000)]
    pub warmup: u32,
    /// Number of connections.
    #[arg(long, value_name = "COUNT", default_value_t = 64, value_parser = connections())]
    pub connections: u16,
    /// Tasks per request. More than one are sent to POST /v1/outcomes.
    #[arg(long, value_name = "COUNT", default_value_t = 1, value_parser = up_to(10_000))]
    pub batch: u32,
    /// Tasks per second. [default: as many as possible]
    #[arg(long, value_name = "COUNT", value_parser = up_to(10_000_000))]
    pub rate: Option<u32>,
}

#[derive(Args, Clone, Debug)]
#[command(after_help = "Examples:\n  punctual bench immediate --topic demo --rate 2000 --for 30s")]
pub struct Immediate {
    /// Requests per second.
    #[arg(long, value_name = "COUNT", default_value_t = 2_000, value_parser = up_to(1_000_000))]
    pub rate: u32,
    /// Number of connections.
    #[arg(long, value_name = "COUNT", default_value_t = 64, value_parser = connections())]
    pub connections: u16,
    /// How long requests are measured.
    #[arg(long = "for", value_name = "SPAN", value_parser = duration::parse, default_value = "30s")]
    pub measured: Duration,
    /// Time before the measurement.
    #[arg(long, value_name = "SPAN", value_parser = duration::parse, default_value = "5s")]
    pub warmup: Duration,
}

#[derive(Args, Clone, Debug)]
#[command(after_help = "Examples:\n  punctual bench outbox --topic demo --database-url \
                        postgres://app@localhost/shop --rate 1000\n  punctual bench outbox --topic \
                        demo --database-url postgres://app@localhost/shop")]
pub struct OutboxBenchArgs {
    /// The database with the outbox, as a role that may submit. The variable PGPASSWORD may have
    /// the password.
    #[arg(long, value_name = "POSTGRES-URL")]
    pub database_url: String,
    /// Holds an old snapshot in this database during the run, like a long report.
    #[arg(long)]
    pub hold_snapshot: bool,
    #[command(flatten)]
    pub write: WriteArgs,
}

#[derive(Args, Clone, Debug)]
#[command(after_help = "Examples:\n  punctual bench intake --topic demo --intake demo-in --rate \
                        2000\n  punctual bench intake --topic demo --intake demo-in --batch 1000")]
pub struct IntakeBenchArgs {
    /// The intake topic.
    #[arg(long, value_name = "TOPIC", value_parser = topic)]
    pub intake: TopicName,
    #[command(flatten)]
    pub write: WriteArgs,
}

/// How tasks are written into an outbox or an intake topic.
#[derive(Args, Clone, Debug)]
pub struct WriteArgs {
    /// Tasks per second, each due at once and written alone. [default: as many as possible]
    #[arg(long, value_name = "COUNT", value_parser = up_to(1_000_000))]
    pub rate: Option<u32>,
    /// With --rate, the measured time.
    #[arg(long = "for", value_name = "SPAN", value_parser = duration::parse, default_value = "30s")]
    pub measured: Duration,
    /// With --rate, the time before the measurement.
    #[arg(long, value_name = "SPAN", value_parser = duration::parse, default_value = "5s")]
    pub warmup: Duration,
    /// Without --rate, the number of tasks. A tenth as many are written before, and not measured.
    /// One in a hundred is due at once, and shows that those before it are stored. The others are
    /// due two to four hours later, and stay stored.
    #[arg(
        long,
        value_name = "COUNT",
        default_value_t = 300_000,
        conflicts_with = "rate",
        value_parser = clap::value_parser!(u32).range(1_000..=20_000_000)
    )]
    pub count: u32,
    /// Without --rate, the number of rows in one transaction, or of records that are written
    /// together.
    #[arg(
        long,
        value_name = "COUNT",
        default_value_t = 500,
        conflicts_with = "rate",
        value_parser = up_to(10_000)
    )]
    pub batch: u32,
    /// Number of sessions of the database, or of writers, which share a producer. [default: 8; 256
    /// writers with --rate]
    #[arg(long, value_name = "COUNT", value_parser = connections())]
    pub connections: Option<u16>,
}

#[cfg(test)]
mod tests {
    use clap::Parser as _;

    use super::*;

    #[derive(clap::Parser)]
    struct CommandLine {
        #[command(flatten)]
        bench: BenchArgs,
    }

    #[test]
    fn what_would_measure_nothing_is_refused() {
        let check = |line: &str| {
            CommandLine::try_parse_from(format!("bench {line}").split(' ')).unwrap().bench.check()
        };
        for good in [
            "lateness",
            "soak --for 1s",
            "burst",
            "drain",
            "submit --json x.json",
            "cancel --count 10 --warmup 9",
            "finish --batch 1000",
            "tracked --unfinished 10",
            "tracked --untracked",
            "pop --pollers 3",
            "callback --listen 127.0.0.1:1",
            "immediate",
            "outbox --database-url postgres://db/shop --rate 1000 --for 1s",
            "intake --intake in --count 1000 --batch 10",
        ] {
            assert_eq!(check(good), Ok(()), "{good}");
        }
        for (wrong, said) in [
            ("lateness --for 0s", "--for"),
            ("submit --for 900ms", "--for"),
            ("soak --ahead-min 5s --ahead-max 1s", "--ahead-min 5s"),
            ("cancel --count 10 --warmup 10", "--warmup 10"),
            ("finish --count 10 --warmup 11", "--warmup 11"),
            ("intake --intake in --rate 10 --for 10ms", "--for"),
            ("tracked --ttr 10ms", "--ttr"),
            ("tracked --backoff 2s", "--backoff"),
            ("pop --ttr 10ms", "--ttr"),
            ("callback --topics 2", "--topics"),
            ("callback --listen 0.0.0.0:7180", "--listen"),
            ("burst --json /there-is-no-such-folder/x.json", "/there-is-no-such-folder/x.json"),
        ] {
            assert!(check(wrong).unwrap_err().contains(said), "{wrong}");
        }
    }
}
