//! The packages of `scripts/dist`: they are complete, and a node starts in a new root that has the
//! Debian package and its dependencies alone.

use std::path::{Path, PathBuf};
use std::time::Duration;

use serde_json::{Value, json};
use tokio::process::Command;

use crate::support::node::binary;
use crate::support::proxy::{Proxy, Target};
use crate::support::{Cluster, Node, eventually};

/// A debug build is packed, beside other tests.
const DEADLINE: Duration = Duration::from_secs(300);

/// Runs a command in a folder to its successful end. Returns its output.
async fn run(folder: &Path, words: &[&str]) -> String {
    let mut command = Command::new(words[0]);
    command.args(&words[1..]).current_dir(folder).kill_on_drop(true);
    // A release is compressed better, and more slowly.
    command.env("DPKG_DEB_COMPRESSOR_TYPE", "gzip").env("DPKG_DEB_COMPRESSOR_LEVEL", "1");
    let output = tokio::time::timeout(DEADLINE, command.output()).await.unwrap().unwrap();
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{words:?}: {errors}");
    String::from_utf8(output.stdout).unwrap()
}

/// Returns the words before a command that root must run. In a user namespace, every user is root.
async fn as_root() -> Vec<String> {
    let is_root = run(Path::new("/"), &["id", "--user"]).await.trim() == "0";
    let words: &[&str] = if is_root { &[] } else { &["unshare", "--map-root-user"] };
    words.iter().map(|word| (*word).to_owned()).collect()
}

/// Runs a command as root.
async fn run_as_root(folder: &Path, words: &[&str]) -> String {
    let before = as_root().await;
    let words: Vec<&str> = before.iter().map(String::as_str).chain(words.iter().copied()).collect();
    run(folder, &words).await
}

/// Returns the only file in a folder whose name ends like this.
fn file(folder: &Path, end: &str) -> PathBuf {
    let mut found = std::fs::read_dir(folder).unwrap().map(|file| file.unwrap().path());
    found.find(|path| path.to_str().unwrap().ends_with(end)).unwrap()
}

/// Returns the settings of an environment file, as systemd reads it.
fn settings(path: &Path) -> Vec<(String, String)> {
    let text = std::fs::read_to_string(path).unwrap();
    let lines = text.lines().filter(|line| !line.starts_with('#') && !line.is_empty());
    let setting =
        |line: &str| line.split_once('=').map(|(name, value)| (name.into(), value.into()));
    lines.map(|line| setting(line).unwrap()).collect()
}

fn has_all(made: &Path, root: &Path) {
    let parts = std::fs::read_to_string(made.join("sbom.cdx.json")).unwrap();
    let parts: Value = serde_json::from_str(&parts).unwrap();
    assert!(parts["components"].as_array().unwrap().iter().any(|part| part["name"] == "rdkafka"));
    let notices = std::fs::read_to_string(made.join("THIRD-PARTY-NOTICES.txt")).unwrap();
    assert!(notices.contains("rdkafka "), "{notices}");
    for page in ["punctual.1.gz", "punctual-serve.1.gz", "punctual-token-new.1.gz"] {
        assert!(root.join("usr/share/man/man1").join(page).exists(), "{page}");
    }
    let unit = root.join("usr/lib/systemd/system/punctual.service");
    let unit = std::fs::read_to_string(unit).unwrap();
    for line in [
        "ExecStart=/usr/bin/punctual serve",
        "EnvironmentFile=/etc/punctual/punctual.env",
        "User=punctual",
    ] {
        assert!(unit.lines().any(|found| found == line), "{line}: {unit}");
    }
}

/// Returns a command for the installed program, run by its user.
async fn installed(root: &Path, subcommand: &str) -> Command {
    let before = as_root().await;
    let mut words: Vec<&str> = before.iter().map(String::as_str).collect();
    words.push("chroot");
    // A user namespace has no other users than root.
    if before.is_empty() {
        words.push("--userspec=punctual:punctual");
    }
    words.extend([root.to_str().unwrap(), "/usr/bin/punctual", subcommand]);
    let mut command = Command::new(words[0]);
    command.args(&words[1..]).kill_on_drop(true).env_clear();
    command.env("PATH", std::env::var_os("PATH").unwrap_or_default());
    command
}

/// Returns what `punctual dev` says in a root without Postgres.
async fn refusal_of_dev(root: &Path) -> String {
    let mut dev = installed(root, "dev").await;
    let output = tokio::time::timeout(DEADLINE, dev.args(["--port", "0"]).output());
    String::from_utf8(output.await.unwrap().unwrap().stderr).unwrap()
}

/// Starts a node with the settings of the package and the servers of the test.
async fn start_in(root: &Path, cluster: &Cluster, database_url: &str) -> Node {
    let mut command = installed(root, "serve").await;
    command.envs(settings(&root.join("etc/punctual/punctual.env")));
    command.env("PUNCTUAL_DATABASE_URL", database_url);
    command.env("PUNCTUAL_KAFKA", &cluster.stack.kafka).env("PUNCTUAL_CLUSTER", &cluster.name);
    let mut node = Node::spawn_command("installed", command, cluster.folder());
    node.wait_ready().await;
    node
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_node_starts_in_a_new_root_with_the_debian_package_alone() {
    let cluster = Cluster::start("dist").await;
    let topic = cluster.topic("orders").await;
    let source = Path::new(env!("CARGO_MANIFEST_DIR"));
    let made = cluster.folder().join("dist");
    run(source, &["scripts/dist", binary().to_str().unwrap(), made.to_str().unwrap()]).await;
    run(&made, &["sha256sum", "--check", "--strict", "SHA256SUMS"]).await;

    let package = file(&made, ".deb");
    let root = cluster.folder().join("root");
    let script = source.join("scripts/debian-root");
    let words = [&script, &package, &root].map(|path| path.to_str().unwrap());
    run_as_root(&made, &words).await;
    has_all(&made, &root);
    let mut proxy = Proxy::closed(Target::postgres(&cluster.stack)).await;
    proxy.open().await;
    let database_url = cluster.database.url_by(proxy.address());
    let mut node = start_in(&root, &cluster, &database_url).await;
    let task = node.api().submit(&json!({ "topic": topic, "delay": "100ms", "payload": 1 })).await;
    eventually("the task is published", DEADLINE, async || {
        node.api().task(task.id).await.state == "published"
    })
    .await;
    node.kill().await;
    let told = refusal_of_dev(&root).await;
    assert!(told.contains("apt-get install -y --no-install-recommends postgresql"), "{told}");

    let root_flag = format!("--root={}", root.display());
    run_as_root(&made, &["dpkg", &root_flag, "--purge", "punctual"]).await;
    for rest in ["usr/bin/punctual", "etc/punctual", "usr/lib/systemd/system/punctual.service"] {
        assert!(!root.join(rest).exists(), "{rest} is left");
    }

    run(&made, &["tar", "--extract", "--file", file(&made, ".tar.gz").to_str().unwrap()]).await;
    let mut entries = std::fs::read_dir(&made).unwrap().map(|entry| entry.unwrap().path());
    let unpacked = entries.find(|path| path.is_dir()).unwrap();
    let version = run(&unpacked, &["bin/punctual", "--version"]).await;
    assert!(version.contains(env!("CARGO_PKG_VERSION")), "{version}");
}
