//! The REST API against its own document: the samples work as pasted, schemathesis finds no
//! contradiction, and afterwards the tables hold exactly the answered tasks.

use std::path::{Path, PathBuf};
use std::process::Output;
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use reqwest::Method;
use serde_json::{Value, json};
use tokio::process::Command;
use uuid::Uuid;

use crate::generated;
use crate::support::{Call, Cluster, Node, Oracle, eventually_some, now_ms};

const DEADLINE: Duration = Duration::from_secs(120);
/// The deadline beside other tests on a slow machine. Alone, a run takes 80 s.
const SCHEMATHESIS_DEADLINE: Duration = Duration::from_secs(900);
/// The same cases each time; another one finds others.
const SEED: &str = "20261121";
/// Enough for schemathesis to put some back, and to drop some.
const DEAD_COUNT: usize = 60;
const CASES_MIN: usize = 2000;

async fn document(node: &Node) -> Value {
    let answer = node.api().get("/openapi.json").await;
    assert_eq!((answer.status, answer.header("content-type")), (200, Some("application/json")));
    answer.json()
}

/// Returns method, path and operation of the whole document.
fn operations(document: &Value) -> Vec<(String, String, Value)> {
    let paths = document["paths"].as_object().unwrap().iter();
    let operations = paths.flat_map(|(path, methods)| {
        methods.as_object().unwrap().iter().map(move |(method, of)| (path, method, of))
    });
    operations.map(|(path, method, of)| (method.to_uppercase(), path.clone(), of.clone())).collect()
}

