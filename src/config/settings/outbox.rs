//! The parsed settings of outboxes: those that a node drains, and the commands of `punctual
//! outbox`.

use crate::config::args::{Outbox, OutboxDatabase, OutboxWords, Outboxes};
use crate::config::host::{GivenSecret, Host, postgres_url};
use crate::config::reader::{SettingProblem, SettingsReader};
use crate::config::secret::Secret;

/// An outbox that a node drains.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct OutboxSettings {
    /// The name of a principal.
    pub name: String,
    pub database_url: Secret,
}

/// A command for the outbox of a database.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct OutboxCommand {
    pub database_url: Secret,
    /// True when the connection may be readable by others.
    pub postgres_plaintext: bool,
    pub action: OutboxAction,
}

#[derive(Clone, PartialEq, Eq, Debug)]
pub enum OutboxAction {
    Install { submitters: Vec<String>, drainers: Vec<String> },
    Check,
    Remove,
}

/// The most outboxes of a node. Each has connections of its own.
const OUTBOXES_MAX: usize = 32;
const NAME_BYTES_MAX: usize = 100;
const FLAG: &str = "--outbox";
const FILE_FLAG: &str = "--outbox-file";

/// Parses a command on `host`. Returns it, or all problems.
pub(in crate::config) fn read(
    args: &Outbox,
    host: &Host<'_>,
) -> Result<OutboxCommand, Vec<SettingProblem>> {
    let mut reader = SettingsReader::default();
    let (database, action) = match &args.command {
        OutboxWords::Install(install) => {
            let (submitters, drainers) = (install.submitters.clone(), install.drainers.clone());
            (&install.database, OutboxAction::Install { submitters, drainers })
        }
        OutboxWords::Check(database) => (database, OutboxAction::Check),
        OutboxWords::Remove(database) => (database, OutboxAction::Remove),
    };
    let database_url = database_url(database, host, &mut reader);
    let postgres_plaintext = reader.truth("--postgres-plaintext", &database.postgres_plaintext);
    reader.finish(OutboxCommand { database_url, postgres_plaintext, action })
}

fn database_url(args: &OutboxDatabase, host: &Host<'_>, reader: &mut SettingsReader) -> Secret {
    const FLAGS: [&str; 2] = ["--database-url", "--database-url-file"];
    // The variables of the same names are for the database of the nodes.
    let given = GivenSecret {
        flags: FLAGS,
        secret: args.database_url.as_ref(),
        path: args.database_url_file.as_deref(),
        have_variables: false,
    };
    let found = host.given(given, reader);
    let required = "required: the database of the application, or a file with its URL";
    postgres_url(FLAGS[0], found, required, reader)
}

/// Parses the outboxes of a node.
pub(in crate::config) fn outboxes(
    args: &Outboxes,
    host: &Host<'_>,
    reader: &mut SettingsReader,
) -> Vec<OutboxSettings> {
    let path = args.outbox_file.as_deref().filter(|path| !path.as_os_str().is_empty());
    let file = path.and_then(|path| host.read_secret(FILE_FLAG, path, reader));
    let lines = file.as_ref().map_or("", |text| text.expose()).lines().map(str::trim);
    let lines = lines.filter(|line| !line.is_empty() && !line.starts_with('#'));
    let given = args.outbox.iter().map(|given| (FLAG, given.expose().trim()));
    let mut outboxes: Vec<OutboxSettings> = Vec::new();
    for (flag, text) in given.chain(lines.map(|line| (FILE_FLAG, line))) {
        // A problem does not repeat the text, which may hold a password.
        let Some((name, url)) = text.split_once('=').filter(|(name, _)| is_name(name)) else {
            let text = "an outbox is not NAME=URL; a name has 1 to 100 of a-z A-Z 0-9 . _ @ / -; \
                        commas separate outboxes, so write a comma of a URL as %2C";
            reader.problem(flag, text);
            continue;
        };
        if !["postgres://", "postgresql://"].iter().any(|scheme| url.starts_with(scheme)) {
            let text = "not a URL of the form postgres://user:password@host:port/database";
            reader.problem(flag, format!("{name}: {text}"));
        }
        if outboxes.iter().any(|other| other.name == name) {
            reader.problem(flag, format!("{name}: the name is given twice"));
        }
        outboxes.push(OutboxSettings { name: name.to_owned(), database_url: Secret::from(url) });
    }
    if outboxes.len() > OUTBOXES_MAX {
        reader.problem(FLAG, format!("a node drains {OUTBOXES_MAX} outboxes at most"));
    }
    outboxes
}

fn is_name(name: &str) -> bool {
    let is_legal = |byte: u8| byte.is_ascii_alphanumeric() || b"._@/-".contains(&byte);
    (1..=NAME_BYTES_MAX).contains(&name.len()) && name.bytes().all(is_legal) && name != "anonymous"
}

#[cfg(test)]
mod tests {
    use std::io;
    use std::path::{Path, PathBuf};

    use super::*;

    fn check(url: Option<&str>, path: Option<&str>) -> Result<String, Vec<String>> {
        let read_file = |_path: &Path| io::Result::Ok("mysql://me:hunter2@db/shop\n".to_owned());
        let host = Host { name: "h".to_owned(), variables: Vec::new(), read_file: &read_file };
        let database = OutboxDatabase {
            database_url: url.map(Secret::from),
            database_url_file: path.map(PathBuf::from),
            postgres_plaintext: String::new(),
        };
        let command = OutboxWords::Check(database);
        let command = read(&Outbox { command }, &host);
        command
            .map(|command| command.database_url.expose().to_owned())
            .map_err(|problems| problems.iter().map(ToString::to_string).collect())
    }

    #[test]
    fn a_command_takes_urls_of_postgres_only() {
        for url in ["postgres://app@db/shop", "postgresql://app@db/shop"] {
            assert_eq!(check(Some(url), None), Ok(url.to_owned()));
        }
        for (url, path) in
            [(Some("mysql://me:hunter2@db/shop"), None), (Some("db"), None), (None, Some("url"))]
        {
            let problems = check(url, path).unwrap_err();
            assert_eq!(
                problems,
                ["--database-url: not a URL of the form \
                  postgres://user:password@host:port/database"]
            );
        }
        let problems = check(None, None).unwrap_err();
        assert!(problems[0].starts_with("--database-url: required: the database"), "{problems:?}");
    }

    #[test]
    fn a_url_that_is_given_twice_is_told_without_variables() {
        let problems = check(Some("postgres://db/shop"), Some("url")).unwrap_err();
        assert_eq!(
            problems,
            ["--database-url: given twice: as --database-url and as --database-url-file; leave \
              one out"]
        );
    }
}
