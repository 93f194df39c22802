//! The command lines of schedules.

use std::path::PathBuf;

use clap::{Args, Subcommand};

use super::manual::{BACKFILL_USAGE, SCHEDULE_EXAMPLES, SCHEDULE_EXIT_CODES, with_codes};
use super::node::{NodeOptions, count, name, which};

#[derive(Args, Clone, Debug)]
#[command(
    after_help = SCHEDULE_EXIT_CODES,
    after_long_help = with_codes(SCHEDULE_EXAMPLES, SCHEDULE_EXIT_CODES)
)]
pub struct ScheduleArgs {
    #[command(subcommand)]
    pub command: ScheduleCommand,
}

#[derive(Subcommand, Clone, Debug)]
pub enum ScheduleCommand {
    /// Creates a schedule, or replaces the one of its name.
    ///
    /// Repeating it changes nothing. Otherwise the runs that are not due yet are made anew, and the
    /// others stay. A pause, another timing or another key withdraws all runs that are not claimed.
    Set(ScheduleSet),
    /// Lists the schedules of a topic.
    List(ScheduleList),
    /// Shows a schedule.
    Show(ScheduleOne),
    /// Shows the next runs of a schedule.
    Next(ScheduleNext),
    /// Pauses a schedule: withdraws its runs, and makes no others.
    Pause(ScheduleOne),
    /// Resumes a schedule. Its policy decides about the runs that were missed.
    Resume(ScheduleOne),
    /// Submits one more run of a schedule, which is due now.
    Trigger(ScheduleOne),
    /// Makes the runs of a range of the past that were never made.
    ///
    /// Repeating it makes no run twice.
    Backfill(ScheduleBackfill),
    /// Brings schedules in line with a file, and shows what differs.
    ///
    /// The file is YAML: `schedules` is a list of schedules as for `set`, each with `topic` and
    /// `name`. All of them are checked before the first change.
    Apply(ScheduleApply),
    /// Deletes a schedule, and withdraws its runs.
    Delete(ScheduleOne),
}

/// The schedule of a command.
#[derive(Args, Clone, Debug)]
pub struct SchedulePlace {
    /// The topic of the schedule.
    #[arg(value_name = "TOPIC")]
    pub topic: String,
    /// The name of the schedule.
    #[arg(value_name = "NAME", value_parser = name)]
    pub name: String,
}

#[derive(Args, Clone, Debug)]
#[command(
    after_help = SCHEDULE_EXIT_CODES,
    after_long_help = with_codes(SCHEDULE_EXAMPLES, SCHEDULE_EXIT_CODES)
)]
pub struct ScheduleOne {
    #[command(flatten)]
    pub place: SchedulePlace,
    #[command(flatten)]
    pub node: NodeOptions,
}

#[derive(Args, Clone, Debug)]
#[command(
    after_help = SCHEDULE_EXIT_CODES,
    after_long_help = with_codes(SCHEDULE_EXAMPLES, SCHEDULE_EXIT_CODES)
)]
pub struct ScheduleSet {
    #[command(flatten)]
    pub place: SchedulePlace,
    /// A file with the schedule in JSON, as for PUT /v1/schedules/{topic}/{name}; - is standard
    /// input.
    #[arg(value_name = "FILE")]
    pub file: PathBuf,
    /// Only checks the schedule and shows its next runs.
    #[arg(long)]
    pub dry_run: bool,
    #[command(flatten)]
    pub node: NodeOptions,
}

#[derive(Args, Clone, Debug)]
#[command(
    override_usage = BACKFILL_USAGE,
    group = which(&["from", "last"]),
    after_help = SCHEDULE_EXIT_CODES,
    after_long_help = with_codes(SCHEDULE_EXAMPLES, SCHEDULE_EXIT_CODES)
)]
pub struct ScheduleBackfill {
    #[command(flatten)]
    pub place: SchedulePlace,
    /// The beginning of the range, at most seven days ago, such as 2026-11-20T00:00:00Z.
    #[arg(long, value_name = "TIME", requires = "to")]
    pub from: Option<String>,
    /// The end of the range, exclusive.
    #[arg(long, value_name = "TIME", requires = "from")]
    pub to: Option<String>,
    /// The length of a range that ends now, at most seven days, such as 3d.
    #[arg(long, value_name = "SPAN", conflicts_with_all = ["from", "to"])]
    pub last: Option<String>,
    /// Only counts the runs.
    #[arg(long)]
    pub dry_run: bool,
    #[command(flatten)]
    pub node: NodeOptions,
}

#[derive(Args, Clone, Debug)]
#[command(
    after_help = SCHEDULE_EXIT_CODES,
    after_long_help = with_codes(SCHEDULE_EXAMPLES, SCHEDULE_EXIT_CODES)
)]
pub struct ScheduleApply {
    /// A file with schedules in YAML or JSON; - is standard input.
    #[arg(short, long, value_name = "FILE")]
    pub file: PathBuf,
    /// Deletes the schedules that are not in the file, of the topics that the file names.
    #[arg(long)]
    pub prune: bool,
    /// Only shows what differs.
    #[arg(long)]
    pub dry_run: bool,
    #[command(flatten)]
    pub node: NodeOptions,
}

#[derive(Args, Clone, Debug)]
#[command(
    after_help = SCHEDULE_EXIT_CODES,
    after_long_help = with_codes(SCHEDULE_EXAMPLES, SCHEDULE_EXIT_CODES)
)]
pub struct ScheduleNext {
    #[command(flatten)]
    pub place: SchedulePlace,
    /// The number of runs, from 1 to 1000.
    #[arg(long, value_name = "COUNT", default_value_t = 10, value_parser = count(1_000))]
    pub count: usize,
    #[command(flatten)]
    pub node: NodeOptions,
}

#[derive(Args, Clone, Debug)]
#[command(
    after_help = SCHEDULE_EXIT_CODES,
    after_long_help = with_codes(SCHEDULE_EXAMPLES, SCHEDULE_EXIT_CODES)
)]
pub struct ScheduleList {
    /// The topic of the schedules.
    #[arg(value_name = "TOPIC")]
    pub topic: String,
    /// Begins after this name.
    #[arg(long, value_name = "NAME", value_parser = name)]
    pub after: Option<String>,
    /// Maximum number to show, from 1 to 1000.
    #[arg(long, value_name = "COUNT", default_value_t = 100, value_parser = count(1_000))]
    pub limit: usize,
    #[command(flatten)]
    pub node: NodeOptions,
}
