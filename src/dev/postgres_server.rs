//! A Postgres of the dev server's own: finds its programs, makes its folder, and starts the
//! supervisor.

use std::ffi::OsStr;
use std::fs::{self, File, TryLockError};
use std::io;
use std::os::unix::fs::{DirBuilderExt as _, chown};
use std::path::{Path, PathBuf};
use std::process::{ExitStatus, Stdio};
use std::time::Duration;

use tokio::io::AsyncReadExt as _;
use tokio::process::{Child, ChildStdin, ChildStdout, Command};

use crate::shutdown::TaskFailure;

const VERSION_MIN: u32 = 15;
/// Where Debian installs the programs, one folder per version.
const DEBIAN: &str = "/usr/lib/postgresql";
/// The file that marks the folder of a dev server.
const MARK: &str = "punctual-dev";
/// The longest path of a folder with a socket. The kernel allows 107 bytes, and the name of the
/// socket takes 15.
const FOLDER_BYTES_MAX: usize = 92;
/// How long the supervisor may take to end Postgres.
const STOP_DEADLINE: Duration = Duration::from_secs(20);
/// The most that is read of the supervisor's last words.
const WORDS_MAX: u64 = 4096;
/// The name of Postgres's user and of its database.
pub const USER: &str = "postgres";
/// The port in the name of its socket. It listens nowhere else.
pub const PORT: u16 = 5432;

/// A running Postgres, with its supervisor.
#[derive(Debug)]
pub struct PostgresServer {
    folder: PathBuf,
    supervisor: Child,
    /// The supervisor ends when this is closed.
    leash: Option<ChildStdin>,
    words: ChildStdout,
    /// Keeps other dev servers away from the folder of `--data`.
    _lock: Option<File>,
}

impl PostgresServer {
    /// Starts a server with its data in `folder`, or in a temporary one. `path` has the folders in
    /// which programs are found.
    ///
    /// # Errors
    /// When there is no Postgres, or its folder cannot be used.
    pub async fn start(path: &OsStr, folder: Option<&Path>) -> Result<Self, TaskFailure> {
        let programs = find_programs(path, folder.and_then(version_of_data)).await?;
        let runs_as =
            if rustix::process::geteuid().is_root() { Some(unprivileged()?) } else { None };
        let (folder, lock) = match folder {
            Some(folder) => prepare_folder(folder).map(|(folder, lock)| (folder, Some(lock)))?,
            None => (make_temporary_folder()?, None),
        };
        if let Some((user, group)) = runs_as {
            chown(&folder, Some(user), Some(group)).map_err(|error| {
                format!("give {} to Postgres's user: {error}", folder.display())
            })?;
        }
        let mut command = Command::new(std::env::current_exe()?);
        command.arg("dev-postgres").arg("--programs").arg(&programs).arg("--folder").arg(&folder);
        if lock.is_none() {
            command.arg("--temporary");
        }
        if let Some((user, group)) = runs_as {
            command.args(["--user", &user.to_string(), "--group", &group.to_string()]);
        }
        // A group of its own: Ctrl-C goes to the dev server alone, which needs Postgres to drain.
        command.process_group(0).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut supervisor = command
            .spawn()
            .map_err(|error| format!("start the supervisor of Postgres: {error}"))?;
        let (Some(leash), Some(words)) = (supervisor.stdin.take(), supervisor.stdout.take()) else {
            return Err("the supervisor of Postgres has no pipes".into());
        };
        Ok(Self { folder, supervisor, leash: Some(leash), words, _lock: lock })
    }

    /// Returns the URL of the database, by way of a Unix socket.
    pub fn url(&self) -> String {
        let folder = self.folder.display().to_string();
        let encoded: String = folder
            .bytes()
            .map(|byte| match byte {
                b'/' | b'-' | b'_' | b'.' => char::from(byte).to_string(),
                byte if byte.is_ascii_alphanumeric() => char::from(byte).to_string(),
                byte => format!("%{byte:02X}"),
            })
            .collect();
        // Variables of the environment, such as PGSSLMODE, would decide about missing parameters.
        format!("postgres:///{USER}?host={encoded}&port={PORT}&user={USER}&sslmode=disable")
    }

