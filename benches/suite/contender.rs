//! The contenders as processes: nodes, the poller, the floor.

use std::fs::File;
use std::net::SocketAddr;
use std::os::unix::fs::PermissionsExt as _;
use std::path::PathBuf;
use std::process::Stdio;
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use punctual::bench::cpu::{WatchedId, WatchedProcess};
use punctual::bench::scenarios::drain::Publishers;
use punctual::shutdown::TaskFailure;
use rustix::process::{Pid, Signal, kill_process};
use tokio::process::{Child, Command};

use crate::servers::{Place, Servers};

const READY_DEADLINE: Duration = Duration::from_secs(30);
const END_DEADLINE: Duration = Duration::from_secs(40);
const LOOK_EVERY: Duration = Duration::from_millis(20);

/// A way in beside REST.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Door {
    Outbox,
    Intake,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Who {
    /// Punctual with this number of nodes.
    Nodes(usize),
    /// One node with this `--precision`.
    Precise(&'static str),
    /// One worker that polls at this interval in milliseconds.
    Poller(u32),
    /// Four workers that poll at this interval in milliseconds.
    FourPollers(u32),
    /// Consumers of a topic and of its retry topic.
    RetryTopics,
    Floor,
    /// The floor with tasks loaded in due order. The validity of a run is judged by it.
    FloorInOrder,
}

impl Who {
    pub fn label(self) -> String {
        match self {
            Self::Nodes(1) => "punctual, 1 node".to_owned(),
            Self::Nodes(count) => format!("punctual, {count} nodes"),
            Self::Precise(precision) => format!("punctual, precision {precision}"),
            Self::Poller(every) => format!("poller, {every} ms"),
            Self::FourPollers(every) => format!("4 pollers, {every} ms"),
            Self::RetryTopics => "retry topics".to_owned(),
            Self::Floor => "floor".to_owned(),
            Self::FloorInOrder => "floor, loaded in due order".to_owned(),
        }
    }

    /// Returns the name for files.
    pub fn slug(self) -> String {
        self.label().replace(", ", "-").replace(' ', "-")
    }

    pub fn is_ours(self) -> bool {
        matches!(self, Self::Nodes(_) | Self::Precise(_))
    }
}

/// The running processes of a contender.
pub struct Running {
    who: Who,
    command: Vec<Vec<String>>,
    program: PathBuf,
    log: PathBuf,
    pid_files: Vec<PathBuf>,
    pub urls: Vec<String>,
    children: Vec<Child>,
    watched: Vec<WatchedProcess>,
}

impl Running {
    /// Prepares a contender in an empty database, without starting it. `cluster` holds the settings
    /// of the cluster, as `migrate` takes them, and `flags` those of its nodes, if the contender is
    /// Punctual.
    pub async fn prepare(
        servers: &Servers,
        place: &Place,
        who: Who,
        cluster: &[&str],
        flags: &[String],
    ) -> Result<Self, TaskFailure> {
        let mut urls = Vec::new();
        let (name, command) = match who {
            Who::Nodes(_) | Who::Precise(_) => {
                migrate(servers, place, cluster).await?;
                let count = if let Who::Nodes(count) = who { count } else { 1 };
                let mut commands = Vec::new();
                for _ in 0..count {
                    let listen = free_address().await?.to_string();
                    urls.push(format!("http://{listen}"));
                    let mut command = serve(servers, place, who, &listen);
                    command.extend_from_slice(flags);
                    commands.push(command);
                }
                ("punctual", commands)
            }
            Who::Poller(every) | Who::FourPollers(every) => {
                servers.run_in(place, include_str!("../poller/schema.sql")).await?;
                let workers = if matches!(who, Who::FourPollers(_)) { "4" } else { "1" };
                (
                    "poller",
                    vec![vec![
                        place.url.clone(),
                        servers.kafka.clone(),
                        every.to_string(),
                        workers.to_owned(),
                    ]],
                )
            }
            // They run for as long as they are measured: see `retry_topics`.
            Who::RetryTopics => ("retry topics", Vec::new()),
            Who::Floor | Who::FloorInOrder => {
                migrate(servers, place, cluster).await?;
                let from = punctual::bench::run::now().to_string();
                ("floor", vec![vec![place.url.clone(), servers.kafka.clone(), from]])
            }
        };
        let pid_files: Vec<PathBuf> = (0..command.len())
            .map(|number| servers.folder.join(format!("{}-{number}.pid", place.name)))
            .collect();
        let mut watched: Vec<WatchedProcess> = Vec::new();
        for (number, file) in pid_files.iter().enumerate() {
            let name =
                if command.len() > 1 { format!("{name} {}", number + 1) } else { name.to_owned() };
            watched.push(WatchedProcess { name, process: WatchedId::File(file.clone()) });
        }
        watched.extend(servers.pids.iter().map(|(name, pid)| WatchedProcess {
            name: (*name).to_owned(),
            process: WatchedId::Number(*pid),
        }));
        let log = servers.folder.join(format!("{}.log", place.name));
        let program = servers.program(name);
        Ok(Self { who, command, program, log, pid_files, urls, children: Vec::new(), watched })
    }

    pub fn watched(&self) -> &[WatchedProcess] {
        &self.watched
    }

    /// Returns the process ids in the form that `--pid` takes.
    pub fn pids(&self) -> Vec<String> {
        let shown = |process: &WatchedId| match process {
            WatchedId::Number(number) => number.to_string(),
            WatchedId::File(path) => path.display().to_string(),
        };
        self.watched
            .iter()
            .map(|watched| format!("{}={}", watched.name, shown(&watched.process)))
            .collect()
    }

    /// Starts the processes.
    pub fn spawn(&mut self) -> Result<(), TaskFailure> {
        for (command, pid_file) in self.command.iter().zip(&self.pid_files) {
            let log = File::options().create(true).append(true).open(&self.log)?;
            let mut process = Command::new(&self.program);
            for (name, _) in std::env::vars_os()
                .filter(|(name, _)| name.to_string_lossy().starts_with("PUNCTUAL_"))
            {
                process.env_remove(name);
            }
            let child = process
                .args(command)
                .stdin(Stdio::null())
                .stdout(log.try_clone()?)
                .stderr(log)
                .kill_on_drop(true)
                .spawn()?;
            std::fs::write(pid_file, child.id().unwrap_or_default().to_string())?;
            self.children.push(child);
        }
        Ok(())
    }

    /// Waits until the nodes are ready. Other contenders do not report readiness.
    pub async fn ready(&self) -> Result<(), TaskFailure> {
        let client = reqwest::Client::builder().no_proxy().build()?;
        for url in &self.urls {
            let ready = async {
                while !client
                    .get(format!("{url}/readyz"))
                    .send()
                    .await
                    .is_ok_and(|answer| answer.status().is_success())
                {
                    tokio::time::sleep(LOOK_EVERY).await;
                }
            };
            let log = self.log.display();
            tokio::time::timeout(READY_DEADLINE, ready)
                .await
                .map_err(|_elapsed| format!("the node at {url} is not ready, see {log}"))?;
        }
        Ok(())
    }

    /// Ends the processes. Nodes drain first.
    pub async fn end(&mut self) -> Result<(), TaskFailure> {
        // Some processes may have ended before.
        self.children.retain(|child| child.id().is_some());
        for child in &mut self.children {
            match child.id() {
                Some(pid) if self.who.is_ours() => signal(pid, Signal::TERM)?,
                _ => child.start_kill()?,
            }
        }
        for child in &mut self.children {
            tokio::time::timeout(END_DEADLINE, child.wait())
                .await
                .map_err(|_elapsed| "a process does not end")??;
        }
        self.children.clear();
        Ok(())
    }

    /// Kills one process with SIGKILL.
    pub async fn kill(&mut self, number: usize) -> Result<(), TaskFailure> {
        Ok(self.children.get_mut(number).ok_or("no such process")?.kill().await?)
    }

    pub fn signal(&self, number: usize, with: Signal) -> Result<(), TaskFailure> {
        let pid = self.children.get(number).and_then(Child::id).ok_or("no such process")?;
        signal(pid, with)
    }

    /// Sends SIGTERM to one process, and waits until it has ended.
    pub async fn terminate(&mut self, number: usize) -> Result<(), TaskFailure> {
        let child = self.children.get_mut(number).ok_or("no such process")?;
        signal(child.id().ok_or("it has ended already")?, Signal::TERM)?;
        child.wait().await?;
        Ok(())
    }
}

impl Publishers for Running {
    async fn stop(&mut self) -> Result<(), String> {
        self.end().await.map_err(|failure| failure.to_string())
    }

    async fn start(&mut self) -> Result<(), String> {
        self.spawn().map_err(|failure| failure.to_string())
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        for file in &self.pid_files {
            std::fs::remove_file(file).ok();
        }
    }
}

fn signal(pid: u32, signal: Signal) -> Result<(), TaskFailure> {
    let pid = i32::try_from(pid).ok().and_then(Pid::from_raw).ok_or("no process")?;
    kill_process(pid, signal).map_err(|error| format!("send {signal:?} to {pid:?}: {error}").into())
}

fn serve(servers: &Servers, place: &Place, who: Who, listen: &str) -> Vec<String> {
    let precision = if let Who::Precise(precision) = who { precision } else { "1ms" };
    [
        "serve",
        "--database-url",
        &place.url,
        "--kafka",
        &servers.kafka,
        "--etcd",
        &servers.etcd,
        "--cluster",
        &place.topic,
        "--listen",
        listen,
        "--node-name",
        listen,
        "--precision",
        precision,
    ]
    .map(str::to_owned)
    .to_vec()
}

/// Opens a way in for the nodes, and returns their flags for it.
pub async fn open_door(
    servers: &Servers,
    place: &Place,
    partitions: i32,
    door: Door,
) -> Result<Vec<String>, TaskFailure> {
    match door {
        Door::Outbox => {
            install_outbox(servers, place).await?;
            Ok(vec!["--outbox".to_owned(), format!("bench={}", place.shop_url)])
        }
        Door::Intake => {
            servers.topic(&place.intake(), partitions).await?;
            Ok(vec!["--intake-topic".to_owned(), place.intake()])
        }
    }
}

/// Returns the flags of nodes that may call a service at this address.
pub fn may_call(servers: &Servers, service: SocketAddr) -> Result<Vec<String>, TaskFailure> {
    let keys = servers.folder.join("callback.keys");
    std::fs::write(&keys, format!("{}\n", STANDARD.encode(rand::random::<[u8; 32]>())))?;
    std::fs::set_permissions(&keys, std::fs::Permissions::from_mode(0o600))?;
    let flags = [
        ("--callback-host", format!("http://{service}")),
        ("--callback-network", service.ip().to_string()),
        ("--callback-key-file", keys.display().to_string()),
    ];
    Ok(flags.into_iter().flat_map(|(flag, value)| [flag.to_owned(), value]).collect())
}

async fn migrate(servers: &Servers, place: &Place, cluster: &[&str]) -> Result<(), TaskFailure> {
    let words = [&["migrate", "--database-url", place.url.as_str()], cluster].concat();
    administer(servers, &words).await
}

async fn install_outbox(servers: &Servers, place: &Place) -> Result<(), TaskFailure> {
    servers.open_shop(place).await?;
    administer(servers, &["outbox", "install", "--database-url", &place.shop_url]).await
}

async fn administer(servers: &Servers, words: &[&str]) -> Result<(), TaskFailure> {
    let output = Command::new(servers.program("punctual")).args(words).output().await?;
    if output.status.success() {
        Ok(())
    } else {
        Err(format!("{}: {}", words[0], String::from_utf8_lossy(&output.stderr)).into())
    }
}

pub async fn free_address() -> Result<SocketAddr, TaskFailure> {
    Ok(tokio::net::TcpListener::bind("127.0.0.1:0").await?.local_addr()?)
}

/// Returns the command `punctual bench` against this contender's nodes.
pub fn bench(servers: &Servers, running: &Running, topic: &str) -> Command {
    let mut command = Command::new(servers.program("punctual"));
    command
        .args([
            "bench",
            "--topic",
            topic,
            "--kafka",
            &servers.kafka,
            "--url",
            &running.urls.join(","),
        ])
        .kill_on_drop(true);
    for pid in running.pids() {
        command.args(["--pid", &pid]);
    }
    command
}

/// Returns the arguments of a scenario, which follow the arguments common to all scenarios.
pub fn words(flags: &[(&str, &dyn std::fmt::Display)], scenario: &str) -> Vec<String> {
    let flags = flags.iter().flat_map(|(flag, value)| [(*flag).to_owned(), value.to_string()]);
    std::iter::once(scenario.to_owned()).chain(flags).collect()
}
