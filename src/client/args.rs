//! The command lines of the clients. The comments on the fields are the text of `--help`.

mod access;
mod cluster;
mod manual;
mod many;
mod node;
mod outcome;
mod profile;
mod schedule;
mod topic;

use std::path::PathBuf;
use std::time::Duration;

use clap::{ArgGroup, Args, Subcommand};

pub use self::access::Credentials;
pub use self::cluster::{ClusterArgs, ClusterCommand, ClusterShow};
use self::manual::{EXIT_CODES, SHOW_EXIT_CODES, with_codes};
pub use self::many::{
    ChoiceArgs, DeadArgs, DeadChange, DeadCommand, DeadList, DeadRedrive, ListArgs, PartArgs,
    RangeArgs, named,
};
pub use self::node::NodeOptions;
use self::node::{count, delay, header, name, no_flag, run_id, span, which};
pub use self::outcome::{ExtendArgs, FailArgs, FinishArgs, PopArgs, TaskArgs, TrackingArgs};
pub use self::profile::{ProfileArgs, ProfileCommand};
pub use self::schedule::{
    ScheduleApply, ScheduleArgs, ScheduleBackfill, ScheduleCommand, ScheduleList, ScheduleNext,
    ScheduleOne, SchedulePlace, ScheduleSet,
};
pub use self::topic::{
    TopicArgs, TopicCallbackArgs, TopicCommand, TopicList, TopicOne, TopicPause, TopicPolicyArgs,
};

use crate::domain::TaskId;

/// Default retry time for lines while no request gets through.
pub const RETRY_FOR_OF_LINES: Duration = Duration::from_secs(300);

/// The subcommands that call a node.
#[derive(Subcommand, Debug)]
pub enum ClientCommand {
    /// Submits, shows, lists, cancels, moves and answers tasks. The word may be left out: `task
    /// submit` is `submit`.
    Task {
        #[command(subcommand)]
        command: TaskCommand,
    },
    #[command(flatten)]
    OfTasks(TaskCommand),
    /// Lists, redrives or drops dead letters, the tasks that Punctual gave up on.
    Dead(DeadArgs),
    /// Creates, lists, pauses and deletes recurring schedules.
    Schedule(ScheduleArgs),
    /// Lists, pauses and resumes topics, and sets their policies and callbacks.
    Topic(TopicArgs),
    /// Shows whether the cluster is well, its nodes, and its unavailable topics.
    Cluster(ClusterArgs),
    /// Lists profiles, which are nodes with names, and chooses the default one.
    Profile(ProfileArgs),
}

/// The subcommands about tasks.
#[derive(Subcommand, Debug)]
pub enum TaskCommand {
    /// Submits a task to a node, or many from a file.
    Submit(Box<SubmitArgs>),
    /// Shows a task: the state, the attempts, and the receipt of a published task.
    #[command(alias = "get")]
    Show(Show),
    /// Lists pending tasks in order of due time.
    List(Box<ListArgs>),
    /// Cancels a task and prints the verdict, or cancels all tasks of a topic.
    Cancel(Box<CancelArgs>),
    /// Moves a task to another due time, or many tasks of a topic. Their ids and names stay.
    Move(Box<MoveArgs>),
    /// Takes tracked tasks for a consumer without Kafka, and runs a command for each.
    Pop(PopArgs),
    /// Finishes a task: its consumer has done the work, and no further attempt is made.
    Finish(FinishArgs),
    /// Fails an attempt of a task: the next attempt is due after the back-off.
    Fail(FailArgs),
    /// Extends the time to run of an attempt of a task.
    Extend(ExtendArgs),
}

impl ClientCommand {
    /// Returns true for commands that handle a stop signal themselves, with a report of the
    /// progress.
    pub fn ends_by_itself(&self) -> bool {
        match self {
            Self::Task { command } | Self::OfTasks(command) => match command {
                TaskCommand::Submit(submit) => submit.file.is_some(),
                TaskCommand::Pop(pop) => pop.exec.is_some(),
                _ => false,
            },
            _ => false,
        }
    }
}

