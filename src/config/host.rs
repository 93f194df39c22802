//! What settings need of the machine: files that hold secrets, and its name.

use std::fmt;
use std::io;
use std::path::Path;

use super::args;
use super::reader::Reader;
use super::secret::Secret;

/// The machine, as far as settings depend on it.
pub(super) struct Host<'a> {
    pub name: String,
    pub read_file: &'a dyn Fn(&Path) -> io::Result<String>,
}

impl fmt::Debug for Host<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Host").field("name", &self.name).finish_non_exhaustive()
    }
}

impl Host<'_> {
    /// This machine.
    pub fn here() -> Self {
        // Linux says it here, in a container as well; elsewhere `--node-name` does.
        let name = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
        let name = if name.trim().is_empty() { "node".to_owned() } else { name.trim().to_owned() };
        Host { name, read_file: &|path| std::fs::read_to_string(path) }
    }

    /// The text of a file, without the line break at its end.
    pub fn read_secret(&self, flag: &'static str, path: &Path, reader: &mut Reader) -> Option<Secret> {
        if path.as_os_str().is_empty() {
            return None;
        }
        match (self.read_file)(path) {
            Ok(text) => Some(Secret::from(text.trim())),
            Err(error) => {
                reader.problem(flag, format!("cannot read {}: {error}", path.display()));
                None
            }
        }
    }

    /// The URL from its flag or from its file; both, or neither, is a problem.
    pub fn database_url(&self, args: &args::Database, reader: &mut Reader) -> Secret {
        let given = args.database_url.clone().filter(|url| !url.expose().trim().is_empty());
        let path = args.database_url_file.as_deref().filter(|path| !path.as_os_str().is_empty());
        let url = match (given, path) {
            (Some(_), Some(_)) => {
                reader.problem("--database-url", "given twice: as --database-url (or PUNCTUAL_DATABASE_URL) and as --database-url-file (or PUNCTUAL_DATABASE_URL_FILE); leave one out");
                return Secret::from("");
            }
            (None, None) => {
                reader.problem(
                    "--database-url",
                    "required: postgres://user:password@host:port/database (or PUNCTUAL_DATABASE_URL, or a file)",
                );
                return Secret::from("");
            }
            (Some(url), None) => url,
            // A file that cannot be read is a problem already.
            (None, Some(path)) => match self.read_secret("--database-url-file", path, reader) {
                Some(url) => url,
                None => return Secret::from(""),
            },
        };
        if !["postgres://", "postgresql://"].iter().any(|scheme| url.expose().trim().starts_with(scheme)) {
            reader.problem("--database-url", "not a URL of the form postgres://user:password@host:port/database");
        }
        Secret::from(url.expose().trim())
    }
}
