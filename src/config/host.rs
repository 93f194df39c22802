//! The parts of the machine on which settings depend: files that hold secrets, and the host name.

use std::fmt;
use std::io;
use std::path::Path;

use super::args;
use super::reader::SettingsReader;
use super::secret::Secret;

/// The machine, as far as settings depend on it.
pub(super) struct Host<'a> {
    pub name: String,
    /// The names of the variables of the environment.
    pub variables: Vec<String>,
    pub read_file: &'a dyn Fn(&Path) -> io::Result<String>,
}

/// An error that the reader has already recorded as a problem.
#[derive(Clone, Copy, Debug)]
pub(super) struct Told;

/// A secret as it was given: itself, or a file that holds it.
#[derive(Clone, Copy, Debug)]
pub(super) struct GivenSecret<'a> {
    /// The flag of the secret, and the flag of the file.
    pub flags: [&'static str; 2],
    pub secret: Option<&'a Secret>,
    pub path: Option<&'a Path>,
    /// True when each flag has a variable.
    pub have_variables: bool,
}

impl fmt::Debug for Host<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Host").field("name", &self.name).finish_non_exhaustive()
    }
}

impl Host<'_> {
    /// Returns the machine.
    pub fn here() -> Self {
        // Linux gives the host name here, in a container as well. On other systems `--node-name`
        // sets it.
        let name = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
        let name = if name.trim().is_empty() { "node".to_owned() } else { name.trim().to_owned() };
        let variables = std::env::vars_os().filter_map(|(name, _value)| name.into_string().ok());
        let variables = variables.collect();
        Host { name, variables, read_file: &|path| std::fs::read_to_string(path) }
    }

    /// Returns the text of a file, without the line break at its end.
    pub fn read_secret(
        &self,
        flag: &'static str,
        path: &Path,
        reader: &mut SettingsReader,
    ) -> Option<Secret> {
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

    /// Returns a secret from its flag or its variable, or from the file named by the second flag.
    pub fn secret(
        &self,
        flags: [&'static str; 2],
        secret: Option<&Secret>,
        path: Option<&Path>,
        reader: &mut SettingsReader,
    ) -> Result<Option<Secret>, Told> {
        self.given(GivenSecret { flags, secret, path, have_variables: true }, reader)
    }

    /// As [`Self::secret`], also for flags without variables.
    pub fn given(
        &self,
        given: GivenSecret<'_>,
        reader: &mut SettingsReader,
    ) -> Result<Option<Secret>, Told> {
        let GivenSecret { flags: [flag, file_flag], secret, path, have_variables } = given;
        let secret = secret.filter(|secret| !secret.expose().trim().is_empty());
        match (secret, path.filter(|path| !path.as_os_str().is_empty())) {
            (None, None) => Ok(None),
            (Some(secret), None) => Ok(Some(Secret::from(secret.expose().trim()))),
            (None, Some(path)) => {
                let secret = self.read_secret(file_flag, path, reader).ok_or(Told)?;
                if secret.expose().is_empty() {
                    reader.problem(file_flag, format!("the file {} is empty", path.display()));
                    return Err(Told);
                }
                Ok(Some(secret))
            }
            (Some(_), Some(_)) => {
                let ways = [flag, file_flag].map(|flag| match have_variables {
                    true => format!("as {flag} (or {})", variable_of(flag)),
                    false => format!("as {flag}"),
                });
                reader.problem(flag, format!("given twice: {}; leave one out", ways.join(" and ")));
                Err(Told)
            }
        }
    }

    /// Returns the database URL. A missing URL is a problem, too.
    pub fn database_url(&self, args: &args::Database, reader: &mut SettingsReader) -> Secret {
        const FLAG: &str = "--database-url";
        let (given, path) = (args.database_url.as_ref(), args.database_url_file.as_deref());
        let found = self.secret([FLAG, "--database-url-file"], given, path, reader);
        let required = "required: postgres://user:password@host:port/database (or \
                        PUNCTUAL_DATABASE_URL, or a file)";
        postgres_url(FLAG, found, required, reader)
    }
}

/// Checks the URL of a database, whose flag is `flag`. A missing URL is the problem `required`.
pub(super) fn postgres_url(
    flag: &'static str,
    found: Result<Option<Secret>, Told>,
    required: &str,
    reader: &mut SettingsReader,
) -> Secret {
    let is_right = |url: &Secret| {
        let schemes = ["postgres://", "postgresql://"];
        schemes.iter().any(|scheme| url.expose().starts_with(scheme))
    };
    match found {
        Ok(Some(url)) if is_right(&url) => return url,
        Ok(Some(_)) => reader
            .problem(flag, "not a URL of the form postgres://user:password@host:port/database"),
        Ok(None) => reader.problem(flag, required),
        Err(Told) => {}
    }
    Secret::from("")
}

/// Returns the variable of a flag, such as PUNCTUAL_DATABASE_URL for `--database-url`.
pub(super) fn variable_of(flag: &str) -> String {
    format!("PUNCTUAL_{}", flag.trim_start_matches('-').to_uppercase().replace('-', "_"))
}
