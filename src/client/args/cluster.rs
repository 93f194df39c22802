//! The command lines that show the cluster.

use std::time::Duration;

use clap::{Args, Subcommand};

use super::manual::{CLUSTER_EXAMPLES, CLUSTER_EXIT_CODES, with_codes};
use super::node::{NodeOptions, span};

#[derive(Args, Clone, Debug)]
#[command(
    after_help = CLUSTER_EXIT_CODES,
    after_long_help = with_codes(CLUSTER_EXAMPLES, CLUSTER_EXIT_CODES)
)]
pub struct ClusterArgs {
    #[command(subcommand)]
    pub command: ClusterCommand,
}

#[derive(Subcommand, Clone, Debug)]
pub enum ClusterCommand {
    /// Shows whether the cluster is well: overdue tasks, unavailable topics, and why the node that
    /// answers is not ready.
    Status(ClusterShow),
    /// Lists the nodes with shards and heartbeats, as one node sees them.
    Nodes(ClusterShow),
    /// Lists the topics that Kafka does not take records for, and why. `topic list` has all topics.
    Topics(ClusterShow),
}

#[derive(Args, Clone, Debug)]
#[command(
    after_help = CLUSTER_EXIT_CODES,
    after_long_help = with_codes(CLUSTER_EXAMPLES, CLUSTER_EXIT_CODES)
)]
pub struct ClusterShow {
    /// Shows it again and again, until Ctrl-C; every 2s, or as often as SPAN says, from 100ms to
    /// 1h. While the node is away, the error is shown instead. With -o json: one line for each
    /// look.
    #[arg(
        long,
        value_name = "SPAN",
        num_args = 0..=1,
        require_equals = true,
        default_missing_value = "2s",
        value_parser = span(Duration::from_millis(100), Duration::from_hours(1))
    )]
    pub watch: Option<Duration>,
    #[command(flatten)]
    pub node: NodeOptions,
}
