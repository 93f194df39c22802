//! The nodes, each with a supervisor that restarts an ended node, as a service manager does.

use std::path::PathBuf;
use std::sync::{Arc, RwLock};
use std::time::Duration;

use tokio::sync::Mutex;

use crate::support::node::program_of;
use crate::support::{Node, now_ms, wait};

const LOOK_EVERY_MS: i64 = 50;

/// The start settings of a node.
#[derive(Clone, Debug)]
pub struct Settings {
    pub number: u8,
    pub program: PathBuf,
    pub arguments: Vec<String>,
    pub variables: Vec<(String, String)>,
    pub logs: PathBuf,
}

/// A place for a node: one process after another.
#[derive(Debug)]
pub struct Slot {
    settings: Settings,
    life: Mutex<Life>,
    /// The address of the node's API, while known.
    address: RwLock<Option<String>>,
}

#[derive(Debug, Default)]
struct Life {
    node: Option<Node>,
    count: usize,
    /// False between a kill and its restart.
    is_wanted: bool,
    /// Exits of nodes that the runner did not cause.
    ended_by_themselves: Vec<String>,
}

impl Slot {
    /// Starts a node, and restarts it whenever it ends.
    pub fn start(settings: Settings) -> Arc<Self> {
        let life = Life { is_wanted: true, ..Life::default() };
        let slot = Arc::new(Self { settings, life: Mutex::new(life), address: RwLock::default() });
        let watched = Arc::downgrade(&slot);
        tokio::spawn(async move {
            while let Some(slot) = watched.upgrade() {
                slot.look().await;
                drop(slot);
                wait::until(now_ms() + LOOK_EVERY_MS).await;
            }
        });
        slot
    }

    async fn look(&self) {
        let mut life = self.life.lock().await;
        if !life.is_wanted {
            return;
        }
        if let Some(node) = &mut life.node
            && let Some(status) = node.has_ended()
        {
            let what = format!("{} ended by itself ({status}):\n{}", node.name, node.log_tail());
            eprintln!("{what}");
            life.ended_by_themselves.push(what);
            life.node = None;
            self.show(None);
        }
        if life.node.is_none() {
            life.count += 1;
            let Settings { number, program, arguments, variables, logs } = &self.settings;
            let mut command = program_of(program, &["serve"]);
            command.args(arguments).envs(variables.iter().cloned());
            let name = format!("node-{number}.{}", life.count);
            life.node = Some(Node::spawn_command(&name, command, logs));
        }
        if self.address().is_none() {
            self.show(life.node.as_ref().and_then(Node::address));
        }
    }

    fn show(&self, address: Option<String>) {
        *self.address.write().unwrap() = address;
    }

    pub fn number(&self) -> u8 {
        self.settings.number
    }

    /// Returns the address of its API, or `None` while it starts or is dead.
    pub fn address(&self) -> Option<String> {
        self.address.read().unwrap().clone()
    }

    /// Kills the node with SIGKILL. It stays down.
    pub async fn kill(&self) {
        let mut life = self.life.lock().await;
        life.is_wanted = false;
        self.show(None);
        if let Some(mut node) = life.node.take() {
            node.kill().await;
        }
    }

    /// Shuts the node down gracefully. It stays down.
    pub async fn end(&self, deadline: Duration) {
        let mut life = self.life.lock().await;
        life.is_wanted = false;
        self.show(None);
        if let Some(mut node) = life.node.take() {
            node.terminate();
            node.wait_exit(deadline).await;
        }
    }

    pub async fn start_again(&self) {
        self.life.lock().await.is_wanted = true;
    }

    pub async fn freeze(&self) {
        if let Some(node) = &self.life.lock().await.node {
            node.freeze();
        }
    }

    pub async fn thaw(&self) {
        if let Some(node) = &self.life.lock().await.node {
            node.thaw();
        }
    }

    pub async fn ended_by_themselves(&self) -> Vec<String> {
        self.life.lock().await.ended_by_themselves.clone()
    }

    pub async fn is_ready(&self, http: &reqwest::Client) -> bool {
        let Some(address) = self.address() else { return false };
        http.get(format!("http://{address}/readyz"))
            .send()
            .await
            .is_ok_and(|answer| answer.status() == 200)
    }
}