async fn shell(lines: &str) -> Output {
    let mut command = Command::new("bash");
    command.args(["-euo", "pipefail", "-c", lines]).kill_on_drop(true);
    tokio::time::timeout(DEADLINE, command.output()).await.expect("a sample ends").unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn each_operation_has_a_sample_that_works_when_it_is_pasted() {
    let cluster = Cluster::start("samples").await;
    let topic = cluster.topic("demo").await;
    let keys = cluster.callback_key_file();
    let callbacks = ["--callback-host", "*.example.com", "--callback-key-file", &keys];
    let node = cluster.node_with(&callbacks).await;
    let document = document(&node).await;
    // The samples use the node and the topic of `make run`.
    let here = |text: &str| {
        let text = text
            .replace("http://127.0.0.1:7070", node.api().base())
            .replace("topic\":\"demo\"", &format!("topic\":\"{topic}\""));
        text.replace("/topics/demo/", &format!("/topics/{topic}/"))
            .replace("/topics/demo\"", &format!("/topics/{topic}\""))
            .replace("/schedules/demo", &format!("/schedules/{topic}"))
            .replace("topic=demo", &format!("topic={topic}"))
    };
    make_dead_letters(&cluster, &node, &topic, &mut Oracle::default()).await;
    for (method, path, operation) in operations(&document) {
        let sample = operation["x-codeSamples"][0]["source"].as_str().unwrap();
        let output = shell(&here(sample)).await;
        let (said, errors) =
            (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
        assert!(
            output.status.success() && errors.is_empty(),
            "{method} {path}:\n{sample}\n{said}\n{errors}"
        );
        let is_json = operation["responses"]["200"]["content"]["application/json"].is_object();
        assert!(
            !is_json || serde_json::from_str::<Value>(&said).is_ok(),
            "{method} {path}: {said}"
        );
        if method == "PUT" && path.ends_with("/callback") {
            // Its requests have no answer, and would fail the attempts of the samples below.
            let path = format!("/v1/topics/{topic}/callback");
            assert_eq!(node.api().send(Method::DELETE, &path, None).await.status, 200);
            continue;
        }
        let Some(examples) =
            operation["requestBody"]["content"]["application/json"]["examples"].as_object()
        else {
            continue;
        };
        // Moves and the calls of consumers are about a task that waits for them: their sample
        // makes one.
        let is_of_consumers = path.contains("/tasks/{id}/") || path.contains("/tasks/{name}/");
        let has_no_subject = path.starts_with("/v1/dead/{id}") || path.ends_with("/backfill");
        if is_of_consumers || has_no_subject || method == "PATCH" {
            continue;
        }
        for (name, example) in examples {
            let path = here(&path.replace("{topic}", "demo").replace("{name}", "example"));
            let body = here(&example["value"].to_string());
            let answer = node
                .api()
                .send(
                    method.parse::<Method>().unwrap(),
                    &path,
                    Some(("application/json", body.into_bytes())),
                )
                .await;
            assert!(
                (200..300).contains(&answer.status),
                "{method} {path} {name}: {} {}",
                answer.status,
                answer.text
            );
        }
    }
}

/// The folder with the hooks of schemathesis.
fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/interface")
}

/// Makes dead letters: the topic takes their records at submit, refuses them at the due time, and
/// takes them again afterwards.
async fn make_dead_letters(
    cluster: &Cluster,
    node: &Node,
    topic: &str,
    oracle: &mut Oracle,
) -> Vec<String> {
    let task = json!({ "topic": topic, "delay": "2s", "payload_text": "x".repeat(5000) });
    let body = json!({ "tasks": vec![task; DEAD_COUNT] }).to_string();
    node.api().learn(topic).await;
    cluster.alter_topic(topic, &[("max.message.bytes", "1000")]).await;
    let answer = node.api().post("/v1/tasks/batch", body.clone()).await;
    let (method, path) = ("POST".to_owned(), "/v1/tasks/batch".to_owned());
    let answer = answer.text.into_bytes();
    oracle.take_in(&Call {
        method,
        path,
        body: body.into_bytes(),
        key: None,
        status: 200,
        answer,
        at: now_ms(),
    });
    let dead = eventually_some("the tasks are dead letters", DEADLINE, async || {
        let dead: Vec<Uuid> =
            sqlx::query_scalar("select id from dead_letter").fetch_all(&cluster.sql).await.unwrap();
        (dead.len() == DEAD_COUNT).then_some(dead)
    })
    .await;
    cluster.alter_topic(topic, &[("max.message.bytes", "1000000")]).await;
    oracle.died(dead.iter().copied());
    dead.iter().map(Uuid::to_string).collect()
}

async fn run_schemathesis(
    node: &Node,
    topics: &[String],
    dead: &[String],
    record: &Path,
) -> Output {
    let program =
        Path::new(env!("CARGO_MANIFEST_DIR")).join(".stack/schemathesis/bin/schemathesis");
    assert!(program.exists(), "schemathesis is not installed: run scripts/schemathesis");
    let mut command = Command::new(program);
    command.arg("--config-file").arg(folder().join("schemathesis.toml"));
    // The served document is the loose form, which says less than the API keeps.
    command.arg("run").arg(folder().join("strict.json"));
    command.args(["--url", node.api().base(), "--seed", SEED]);
    command
        .env("SCHEMATHESIS_HOOKS", "hooks")
        .env("PYTHONPATH", folder())
        .env("PYTHONDONTWRITEBYTECODE", "1");
    command.env("PUNCTUAL_TEST_TOPICS", topics.join(",")).env("PUNCTUAL_TEST_DEAD", dead.join(","));
    command.env("PUNCTUAL_TEST_RECORD", record);
    // Schemathesis leaves caches in its working folder.
    command.current_dir(record.parent().unwrap()).kill_on_drop(true);
    tokio::time::timeout(SCHEMATHESIS_DEADLINE, command.output())
        .await
        .expect("schemathesis ends")
        .unwrap()
}

/// Returns all requests with their answers, in order.
fn read_record(record: &Path) -> Vec<Call> {
    let text = std::fs::read_to_string(record).unwrap();
    let call = |line: &str| {
        let line: Value = serde_json::from_str(line).unwrap();
        let text = |field: &str| line[field].as_str().unwrap().to_owned();
        let bytes = |field: &str| STANDARD.decode(text(field)).unwrap();
        let status = u16::try_from(line["status"].as_u64().unwrap()).unwrap();
        let at = line["at"].as_i64().unwrap();
        let key = line["key"].as_str().map(str::to_owned);
        Call {
            method: text("method"),
            path: text("path"),
            body: bytes("body"),
            key,
            status,
            answer: bytes("answer"),
            at,
        }
    };
    text.lines().map(call).collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn schemathesis_finds_nothing_and_the_tables_hold_exactly_what_was_answered() {
    let cluster = Cluster::start("schemathesis").await;
    let topics = [cluster.topic("orders").await, cluster.topic("bills").await];
    let node = cluster.node().await;
    let record = cluster.folder().join("record.jsonl");
    let mut oracle = Oracle::default();
    // Schemathesis does not know this topic. Otherwise one bulk redrive would redrive all of the
    // dead letters.
    let spared = cluster.topic("spared").await;
    let dead = make_dead_letters(&cluster, &node, &spared, &mut oracle).await;
    let before = answered(&node).await;
    let output = run_schemathesis(&node, &topics, &dead, &record).await;
    let (said, errors) =
        (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(
        output.status.success(),
        "schemathesis has found something (seed {SEED}):\n{said}\n{errors}"
    );
    let calls = read_record(&record);
    let unavailable = calls.iter().filter(|call| call.status == 503).count();
    assert!(
        unavailable * 100 <= calls.len(),
        "{unavailable} of {} requests were answered 503",
        calls.len()
    );
    let taken = calls.iter().filter(|call| (200..300).contains(&call.status)).count();
    eprintln!(
        "schemathesis with seed {SEED}: {} requests, {taken} of them answered 2xx",
        calls.len()
    );
    assert!(
        calls.len() >= CASES_MIN && taken * 4 >= calls.len(),
        "{} requests, {taken} answered 2xx",
        calls.len()
    );
    parse_with_generated_clients(&calls, &cluster).await;
    let mut during = answered(&node).await;
    before.iter().for_each(|(status, count)| *during.get_mut(status).unwrap() -= count);
    // Schemathesis first checks whether odd characters in a path are accepted, without calling the
    // hooks.
    *during.get_mut(&404).unwrap() -= 1;
    during.retain(|_, count| *count > 0);
    assert_eq!(
        during,
        of_record(&calls),
        "what the node has answered is what was recorded, by status"
    );
    calls.iter().for_each(|call| oracle.take_in(call));
    eprintln!("{} tasks were accepted", oracle.task_count());
    assert!(oracle.task_count() >= 200);
    oracle.check(&cluster, DEADLINE).await;
}

async fn parse_with_generated_clients(calls: &[Call], cluster: &Cluster) {
    let document = generated::document();
    let mut answers = generated::Answers::default();
    for call in calls {
        let Some(operation) = generated::operation_of(&document, &call.method, &call.path) else {
            continue; // an unknown path or method
        };
        let Some(schema) = generated::schema_of(operation, call.status) else { continue };
        if let Ok(answer) = serde_json::from_slice::<Value>(&call.answer) {
            answers.add(&schema, &answer);
        }
    }
    eprintln!("{} answers for the generated clients", answers.count);
    assert!(answers.count > CASES_MIN, "{} answers", answers.count);
    answers.parse_with_each_language(cluster.folder()).await;
}

type ByStatus = std::collections::BTreeMap<u16, usize>;

/// Paths that the test itself calls, too.
const ASKED_BY_ALL: [&str; 3] = ["/readyz", "/metrics", "/openapi.json"];

fn of_record(calls: &[Call]) -> ByStatus {
    let mut counts = ByStatus::new();
    for call in
        calls.iter().filter(|call| !ASKED_BY_ALL.contains(&call.path.split('?').next().unwrap()))
    {
        *counts.entry(call.status).or_default() += 1;
    }
    counts
}

/// Returns the number of answers by status, from the node's metrics.
async fn answered(node: &Node) -> ByStatus {
    let mut counts = ByStatus::new();
    for line in node.metrics().await.lines() {
        let Some((labels, count)) = line
            .strip_prefix("punctual_api_requests_total{")
            .and_then(|rest| rest.split_once("} "))
        else {
            continue;
        };
        let label = |name: &str| {
            labels.split(&format!("{name}=\"")).nth(1).unwrap().split('"').next().unwrap()
        };
        if !ASKED_BY_ALL.contains(&label("route")) {
            *counts.entry(label("status").parse().unwrap()).or_default() +=
                count.parse::<usize>().unwrap();
        }
    }
    counts
}
