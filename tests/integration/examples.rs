//! The programs in examples/, one set per language, print the output shown on their page.

use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use rdkafka::ClientConfig;
use rdkafka::message::{Header, OwnedHeaders};
use rdkafka::producer::{FutureProducer, FutureRecord};
use serde_json::json;
use tokio::process::Command;

use crate::outbox::Shop;
use crate::support::api::Task;
use crate::support::proxy::{Proxy, Target};
use crate::support::{Cluster, Node, Record, eventually, now_ms, page};

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
    outbox: Vec<String>,
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
        outbox: program("outbox.py"),
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
    Programs {
        submit: program("Submit"),
        consume: program("Consume"),
        finish: program("Finish"),
        outbox: program("Outbox"),
    }
}

fn go() -> Programs {
    let program = |name: &str| vec![built(&format!("go/{name}"))];
    Programs {
        submit: program("submit"),
        consume: program("consume"),
        finish: program("finish"),
        outbox: program("outbox"),
    }
}

fn built(path: &str) -> String {
    let path: PathBuf = root().join(".stack/examples").join(path);
    assert!(path.exists(), "{} is not built: run scripts/examples", path.display());
    path.display().to_string()
}

/// An example program that writes to the topic.
fn command(topic: &str, program: &[String]) -> Command {
    let mut command = Command::new(&program[0]);
    command.args(&program[1..]).env("TOPIC", topic).stdin(Stdio::null()).kill_on_drop(true);
    command
}

/// Runs a program to its successful end. Returns the output.
async fn run(command: &mut Command) -> String {
    let ended = tokio::time::timeout(DEADLINE, command.output()).await;
    let output = ended.unwrap_or_else(|_| panic!("{command:?} did not end")).unwrap();
    assert!(output.status.success(), "{command:?}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

/// Runs an example program with a node and Kafka. Returns the output.
async fn output(
    cluster: &Cluster,
    node: &Node,
    topic: &str,
    program: &[String],
    arguments: &[&str],
) -> String {
    let mut command = command(topic, program);
    command
        .args(arguments)
        .env("PUNCTUAL_URL", node.api().base())
        .env("KAFKA", &cluster.stack.kafka)
        .env("GROUP", topic);
    run(&mut command).await
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

/// Runs an outbox program as a role that may only submit. `url` makes its database URL from the
/// role, its password, and the address with the name of the database.
async fn submits_all_tasks_of_a_transaction_or_none(
    program: &[String],
    url: impl Fn(&str, &str, &str) -> String,
) {
    let cluster = Cluster::start("examples-outbox").await;
    let topic = cluster.topic("orders").await;
    let mut shop = Shop::open(&cluster.stack).await;
    let role = shop.database.name.replace("test", "role");
    shop.run(&format!(
        "create table public.orders (id integer primary key);
         create role {role} login password 'secret';
         grant insert on public.orders to {role};"
    ))
    .await;
    shop.install(&["--submitter", &role]).await;
    // Java has no way to a socket in the file system.
    let mut proxy = Proxy::closed(Target::postgres(&cluster.stack)).await;
    proxy.open().await;
    let place = format!("{}/{}", proxy.address(), shop.database.name);
    let node = cluster.node_with(&["--outbox", &shop.flag()]).await;
    let began_at = now_ms();
    let url = url(&role, "secret", &place);
    let said = run(command(&topic, program).env("DATABASE_URL", url)).await;
    assert_eq!(said, page::block("examples/README.md", "output: outbox"));
    shop.wait_empty().await;
    assert_eq!(shop.count("select sum(id) from orders").await, 17 + 18);
    assert_eq!(shop.count("select count(*) from punctual.outbox_rejected").await, 0);
    let path = format!("/v1/topics/{topic}/tasks/remind-17");
    let task = Task::new(node.api().look(&path).await.json());
    assert_eq!(task.shown["key"], "order-17");
    assert_eq!(task.shown["payload"], json!({ "remind": 17 }));
    let due_after_s = (task.due_at - began_at) / 1_000;
    assert!((1_800..1_800 + 180).contains(&due_after_s), "{due_after_s} s");
    let cancelled = "select count(*) from execlog_cancelled where name = 'remind-18'";
    let rolled_back = "select count(*) from task_name where name = 'remind-19'";
    let counts = [cancelled, rolled_back].map(|query| cluster.count(query));
    assert_eq!(futures_util::future::join_all(counts).await, [1, 0]);
    shop.run(&format!("drop owned by {role}; drop role {role}")).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_transaction_of_sqlalchemy_submits_all_of_its_tasks_or_none() {
    submits_all_tasks_of_a_transaction_or_none(&python().outbox, |role, password, place| {
        format!("postgresql+psycopg://{role}:{password}@{place}")
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_transaction_of_hibernate_submits_all_of_its_tasks_or_none() {
    submits_all_tasks_of_a_transaction_or_none(&java().outbox, |role, password, place| {
        format!("jdbc:postgresql://{place}?user={role}&password={password}")
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_transaction_of_gos_database_sql_submits_all_of_its_tasks_or_none() {
    submits_all_tasks_of_a_transaction_or_none(&go().outbox, |role, password, place| {
        format!("postgres://{role}:{password}@{place}")
    })
    .await;
}