    /// Waits until the server ends by itself, and returns the reason.
    pub async fn ended(&mut self) -> String {
        let mut words = String::new();
        let read = (&mut self.words).take(WORDS_MAX).read_to_string(&mut words).await;
        let status = self.supervisor.wait().await;
        match (read, status) {
            (Ok(_), Ok(_)) if !words.trim().is_empty() => words.trim().to_owned(),
            (_, status) => format!("Postgres has ended ({})", told(status)),
        }
    }

    /// Ends the server. A temporary folder is removed.
    ///
    /// # Errors
    /// When that takes too long.
    pub async fn stop(mut self) -> Result<(), TaskFailure> {
        drop(self.leash.take());
        match tokio::time::timeout(STOP_DEADLINE, self.supervisor.wait()).await {
            Ok(Ok(_status)) => Ok(()),
            Ok(Err(error)) => Err(format!("wait for the end of Postgres: {error}").into()),
            Err(_elapsed) => Err(format!(
                "Postgres has not ended within {STOP_DEADLINE:?}; its folder is {}",
                self.folder.display()
            )
            .into()),
        }
    }
}

fn told(status: io::Result<ExitStatus>) -> String {
    status.map_or_else(|error| error.to_string(), |status| status.to_string())
}

/// Returns the folder with the programs of Postgres: from `path`, or where Debian installs them.
/// Data of an older run needs its own version.
async fn find_programs(path: &OsStr, wanted: Option<u32>) -> Result<PathBuf, TaskFailure> {
    let mut debian: Vec<(u32, PathBuf)> = fs::read_dir(DEBIAN)
        .into_iter()
        .flatten()
        .flatten()
        .filter_map(|entry| {
            let version = entry.file_name().to_str()?.parse().ok()?;
            Some((version, entry.path().join("bin")))
        })
        .collect();
    debian.sort_unstable();
    let newest_first = debian.into_iter().rev().map(|(_, folder)| folder);
    let mut found = Vec::new();
    for folder in std::env::split_paths(path).chain(newest_first) {
        // The programs look for each other beside themselves, not beside a link to them.
        let Ok(program) = folder.join("initdb").canonicalize() else { continue };
        let Some(folder) = program.parent() else { continue };
        if !folder.join("postgres").is_file() {
            continue;
        }
        let Some(version) = version_of(&folder.join("postgres")).await else { continue };
        if version >= VERSION_MIN && wanted.is_none_or(|wanted| wanted == version) {
            return Ok(folder.to_owned());
        }
        found.push(format!("{version} in {}", folder.display()));
    }
    let found = if found.is_empty() { "none".to_owned() } else { found.join(", ") };
    Err(match wanted {
        Some(wanted) => format!("the data in --data needs Postgres {wanted} (found: {found})"),
        None => format!(
            "dev needs the programs of Postgres {VERSION_MIN} or later, initdb and postgres, in \
             PATH or {DEBIAN} (found: {found}); on Debian: sudo apt-get install -y \
             --no-install-recommends postgresql. Or use a running one: --database-url"
        ),
    }
    .into())
}

/// Returns the major version that `postgres --version` tells.
async fn version_of(program: &Path) -> Option<u32> {
    let output = Command::new(program).arg("--version").stdin(Stdio::null()).output().await.ok()?;
    major_of(&String::from_utf8_lossy(&output.stdout))
}

/// Returns 15 for `postgres (PostgreSQL) 15.18 (Debian ..)`.
fn major_of(told: &str) -> Option<u32> {
    let (_, rest) = told.split_once("(PostgreSQL) ")?;
    let digits: String = rest.chars().take_while(char::is_ascii_digit).collect();
    digits.parse().ok()
}

fn version_of_data(folder: &Path) -> Option<u32> {
    fs::read_to_string(folder.join("data/PG_VERSION")).ok()?.trim().parse().ok()
}

/// Returns a user without privileges, with its group: Postgres refuses to run as root.
fn unprivileged() -> Result<(u32, u32), TaskFailure> {
    let users = fs::read_to_string("/etc/passwd")?;
    let found = [USER, "nobody"].iter().find_map(|name| user_of(&users, name));
    Ok(found
        .ok_or("Postgres refuses to run as root, and there is no user `postgres` or `nobody`")?)
}

