//! The examples of answers in the document are answers of a node.
//!
//! With `PUNCTUAL_WRITE_DOCS` set, the test writes them anew into src/api/openapi/examples.json.

use std::path::{Path, PathBuf};
use std::time::Duration;

use reqwest::Method;
use serde_json::{Map, Value, json};

use crate::support::{Answer, Api, Cluster, eventually_some, now_ms};

const DEADLINE: Duration = Duration::from_secs(120);

fn file() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("src/api/openapi/examples.json")
}

/// The answers that a node has given: by operation and status, and by type of problem.
#[derive(Default)]
struct Seen {
    answers: Map<String, Value>,
    problems: Map<String, Value>,
}

impl Seen {
    fn answer(&mut self, operation: &str, status: u16, answer: &Answer) -> Value {
        assert_eq!(answer.status, status, "{operation}: {}", answer.text);
        let by_status = self.answers.entry(operation).or_insert_with(|| json!({}));
        by_status[status.to_string()] = answer.json();
        answer.json()
    }

    fn problem(&mut self, slug: &str, answer: &Answer) {
        let problem = answer.json();
        assert_eq!(problem["type"], format!("urn:punctual:problem:{slug}"), "{}", answer.text);
        self.problems.insert(slug.to_owned(), problem);
    }

    /// Returns all with the names of the documentation instead of those of this test.
    fn documented(self, topic: &str, base: &str) -> Value {
        let all = json!({ "answers": self.answers, "problems": self.problems });
        let address = base.trim_start_matches("http://");
        let text = all.to_string().replace(topic, "demo").replace(address, "127.0.0.1:7070");
        let mut documented = serde_json::from_str(&text).unwrap();
        shorten(&mut documented);
        documented
    }
}

/// Leaves two items of each list: the rest shows nothing new.
fn shorten(value: &mut Value) {
    match value {
        Value::Object(members) => members.values_mut().for_each(shorten),
        Value::Array(items) => {
            items.truncate(2);
            items.iter_mut().for_each(shorten);
        }
        _ => {}
    }
}

