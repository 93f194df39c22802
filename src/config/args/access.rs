//! Who may do what: the settings of a node, and the commands for tokens and auth files.

use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, Subcommand};

use crate::domain::time::duration;

#[derive(Args, Debug)]
#[command(next_help_heading = "Access")]
pub(in crate::config) struct Access {
    /// The file with the principals, their rights and the hashes of their tokens. The node reads a
    /// changed file again. Without a file, every caller may do everything.
    ///
    /// `punctual token new` makes a token and the lines for this file; `punctual auth check FILE`
    /// finds mistakes. Only the owner may have the right to write the file.
    #[arg(long, env = "PUNCTUAL_AUTH_FILE", value_name = "FILE")]
    pub auth_file: Option<PathBuf>,
    /// The file with the payload keys. With it, the node encrypts keys, payloads and headers of
    /// records before it stores them. It reads a changed file again.
    ///
    /// All nodes need the same keys. Only the owner may have the right to write the file. See
    /// docs/operate/encryption.md for its format and the steps.
    #[arg(long, env = "PUNCTUAL_PAYLOAD_KEY_FILE", value_name = "FILE")]
    pub payload_key_file: Option<PathBuf>,
    /// Leaves out the console, the pages at /console. true or false; the flag alone means true.
    #[arg(long, env = "PUNCTUAL_NO_CONSOLE", value_name = "BOOL")]
    pub no_console: String,
    /// Allows --listen beyond loopback without an auth file: anyone who reaches the address may
    /// submit, read and cancel all tasks. true or false; the flag alone means true.
    #[arg(long, env = "PUNCTUAL_ALLOW_ANONYMOUS", value_name = "BOOL")]
    pub allow_anonymous: String,
    /// Allows --listen beyond loopback with an auth file but without TLS, because a proxy in front
    /// has TLS. Tokens are not encrypted between the proxy and the node. true or false; the flag
    /// alone means true.
    #[arg(long, env = "PUNCTUAL_PLAINTEXT_BEHIND_PROXY", value_name = "BOOL")]
    pub plaintext_behind_proxy: String,
    /// A file for the audit trail, or `-` for stdout: one line of JSON for each change and each
    /// denied request, with who, what, when and the outcome. Never a payload, key, header or token.
    ///
    /// A change is made only when its line has room, and is answered when the line is written.
    /// While lines cannot be written, changes are refused (503). The file is opened again when it
    /// was renamed.
    #[arg(long, env = "PUNCTUAL_AUDIT_FILE", value_name = "FILE")]
    pub audit_file: Option<PathBuf>,
    /// Contents of the audit trail: `changes`, or `reads` for changes and for answers that show
    /// keys, headers or payloads. [default: changes]
    #[arg(long, env = "PUNCTUAL_AUDIT", value_name = "WHAT", value_parser = ["changes", "reads"])]
    pub audit: Option<String>,
    /// Lose lines of the audit trail rather than refuse changes while lines cannot be written. true
    /// or false; the flag alone means true.
    #[arg(long, env = "PUNCTUAL_AUDIT_LOSSY", value_name = "BOOL")]
    pub audit_lossy: String,
}

#[derive(Args, Debug)]
pub(in crate::config) struct Token {
    #[command(subcommand)]
    pub command: TokenCommand,
}

/// Commands for tokens.
#[derive(Subcommand, Clone, Debug)]
pub enum TokenCommand {
    /// Makes a token. Prints it on stdout, once, and the lines for the auth file on stderr.
    #[command(after_help = NEW_EXAMPLES)]
    New(NewToken),
    /// Checks a token from stdin: its format and checksum and, with an auth file, its principal.
    #[command(after_help = CHECK_EXAMPLES)]
    Check(CheckToken),
}

const NEW_EXAMPLES: &str = "\
Examples:
  (umask 077; punctual token new --principal order-service \\
    > order-service.token)
  punctual token new --principal ann@shop.example --expires 90d";

const CHECK_EXAMPLES: &str = "\
Examples:
  punctual token check < order-service.token
  punctual token check --auth-file /etc/punctual/auth.toml \\
    < order-service.token

Exit codes: 0 the token is valid, 1 it is not, 2 wrong usage, or an invalid auth file.";

#[derive(Args, Clone, Debug)]
pub struct NewToken {
    /// The principal of the token: 1 to 100 of a-z A-Z 0-9 . _ @ / and -.
    #[arg(long, value_name = "NAME")]
    pub principal: String,
    /// How long the token is valid, from 1m to 3650d. [default: for ever]
    #[arg(long, value_name = "SPAN", value_parser = validity)]
    pub expires: Option<Duration>,
}

#[derive(Args, Clone, Debug)]
pub struct CheckToken {
    /// The auth file to find the token in.
    #[arg(long, env = "PUNCTUAL_AUTH_FILE", value_name = "FILE")]
    pub auth_file: Option<PathBuf>,
}

#[derive(Args, Debug)]
pub(in crate::config) struct Auth {
    #[command(subcommand)]
    pub command: AuthCommand,
}

/// Commands for auth files.
#[derive(Subcommand, Clone, Debug)]
pub enum AuthCommand {
    /// Checks an auth file: prints the principals and their rights, or every problem with its line.
    #[command(after_help = AUTH_CHECK_EXAMPLES)]
    Check(CheckAuth),
}

const AUTH_CHECK_EXAMPLES: &str = "\
Examples:
  punctual auth check /etc/punctual/auth.toml

Exit codes: 0 the file is valid, 2 it is not.";

#[derive(Args, Clone, Debug)]
pub struct CheckAuth {
    /// The auth file.
    #[arg(value_name = "FILE")]
    pub file: PathBuf,
    /// --batch-max of the nodes: the `burst` of a limit on tasks must be as large.
    #[arg(
        long,
        env = "PUNCTUAL_BATCH_MAX",
        value_name = "COUNT",
        default_value_t = 10_000,
        value_parser = clap::value_parser!(u64).range(1..=10_000)
    )]
    pub batch_max: u64,
}

fn validity(text: &str) -> Result<Duration, String> {
    let span = duration::parse(text)?;
    let is_within = (Duration::from_mins(1)..=Duration::from_hours(3650 * 24)).contains(&span);
    is_within.then_some(span).ok_or_else(|| "expected a span from 1m to 3650d".to_owned())
}