#[derive(Args, Clone, Debug)]
#[command(
    override_usage = manual::SUBMIT_USAGE,
    after_help = manual::SUBMIT_EXIT_CODES,
    after_long_help = format!("{}\n\n{}", manual::SUBMIT_EXAMPLES, manual::SUBMIT_EXIT_CODES)
)]
pub struct SubmitArgs {
    /// Submits many tasks: a file with one task per line, in JSON as for POST /v1/tasks; - is
    /// standard input.
    ///
    /// Every line is submitted exactly once, even after failures: a line without a name gets the
    /// name RUN-ID/NUMBER, so that sending it again makes no second task. A refused line is
    /// reported with its number (on stderr; with --json on stdout) and does not stop the others.
    /// The order of lines is not kept.
    #[arg(value_name = "FILE", groups = ["DueArgs", "Payload"])]
    pub file: Option<PathBuf>,
    /// The Kafka topic to publish to. It must exist. With FILE: the topic of lines without one.
    #[arg(long, value_name = "TOPIC", required_unless_present = "file")]
    pub topic: Option<String>,
    #[command(flatten)]
    pub due: DueArgs,
    /// The time from which the task is not published any more: as for --due-at, and after it. A
    /// task that could not be published before ends as expired. [default: by the policy of the
    /// topic]
    #[arg(long, value_name = "TIME", allow_negative_numbers = true, conflicts_with = "file")]
    pub expires_at: Option<String>,
    #[command(flatten)]
    pub payload: Payload,
    /// The record's key.
    #[arg(
        long,
        value_name = "TEXT",
        allow_hyphen_values = true,
        value_parser = no_flag,
        conflicts_with = "file"
    )]
    pub key: Option<String>,
    /// The record's key, in base64.
    #[arg(long, value_name = "BASE64", conflicts_with_all = ["key", "file"])]
    pub key_base64: Option<String>,
    /// A header of the record; repeatable, even with the same name. Names that begin with punctual-
    /// are reserved.
    #[arg(
        long = "header",
        value_name = "NAME=VALUE",
        value_parser = header,
        conflicts_with = "file"
    )]
    pub headers: Vec<(String, String)>,
    /// A header with a value in base64; repeatable. These headers follow those of --header.
    #[arg(long, value_name = "NAME=BASE64", value_parser = header, conflicts_with = "file")]
    pub header_base64: Vec<(String, String)>,
    /// A header with a null value; repeatable. These headers come last.
    #[arg(
        long,
        value_name = "NAME",
        allow_hyphen_values = true,
        value_parser = no_flag,
        conflicts_with = "file"
    )]
    pub header_null: Vec<String>,
    /// A name for the task, your idempotency key, unique within its topic: submitting it again
    /// makes no second task.
    #[arg(
        long,
        value_name = "NAME",
        allow_hyphen_values = true,
        value_parser = name,
        conflicts_with = "file"
    )]
    pub name: Option<String>,
    /// Replaces the task of the same name, if there is one: its due time, payload, key and headers.
    /// Needs --name.
    #[arg(long, requires = "name", conflicts_with = "file")]
    pub replace: bool,
    /// With --replace: only if the name stands for this task; otherwise nothing is changed.
    #[arg(long, value_name = "ID", requires = "replace", conflicts_with = "file")]
    pub if_match: Option<TaskId>,
    /// With --replace: only if the name stands for no task, not even one that has ended; otherwise
    /// nothing is changed.
    #[arg(long, requires = "replace", conflicts_with_all = ["if_match", "file"])]
    pub if_absent: bool,
    /// With --replace: replaces a pending task only if the new one is due earlier, or later;
    /// otherwise nothing is changed. absent: a pending task is never replaced.
    #[arg(
        long,
        value_name = "CONDITION",
        value_parser = ["absent", "earlier", "later"],
        requires = "replace",
        conflicts_with = "file"
    )]
    pub when: Option<String>,
    /// With --when later: the new task is due at this time at the latest, a limit for --delay.
    #[arg(long, value_name = "TIME", requires = "when", conflicts_with = "file")]
    pub not_after: Option<String>,
    /// How long to retry, with growing pauses, while the node is unavailable or busy; up to 7d. 0s:
    /// no retry. [default: 0s; with FILE: 5m]
    ///
    /// A task without a name, or with --replace, is retried only if it was certainly not stored.
    #[arg(
        long,
        value_name = "SPAN",
        value_parser = span(Duration::ZERO, Duration::from_hours(7 * 24))
    )]
    pub retry_for: Option<Duration>,
    #[command(flatten)]
    pub tracking: TrackingArgs,
    #[command(flatten)]
    pub lines: LinesArgs,
    #[command(flatten)]
    pub node: NodeOptions,
}

