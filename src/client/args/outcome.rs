//! The command lines of consumers that take tracked tasks, and that answer for them.

use std::time::Duration;

use clap::Args;

use super::manual::{self, OUTCOME_EXIT_CODES, with_codes};
use super::node::{NodeOptions, delay, name, no_flag, span, which};
use crate::domain::TaskId;

/// The one task of a command, by its id or by its name.
#[derive(Args, Clone, Debug)]
#[group(skip)]
pub struct TaskArgs {
    /// The task's id, from the answer to its submit or the header punctual-task-id of its record.
    #[arg(value_name = "ID", conflicts_with_all = ["topic", "name"])]
    pub id: Option<TaskId>,
    /// The topic of the task, with --name.
    #[arg(long, value_name = "TOPIC", requires = "name")]
    pub topic: Option<String>,
    /// The task's name, with --topic.
    #[arg(
        long,
        value_name = "NAME",
        allow_hyphen_values = true,
        value_parser = name,
        requires = "topic"
    )]
    pub name: Option<String>,
}

#[derive(Args, Clone, Debug)]
#[command(
    override_usage = manual::FINISH_USAGE,
    group = which(&["id", "topic", "name"]),
    after_help = OUTCOME_EXIT_CODES,
    after_long_help = with_codes(manual::FINISH_EXAMPLES, OUTCOME_EXIT_CODES)
)]
pub struct FinishArgs {
    #[command(flatten)]
    pub task: TaskArgs,
    /// The attempt that is done, from the header punctual-attempt of its record. [default: the
    /// current one]
    #[arg(long, value_name = "NUMBER", value_parser = clap::value_parser!(u16).range(1..))]
    pub attempt: Option<u16>,
    #[command(flatten)]
    pub node: NodeOptions,
}

#[derive(Args, Clone, Debug)]
#[command(
    override_usage = manual::POP_USAGE,
    after_help = manual::POP_EXIT_CODES,
    after_long_help = with_codes(manual::POP_EXAMPLES, manual::POP_EXIT_CODES)
)]
pub struct PopArgs {
    /// The topic of the tasks.
    #[arg(long, value_name = "TOPIC")]
    pub topic: String,
    /// The consumer group that shares the tasks of the topic: each goes to one caller of the group.
    #[arg(long, value_name = "NAME")]
    pub group: String,
    /// How long to wait for a task, up to 1m. A node answers before its --request-timeout.
    #[arg(
        long,
        value_name = "SPAN",
        default_value = "20s",
        value_parser = span(Duration::ZERO, Duration::from_secs(60))
    )]
    pub wait: Duration,
    /// The most tasks of one answer, which has 200 at most. With --exec, as many commands run at
    /// the same time, and the next tasks wait for all of them.
    #[arg(
        long,
        value_name = "COUNT",
        default_value_t = 1,
        value_parser = clap::value_parser!(u16).range(1..=1000)
    )]
    pub max: u16,
    /// Takes tasks until a signal comes, and runs this command in a shell for each.
    ///
    /// The payload is its standard input; PUNCTUAL_TASK_ID, PUNCTUAL_TASK_TOPIC, PUNCTUAL_TASK_KEY,
    /// PUNCTUAL_TASK_ATTEMPT, PUNCTUAL_TASK_ATTEMPTS_MAX and PUNCTUAL_TASK_FINISH_BY are in its
    /// environment. The task is finished when the command ends with 0, and its attempt fails when
    /// it ends otherwise. A command that takes longer than the time to run is killed with its
    /// children.
    #[arg(long, value_name = "COMMAND", value_parser = shell_command)]
    pub exec: Option<String>,
    #[command(flatten)]
    pub node: NodeOptions,
}

#[derive(Args, Clone, Debug)]
#[command(
    override_usage = manual::FAIL_USAGE,
    group = which(&["id", "topic", "name"]),
    after_help = OUTCOME_EXIT_CODES,
    after_long_help = with_codes(manual::FAIL_EXAMPLES, OUTCOME_EXIT_CODES)
)]
pub struct FailArgs {
    #[command(flatten)]
    pub task: TaskArgs,
    /// The attempt that has failed, from the header punctual-attempt of its record.
    #[arg(long, value_name = "NUMBER", value_parser = clap::value_parser!(u16).range(1..))]
    pub attempt: u16,
    /// The wait until the next attempt, instead of the back-off of the task: 30s, 10m or PT10M; up
    /// to 7d.
    #[arg(
        long,
        value_name = "SPAN",
        allow_hyphen_values = true,
        value_parser = delay,
        conflicts_with_all = ["retry_at", "is_final"]
    )]
    pub retry_in: Option<String>,
    /// When the next attempt is due, instead of the back-off of the task: RFC 3339 with a zone, or
    /// milliseconds since the epoch.
    #[arg(long, value_name = "TIME", conflicts_with = "is_final")]
    pub retry_at: Option<String>,
    /// No further attempt: the task is dead.
    #[arg(long = "final")]
    pub is_final: bool,
    /// Why the attempt has failed, in up to 1024 bytes. `show` prints it.
    #[arg(long, value_name = "TEXT", allow_hyphen_values = true, value_parser = no_flag)]
    pub reason: Option<String>,
    #[command(flatten)]
    pub node: NodeOptions,
}

