//! Common HTTP clients read an early answer, whatever the size of their body, and continue with the
//! next request.

use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use tokio::io::AsyncWriteExt as _;
use tokio::process::Command;

use crate::support::{Cluster, Node};

/// A Java client and a Go client are compiled first, beside other tests.
const DEADLINE: Duration = Duration::from_secs(180);

const SIZES: [usize; 3] = [1 << 10, 300 << 10, 40 << 20];

/// The requests, and the status for each size. The body is blanks.
const ASKED: [(&str, &str, [u16; 3]); 4] = [
    ("/v1/tasks", "text/plain", [415, 415, 415]),
    ("/v1/tasks", "application/json", [400, 400, 413]),
    ("/v1/none", "application/json", [404, 404, 404]),
    ("/v1/cluster", "application/json", [405, 405, 405]),
];

fn file(name: &str) -> String {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/clients").join(name).display().to_string()
}

fn cases() -> impl Iterator<Item = (String, u16)> {
    ASKED.into_iter().flat_map(|(path, kind, statuses)| {
        SIZES
            .into_iter()
            .zip(statuses)
            .map(move |(size, status)| (format!("{path} {kind} {size}"), status))
    })
}

/// Runs a program that prints a line for each case and each of its `names`.
async fn check(node: &Node, mut command: Command, names: &[&str]) {
    command
        .arg(node.api().base())
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .kill_on_drop(true);
    let mut child = command.spawn().unwrap_or_else(|error| panic!("{command:?}: {error}"));
    let lines: String = cases().map(|(case, _)| format!("{case}\n")).collect();
    child.stdin.take().unwrap().write_all(lines.as_bytes()).await.unwrap();
    let output = tokio::time::timeout(DEADLINE, child.wait_with_output())
        .await
        .unwrap_or_else(|_| panic!("{command:?} did not end"));
    let output = output.unwrap();
    assert!(output.status.success(), "{command:?}: {}", String::from_utf8_lossy(&output.stderr));
    let mut said: Vec<String> =
        String::from_utf8(output.stdout).unwrap().lines().map(str::to_owned).collect();
    let mut wanted: Vec<String> = cases()
        .flat_map(|(case, status)| {
            names.iter().map(move |name| format!("{name} {case} {status} 200"))
        })
        .collect();
    said.sort();
    wanted.sort();
    assert_eq!(said, wanted);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn early_answers_are_read_by_python() {
    let cluster = Cluster::start("early-python").await;
    let node = cluster.node().await;
    // The environment of schemathesis, which has requests in another version.
    let python: PathBuf =
        Path::new(env!("CARGO_MANIFEST_DIR")).join(".stack/schemathesis/bin/python");
    assert!(python.exists(), "{} is not there: run scripts/schemathesis", python.display());
    let mut command = Command::new(python);
    command.arg(file("clients.py"));
    check(&node, command, &["http.client", "requests", "requests,chunked"]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn early_answers_are_read_by_java() {
    let cluster = Cluster::start("early-java").await;
    let node = cluster.node().await;
    let mut command = Command::new("java");
    command.arg("-Xmx512m").arg(file("Clients.java"));
    check(&node, command, &["HttpClient", "HttpClient,usual", "HttpClient,chunked"]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn early_answers_are_read_by_go() {
    let cluster = Cluster::start("early-go").await;
    let node = cluster.node().await;
    let mut command = Command::new("go");
    command.arg("run").arg(file("clients.go"));
    check(&node, command, &["net/http", "net/http,chunked"]).await;
}

/// HTTP/1.1 with and without the question whether the body is wanted, in chunks, and HTTP/2.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn early_answers_are_read_by_curl() {
    let cluster = Cluster::start("early-curl").await;
    let node = cluster.node().await;
    let base = node.api().base();
    for (case, status) in cases() {
        let [path, kind, size] = case.split(' ').collect::<Vec<_>>().try_into().unwrap();
        let body = cluster.folder().join(format!("blanks-{size}"));
        tokio::fs::write(&body, " ".repeat(size.parse().unwrap())).await.unwrap();
        for more in [
            &[][..],
            &["-H", "Expect:"],
            &["-H", "Transfer-Encoding: chunked"],
            &["--http2-prior-knowledge"],
        ] {
            let mut command = Command::new("curl");
            command
                .args([
                    "--silent",
                    "--show-error",
                    "--max-time",
                    "60",
                    "-o",
                    "/dev/null",
                    "-w",
                    "%{http_code} ",
                ])
                .args(more);
            command.args([
                "-H",
                &format!("content-type: {kind}"),
                "--data-binary",
                &format!("@{}", body.display()),
            ]);
            command.arg(format!("{base}{path}")).args([
                "--next",
                "--silent",
                "-o",
                "/dev/null",
                "-w",
                "%{http_code}",
            ]);
            let output =
                command.arg(format!("{base}/livez")).stdin(Stdio::null()).output().await.unwrap();
            let said = String::from_utf8_lossy(&output.stdout);
            let complaint = String::from_utf8_lossy(&output.stderr);
            assert!(
                output.status.success() && said == format!("{status} 200"),
                "{case} {more:?}: {said} {complaint}"
            );
        }
    }
}
