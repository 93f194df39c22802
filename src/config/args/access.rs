//! Who may do what: the settings of a node, and the commands for tokens and auth files.

use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, Subcommand};

use crate::domain::time::duration;

#[derive(Args, Debug)]
#[command(next_help_heading = "Access")]
pub(in crate::config) struct Access {
    /// The file with the principals, their rights and the hashes of their tokens. Read again when
    /// it changes. Without it, every caller may do everything.
    ///
    /// `punctual token new` makes a token and the lines for this file; `punctual auth check FILE`
    /// tells what is wrong with it. Only its owner may be able to write it.
    #[arg(long, env = "PUNCTUAL_AUTH_FILE", value_name = "FILE")]
    pub auth_file: Option<PathBuf>,
    /// Start beyond loopback without an auth file: whoever reaches the address may submit, read and
    /// cancel everything. true or false; the flag alone means true.
    #[arg(
        long, env = "PUNCTUAL_ALLOW_ANONYMOUS", value_name = "BOOL", num_args = 0..=1, require_equals = true, default_value = "false",
        default_missing_value = "true"
    )]
    pub allow_anonymous: String,
    /// Start beyond loopback with an auth file and without TLS, because a proxy in front has it.
    /// Tokens go from the proxy to the node as they are. true or false; the flag alone means true.
    #[arg(
        long, env = "PUNCTUAL_PLAINTEXT_BEHIND_PROXY", value_name = "BOOL", num_args = 0..=1, require_equals = true, default_value = "false",
        default_missing_value = "true"
    )]
    pub plaintext_behind_proxy: String,
}

#[derive(Args, Debug)]
pub(in crate::config) struct Token {
    #[command(subcommand)]
    pub command: TokenCommand,
}

/// Commands for tokens.
#[derive(Subcommand, Clone, Debug)]
pub enum TokenCommand {
    /// Makes a token: prints it on stdout, once, and the lines for the auth file on stderr.
    #[command(after_help = NEW_EXAMPLES)]
    New(NewToken),
    /// Reads a token from stdin, and says whether it is whole and, with an auth file, whose it is.
    #[command(after_help = CHECK_EXAMPLES)]
    Check(CheckToken),
}

const NEW_EXAMPLES: &str = "\
Examples:
  punctual token new --principal order-service > order-service.token
  punctual token new --principal ann@shop.example --expires 90d";

const CHECK_EXAMPLES: &str = "\
Examples:
  punctual token check < order-service.token
  punctual token check --auth-file /etc/punctual/auth.toml < order-service.token

Exit codes: 0 the token is right, 1 it is not, 2 wrong usage, or the auth file cannot be used.";

#[derive(Args, Clone, Debug)]
pub struct NewToken {
    /// Whose token it is: 1 to 100 of a-z A-Z 0-9 . _ @ / and -.
    #[arg(long, value_name = "NAME")]
    pub principal: String,
    /// How long it is valid, from 1m to 3650d. [default: for ever]
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

Exit codes: 0 a node would take it, 2 it would not.";

#[derive(Args, Clone, Debug)]
pub struct CheckAuth {
    /// The file.
    #[arg(value_name = "FILE")]
    pub file: PathBuf,
}

fn validity(text: &str) -> Result<Duration, String> {
    let span = duration::parse(text)?;
    let is_within = (Duration::from_mins(1)..=Duration::from_hours(3650 * 24)).contains(&span);
    is_within.then_some(span).ok_or_else(|| "it takes 1m to 3650d".to_owned())
}
