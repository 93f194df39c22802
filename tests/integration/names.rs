//! Names: each cell of the table in docs/how-to/names.md, and the guarantees when many clients
//! replace and cancel the same names.

mod entries;

use std::collections::{HashMap, HashSet};
use std::time::Duration;

use reqwest::Method;
use serde_json::{Value, json};
use uuid::Uuid;

use crate::support::api::Task;
use crate::support::{Answer, Api, Cluster, Node, Wishes, eventually};

const DEADLINE: Duration = Duration::from_secs(120);
const STATES: [&str; 7] =
    ["unknown", "scheduled", "claimed", "published", "cancelled", "dead", "expired"];
const VERBS: [&str; 4] = ["POST", "PUT", "GET", "DELETE"];

/// Calls by name.
pub trait ByName {
    async fn by_name(&self, method: Method, topic: &str, name: &str, body: Option<Value>)
    -> Answer;

    async fn put(&self, topic: &str, name: &str, body: Value) -> Answer {
        self.by_name(Method::PUT, topic, name, Some(body)).await
    }
}

impl ByName for Api {
    async fn by_name(
        &self,
        method: Method,
        topic: &str,
        name: &str,
        body: Option<Value>,
    ) -> Answer {
        let body = body.map(|body| ("application/json", body.to_string().into_bytes()));
        self.send(method, &format!("/v1/topics/{topic}/tasks/{name}"), body).await
    }
}

fn new_task() -> Value {
    json!({ "delay": "2h", "payload_text": "new" })
}

/// Makes a name for each cell, with a task in the state of the cell. Returns the first task of
/// each.
async fn prepare(cluster: &Cluster, node: &Node, topic: &str) -> HashMap<String, Task> {
    let names = |state: &str| VERBS.map(|verb| format!("{state}-{verb}"));
    let mut tasks = Vec::new();
    let mut add = |state: &str, fields: Value| {
        tasks.extend(names(state).map(|name| {
            let mut task = fields.clone();
            task["topic"] = topic.into();
            task["name"] = name.into();
            task
        }));
    };
    let long = "x".repeat(100_000);
    for state in ["scheduled", "cancelled"] {
        add(state, json!({ "delay": "1h", "payload_text": "first" }));
    }
    for state in ["published", "expired"] {
        add(state, json!({ "delay": 0, "payload_text": "first" }));
    }
    add("dead", json!({ "delay": "2s", "payload_text": long }));
    node.api().learn(topic).await;
    cluster.alter_topic(topic, &[("max.message.bytes", "20000")]).await;
    let mut firsts = node.api().submit_all(&tasks).await;
    for name in names("cancelled") {
        assert_eq!(
            node.api().by_name(Method::DELETE, topic, &name, None).await.verdict(),
            "cancelled"
        );
    }
    cluster.wait_final(16, DEADLINE).await;
    let expire = "update task_name set expires_at = clock_timestamp() - interval '1 second' where \
                  name like 'expired-%'";
    assert_eq!(sqlx::query(expire).execute(&cluster.sql).await.unwrap().rows_affected(), 4);
    // The window of this cluster is ten seconds.
    let claimed: Vec<Value> = names("claimed")
        .iter()
        .map(|name| json!({ "topic": topic, "name": name, "delay": "8s", "payload_text": "first" }))
        .collect();
    firsts.extend(node.api().submit_all(&claimed).await);
    firsts.into_iter().map(|task| (task.shown["name"].as_str().unwrap().to_owned(), task)).collect()
}

