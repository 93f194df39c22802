//! The packages of `scripts/dist`: complete, and a node starts from an empty root that has nothing
//! but them.

use std::path::Path;
use std::time::Duration;

use serde_json::{Value, json};
use tokio::process::Command;

use crate::support::{Cluster, Node, eventually};

const DEADLINE: Duration = Duration::from_secs(300);

/// Runs a command in a folder, to its successful end. Returns its output.
async fn run(folder: &Path, program: &str, arguments: &[&str]) -> String {
    let mut command = Command::new(program);
    command.args(arguments).current_dir(folder).kill_on_drop(true);
    let output = tokio::time::timeout(DEADLINE, command.output()).await.unwrap().unwrap();
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{program} {arguments:?}: {errors}");
    String::from_utf8(output.stdout).unwrap()
}

/// Returns the settings of an environment file, as systemd reads it.
fn settings(text: &str) -> Vec<(String, String)> {
    let lines = text.lines().filter(|line| !line.starts_with('#') && !line.is_empty());
    let setting =
        |line: &str| line.split_once('=').map(|(name, value)| (name.into(), value.into()));
    lines.map(|line| setting(line).unwrap()).collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_node_starts_from_an_empty_root_with_the_debian_package_alone() {
    let cluster = Cluster::start("dist").await;
    let topic = cluster.topic("orders").await;
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let binary =
        std::env::var("PUNCTUAL_BIN").unwrap_or_else(|_| env!("CARGO_BIN_EXE_punctual").to_owned());
    let made = cluster.folder().join("dist");
    run(root, "scripts/dist", &[&binary, made.to_str().unwrap()]).await;
    run(&made, "sha256sum", &["--check", "--strict", "SHA256SUMS"]).await;
    let parts = std::fs::read_to_string(made.join("sbom.cdx.json")).unwrap();
    let parts: Value = serde_json::from_str(&parts).unwrap();
    assert!(parts["components"].as_array().unwrap().iter().any(|part| part["name"] == "rdkafka"));

    let package = std::fs::read_dir(&made).unwrap().map(|file| file.unwrap().path());
    let package = package.filter(|path| path.extension().is_some_and(|end| end == "deb"));
    let package = package.collect::<Vec<_>>();
    let package = package[0].to_str().unwrap();
    run(&made, "dpkg-deb", &["--extract", package, "root"]).await;
    let installed = made.join("root");
    let unit = installed.join("usr/lib/systemd/system/punctual.service");
    let unit = std::fs::read_to_string(unit).unwrap();
    assert!(unit.contains("\nExecStart=/usr/bin/punctual serve\n"), "{unit}");
    assert!(unit.contains("\nEnvironmentFile=/etc/punctual/punctual.env\n"), "{unit}");
    for page in ["punctual.1.gz", "punctual-serve.1.gz"] {
        assert!(installed.join("usr/share/man/man1").join(page).exists(), "{page}");
    }
    let file = std::fs::read_to_string(installed.join("etc/punctual/punctual.env")).unwrap();
    let control = run(&made, "dpkg-deb", &["--field", package, "Depends"]).await;
    assert!(control.contains("libc6 (>= ") && control.contains("libssl3 (>= "), "{control}");

    // The settings of the package, with the servers of this test.
    let mut command = Command::new(installed.join("usr/bin/punctual"));
    command.arg("serve").kill_on_drop(true).envs(settings(&file));
    command.env("PUNCTUAL_DATABASE_URL", &cluster.database.url);
    command.env("PUNCTUAL_KAFKA", &cluster.stack.kafka).env("PUNCTUAL_CLUSTER", &cluster.name);
    let mut node = Node::spawn_command("installed", command, cluster.folder());
    node.wait_ready().await;
    let task = node.api().submit(&json!({ "topic": topic, "delay": "100ms", "payload": 1 })).await;
    eventually("the task is published", DEADLINE, async || {
        node.api().task(task.id).await.state == "published"
    })
    .await;
}
