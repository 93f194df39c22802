//! Rights that end: while a bulk change runs or a pop waits, and when a token expires although the
//! clock jumps or Postgres is away.

use std::time::{Duration, Instant};

use reqwest::Method;
use serde_json::{Value, json};

use crate::support::proxy::{Proxy, Target};
use crate::support::wait::until;
use crate::support::{Answer, Api, Cluster, Node, eventually, now_ms};
use crate::tokens::{AuthFile, run, text};

const DEADLINE: Duration = Duration::from_secs(60);

/// A token, and the lines of its principal without rights.
pub struct Caller {
    token: String,
    lines: String,
}

impl Caller {
    pub async fn new(name: &str) -> Self {
        let made = run(&["token", "new", "--principal", name], "").await;
        Self { token: text(&made.stdout).trim().to_owned(), lines: text(&made.stderr) }
    }

    /// Returns the lines with rights.
    pub fn with_rights(&self) -> String {
        let lines = self.lines.replace("roles  = []", r#"roles  = ["all"]"#);
        assert_ne!(lines, self.lines);
        lines
    }

    /// Returns the lines with rights, for a token that expires.
    fn that_expires(&self, at_ms: i64) -> String {
        let at = jiff::Timestamp::from_millisecond(at_ms / 1000 * 1000).unwrap();
        let lines = self.with_rights().replace("\" },\n]", &format!("\", expires = {at} }},\n]"));
        assert!(lines.contains("expires"), "{lines}");
        lines
    }

    pub async fn send(&self, api: &Api, method: Method, path: &str, body: Option<Value>) -> Answer {
        let field = format!("Bearer {}", self.token);
        api.send_with(method, path, &[("authorization", &field)], body).await
    }

    async fn status(&self, api: &Api) -> u16 {
        self.send(api, Method::GET, "/v1/whoami", None).await.status
    }
}

/// Returns the text of an auth file.
pub fn file_of(principals: &[String]) -> String {
    let role = r#"allow = [{ actions = ["*"], topics = ["*"] }]"#;
    format!("version = 1\n[roles.all]\n{role}\n{}", principals.join("\n"))
}

async fn listening(mut node: Node) -> Node {
    node.wait_listening().await;
    node
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_bulk_change_whose_right_is_revoked_ends_at_its_limit_and_is_not_continued() {
    let cluster = Cluster::start("revoked").await;
    let topic = cluster.topic("orders").await;
    let caller = Caller::new("ann").await;
    let file = AuthFile::new("revoked", &file_of(&[caller.with_rights()]));
    let node = cluster.node_with(&["--auth-file", file.path()]).await;
    let api = node.api();
    let task = |n: i64| json!({ "topic": topic, "due_at": now_ms() + 3_600_000 + n, "payload": n });
    for first in 0..8 {
        let tasks: Vec<Value> = (0..1000).map(|n| task(first * 1000 + n)).collect();
        let answer = caller
            .send(api, Method::POST, "/v1/tasks/batch", Some(json!({ "tasks": tasks })))
            .await;
        assert_eq!(answer.status, 200, "{}", answer.text);
    }
    // Each piece takes a second.
    sqlx::raw_sql(
        "create function slow() returns trigger language plpgsql as
           'begin perform pg_sleep(1); return null; end';
         create trigger slow after delete on task for each statement execute function slow()",
    )
    .execute(&cluster.sql)
    .await
    .unwrap();
    let began = Instant::now();
    let all = json!({ "topic": topic });
    let cancel = caller.send(api, Method::POST, "/v1/tasks/cancel", Some(all.clone()));
    let revoke = async {
        let cancelled = "select count(*) from execlog_cancelled";
        eventually("it has begun", DEADLINE, async || cluster.count(cancelled).await > 0).await;
        std::fs::write(file.path(), file_of(std::slice::from_ref(&caller.lines))).unwrap();
        eventually("the right is revoked", DEADLINE, async || {
            let list = format!("/v1/tasks?topic={topic}");
            caller.send(api, Method::GET, &list, None).await.status == 403
        })
        .await;
        began.elapsed()
    };
    let (answer, revoked_after) = tokio::join!(cancel, revoke);
    let took = began.elapsed();
    // The request began with the right, so it goes on to its bound.
    assert_eq!(answer.status, 200, "{}", answer.text);
    assert!(revoked_after < took, "{revoked_after:?}, {took:?}");
    let done = answer.json();
    let cancelled = done["cancelled"].as_i64().unwrap();
    assert!((1..8000).contains(&cancelled) && done["more"] == true, "{done}");
    let mut rest = all;
    rest["cursor"] = done["cursor"].clone();
    let refused = caller.send(api, Method::POST, "/v1/tasks/cancel", Some(rest)).await;
    assert_eq!(refused.status, 403, "{}", refused.text);
    assert_eq!(cluster.count("select count(*) from execlog_cancelled").await, cancelled);
    assert_eq!(cluster.count("select count(*) from task").await, 8000 - cancelled);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_token_expires_in_time_while_postgres_is_away() {
    let cluster = Cluster::start("expires-away").await;
    let mut proxy = Proxy::closed(Target::postgres(&cluster.stack)).await;
    proxy.open().await;
    let (short, long) = (Caller::new("short").await, Caller::new("long").await);
    let expires_at = (now_ms() + 30_000) / 1000 * 1000;
    let lines = file_of(&[short.that_expires(expires_at), long.that_expires(now_ms() + 3_600_000)]);
    let file = AuthFile::new("expires-away", &lines);
    let url = cluster.database.url_by(proxy.address());
    let words =
        ["--database-url", &url, "--kafka", &cluster.stack.kafka, "--auth-file", file.path()];
    let node = listening(cluster.spawn_bare(&words)).await;
    let api = node.api();
    eventually("the node is ready", DEADLINE, || api.is_ready()).await;
    assert_eq!([short.status(api).await, long.status(api).await], [200, 200]);
    proxy.close().await;
    eventually("the node lacks Postgres", DEADLINE, async || {
        !api.is_ready().await || now_ms() > expires_at
    })
    .await;
    until(expires_at).await;
    eventually("the token has expired", Duration::from_secs(2), async || {
        short.status(api).await == 401
    })
    .await;
    assert_eq!(long.status(api).await, 200);
    proxy.open().await;
    eventually("the node is ready again", DEADLINE, || api.is_ready()).await;
    assert_eq!([short.status(api).await, long.status(api).await], [401, 200]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_token_expires_at_once_when_the_clock_of_the_cluster_jumps_ahead() {
    let cluster = Cluster::start("expires-jump").await;
    crate::clock_steps::take_over_the_clock(&cluster).await;
    let (short, long) = (Caller::new("short").await, Caller::new("long").await);
    let hours = |hours: i64| now_ms() + hours * 3_600_000;
    let lines = file_of(&[short.that_expires(hours(1)), long.that_expires(hours(9))]);
    let file = AuthFile::new("expires-jump", &lines);
    let auth = ["--auth-file", file.path()];
    let node = crate::clock_steps::node_with_that_clock(&cluster, &auth).await;
    let api = node.api();
    assert_eq!([short.status(api).await, long.status(api).await], [200, 200]);
    crate::clock_steps::step(&cluster, "2 hours").await;
    eventually("the token has expired", DEADLINE, async || short.status(api).await == 401).await;
    assert_eq!(long.status(api).await, 200);
    // A node that starts now knows the time from Postgres alone.
    let second = crate::clock_steps::node_with_that_clock(&cluster, &auth).await;
    assert_eq!([short.status(second.api()).await, long.status(second.api()).await], [401, 200]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_pop_that_waits_gets_no_task_after_its_right_is_revoked() {
    let cluster = Cluster::start("revoked-pop").await;
    let topic = cluster.topic("orders").await;
    let [popper, submitter] = [Caller::new("popper").await, Caller::new("submitter").await];
    let operates = submitter.with_rights().replace("roles ", "operate = true\nroles ");
    let both = [popper.with_rights(), operates.clone()];
    let file = AuthFile::new("revoked-pop", &file_of(&both));
    let node = cluster.node_with(&["--auth-file", file.path()]).await;
    let api = node.api();
    let path = format!("/v1/topics/{topic}/pop");
    let call = |wait: &str| Some(json!({ "group": "revoked-pop", "wait": wait }));
    let began = Instant::now();
    let waiting = popper.send(api, Method::POST, &path, call("25s"));
    let revoke = async {
        eventually("it waits", DEADLINE, async || {
            let metrics = submitter.send(api, Method::GET, "/metrics", None).await.text;
            metrics.contains("\npunctual_pop_waiting 1\n")
        })
        .await;
        let lines = [popper.lines.clone(), operates.clone()];
        std::fs::write(file.path(), file_of(&lines)).unwrap();
    };
    let (answer, ()) = tokio::join!(waiting, revoke);
    assert!(began.elapsed() < Duration::from_secs(20), "{:?}", began.elapsed());
    assert_eq!((answer.status, answer.json()), (200, json!({ "tasks": [] })));
    let refused = popper.send(api, Method::POST, &path, call("1s")).await;
    assert_eq!(refused.status, 403, "{}", refused.text);
    // The group has lost no task by it.
    let task = json!({ "topic": topic, "delay": 0, "payload": 1, "ttr": "1m" });
    let task = submitter.send(api, Method::POST, "/v1/tasks", Some(task)).await.json();
    let popped = submitter.send(api, Method::POST, &path, call("25s")).await.json();
    assert_eq!(popped["tasks"][0]["id"], task["id"], "{popped}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_pop_that_waits_ends_with_its_token() {
    let cluster = Cluster::start("expires-pop").await;
    let topic = cluster.topic("orders").await;
    let popper = Caller::new("popper").await;
    let expires_at = now_ms() + 30_000;
    let file = AuthFile::new("expires-pop", &file_of(&[popper.that_expires(expires_at)]));
    // Without the token's end, the call would wait for 60 s.
    let flags = ["--auth-file", file.path(), "--request-timeout", "90s"];
    let node = cluster.node_with(&flags).await;
    let call = Some(json!({ "group": "expires-pop", "wait": "60s" }));
    let path = format!("/v1/topics/{topic}/pop");
    let answer = popper.send(node.api(), Method::POST, &path, call.clone()).await;
    assert_eq!((answer.status, answer.json()), (200, json!({ "tasks": [] })));
    let ended_after = now_ms() - expires_at;
    assert!((-3_000..20_000).contains(&ended_after), "{ended_after} ms after the token");
    let refused = popper.send(node.api(), Method::POST, &path, call).await;
    assert_eq!(refused.status, 401, "{}", refused.text);
}
