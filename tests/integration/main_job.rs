//! A task becomes a record: unchanged, on time, in order, with a receipt.

use std::collections::HashMap;
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use rand::seq::SliceRandom;
use serde_json::{Value, json};
use uuid::Uuid;

use crate::support::{Cluster, Ledger, Record, eventually, now_ms};

const DEADLINE: Duration = Duration::from_secs(120);

/// A submitted task, and the expected record.
struct Case {
    submitted: String,
    key: Option<Vec<u8>>,
    payload: Option<Vec<u8>>,
    headers: Vec<(&'static str, Option<&'static [u8]>)>,
    /// The headers in the answer, if they differ from the submitted ones.
    shown: Option<Value>,
}

fn cases(topic: &str) -> Vec<Case> {
    let all_bytes: Vec<u8> = (0..=255).collect();
    let encoded = BASE64.encode(&all_bytes);
    let case = |fields: String, key: Option<&[u8]>, payload: Option<&[u8]>| Case {
        submitted: format!(r#"{{"topic":"{topic}",{fields}}}"#),
        key: key.map(<[u8]>::to_vec),
        payload: payload.map(<[u8]>::to_vec),
        headers: Vec::new(),
        shown: None,
    };
    // Spaces, escapes, the order of members and the spelling of numbers are the submitter's.
    let spelled = r#"{"b" : 1.00,  "a":[1e5,"\u00e9\n"], "b2": 12345678901234567890}"#;
    let mut with_headers = case(
        r#""delay":0,"payload":7,"headers":{"trace":"a b","empty":"","ünï":"çödé"}"#.to_owned(),
        None,
        Some(b"7"),
    );
    with_headers.headers =
        vec![("trace", Some(b"a b")), ("empty", Some(b"")), ("ünï", Some("çödé".as_bytes()))];
    // All that Kafka allows: null, several with one name, bytes that are not text.
    let given = r#""headers":{"null":null,"tag":["a",null,{"base64":"/w=="},"a"],"bytes":{"base64":"AP8="},"text":{"base64":"YQ=="},"one":["1"]}"#;
    let mut with_any = case(format!(r#""delay":"2s","payload":8,{given}"#), None, Some(b"8"));
    with_any.headers = vec![
        ("null", None),
        ("tag", Some(b"a")),
        ("tag", None),
        ("tag", Some(b"\xff")),
        ("tag", Some(b"a")),
        ("bytes", Some(b"\x00\xff")),
        ("text", Some(b"a")),
        ("one", Some(b"1")),
    ];
    with_any.shown = Some(json!({
        "null": null, "tag": ["a", null, { "base64": "/w==" }, "a"],
        "bytes": { "base64": "AP8=" }, "text": "a", "one": "1"
    }));
    vec![
        case(format!(r#""delay":0,"payload":{spelled}"#), None, Some(spelled.as_bytes())),
        case(r#""delay":"50ms","payload":null"#.to_owned(), None, Some(b"null")),
        case(r#""delay":150,"payload":"text""#.to_owned(), None, Some(b"\"text\"")),
        case(
            r#""delay":"PT1S","payload_text":"line\nand \u0000 ünï","key":"clé""#.to_owned(),
            Some("clé".as_bytes()),
            Some("line\nand \0 ünï".as_bytes()),
        ),
        case(r#""delay":1200,"payload_text":"","key":"""#.to_owned(), Some(b""), Some(b"")),
        case(
            format!(r#""delay":0,"payload_base64":"{encoded}","key_base64":"{encoded}""#),
            Some(&all_bytes),
            Some(&all_bytes),
        ),
        case(r#""delay":300,"tombstone":true,"key":"gone""#.to_owned(), Some(b"gone"), None),
        case(
            r#""due_at":"2001-02-03T04:05:06+01:00","payload_text":"long past""#.to_owned(),
            None,
            Some(b"long past"),
        ),
        case(format!(r#""due_at":{},"payload_text":"soon""#, now_ms() + 800), None, Some(b"soon")),
        with_headers,
        with_any,
    ]
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_record_is_what_was_submitted_byte_for_byte() {
    let cluster = Cluster::start("bytes").await;
    let topic = cluster.topic("orders").await;
    let node = cluster.node().await;
    let consumer = cluster.consumer(&topic);
    let cases = cases(&topic);
    let ledger = Ledger::default();
    let mut by_id = HashMap::new();
    for case in &cases {
        let began = now_ms();
        let task = node.api().submit_text(&case.submitted).await;
        // The cluster's clock is a lower bound: behind by as long as an answer of Postgres took.
        assert!(
            task.due_at >= began - 1000,
            "a due time that is past counts as now: {}",
            task.shown
        );
        ledger.accept(&task, case.payload.as_deref());
        if let Some(shown) = &case.shown {
            assert_eq!(&node.api().task(task.id).await.shown["headers"], shown, "while it waits");
        }
        by_id.insert(task.id, (case, task.due_at));
    }
    let records = consumer.wait_count(cases.len(), DEADLINE).await;
    for record in &records {
        let (case, due_at) = by_id[&record.task_id()];
        assert_eq!(record.key, case.key, "{}", case.submitted);
        assert_eq!(record.payload, case.payload, "{}", case.submitted);
        assert_eq!(record.header("punctual-due-at"), Some(due_at.to_string().as_bytes()));
        assert_eq!(own_headers(record), case.headers, "{}", case.submitted);
        if let Some(shown) = &case.shown {
            assert_eq!(
                &node.api().task(record.task_id()).await.shown["headers"],
                shown,
                "as it was published"
            );
        }
    }
    let findings = ledger.settle_up(&cluster, || consumer.records(), DEADLINE).await;
    assert_eq!((findings.published_count, findings.duplicates.len()), (cases.len(), 0));
}

fn own_headers(record: &Record) -> Vec<(&str, Option<&[u8]>)> {
    let headers = record.headers.iter().filter(|(name, _)| !name.starts_with("punctual-"));
    headers.map(|(name, value)| (name.as_str(), value.as_deref())).collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nothing_is_early_nothing_is_lost_and_every_receipt_is_true() {
    let cluster = Cluster::start("receipts").await;
    let topic = cluster.topic("orders").await;
    let node = cluster.node().await;
    let consumer = cluster.consumer(&topic);
    let ledger = Ledger::default();
    // Past, now, within the window, just after the window, seconds ahead.
    let task = |number: usize| {
        let delay = [-60_000, 0, 1, 100, 190, 200, 250, 1000, 3000][number % 9];
        json!({
            "topic": topic,
            "due_at": now_ms() + delay,
            "payload_text": format!("task {number}"),
            "key": format!("{}", number % 10),
        })
    };
    for chunk in 0..20 {
        let tasks: Vec<Value> = (0..100).map(|index| task(chunk * 100 + index)).collect();
        ledger.accept_all(&node.api().submit_all(&tasks).await, &tasks);
        let single = task(chunk);
        let accepted = node.api().submit(&single).await;
        ledger.accept(&accepted, single["payload_text"].as_str().map(str::as_bytes));
    }
    let records =
        consumer.wait_for("all arrive", DEADLINE, |records| ledger.has_arrived(records)).await;
    let findings = ledger.settle_up(&cluster, || consumer.records(), DEADLINE).await;
    assert_eq!((findings.published_count, findings.duplicates.len()), (2020, 0));
    // The API shows the contents of the topic.
    for record in records.iter().step_by(97) {
        let task = node.api().task(record.task_id()).await;
        assert_eq!(
            (task.state.as_str(), task.position()),
            ("published", Some((record.partition, record.offset)))
        );
        let published_at: jiff::Timestamp =
            task.shown["receipt"]["published_at"].as_str().unwrap().parse().unwrap();
        assert_eq!(published_at.as_millisecond(), record.timestamp);
        assert_eq!(
            task.shown["receipt"]["lateness_ms"].as_i64(),
            Some(record.timestamp - task.due_at)
        );
    }
}

/// Kafka's default is `CreateTime`: a record has the producer's time.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn without_append_time_a_record_carries_the_time_at_which_it_was_handed_over() {
    let cluster = Cluster::start("create-time").await;
    let topic = cluster.topic_with("orders", &[("message.timestamp.type", "CreateTime")]).await;
    let node = cluster.node().await;
    let consumer = cluster.consumer(&topic);
    let tasks: Vec<Value> = (0..50)
        .map(|number| json!({ "topic": topic, "delay": number * 30, "payload_text": "x" }))
        .collect();
    let accepted = node.api().submit_all(&tasks).await;
    cluster.wait_final(tasks.len(), DEADLINE).await;
    let records = consumer.wait_count(tasks.len(), DEADLINE).await;
    for task in &accepted {
        let record = records.iter().find(|record| record.task_id() == task.id).unwrap();
        let shown = node.api().task(task.id).await.shown;
        let published_at: jiff::Timestamp =
            shown["receipt"]["published_at"].as_str().unwrap().parse().unwrap();
        let published_at = published_at.as_millisecond();
        assert!(!record.is_append_time);
        assert!(
            task.due_at <= record.timestamp && record.timestamp <= published_at,
            "{record:?}: {shown}"
        );
        assert!(published_at <= now_ms(), "{shown}");
        assert_eq!(shown["receipt"]["lateness_ms"].as_i64(), Some(published_at - task.due_at));
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn records_of_one_key_due_more_than_50_ms_apart_arrive_in_due_order() {
    let cluster = Cluster::start("order").await;
    let topic = cluster.topic("orders").await;
    let (first, second) = tokio::join!(cluster.node(), cluster.node());
    let consumer = cluster.consumer(&topic);
    let start = now_ms() + 3000;
    let mut tasks: Vec<Value> = (0..300)
        .map(|number| {
            // Ten keys. Tasks with the same key are 60 ms apart.
            let due_at = start + 60 * (number / 10) + number % 10;
            json!({
                "topic": topic,
                "due_at": due_at,
                "payload_text": "x",
                "key": format!("key {}", number % 10),
            })
        })
        .collect();
    tasks.shuffle(&mut rand::rng());
    let (one, other) = tasks.split_at(150);
    tokio::join!(first.api().submit_all(one), second.api().submit_all(other));
    let mut records = consumer.wait_count(300, DEADLINE).await;
    records.sort_by_key(|record| (record.partition, record.offset));
    let mut partition_of: HashMap<Vec<u8>, i32> = HashMap::new();
    let mut last_due: HashMap<Vec<u8>, u64> = HashMap::new();
    let mut inverted = Vec::new();
    for record in &records {
        let due_at: u64 = std::str::from_utf8(record.header("punctual-due-at").unwrap())
            .unwrap()
            .parse()
            .unwrap();
        let key = record.key.clone().unwrap();
        let partition = *partition_of.entry(key.clone()).or_insert(record.partition);
        assert_eq!(
            record.partition,
            partition,
            "{}: one key, one partition",
            String::from_utf8_lossy(&key)
        );
        let former = last_due.insert(key, due_at);
        inverted.extend(former.filter(|former| *former >= due_at));
    }
    // Promised when nothing fails; of two nodes on a busy machine, one may stand still for 60 ms.
    assert!(
        inverted.len() * 20 <= records.len(),
        "came before what was due 60 ms earlier: {inverted:?}"
    );
    assert_eq!(last_due.len(), 10);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_batch_takes_the_good_tasks_and_says_what_is_wrong_with_the_others() {
    let cluster = Cluster::start("batch").await;
    let topic = cluster.topic("orders").await;
    let node = cluster.node().await;
    let consumer = cluster.consumer(&topic);
    let good = json!({ "topic": topic, "delay": 100, "payload_text": "good" });
    let tasks = json!({ "tasks": [
        good,
        { "topic": format!("{topic}.nowhere"), "delay": 100, "payload_text": "x" },
        { "topic": topic, "delay": 100, "payload_text": "x", "colour": "red" },
        good,
    ]});
    let answer = node.api().post("/v1/tasks/batch", tasks.to_string()).await;
    assert_eq!(answer.status, 200, "{}", answer.text);
    let results = answer.json()["results"].clone();
    let statuses: Vec<u64> = results
        .as_array()
        .unwrap()
        .iter()
        .map(|result| result["status"].as_u64().unwrap())
        .collect();
    assert_eq!(statuses, [201, 422, 400, 201], "{results}");
    assert!(results[1]["problem"].to_string().contains("topic"), "{results}");
    assert!(results[2]["problem"].to_string().contains("colour"), "{results}");
    let records = consumer.wait_count(2, DEADLINE).await;
    let mut arrived: Vec<Uuid> = records.iter().map(Record::task_id).collect();
    let mut accepted: Vec<Uuid> = [0, 3]
        .into_iter()
        .map(|index| results[index]["task"]["id"].as_str().unwrap().parse().unwrap())
        .collect();
    arrived.sort_unstable();
    accepted.sort_unstable();
    assert_eq!(arrived, accepted);
    cluster.wait_final(2, DEADLINE).await;
    assert_eq!(cluster.execlog().await.len(), 2);
    assert_eq!(cluster.count("select count(*) from task").await, 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_look_up_says_where_a_task_stands() {
    let cluster = Cluster::start("states").await;
    let topic = cluster.topic("orders").await;
    let node = cluster.node().await;
    let consumer = cluster.consumer(&topic);
    let api = node.api();
    let later = json!({
        "topic": topic,
        "delay": "1h",
        "payload": {"a": 1},
        "key": "k",
        "headers": {"h": "v"},
    });
    let scheduled = api.submit(&later).await;
    assert_eq!(scheduled.state, "scheduled");
    let shown = api.task(scheduled.id).await;
    assert_eq!(
        (shown.state.as_str(), &shown.shown["key"], shown.due_at),
        ("scheduled", &json!("k"), scheduled.due_at)
    );
    assert_eq!(shown.shown["headers"], json!({"h": "v"}));
    assert_eq!(shown.shown["payload"], json!({"a": 1}));
    assert_eq!(shown.position(), None);

    let within_window =
        api.submit(&json!({ "topic": topic, "delay": 150, "payload_text": "x" })).await;
    assert_eq!(
        within_window.state, "claimed",
        "a task due within the window is claimed as it is inserted"
    );
    let record = &consumer.wait_count(1, DEADLINE).await[0];
    assert_eq!(record.task_id(), within_window.id);
    cluster.wait_final(1, DEADLINE).await;
    let published = api.task(within_window.id).await;
    assert_eq!(
        (published.state.as_str(), published.position()),
        ("published", Some((record.partition, record.offset)))
    );

    assert_eq!(api.cancel(scheduled.id).await.verdict(), "cancelled");
    assert_eq!(api.task(scheduled.id).await.state, "cancelled");
    let unknown = Uuid::from_u128(scheduled.id.as_u128() ^ 1);
    let answer = api.get(&format!("/v1/tasks/{unknown}")).await;
    assert_eq!(
        (answer.status, answer.header("content-type")),
        (404, Some("application/problem+json"))
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_stage_can_be_seen_in_the_metrics() {
    let cluster = Cluster::start("metrics").await;
    let topic = cluster.topic("orders").await;
    let node = cluster.node().await;
    let consumer = cluster.consumer(&topic);
    node.api().submit(&json!({ "topic": topic, "delay": 0, "payload_text": "x" })).await;
    node.api().submit_all(&[json!({ "topic": topic, "delay": 300, "payload_text": "x" })]).await;
    consumer.wait_count(2, DEADLINE).await;
    cluster.wait_final(2, DEADLINE).await;
    for (name, value) in [
        ("punctual_tasks_submitted_total", 2.0),
        ("punctual_tasks_claimed_total", 2.0),
        ("punctual_tasks_published_total", 2.0),
        ("punctual_lateness_seconds_count", 2.0),
        ("punctual_tasks_dead_total", 0.0),
        ("punctual_tasks_deferred_total", 0.0),
        ("punctual_unavailable_topics", 0.0),
        ("punctual_ready", 1.0),
        ("punctual_kafka_contact", 1.0),
        ("punctual_members", 1.0),
        ("punctual_shards_owned", 16.0),
        ("punctual_cluster_shards", 16.0),
        ("punctual_heartbeat_age_max_seconds", 2.5),
        ("punctual_oldest_unsettled_seconds", 0.0),
        ("punctual_in_quarantine_tasks", 0.0),
    ] {
        let is_so = async || node.api().metric(name).await == value;
        eventually(&format!("{name} is {value}"), DEADLINE, is_so).await;
    }
    let text = node.metrics().await;
    let described: Vec<&str> =
        text.lines().filter_map(|line| line.strip_prefix("# HELP ")?.split(' ').next()).collect();
    for line in text.lines().filter(|line| !line.starts_with('#')) {
        assert!(
            described.iter().any(|name| line.starts_with(name)),
            "a metric without help: {line}"
        );
    }
    alarms_name_what_there_is(&described);
    // Each limit belongs to an existing metric.
    let limits: Vec<&str> = text
        .lines()
        .filter_map(|line| line.strip_prefix("punctual_limit{of=\"")?.split('"').next())
        .collect();
    assert_eq!(limits.len(), 12, "{text}");
    for bounded in limits {
        assert!(
            text.lines()
                .filter_map(|line| line.strip_prefix("punctual_")?.strip_prefix(bounded))
                .any(|rest| rest.starts_with([' ', '{'])),
            "there is no {bounded} in:\n{text}"
        );
    }
    let stages = [
        "submitted",
        "claimed",
        "claimed_after_due",
        "published",
        "settled",
        "deferred",
        "dead",
        "adopted",
        "in_flight_tasks",
        "in_flight_bytes",
        "lateness_seconds",
        "claim_duration_seconds",
        "settle_duration_seconds",
        "members",
        "shards",
        "heartbeat_age_seconds",
        "clock_offset_seconds",
        "partitions",
        "far",
    ];
    let missing: Vec<&&str> =
        stages.iter().filter(|stage| !described.iter().any(|name| name.contains(*stage))).collect();
    assert!(missing.is_empty(), "no metric for {missing:?} among {described:#?}");
}

/// Checks that the node has every metric in the alert rules, and that the runbook has a section for
/// every rule.
fn alarms_name_what_there_is(described: &[&str]) {
    let rules = include_str!("../../docs/alerts.yml");
    let is_part = |c: char| c.is_ascii_lowercase() || c == '_';
    let named: Vec<&str> =
        rules.split(|c: char| !is_part(c)).filter(|word| word.starts_with("punctual_")).collect();
    assert!(named.len() > 30, "{named:?}");
    // The metrics of certificates exist only with TLS, those of outboxes and intake topics only
    // with one. Their own tests look for them.
    let elsewhere = ["punctual_tls_", "punctual_outbox_", "punctual_intake_"];
    let is_here = |name: &&str| !elsewhere.iter().any(|start| name.starts_with(start));
    for name in named.into_iter().filter(is_here) {
        let family = name.trim_end_matches("_total").trim_end_matches("_bucket");
        assert!(
            described.contains(&family),
            "docs/alerts.yml has {name}, the node has {described:?}"
        );
    }
    let manual = include_str!("../../docs/operate/runbook.md");
    for name in rules.lines().filter_map(|line| line.trim().strip_prefix("- alert: ")) {
        assert!(manual.contains(name), "docs/operate/runbook.md says nothing of {name}");
    }
}
