//! The nodes: the release build of the program, each in its own process.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use tokio::process::{Child, Command};
use uuid::Uuid;

use crate::Failure;
use crate::servers::{Servers, setting};
use crate::wait::until;

const START_DEADLINE: Duration = Duration::from_secs(20);

pub struct Node {
    pub name: &'static str,
    pub base: String,
    pub pid: u32,
    /// The node's id in `/v1/cluster`.
    pub id: Uuid,
    child: Child,
}

/// Returns the command of the program, with the demo's settings only.
fn program(servers: &Servers) -> Result<Command, Failure> {
    let mut command = Command::new(setting("PUNCTUAL_BIN")?);
    for (name, _) in
        std::env::vars_os().filter(|(name, _)| name.to_string_lossy().starts_with("PUNCTUAL_"))
    {
        command.env_remove(name);
    }
    command.env("PUNCTUAL_DATABASE_URL", &servers.database_url).kill_on_drop(true);
    Ok(command)
}

/// Creates the schema. A horizon of two hours is enough for ten seconds, and its few leaves are
/// quick to create.
pub async fn migrate(servers: &Servers) -> Result<(), Failure> {
    let output = program(servers)?.args(["migrate", "--horizon", "2h"]).output().await?;
    if output.status.success() {
        return Ok(());
    }
    Err(format!("punctual migrate failed: {}", String::from_utf8_lossy(&output.stderr)).into())
}

impl Node {
    /// Starts a node with its log in `folder`, and waits until it is ready.
    pub async fn start(
        name: &'static str,
        servers: &Servers,
        http: &reqwest::Client,
        folder: &Path,
    ) -> Result<Self, Failure> {
        let log = folder.join(format!("{name}.log"));
        let mut command = program(servers)?;
        command.args([
            "serve",
            "--listen",
            "127.0.0.1:0",
            "--log-format",
            "json",
            "--node-name",
            name,
            "--cluster",
            &servers.name,
        ]);
        command.args(["--kafka", &servers.kafka, "--etcd", &servers.etcd]);
        let mut child = command.stdout(Stdio::null()).stderr(File::create(&log)?).spawn()?;
        let pid = child.id().ok_or("the node has ended at once")?;
        let address = until(&format!("{name} says where it listens"), START_DEADLINE, async || {
            match child.try_wait()? {
                Some(status) => {
                    Err(format!("{name} has ended ({status}); see {}", log.display()).into())
                }
                None => address_in(&log),
            }
        })
        .await?;
        let mut node =
            Self { name, base: format!("http://{address}"), pid, id: Uuid::nil(), child };
        until(&format!("{name} is ready; see {}", log.display()), START_DEADLINE, async || {
            let answer = http.get(format!("{}/readyz", node.base)).send().await?;
            Ok(answer.status().is_success().then_some(()))
        })
        .await?;
        let cluster = node.cluster(http).await?;
        node.id = cluster["node"]
            .as_str()
            .ok_or("/v1/cluster does not name the node that answers")?
            .parse()?;
        Ok(node)
    }

    /// Returns the cluster as the node sees it.
    async fn cluster(&self, http: &reqwest::Client) -> Result<Value, Failure> {
        let text = http
            .get(format!("{}/v1/cluster", self.base))
            .send()
            .await?
            .error_for_status()?
            .text()
            .await?;
        Ok(serde_json::from_str(&text)?)
    }

    /// Returns the shards of the node with the id, as seen by the asked node.
    pub async fn shards_of(&self, id: Uuid, http: &reqwest::Client) -> Result<Vec<u64>, Failure> {
        let cluster = self.cluster(http).await?;
        let nodes = cluster["nodes"].as_array().ok_or("/v1/cluster lists no nodes")?;
        let node = nodes.iter().find(|node| node["id"] == id.to_string());
        let shards = node.and_then(|node| node["shards"].as_array());
        Ok(shards.into_iter().flatten().filter_map(Value::as_u64).collect())
    }

    /// Freezes the process (`STOP`), resumes it (`CONT`), or tells it to drain (`TERM`).
    pub fn signal(&self, signal: Signal) -> Result<(), Failure> {
        let pid = i32::try_from(self.pid).ok().and_then(Pid::from_raw).ok_or("no process")?;
        kill_process(pid, signal)
            .map_err(|error| format!("send {signal:?} to {}: {error}", self.name).into())
    }

    /// Kills the process with SIGKILL.
    pub async fn kill(&mut self) -> Result<(), Failure> {
        Ok(self.child.kill().await?)
    }

    /// Drains the node, and waits until it has ended.
    pub async fn end(&mut self) -> Result<(), Failure> {
        self.signal(Signal::TERM)?;
        let status = tokio::time::timeout(START_DEADLINE, self.child.wait()).await??;
        if status.success() {
            Ok(())
        } else {
            Err(format!("{} did not end in good order: {status}", self.name).into())
        }
    }
}

fn address_in(log: &PathBuf) -> Result<Option<String>, Failure> {
    let log = std::fs::read_to_string(log)?;
    let lines = log.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
    let mut listening = lines.filter(|line| line["message"] == "listening");
    Ok(listening.find_map(|line| line["address"].as_str().map(str::to_owned)))
}
