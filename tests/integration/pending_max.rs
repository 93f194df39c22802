//! Limits of pending tasks: of a topic in its policy, of a principal in the auth file.

use std::time::Duration;

use reqwest::Method;
use serde_json::{Value, json};

use crate::intake_topics::Intake;
use crate::outbox::Shop;
use crate::support::{Answer, Cluster, eventually};
use crate::tokens::AuthFile;

const DEADLINE: Duration = Duration::from_secs(90);
const REFUSED: &str = "urn:punctual:problem:too-many-pending";

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn submits_to_a_topic_with_too_many_pending_tasks_are_refused_until_some_have_left() {
    let cluster = Cluster::start("pending").await;
    let (topic, other) = (cluster.topic("orders").await, cluster.topic("other").await);
    let node = cluster.node().await;
    let api = node.api();
    let path = format!("/v1/topics/{topic}/policy");
    let task = |topic: &str| json!({ "topic": topic, "delay": "1h", "payload": 1 });
    let mut known = task(&topic);
    known["name"] = json!("known");
    let tasks: Vec<Value> = (0..4).map(|_| task(&topic)).chain([known.clone()]).collect();
    api.submit_all(&tasks).await;
    let policy = json!({ "pending_max": 3 });
    let set = api.send_with(Method::PUT, &path, &[], Some(policy)).await;
    assert_eq!(
        (set.status, &set.json()["policy"]["pending_max"]),
        (200, &json!(3)),
        "{}",
        set.text
    );
    let submit = async |topic: &str| api.post("/v1/tasks", task(topic).to_string()).await;
    eventually("a submit is refused", DEADLINE, async || submit(&topic).await.status == 429).await;
    let refused = submit(&topic).await;
    assert_eq!(
        (refused.json()["type"].as_str(), refused.header("retry-after")),
        (Some(REFUSED), Some("10"))
    );
    assert!(refused.text.contains("pending_max"), "{}", refused.text);
    api.learn(&other).await;
    assert_eq!(submit(&other).await.status, 201, "another topic has no limit");
    let both = json!({ "tasks": [task(&topic), task(&other)] });
    let both = api.post("/v1/tasks/batch", both.to_string()).await.json();
    let statuses = [0, 1].map(|index| both["results"][index]["status"].clone());
    assert_eq!(statuses, [json!(429), json!(201)], "{both}");
    let repeated = api.post("/v1/tasks", known.to_string()).await;
    assert_eq!(repeated.status, 200, "a submit that was accepted before: {}", repeated.text);
    let named = format!("/v1/topics/{topic}/tasks/n");
    let named =
        api.send_with(Method::PUT, &named, &[], Some(json!({ "delay": "1h", "payload": 1 })));
    assert_eq!(named.await.status, 429);
    assert!(api.metric(r#"punctual_api_rejected_total{limit="pending_max"}"#).await > 0.0);

    let cancelled = api.post("/v1/tasks/cancel", json!({ "topic": topic }).to_string()).await;
    assert_eq!(cancelled.status, 200, "{}", cancelled.text);
    eventually("there is room", DEADLINE, async || submit(&topic).await.status == 201).await;
    assert_eq!(api.metric("punctual_pending_count_failures_total").await, 0.0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_principal_and_the_topics_of_a_pattern_have_limits_in_the_auth_file() {
    let cluster = Cluster::start("pending-auth").await;
    let (first, second) = (cluster.topic("orders.a").await, cluster.topic("orders.b").await);
    let free = cluster.topic("free").await;
    let prefix = first.strip_suffix('a').unwrap();
    let file = AuthFile::new(
        "pending",
        &format!(
            "version = 1\n[anonymous]\noperate = true\n\
             allow = [ {{ actions = ['*'], topics = ['*'] }} ]\nlimits = {{ pending_max = 9 }}\n\
             [topics.'{prefix}*']\nlimits = {{ pending_max = 4 }}\n"
        ),
    );
    let node = cluster.node_with(&["--auth-file", file.path()]).await;
    let api = node.api();
    let submit = async |topic: &str, count: usize| -> Answer {
        let task = json!({ "topic": topic, "delay": "1h", "payload": 1 });
        api.post("/v1/tasks/batch", json!({ "tasks": vec![task; count] }).to_string()).await
    };
    assert_eq!(submit(&first, 2).await.status, 200);
    assert_eq!(submit(&second, 2).await.status, 200);
    // A task of a topic that does not exist needs room, too, and is not stored.
    let probe = format!("{prefix}missing");
    eventually("the topics are full", DEADLINE, async || submit(&probe, 1).await.status == 429)
        .await;
    let refused = submit(&second, 1).await;
    assert_eq!(refused.json()["type"], REFUSED, "{}", refused.text);
    assert!(refused.text.contains(&format!("the topics {prefix}* have")), "{}", refused.text);
    assert_eq!(submit(&free, 5).await.status, 200);
    let probe = format!("{free}-missing");
    eventually("the caller is full", DEADLINE, async || submit(&probe, 1).await.status == 429)
        .await;
    let refused = submit(&free, 1).await;
    assert!(refused.text.contains("this caller has"), "{}", refused.text);
    let stored = r#"punctual_principal_tasks_submitted_total{principal="anonymous"}"#;
    assert_eq!(api.metric(stored).await, 9.0);
    let requests = r#"punctual_principal_requests_total{principal="anonymous",outcome="limited"}"#;
    assert!(api.metric(requests).await >= 4.0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn rows_of_an_outbox_and_records_of_an_intake_topic_wait_for_room() {
    let cluster = Cluster::start("pending-inbound").await;
    let topic = cluster.topic("orders").await;
    let intake = Intake::open(&cluster).await;
    let mut shop = Shop::open(&cluster.stack).await;
    let flags = ["--outbox", &shop.flag(), "--intake-topic", &intake.topic, "--log", "debug"];
    let node = cluster.node_with(&flags).await;
    let api = node.api();
    let task = json!({ "topic": topic, "delay": "1h", "payload": 1 });
    api.submit_all(&[task.clone(), task.clone()]).await;
    let path = format!("/v1/topics/{topic}/policy");
    let set = api.send_with(Method::PUT, &path, &[], Some(json!({ "pending_max": 2 }))).await;
    assert_eq!(set.status, 200, "{}", set.text);
    let submit = async || api.post("/v1/tasks", task.to_string()).await.status;
    eventually("a submit is refused", DEADLINE, async || submit().await == 429).await;

    let row = "payload => '1', delay => '1 hour', name => 'of the outbox'";
    shop.run(&format!("select punctual.submit('{topic}', {row})")).await;
    let headers = [
        ("punctual-topic", topic.as_str()),
        ("punctual-delay", "1h"),
        ("punctual-name", "of the intake topic"),
    ];
    intake.append(0, Some("1"), None, &headers).await;
    eventually("both were refused", DEADLINE, async || {
        let log = node.log();
        let is_said_of = |of: &str| {
            let mut lines = log.lines().filter(|line| line.contains(of));
            lines.any(|line| line.contains("pending tasks, and may have 2"))
        };
        is_said_of(r#""outbox":"shop""#) && is_said_of(&format!(r#""intake":"{}""#, intake.topic))
    })
    .await;
    assert_eq!(shop.count("select count(*) from punctual.outbox").await, 1);
    assert_eq!(cluster.count("select count(*) from task_name").await, 0);

    let cancelled = api.post("/v1/tasks/cancel", json!({ "topic": topic }).to_string()).await;
    assert_eq!(cancelled.status, 200, "{}", cancelled.text);
    shop.wait_empty().await;
    intake.wait_read(1).await;
    assert_eq!(cluster.count("select count(*) from task_name").await, 2);
}
