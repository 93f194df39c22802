//! `punctual dev`: one command with a Postgres and a broker of its own, and a clock that tests set.

use std::ops::Range;
use std::path::Path;
use std::process::Stdio;
use std::time::{Duration, Instant};

use rdkafka::ClientConfig;
use rdkafka::producer::{BaseProducer, Producer as _};
use reqwest::Method;
use serde_json::{Value, json};
use sqlx::postgres::PgConnectOptions;
use sqlx::{Connection as _, PgConnection};
use tokio::process::Command;

use crate::support::dev_server::{DevServer, command};
use crate::support::node::program;
use crate::support::{Cluster, Consumer, eventually};

const SOON: Duration = Duration::from_secs(20);
/// A client in Java needs seconds to start beside other tests.
const CLIENT_DEADLINE: Duration = Duration::from_secs(180);

/// Returns the processes that work in a folder or below it.
fn processes_in(folder: &Path) -> usize {
    let mut count = 0;
    for process in std::fs::read_dir("/proc").unwrap().flatten() {
        let place = std::fs::read_link(process.path().join("cwd")).unwrap_or_default();
        count += usize::from(place.to_string_lossy().contains(&*folder.to_string_lossy()));
    }
    count
}

fn millis_of(time: &Value) -> i64 {
    time.as_str().unwrap().parse::<jiff::Timestamp>().unwrap().as_millisecond()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_task_arrives_and_the_end_leaves_nothing_behind() {
    let mut dev = DevServer::own().await;
    let folder = dev.folder();
    assert!(folder.join("data/PG_VERSION").exists() && processes_in(&folder) > 0);
    let headers = json!({ "source": "test" });
    let task = json!({ "topic": "demo", "delay": "300ms", "key": "k", "payload": { "a": 1 },
        "headers": headers });
    let submitted = dev.api.submit(&task).await;
    let consumer = Consumer::start(&dev.kafka, "demo", 4);
    let records = consumer.wait_count(1, SOON).await;
    assert_eq!(records[0].task_id().to_string(), submitted.id.to_string());
    let published = dev.published("demo").await;
    assert_eq!(published.len(), 1);
    assert_eq!((&published[0]["key"], &published[0]["payload"]), (&json!("k"), &json!({ "a": 1 })));
    assert_eq!(published[0]["headers"]["source"], "test");
    assert_eq!(published[0]["headers"]["punctual-task-id"], submitted.id.to_string());
    dev.signal("INT");
    assert!(dev.exit().await.success());
    assert!(!folder.exists() && processes_in(&folder) == 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_killed_dev_server_leaves_nothing_behind() {
    let mut dev = DevServer::own().await;
    let folder = dev.folder();
    dev.child.kill().await.unwrap();
    eventually("Postgres and its folder are gone", SOON, async || {
        !folder.exists() && processes_in(&folder) == 0
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_clock_publishes_all_that_is_due_until_then_in_order_and_at_its_time() {
    let dev = DevServer::own().await;
    let mut ids = Vec::new();
    for delay in ["40d", "30d", "29d", "1h", "1d", "10s", "72h"] {
        let task = json!({ "topic": "one", "delay": delay, "payload": delay });
        ids.push((delay, dev.api.submit(&task).await.id));
    }
    let (began, end_ms) = (Instant::now(), crate::support::now_ms() + 30 * 86_400_000);
    let state = dev.clock(json!({ "advance": "30d" })).await;
    let took = began.elapsed();
    let published = dev.published("one").await;
    let payloads: Vec<&str> =
        published.iter().map(|record| record["payload"].as_str().unwrap()).collect();
    assert_eq!(payloads, ["10s", "1h", "1d", "72h", "29d", "30d"], "after {took:?}");
    assert!(millis_of(&state["now"]) >= end_ms, "{state}");
    for (delay, id) in &ids {
        let task = dev.api.get(&format!("/v1/tasks/{id}")).await.json();
        if *delay == "40d" {
            assert_eq!(task["state"], "scheduled", "{task}");
            continue;
        }
        assert_eq!(task["state"], "published", "{task}");
        let record = published.iter().find(|record| record["payload"] == *delay).unwrap();
        let late = millis_of(&record["timestamp"]) - millis_of(&task["due_at"]);
        assert!((0..20_000).contains(&late), "{delay} is late by {late} ms: {task}");
        assert!(task["receipt"]["lateness_ms"].as_f64().unwrap() < 20_000.0, "{task}");
    }
    // The days go on from there.
    let task = json!({ "topic": "one", "delay": "100ms", "payload": "now" });
    dev.api.submit(&task).await;
    eventually("a task of the new day arrives", SOON, async || {
        dev.published("one").await.len() == 7
    })
    .await;
    dev.clock(json!({ "advance": "10d" })).await;
    assert_eq!(dev.published("one").await.len(), 8);

    let state = dev.clock(json!({ "reset": true })).await;
    assert_eq!(state["ahead_ms"], 0);
    assert!((millis_of(&state["now"]) - crate::support::now_ms()).abs() < 5_000, "{state}");
    dev.api.submit(&json!({ "topic": "one", "delay": "300ms", "payload": "back" })).await;
    eventually("a task of the real day arrives", SOON, async || {
        dev.published("one").await.iter().any(|record| record["payload"] == "back")
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_task_due_in_30_days_arrives_within_seconds() {
    let dev = DevServer::own().await;
    dev.api.submit(&json!({ "topic": "one", "delay": "30d", "payload": 1 })).await;
    let began = Instant::now();
    dev.clock(json!({ "advance": "30d" })).await;
    let (took, published) = (began.elapsed(), dev.published("one").await);
    assert_eq!(published.len(), 1);
    eprintln!("30 days took {took:?}");
    // The tests beside this one use the same cores.
    assert!(took < Duration::from_secs(60), "{took:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn deadlines_and_retries_of_a_tracked_task_follow_the_clock() {
    let dev = DevServer::own().await;
    let retry = json!({ "attempts_max": 3, "backoff_min": "10m", "backoff_factor": 1 });
    let task = json!({ "topic": "one", "delay": "1d", "payload": 1, "ttr": "1h", "retry": retry });
    let id = dev.api.submit(&task).await.id;
    let path = format!("/v1/tasks/{id}");
    let call = async |verb: &str, body: Value| {
        let answer = dev.api.post(&format!("{path}/{verb}"), body.to_string()).await;
        assert_eq!(answer.status, 200, "{verb}: {}", answer.text);
    };
    // Lets time pass. Then the task has this state, after so many attempts.
    let passes = async |span: &str, state: &str, attempts: usize| {
        dev.clock(json!({ "advance": span })).await;
        let task = dev.api.get(&path).await.json();
        assert_eq!(task["state"], state, "after {span}: {task}");
        assert_eq!(dev.published("one").await.len(), attempts, "after {span}: {task}");
    };
    passes("1d", "awaiting", 1).await;
    // The time to run is over after an hour. The next attempt is due 7.5 to 10 minutes later.
    passes("66m", "awaiting", 1).await;
    passes("5m", "awaiting", 2).await;
    call("fail", json!({ "attempt": 2, "retry_in": "2d" })).await;
    passes("47h", "retrying", 2).await;
    passes("1h", "awaiting", 3).await;
    call("extend", json!({ "attempt": 3, "by": "5h" })).await;
    passes("4h", "awaiting", 3).await;
    passes("2h", "dead", 3).await;
    let dead = dev.api.get(&path).await.json();
    assert_eq!((&dead["attempt"], &dead["attempts_max"]), (&json!(3), &json!(3)), "{dead}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_pop_passes_over_what_is_over_by_the_clock_of_the_server() {
    let dev = DevServer::own().await;
    let submit = async |payload: u32, ttr: &str| {
        let retry = json!({ "attempts_max": 2, "backoff_min": "0s" });
        let task = json!({
            "topic": "one", "delay": "1m", "payload": payload, "ttr": ttr, "retry": retry,
        });
        dev.api.submit(&task).await.id
    };
    let pop = async |group: &str| {
        let call = json!({ "group": group, "max": 10, "wait": "30s" });
        let popped = dev.api.post("/v1/topics/one/pop", call.to_string()).await.json();
        let tasks = popped["tasks"].as_array().unwrap().clone();
        tasks.iter().map(|task| task["payload"].as_i64().unwrap()).collect::<Vec<i64>>()
    };
    let finished = submit(1, "3h").await;
    submit(2, "1m").await;
    submit(3, "3h").await;
    dev.clock(json!({ "advance": "1m" })).await;
    let answer = dev.api.post(&format!("/v1/tasks/{finished}/finish"), "").await;
    assert_eq!(answer.status, 200, "{}", answer.text);
    dev.clock(json!({ "advance": "1h" })).await;
    assert_eq!(pop("ahead").await, [3], "2 is dead");
    // The records are of the future now.
    dev.clock(json!({ "reset": true })).await;
    assert_eq!(pop("again").await, [3]);
}

async fn put_schedule(dev: &DevServer, name: &str, body: &Value) {
    let (path, body) = (format!("/v1/schedules/one/{name}"), body.to_string().into_bytes());
    let answer = dev.api.send(Method::PUT, &path, Some(("application/json", body))).await;
    assert_eq!(answer.status, 201, "{}", answer.text);
}

/// Returns the instants of the published runs of a schedule, in milliseconds. Each was published on
/// time, after no missed one.
async fn instants_of(dev: &DevServer, schedule: &str) -> Vec<i64> {
    instants_between(dev, schedule, i64::MIN..i64::MAX).await
}

/// Returns those in a range of time.
async fn instants_between(dev: &DevServer, schedule: &str, range: Range<i64>) -> Vec<i64> {
    let mut instants = Vec::new();
    for record in dev.published("one").await {
        let headers = &record["headers"];
        if headers["punctual-schedule"] != schedule {
            continue;
        }
        // The names of the first runs may be free again.
        let id = headers["punctual-task-id"].as_str().unwrap();
        let instant = millis_of(&headers["punctual-run-at"]);
        if !range.contains(&instant) {
            continue;
        }
        assert!(headers["punctual-missed"].is_null(), "{record}");
        let task = dev.api.get(&format!("/v1/tasks/{id}")).await.json();
        assert_eq!((&task["state"], millis_of(&task["due_at"])), (&json!("published"), instant));
        let late = millis_of(&record["timestamp"]) - instant;
        assert!((0..20_000).contains(&late), "late by {late} ms: {record}");
        instants.push(instant);
    }
    instants
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_clock_passes_no_run_of_an_hourly_schedule() {
    const HOUR_MS: i64 = 3_600_000;
    let dev = DevServer::own().await;
    // No instant is near the beginning or the end of the two days.
    let phase = (crate::support::now_ms() + HOUR_MS / 2) % HOUR_MS;
    for policy in ["none", "last", "all"] {
        let body = json!({ "every": "1h", "phase": phase, "missed": { "policy": policy },
            "payload": policy });
        put_schedule(&dev, policy, &body).await;
    }
    let began = Instant::now();
    dev.clock(json!({ "advance": "2d" })).await;
    eprintln!("two days took {:?}", began.elapsed());
    for policy in ["none", "last", "all"] {
        let instants = instants_of(&dev, policy).await;
        assert_eq!(instants.len(), 48, "{policy}: {instants:?}");
        assert!(instants.windows(2).all(|two| two[1] - two[0] == HOUR_MS), "{instants:?}");
        assert!(instants.iter().all(|at| at % HOUR_MS == phase), "{instants:?}");
    }
    assert_eq!(dev.api.metric("punctual_schedule_missed_total").await as i64, 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_clock_passes_no_run_of_a_schedule_for_weekdays() {
    let dev = DevServer::own().await;
    let now = jiff::Timestamp::now().in_tz("Europe/Berlin").unwrap();
    // No instant is near the beginning or the end of the two weeks.
    let hour = (now.hour() + 12) % 24;
    let cron = format!("0 {hour} * * MON-FRI");
    let body = json!({ "cron": cron, "time_zone": "Europe/Berlin", "payload": 1 });
    put_schedule(&dev, "weekdays", &body).await;
    dev.clock(json!({ "advance": "14d" })).await;
    let instants = instants_of(&dev, "weekdays").await;
    assert_eq!(instants.len(), 10, "{cron}: {instants:?}");
    for instant in instants {
        let at =
            jiff::Timestamp::from_millisecond(instant).unwrap().in_tz("Europe/Berlin").unwrap();
        let day = at.weekday().to_monday_one_offset();
        assert!(day <= 5 && (at.hour(), at.minute()) == (hour, 0), "{cron}: {at}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_run_each_second_is_published_for_each_second_of_an_advance() {
    let dev = DevServer::own().await;
    put_schedule(&dev, "seconds", &json!({ "every": "1s", "payload": 1 })).await;
    let before = millis_of(&dev.clock(json!({ "advance": "1ms" })).await["now"]);
    let began = Instant::now();
    dev.clock(json!({ "advance": "5m" })).await;
    eprintln!("300 runs took {:?}", began.elapsed());
    let instants = instants_between(&dev, "seconds", before..before + 300_000).await;
    assert_eq!(instants.len(), 300, "{instants:?}");
    assert!(instants.windows(2).all(|two| two[1] - two[0] == 1_000), "{instants:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_clock_does_not_wait_for_paused_and_ended_schedules() {
    let dev = DevServer::own().await;
    put_schedule(&dev, "paused", &json!({ "every": "1h", "paused": true, "payload": 1 })).await;
    put_schedule(&dev, "stopped", &json!({ "every": "1h", "payload": 1 })).await;
    let answer = dev.api.post("/v1/schedules/one/stopped/pause", "").await;
    assert_eq!(answer.status, 200, "{}", answer.text);
    put_schedule(&dev, "ended", &json!({ "every": "1h", "runs_max": 3, "payload": 1 })).await;
    dev.clock(json!({ "advance": "2d" })).await;
    assert_eq!(instants_of(&dev, "ended").await.len(), 3);
    assert_eq!(dev.published("one").await.len(), 3, "a paused schedule has no runs");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_clock_does_not_wait_for_the_tasks_of_a_paused_topic() {
    let dev = DevServer::own().await;
    let change = async |verb: &str| {
        let answer = dev.api.post(&format!("/v1/topics/one/{verb}"), "").await;
        assert_eq!(answer.status, 200, "{verb}: {}", answer.text);
    };
    change("pause").await;
    for (topic, delay) in [("one", "1h"), ("one", "20d"), ("demo", "2h")] {
        dev.api.submit(&json!({ "topic": topic, "delay": delay, "payload": 1 })).await;
    }
    dev.clock(json!({ "advance": "30d" })).await;
    assert_eq!((dev.published("one").await.len(), dev.published("demo").await.len()), (0, 1));
    change("resume").await;
    dev.clock(json!({ "advance": "1s" })).await;
    assert_eq!(dev.published("one").await.len(), 2);
}

/// Returns what a dev server says that cannot start.
async fn refusal(arguments: &[&str]) -> String {
    let mut command = program(&["dev", "--json"]);
    let running = command.args(arguments).stdout(Stdio::piped()).stderr(Stdio::piped()).output();
    let output = tokio::time::timeout(SOON, running).await.expect("dev ends in time").unwrap();
    assert!(!output.status.success(), "{arguments:?}");
    String::from_utf8(output.stderr).unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_dev_server_says_what_keeps_it_from_starting() {
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let port = taken.local_addr().unwrap().port().to_string();
    let told = refusal(&["--port", &port, "--kafka-port", "0"]).await;
    assert!(told.contains(&port) && told.contains("--port 0"), "{told}");
    let told = refusal(&["--port", "0", "--kafka-port", &port]).await;
    assert!(told.contains(&port) && told.contains("--kafka-port 0"), "{told}");

    let folder = std::env::temp_dir().join(format!("punctual-{:08x}", rand::random::<u32>()));
    let data = folder.display().to_string();
    let arguments = ["--port", "0", "--kafka-port", "0", "--data", data.as_str()];
    let mut dev = DevServer::start(&arguments[2..]).await;
    let told = refusal(&arguments).await;
    assert!(told.contains(&data) && told.contains("another `punctual dev`"), "{told}");
    dev.api.submit(&json!({ "topic": "demo", "delay": 1, "payload": 1 })).await;
    dev.signal("TERM");
    assert!(dev.exit().await.success());
    std::fs::write(folder.join("data/PG_VERSION"), "9\n").unwrap();
    let told = refusal(&arguments).await;
    assert!(told.contains("needs Postgres 9"), "{told}");
    std::fs::remove_dir_all(&folder).unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn wrong_requests_to_the_dev_routes_are_refused_with_the_reason() {
    let dev = DevServer::own().await;
    for (body, status, reason) in [
        (json!({}), 400, "advance"),
        (json!({ "advance": "1 month" }), 400, "months"),
        (json!({ "advance": "1s", "reset": true }), 400, "one at a time"),
        (json!({ "reset": false }), 400, "expected true"),
        (json!({ "forward": "1s" }), 400, "advance, reset"),
    ] {
        let answer = dev.api.post("/dev/clock", body.to_string()).await;
        assert!(answer.status == status && answer.text.contains(reason), "{body}: {}", answer.text);
    }
    for (query, status) in [("?topic=none", 404), ("", 400), ("?topic=one&x=1", 400)] {
        assert_eq!(dev.api.get(&format!("/dev/published{query}")).await.status, status, "{query}");
    }
    let task = json!({ "topic": "none", "delay": 1, "payload": 1 });
    assert_eq!(dev.api.post("/v1/tasks", task.to_string()).await.status, 422);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn other_nodes_have_no_dev_routes() {
    let cluster = Cluster::start("no-dev").await;
    let node = cluster.node().await;
    let clock = node.api().post("/dev/clock", r#"{"advance":"1s"}"#).await;
    assert_eq!(clock.status, 404, "{}", clock.text);
    assert_eq!(node.api().get("/dev/published?topic=demo").await.status, 404);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_foreign_database_is_refused_and_an_empty_one_is_used_again() {
    let cluster = Cluster::start("dev-foreign").await;
    let url = cluster.stack.database(&cluster.database.name);
    // The database of a cluster has the tables of a node.
    let node = cluster.node().await;
    let output = command(&["--kafka-port", "0", "--database-url", &url]).output().await.unwrap();
    let told = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(!output.status.success() && told.contains("was not made by `punctual dev`"), "{told}");
    assert!(node.api().is_ready().await);

    let empty = format!("{}_dev", cluster.database.name);
    let create = format!("create database {empty}");
    sqlx::raw_sql(sqlx::AssertSqlSafe(create)).execute(&cluster.sql).await.unwrap();
    let url = cluster.stack.database(&empty);
    for _ in 0..2 {
        let mut dev = DevServer::start(&["--kafka-port", "0", "--database-url", &url]).await;
        dev.api.submit(&json!({ "topic": "demo", "delay": "1h", "payload": 1 })).await;
        dev.signal("TERM");
        assert!(dev.exit().await.success());
    }
    let drop = format!("drop database {empty}");
    sqlx::raw_sql(sqlx::AssertSqlSafe(drop)).execute(&cluster.sql).await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn tasks_survive_in_a_folder_of_their_own() {
    let folder = std::env::temp_dir().join(format!("punctual-{:08x}", rand::random::<u32>()));
    let data = folder.display().to_string();
    let arguments = ["--kafka-port", "0", "--data", data.as_str()];
    let mut dev = DevServer::start(&arguments).await;
    let id = dev.api.submit(&json!({ "topic": "demo", "delay": "1d", "payload": 1 })).await.id;
    dev.signal("INT");
    assert!(dev.exit().await.success());
    let dev = DevServer::start(&arguments).await;
    dev.clock(json!({ "advance": "1d" })).await;
    let task = dev.api.get(&format!("/v1/tasks/{id}")).await.json();
    assert_eq!(task["state"], "published", "{task}");
    drop(dev);
    eventually("Postgres is gone", SOON, async || processes_in(&folder) == 0).await;
    std::fs::remove_dir_all(&folder).unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_folder_of_a_newer_program_is_refused() {
    let folder = std::env::temp_dir().join(format!("punctual-{:08x}", rand::random::<u32>()));
    let data = folder.display().to_string();
    let arguments = ["--port", "0", "--kafka-port", "0", "--data", data.as_str()];
    let mut dev = DevServer::start(&arguments[2..]).await;
    let options = PgConnectOptions::new().socket(&folder).username("postgres").database("postgres");
    let mut sql = PgConnection::connect_with(&options).await.unwrap();
    let newer =
        "insert into _sqlx_migrations (version, description, success, checksum, execution_time)
                 values (9999, 'of a newer program', true, '', 0)";
    sqlx::raw_sql(newer).execute(&mut sql).await.unwrap();
    sql.close().await.unwrap();
    dev.signal("TERM");
    assert!(dev.exit().await.success());

    let told = refusal(&arguments).await;
    assert!(told.contains("version 9999") && told.contains("newer than this program"), "{told}");
    eventually("Postgres is gone", SOON, async || processes_in(&folder) == 0).await;
    std::fs::remove_dir_all(&folder).unwrap();
}

/// Runs a client, which prints a line for each record.
async fn lines_of(mut command: Command) -> Vec<String> {
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).kill_on_drop(true);
    let running = tokio::time::timeout(CLIENT_DEADLINE, command.output());
    let output = running.await.unwrap_or_else(|_| panic!("{command:?} did not end")).unwrap();
    let told = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{command:?}: {told}");
    String::from_utf8(output.stdout).unwrap().lines().map(str::to_owned).collect()
}

/// Submits three tasks, and checks that the consumer group of a client reads all of them. The
/// client prints a line for each, with `separator` between key and value.
async fn check(separator: &str, client: impl FnOnce(&str) -> Command) {
    let dev = DevServer::own().await;
    for number in 1..=3 {
        let task = json!({ "topic": "demo", "delay": 1, "key": format!("k{number}"),
            "payload_text": format!("v{number}") });
        dev.api.submit(&task).await;
    }
    let mut lines = lines_of(client(&dev.kafka)).await;
    lines.sort_unstable();
    let wanted = [1, 2, 3].map(|number| format!("k{number}{separator}v{number}"));
    assert_eq!(lines, wanted);
}

/// Returns a command that consumes three records with one of the examples.
fn example(program: &[&str], kafka: &str) -> Command {
    let mut command = Command::new(program[0]);
    command.args(&program[1..]).arg("3").current_dir(env!("CARGO_MANIFEST_DIR"));
    command.env("KAFKA", kafka).env("TOPIC", "demo").env("GROUP", "example");
    command
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn kcat_reads_from_the_broker() {
    check(" ", |kafka| {
        let mut command = Command::new("kcat");
        command.args(["-b", kafka, "-G", "kcat", "-c", "3", "-q", "-f", "%k %s\\n"]);
        command.args(["-X", "auto.offset.reset=earliest", "demo"]);
        command
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn java_reads_from_the_broker() {
    let folders = "examples/java/target/classes:examples/java/target/lib/*";
    check(": ", |kafka| example(&["java", "-Xmx256m", "-cp", folders, "Consume"], kafka)).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn python_reads_from_the_broker() {
    let python = ".stack/examples/python/bin/python";
    check(": ", |kafka| example(&[python, "examples/python/consume.py"], kafka)).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn go_reads_from_the_broker() {
    check(": ", |kafka| example(&[".stack/examples/go/consume"], kafka)).await;
}

/// It would wait for its first transaction, without a reason.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_transactional_producer_is_refused_by_the_broker_with_the_reason() {
    let dev = DevServer::own().await;
    let producer: BaseProducer = ClientConfig::new()
        .set("bootstrap.servers", &dev.kafka)
        .set("transactional.id", "orders")
        .create()
        .unwrap();
    let refused = tokio::task::spawn_blocking(move || producer.init_transactions(SOON));
    let refused = refused.await.unwrap().unwrap_err().to_string();
    assert!(refused.contains("has no transactions"), "{refused}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn variables_for_other_servers_of_postgres_do_not_count() {
    let mut command = command(&["--kafka-port", "0"]);
    command.env("PGSSLMODE", "verify-full").env("PGPORT", "5433");
    let dev = DevServer::spawn(command).await;
    assert_eq!(dev.api.get("/readyz").await.status, 200);
}
