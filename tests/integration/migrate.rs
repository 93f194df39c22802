//! The code on the pages docs/how-to/migrate.md and test-your-code.md runs as it is shown, against
//! dev servers. A copy that is repeated adds no second task.

use std::path::Path;
use std::process::Stdio;
use std::time::Duration;

use rdkafka::ClientConfig;
use rdkafka::producer::{FutureProducer, FutureRecord};
use serde_json::{Value, json};
use tokio::process::Command;

use crate::support::dev_server::DevServer;
use crate::support::node::binary;
use crate::support::{eventually, now_ms, page};

/// Programs in Python and shells start, beside other tests.
const DEADLINE: Duration = Duration::from_secs(60);
const MIGRATE: &str = "docs/how-to/migrate.md";
const MINUTE_MS: i64 = 60_000;
const HOUR_MS: i64 = 60 * MINUTE_MS;

/// The names that the pages take for granted.
const PYTHON: &str = "
import json, os
from datetime import datetime, timedelta, timezone
from punctual import Client
client = Client(os.environ['PUNCTUAL_URL'])
";

/// Runs a command to its successful end.
async fn run(mut command: Command) {
    command.stdin(Stdio::null()).kill_on_drop(true);
    let output = tokio::time::timeout(DEADLINE, command.output()).await.unwrap().unwrap();
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{command:?}: {errors}");
}

fn python(code: &str) -> Command {
    let program = Path::new(env!("CARGO_MANIFEST_DIR")).join(".stack/examples/python/bin/python");
    assert!(program.exists(), "{} is not built: run scripts/examples", program.display());
    let mut command = Command::new(program);
    command.arg("-c").arg(code).env("PUNCTUAL_BIN", binary());
    command
}

/// Returns a command for a shell in a folder, which finds the program.
fn shell(code: &str, folder: &Path) -> Command {
    let path = std::env::var("PATH").unwrap();
    let mut command = Command::new("bash");
    command.args(["-euo", "pipefail", "-c", code]).current_dir(folder);
    command.env("PATH", format!("{}:{path}", binary().parent().unwrap().display()));
    command
}

/// A temporary folder, which is removed when dropped.
struct Folder(std::path::PathBuf);

impl Folder {
    fn new() -> Self {
        let path = std::env::temp_dir().join(format!("migrate-{:08x}", rand::random::<u32>()));
        std::fs::create_dir(&path).unwrap();
        Self(path)
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        if let Err(error) = std::fs::remove_dir_all(&self.0) {
            eprintln!("{} is left behind: {error}", self.0.display());
        }
    }
}

async fn dev() -> DevServer {
    let topics = ["--topic", "orders:4", "--topic", "orders-retry-5m"];
    DevServer::start(&[&["--kafka-port", "0"][..], &topics].concat()).await
}

fn millis_of(time: &Value) -> i64 {
    time.as_str().unwrap().parse::<jiff::Timestamp>().unwrap().as_millisecond()
}

