//! The submitters and consumers in examples/, one per language, print the output shown on their
//! page.

use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use rdkafka::ClientConfig;
use rdkafka::message::{Header, OwnedHeaders};
use rdkafka::producer::{FutureProducer, FutureRecord};
use serde_json::json;
use tokio::process::Command;

use crate::support::{Cluster, Node, Record, eventually, page};

/// A Java client needs seconds to start beside other tests, and the broker seconds to make up a new
/// consumer group.
const DEADLINE: Duration = Duration::from_secs(120);

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// One language's programs.
struct Programs {
    submit: Vec<String>,
    consume: Vec<String>,
    finish: Vec<String>,
}

fn python() -> Programs {
    let program = |file: &str| {
        vec![
            built("python/bin/python"),
            root().join(format!("examples/python/{file}")).display().to_string(),
        ]
    };
    Programs {
        submit: program("submit.py"),
        consume: program("consume.py"),
        finish: program("finish.py"),
    }
}

fn java() -> Programs {
    let target = root().join("examples/java/target").display().to_string();
    let program = |class: &str| {
        vec![
            "java".to_owned(),
            "-cp".to_owned(),
            format!("{target}/classes:{target}/lib/*"),
            class.to_owned(),
        ]
    };
    Programs { submit: program("Submit"), consume: program("Consume"), finish: program("Finish") }
}

fn go() -> Programs {
    let program = |name: &str| vec![built(&format!("go/{name}"))];
    Programs { submit: program("submit"), consume: program("consume"), finish: program("finish") }
}

fn built(path: &str) -> String {
    let path: PathBuf = root().join(".stack/examples").join(path);
    assert!(path.exists(), "{} is not built: run scripts/examples", path.display());
    path.display().to_string()
}

/// Runs an example program to its successful end. Returns the output.
async fn output(
    cluster: &Cluster,
    node: &Node,
    topic: &str,
    program: &[String],
    arguments: &[&str],
) -> String {
    let mut command = Command::new(&program[0]);
    command.args(&program[1..]).args(arguments).stdin(Stdio::null()).kill_on_drop(true);
    command
        .env("PUNCTUAL_URL", node.api().base())
        .env("KAFKA", &cluster.stack.kafka)
        .env("TOPIC", topic)
        .env("GROUP", topic);
    let output = tokio::time::timeout(DEADLINE, command.output())
        .await
        .unwrap_or_else(|_| panic!("{program:?} did not end"))
        .unwrap();
    assert!(output.status.success(), "{program:?}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

/// Writes the record once more, like a node that cannot know whether the first write succeeded.
async fn duplicate(cluster: &Cluster, topic: &str, record: &Record) {
    let producer: FutureProducer =
        ClientConfig::new().set("bootstrap.servers", &cluster.stack.kafka).create().unwrap();
    let headers = record.headers.iter().fold(OwnedHeaders::new(), |headers, (name, value)| {
        headers.insert(Header { key: name, value: value.as_deref() })
    });
    let copy = FutureRecord::to(topic)
        .partition(record.partition)
        .key(record.key.as_deref().unwrap())
        .payload(record.payload.as_deref().unwrap())
        .headers(headers);
    producer.send(copy, DEADLINE).await.unwrap();
}

async fn prints_what_its_page_says(language: &str, programs: Programs) {
    let cluster = Cluster::start(&format!("examples-{language}")).await;
    let topic = cluster.topic("orders").await;
    let node = cluster.node().await;
    let consumer = cluster.consumer(&topic);
    let documented = |mark| page::block("examples/README.md", mark);
    assert_eq!(
        output(&cluster, &node, &topic, &programs.submit, &[]).await,
        documented("output: submit")
    );
    let records = consumer.wait_count(1, DEADLINE).await;
    duplicate(&cluster, &topic, &records[0]).await;
    assert_eq!(
        output(&cluster, &node, &topic, &programs.consume, &["2"]).await,
        documented("output: consume")
    );
    let tracked = cluster.topic("tracked").await;
    let task = json!({
        "topic": tracked, "key": "order-19", "payload": { "cancel": 19 }, "delay": 0, "ttr": "30s",
        "retry": { "attempts_max": 5 }
    });
    let id = node.api().submit(&task).await.id;
    // A quicker consumer would be told that its failure is noted.
    eventually("the record is with the consumer", DEADLINE, async || {
        node.api().task(id).await.state == "awaiting"
    })
    .await;
    assert_eq!(
        output(&cluster, &node, &tracked, &programs.finish, &["2"]).await,
        documented("output: finish")
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_python_examples_print_what_their_page_says() {
    prints_what_its_page_says("python", python()).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_java_examples_print_what_their_page_says() {
    prints_what_its_page_says("java", java()).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_go_examples_print_what_their_page_says() {
    prints_what_its_page_says("go", go()).await;
}