/// Flags that apply only to a file of tasks. clap ignores `requires = "file"` here: an argument
/// that conflicts with a given one is not required. The flags therefore declare conflicts.
#[derive(Args, Clone, Debug)]
#[command(next_help_heading = "Many tasks (with FILE)")]
pub struct LinesArgs {
    /// The prefix of the names of lines: line 17 is RUN-ID/17. To resume a run, repeat it with its
    /// id and the same input. [default: random, and printed]
    #[arg(
        long,
        value_name = "RUN-ID",
        conflicts_with_all = ["due_at", "delay"],
        value_parser = run_id
    )]
    pub run_id: Option<String>,
    /// Skips to this line.
    #[arg(
        long,
        value_name = "NUMBER",
        conflicts_with_all = ["due_at", "delay"],
        default_value_t = 1,
        value_parser = clap::value_parser!(u64).range(1..)
    )]
    pub from_line: u64,
    /// Maximum number of tasks per request; a request also has at most 4 MiB. From 1 to 10000.
    #[arg(
        long,
        value_name = "COUNT",
        conflicts_with_all = ["due_at", "delay"],
        default_value_t = 1000,
        value_parser = count(10_000)
    )]
    pub batch: usize,
    /// Number of requests at the same time. From 1 to 64.
    #[arg(
        long,
        value_name = "COUNT",
        conflicts_with_all = ["due_at", "delay"],
        default_value_t = 4,
        value_parser = count(64)
    )]
    pub concurrency: usize,
    /// Shows no progress, only errors and the summary.
    #[arg(long, conflicts_with_all = ["due_at", "delay"])]
    pub quiet: bool,
}

/// The due time: exactly one of these.
#[derive(Args, Clone, Debug)]
#[group(required = true, multiple = false)]
pub struct DueArgs {
    /// The due time: 2030-01-31T09:30:00+01:00 (RFC 3339, with a zone),
    /// 2030-01-31T09:30[Europe/Berlin], or milliseconds since the epoch.
    #[arg(long, value_name = "TIME", allow_negative_numbers = true)]
    pub due_at: Option<String>,
    /// The time until the task is due: 250ms, 30s, 30m, "1h 30m", 2d or PT30M.
    #[arg(long, value_name = "SPAN", allow_hyphen_values = true, value_parser = delay)]
    pub delay: Option<String>,
}

/// The payload: exactly one of these.
#[derive(Args, Clone, Debug)]
#[group(required = true, multiple = false)]
pub struct Payload {
    /// JSON, published byte for byte.
    #[arg(long, value_name = "JSON", allow_hyphen_values = true)]
    pub payload: Option<String>,
    /// Text, published as UTF-8.
    #[arg(long, value_name = "TEXT", allow_hyphen_values = true)]
    pub payload_text: Option<String>,
    /// The bytes of a file; - is standard input.
    #[arg(long, value_name = "FILE")]
    pub payload_file: Option<PathBuf>,
    /// A null value, which makes Kafka's compaction delete the key. Needs a key.
    #[arg(long)]
    pub tombstone: bool,
}

