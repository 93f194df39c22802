//! The command line of `punctual dev`, and of the process that keeps its Postgres.

use std::path::PathBuf;

use clap::Args;

use crate::config::secret::Secret;

pub const EXAMPLES: &str = "\
Examples:
  punctual dev
  punctual dev --topic orders:12 --topic mails
  punctual dev --port 0 --kafka-port 0 --json
  punctual dev --data ./punctual-data
  punctual dev --kafka localhost:9092 \\
    --database-url postgres://localhost/punctual_dev

Routes that only a dev server has:
  POST /dev/clock      {\"advance\":\"30d\"} publishes all that is due until
                       then, in order, and answers when it is done;
                       {\"reset\":true} returns to the real time at once
  GET  /dev/published  ?topic=demo: the records of a topic of dev's own broker";

#[derive(Args, Debug)]
pub struct Dev {
    /// A topic of dev's own broker, as NAME:PARTITIONS; repeatable. Without a number it has one
    /// partition. [default: demo:4]
    #[arg(long = "topic", value_name = "NAME:PARTITIONS")]
    pub topics: Vec<String>,
    /// The port of the REST API on 127.0.0.1. 0 takes a free one.
    #[arg(long, value_name = "PORT", default_value_t = 7070)]
    pub port: u16,
    /// The port of dev's own broker on 127.0.0.1. 0 takes a free one.
    #[arg(long, value_name = "PORT", default_value_t = 9092)]
    pub kafka_port: u16,
    /// Publishes to a real Kafka instead: bootstrap servers, host:port, comma-separated.
    #[arg(long, value_name = "SERVERS")]
    pub kafka: Option<String>,
    /// Keeps the data of dev's own Postgres in this folder, so that tasks survive. The records of
    /// dev's own broker never do.
    #[arg(long, value_name = "FOLDER")]
    pub data: Option<PathBuf>,
    /// Uses a real Postgres instead: an empty database, or one that `punctual dev` has used
    /// before. Any other is refused, because the clock of the database is set.
    #[arg(long, value_name = "URL")]
    pub database_url: Option<Secret>,
    /// Announces the addresses as one line of JSON on stdout: url, kafka,
    /// database_url.
    #[arg(long)]
    pub json: bool,
}

/// The flags of the supervisor, a process that only `punctual dev` starts.
#[derive(Args, Debug)]
pub struct Supervisor {
    /// The folder of Postgres's programs.
    #[arg(long)]
    pub programs: PathBuf,
    /// The folder of its data, its socket and its log.
    #[arg(long)]
    pub folder: PathBuf,
    /// Removes the folder at the end.
    #[arg(long)]
    pub temporary: bool,
    /// The user that Postgres runs as, when the dev server runs as root.
    #[arg(long)]
    pub user: Option<u32>,
    #[arg(long)]
    pub group: Option<u32>,
}
