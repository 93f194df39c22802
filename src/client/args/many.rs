//! The command lines of lists and bulk operations.

use clap::{Args, Subcommand};

use super::manual::{self, EXIT_CODES, LIST_EXIT_CODES, with_codes};
use super::node::{NodeOptions, name, no_flag, which};
use crate::domain::TaskId;

/// A range of due times.
#[derive(Args, Clone, Debug)]
pub struct RangeArgs {
    /// Only tasks due at or after this time: 2030-01-31T09:30:00+01:00 (RFC 3339, with a zone), or
    /// milliseconds since the epoch.
    #[arg(long, value_name = "TIME")]
    pub due_from: Option<String>,
    /// Only tasks due before this time.
    #[arg(long, value_name = "TIME")]
    pub due_to: Option<String>,
}

impl RangeArgs {
    /// Returns true if the range has a limit.
    fn is_limited(&self) -> bool {
        self.due_from.is_some() || self.due_to.is_some()
    }
}

/// A choice among the tasks of --topic: at most one of these.
#[derive(Args, Clone, Debug, Default)]
#[group(id = "choice", multiple = false)]
pub struct ChoiceArgs {
    /// Only the tasks with these ids, separated by commas; at most 1000. Needs --topic. A list has
    /// them in its URL, where some 350 fit.
    #[arg(long, value_name = "ID,..", value_delimiter = ',', requires = "topic")]
    pub ids: Vec<TaskId>,
    /// Only the task of this name; repeatable, up to 1000 times. Needs --topic.
    #[arg(
        long,
        value_name = "NAME",
        allow_hyphen_values = true,
        value_parser = name,
        requires = "topic"
    )]
    pub names: Vec<String>,
    /// Only tasks with names that begin with this text. Needs --topic. At most 10000 names of the
    /// topic may begin so.
    #[arg(
        long,
        value_name = "TEXT",
        allow_hyphen_values = true,
        value_parser = no_flag,
        requires = "topic"
    )]
    pub name_prefix: Option<String>,
    /// Only tasks with this key. Needs --topic.
    #[arg(
        long,
        value_name = "TEXT",
        allow_hyphen_values = true,
        value_parser = no_flag,
        requires = "topic"
    )]
    pub key: Option<String>,
    /// Only tasks with this key, in base64. Needs --topic.
    #[arg(long, value_name = "BASE64", requires = "topic")]
    pub key_base64: Option<String>,
}

impl ChoiceArgs {
    /// Returns true if not all tasks are meant.
    fn is_given(&self) -> bool {
        !self.ids.is_empty()
            || !self.names.is_empty()
            || [&self.name_prefix, &self.key, &self.key_base64].into_iter().any(Option::is_some)
    }

    /// Returns the ids as text.
    pub fn id_texts(&self) -> Vec<String> {
        self.ids.iter().map(ToString::to_string).collect()
    }
}

/// Names the tasks of a bulk change for the question before it, such as "the chosen tasks of orders
/// in this range". `what` says which tasks they are without a choice.
pub fn named(what: &str, choice: Option<&ChoiceArgs>, range: &RangeArgs) -> String {
    let which = if choice.is_some_and(ChoiceArgs::is_given) { "the chosen" } else { "all" };
    let within = if range.is_limited() { " in this range" } else { "" };
    format!("{which} {what}{within}")
}

/// The part of a list to show.
#[derive(Args, Clone, Debug)]
pub struct PartArgs {
    /// Maximum number to show, over several requests if necessary.
    #[arg(
        long,
        value_name = "COUNT",
        default_value_t = 100,
        value_parser = clap::value_parser!(u64).range(1..)
    )]
    pub limit: u64,
    /// Shows all of them.
    #[arg(long, conflicts_with = "limit")]
    pub all: bool,
    /// Continues a list: the cursor that it printed.
    #[arg(long, value_name = "CURSOR")]
    pub cursor: Option<String>,
}

