//! The command line as a client: many tasks from a file despite failures, and the exit codes.

mod looks;

use std::collections::HashSet;
use std::fmt::Write as _;
use std::path::PathBuf;
use std::process::{Output, Stdio};
use std::time::Duration;

use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt as _, AsyncWriteExt as _, BufReader};

use crate::support::node::program;
use crate::support::{Cluster, Cutter, Node, now_ms};

const DEADLINE: Duration = Duration::from_secs(120);
const LINES: usize = 10_000;
const FRESH_LINES: usize = 2_000;
/// The number of bytes that a connection carries in either direction before the cut: a few requests
/// of 250 lines.
const CUT_BYTES_MAX: u64 = 160_000;

/// A file of lines deleted with the test.
struct TaskFile(PathBuf);

impl TaskFile {
    fn new(cluster: &Cluster, name: &str, text: &str) -> Self {
        let path = PathBuf::from(env!("CARGO_TARGET_TMPDIR"))
            .join(format!("{}-{name}.jsonl", cluster.name));
        std::fs::write(&path, text).unwrap();
        Self(path)
    }

    fn path(&self) -> &str {
        self.0.to_str().unwrap()
    }
}

impl Drop for TaskFile {
    fn drop(&mut self) {
        if let Err(error) = std::fs::remove_file(&self.0) {
            eprintln!("{} is left behind: {error}", self.0.display());
        }
    }
}

