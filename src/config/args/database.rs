//! The flags of the database with the tasks, and of its schema.

use std::path::PathBuf;

use clap::Args;

use crate::config::secret::Secret;

#[derive(Args, Debug)]
#[command(next_help_heading = "Postgres")]
pub(in crate::config) struct Database {
    /// The database with the tasks: postgres://user:password@host:port/database. Required, here or
    /// in a file.
    ///
    /// Several hosts, as in postgres://a,b:5433/punctual, are the servers of which one is the
    /// primary: each new connection asks all of them, and nodes follow a failover.
    /// `?host=/folder` names the folder of a Unix socket, which is faster than TCP.
    /// `?sslmode=verify-full&sslrootcert=/path/ca.pem` requires TLS and checks the server's
    /// certificate; servers on other machines need it. Percent-encode special characters of the
    /// password. Flags are visible in the list of processes: prefer the variable or the file.
    #[arg(long, env = "PUNCTUAL_DATABASE_URL", value_name = "URL")]
    pub database_url: Option<Secret>,
    /// A file with the URL, and nothing else.
    #[arg(long, env = "PUNCTUAL_DATABASE_URL_FILE", value_name = "FILE")]
    pub database_url_file: Option<PathBuf>,
    /// Allows a TCP connection to another machine without sslmode=verify-full in the URL. true or
    /// false; the flag alone means true.
    ///
    /// Others on the network can then read the connection, and get the password of the node's user.
    #[arg(long, env = "PUNCTUAL_POSTGRES_PLAINTEXT", value_name = "BOOL")]
    pub postgres_plaintext: String,
}

#[derive(Args, Debug)]
#[command(next_help_heading = "Postgres")]
pub(in crate::config) struct Schema {
    /// Migrates the schema at start, as `punctual migrate` without flags does. true or false; the
    /// flag alone means true.
    ///
    /// Without it, a node refuses to start on a schema of another version. With it, the node's
    /// database user needs the rights to change the schema.
    #[arg(long, env = "PUNCTUAL_AUTO_MIGRATE", value_name = "BOOL")]
    pub auto_migrate: String,
}