#[derive(Args, Clone, Debug)]
#[command(
    override_usage = manual::LIST_USAGE,
    after_help = LIST_EXIT_CODES,
    after_long_help = with_codes(manual::LIST_EXAMPLES, LIST_EXIT_CODES)
)]
pub struct ListArgs {
    /// Only tasks of the topic.
    #[arg(long, value_name = "TOPIC")]
    pub topic: Option<String>,
    /// Only tasks that the principal has submitted.
    #[arg(long, value_name = "PRINCIPAL")]
    pub submitted_by: Option<String>,
    /// Only tasks in this state. An attempt of an awaiting task is with the consumer; a retrying
    /// task was failed by the consumer.
    #[arg(long, value_name = "STATE", value_parser = ["scheduled", "awaiting", "retrying"])]
    pub state: Option<String>,
    #[command(flatten)]
    pub choice: ChoiceArgs,
    #[command(flatten)]
    pub range: RangeArgs,
    #[command(flatten)]
    pub part: PartArgs,
    /// Shows the number of pending tasks instead: in total, by topic, and by minute of the next two
    /// hours. Estimates are marked.
    #[arg(
        long,
        conflicts_with_all = [
            "submitted_by", "choice", "due_from", "due_to", "limit", "all", "cursor"
        ]
    )]
    pub counts: bool,
    #[command(flatten)]
    pub node: NodeOptions,
}

#[derive(Args, Clone, Debug)]
pub struct DeadArgs {
    #[command(subcommand)]
    pub command: DeadCommand,
}

#[derive(Subcommand, Clone, Debug)]
pub enum DeadCommand {
    /// Lists dead letters, each with its reason.
    List(DeadList),
    /// Redrives dead letters: each becomes a task again, due at once.
    ///
    /// Redrives one by its id, or all of a topic, optionally in a range of due times.
    #[command(override_usage = manual::DEAD_REDRIVE_USAGE)]
    Redrive(DeadRedrive),
    /// Drops dead letters for good.
    ///
    /// Drops one by its id, or all of a topic, optionally in a range of due times.
    #[command(override_usage = manual::DEAD_DROP_USAGE, alias = "delete")]
    Drop(DeadChange),
}

#[derive(Args, Clone, Debug)]
#[command(
    override_usage = manual::DEAD_LIST_USAGE,
    after_help = LIST_EXIT_CODES,
    after_long_help = with_codes(manual::DEAD_EXAMPLES, LIST_EXIT_CODES)
)]
pub struct DeadList {
    /// Only dead letters of the topic.
    #[arg(long, value_name = "TOPIC")]
    pub topic: Option<String>,
    #[command(flatten)]
    pub range: RangeArgs,
    #[command(flatten)]
    pub part: PartArgs,
    #[command(flatten)]
    pub node: NodeOptions,
}

/// Selects the dead letters to redrive, and their topic.
#[derive(Args, Clone, Debug)]
pub struct DeadRedrive {
    #[command(flatten)]
    pub change: DeadChange,
    /// The topic to which they go, if it is another one. They have no names there.
    #[arg(long, value_name = "TOPIC")]
    pub to_topic: Option<String>,
}

/// Selects the dead letters to redrive or drop.
#[derive(Args, Clone, Debug)]
#[command(
    group = which(&["id", "topic"]),
    after_help = EXIT_CODES,
    after_long_help = with_codes(manual::DEAD_EXAMPLES, EXIT_CODES)
)]
pub struct DeadChange {
    /// The task's id.
    #[arg(
        value_name = "ID",
        conflicts_with_all = ["topic", "due_from", "due_to", "dry_run", "yes"]
    )]
    pub id: Option<TaskId>,
    /// All dead letters of the topic.
    #[arg(long, value_name = "TOPIC")]
    pub topic: Option<String>,
    #[command(flatten)]
    pub range: RangeArgs,
    /// Only counts the dead letters.
    #[arg(long, requires = "topic")]
    pub dry_run: bool,
    /// Changes all of them. A redriven task cannot be cancelled; a drop cannot be undone.
    #[arg(long, requires = "topic", conflicts_with = "dry_run")]
    pub yes: bool,
    #[command(flatten)]
    pub node: NodeOptions,
}
