//! The same over REST and on the command line, with two principals and their tokens.

use punctual::failpoint::Failpoint;
use reqwest::Method;
use serde_json::{Value, json};

use crate::support::{Answer, Api, Cluster, Node, eventually};
use crate::tokens::{AuthFile, run, text};

use super::Duration;

const DEADLINE: Duration = Duration::from_secs(120);

/// A principal with its token.
struct Caller {
    name: &'static str,
    token: String,
    lines: String,
}

impl Caller {
    async fn new(name: &'static str) -> Self {
        let made = run(&["token", "new", "--principal", name], "").await;
        let lines = text(&made.stderr).replace("roles  = []", r#"roles  = ["all"]"#);
        Self { name, token: text(&made.stdout).trim().to_owned(), lines }
    }

    async fn send(&self, api: &Api, method: Method, path: &str, body: Option<Value>) -> Answer {
        let field = format!("Bearer {}", self.token);
        api.send_with(method, path, &[("authorization", &field)], body).await
    }

    async fn submit(&self, api: &Api, task: Value) -> String {
        let answer = self.send(api, Method::POST, "/v1/tasks", Some(task)).await;
        assert_eq!(answer.status, 201, "{}", answer.text);
        answer.json()["id"].as_str().unwrap().to_owned()
    }

    async fn task(&self, api: &Api, id: &str) -> Value {
        let answer = self.send(api, Method::GET, &format!("/v1/tasks/{id}"), None).await;
        assert_eq!(answer.status, 200, "{}", answer.text);
        answer.json()
    }

    async fn wait_state(&self, api: &Api, id: &str, state: &str, attempt: i64) -> Value {
        eventually(&format!("the task is {state}"), DEADLINE, async || {
            let task = self.task(api, id).await;
            task["state"] == state && task["attempt"] == attempt
        })
        .await;
        self.task(api, id).await
    }
}

fn submitted(task: &Value) -> (Value, Value) {
    assert!(task["submitted_at"].is_string(), "{task}");
    (task["submitted_by"].clone(), task["submitted_at"].clone())
}

async fn ready(mut node: Node) -> Node {
    node.wait_ready().await;
    node
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_did_what_is_told_by_look_ups_lists_and_the_command_line() {
    let cluster = Cluster::start("who").await;
    let topic = cluster.topic("orders").await;
    let strict = cluster.topic_with("strict", &[("max.message.bytes", "1000000")]).await;
    let (ann, bob) = (Caller::new("ann").await, Caller::new("bob").await);
    let role = r#"allow = [{ actions = ["*"], topics = ["*"] }]"#;
    let rights = format!("version = 1\n[roles.all]\n{role}\n{}\n{}", ann.lines, bob.lines);
    let file = AuthFile::new("who", &rights);
    let with_file = ["--auth-file", file.path()];

    // The first node is killed when it has claimed the first task that is due.
    let dying = cluster.spawn_to_die_with(Failpoint::ClaimCommitted.name(), &with_file);
    let mut dying = ready(dying).await;
    let api = dying.api().clone();
    let of = |delay: &str| json!({ "topic": topic, "delay": delay, "payload": 1 });
    let named = format!("/v1/topics/{topic}/tasks/n");
    let put = json!({ "delay": "1h", "payload": 1 });
    let created = ann.send(&api, Method::PUT, &named, Some(put.clone())).await;
    assert_eq!(created.status, 201, "{}", created.text);
    let first = created.json()["id"].as_str().unwrap().to_owned();
    let far = ann.submit(&api, of("10d")).await;
    let body = json!({ "tasks": [of("1h"), of("2h")] });
    let bulk = ann.send(&api, Method::POST, "/v1/tasks/batch", Some(body)).await.json();
    let bulk = [0, 1].map(|n| bulk["results"][n]["task"]["id"].as_str().unwrap().to_owned());
    let waiting = [&first, &far, &bulk[0], &bulk[1]];
    let mut before = Vec::new();
    for id in waiting {
        before.push(submitted(&ann.task(&api, id).await));
        assert_eq!(before.last().unwrap().0, ann.name);
    }
    let soon = ann.submit(&api, of("1s")).await;
    assert!(!dying.wait_exit(DEADLINE).await.success());

    let heir = cluster.node_with(&with_file).await;
    let api = heir.api();
    let published = ann.wait_state(api, &soon, "published", 1).await;
    assert_eq!(submitted(&published).0, "ann", "adopted");
    for (id, before) in waiting.into_iter().zip(&before) {
        assert_eq!(submitted(&ann.task(api, id).await), *before);
    }
    let now = ann.submit(api, of("0s")).await;
    assert_eq!(submitted(&ann.wait_state(api, &now, "published", 1).await).0, "ann");

    // In the place of the named task comes one of bob.
    let replaced = bob.send(api, Method::PUT, &named, Some(put)).await;
    assert_eq!(replaced.status, 200, "{}", replaced.text);
    let second = replaced.json()["id"].as_str().unwrap().to_owned();
    assert_eq!(submitted(&bob.task(api, &second).await).0, "bob");
    let former = bob.task(api, &first).await;
    assert_eq!(submitted(&former), before[0]);
    assert_eq!((&former["state"], &former["cancelled_by"]), (&"cancelled".into(), &"bob".into()));
    let cancelled =
        bob.send(api, Method::DELETE, &format!("/v1/tasks/{}", bulk[0]), None).await.json();
    assert_eq!(cancelled["task"], bob.task(api, &bulk[0]).await);
    assert_eq!(cancelled["task"]["cancelled_by"], "bob");

    // A dead letter, put back, dead again, and dropped.
    ann.submit(api, json!({ "topic": strict, "delay": "0s", "payload": 1 })).await;
    cluster.alter_topic(&strict, &[("max.message.bytes", "20000")]).await;
    let large = json!({ "topic": strict, "delay": "0s", "payload_text": "x".repeat(100_000) });
    let doomed = ann.submit(api, large).await;
    let died = submitted(&ann.wait_state(api, &doomed, "dead", 1).await);
    let list = ann.send(api, Method::GET, &format!("/v1/dead?topic={strict}"), None).await.json();
    assert_eq!(submitted(&list["tasks"][0]), died);
    let path = format!("/v1/dead/{doomed}");
    let redriven = bob.send(api, Method::POST, &format!("{path}/redrive"), None).await;
    assert_eq!((redriven.status, submitted(&redriven.json())), (200, died.clone()));
    assert_eq!(submitted(&ann.wait_state(api, &doomed, "dead", 2).await), died);
    let dropped = bob.send(api, Method::DELETE, &path, None).await;
    assert_eq!(dropped.status, 200, "{}", dropped.text);
    let view = ann.task(api, &doomed).await;
    assert_eq!((&view["state"], &view["dropped_by"]), (&"dead".into(), &"bob".into()));
    assert_eq!((submitted(&view), &view["reason"]), (died, &list["tasks"][0]["reason"]));
    assert!(view["dropped_at"].is_string() && view["payload_text"].is_null(), "{view}");

    // After a leak: all that waits of ann, on the command line.
    let token = AuthFile::new("token", &bob.token);
    let own = ["--url", api.base(), "--token-file", token.path()];
    let command = async |words: &[&str]| {
        let output = run(&[words, &own].concat(), "").await;
        assert!(output.status.success(), "{}", text(&output.stderr));
        text(&output.stdout)
    };
    let listed = command(&["list", "--submitted-by", "ann", "--json"]).await;
    let ids: Vec<Value> = listed
        .lines()
        .map(|line| serde_json::from_str::<Value>(line).unwrap()["id"].take())
        .collect();
    assert_eq!(ids, [Value::from(bulk[1].as_str()), Value::from(far.as_str())]);
    let shown = command(&["show", &doomed]).await;
    assert!(shown.contains("\nsubmitted   ") && shown.contains(" by ann\n"), "{shown}");
    let dry = command(&["cancel", "--submitted-by", "ann", "--dry-run"]).await;
    assert!(dry.starts_with("2 tasks would be cancelled"), "{dry}");
    let done = command(&["cancel", "--submitted-by", "ann", "--yes"]).await;
    assert!(done.starts_with("2 tasks cancelled"), "{done}");
    assert_eq!(command(&["list", "--submitted-by", "ann", "--json"]).await, "");
    assert_eq!(bob.task(api, &second).await["state"], "scheduled");
    let query = "select count(*) from execlog where ended_by = 'bob' and submitted_by = 'ann'";
    // The replaced one, the cancelled ones, the death that was put back, and the drop.
    assert_eq!(cluster.count(query).await, 6);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn records_name_their_submitter_where_the_policy_of_the_topic_asks_for_it() {
    let cluster = Cluster::start("signed").await;
    let (signed, plain) = (cluster.topic("signed").await, cluster.topic("plain").await);
    let consumers = [cluster.consumer(&signed), cluster.consumer(&plain)];
    let (ann, bob) = (Caller::new("ann").await, Caller::new("bob").await);
    let all = r#"allow = [{ actions = ["*"], topics = ["*"] }]"#;
    let operator = ann.lines.replace("roles ", "operate = true\nroles ");
    let rights = format!("version = 1\n[roles.all]\n{all}\n{operator}\n{}", bob.lines);
    let file = AuthFile::new("signed", &rights);
    let node = cluster.node_with(&["--auth-file", file.path()]).await;
    let api = node.api();
    let policy = json!({ "submitted_by_header": true, "ttr": "30s" });
    let path = format!("/v1/topics/{signed}/policy");
    let set = ann.send(api, Method::PUT, &path, Some(policy.clone())).await;
    assert_eq!((set.status, &set.json()["policy"]["submitted_by_header"]), (200, &json!(true)));
    let task = |topic: &str, name: &str| {
        let headers = json!({ "a": "1" });
        json!({ "topic": topic, "name": name, "delay": "0s", "payload": 1, "headers": headers })
    };
    let later = json!({ "topic": signed, "delay": "1h", "payload": 1 });
    eventually("the node knows the policy", DEADLINE, async || {
        let id = ann.submit(api, later.clone()).await;
        ann.task(api, &id).await["ttr"] == "30s"
    })
    .await;
    let forged = json!({ "punctual-submitted-by": "ann" });
    let forged = json!({ "topic": signed, "delay": 0, "payload": 1, "headers": forged });
    let refused = bob.send(api, Method::POST, "/v1/tasks", Some(forged)).await;
    assert_eq!(refused.status, 400, "{}", refused.text);
    for (caller, topic) in [(&ann, &signed), (&bob, &signed), (&bob, &plain)] {
        caller.submit(api, task(topic, caller.name)).await;
    }
    // A replacement is of its own submitter.
    for caller in [&ann, &bob] {
        let delay = if caller.name == "ann" { "1h" } else { "0s" };
        let put = json!({ "delay": delay, "payload": caller.name });
        let path = format!("/v1/topics/{signed}/tasks/replaced");
        let done = caller.send(api, Method::PUT, &path, Some(put)).await;
        assert!([200, 201].contains(&done.status), "{}", done.text);
    }
    let records = consumers[0].wait_count(3, DEADLINE).await;
    let mut names: Vec<&[u8]> =
        records.iter().filter_map(|record| record.header("punctual-submitted-by")).collect();
    names.sort_unstable();
    assert_eq!(names, [b"ann".as_slice(), b"bob", b"bob"]);
    let records = consumers[1].wait_count(1, DEADLINE).await;
    assert!(records[0].header("punctual-submitted-by").is_none());
    assert_eq!(records[0].header("a"), Some(b"1".as_slice()));
}
