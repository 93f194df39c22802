//! The flags with the credential of a client.

use std::convert::Infallible;
use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;

use clap::Args;
use clap::builder::FalseyValueParser;

/// A token, and where it may be sent.
#[derive(Args, Clone, Default, Debug)]
pub struct Credentials {
    /// The value of the variable; not a flag for people, because flags show in the process list.
    #[arg(long, global = true, env = "PUNCTUAL_TOKEN", value_name = "TOKEN", hide = true)]
    pub token: Option<Token>,
    /// A file with the token, and nothing else. If the node refuses the token, the file is read
    /// once more. The variable PUNCTUAL_TOKEN has the token itself.
    #[arg(long, global = true, env = "PUNCTUAL_TOKEN_FILE", value_name = "FILE")]
    pub token_file: Option<PathBuf>,
    /// Sends the token over http:// to other machines, too. Others on the network can read it.
    #[arg(long, global = true, env = "PUNCTUAL_PLAINTEXT", value_parser = FalseyValueParser::new())]
    pub plaintext: bool,
}

/// The text of a token. `Debug` does not show it.
#[derive(Clone, PartialEq, Eq)]
pub struct Token(String);

impl Token {
    /// Returns the token itself, for the request.
    pub fn expose(&self) -> &str {
        &self.0
    }
}

impl FromStr for Token {
    type Err = Infallible;

    fn from_str(text: &str) -> Result<Self, Infallible> {
        Ok(Self(text.trim().to_owned()))
    }
}

impl fmt::Debug for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("(token)")
    }
}
