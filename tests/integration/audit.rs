//! The audit trail of a node: each denied request and each change, rotation, a full disk.

use std::path::{Path, PathBuf};
use std::time::Duration;

use reqwest::Method;
use serde_json::{Value, json};

use crate::intake_topics::Intake;
use crate::outbox::Shop;
use crate::support::node::program;
use crate::support::{Cluster, Node, eventually};

const DEADLINE: Duration = Duration::from_secs(60);
const MARKER: &str = "marker-of-a-record";

/// Makes a token, and the auth file with its principal, which may submit and cancel on one topic.
async fn principal(cluster: &Cluster, topic: &str) -> (String, PathBuf) {
    let made = program(&["token", "new", "--principal", "ann"]).output().await.unwrap();
    let [token, lines] = [made.stdout, made.stderr].map(|text| String::from_utf8(text).unwrap());
    let rule =
        format!("allow = [ {{ actions = [\"submit\", \"cancel\"], topics = [{topic:?}] }} ]");
    let path = cluster.folder().join("auth.toml");
    let lines = lines.replace("roles  = []", &rule);
    std::fs::write(&path, format!("version = 1\n{lines}")).unwrap();
    (token.trim().to_owned(), path)
}

fn lines(path: &Path) -> Vec<Value> {
    let text = std::fs::read_to_string(path).unwrap_or_default();
    text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

fn task(topic: &str) -> Value {
    let headers = json!({ "h": MARKER });
    json!({ "topic": topic, "delay": "1h", "key": MARKER, "headers": headers, "payload": MARKER })
}

async fn ask(
    node: &Node,
    token: &str,
    (method, path): (Method, &str),
    body: Option<Value>,
) -> (u16, Value) {
    let authorization = format!("Bearer {token}");
    let headers = [("authorization", authorization.as_str())];
    let answer = node.api().send_with(method, path, &headers, body).await;
    (answer.status, serde_json::from_str(&answer.text).unwrap())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn changes_and_denials_have_lines_over_a_rotation_and_none_has_content() {
    let cluster = Cluster::start("audit").await;
    let topic = cluster.topic("orders").await;
    let (token, auth) = principal(&cluster, &topic).await;
    let [path, old] = ["audit.jsonl", "audit.1.jsonl"].map(|name| cluster.folder().join(name));
    let words = ["--audit-file", path.to_str().unwrap(), "--auth-file", auth.to_str().unwrap()];
    let mut node = cluster.spawn(&words);
    node.wait_listening().await;
    let submit = |topic: &str| (task(topic), (Method::POST, "/v1/tasks"));
    eventually("a task is stored", DEADLINE, async || {
        let (body, call) = submit(&topic);
        ask(&node, &token, call, Some(body)).await.0 == 201
    })
    .await;
    let (body, call) = submit("elsewhere");
    let (status, _) = ask(&node, &token, call, Some(body)).await;
    assert_eq!(status, 403);
    let written = lines(&path);
    let [denied, stored] = [1, 2].map(|back| &written[written.len() - back]);
    assert_eq!((&denied["denied"]["elsewhere"], &denied["status"]), (&json!(1), &json!(403)));
    assert_eq!((&stored["topic"], &stored["count"]), (&json!(topic), &json!(1)));
    assert_eq!(stored["principal"], "ann");

    std::fs::rename(&path, &old).unwrap();
    let id = stored["target"]["id"].as_str().unwrap();
    let cancel = (Method::DELETE, format!("/v1/tasks/{id}"));
    let (status, _) = ask(&node, &token, (cancel.0, &cancel.1), None).await;
    assert_eq!(status, 200);
    let rotated = lines(&path);
    assert_eq!((rotated.len(), &rotated[0]["action"]), (1, &json!("cancel")));
    assert_eq!((&rotated[0]["target"]["id"], lines(&old).len()), (&json!(id), written.len()));

    node.terminate();
    assert!(node.wait_exit(DEADLINE).await.success(), "{}", node.log_tail());
    assert_eq!(lines(&path).last().unwrap()["action"], "stop");
    for text in [&path, &old].map(|path| std::fs::read_to_string(path).unwrap()) {
        assert!(!text.contains(MARKER) && !text.contains(&token), "{text}");
    }
    assert!(!node.log().contains(MARKER) && !node.log().contains(&token), "{}", node.log());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_full_disk_stops_changes_until_it_has_room() {
    let cluster = Cluster::start("audit-full").await;
    let topic = cluster.topic("orders").await;
    let path = cluster.folder().join("audit.jsonl");
    std::os::unix::fs::symlink("/dev/full", &path).unwrap();
    let node = cluster.node_with(&["--audit-file", path.to_str().unwrap()]).await;
    let (status, problem) =
        ask(&node, "none", (Method::POST, "/v1/tasks"), Some(task(&topic))).await;
    assert_eq!((status, &problem["type"]), (503, &json!("urn:punctual:problem:busy")));
    let (status, list) = ask(&node, "none", (Method::GET, "/v1/tasks"), None).await;
    assert_eq!((status, &list["tasks"]), (200, &json!([])), "nothing was done without a line");
    assert!(node.api().metric("punctual_audit_failures_total").await >= 1.0);
    let refused = node.api().metric(r#"punctual_api_rejected_total{limit="audit"}"#).await;
    assert!(refused >= 1.0);

    std::fs::remove_file(&path).unwrap();
    eventually("a task is stored again", DEADLINE, async || {
        ask(&node, "none", (Method::POST, "/v1/tasks"), Some(task(&topic))).await.0 == 201
    })
    .await;
    let written = lines(&path);
    let actions: Vec<&Value> = written.iter().map(|line| &line["action"]).collect();
    assert_eq!(actions, ["start", "submit"]);
    assert_eq!(node.api().metric("punctual_audit_lines_dropped_total").await, 0.0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn rows_and_records_have_lines_for_each_action_and_for_missing_rights() {
    let cluster = Cluster::start("audit-doors").await;
    let mut shop = Shop::open(&cluster.stack).await;
    let intake = Intake::open(&cluster).await;
    let [own, other] = [cluster.topic("own").await, cluster.topic("other").await];
    let [path, auth] = ["audit.jsonl", "auth.toml"].map(|name| cluster.folder().join(name));
    let principal = |name: &str| {
        format!(
            "[principals.{name:?}]\n\
             allow = [ {{ actions = [\"submit\", \"cancel\"], topics = [{own:?}] }} ]\n"
        )
    };
    let text = format!("version = 1\n{}{}", principal("shop"), principal(&intake.topic));
    std::fs::write(&auth, text).unwrap();
    for (topic, name) in [(&own, "a"), (&own, "b"), (&other, "c")] {
        shop.run(&format!(
            "select punctual.submit('{topic}', payload_text => '{MARKER}', delay => '1 hour', \
             name => '{name}')"
        ))
        .await;
        let headers = [("punctual-topic", topic.as_str()), ("punctual-delay", "1h"), ("h", MARKER)];
        intake.append(0, Some(MARKER), Some(MARKER), &headers).await;
    }
    shop.run(&format!("select punctual.cancel('{own}', 'a')")).await;
    let flag = shop.flag();
    let words = [
        ["--audit-file", path.to_str().unwrap()],
        ["--auth-file", auth.to_str().unwrap()],
        ["--outbox", &flag],
        ["--intake-topic", &intake.topic],
    ];
    let _node = cluster.node_with(&words.concat()).await;
    shop.wait_empty().await;
    intake.wait_read(3).await;
    let counted = |source: &str, operation: &str, action: &str, member: &dyn Fn(&Value) -> u64| {
        let lines = lines(&path).into_iter().filter(|line| {
            line["source"] == source && line["operation"] == operation && line["action"] == action
        });
        let lines: Vec<Value> = lines.collect();
        assert!(lines.iter().all(|line| line["principal"] == source), "{lines:?}");
        lines.iter().map(member).sum::<u64>()
    };
    let changed = |line: &Value| line["count"].as_u64().unwrap_or(0);
    let denied = |line: &Value| line["denied"][&other].as_u64().unwrap_or(0);
    eventually("all lines are written", DEADLINE, async || {
        counted("shop", "outbox", "submit", &changed) == 2
            && counted("shop", "outbox", "cancel", &changed) == 1
            && counted("shop", "outbox", "submit", &denied) == 1
            && counted(&intake.topic, "intakeTopic", "submit", &changed) == 2
            && counted(&intake.topic, "intakeTopic", "submit", &denied) == 1
    })
    .await;
    assert!(!std::fs::read_to_string(&path).unwrap().contains(MARKER));
}