fn user_of(users: &str, name: &str) -> Option<(u32, u32)> {
    let fields = |line: &str| -> Option<(u32, u32)> {
        let mut fields = line.split(':');
        let is_it = fields.next()? == name;
        let (user, group) = (fields.nth(1)?.parse().ok()?, fields.next()?.parse().ok()?);
        is_it.then_some((user, group))
    };
    users.lines().find_map(fields)
}

fn make_temporary_folder() -> Result<PathBuf, TaskFailure> {
    let name = format!("punctual-dev-{:08x}", rand::random::<u32>());
    let folder = std::env::temp_dir().join(name);
    make(&folder)?;
    check_length(&folder)?;
    Ok(folder)
}

/// Makes the folder of `--data`, or checks an existing one for the mark of a dev server. Returns
/// path and lock.
fn prepare_folder(folder: &Path) -> Result<(PathBuf, File), TaskFailure> {
    if !folder.exists() {
        make(folder)?;
    }
    let is_empty = fs::read_dir(folder)
        .map_err(|error| format!("--data: read {}: {error}", folder.display()))?
        .next()
        .is_none();
    let mark = folder.join(MARK);
    if is_empty {
        fs::write(&mark, "The data of a `punctual dev --data`.\n")
            .map_err(|error| format!("--data: write {}: {error}", mark.display()))?;
    } else if !mark.is_file() {
        return Err(format!(
            "--data: {} is not empty, and was not made by `punctual dev`; give a new folder",
            folder.display()
        )
        .into());
    }
    let lock =
        File::open(&mark).map_err(|error| format!("--data: open {}: {error}", mark.display()))?;
    lock.try_lock().map_err(|error| match error {
        TryLockError::WouldBlock => {
            format!("--data: another `punctual dev` uses {}; end it first", folder.display())
        }
        TryLockError::Error(error) => format!("--data: lock {}: {error}", mark.display()),
    })?;
    let folder = folder.canonicalize()?;
    check_length(&folder)?;
    Ok((folder, lock))
}

fn make(folder: &Path) -> Result<(), TaskFailure> {
    let made = fs::DirBuilder::new().mode(0o700).create(folder);
    Ok(made.map_err(|error| format!("make the folder {}: {error}", folder.display()))?)
}

fn check_length(folder: &Path) -> Result<(), TaskFailure> {
    if folder.as_os_str().len() <= FOLDER_BYTES_MAX {
        return Ok(());
    }
    Err(format!(
        "the path {} is too long for a socket; its limit is {FOLDER_BYTES_MAX} bytes",
        folder.display()
    )
    .into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_and_users_are_read() {
        assert_eq!(major_of("postgres (PostgreSQL) 15.18 (Debian 15.18-0)"), Some(15));
        assert_eq!(major_of("postgres (PostgreSQL) 18beta1\n"), Some(18));
        assert_eq!(major_of("sh: not found"), None);
        let users = "root:x:0:0:root:/root:/bin/sh\nnobody:x:65534:65533:nobody:/:/bin/false\nbad";
        assert_eq!(user_of(users, "nobody"), Some((65534, 65533)));
        assert_eq!(user_of(users, "postgres"), None);
    }

    #[tokio::test]
    async fn without_postgres_the_error_says_how_to_get_it() {
        let told = find_programs(OsStr::new("/no/such/folder"), Some(9)).await.unwrap_err();
        assert!(told.to_string().contains("needs Postgres 9"), "{told}");
    }

    #[test]
    fn a_folder_of_somebody_else_is_refused() {
        let folder = make_temporary_folder().unwrap();
        let (prepared, lock) = prepare_folder(&folder.join("new")).unwrap();
        assert!(prepared.join(MARK).is_file());
        let told = prepare_folder(&prepared).unwrap_err().to_string();
        assert!(told.contains("another `punctual dev`"), "{told}");
        drop(lock);
        assert_eq!(prepare_folder(&prepared).unwrap().0, prepared);
        let told = prepare_folder(&folder).unwrap_err().to_string();
        assert!(told.contains("was not made by `punctual dev`"), "{told}");
        fs::remove_dir_all(&folder).unwrap();
    }
}
