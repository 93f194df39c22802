//! The rights of a consumer on tasks by their ids: many outcomes at once get the answers that each
//! gets alone.

use std::time::Duration;

use reqwest::Method;
use serde_json::{Value, json};
use uuid::Uuid;

use crate::support::{Answer, Api, Cluster, eventually};
use crate::tokens::{AuthFile, run, text};

const DEADLINE: Duration = Duration::from_secs(120);
const COUNT: usize = 1_000;

/// A principal with its token, and its lines of the auth file.
struct Caller {
    token: String,
    lines: String,
}

impl Caller {
    /// Makes a caller who may take these actions on the topics of a pattern.
    async fn new(name: &str, actions: &str, topics: &str) -> Self {
        let made = run(&["token", "new", "--principal", name], "").await;
        let allow = format!("allow = [{{ actions = [\"{actions}\"], topics = [\"{topics}\"] }}]");
        let lines = text(&made.stderr).replace("roles  = []", &allow);
        assert!(lines.contains(&allow), "{lines}");
        Self { token: text(&made.stdout).trim().to_owned(), lines }
    }

    async fn send(&self, api: &Api, method: Method, path: &str, body: Option<Value>) -> Answer {
        let field = format!("Bearer {}", self.token);
        let answer = api.send_with(method, path, &[("authorization", &field)], body).await;
        assert!(answer.status < 500, "{path}: {}", answer.text);
        answer
    }

    async fn done(&self, api: &Api, method: Method, path: &str, body: Option<Value>) -> Value {
        let answer = self.send(api, method, path, body).await;
        assert!(answer.status < 300, "{path}: {}", answer.text);
        answer.json()
    }

    /// Submits `count` copies of a task, and returns their ids.
    async fn submit(&self, api: &Api, task: &Value, count: usize) -> Vec<String> {
        let body = json!({ "tasks": vec![task.clone(); count] });
        let done = self.done(api, Method::POST, "/v1/tasks/batch", Some(body)).await;
        let results = done["results"].as_array().unwrap();
        results.iter().map(|one| one["task"]["id"].as_str().unwrap().to_owned()).collect()
    }

    async fn outcomes(&self, api: &Api, items: &[Value]) -> Vec<Value> {
        let body = Some(json!({ "outcomes": items }));
        let done = self.done(api, Method::POST, "/v1/outcomes", body).await;
        done["results"].as_array().unwrap().clone()
    }
}

/// Returns what the answer to one call and the result of one of many calls have in common: status,
/// verdict, the type of the problem, and the state of the task.
fn told(status: u16, answer: &Value, problem: &Value) -> (u16, [Value; 3]) {
    let task = if problem.is_null() { &answer["task"] } else { &problem["task"] };
    (status, [&answer["verdict"], &problem["type"], &task["state"]].map(Value::clone))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn many_outcomes_get_the_answers_that_each_gets_alone() {
    let cluster = Cluster::start("permits").await;
    let (own, other) = (cluster.topic("own").await, cluster.topic("other").await);
    let (ann, bob) = (Caller::new("ann", "*", "*").await, Caller::new("bob", "finish", &own).await);
    let file = AuthFile::new("permits", &format!("version = 1\n{}\n{}", ann.lines, bob.lines));
    let node = cluster.node_with(&["--auth-file", file.path()]).await;
    let api = node.api();
    let task = |topic: &str, delay: &str| json!({ "topic": topic, "delay": delay, "payload": 1 });
    let tracked = |topic: &str, delay: &str| {
        let mut task = task(topic, delay);
        task["ttr"] = json!("1h");
        task
    };

    let consumer = cluster.consumer(&own);
    let given = ann.submit(api, &tracked(&own, "0s"), 300).await;
    let published = ann.submit(api, &task(&own, "0s"), 20).await;
    let pending = ann.submit(api, &tracked(&own, "1h"), 60).await;
    let hidden = ann.submit(api, &tracked(&other, "0s"), 60).await;
    let hidden_pending = ann.submit(api, &tracked(&other, "1h"), 60).await;
    consumer.wait_count(320, DEADLINE).await;
    let path = |id: &str, what: &str| format!("/v1/tasks/{id}{what}");
    for id in &pending[..20] {
        ann.done(api, Method::PATCH, &path(id, ""), Some(json!({ "delay": "3h" }))).await;
    }
    for id in &pending[20..40] {
        ann.done(api, Method::DELETE, &path(id, ""), None).await;
    }
    let finish = |id: &String| json!({ "id": id, "outcome": "finish" });
    let fail = |id: &String| json!({ "id": id, "outcome": "fail", "attempt": 1, "retry_in": "1h" });
    let dead = |id: &String| json!({ "id": id, "outcome": "fail", "attempt": 1, "final": true });
    let before: Vec<Value> = given[..20]
        .iter()
        .map(finish)
        .chain(given[20..40].iter().map(fail))
        .chain(given[40..60].iter().map(dead))
        .collect();
    let results = bob.outcomes(api, &before).await;
    assert!(results.iter().all(|result| result["status"] == 200), "{results:?}");
    let list = format!("/v1/dead?topic={own}");
    eventually("the last attempts have failed", DEADLINE, async || {
        let dead = ann.done(api, Method::GET, &list, None).await;
        dead["tasks"].as_array().unwrap().len() == 20
    })
    .await;

    let mut ids = [given, published, pending, hidden, hidden_pending].concat();
    let first: Uuid = ids[0].parse().unwrap();
    // Other ids with the same due time and shard.
    let unknown = (1..).map(|n: u128| Uuid::from_u128(first.as_u128() ^ n).to_string());
    ids.extend(unknown.take(COUNT - ids.len()));
    // The attempt is too high, so no call changes anything.
    let item = |id: &String| json!({ "id": id, "outcome": "fail", "attempt": 99 });
    let items: Vec<Value> = ids.iter().map(item).collect();
    let results = bob.outcomes(api, &items).await;
    assert_eq!(results.len(), COUNT);
    let body = json!({ "attempt": 99 });
    for (id, result) in ids.iter().zip(&results) {
        let status = result["status"].as_u64().unwrap().try_into().unwrap();
        let among_many = told(status, result, &result["problem"]);
        let answer = bob.send(api, Method::POST, &path(id, "/fail"), Some(body.clone())).await;
        let json = answer.json();
        assert_eq!(told(answer.status, &json, &json), among_many, "{id}: {result}");
    }
    let count = |verdict: &str| results.iter().filter(|one| one["verdict"] == verdict).count();
    let verdicts = ["attempt_too_high", "already_finished", "dead", "not_published_yet"];
    assert_eq!(verdicts.map(count), [260, 20, 20, 40]);
    // 40 tasks more of the caller's topic are untracked, or cancelled.
    assert_eq!(count("not_found"), COUNT - 380);

    // The whole is repeated as finishes, and only the caller's tasks are finished.
    let items: Vec<Value> = ids.iter().map(finish).collect();
    let finished = bob.outcomes(api, &items).await;
    let finished = finished.iter().filter(|result| result["verdict"] == "finished").count();
    assert_eq!(finished, 280, "awaiting, retrying or finished before");
    let query = "select count(*) from execlog_finished";
    assert_eq!(cluster.count(query).await, 280);
}