/// Returns the status and the state of the task in the answer.
fn wanted(verb: &str, state: &str) -> (u16, &'static str) {
    let shown = match state {
        "scheduled" => "scheduled",
        "claimed" => "claimed",
        "published" => "published",
        "cancelled" => "cancelled",
        "dead" => "dead",
        _ => "",
    };
    match (verb, state) {
        ("POST" | "PUT", "unknown" | "expired") => (201, "scheduled"),
        ("POST", _) => (200, shown),
        ("PUT", "scheduled") => (200, "scheduled"),
        ("PUT" | "DELETE", "claimed") => (409, "claimed"),
        ("PUT", _) => (201, "scheduled"),
        (_, "unknown" | "expired") => (404, ""),
        ("DELETE", "scheduled") => (200, "cancelled"),
        ("DELETE", "published" | "dead") => (409, shown),
        _ => (200, shown),
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn each_cell_of_the_table_of_names_is_true() {
    let cluster = Cluster::with("cells", Wishes { window: "10s", ..Wishes::default() }).await;
    let topic = cluster.topic("orders").await;
    let node = cluster.node().await;
    let api = node.api();
    let firsts = prepare(&cluster, &node, &topic).await;
    // The claimed tasks first, because they are published soon.
    let mut cells: Vec<(&str, &str)> =
        STATES.iter().flat_map(|state| VERBS.map(|verb| (verb, *state))).collect();
    cells.sort_by_key(|(_, state)| *state != "claimed");
    for (verb, state) in cells {
        let name = format!("{state}-{verb}");
        let answer = match verb {
            "POST" => {
                let mut task = new_task();
                task["topic"] = topic.clone().into();
                task["name"] = name.clone().into();
                api.post("/v1/tasks", task.to_string()).await
            }
            "PUT" => api.put(&topic, &name, new_task()).await,
            other => api.by_name(other.parse().unwrap(), &topic, &name, None).await,
        };
        let (status, shown) = wanted(verb, state);
        assert_eq!(answer.status, status, "{verb} x {state}: {}", answer.text);
        let is_whole = matches!(verb, "POST" | "PUT" | "GET") && status < 300;
        let task = if is_whole { answer.json() } else { answer.json()["task"].clone() };
        assert_eq!(
            task["state"].as_str().unwrap_or_default(),
            shown,
            "{verb} x {state}: {}",
            answer.text
        );
        if verb == "DELETE" {
            let verdict = match status {
                200 => "cancelled",
                409 => "too_late",
                _ => "not_found",
            };
            assert_eq!(answer.verdict(), verdict, "{verb} x {state}");
        }
        if status == 404 {
            continue;
        }
        let task = Task::new(task);
        let is_first = firsts.get(&name).is_some_and(|first| first.id == task.id);
        assert_eq!(
            is_first,
            status == 409 || (status == 200 && verb != "PUT"),
            "{verb} x {state}: {}",
            answer.text
        );
        // The task that has the name from now on.
        let found = Task::new(api.by_name(Method::GET, &topic, &name, None).await.json());
        assert_eq!(found.id, task.id, "{verb} x {state}");
    }
    let replaced = api.task(firsts["scheduled-PUT"].id).await;
    assert_eq!(replaced.state, "cancelled", "what was replaced is cancelled");
    let stands = api.by_name(Method::GET, &topic, "scheduled-PUT", None).await.json();
    assert_eq!(replaced.shown["replaced_by"], stands["id"]);
    for name in ["published-PUT", "dead-PUT", "cancelled-PUT", "scheduled-DELETE", "claimed-PUT"] {
        let task = api.task(firsts[name].id).await;
        assert_eq!(
            task.shown.get("replaced_by"),
            None,
            "what was final, or stayed, was not replaced: {}",
            task.shown
        );
    }
    let lines = cluster
        .count(
            "select count(*) from execlog_cancelled where name in ('scheduled-PUT', \
             'scheduled-DELETE')",
        )
        .await;
    assert_eq!(lines, 2, "each has its line");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_name_makes_one_task_within_a_batch_between_batches_and_between_nodes() {
    let cluster = Cluster::start("repeated-names").await;
    let topic = cluster.topic("orders").await;
    let (first, second) = tokio::join!(cluster.node(), cluster.node());
    let consumer = cluster.consumer(&topic);
    // Due at once, soon, after the window, and far ahead. Each name occurs three times, with tasks
    // without a name in between.
    let delays = [0, 100, 1500, 20_000_000];
    let task = |number: usize| {
        json!({
            "topic": topic,
            "delay": delays[number % 4],
            "payload_text": number.to_string(),
            "name": format!("n{number}"),
        })
    };
    let named: Vec<Value> = (0..400).map(task).collect();
    let plain: Vec<Value> =
        (0..100).map(|_| json!({ "topic": topic, "delay": 10, "payload_text": "plain" })).collect();
    let tasks = [named.as_slice(), plain.as_slice(), named.as_slice(), &named[..200]].concat();
    let body = json!({ "tasks": tasks }).to_string();
    let batches = [first.api(), second.api(), first.api(), second.api()]
        .map(|api| api.post("/v1/tasks/batch", body.clone()));
    let answers = futures_util::future::join_all(batches).await;
    let mut ids: HashMap<String, HashSet<Uuid>> = HashMap::new();
    let (mut created, mut plain_created) = (0, 0);
    for answer in &answers {
        let results = answer.json()["results"].as_array().unwrap().clone();
        assert_eq!(results.len(), tasks.len());
        for (result, submitted) in results.iter().zip(&tasks) {
            let task = Task::new(result["task"].clone());
            match submitted["name"].as_str() {
                Some(name) => {
                    assert!(result["status"] == 201 || result["status"] == 200, "{result}");
                    created += usize::from(result["status"] == 201);
                    assert_eq!(task.shown["name"], name);
                    ids.entry(name.to_owned()).or_default().insert(task.id);
                }
                None => {
                    assert_eq!(result["status"], 201);
                    plain_created += 1;
                }
            }
        }
    }
    assert_eq!((created, plain_created, ids.len()), (400, 400, 400));
    assert!(ids.values().all(|ids| ids.len() == 1), "a name has one task");
    let records = consumer.wait_count(300 + 400, DEADLINE).await;
    assert_eq!(records.len(), 300 + 400, "each name is published once");
    assert_eq!(cluster.count("select count(*) from task_name").await, 400);
    assert_eq!(cluster.count("select count(*) from task_far").await, 100);
    cluster.wait_final(700, DEADLINE).await;
    // Long after the end, the name is still known, with the final state.
    let again = json!({ "tasks": named }).to_string();
    let results = second.api().post("/v1/tasks/batch", again).await.json()["results"]
        .as_array()
        .unwrap()
        .clone();
    for (number, result) in results.iter().enumerate() {
        let state = if number % 4 == 3 { "scheduled" } else { "published" };
        assert_eq!(
            (&result["status"], &result["task"]["state"]),
            (&json!(200), &json!(state)),
            "{result}"
        );
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_name_is_free_after_its_retention_and_never_while_its_task_is_pending() {
    // With short leaves the maintenance comes round every few seconds.
    let cluster =
        Cluster::with("free-names", Wishes { leaf: "2s", horizon: "60s", ..Wishes::default() })
            .await;
    let topic = cluster.topic("orders").await;
    let node = cluster.node_with(&["--name-retention", "1s"]).await;
    let task = |name: &str, delay: &str| {
        json!({
            "topic": topic,
            "delay": delay,
            "payload_text": "x",
            "name": name,
        })
    };
    let (short, pending) = (
        node.api().submit(&task("short", "0s")).await,
        node.api().submit(&task("pending", "1h")).await,
    );
    sqlx::query(
        "update task_name set expires_at = clock_timestamp() - interval '1 hour' where name = \
         'pending'",
    )
    .execute(&cluster.sql)
    .await
    .unwrap();
    let known = node.api().post("/v1/tasks", task("pending", "1h").to_string()).await;
    assert_eq!(
        (known.status, Task::new(known.json()).id),
        (200, pending.id),
        "its task is pending"
    );
    eventually("an expired name is swept", DEADLINE, async || {
        cluster.count("select count(*) from task_name where name = 'short'").await == 0
    })
    .await;
    assert_ne!(node.api().submit(&task("short", "1h")).await.id, short.id);
    assert_eq!(node.api().by_name(Method::GET, &topic, "pending", None).await.status, 200);
    assert_eq!(
        node.api().by_name(Method::DELETE, &topic, "pending", None).await.verdict(),
        "cancelled"
    );
}

/// An overdue task waits: its topic is paused, or Kafka is away. Its entry is kept for the
/// retention after the due time, and after a cancel for as long as after any other end.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_repeated_submit_makes_no_task_again_after_the_cancel_of_one_that_was_long_overdue() {
    let cluster = Cluster::start("late-cancels").await;
    let topic = cluster.topic("orders").await;
    let node = cluster.node().await;
    let api = node.api();
    let names = ["by-id", "by-name", "with-others"];
    let tasks = names
        .map(|name| json!({ "topic": topic, "name": name, "delay": "1h", "payload_text": "x" }));
    let firsts = api.submit_all(&tasks).await;
    let overdue = "update task_name set expires_at = clock_timestamp() - interval '1 second'";
    assert_eq!(sqlx::query(overdue).execute(&cluster.sql).await.unwrap().rows_affected(), 3);
    assert_eq!(api.cancel(firsts[0].id).await.verdict(), "cancelled");
    let by_name = format!("/v1/topics/{topic}/tasks/by-name");
    let current = format!("\"{}\"", firsts[1].id);
    let if_match = [("if-match", current.as_str())];
    let conditional = api.send_with(Method::DELETE, &by_name, &if_match, None).await;
    assert_eq!(conditional.verdict(), "cancelled");
    let others = json!({ "topic": topic, "names": ["with-others"] });
    let many = api.post("/v1/tasks/cancel", others.to_string()).await;
    assert_eq!((many.status, &many.json()["cancelled"]), (200, &json!(1)), "{}", many.text);
    for (task, first) in tasks.iter().zip(&firsts) {
        let again = api.post("/v1/tasks", task.to_string()).await;
        assert_eq!((again.status, Task::new(again.json()).id), (200, first.id), "{}", again.text);
        assert_eq!(again.json()["state"], "cancelled", "{}", again.text);
    }
    let kept = "select count(*) from task_name \
                where expires_at > clock_timestamp() + interval '23 hours'";
    assert_eq!(cluster.count(kept).await, 3);
}

/// A submit without an answer is repeated unchanged, although the limits of the topic and the clock
/// have changed since.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_known_name_is_answered_with_its_task_also_when_the_submit_would_be_refused_now() {
    let cluster = Cluster::start("refused-names").await;
    let topic = cluster.topic("orders").await;
    let node = cluster.node().await;
    let api = node.api();
    let first = api
        .submit(&json!({ "topic": topic, "name": "known", "delay": "1h", "payload_text": "first" }))
        .await;
    let long = "x".repeat(1_100_000);
    let too_far =
        |name: &str| json!({ "topic": topic, "name": name, "delay": "9999d", "payload_text": "x" });
    let too_large =
        |name: &str| json!({ "topic": topic, "name": name, "delay": "1h", "payload_text": long });
    for repeated in [too_far("known"), too_large("known")] {
        let answer = api.post("/v1/tasks", repeated.to_string()).await;
        assert_eq!(
            (answer.status, Task::new(answer.json()).id),
            (200, first.id),
            "{}",
            answer.text
        );
        assert_eq!(answer.json()["payload_text"], "first", "in full");
    }
    let mut nameless = too_far("-");
    nameless.as_object_mut().unwrap().remove("name");
    let mut elsewhere = too_far("known");
    elsewhere["topic"] = "nowhere".into();
    let new = json!({ "topic": topic, "name": "new", "delay": "1h", "payload_text": "x" });
    let tasks = [
        too_far("known"),
        nameless,
        too_far("unknown"),
        too_large("new"),
        new,
        elsewhere,
        too_large("known"),
    ];
    let answer = api.post("/v1/tasks/batch", json!({ "tasks": tasks }).to_string()).await.json();
    let results = answer["results"].as_array().unwrap();
    let statuses: Vec<&Value> = results.iter().map(|result| &result["status"]).collect();
    assert_eq!(statuses, [200, 422, 422, 200, 201, 422, 200], "{answer}");
    for known in [0, 6] {
        assert_eq!(
            (&results[known]["task"]["id"], &results[known]["task"]["state"]),
            (&json!(first.id.to_string()), &json!("scheduled"))
        );
    }
    assert_eq!(
        results[3]["task"]["id"], results[4]["task"]["id"],
        "a name within a batch has one task"
    );
    assert_eq!(cluster.count("select count(*) from task").await, 2, "nothing else was stored");
}
