//! Signals: those ignored by a node's parent, and commands as the first process of a container.

use std::process::{ExitStatus, Stdio};
use std::time::Duration;

use tokio::io::AsyncReadExt as _;
use tokio::net::TcpListener;
use tokio::process::{Child, Command};

use crate::support::eventually_some;
use crate::support::node::{Node, program};

const DEADLINE: Duration = Duration::from_secs(60);

fn send(signal: &str, pid: u32) {
    let status =
        std::process::Command::new("kill").args(["-s", signal, &pid.to_string()]).status().unwrap();
    assert!(status.success(), "kill -s {signal} {pid}");
}

/// Returns the signals that a process ignores, and those with a handler.
fn signals_of(pid: u32) -> [u64; 2] {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    ["SigIgn:", "SigCgt:"].map(|name| {
        let mask = status.lines().find_map(|line| line.strip_prefix(name)).unwrap();
        u64::from_str_radix(mask.trim(), 16).unwrap()
    })
}

const HUP: u64 = 1;
const INT: u64 = 1 << 1;
const TERM: u64 = 1 << 14;

#[tokio::test(flavor = "multi_thread")]
async fn a_node_ignores_what_its_parent_had_it_ignore_and_nothing_else() {
    let folder = tempdir("ignored");
    // The node waits for a missing Postgres: signals count from the first moment on.
    let arguments = ["--database-url", "postgres://u@127.0.0.1:1/d", "--kafka", "127.0.0.1:1"];
    for (ignored, by_parent) in
        [(HUP | INT, "HUP,INT,TERM"), (HUP, "HUP"), (INT, "INT"), (0, "USR1")]
    {
        let mut node = Node::spawn_ignoring("node", by_parent, &arguments, &folder);
        node.wait_listening().await;
        let [ignores, catches] = signals_of(node.pid);
        assert_eq!(
            (ignores & (HUP | INT | TERM), catches & (HUP | INT | TERM)),
            (ignored, (HUP | INT | TERM) & !ignored),
            "{by_parent}"
        );
        node.hang_up();
        if ignored & HUP == HUP {
            assert_eq!(node.api().get("/livez").await.status, 200, "{by_parent}");
            node.terminate();
        }
        assert_eq!(node.wait_exit(DEADLINE).await.code(), Some(0), "{by_parent}");
    }
    std::fs::remove_dir_all(folder).unwrap();
}

fn tempdir(name: &str) -> std::path::PathBuf {
    let folder = std::path::PathBuf::from(env!("CARGO_TARGET_TMPDIR"))
        .join(format!("signals-{name}-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    folder
}

/// Runs a command as the first process of a container.
struct First {
    unshare: Child,
    /// As seen from here.
    pid: u32,
}

impl First {
    async fn start(arguments: &[&str]) -> Self {
        let command = program(arguments);
        let inner = command.as_std();
        let mut unshare = Command::new("unshare");
        if !rustix::process::geteuid().is_root() {
            unshare.args(["--user", "--map-root-user"]);
        }
        // The first process of a new namespace is the child.
        unshare
            .args(["--pid", "--fork", "--kill-child"])
            .arg(inner.get_program())
            .args(inner.get_args());
        for (name, value) in inner.get_envs() {
            match value {
                Some(value) => unshare.env(name, value),
                None => unshare.env_remove(name),
            };
        }
        let unshare = unshare
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .kill_on_drop(true)
            .spawn()
            .unwrap();
        let outer = unshare.id().unwrap();
        let children = format!("/proc/{outer}/task/{outer}/children");
        let pid = eventually_some("unshare has started the command", DEADLINE, async || {
            std::fs::read_to_string(&children).ok()?.trim().parse().ok()
        });
        Self { unshare, pid: pid.await }
    }

    async fn wait_exit(&mut self) -> ExitStatus {
        let ended = tokio::time::timeout(DEADLINE, self.unshare.wait()).await;
        ended.unwrap_or_else(|_elapsed| panic!("it still runs")).unwrap()
    }
}

/// A server that accepts connections and never answers, so callers wait.
async fn wait_for_a_question(listener: &TcpListener) -> tokio::net::TcpStream {
    let accepted =
        tokio::time::timeout(DEADLINE, listener.accept()).await.expect("the command connects");
    let (mut stream, _) = accepted.unwrap();
    stream.read_u8().await.unwrap();
    stream
}

#[tokio::test(flavor = "multi_thread")]
async fn every_command_can_be_interrupted_as_the_first_process_of_a_container() {
    const ID: &str = "01934b2e-7d3c-8017-9f2b-6a1c0e4d5b7f";
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let silent = listener.local_addr().unwrap();
    let (url, database) = (format!("http://{silent}"), format!("postgres://u@{silent}/d"));
    let submit = ["submit", "--topic", "t", "--delay", "1h", "--payload", "1"];
    for (signal, code, words) in [
        ("INT", 130, &["show", ID][..]),
        ("TERM", 143, &["show", ID]),
        ("HUP", 129, &["list"]),
        ("INT", 130, &["dead", "list"]),
        ("INT", 130, &["cancel", "--topic", "t", "--yes"]),
        ("TERM", 143, &submit),
        ("TERM", 143, &["migrate"]),
    ] {
        let place =
            if words[0] == "migrate" { ["--database-url", &database] } else { ["--url", &url] };
        let mut first = First::start(&[words, &place].concat()).await;
        let _waiting = wait_for_a_question(&listener).await;
        send(signal, first.pid);
        assert_eq!(first.wait_exit().await.code(), Some(code), "{signal}: {words:?}");
    }
}
