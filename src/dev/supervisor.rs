//! The supervisor: a process that runs Postgres for as long as a dev server lives.
//!
//! The supervisor's standard input is a pipe from the dev server. The pipe closes with the dev
//! server, even after a kill. The supervisor then ends Postgres and removes a temporary folder. A
//! process group of its own keeps Ctrl-C in a terminal away from Postgres.

use std::fs::{self, File};
use std::io::{self, Write as _};
use std::path::Path;
use std::process::Stdio;
use std::thread;
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};
use tokio::process::{Child, Command};
use tokio::sync::oneshot;

use super::postgres_server::{PORT, USER};
use crate::config::SupervisorSettings;
use crate::error_chain::chain;
use crate::shutdown::TaskFailure;
use crate::signals::{EndSignal, Signals};

/// How long Postgres may take to stop, before it is killed.
const STOP_DEADLINE: Duration = Duration::from_secs(15);
/// Lines of a log that a message repeats.
const LINES_MAX: usize = 5;

/// Runs Postgres until standard input ends. A failure is told on standard output, to the dev
/// server.
///
/// # Errors
/// When a temporary folder cannot be removed.
pub async fn supervise_postgres(settings: SupervisorSettings) -> Result<(), TaskFailure> {
    let kept = supervise(&settings).await;
    if let Err(failure) = &kept {
        // The dev server may be gone already.
        writeln!(io::stdout(), "{}", chain(failure.as_ref())).ok();
    }
    if settings.is_temporary {
        fs::remove_dir_all(&settings.folder)
            .map_err(|error| format!("remove {}: {error}", settings.folder.display()))?;
    }
    Ok(())
}

async fn supervise(settings: &SupervisorSettings) -> Result<(), TaskFailure> {
    // The supervisor of a dev server that was killed may still be stopping its Postgres. That takes
    // STOP_DEADLINE at most.
    let path = settings.folder.join("supervisor.lock");
    let _lock = File::create(&path)
        .and_then(|file| file.lock().map(|()| file))
        .map_err(|error| format!("lock {}: {error}", path.display()))?;
    supervise_alone(settings).await
}

async fn supervise_alone(settings: &SupervisorSettings) -> Result<(), TaskFailure> {
    let data = settings.folder.join("data");
    if !data.join("PG_VERSION").is_file() {
        initialise(settings, &data).await?;
    }
    let log = settings.folder.join("postgres.log");
    let mut postgres = program(settings, "postgres")
        .arg("-D")
        .arg(&data)
        .args(["-c", "listen_addresses=", "-c", "max_connections=50", "-c", "shared_buffers=64MB"])
        // There is no password, and a folder of --data may be open to others.
        .args(["-c", "unix_socket_permissions=0700"])
        .args(["-c", &format!("port={PORT}")])
        .arg("-c")
        .arg(format!("unix_socket_directories={}", settings.folder.display()))
        .stdout(File::create(&log)?)
        .stderr(File::options().append(true).open(&log)?)
        .spawn()
        .map_err(|error| not_started(settings, "postgres", &error))?;
    let mut signals = Signals::listen(&[EndSignal::Hangup, EndSignal::Terminate])?;
    let leash = leash()?;
    tokio::select! {
        ended = postgres.wait() => {
            return Err(format!("Postgres has ended ({}): {}", ended?, end_of(&log)).into());
        }
        // The sender is gone, too, when standard input has ended.
        _ended = leash => {}
        _ = signals.next() => {}
    }
    stop(&mut postgres, settings.is_temporary).await
}

/// Waits for the end of standard input in a thread: a read of tokio's would keep the process alive
/// after Postgres has ended by itself.
fn leash() -> io::Result<oneshot::Receiver<()>> {
    let (sender, ended) = oneshot::channel();
    let wait = move || {
        // The pipe is never written to. An unreadable one is as good as its end.
        io::copy(&mut io::stdin(), &mut io::sink()).ok();
        drop(sender);
    };
    thread::Builder::new().name("leash".to_owned()).spawn(wait)?;
    Ok(ended)
}

async fn initialise(settings: &SupervisorSettings, data: &Path) -> Result<(), TaskFailure> {
    let output = program(settings, "initdb")
        .arg("-D")
        .arg(data)
        .args(["--no-sync", "--no-instructions", "--no-locale", "--encoding=UTF8"])
        // The folder is open to one user only.
        .args(["--auth=trust", "--username", USER])
        .output()
        .await
        .map_err(|error| not_started(settings, "initdb", &error))?;
    if output.status.success() {
        return Ok(());
    }
    let text = String::from_utf8_lossy(&output.stderr);
    Err(format!("initdb failed ({}): {}", output.status, last_lines(&text)).into())
}

/// Returns a command for a program of Postgres.
fn program(settings: &SupervisorSettings, name: &str) -> Command {
    let mut command = Command::new(settings.programs.join(name));
    command.current_dir(&settings.folder).stdin(Stdio::null());
    for of_other_servers in ["PGDATA", "PGOPTIONS", "PGPORT"] {
        command.env_remove(of_other_servers);
    }
    if let Some((user, group)) = settings.runs_as {
        command.uid(user).gid(group);
    }
    command
}

fn not_started(settings: &SupervisorSettings, name: &str, error: &io::Error) -> String {
    match settings.runs_as {
        Some((user, _)) if error.kind() == io::ErrorKind::PermissionDenied => format!(
            "start {name}: Postgres refuses to run as root, and the user {user} may not enter {}; \
             give --data (or TMPDIR) a folder that is not in a private one such as /root",
            settings.folder.display()
        ),
        _ => format!("start {name}: {error}"),
    }
}

/// Stops Postgres. Data that is to be removed needs no checkpoint.
async fn stop(postgres: &mut Child, is_at_once: bool) -> Result<(), TaskFailure> {
    let signal = if is_at_once { Signal::QUIT } else { Signal::INT };
    let pid = postgres.id().and_then(|pid| Pid::from_raw(pid.try_into().ok()?));
    if let Some(pid) = pid {
        kill_process(pid, signal)?;
    }
    if tokio::time::timeout(STOP_DEADLINE, postgres.wait()).await.is_err() {
        postgres.kill().await?;
    }
    Ok(())
}

fn end_of(log: &Path) -> String {
    last_lines(&fs::read_to_string(log).unwrap_or_default())
}

fn last_lines(text: &str) -> String {
    let lines: Vec<&str> = text.lines().filter(|line| !line.trim().is_empty()).collect();
    lines[lines.len().saturating_sub(LINES_MAX)..].join(" / ")
}