#[derive(Args, Clone, Debug)]
#[command(
    override_usage = manual::SHOW_USAGE,
    group = which(&["id", "topic", "name"]),
    after_help = SHOW_EXIT_CODES,
    after_long_help = with_codes(manual::SHOW_EXAMPLES, SHOW_EXIT_CODES)
)]
pub struct Show {
    #[command(flatten)]
    pub task: TaskArgs,
    #[command(flatten)]
    pub node: NodeOptions,
}

#[derive(Args, Clone, Debug)]
#[command(
    override_usage = manual::MOVE_USAGE,
    group = which(&["id", "topic", "name"]),
    group = ArgGroup::new("new_due").args(["due_at", "delay", "by", "to"]).required(true),
    group = ArgGroup::new("many").args(["by", "to"]),
    group = ArgGroup::new("of_topic").args(["name", "by", "to"]).multiple(true),
    after_help = EXIT_CODES,
    after_long_help = with_codes(manual::MOVE_EXAMPLES, EXIT_CODES)
)]
pub struct MoveArgs {
    /// The task's id, from the answer to its submit.
    #[arg(value_name = "ID", conflicts_with_all = ["topic", "name", "many"])]
    pub id: Option<TaskId>,
    /// The topic of the task, with --name. With --by or --to: all tasks of the topic that can still
    /// be moved.
    #[arg(long, value_name = "TOPIC", requires = "of_topic")]
    pub topic: Option<String>,
    /// The task's name, with --topic.
    #[arg(
        long,
        value_name = "NAME",
        allow_hyphen_values = true,
        value_parser = name,
        requires = "topic",
        conflicts_with_all = ["choice", "many", "due_from", "due_to"]
    )]
    pub name: Option<String>,
    /// The new due time of one task: 2030-01-31T09:30:00+01:00 (RFC 3339, with a zone),
    /// 2030-01-31T09:30[Europe/Berlin], or milliseconds since the epoch.
    #[arg(long, value_name = "TIME", allow_negative_numbers = true)]
    pub due_at: Option<String>,
    /// The time until one task is due: 250ms, 30s, 30m, "1h 30m", 2d or PT30M.
    #[arg(long, value_name = "SPAN", allow_hyphen_values = true, value_parser = delay)]
    pub delay: Option<String>,
    /// Many tasks: by how much they are due later, or with a minus earlier: 1h, -30m. At least as
    /// long as the range, so that no task is moved twice. Move a longer range in parts: to a later
    /// time the latest part first, to an earlier time the earliest.
    #[arg(long, value_name = "SPAN", allow_hyphen_values = true, requires = "topic")]
    pub by: Option<String>,
    /// Many tasks: their new due time, outside of the range.
    #[arg(long, value_name = "TIME", requires = "topic")]
    pub to: Option<String>,
    #[command(flatten)]
    pub choice: ChoiceArgs,
    #[command(flatten)]
    pub range: RangeArgs,
    /// Only counts the tasks.
    #[arg(long, requires = "many")]
    pub dry_run: bool,
    /// Moves all of them.
    #[arg(long, requires = "many", conflicts_with = "dry_run")]
    pub yes: bool,
    #[command(flatten)]
    pub node: NodeOptions,
}

