//! The command lines of profiles.

use std::path::PathBuf;

use clap::{Args, Subcommand};

use super::manual::{PROFILE_EXAMPLES, PROFILE_EXIT_CODES, with_codes};
use super::node::OutputArgs;

#[derive(Args, Clone, Debug)]
#[command(
    after_help = PROFILE_EXIT_CODES,
    after_long_help = with_codes(PROFILE_EXAMPLES, PROFILE_EXIT_CODES)
)]
pub struct ProfileArgs {
    #[command(subcommand)]
    pub command: ProfileCommand,
}

#[derive(Subcommand, Clone, Debug)]
pub enum ProfileCommand {
    /// Lists the profiles. A star marks the default one.
    List(ProfileList),
    /// Makes a profile the default one, for all commands without --profile and --url.
    Use(ProfileUse),
}

#[derive(Args, Clone, Debug)]
#[command(
    after_help = PROFILE_EXIT_CODES,
    after_long_help = with_codes(PROFILE_EXAMPLES, PROFILE_EXIT_CODES)
)]
pub struct ProfileList {
    #[command(flatten)]
    pub options: ProfileOptions,
}

#[derive(Args, Clone, Debug)]
#[command(
    after_help = PROFILE_EXIT_CODES,
    after_long_help = with_codes(PROFILE_EXAMPLES, PROFILE_EXIT_CODES)
)]
pub struct ProfileUse {
    /// The name of the profile.
    #[arg(value_name = "NAME")]
    pub name: String,
    #[command(flatten)]
    pub options: ProfileOptions,
}

/// The file with the profiles, and the form of the output.
#[derive(Args, Clone, Debug)]
pub struct ProfileOptions {
    /// The file with the profiles. [default: punctual/config.toml in XDG_CONFIG_HOME, or else in
    /// ~/.config]
    #[arg(long, env = "PUNCTUAL_PROFILES_FILE", value_name = "FILE")]
    pub profiles_file: Option<PathBuf>,
    #[command(flatten)]
    pub output: OutputArgs,
}
