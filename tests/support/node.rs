//! A node: the real program in a separate process.

use std::collections::HashMap;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::{ExitStatus, Stdio};
use std::time::Duration;

use serde_json::Value;
use tokio::process::{Child, Command};
use uuid::Uuid;

use super::api::Api;
use super::wait::{eventually, eventually_some};

/// A debug build beside other tests starts within a second, but a node that takes over waits for
/// heartbeats to age.
const START_DEADLINE: Duration = Duration::from_secs(120);
/// The number of log lines that a failing test shows for each node.
const LOG_TAIL_LINES: usize = 60;

/// A running node, which is killed when dropped.
#[derive(Debug)]
pub struct Node {
    pub name: String,
    child: Child,
    pub pid: u32,
    log: PathBuf,
    api: Option<Api>,
}

/// Resets these signals. Tests in the background, or without a terminal, were told to ignore them.
const DEFAULT_SIGNALS: &str = "--default-signal=HUP,INT";

/// Returns a command for the program with arguments, and without the settings of the test runner's
/// shell. The program is `PUNCTUAL_BIN`, or else the one built by cargo for this test.
pub fn program(arguments: &[&str]) -> Command {
    program_of(&binary(), arguments)
}

/// As [`program`], for the program of another build.
pub fn program_of(binary: &Path, arguments: &[&str]) -> Command {
    program_with(&[DEFAULT_SIGNALS], binary, arguments)
}

/// Returns the path of the program.
pub fn binary() -> PathBuf {
    std::env::var_os("PUNCTUAL_BIN").unwrap_or_else(|| env!("CARGO_BIN_EXE_punctual").into()).into()
}

/// As [`program`], with signals set by flags of `env`.
fn program_with(signals: &[&str], binary: &Path, arguments: &[&str]) -> Command {
    let mut command = Command::new("env");
    command.args(signals).arg(binary);
    for (name, _) in
        std::env::vars_os().filter(|(name, _)| name.to_string_lossy().starts_with("PUNCTUAL_"))
    {
        command.env_remove(name);
    }
    command.args(arguments).stdin(Stdio::null()).kill_on_drop(true);
    command
}

impl Node {
    /// Starts `punctual serve` with `arguments` and its log in `folder`. Does not wait until it is
    /// up.
    pub fn spawn(name: &str, arguments: &[&str], folder: &Path) -> Self {
        Self::spawn_with(name, arguments, &[], folder)
    }

    /// As [`Self::spawn`], with a parent that makes it ignore some signals.
    pub fn spawn_ignoring(name: &str, signals: &str, arguments: &[&str], folder: &Path) -> Self {
        let signals = [DEFAULT_SIGNALS, &format!("--ignore-signal={signals}")];
        let mut command = program_with(&signals, &binary(), &["serve"]);
        command.args(arguments);
        Self::spawn_command(name, command, folder)
    }

    /// As [`Self::spawn`], with environment variables.
    pub fn spawn_with(
        name: &str,
        arguments: &[&str],
        variables: &[(&str, &str)],
        folder: &Path,
    ) -> Self {
        let mut command = program(&["serve"]);
        command.args(arguments).envs(variables.iter().copied());
        Self::spawn_command(name, command, folder)
    }

    /// Starts a node with another program, or with other settings.
    pub fn spawn_command(name: &str, mut command: Command, folder: &Path) -> Self {
        let log = folder.join(format!("{name}.log"));
        let file = File::create(&log).unwrap();
        command.args(["--node-name", name, "--listen", "127.0.0.1:0", "--log-format", "json"]);
        let child = command.stdout(Stdio::null()).stderr(file).spawn().unwrap();
        let pid = child.id().unwrap();
        Self { name: name.to_owned(), child, pid, log, api: None }
    }

    /// Waits until the node reports its address. It may not be ready yet.
    pub async fn wait_listening(&mut self) {
        let address = self.wait_address().await;
        self.api = Some(Api::new(format!("http://{address}")));
    }

    /// As [`Self::wait_listening`], for a node with TLS whose certificate is of the authority `ca`,
    /// in PEM.
    pub async fn wait_listening_securely(&mut self, ca: &str) {
        let address = self.wait_address().await;
        self.api = Some(Api::secure(format!("https://{address}"), ca));
    }

    async fn wait_address(&mut self) -> String {
        let what = format!("node {} says where it listens", self.name);
        let address = eventually_some(&what, START_DEADLINE, async || {
            let ended = self.child.try_wait().unwrap();
            let address = self.address();
            assert!(
                ended.is_none() || address.is_some(),
                "node {} ended at its start ({ended:?}):\n{}",
                self.name,
                self.log_tail()
            );
            address
        });
        address.await
    }