/// Returns the name, key, due time in milliseconds and payload of each pending task.
async fn pending(dev: &DevServer) -> Vec<(String, Value, i64, Value)> {
    let list = dev.api.get("/v1/tasks?topic=orders").await.json();
    let mut tasks = Vec::new();
    for listed in list["tasks"].as_array().unwrap() {
        let path = format!("/v1/tasks/{}", listed["id"].as_str().unwrap());
        let task = dev.api.get(&path).await.json();
        let name = task["name"].as_str().unwrap().to_owned();
        let due_at = millis_of(&task["due_at"]);
        tasks.push((name, task["key"].clone(), due_at, task["payload"].clone()));
    }
    tasks
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn pending_rows_of_a_poller_are_copied_once() {
    let (dev, folder) = (dev().await, Folder::new());
    let shop = dev.database_url.replace("/postgres?", "/shop?");
    let due_at = now_ms() + HOUR_MS;
    let make = format!(
        "psql '{}' -qc 'create database shop'
        psql '{shop}' -q <<'END'
        create table reminder (id bigint primary key, order_id bigint, status text,
          due_at timestamptz, payload jsonb);
        insert into reminder select n, 17, case n when 3 then 'done' else 'pending' end,
          to_timestamp({due_at} / 1000.0) + n * interval '1 hour', '{{\"remind\": \"O''Hara\\n\"}}'
          from generate_series(1, 3) n
END",
        dev.database_url
    );
    run(shell(&make, &folder.0)).await;
    let code = page::block(MIGRATE, "code: poller");
    for _ in 0..2 {
        let mut copy = shell(&code, &folder.0);
        copy.env("SHOP", &shop).env("PUNCTUAL_URL", dev.api.base());
        run(copy).await;
        let task = |n: i64| {
            let payload = json!({ "remind": "O'Hara\n" });
            (format!("reminder-{n}"), json!("17"), due_at + n * HOUR_MS, payload)
        };
        assert_eq!(pending(&dev).await, [task(1), task(2)]);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn members_of_a_sorted_set_are_copied_once() {
    let (dev, folder) = (dev().await, Folder::new());
    let socket = folder.0.join("redis.sock");
    let mut redis = Command::new("redis-server");
    redis.args(["--port", "0", "--save", "", "--unixsocket"]).arg(&socket).current_dir(&folder.0);
    let mut redis = redis.stdout(Stdio::null()).kill_on_drop(true).spawn().unwrap();
    eventually("Redis listens", DEADLINE, async || socket.exists()).await;
    let due_at = now_ms() / 1000 * 1000 + HOUR_MS;
    let fill = format!(
        "for n in 1 2 3; do
          redis-cli -s redis.sock zadd delayed $(({} + n)) \"{{\\\"id\\\": $n}}\"
        done",
        due_at / 1000
    );
    run(shell(&fill, &folder.0)).await;
    let before = format!(
        "{PYTHON}from redis import Redis\nredis = Redis(unix_socket_path=os.environ['REDIS'])\n"
    );
    let code = page::block(MIGRATE, "code: redis");
    for _ in 0..2 {
        let mut copy = python(&format!("{before}{code}"));
        copy.env("PUNCTUAL_URL", dev.api.base()).env("REDIS", &socket);
        run(copy).await;
        let task =
            |n: i64| (format!("reminder-{n}"), Value::Null, due_at + n * 1000, json!({ "id": n }));
        assert_eq!(pending(&dev).await, [task(1), task(2), task(3)]);
    }
    redis.kill().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_publisher_of_the_delayed_exchange_submits_once() {
    let dev = dev().await;
    let code = page::block(MIGRATE, "code: rabbitmq");
    let call = "publish_later(client, {'id': 17}, 3_600_000)\n";
    let mut publish = python(&format!("{PYTHON}{code}{call}{call}"));
    publish.env("PUNCTUAL_URL", dev.api.base());
    let began_at = now_ms();
    run(publish).await;
    let tasks = pending(&dev).await;
    let [(name, _, due_at, payload)] = &tasks[..] else { panic!("{tasks:?}") };
    assert_eq!((name.as_str(), payload), ("reminder-17", &json!({ "id": 17 })));
    assert!((began_at + HOUR_MS..=now_ms() + HOUR_MS).contains(due_at), "{tasks:?}");
}

/// A consumer that ends after a number of records, so that the test need not wait for more.
const SOME: &str = "
from confluent_kafka import Consumer
class Some(Consumer):
    left = 3
    def poll(self, _):
        record = None
        while self.left > 0 and record is None:
            record = super().poll(1)
        self.left -= 1
        return record
consumer = Some({'bootstrap.servers': os.environ['KAFKA'], 'group.id': os.environ['GROUP'],
    'auto.offset.reset': 'earliest', 'enable.auto.commit': False})
consumer.subscribe(['orders-retry-5m'])
";

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn records_of_a_retry_topic_are_forwarded_once() {
    let dev = dev().await;
    let producer: FutureProducer =
        ClientConfig::new().set("bootstrap.servers", &dev.kafka).create().unwrap();
    // A record of a retry topic need not have a key.
    let key = |n: usize| (n < 2).then(|| format!("order-{n}"));
    for n in 0..3 {
        let (key, payload) = (key(n), json!({ "id": n }).to_string());
        let record = FutureRecord::to("orders-retry-5m").payload(&payload);
        let record = FutureRecord { key: key.as_ref(), ..record };
        producer.send(record, DEADLINE).await.unwrap();
    }
    let records = dev.published("orders-retry-5m").await;
    let appended_ats: Vec<i64> =
        records.iter().map(|record| millis_of(&record["timestamp"])).collect();
    let code = page::block(MIGRATE, "code: retry-topic");
    // The second group has not seen the records yet.
    for group in ["first", "second"] {
        let mut forward = python(&format!("{PYTHON}{SOME}{code}"));
        forward.env("PUNCTUAL_URL", dev.api.base());
        forward.env("KAFKA", &dev.kafka).env("GROUP", group);
        run(forward).await;
        let task = |n: usize| {
            let (name, key) = (format!("orders-retry-5m-0-{n}"), key(n));
            (name, json!(key), appended_ats[n] + 5 * MINUTE_MS, json!({ "id": n }))
        };
        assert_eq!(pending(&dev).await, [task(0), task(1), task(2)]);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_test_on_the_page_about_tests_passes() {
    let code = page::block("docs/how-to/test-your-code.md", "code: test");
    run(python(&format!("{code}\ntest_an_unpaid_order_is_cancelled()\n"))).await;
}
