//! The parsed settings of `punctual payload-keys`.

use std::path::PathBuf;

use crate::config::args::{PayloadKeys, PayloadKeysWords};
use crate::config::host::Host;
use crate::config::reader::{SettingProblem, SettingsReader};
use crate::config::secret::Secret;

/// A command that encrypts stored records again.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ResealCommand {
    pub database_url: Secret,
    /// True when the connection may be readable by others.
    pub postgres_plaintext: bool,
    pub payload_keys: PathBuf,
    /// True: only count.
    pub is_dry_run: bool,
    /// True: store the records in the clear.
    pub decrypts: bool,
}

/// Parses a command on `host`. Returns it, or all problems.
pub(in crate::config) fn read(
    args: &PayloadKeys,
    host: &Host<'_>,
) -> Result<ResealCommand, Vec<SettingProblem>> {
    let mut reader = SettingsReader::default();
    let PayloadKeysWords::Reseal(words) = &args.command;
    let database_url = host.database_url(&words.database, &mut reader);
    let postgres_plaintext = super::postgres_plaintext(&words.database, &mut reader);
    let path = words.payload_key_file.clone().filter(|path| !path.as_os_str().is_empty());
    if path.is_none() {
        reader.problem("--payload-key-file", "required: the file with the payload keys");
    }
    let is_dry_run = reader.truth("--dry-run", &words.dry_run);
    let decrypts = reader.truth("--decrypt", &words.decrypt);
    reader.finish(ResealCommand {
        database_url,
        postgres_plaintext,
        payload_keys: path.unwrap_or_default(),
        is_dry_run,
        decrypts,
    })
}
