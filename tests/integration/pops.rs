//! Consumers without Kafka take tasks by pop.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::path::Path;
use std::process::Stdio;
use std::time::Duration;

use parking_lot::Mutex;
use punctual::domain::Timestamp;
use reqwest::Method;
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::process::Child;
use uuid::Uuid;

use crate::clock_steps::{node_with_that_clock, step, take_over_the_clock};
use crate::revoked::{Caller, file_of};
use crate::support::kafka_way::KafkaWay;
use crate::support::node::{binary, program};
use crate::support::{Api, Cluster, eventually, eventually_some, now_ms};
use crate::tokens::AuthFile;

const DEADLINE: Duration = Duration::from_secs(90);

/// The attempts that callers have got by task, and the tasks that they have finished.
#[derive(Default)]
struct Taken(Mutex<BTreeMap<Uuid, Vec<u64>>>, Mutex<BTreeSet<Uuid>>);

impl Taken {
    fn note(&self, task: &Value) -> (Uuid, u64) {
        let id = task["id"].as_str().unwrap().parse().unwrap();
        let attempt = task["attempt"].as_u64().unwrap();
        self.0.lock().entry(id).or_default().push(attempt);
        (id, attempt)
    }

    fn finished_count(&self) -> usize {
        self.1.lock().len()
    }

    /// Returns the tasks that have got an attempt twice.
    fn twice(&self) -> Vec<(Uuid, Vec<u64>)> {
        let all = self.0.lock();
        let is_twice = |attempts: &Vec<u64>| {
            let mut counts = HashMap::<u64, u32>::new();
            attempts.iter().for_each(|attempt| *counts.entry(*attempt).or_default() += 1);
            counts.values().any(|count| *count > 1)
        };
        all.iter().filter(|(_, got)| is_twice(got)).map(|(id, got)| (*id, got.clone())).collect()
    }
}

/// The group of a test. A rebalance of one test would disturb the others.
fn group_of(topic: &str) -> String {
    format!("workers-{topic}")
}

fn call(topic: &str, wait: &str, max: u32) -> String {
    json!({ "group": group_of(topic), "wait": wait, "max": max }).to_string()
}

async fn pop(api: &Api, topic: &str, wait: &str, max: u32) -> Vec<Value> {
    let answer = api.post(&format!("/v1/topics/{topic}/pop"), call(topic, wait, max)).await;
    assert_eq!(answer.status, 200, "{}", answer.text);
    answer.json()["tasks"].as_array().unwrap().clone()
}

async fn finish(api: &Api, id: Uuid, attempt: u64) {
    let body = json!({ "attempt": attempt }).to_string();
    let answer = api.post(&format!("/v1/tasks/{id}/finish"), body).await;
    assert_eq!(answer.status, 200, "{}", answer.text);
}

/// Asks for tasks, and finishes those that `finishes` wants.
async fn work(api: &Api, topic: &str, taken: &Taken, finishes: impl Fn(&Value) -> bool) {
    for task in pop(api, topic, "500ms", 10).await {
        let (id, attempt) = taken.note(&task);
        if finishes(&task) {
            finish(api, id, attempt).await;
            taken.1.lock().insert(id);
        }
    }
}

async fn submit(api: &Api, topic: &str, count: usize, ttr: &str) -> Vec<Uuid> {
    let task = |n: usize| {
        json!({ "topic": topic, "delay": n, "key": format!("k{n}"), "payload": { "n": n },
                "ttr": ttr })
    };
    let tasks: Vec<Value> = (0..count).map(task).collect();
    api.submit_all(&tasks).await.iter().map(|task| task.id).collect()
}

#[tokio::test]
async fn a_popped_task_has_its_record_and_its_terms() {
    let cluster = Cluster::start("pops").await;
    let (topic, node) = (cluster.topic("orders").await, cluster.node().await);
    let api = node.api();
    // A record of an untracked task, and one of a task that is finished already, are passed over.
    api.submit(&json!({ "topic": topic, "delay": 0, "payload": "untracked" })).await;
    let [done, ..] = submit(api, &topic, 1, "1h").await[..] else { panic!("one task") };
    eventually("it is published", DEADLINE, async || api.task(done).await.state == "awaiting")
        .await;
    finish(api, done, 1).await;
    let due_at = now_ms() + 500;
    let task = json!({
        "topic": topic, "due_at": due_at, "key": "k", "headers": { "source": "shop" },
        "payload": { "order": 17 }, "ttr": "30s", "retry": { "attempts_max": 3 },
    });
    let id = api.submit(&task).await.id;
    // It waits, and is answered as soon as the task is there.
    let tasks = pop(api, &topic, "20s", 10).await;
    let late = now_ms() - due_at;
    assert!((0..15_000).contains(&late), "{late} ms late");
    let [task] = &tasks[..] else { panic!("{tasks:?}") };
    assert_eq!(task["id"], id.to_string());
    assert_eq!((&task["attempt"], &task["attempts_max"]), (&json!(1), &json!(3)));
    assert_eq!((&task["key"], &task["headers"]), (&json!("k"), &json!({ "source": "shop" })));
    assert_eq!(task["payload"], json!({ "order": 17 }));
    let receipt = api.get(&format!("/v1/tasks/{id}")).await.json()["receipt"].clone();
    if !receipt.is_null() {
        let place = (&task["partition"], &task["offset"]);
        assert_eq!(place, (&receipt["partition"], &receipt["offset"]));
    }
    assert_eq!(pop(api, &topic, "0s", 10).await, Vec::<Value>::new());
    let unknown = api.post("/v1/topics/no-such-topic/pop", call("no-such-topic", "1s", 1)).await;
    assert_eq!(unknown.status, 404, "{}", unknown.text);
}

