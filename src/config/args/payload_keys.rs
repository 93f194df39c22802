//! The command line of `punctual payload-keys`.

use std::path::PathBuf;

use clap::{Args, Subcommand};

use super::database::Database;

#[derive(Args, Debug)]
pub(in crate::config) struct PayloadKeys {
    #[command(subcommand)]
    pub command: PayloadKeysWords,
}

#[derive(Subcommand, Debug)]
pub(in crate::config) enum PayloadKeysWords {
    /// Encrypts stored records again, with the current payload key, so that an old key can be
    /// removed. Prints how many records have which key.
    ///
    /// First make the new key `current` in the files of all nodes. The nodes keep running. Records
    /// are replaced in small transactions; the command can be stopped and repeated at any time.
    /// Records in the clear are encrypted, too, except those of schedules. Tasks that are about to
    /// be published, and those in flight, keep their key.
    #[command(after_long_help = RESEAL_EXAMPLES)]
    Reseal(ResealWords),
}

const RESEAL_EXAMPLES: &str = "\
Examples:
  punctual payload-keys reseal --dry-run \\
    --database-url-file /run/secrets/database-url \\
    --payload-key-file /etc/punctual/keys.toml
  punctual payload-keys reseal \\
    --database-url-file /run/secrets/database-url \\
    --payload-key-file /etc/punctual/keys.toml

Exit codes: 0 done, 1 failed, or some records cannot be decrypted, 2 wrong usage or settings.";

#[derive(Args, Debug)]
pub(in crate::config) struct ResealWords {
    #[command(flatten)]
    pub database: Database,
    /// The file with the payload keys, as the nodes have it: the current key, and those of the
    /// stored records. Required.
    #[arg(long, env = "PUNCTUAL_PAYLOAD_KEY_FILE", value_name = "FILE")]
    pub payload_key_file: Option<PathBuf>,
    /// Only counts the records by their keys. true or false; the flag alone means true.
    #[arg(long, value_name = "BOOL")]
    pub dry_run: String,
    /// Stores the records in the clear. Needs a file without `current`. true or false; the flag
    /// alone means true.
    #[arg(long, value_name = "BOOL")]
    pub decrypt: String,
}
