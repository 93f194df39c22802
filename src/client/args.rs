//! The command lines of the clients. The comments on the fields are the manual that `--help` prints.

use std::path::PathBuf;

use clap::Args;

use crate::domain::TaskId;

const EXIT_CODES: &str = "\
Exit codes:
  0  done
  1  refused: the message says what would be right
  2  wrong usage
  3  nothing was done: the node cannot be reached, is busy, or lacks a server; try again
  4  no such task
  5  too late to cancel
  6  unknown: it may have been done; the message says whether it is safe to repeat";

const SUBMIT_EXAMPLES: &str = "\
Examples:
  punctual submit --topic orders --delay 30m --payload '{\"order\": 17}' --key 17
  punctual submit --topic orders --due-at 2030-01-31T09:30:00+01:00 --payload-text hello --name order-17
  punctual submit --topic orders --delay 1d --tombstone --key 17";

/// Which node is asked, and how it is answered.
#[derive(Args, Clone, Debug)]
pub struct Node {
    /// Any node of the cluster.
    #[arg(long, env = "PUNCTUAL_URL", value_name = "URL", default_value = "http://127.0.0.1:7070")]
    pub url: String,
    /// Prints the node's answer as it is: JSON, a problem (RFC 9457) included.
    #[arg(long)]
    pub json: bool,
    /// How long the call may take, in seconds. A node itself answers within 30.
    #[arg(long, env = "PUNCTUAL_TIMEOUT", value_name = "SECONDS", default_value_t = 35, value_parser = clap::value_parser!(u64).range(1..=3600))]
    pub timeout: u64,
}

#[derive(Args, Clone, Debug)]
#[command(after_help = EXIT_CODES, after_long_help = format!("{SUBMIT_EXAMPLES}\n\n{EXIT_CODES}"))]
pub struct Submit {
    /// The Kafka topic to publish to. It must exist.
    #[arg(long, value_name = "TOPIC")]
    pub topic: String,
    #[command(flatten)]
    pub due: Due,
    #[command(flatten)]
    pub payload: Payload,
    /// The record's key.
    #[arg(long, value_name = "TEXT")]
    pub key: Option<String>,
    /// The record's key, in base64.
    #[arg(long, value_name = "BASE64", conflicts_with = "key")]
    pub key_base64: Option<String>,
    /// A header of the record; repeatable. Names that begin with punctual- are reserved.
    #[arg(long = "header", value_name = "NAME=VALUE", value_parser = header)]
    pub headers: Vec<(String, String)>,
    /// Your own id for the task, unique within its topic: submitting it again makes no second task.
    #[arg(long, value_name = "NAME")]
    pub name: Option<String>,
    #[command(flatten)]
    pub node: Node,
}

/// When; exactly one.
#[derive(Args, Clone, Debug)]
#[group(required = true, multiple = false)]
pub struct Due {
    /// When to publish: 2030-01-31T09:30:00+01:00 (RFC 3339, with a zone), or milliseconds since the epoch.
    #[arg(long, value_name = "TIME", allow_negative_numbers = true)]
    pub due_at: Option<String>,
    /// In how long to publish: 30m, "1h 30m", 2d, PT30M, or milliseconds.
    #[arg(long, value_name = "SPAN", allow_hyphen_values = true)]
    pub delay: Option<String>,
}

/// What; exactly one.
#[derive(Args, Clone, Debug)]
#[group(required = true, multiple = false)]
pub struct Payload {
    /// JSON; it is published byte for byte.
    #[arg(long, value_name = "JSON", allow_hyphen_values = true)]
    pub payload: Option<String>,
    /// Text, published as UTF-8.
    #[arg(long, value_name = "TEXT", allow_hyphen_values = true)]
    pub payload_text: Option<String>,
    /// The bytes of a file; - is standard input.
    #[arg(long, value_name = "FILE")]
    pub payload_file: Option<PathBuf>,
    /// A null value, with which Kafka's compaction deletes a key. Needs a key.
    #[arg(long)]
    pub tombstone: bool,
}

#[derive(Args, Clone, Debug)]
#[command(after_help = EXIT_CODES)]
pub struct Show {
    /// The task's id, as it was answered when the task was submitted.
    #[arg(value_name = "ID")]
    pub id: TaskId,
    #[command(flatten)]
    pub node: Node,
}

#[derive(Args, Clone, Debug)]
#[command(after_help = EXIT_CODES)]
pub struct Cancel {
    /// The task's id, as it was answered when the task was submitted.
    #[arg(value_name = "ID")]
    pub id: TaskId,
    #[command(flatten)]
    pub node: Node,
}

fn header(text: &str) -> Result<(String, String), String> {
    let (name, value) = text.split_once('=').ok_or("write it like name=value")?;
    Ok((name.to_owned(), value.to_owned()))
}
