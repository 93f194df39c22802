//! The command lines of topics.

use std::path::PathBuf;

use clap::{Args, Subcommand};

use super::manual::{TOPIC_EXAMPLES, TOPIC_EXIT_CODES, TOPIC_POLICY_USAGE, with_codes};
use super::node::{NodeOptions, count, which};

#[derive(Args, Clone, Debug)]
#[command(
    after_help = TOPIC_EXIT_CODES,
    after_long_help = with_codes(TOPIC_EXAMPLES, TOPIC_EXIT_CODES)
)]
pub struct TopicArgs {
    #[command(subcommand)]
    pub command: TopicCommand,
}

#[derive(Subcommand, Clone, Debug)]
pub enum TopicCommand {
    /// Lists topics with pending tasks, dead letters, a policy or a pause.
    List(TopicList),
    /// Shows a topic: its policy, its pause and its tasks.
    Show(TopicOne),
    /// Sets the policy of a topic, or takes it away.
    ///
    /// Tasks take the policy at their submit: stored tasks stay as they are.
    Policy(TopicPolicyArgs),
    /// Sets the callback of a topic, the service that nodes call for each tracked task; shows it,
    /// or ends it.
    Callback(TopicCallbackArgs),
    /// Pauses a topic: its tasks wait, and submits are accepted.
    Pause(TopicPause),
    /// Resumes a topic: its overdue tasks are published.
    Resume(TopicPause),
}

#[derive(Args, Clone, Debug)]
#[command(
    after_help = TOPIC_EXIT_CODES,
    after_long_help = with_codes(TOPIC_EXAMPLES, TOPIC_EXIT_CODES)
)]
pub struct TopicList {
    /// Begins after this topic.
    #[arg(long, value_name = "TOPIC")]
    pub after: Option<String>,
    /// Maximum number to show, from 1 to 1000.
    #[arg(long, value_name = "COUNT", default_value_t = 100, value_parser = count(1_000))]
    pub limit: usize,
    #[command(flatten)]
    pub node: NodeOptions,
}

#[derive(Args, Clone, Debug)]
#[command(
    after_help = TOPIC_EXIT_CODES,
    after_long_help = with_codes(TOPIC_EXAMPLES, TOPIC_EXIT_CODES)
)]
pub struct TopicOne {
    /// The topic.
    #[arg(value_name = "TOPIC")]
    pub topic: String,
    #[command(flatten)]
    pub node: NodeOptions,
}

#[derive(Args, Clone, Debug)]
#[command(
    override_usage = TOPIC_POLICY_USAGE,
    group = which(&["file", "delete"]),
    after_help = TOPIC_EXIT_CODES,
    after_long_help = with_codes(TOPIC_EXAMPLES, TOPIC_EXIT_CODES)
)]
pub struct TopicPolicyArgs {
    /// The topic.
    #[arg(value_name = "TOPIC")]
    pub topic: String,
    /// A file with the policy in JSON, as for PUT /v1/topics/{topic}/policy; - is standard input.
    #[arg(value_name = "FILE")]
    pub file: Option<PathBuf>,
    /// Takes the policy away.
    #[arg(long, conflicts_with = "file")]
    pub delete: bool,
    #[command(flatten)]
    pub node: NodeOptions,
}

#[derive(Args, Clone, Debug)]
#[command(
    after_help = TOPIC_EXIT_CODES,
    after_long_help = with_codes(TOPIC_EXAMPLES, TOPIC_EXIT_CODES)
)]
pub struct TopicCallbackArgs {
    /// The topic.
    #[arg(value_name = "TOPIC")]
    pub topic: String,
    /// A file with the callback in JSON, as for PUT /v1/topics/{topic}/callback; - is standard
    /// input. Without a file, the callback is shown.
    #[arg(value_name = "FILE")]
    pub file: Option<PathBuf>,
    /// Ends the callback.
    #[arg(long, conflicts_with = "file")]
    pub delete: bool,
    #[command(flatten)]
    pub node: NodeOptions,
}

#[derive(Args, Clone, Debug)]
#[command(
    after_help = TOPIC_EXIT_CODES,
    after_long_help = with_codes(TOPIC_EXAMPLES, TOPIC_EXIT_CODES)
)]
pub struct TopicPause {
    /// The topic.
    #[arg(value_name = "TOPIC")]
    pub topic: String,
    /// The reason, for people.
    #[arg(long, value_name = "TEXT")]
    pub reason: Option<String>,
    #[command(flatten)]
    pub node: NodeOptions,
}