#[derive(Args, Clone, Debug)]
#[command(
    override_usage = manual::EXTEND_USAGE,
    group = which(&["id", "topic", "name"]),
    after_help = OUTCOME_EXIT_CODES,
    after_long_help = with_codes(manual::EXTEND_EXAMPLES, OUTCOME_EXIT_CODES)
)]
pub struct ExtendArgs {
    #[command(flatten)]
    pub task: TaskArgs,
    /// The attempt that takes longer, from the header punctual-attempt of its record.
    #[arg(long, value_name = "NUMBER", value_parser = clap::value_parser!(u16).range(1..))]
    pub attempt: u16,
    /// The new deadline is now plus this time, from 1s to 7d. [default: the task's time to run]
    #[arg(
        long,
        value_name = "SPAN",
        value_parser = span(Duration::from_secs(1), Duration::from_hours(7 * 24))
    )]
    pub by: Option<Duration>,
    #[command(flatten)]
    pub node: NodeOptions,
}

/// The consumer's part of a submit. A task with --ttr is tracked.
#[derive(Args, Clone, Debug)]
#[command(next_help_heading = "Tracked tasks (with --ttr)")]
#[group(skip)]
pub struct TrackingArgs {
    /// The time to run, from 1s to 7d: the consumer finishes the task within this time after each
    /// attempt, or the task comes again.
    #[arg(long, value_name = "SPAN", value_parser = delay, conflicts_with = "file")]
    pub ttr: Option<String>,
    /// The number of attempts after which the task is dead; up to 1000. [default: 16]
    #[arg(long, value_name = "COUNT", requires = "ttr", conflicts_with = "file")]
    pub attempts_max: Option<u16>,
    /// The wait after the first attempt. [default: 0s; 1s after a failure]
    #[arg(
        long,
        value_name = "SPAN",
        value_parser = delay,
        requires = "ttr",
        conflicts_with = "file"
    )]
    pub backoff_min: Option<String>,
    /// The longest wait between two attempts, up to 7d. [default: 1h]
    #[arg(
        long,
        value_name = "SPAN",
        value_parser = delay,
        requires = "ttr",
        conflicts_with = "file"
    )]
    pub backoff_max: Option<String>,
    /// By how much each wait is longer than the one before; up to 100. [default: 2]
    #[arg(long, value_name = "NUMBER", requires = "ttr", conflicts_with = "file")]
    pub backoff_factor: Option<u16>,
    /// An existing topic for the record of a task whose last attempt has failed, or that failed for
    /// good. [default: none]
    #[arg(long, value_name = "TOPIC", requires = "ttr", conflicts_with = "file")]
    pub dead_topic: Option<String>,
}

/// Refuses a blank command: a shell would end it with 0, and each task would be finished without
/// any work.
fn shell_command(text: &str) -> Result<String, String> {
    if text.trim().is_empty() {
        return Err("the command is empty, and would finish each task without any work".to_owned());
    }
    no_flag(text)
}

#[cfg(test)]
mod tests {
    use clap::Parser as _;

    use super::*;

    #[derive(clap::Parser, Debug)]
    enum CommandLine {
        Pop(PopArgs),
    }

    #[test]
    fn a_blank_command_is_refused_before_a_task_is_taken() {
        let parse = |command: &str| {
            let words = ["punctual", "pop", "--topic", "t", "--group", "g", "--exec", command];
            CommandLine::try_parse_from(words)
        };
        for blank in ["", " ", "\t\n"] {
            let error = parse(blank).unwrap_err();
            assert!(error.to_string().contains("without any work"), "{blank:?}: {error}");
        }
        let CommandLine::Pop(args) = parse("./handle").unwrap();
        assert_eq!(args.exec.as_deref(), Some("./handle"));
    }
}