/// Each group costs the node a Kafka client.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_principal_takes_only_its_share_of_the_groups() {
    let cluster = Cluster::start("pops-share").await;
    let topic = cluster.topic("orders").await;
    let (greedy, modest) = (Caller::new("greedy").await, Caller::new("modest").await);
    let lines = file_of(&[greedy.with_rights(), modest.with_rights()]);
    let file = AuthFile::new("pops-share", &lines);
    let node = cluster.node_with(&["--auth-file", file.path()]).await;
    let path = format!("/v1/topics/{topic}/pop");
    let pop = async |caller: &Caller, group: &str| {
        let call = json!({ "group": group, "wait": "0s" });
        caller.send(node.api(), Method::POST, &path, Some(call)).await
    };
    for n in 0..16 {
        let answer = pop(&greedy, &format!("group-{n}")).await;
        assert_eq!(answer.status, 200, "{n}: {}", answer.text);
    }
    let refused = pop(&greedy, "group-16").await;
    assert_eq!(refused.status, 503, "{}", refused.text);
    assert!(refused.text.contains("pop_groups_share"), "{}", refused.text);
    // A group that is read already is nobody's share.
    assert_eq!(pop(&greedy, "group-3").await.status, 200);
    assert_eq!(pop(&modest, "group-16").await.status, 200);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn each_task_goes_to_one_caller_and_comes_again_unless_it_is_finished() {
    let cluster = Cluster::start("pops").await;
    let topic = cluster.topic("orders").await;
    let (first, second) = tokio::join!(cluster.node(), cluster.node());
    // Both are members of the group before there is a task.
    let (one, other) =
        tokio::join!(pop(first.api(), &topic, "5s", 1), pop(second.api(), &topic, "5s", 1));
    assert!(one.is_empty() && other.is_empty());
    let ids = submit(first.api(), &topic, 200, "4s").await;
    let taken = Taken::default();
    let is_kept = |task: &Value| !task["payload"]["n"].as_u64().unwrap().is_multiple_of(20);
    let finishes = |task: &Value| is_kept(task) || task["attempt"] != 1;
    let all_are_final = async || {
        let [one, other] = [&first, &second].map(|node| work(node.api(), &topic, &taken, finishes));
        let [third, fourth] =
            [&first, &second].map(|node| work(node.api(), &topic, &taken, finishes));
        tokio::join!(one, other, third, fourth);
        taken.finished_count() == 200
    };
    eventually("all tasks are finished", DEADLINE, all_are_final).await;
    assert_eq!(taken.twice(), Vec::new());
    let taken = taken.0.into_inner();
    for (n, id) in ids.iter().enumerate() {
        // On a busy machine, an attempt may be over before its record is read.
        let comes_again = n.is_multiple_of(20);
        assert!(!comes_again || taken[id].last() > Some(&1), "task {n}: {:?}", taken[id]);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nothing_is_lost_when_callers_leave_and_nodes_die() {
    let cluster = Cluster::start("pops").await;
    let topic = cluster.topic("orders").await;
    let (mut first, second) = tokio::join!(cluster.node(), cluster.node());
    // The caller leaves while it waits. Its place gets no task.
    let gone = tokio::time::timeout(Duration::from_secs(1), pop(second.api(), &topic, "20s", 100));
    assert!(gone.await.is_err());
    let ids = submit(second.api(), &topic, 200, "8s").await;
    let taken = Taken::default();
    let begin = async || {
        tokio::join!(
            work(first.api(), &topic, &taken, |_task| true),
            work(second.api(), &topic, &taken, |_task| true),
        );
        taken.finished_count() >= 60
    };
    eventually("some tasks are taken", DEADLINE, begin).await;
    first.kill().await;
    let rest = async || {
        work(second.api(), &topic, &taken, |_task| true).await;
        taken.finished_count() == 200
    };
    eventually("all tasks are finished", DEADLINE, rest).await;
    let taken = taken.0.into_inner();
    assert!(ids.iter().all(|id| taken.contains_key(id)));
    second.terminate();
}

/// Starts `pop --exec` with a command.
fn worker(api: &Api, topic: &str, command: &str) -> Child {
    let group = group_of(topic);
    let flags = ["pop", "--topic", topic, "--group", &group, "--max", "4"];
    program(&[&flags[..], &["--url", api.base(), "--exec", command]].concat())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .kill_on_drop(true)
        .spawn()
        .unwrap()
}

#[tokio::test]
async fn a_command_runs_for_each_task_and_its_exit_code_is_the_answer() {
    let cluster = Cluster::start("pops").await;
    let (topic, node) = (cluster.topic("orders").await, cluster.node().await);
    let api = node.api();
    let task = |key: &str| {
        json!({ "topic": topic, "delay": 0, "key": key, "payload_text": format!("of {key}\n"),
                "ttr": "30s", "retry": { "attempts_max": 1 } })
    };
    let [good, bad] = [api.submit(&task("good")).await.id, api.submit(&task("bad")).await.id];
    let file = cluster.folder().join("payloads");
    let command = format!("cat >> '{}'; test \"$PUNCTUAL_TASK_KEY\" = good", file.display());
    let mut worker = worker(api, &topic, &command);
    for (id, state) in [(good, "finished"), (bad, "dead")] {
        eventually(state, DEADLINE, async || api.task(id).await.state == state).await;
    }
    let mut payloads: Vec<String> =
        std::fs::read_to_string(&file).unwrap().lines().map(str::to_owned).collect();
    payloads.sort();
    assert_eq!(payloads, ["of bad", "of good"]);
    let shown = api.get(&format!("/v1/tasks/{bad}")).await.json();
    assert_eq!(shown["attempts"][1]["reason"], "exit status: 1", "{shown}");
    let pid = worker.id().unwrap().to_string();
    assert!(std::process::Command::new("kill").arg(&pid).status().unwrap().success());
    let ended = tokio::time::timeout(DEADLINE, worker.wait()).await.unwrap().unwrap();
    assert_eq!(ended.code(), Some(143));
}

#[tokio::test]
async fn the_processes_of_a_command_end_with_its_time_to_run() {
    let cluster = Cluster::start("pops").await;
    let (topic, node) = (cluster.topic("orders").await, cluster.node().await);
    let api = node.api();
    let task = json!({ "topic": topic, "delay": 0, "payload": 1, "ttr": "5s",
                       "retry": { "attempts_max": 1000 } });
    api.submit(&task).await;
    let file = cluster.folder().join("pid");
    let command = format!("sleep 997 & echo $! > '{}'; wait", file.display());
    let _worker = worker(api, &topic, &command);
    let started = eventually_some("the command has a process", DEADLINE, async || {
        std::fs::read_to_string(&file).ok()?.trim().parse::<u32>().ok()
    });
    let process = format!("/proc/{}/cmdline", started.await);
    eventually("the process has ended", DEADLINE, async || {
        std::fs::read(&process).is_ok_and(|words| words.is_empty()) || !Path::new(&process).exists()
    })
    .await;
}

#[tokio::test]
async fn a_command_that_extends_its_time_to_run_is_not_killed() {
    let cluster = Cluster::start("pops").await;
    let (topic, node) = (cluster.topic("orders").await, cluster.node().await);
    let api = node.api();
    let task = json!({ "topic": topic, "delay": 0, "payload": 1, "ttr": "5s",
                       "retry": { "attempts_max": 1000 } });
    let id = api.submit(&task).await.id;
    let command = format!(
        "'{}' extend --url {} --by 1m --attempt $PUNCTUAL_TASK_ATTEMPT \
         $PUNCTUAL_TASK_ID && sleep 8",
        binary().display(),
        api.base()
    );
    let _worker = worker(api, &topic, &command);
    eventually("the task is finished", DEADLINE, async || api.task(id).await.state == "finished")
        .await;
}

#[tokio::test]
async fn a_node_that_drains_ends_the_calls_that_wait() {
    let cluster = Cluster::start("pops").await;
    let (topic, mut node) = (cluster.topic("orders").await, cluster.node().await);
    let api = node.api().clone();
    let waiting = tokio::spawn(async move { pop(&api, &topic, "25s", 1).await });
    eventually("the call waits", DEADLINE, async || {
        node.api().metric("punctual_pop_waiting").await == 1.0
    })
    .await;
    node.terminate();
    assert_eq!(waiting.await.unwrap(), Vec::<Value>::new());
    assert!(node.wait_exit(DEADLINE).await.success(), "{}", node.log_tail());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_caller_that_hangs_up_while_it_waits_gets_no_task() {
    let cluster = Cluster::start("pops-gone").await;
    let topic = cluster.topic("orders").await;
    let node = cluster.node_with(&["--request-timeout", "2m"]).await;
    let api = node.api();
    let address = api.base().trim_start_matches("http://").to_owned();
    let waiting = async |count: f64| {
        eventually("the calls that wait", DEADLINE, async || {
            api.metric("punctual_pop_waiting").await == count
        })
        .await;
    };
    for closes_both_sides in [true, false] {
        let body = call(&topic, "60s", 10);
        let mut caller = TcpStream::connect(&address).await.unwrap();
        let request = format!(
            "POST /v1/topics/{topic}/pop HTTP/1.1\r\nhost: {address}\r\n\
             content-type: application/json\r\ncontent-length: {}\r\n\r\n{body}",
            body.len()
        );
        caller.write_all(request.as_bytes()).await.unwrap();
        waiting(1.0).await;
        let gone_at = now_ms();
        if closes_both_sides {
            drop(caller);
        } else {
            caller.shutdown().await.unwrap();
            let mut answer = String::new();
            caller.read_to_string(&mut answer).await.unwrap();
            assert!(answer.ends_with("{\"tasks\":[]}"), "{answer}");
        }
        waiting(0.0).await;
        assert!(now_ms() - gone_at < 40_000, "the wait has ended by itself");
        let ids = submit(api, &topic, 1, "1h").await;
        let tasks = pop(api, &topic, "20s", 10).await;
        let taken: Vec<_> = tasks.iter().map(|task| (&task["id"], &task["attempt"])).collect();
        assert_eq!(taken, [(&json!(ids[0].to_string()), &json!(1))]);
        finish(api, ids[0], 1).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_node_ends_although_kafka_does_not_let_its_members_go() {
    let cluster = Cluster::start("pops-held").await;
    let topic = cluster.topic("orders").await;
    let way = KafkaWay::open(&cluster.stack.kafka, Duration::ZERO).await;
    let kafka = way.address();
    let mut node = cluster.spawn_bare(&[
        "--database-url",
        &cluster.database.url,
        "--kafka",
        &kafka,
        "--cluster",
        &cluster.name,
    ]);
    node.wait_ready().await;
    let id = submit(node.api(), &topic, 1, "1h").await[0];
    let is_given = async || !pop(node.api(), &topic, "1s", 10).await.is_empty();
    eventually("the group has its first task", DEADLINE, is_given).await;
    finish(node.api(), id, 1).await;
    way.hold();
    node.terminate();
    let ended = node.wait_exit(Duration::from_secs(40)).await;
    assert!(ended.success(), "{ended} {}", node.log_tail());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn tasks_are_given_while_the_clock_of_the_broker_is_behind_by_more_than_their_time_to_run() {
    let cluster = Cluster::start("pops-behind").await;
    take_over_the_clock(&cluster).await;
    step(&cluster, "9s").await;
    let (topic, node) = (cluster.topic("orders").await, node_with_that_clock(&cluster, &[]).await);
    let api = node.api();
    // The group needs some seconds for its first assignment.
    let first = submit(api, &topic, 1, "1h").await[0];
    let is_given = async || !pop(api, &topic, "1s", 10).await.is_empty();
    eventually("the group has its first task", DEADLINE, is_given).await;
    finish(api, first, 1).await;
    let ids: BTreeSet<Uuid> = submit(api, &topic, 8, "8s").await.into_iter().collect();
    let (mut given, until) = (BTreeSet::new(), now_ms() + 30_000);
    while given.len() < ids.len() && now_ms() < until {
        for task in pop(api, &topic, "1s", 10).await {
            let id: Uuid = task["id"].as_str().unwrap().parse().unwrap();
            assert_eq!(task["attempt"], 1, "the first attempt was passed over: {task}");
            finish(api, id, 1).await;
            given.insert(id);
        }
    }
    assert_eq!(given, ids);
    // By its headers alone, 3 of the 12 seconds would be left.
    submit(api, &topic, 1, "12s").await;
    let popped = eventually_some("the last one is given", DEADLINE, async || {
        pop(api, &topic, "1s", 1).await.into_iter().next()
    });
    let popped = popped.await;
    let finish_by = Timestamp::of_rfc3339(popped["finish_by"].as_str().unwrap()).unwrap();
    let left = finish_by.as_millis() - (now_ms() + 9_000);
    assert!(left > 4_000, "{left} ms are left of {popped}");
}