fn lines(topic: &str, count: usize, due_at: i64) -> String {
    (1..=count).fold(String::new(), |mut text, number| {
        let rest = format!(r#""key":"k{number}","payload":{{"line":{number}}}"#);
        writeln!(text, r#"{{"topic":"{topic}","due_at":{due_at},{rest}}}"#).unwrap();
        text
    })
}

async fn punctual(url: &str, words: &[&str]) -> Output {
    let output = program(words).args(["--url", url]).output();
    tokio::time::timeout(DEADLINE, output).await.expect("the command ends").unwrap()
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// The JSON lines on stdout: one per input line, and the summary.
fn results(output: &Output) -> (Vec<Value>, Value) {
    let mut lines: Vec<Value> =
        text(&output.stdout).lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let summary =
        lines.pop().unwrap_or_else(|| panic!("no summary; stderr: {}", text(&output.stderr)));
    (lines, summary["summary"].clone())
}

async fn submit_file(url: &str, file: &TaskFile, run_id: &str) -> (Vec<Value>, Value) {
    let words =
        ["submit", file.path(), "--run-id", run_id, "--json", "--batch", "250", "--timeout", "10s"];
    let output = punctual(url, &words).await;
    assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
    results(&output)
}

fn ids(results: &[Value]) -> HashSet<String> {
    results
        .iter()
        .map(|result| {
            result["task"]["id"].as_str().unwrap_or_else(|| panic!("no id in {result}")).to_owned()
        })
        .collect()
}

fn counts(accepted: usize, known: usize, refused: usize) -> Value {
    json!({
        "accepted": accepted,
        "known": known,
        "differs": 0,
        "refused": refused,
        "unknown": 0,
        "not_submitted": 0,
    })
}

#[tokio::test(flavor = "multi_thread")]
async fn a_file_submitted_twice_with_one_run_id_is_published_once_although_connections_are_cut() {
    let seed: u64 = rand::random();
    eprintln!("seed {seed}");
    let cluster = Cluster::start("lines").await;
    let node = cluster.node().await;
    let (twice, fresh) = (cluster.topic("twice").await, cluster.topic("fresh").await);
    let consumers = [&twice, &fresh].map(|topic| cluster.consumer(topic));
    let url = node.api().base();
    let cutter =
        Cutter::start(url.trim_start_matches("http://").parse().unwrap(), seed, CUT_BYTES_MAX)
            .await;
    let unsteady = format!("http://{}", cutter.address);
    let due_at = now_ms() + 4_000;

    let file = TaskFile::new(&cluster, "twice", &lines(&twice, LINES, due_at));
    let (first, summary) = submit_file(url, &file, "r").await;
    assert_eq!(summary["counts"], counts(LINES, 0, 0));
    let (second, summary) = submit_file(&unsteady, &file, "r").await;
    assert_eq!(summary["counts"], counts(0, LINES, 0));
    let all = ids(&first);
    assert_eq!((all.len(), &all), (LINES, &ids(&second)), "the same tasks, each once");
    assert!(cutter.cut_count() >= 3, "{} connections were cut", cutter.cut_count());

    // Every line is new here, so a lost answer hides a stored task.
    let cuts_before = cutter.cut_count();
    let file = TaskFile::new(&cluster, "fresh", &lines(&fresh, FRESH_LINES, due_at));
    let (results, summary) = submit_file(&unsteady, &file, "r").await;
    let done = ["accepted", "known"].map(|count| summary["counts"][count].as_u64().unwrap());
    assert_eq!(usize::try_from(done[0] + done[1]).unwrap(), FRESH_LINES, "{summary}");
    assert_eq!(ids(&results).len(), FRESH_LINES);
    assert!(cutter.cut_count() > cuts_before, "{summary}");

    // Once each task has a final line, no more records can follow.
    cluster.wait_final(LINES + FRESH_LINES, DEADLINE).await;
    let left = "select (select count(*) from task) + (select count(*) from task_far)
        + (select count(*) from execlog where state not in ('published', 'cancelled', 'dead'))";
    assert_eq!(cluster.count(left).await, 0);
    for (consumer, count) in consumers.iter().zip([LINES, FRESH_LINES]) {
        let records = consumer.wait_count(count, DEADLINE).await;
        let tasks: HashSet<_> = records.iter().map(|record| record.task_id()).collect();
        let payloads: HashSet<_> = records.iter().map(|record| record.payload.clone()).collect();
        assert_eq!(
            (records.len(), tasks.len(), payloads.len()),
            (count, count, count),
            "records, their tasks, their lines"
        );
    }
}

/// Gives `input` to `punctual submit -`.
async fn submit_input(node: &Node, input: &str, words: &[&str]) -> Output {
    let all = [&["submit", "-", "--url", node.api().base()], words].concat();
    let mut child = program(&all)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut stdin = child.stdin.take().unwrap();
    stdin.write_all(input.as_bytes()).await.unwrap();
    drop(stdin);
    tokio::time::timeout(DEADLINE, child.wait_with_output())
        .await
        .expect("the command ends")
        .unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn lines_that_are_refused_are_named_and_do_not_stop_the_others() {
    let cluster = Cluster::start("refused-lines").await;
    let node = cluster.node().await;
    let topic = cluster.topic("t").await;
    let input = format!(
        "{{\"delay\":\"1h\",\"payload\":1}}\nnonsense\n\
         {{\"topic\":\"no-such-topic\",\"delay\":\"1h\",\"payload\":1}}\n\n\
         {{\"delay\":\"soon\",\"payload\":1}}\n\
         {{\"delay\":\"1h\",\"payload\":1,\"name\":\"own\"}}\n\
         {{\"delay\":\"1h\",\"payload\":1,\"name\":\"own\"}}\n\
         {{\"delay\":\"1h\",\"payload_text\":\"{}\"}}\n{{\"delay\":\"1h\",\"payload\":2}}",
        "x".repeat(17 << 20)
    );
    let output =
        submit_input(&node, &input, &["--topic", &topic, "--run-id", "r", "--quiet"]).await;
    let said = text(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{said}");
    let lines: HashSet<&str> =
        said.lines().filter_map(|line| line.strip_prefix("line ")?.split(':').next()).collect();
    assert_eq!(lines, HashSet::from(["2", "3", "5", "8"]), "{said}");
    assert!(said.contains("line 3: Kafka has no such topic (topic): "), "{said}");
    let summary = text(&output.stdout);
    for line in ["accepted      3", "already known 1", "refused       4"] {
        assert!(summary.contains(line), "{line} in\n{summary}");
    }
    assert_eq!(cluster.count("select count(*) from task").await, 3);

    let output = submit_input(&node, &input, &["--topic", &topic, "--run-id", "r", "--json"]).await;
    assert_eq!(output.status.code(), Some(1));
    let (results, summary) = results(&output);
    assert_eq!(summary["counts"], counts(0, 4, 4));
    let refused = results.iter().find(|result| result["line"] == 5).unwrap();
    assert_eq!(
        (&refused["status"], &refused["problem"]["field"]),
        (&json!(400), &json!("delay")),
        "{refused}"
    );
    assert_eq!(results.len(), 8);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_line_whose_name_stands_for_another_task_is_named_and_its_task_is_left() {
    let cluster = Cluster::start("differing-lines").await;
    let node = cluster.node().await;
    let topic = cluster.topic("t").await;
    let input = r#"{"due_at":1896082200000,"payload":{"n":1},"key":"k","headers":{"h":"1"}}
{"due_at":"2030-01-31T09:30:00Z","payload_text":"{\"n\":1}","key_base64":"aw==","headers":{"h":"1"},"name":"r/1"}
{"due_at":1896082200000,"payload":{"n":2},"headers":{"h":"1"},"name":"r/1"}
{"due_at":1896082200001,"payload":{"n":1},"key":"k","headers":{"h":"2"},"name":"r/1"}
{"delay":"1h","payload":1,"name":"own"}
{"delay":"2h","payload":1,"name":"own"}
{"delay":"2h","payload":2,"name":"own"}
"#;
    for (accepted, known) in [(2, 2), (0, 4)] {
        // One after the other, for the first line of a name is to be the first one stored.
        let words =
            ["--topic", &topic, "--run-id", "r", "--json", "--batch", "1", "--concurrency", "1"];
        let output = submit_input(&node, input, &words).await;
        assert_eq!(output.status.code(), Some(1), "{}", text(&output.stderr));
        let (results, summary) = results(&output);
        let mut wanted = counts(accepted, known, 0);
        wanted["differs"] = json!(3);
        assert_eq!(summary["counts"], wanted);
        assert_eq!(summary["resume_line"], Value::Null);
        let differing: Vec<(u64, &Value)> = results
            .iter()
            .filter(|result| result["outcome"] == "differs")
            .map(|result| (result["line"].as_u64().unwrap(), &result["differs"]))
            .collect();
        assert_eq!(
            differing,
            [
                (3, &json!(["payload", "key"])),
                (4, &json!(["due_at", "headers"])),
                (7, &json!(["payload"]))
            ]
        );
    }
    let output = submit_input(&node, input, &["--topic", &topic, "--run-id", "r", "--quiet"]).await;
    let said = text(&output.stderr);
    assert!(
        said.contains("line 7: not stored: its name `own` stands for the task ")
            && said.contains("(payload)"),
        "{said}"
    );
    assert!(
        text(&output.stdout).contains("differing     3  not stored"),
        "{}",
        text(&output.stdout)
    );
    assert_eq!(
        cluster.count("select count(*) from task").await
            + cluster.count("select count(*) from task_far").await,
        2
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_topic_that_nobody_knows_is_told_from_one_that_has_nothing() {
    let cluster = Cluster::start("unknown-topic").await;
    let node = cluster.node().await;
    let (empty, gone) = (cluster.topic("empty").await, format!("{}.gone", cluster.name));
    let run = async |words: &[&str], topic: &str| {
        let output = punctual(node.api().base(), &[words, &["--topic", topic]].concat()).await;
        (output.status.code(), text(&output.stderr))
    };
    let commands: [&[&str]; 7] = [
        &["list"],
        &["list", "--counts"],
        &["list", "--due-to", "2030-01-31T09:30:00Z"],
        &["dead", "list"],
        &["cancel", "--dry-run"],
        &["dead", "redrive", "--yes"],
        &["dead", "drop", "--yes"],
    ];
    for words in commands {
        let (code, said) = run(words, &gone).await;
        assert!(
            code == Some(1) && said.contains("is not known: Kafka does not have it"),
            "{words:?}: {code:?} {said}"
        );
        assert_eq!(run(words, &empty).await.0, Some(0), "{words:?}");
    }
    // A dead letter of a deleted topic.
    let id: uuid::Uuid = "01a1fe6e-c1f1-8001-80ed-000000000001".parse().unwrap();
    let dead = "insert into dead_letter (id, row_id, topic, payload, attempts, reason) values ($1, \
                $1, $2, '1', 3, 'tried')";
    sqlx::query(dead).bind(id).bind(&gone).execute(&cluster.sql).await.unwrap();
    assert_eq!(run(&["list"], &gone).await.0, Some(0), "a task is for it");
}

#[tokio::test(flavor = "multi_thread")]
async fn an_interrupted_run_says_how_to_go_on() {
    let cluster = Cluster::start("interrupted").await;
    let node = cluster.node().await;
    let topic = cluster.topic("t").await;
    let words =
        ["submit", "-", "--url", node.api().base(), "--topic", &topic, "--run-id", "r", "--json"];
    let mut child = program(&words)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut stdin = child.stdin.take().unwrap();
    let mut stdout = BufReader::new(child.stdout.take().unwrap()).lines();
    for number in 1..=3 {
        stdin.write_all(b"{\"delay\":\"1h\",\"payload\":1}\n").await.unwrap();
        let result: Value =
            serde_json::from_str(&stdout.next_line().await.unwrap().unwrap()).unwrap();
        assert_eq!(
            (&result["line"], &result["outcome"]),
            (&json!(number), &json!("accepted")),
            "a line does not wait for the next"
        );
    }
    let pid = child.id().unwrap().to_string();
    assert!(
        std::process::Command::new("kill").args(["-s", "INT", &pid]).status().unwrap().success()
    );
    let output = tokio::time::timeout(DEADLINE, child.wait_with_output())
        .await
        .expect("it ends, although its input does not")
        .unwrap();
    assert_eq!(output.status.code(), Some(130), "{}", text(&output.stderr));
    assert!(
        text(&output.stderr).contains("--run-id r (--from-line 4 "),
        "{}",
        text(&output.stderr)
    );
    drop(stdin);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_task_is_replaced_shown_and_cancelled_by_its_name() {
    let cluster = Cluster::start("by-name").await;
    let node = cluster.node().await;
    let topic = cluster.topic("t").await;
    let run = async |words: &[&str]| {
        let output = punctual(node.api().base(), words).await;
        (output.status.code().unwrap(), text(&output.stdout), text(&output.stderr))
    };
    let name = ["--topic", &topic, "--name", "order/17 ü"];
    let submit = [&["submit", "--delay", "1h", "--payload", "1"], &name[..]].concat();
    let first = run(&submit).await.1;
    assert!(first.contains("  submitted, scheduled, "), "{first}");
    assert!(run(&submit).await.1.contains("  known by its name, "));
    let replaced = run(&[&submit[..], &["--replace"]].concat()).await.1;
    assert!(
        replaced.contains("  submitted, in place of the previous task, ")
            && replaced[..36] != first[..36],
        "{replaced}"
    );
    let shown = run(&[&["show", "--json"], &name[..]].concat()).await.1;
    assert_eq!(serde_json::from_str::<Value>(&shown).unwrap()["id"], replaced[..36]);
    let by_noun = run(&[&["task", "show", "--json"], &name[..]].concat()).await.1;
    assert_eq!(by_noun, shown);
    let cancelled = run(&[&["cancel"], &name[..]].concat()).await;
    assert_eq!((cancelled.0, cancelled.1), (0, format!("{}  cancelled\n", &replaced[..36])));
    assert_eq!(run(&["show", "--topic", &topic, "--name", "other"]).await.0, 4);
    let (code, stdout, stderr) =
        run(&["show", "--topic", &topic, "--name", "other", "--json"]).await;
    assert_eq!((code, stdout.as_str()), (4, ""));
    assert_eq!(
        serde_json::from_str::<Value>(&stderr).unwrap()["type"],
        "urn:punctual:problem:task-not-found"
    );
    assert_eq!(run(&["cancel", "--topic", &topic]).await.0, 2, "without --yes");
}

#[tokio::test(flavor = "multi_thread")]
async fn what_was_done_and_could_not_be_written_is_not_refused() {
    let cluster = Cluster::start("unwritten").await;
    let node = cluster.node().await;
    let topic = cluster.topic("t").await;
    let on_full_disk = async |words: &[&str]| {
        let full = std::fs::File::options().write(true).open("/dev/full").unwrap();
        let all = [words, &["--url", node.api().base()]].concat();
        let child = program(&all).stdout(full).stderr(Stdio::piped()).spawn().unwrap();
        let output = tokio::time::timeout(DEADLINE, child.wait_with_output())
            .await
            .expect("the command ends")
            .unwrap();
        (output.status.code(), text(&output.stderr))
    };
    let submit = ["submit", "--topic", &topic, "--delay", "1h", "--payload", "1"];
    for submit in [&submit[..], &[&submit[..], &["--json"]].concat()] {
        let (code, said) = on_full_disk(submit).await;
        assert!(
            code == Some(6) && said.contains("it was done; only writing the answer failed: "),
            "{code:?}: {said}"
        );
    }
    let file = TaskFile::new(&cluster, "unwritten", &lines(&topic, 3, now_ms() + 3_600_000));
    for manner in ["--json", "--quiet"] {
        let (code, said) = on_full_disk(&["submit", file.path(), "--run-id", "r", manner]).await;
        assert!(code == Some(6) && said.contains("cannot write all results: "), "{code:?}: {said}");
        assert!(said.contains("--run-id r; no task is made twice"), "{said}");
    }
    assert_eq!(cluster.count("select count(*) from task").await, 5);
    let (code, said) = on_full_disk(&["list"]).await;
    assert_eq!(code, Some(3), "{said}");
    let (code, said) = on_full_disk(&["cancel", "--topic", &topic, "--yes"]).await;
    assert_eq!(code, Some(6), "{said}");
    assert_eq!(cluster.count("select count(*) from task").await, 0);
}

#[tokio::test]
async fn exit_codes_say_what_a_script_should_do_next() {
    let nowhere = "http://127.0.0.1:1";
    for (words, code) in [
        (vec!["submit"], 2),
        (vec!["submit", "no-such-file.jsonl"], 2),
        (vec!["submit", "-", "--batch", "0"], 2),
        (vec!["list"], 3),
        (vec!["dead", "list"], 3),
        (vec!["show", "01934b2e-7d3c-8017-9f2b-6a1c0e4d5b7f"], 3),
        (vec!["submit", "--topic", "t", "--delay", "1h", "--payload", "1"], 3),
    ] {
        let output = punctual(nowhere, &words).await;
        assert_eq!(output.status.code(), Some(code), "{words:?}: {}", text(&output.stderr));
        assert!(output.stdout.is_empty() && !output.stderr.is_empty(), "{words:?}");
    }
    let output = punctual(nowhere, &["list", "--json"]).await;
    let error: Value = serde_json::from_slice(&output.stderr).unwrap();
    assert_eq!(
        (&error["type"], &error["exit_code"]),
        (&json!("urn:punctual:client:nothing-done"), &json!(3))
    );
    for shell in ["bash", "zsh", "fish"] {
        let output = program(&["completions", shell]).output().await.unwrap();
        assert!(output.status.success() && text(&output.stdout).contains("redrive"), "{shell}");
    }
    for (words, part) in [
        (&["man"][..], "punctual\\-serve(1)"),
        (&["man", "serve"], "\\-\\-drain\\-timeout"),
        (&["man", "token", "new"], "\\-\\-principal"),
    ] {
        let output = program(words).output().await.unwrap();
        assert!(output.status.success() && text(&output.stdout).contains(part), "{words:?}");
    }
    let output = program(&["man", "none"]).output().await.unwrap();
    assert_eq!(output.status.code(), Some(2), "{}", text(&output.stderr));
}

#[tokio::test]
async fn a_pipe_that_is_closed_early_is_no_error_of_a_text_for_people() {
    for (words, code) in [
        (&["--help"][..], 0),
        (&["serve", "--help"], 0),
        (&["completions", "bash"], 0),
        (&["man", "serve"], 0),
        // A token that nobody has read is lost.
        (&["token", "new", "--principal", "p"], 1),
    ] {
        let (reader, writer) = std::io::pipe().unwrap();
        drop(reader);
        let child = program(words).stdout(writer).stderr(Stdio::piped()).spawn().unwrap();
        let output = tokio::time::timeout(DEADLINE, child.wait_with_output())
            .await
            .expect("the command ends")
            .unwrap();
        assert_eq!(output.status.code(), Some(code), "{words:?}: {}", text(&output.stderr));
    }
}