    pub async fn wait_ready(&mut self) {
        if self.api.is_none() {
            self.wait_listening().await;
        }
        let api = self.api().clone();
        eventually(&format!("node {} is ready", self.name), START_DEADLINE, async || {
            let ended = self.child.try_wait().unwrap();
            assert!(ended.is_none(), "node {} ended before it was ready ({ended:?})", self.name);
            api.is_ready().await
        })
        .await;
    }

    pub fn api(&self) -> &Api {
        self.api.as_ref().expect("the node was waited for")
    }

    /// Returns the id that the node has taken for this start.
    pub async fn id(&self) -> Uuid {
        self.api().cluster().await["node"]
            .as_str()
            .expect("/v1/cluster names the node that answers")
            .parse()
            .unwrap()
    }

    /// Returns the shards of each node, by id, as seen by the asked node.
    pub async fn assignment(&self) -> HashMap<Uuid, Vec<u64>> {
        let cluster = self.api().cluster().await;
        let shards = |node: &Value| {
            node["shards"].as_array().unwrap().iter().map(|shard| shard.as_u64().unwrap()).collect()
        };
        let nodes = cluster["nodes"].as_array().unwrap().iter();
        nodes.map(|node| (node["id"].as_str().unwrap().parse().unwrap(), shards(node))).collect()
    }

    /// Returns all metrics as text.
    pub async fn metrics(&self) -> String {
        let answer = self.api().get("/metrics").await;
        assert_eq!(answer.status, 200);
        answer.text
    }

    /// Kills the process with SIGKILL and waits until gone.
    pub async fn kill(&mut self) {
        self.child.kill().await.unwrap();
    }

    /// Asks the node to drain.
    pub fn terminate(&self) {
        self.signal("TERM");
    }

    /// Sends SIGHUP, as if its terminal were closed.
    pub fn hang_up(&self) {
        self.signal("HUP");
    }

    /// Stops the process with SIGSTOP: it exists, but does not run.
    pub fn freeze(&self) {
        self.signal("STOP");
    }

    pub fn thaw(&self) {
        self.signal("CONT");
    }

    /// Waits for the process to end by itself.
    pub async fn wait_exit(&mut self, deadline: Duration) -> ExitStatus {
        let ended = tokio::time::timeout(deadline, self.child.wait()).await;
        ended
            .unwrap_or_else(|_elapsed| panic!("node {} still runs after {deadline:?}", self.name))
            .unwrap()
    }

    pub fn has_ended(&mut self) -> Option<ExitStatus> {
        self.child.try_wait().unwrap()
    }

    pub fn log(&self) -> String {
        String::from_utf8_lossy(&std::fs::read(&self.log).unwrap_or_default()).into_owned()
    }

    /// Returns a figure of `/proc/<pid>/status` in bytes: `VmRSS` is the memory in use, `VmHWM` its
    /// peak.
    pub fn memory(&self, field: &str) -> u64 {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.pid)).unwrap();
        let line =
            status.lines().find_map(|line| line.strip_prefix(field)?.strip_prefix(':')).unwrap();
        line.trim().trim_end_matches(" kB").parse::<u64>().unwrap() * 1024
    }

    fn signal(&self, signal: &str) {
        let pid = self.pid.to_string();
        let status =
            std::process::Command::new("kill").args(["-s", signal, &pid]).status().unwrap();
        assert!(status.success(), "kill -s {signal} {pid} ({})", self.name);
    }

    /// Returns its address, once the node has reported it.
    pub fn address(&self) -> Option<String> {
        self.address_of("listening")
    }

    /// Returns the address of its operator port.
    pub fn operator_address(&self) -> Option<String> {
        self.address_of("listening on the operator port")
    }

    fn address_of(&self, message: &str) -> Option<String> {
        self.log().lines().find_map(|line| {
            let line: Value = serde_json::from_str(line).ok()?;
            (line["message"] == message).then(|| line["address"].as_str().map(str::to_owned))?
        })
    }

    /// Returns the end of its log.
    pub fn log_tail(&self) -> String {
        let log = self.log();
        let lines: Vec<&str> = log.lines().collect();
        lines[lines.len().saturating_sub(LOG_TAIL_LINES)..].join("\n")
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("--- node {}, the end of its log:\n{}\n---", self.name, self.log_tail());
        }
        // The runtime kills and reaps the process, also a frozen one.
        if let Err(error) = self.child.start_kill() {
            eprintln!("node {} (pid {}) was not killed: {error}", self.name, self.pid);
        }
    }
}