/// Returns where two answers differ in their members and types. A null may stand for any value, and
/// an empty list for any list.
fn differences(place: &str, one: &Value, other: &Value) -> Vec<String> {
    match (one, other) {
        (Value::Null, _) | (_, Value::Null) => Vec::new(),
        (Value::Object(one), Value::Object(other)) => {
            let names = one.keys().chain(other.keys().filter(|name| !one.contains_key(*name)));
            let member = |name: &String| match (one.get(name), other.get(name)) {
                (Some(one), Some(other)) => differences(&format!("{place}.{name}"), one, other),
                _ => vec![format!("{place}.{name} is only in one of both")],
            };
            names.flat_map(member).collect()
        }
        (Value::Array(one), Value::Array(other)) => match (one.first(), other.first()) {
            (Some(one), Some(other)) => differences(&format!("{place}[0]"), one, other),
            _ => Vec::new(),
        },
        (Value::String(_), Value::String(_))
        | (Value::Number(_), Value::Number(_))
        | (Value::Bool(_), Value::Bool(_)) => Vec::new(),
        _ => vec![format!("{place}: {one} and {other} have different types")],
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_node_answers_as_the_examples_of_the_document_show() {
    let cluster = Cluster::start("answers").await;
    let topic = cluster.topic("demo").await;
    let keys = cluster.callback_key_file();
    let callbacks = ["--callback-host", "*.example.com", "--callback-key-file", &keys];
    let node = cluster.node_with(&callbacks).await;
    let mut seen = Seen::default();
    by_id(node.api(), &topic, &mut seen).await;
    by_name(node.api(), &topic, &mut seen).await;
    of_many(node.api(), &topic, &mut seen).await;
    of_the_cluster(node.api(), &mut seen).await;
    refused(node.api(), &topic, &mut seen).await;
    of_consumers(node.api(), &topic, &mut seen).await;
    of_schedules(node.api(), &topic, &mut seen).await;
    of_topics(node.api(), &topic, &mut seen).await;
    dead_letters(&cluster, node.api(), &topic, &mut seen).await;
    let seen = seen.documented(&topic, node.api().base());
    if std::env::var_os("PUNCTUAL_WRITE_DOCS").is_some() {
        std::fs::write(file(), format!("{seen:#}\n")).unwrap();
    }
    let documented: Value =
        serde_json::from_str(&std::fs::read_to_string(file()).unwrap()).unwrap();
    assert_eq!(
        differences("", &documented, &seen),
        Vec::<String>::new(),
        "examples and answers; if the answers are right, write them anew: \
         PUNCTUAL_WRITE_DOCS=1 cargo test --test integration answers, then make docs"
    );
}

#[test]
fn a_lost_member_and_another_type_are_differences() {
    let example = json!({ "id": "1", "list": [{ "count": 1 }], "cursor": null });
    assert!(differences("", &example, &example).is_empty());
    for answer in [
        json!({ "id": "1", "list": [] }),
        json!({ "id": 1, "list": [], "cursor": "a" }),
        json!({ "id": "1", "list": [{ "count": 1, "new": 2 }], "cursor": "a" }),
    ] {
        assert_eq!(differences("", &example, &answer).len(), 1, "{answer}");
    }
}

async fn by_id(api: &Api, topic: &str, seen: &mut Seen) {
    let task = |name: &str, delay: &str| {
        json!({ "topic": topic, "name": name, "delay": delay, "key": name,
                "payload": { "remind": name }, "headers": { "source": "orders" } })
        .to_string()
    };
    api.learn(topic).await;
    let submitted = api.post("/v1/tasks", task("order-17", "30m")).await;
    let pending = seen.answer("submitTask", 201, &submitted);
    seen.answer("submitTask", 200, &api.post("/v1/tasks", task("order-17", "30m")).await);
    let due = api.submit_text(&task("order-18", "1s")).await;
    let path = format!("/v1/tasks/{}", due.id);
    let published = eventually_some("the task is published", DEADLINE, async || {
        let answer = api.look(&path).await;
        answer.text.contains("receipt").then_some(answer)
    })
    .await;
    seen.answer("getTask", 200, &published);
    seen.problem("too-late", &api.cancel(due.id).await);
    let id = pending["id"].as_str().unwrap().parse().unwrap();
    let later = Some(("application/json", br#"{"delay":"2h"}"#.to_vec()));
    let moved = api.send(Method::PATCH, &format!("/v1/tasks/{id}"), later).await;
    seen.answer("moveTask", 200, &moved);
    let path = format!("/v1/topics/{topic}/tasks/order-17");
    let later = Some(("application/json", br#"{"delay":"3h"}"#.to_vec()));
    seen.answer("moveTaskByName", 200, &api.send(Method::PATCH, &path, later).await);
    seen.answer("cancelTask", 200, &api.cancel(id).await);
}

async fn by_name(api: &Api, topic: &str, seen: &mut Seen) {
    let path = format!("/v1/topics/{topic}/tasks/order-20");
    let put = async |delay: &str, headers: &[(&str, &str)]| {
        let body =
            json!({ "delay": delay, "key": "order-20", "payload": { "remind": "order-20" } });
        api.send_with(Method::PUT, &path, headers, Some(body)).await
    };
    let first = seen.answer("putTask", 201, &put("1h", &[]).await);
    seen.answer("putTask", 200, &put("2h", &[]).await);
    seen.problem("precondition-failed", &put("3h", &[("if-none-match", "*")]).await);
    let id = first["id"].as_str().unwrap().parse().unwrap();
    seen.problem("replaced", &api.cancel(id).await);
    seen.answer("getTaskByName", 200, &api.get(&path).await);
    seen.answer("cancelTaskByName", 200, &api.send(Method::DELETE, &path, None).await);
}

async fn of_many(api: &Api, topic: &str, seen: &mut Seen) {
    let tasks = json!({ "tasks": [
        { "topic": topic, "delay": "1h", "name": "order-21", "payload": 21 },
        { "topic": topic, "name": "order-22", "payload": 22 },
    ] });
    seen.answer("submitBatch", 200, &api.post("/v1/tasks/batch", tasks.to_string()).await);
    api.submit(&json!({ "topic": topic, "delay": "2h", "key": "order-23", "payload": 23 })).await;
    let page = api.get(&format!("/v1/tasks?topic={topic}&limit=1")).await;
    seen.answer("listTasks", 200, &page);
    seen.answer("countTasks", 200, &api.get(&format!("/v1/tasks/counts?topic={topic}")).await);
    let range = json!({ "topic": topic, "dry_run": true });
    seen.answer("cancelTasks", 200, &api.post("/v1/tasks/cancel", range.to_string()).await);
    let later = now_ms() + 1000 * 86_400_000;
    let range = json!({ "topic": topic, "due_to": later, "to": later, "dry_run": true });
    seen.answer("moveTasks", 200, &api.post("/v1/tasks/move", range.to_string()).await);
}

async fn of_the_cluster(api: &Api, seen: &mut Seen) {
    let has_counted = eventually_some("the node has counted the backlog", DEADLINE, async || {
        let answer = api.get("/v1/cluster").await;
        (!answer.json()["backlog"].is_null()).then_some(answer)
    })
    .await;
    seen.answer("getCluster", 200, &has_counted);
    seen.answer("getWhoAmI", 200, &api.get("/v1/whoami").await);
    seen.answer("getLiveness", 200, &api.get("/livez").await);
    seen.answer("getReadiness", 200, &api.get("/readyz").await);
}

async fn refused(api: &Api, topic: &str, seen: &mut Seen) {
    let due = r#""due_at":"2030-01-31T09:30:00Z""#;
    for (slug, body) in [
        ("malformed-json", r#"{"topic":"demo","#.to_owned()),
        ("unknown-field", r#"{"topic":"demo","delya":"5s","payload":1}"#.to_owned()),
        ("duplicate-field", r#"{"topic":"demo","topic":"demo"}"#.to_owned()),
        ("missing-field", r#"{"topic":"demo","payload":1}"#.to_owned()),
        ("conflicting-fields", format!(r#"{{"topic":"demo","delay":"5s",{due},"payload":1}}"#)),
        ("invalid-value", r#"{"topic":"demo","delay":"5","payload":1}"#.to_owned()),
        ("unknown-topic", r#"{"topic":"ordres","delay":"5s","payload":1}"#.to_owned()),
        ("too-far-ahead", format!(r#"{{"topic":"{topic}","delay":"2000d","payload":1}}"#)),
    ] {
        seen.problem(slug, &api.post("/v1/tasks", body).await);
    }
    let large = json!({ "topic": topic, "delay": "5s", "payload_text": "x".repeat(1_100_000) });
    seen.problem("record-too-large", &api.post("/v1/tasks", large.to_string()).await);
    let text = Some(("text/plain", b"tomorrow".to_vec()));
    seen.problem("unsupported-media-type", &api.send(Method::POST, "/v1/tasks", text).await);
    let unknown = "01934b2e-7d3c-8017-9f2b-6a1c0e4d5b7f";
    seen.problem("task-not-found", &api.get(&format!("/v1/tasks/{unknown}")).await);
    seen.problem("not-found", &api.get("/problems/none").await);
}

async fn of_schedules(api: &Api, topic: &str, seen: &mut Seen) {
    let path = format!("/v1/schedules/{topic}/nightly");
    let put = async |note: &str| {
        let body = json!({ "cron": "30 2 * * 1-5", "time_zone": "Europe/Berlin", "key": "backup",
            "payload": { "do": "backup" }, "note": note });
        api.send(Method::PUT, &path, Some(("application/json", body.to_string().into_bytes())))
            .await
    };
    seen.answer("putSchedule", 201, &put("ask Ann").await);
    seen.answer("putSchedule", 200, &put("ask the storage team").await);
    let made = eventually_some("the run is made", DEADLINE, async || {
        let answer = api.get(&format!("{path}?next=2")).await;
        (answer.json()["runs_made"] == 1).then_some(answer)
    })
    .await;
    seen.answer("getSchedule", 200, &made);
    seen.answer("listSchedules", 200, &api.get(&format!("/v1/schedules/{topic}")).await);
    seen.answer("pauseSchedule", 200, &api.post(&format!("{path}/pause"), "").await);
    seen.answer("resumeSchedule", 200, &api.post(&format!("{path}/resume"), "").await);
    seen.answer("triggerSchedule", 201, &api.post(&format!("{path}/trigger"), "").await);
    let hour = 3_600_000;
    let (from, to) = (now_ms() - 72 * hour, now_ms() - hour);
    let range = json!({ "from": from, "to": to, "dry_run": true }).to_string();
    let backfill = api.post(&format!("{path}/backfill"), range).await;
    seen.answer("backfillSchedule", 200, &backfill);
    seen.answer("deleteSchedule", 200, &api.send(Method::DELETE, &path, None).await);
    seen.problem("schedule-not-found", &api.get(&path).await);
}

async fn of_topics(api: &Api, topic: &str, seen: &mut Seen) {
    let path = format!("/v1/topics/{topic}");
    let policy = format!("{path}/policy");
    let body = json!({ "delay_max": "90d" });
    let put = api.send_with(Method::PUT, &policy, &[], Some(body)).await;
    seen.answer("putTopicPolicy", 200, &put);
    let reason = json!({ "reason": "the consumer fails on each record" }).to_string();
    seen.answer("pauseTopic", 200, &api.post(&format!("{path}/pause"), reason).await);
    seen.answer("getTopic", 200, &api.get(&path).await);
    seen.answer("listTopics", 200, &api.get("/v1/topics?limit=1").await);
    seen.answer("resumeTopic", 200, &api.post(&format!("{path}/resume"), "").await);
    seen.answer("deleteTopicPolicy", 200, &api.send(Method::DELETE, &policy, None).await);
    let path = format!("/v1/topics/{topic}/callback");
    let callback = json!({ "url": "https://jobs.example.com/orders", "concurrency": 20,
        "max_per_second": 100, "headers": { "authorization": "Bearer abc" }, "paused": true });
    let body = Some(("application/json", callback.to_string().into_bytes()));
    seen.answer("putCallback", 200, &api.send(Method::PUT, &path, body).await);
    seen.answer("getCallback", 200, &api.get(&path).await);
    seen.answer("deleteCallback", 200, &api.send(Method::DELETE, &path, None).await);
    seen.problem("topic-not-found", &api.get("/v1/topics/ordres").await);
}

/// Lets consumers answer about tracked tasks.
async fn of_consumers(api: &Api, topic: &str, seen: &mut Seen) {
    let mut ids = Vec::new();
    for order in ["order-30", "order-31", "order-32", "order-33", "order-34", "order-35"] {
        let task = json!({
            "topic": topic, "name": order, "delay": 0, "payload": { "order": order }, "ttr": "1h"
        });
        let path = format!("/v1/tasks/{}", api.submit(&task).await.id);
        eventually_some("a consumer has the task", DEADLINE, async || {
            (api.get(&path).await.json()["state"] == "awaiting").then_some(())
        })
        .await;
        ids.push(path.trim_start_matches("/v1/tasks/").to_owned());
    }
    let call = json!({ "group": "mailer", "wait": "20s", "max": 1 }).to_string();
    seen.answer("popTasks", 200, &api.post(&format!("/v1/topics/{topic}/pop"), call).await);
    let first = json!({ "attempt": 1 });
    let failed = json!({ "attempt": 1, "retry_in": "10m", "reason": "the bank does not answer" });
    let longer = json!({ "attempt": 1, "by": "2h" });
    for (operation, call, body, by_id, by_name) in [
        ("finishTask", "finish", &first, 0, "order-31"),
        ("failTask", "fail", &failed, 2, "order-33"),
        ("extendTask", "extend", &longer, 4, "order-35"),
    ] {
        let path = format!("/v1/tasks/{}/{call}", ids[by_id]);
        seen.answer(operation, 200, &api.post(&path, body.to_string()).await);
        let path = format!("/v1/topics/{topic}/tasks/{by_name}/{call}");
        let answer = api.post(&path, body.to_string()).await;
        seen.answer(&format!("{operation}ByName"), 200, &answer);
    }
    let fail = format!("/v1/tasks/{}/fail", ids[0]);
    seen.problem("already-finished", &api.post(&fail, first.to_string()).await);
    let outcomes = json!({ "outcomes": [
        { "id": ids[2], "outcome": "finish" },
        { "topic": topic, "name": "order-35", "outcome": "fail", "attempt": 1, "final": true },
    ] });
    seen.answer("sendOutcomes", 200, &api.post("/v1/outcomes", outcomes.to_string()).await);
}

/// Makes three dead letters: the topic takes their records at submit, and refuses them at the due
/// time.
async fn dead_letters(cluster: &Cluster, api: &Api, topic: &str, seen: &mut Seen) {
    api.learn(topic).await;
    cluster.alter_topic(topic, &[("max.message.bytes", "1000")]).await;
    for order in ["order-24", "order-25", "order-26"] {
        let payload = "x".repeat(2000);
        let task = json!({ "topic": topic, "delay": "1s", "key": order, "payload_text": payload });
        api.submit(&task).await;
    }
    let page = eventually_some("the tasks are dead letters", DEADLINE, async || {
        let page = api.get(&format!("/v1/dead?topic={topic}&limit=3")).await;
        (page.json()["tasks"].as_array().unwrap().len() == 3).then_some(page)
    })
    .await;
    let id = |index: usize| page.json()["tasks"][index]["id"].as_str().unwrap().to_owned();
    seen.answer("listDead", 200, &api.get(&format!("/v1/dead?topic={topic}&limit=1")).await);
    cluster.alter_topic(topic, &[("max.message.bytes", "1000000")]).await;
    let range = json!({ "topic": topic, "dry_run": true }).to_string();
    seen.answer("redriveManyDead", 200, &api.post("/v1/dead/redrive", range.clone()).await);
    seen.answer("dropManyDead", 200, &api.post("/v1/dead/drop", range).await);
    let redrive = format!("/v1/dead/{}/redrive", id(0));
    seen.answer("redriveDead", 200, &api.send(Method::POST, &redrive, None).await);
    let drop = format!("/v1/dead/{}", id(1));
    seen.answer("dropDead", 200, &api.send(Method::DELETE, &drop, None).await);
}