#[derive(Args, Clone, Debug)]
#[command(
    override_usage = manual::CANCEL_USAGE,
    group = which(&["id", "topic", "name", "submitted_by"]),
    group = ArgGroup::new("many").args(["topic", "submitted_by"]).multiple(true),
    after_help = EXIT_CODES,
    after_long_help = with_codes(manual::CANCEL_EXAMPLES, EXIT_CODES)
)]
pub struct CancelArgs {
    /// The task's id, from the answer to its submit.
    #[arg(
        value_name = "ID",
        conflicts_with_all = [
            "topic", "name", "submitted_by", "due_from", "due_to", "dry_run", "yes"
        ]
    )]
    pub id: Option<TaskId>,
    /// The topic of the task, with --name. Without --name: all tasks of the topic that can still be
    /// cancelled.
    #[arg(long, value_name = "TOPIC")]
    pub topic: Option<String>,
    /// The task's name, with --topic.
    #[arg(
        long,
        value_name = "NAME",
        allow_hyphen_values = true,
        value_parser = no_flag,
        requires = "topic",
        conflicts_with_all = ["choice", "due_from", "due_to"]
    )]
    pub name: Option<String>,
    /// With --name: only if the name stands for this task; otherwise nothing is changed.
    #[arg(
        long,
        value_name = "ID",
        requires = "name",
        conflicts_with_all = ["id", "due_from", "due_to", "dry_run", "yes"]
    )]
    pub if_match: Option<TaskId>,
    /// All tasks submitted by this principal that can still be cancelled, of --topic or of all
    /// topics.
    #[arg(long, value_name = "PRINCIPAL", conflicts_with = "name")]
    pub submitted_by: Option<String>,
    #[command(flatten)]
    pub choice: ChoiceArgs,
    #[command(flatten)]
    pub range: RangeArgs,
    /// Only counts the tasks.
    #[arg(long, requires = "many", conflicts_with = "name")]
    pub dry_run: bool,
    /// Cancels all of them. A cancel cannot be undone.
    #[arg(long, requires = "many", conflicts_with_all = ["name", "dry_run"])]
    pub yes: bool,
    #[command(flatten)]
    pub node: NodeOptions,
}

#[cfg(test)]
mod tests {
    use clap::Parser as _;

    use super::*;

    #[derive(clap::Parser)]
    struct CommandLine {
        #[command(subcommand)]
        command: ClientCommand,
    }

    #[test]
    fn a_command_ends_by_itself_with_and_without_its_noun() {
        for (line, ends_by_itself) in [
            ("submit tasks.jsonl", true),
            ("submit --topic t --delay 1s --payload 1", false),
            ("pop --topic t --group g --exec cat", true),
            ("pop --topic t --group g", false),
            ("list", false),
            ("get --topic t --name n", false),
        ] {
            for noun in ["", "task "] {
                let words = format!("punctual {noun}{line}");
                let parsed = CommandLine::try_parse_from(words.split(' ')).unwrap();
                assert_eq!(parsed.command.ends_by_itself(), ends_by_itself, "{words}");
            }
        }
    }

    #[test]
    fn a_command_with_two_forms_names_both_when_neither_is_given() {
        let parse = |line: &str| CommandLine::try_parse_from(line.split(' '));
        for (line, choice, forms) in [
            (
                "punctual topic policy t",
                "<FILE|--delete>",
                ["topic policy <TOPIC> <FILE|->", "topic policy <TOPIC> --delete"],
            ),
            (
                "punctual schedule backfill t n",
                "<--from <TIME>|--last <SPAN>>",
                ["<NAME> --from <TIME> --to <TIME>", "<NAME> --last <SPAN>"],
            ),
        ] {
            let said = parse(line).err().unwrap().to_string();
            assert!(said.contains(choice), "{line}: {said}");
            assert!(forms.iter().all(|form| said.contains(form)), "{line}: {said}");
        }
        for (line, is_right) in [
            ("punctual topic policy t -", true),
            ("punctual topic policy t --delete", true),
            ("punctual topic policy t - --delete", false),
            ("punctual schedule backfill t n --last 3d", true),
            ("punctual schedule backfill t n --from 1 --to 2", true),
            ("punctual schedule backfill t n --from 1", false),
            ("punctual schedule backfill t n --to 2", false),
            ("punctual schedule backfill t n --last 3d --to 2", false),
        ] {
            assert_eq!(parse(line).is_ok(), is_right, "{line}");
        }
    }
}
