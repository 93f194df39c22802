//! A dev server: `punctual dev`, with everything of its own.

use std::path::PathBuf;
use std::process::{ExitStatus, Stdio};
use std::time::Duration;

use serde_json::Value;
use tokio::io::{AsyncBufReadExt as _, BufReader};
use tokio::process::{Child, Command};

use super::api::Api;
use super::node::program;

/// A debug build beside other tests makes a database and starts.
const START_DEADLINE: Duration = Duration::from_secs(60);
const END_DEADLINE: Duration = Duration::from_secs(20);

/// A running dev server, which is killed when dropped.
#[derive(Debug)]
pub struct DevServer {
    pub child: Child,
    pub api: Api,
    pub kafka: String,
    pub database_url: String,
}

/// Returns a command for a dev server on free ports.
pub fn command(arguments: &[&str]) -> Command {
    let mut command = program(&["dev", "--port", "0", "--json"]);
    command.args(arguments).stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

impl DevServer {
    /// Starts with `arguments`, and waits until it is ready.
    pub async fn start(arguments: &[&str]) -> Self {
        Self::spawn(command(arguments)).await
    }

    /// As [`Self::start`], with a command from [`command`].
    pub async fn spawn(mut command: Command) -> Self {
        let mut child = command.spawn().unwrap();
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let line = tokio::time::timeout(START_DEADLINE, lines.next_line()).await;
        let line = line.expect("dev starts in time").unwrap();
        let Some(line) = line else {
            let output = child.wait_with_output().await.unwrap();
            panic!("dev has ended: {}", String::from_utf8_lossy(&output.stderr));
        };
        let told: Value = serde_json::from_str(&line).unwrap();
        let text = |name: &str| told[name].as_str().unwrap_or_default().to_owned();
        Self {
            child,
            api: Api::new(text("url")),
            kafka: text("kafka"),
            database_url: text("database_url"),
        }
    }

    /// Starts with everything of its own, on free ports.
    pub async fn own() -> Self {
        Self::start(&["--kafka-port", "0", "--topic", "demo:4", "--topic", "one"]).await
    }

    /// Returns the folder of its Postgres.
    pub fn folder(&self) -> PathBuf {
        let (_, rest) = self.database_url.split_once("host=").unwrap();
        PathBuf::from(rest.split('&').next().unwrap())
    }

    pub fn signal(&self, signal: &str) {
        let pid = self.child.id().unwrap().to_string();
        let status = std::process::Command::new("kill").args(["-s", signal, &pid]).status();
        assert!(status.unwrap().success());
    }

    /// Waits for the end of the process.
    pub async fn exit(&mut self) -> ExitStatus {
        tokio::time::timeout(END_DEADLINE, self.child.wait())
            .await
            .expect("dev ends in time")
            .unwrap()
    }

    /// Changes the clock, and returns its new state.
    pub async fn clock(&self, change: Value) -> Value {
        let answer = self.api.post("/dev/clock", change.to_string()).await;
        assert_eq!(answer.status, 200, "{}", answer.text);
        answer.json()
    }

    /// Returns the records of a topic.
    pub async fn published(&self, topic: &str) -> Vec<Value> {
        let answer = self.api.get(&format!("/dev/published?topic={topic}")).await;
        assert_eq!(answer.status, 200, "{}", answer.text);
        answer.json()["records"].as_array().unwrap().clone()
    }
}
