//! The command line of `punctual outbox`, and the flags of outboxes, intake topics and callbacks.

use std::path::PathBuf;

use clap::{Args, Subcommand};

use crate::config::secret::Secret;

#[derive(Args, Debug)]
pub(in crate::config) struct Outbox {
    #[command(subcommand)]
    pub command: OutboxWords,
}

#[derive(Subcommand, Debug)]
pub(in crate::config) enum OutboxWords {
    /// Installs an outbox: the schema `punctual` with its tables and functions, in the database of
    /// an application.
    ///
    /// Can be repeated at any time, for example to grant rights to another role. The role of the
    /// URL owns the schema, and needs the right to create one. A schema `punctual` of another role
    /// is refused, unless the role of the URL may act as that role.
    #[command(after_long_help = INSTALL_EXAMPLES)]
    Install(InstallOutbox),
    /// Checks an outbox: its version, its owner, its functions, the rights of the URL's role to
    /// drain it, rejected rows, and the age of the oldest row.
    #[command(after_long_help = CHECK_EXAMPLES)]
    Check(OutboxDatabase),
    /// Removes an outbox. It must be empty.
    #[command(after_long_help = REMOVE_EXAMPLES)]
    Remove(OutboxDatabase),
}

const INSTALL_EXAMPLES: &str = "\
Examples:
  punctual outbox install --database-url postgres://owner@localhost/shop
  punctual outbox install --database-url-file /run/secrets/shop-owner \\
    --submitter shop_app --drainer punctual_node";

const CHECK_EXAMPLES: &str = "\
Examples:
  punctual outbox check --database-url-file /run/secrets/shop-node

Exit codes: 0 all is well, 1 there is a problem or no outbox, 2 wrong usage or settings.";

const REMOVE_EXAMPLES: &str = "\
Examples:
  punctual outbox remove --database-url-file /run/secrets/shop-owner

Exit codes: 0 removed, 1 there is no outbox or it is not empty, 2 wrong usage or settings.";

#[derive(Args, Debug)]
pub(in crate::config) struct InstallOutbox {
    #[command(flatten)]
    pub database: OutboxDatabase,
    /// A role that may submit: call the functions, and insert into punctual.outbox; repeatable.
    #[arg(long = "submitter", value_name = "ROLE")]
    pub submitters: Vec<String>,
    /// A role that nodes use to take the rows out; repeatable.
    #[arg(long = "drainer", value_name = "ROLE")]
    pub drainers: Vec<String>,
}

#[derive(Args, Debug)]
#[command(next_help_heading = "The database of the application")]
pub(in crate::config) struct OutboxDatabase {
    /// The database of the application: postgres://user:password@host:port/database, Postgres 13 or
    /// later. Required, here or in a file.
    ///
    /// Flags are visible in the list of processes: prefer the file.
    #[arg(long, value_name = "URL")]
    pub database_url: Option<Secret>,
    /// A file with the URL, and nothing else.
    #[arg(long, value_name = "FILE")]
    pub database_url_file: Option<PathBuf>,
    /// Allows a TCP connection to another machine without sslmode=verify-full in the URL. true or
    /// false; the flag alone means true.
    #[arg(long, value_name = "BOOL")]
    pub postgres_plaintext: String,
}

#[derive(Args, Debug)]
#[command(next_help_heading = "Outboxes")]
pub(in crate::config) struct Outboxes {
    /// An outbox to drain, as NAME=URL: the name of a principal, and the database of the
    /// application; repeatable. Give all nodes the same outboxes.
    ///
    /// Commas separate outboxes: write a comma of a URL as %2C, or use --outbox-file.
    /// With --auth-file, the rows are submitted by the principal NAME, with its rights and limits.
    /// Flags are visible in the list of processes: prefer the file.
    #[arg(long, env = "PUNCTUAL_OUTBOX", value_name = "NAME=URL", value_delimiter = ',')]
    pub outbox: Vec<Secret>,
    /// A file with outboxes, one NAME=URL per line; lines that start with # are comments.
    #[arg(long, env = "PUNCTUAL_OUTBOX_FILE", value_name = "FILE")]
    pub outbox_file: Option<PathBuf>,
}

#[derive(Args, Debug)]
#[command(next_help_heading = "Intake topics")]
pub(in crate::config) struct IntakeTopics {
    /// A topic of Kafka whose records are submits; repeatable. Give all nodes the same topics.
    ///
    /// A record says in headers (punctual-topic, punctual-delay, ..) what to do with its key and
    /// its value. Wrong records go to the topic NAME.rejected, which must exist. With --auth-file,
    /// the records are submitted by the principal NAME, with its rights and limits.
    #[arg(long, env = "PUNCTUAL_INTAKE_TOPIC", value_name = "NAME", value_delimiter = ',')]
    pub intake_topic: Vec<String>,
    /// The treatment of a wrong record when there is no topic NAME.rejected: wait (its partition
    /// waits), or skip (the record is lost).
    #[arg(long, env = "PUNCTUAL_INTAKE_ON_ERROR", value_name = "ACTION", default_value = "wait")]
    pub intake_on_error: String,
}

#[derive(Args, Debug)]
#[command(next_help_heading = "Callbacks")]
pub(in crate::config) struct CallbackArgs {
    /// A host that callbacks may call: hooks.example.com, *.example.com, or * for all; with :port
    /// if it is not 443, and with http:// in front if it has no TLS. Repeatable. Without one, this
    /// node carries out no callbacks.
    ///
    /// Addresses that are not public are refused, whatever the host, but for --callback-network.
    /// Redirects are not followed.
    #[arg(long, env = "PUNCTUAL_CALLBACK_HOST", value_name = "HOST", value_delimiter = ',')]
    pub callback_host: Vec<String>,
    /// A network or an address that callbacks may call although it is not public, such as
    /// 10.0.0.0/8. Repeatable.
    #[arg(long, env = "PUNCTUAL_CALLBACK_NETWORK", value_name = "NETWORK", value_delimiter = ',')]
    pub callback_network: Vec<String>,
    /// The file with the keys that sign requests of callbacks: one or two lines, each the base64 of
    /// 24 to 64 bytes. Required with --callback-host. The node reads a changed file again.
    ///
    /// All nodes need the same keys. `openssl rand -base64 32` makes one.
    #[arg(long, env = "PUNCTUAL_CALLBACK_KEY_FILE", value_name = "FILE")]
    pub callback_key_file: Option<PathBuf>,
}
