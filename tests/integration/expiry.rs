//! Tasks that expire: never published late, told as `expired`, and never called so when a record of
//! them may be in the topic. And tasks that are spread: only ever later, always by the same part.

use std::time::Duration;

use reqwest::Method;
use serde_json::{Value, json};
use uuid::Uuid;

use crate::support::wait::{throughout, until};
use crate::support::{Answer, Api, Cluster, Record, Wishes, eventually, eventually_some, now_ms};

const DEADLINE: Duration = Duration::from_secs(120);
const MINUTE: i64 = 60_000;

async fn reaches(api: &Api, id: Uuid, state: &str) -> Value {
    eventually(state, DEADLINE, async || api.task(id).await.state == state).await;
    api.task(id).await.shown
}

async fn put_policy(api: &Api, topic: &str, policy: &Value) -> Answer {
    let path = format!("/v1/topics/{topic}/policy");
    api.send_with(Method::PUT, &path, &[], Some(policy.clone())).await
}

async fn moved(api: &Api, id: Uuid, to: &Value) -> Value {
    let path = format!("/v1/tasks/{id}");
    let answer = api.send_with(Method::PATCH, &path, &[], Some(to.clone())).await;
    assert_eq!(answer.status, 200, "{}", answer.text);
    answer.json()["task"].clone()
}

fn millis(shown: &Value, member: &str) -> i64 {
    let text = shown[member].as_str().unwrap_or_else(|| panic!("no {member} in {shown}"));
    text.parse::<jiff::Timestamp>().unwrap().as_millisecond()
}

fn header<'a>(record: &'a Record, name: &str) -> Option<&'a [u8]> {
    record.headers.iter().find(|(known, _)| known == name).and_then(|(_, value)| value.as_deref())
}

async fn lines(cluster: &Cluster, id: Uuid) -> Vec<String> {
    let lines = cluster.execlog().await.into_iter();
    lines.filter(|line| line.id == id).map(|line| line.state).collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_task_that_is_too_late_ends_as_expired_and_a_task_in_time_tells_its_expiry() {
    let cluster = Cluster::start("expiry").await;
    let topic = cluster.topic("orders").await;
    let consumer = cluster.consumer(&topic);
    let node = cluster.node().await;
    let (api, now) = (node.api(), now_ms());
    let (due_at, expires_at) = (now - 10 * MINUTE, now - 5 * MINUTE);
    let late = |more: &Value| {
        let mut task = json!({ "topic": topic, "due_at": due_at, "expires_at": expires_at,
            "payload": 1 });
        task.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        task
    };
    let named = late(&json!({ "name": "n", "headers": { "h": "1" } }));
    let tracked = late(&json!({ "ttr": "30s" }));
    let in_time = json!({ "topic": topic, "delay": 0, "expires_at": now + 60 * MINUTE,
        "payload": 2, "headers": { "h": "1" } });
    let tasks = api.submit_all(&[named.clone(), tracked, in_time]).await;
    assert_eq!(millis(&tasks[0].shown, "expires_at"), expires_at);
    let shown = reaches(api, tasks[0].id, "expired").await;
    assert_eq!((millis(&shown, "expires_at"), &shown["headers"]), (expires_at, &json!({"h": "1"})));
    assert!(shown.get("receipt").is_none() && shown.get("reason").is_none(), "{shown}");
    assert_eq!(reaches(api, tasks[1].id, "expired").await["attempt"], 0);
    reaches(api, tasks[2].id, "published").await;
    let records = consumer.wait_count(1, DEADLINE).await;
    assert_eq!(records[0].task_id(), tasks[2].id);
    let wanted = (now + 60 * MINUTE).to_string();
    assert_eq!(header(&records[0], "punctual-expires-at"), Some(wanted.as_bytes()));
    assert_eq!(
        (header(&records[0], "punctual-expiry"), header(&records[0], "h").is_some()),
        (None, true)
    );

    for task in &tasks[..2] {
        assert_eq!(lines(&cluster, task.id).await, ["expired"]);
        assert_eq!(api.verdict(task.id).await, "too_late");
    }
    assert_eq!(api.metric("punctual_tasks_expired_total").await as i64, 2);
    let finish = api.post(&format!("/v1/tasks/{}/finish", tasks[1].id), "").await;
    assert_eq!((finish.status, finish.json()["task"]["state"].as_str()), (409, Some("expired")));
    let again = api.post("/v1/tasks", named.to_string()).await;
    assert_eq!((again.status, again.json()["state"].as_str()), (200, Some("expired")));
    // The line outlives the record.
    sqlx::query("truncate execlog_payload").execute(&cluster.sql).await.unwrap();
    let shown = api.task(tasks[0].id).await.shown;
    assert_eq!((&shown["state"], millis(&shown, "expires_at")), (&json!("expired"), expires_at));
    // The name is free.
    let path = format!("/v1/topics/{topic}/tasks/n");
    let body = json!({ "delay": 0, "payload": 3 });
    let put = api.send_with(Method::PUT, &path, &[], Some(body)).await;
    assert_eq!(put.status, 201, "{}", put.text);
    consumer.wait_count(2, DEADLINE).await;
    assert_eq!(cluster.count("select count(*) from task_follow").await, 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_expiry_that_is_not_after_the_due_time_is_refused() {
    let cluster = Cluster::start("expiry-refused").await;
    let topic = cluster.topic("orders").await;
    let node = cluster.node().await;
    let (api, now) = (node.api(), now_ms());
    let refused = async |task: Value| {
        let answer = api.post("/v1/tasks", task.to_string()).await;
        let problem = answer.json();
        assert_eq!(problem["field"], "expires_at", "{problem}");
        (answer.status, problem["type"].as_str().unwrap().to_owned())
    };
    let task = |due: Value, expires_at: Value| {
        let mut task = json!({ "topic": topic, "payload": 1, "expires_at": expires_at });
        task.as_object_mut().unwrap().extend(due.as_object().unwrap().clone());
        task
    };
    let too_early = (422, "urn:punctual:problem:expires-too-early".to_owned());
    let due_at = now + MINUTE;
    assert_eq!(refused(task(json!({ "due_at": due_at }), json!(due_at))).await, too_early);
    assert_eq!(refused(task(json!({ "delay": "2m" }), json!(now + MINUTE))).await, too_early);
    let invalid = (400, "urn:punctual:problem:invalid-value".to_owned());
    assert_eq!(refused(task(json!({ "delay": 0 }), json!("soon"))).await, invalid);
    let policy = put_policy(api, &topic, &json!({ "expire_after": "1ms" })).await;
    assert_eq!((policy.status, &policy.json()["field"]), (400, &json!("expire_after")));
    assert_eq!(cluster.count("select count(*) from task").await, 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_expiry_of_a_policy_moves_with_the_task_and_one_of_its_own_does_not() {
    let cluster = Cluster::start("expiry-moved").await;
    let topic = cluster.topic("orders").await;
    let node = cluster.node().await;
    let (api, hour) = (node.api(), 60 * MINUTE);
    let policy = put_policy(api, &topic, &json!({ "expire_after": "1h" })).await;
    assert_eq!(policy.json()["policy"], json!({ "expire_after": "1h" }), "{}", policy.text);
    eventually("the node knows the policy", DEADLINE, async || {
        let task = api.submit(&json!({ "topic": topic, "delay": "1h", "payload": 1 })).await;
        api.task(task.id).await.shown.get("expires_at").is_some()
    })
    .await;
    let now = now_ms();
    let of_policy = json!({ "topic": topic, "due_at": now + 100 * hour, "payload": 1 });
    let own = json!({ "topic": topic, "due_at": now + 100 * hour, "payload": 2,
        "expires_at": now + 120 * hour });
    let tasks = api.submit_all(&[of_policy, own]).await;
    let after = moved(api, tasks[1].id, &json!({ "due_at": now + 110 * hour })).await;
    assert_eq!(millis(&after, "expires_at"), now + 120 * hour, "{after}");
    let shown = api.task(tasks[0].id).await.shown;
    assert_eq!(millis(&shown, "expires_at"), now + 101 * hour);
    let after = moved(api, tasks[0].id, &json!({ "due_at": now + 200 * hour })).await;
    assert_eq!(millis(&after, "expires_at"), now + 201 * hour, "{after}");
    // A stored task keeps what it has.
    let deleted = api.send(Method::DELETE, &format!("/v1/topics/{topic}/policy"), None).await;
    assert_eq!(deleted.status, 200, "{}", deleted.text);
    let listed = api.look(&format!("/v1/tasks?topic={topic}&due_from={}", now + 150 * hour)).await;
    let listed = listed.json()["tasks"][0].clone();
    assert_eq!(listed["id"], tasks[0].shown["id"], "{listed}");
    assert_eq!(millis(&listed, "expires_at"), now + 201 * hour, "{listed}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_task_is_not_moved_to_a_time_at_which_it_has_expired() {
    let cluster = Cluster::start("expiry-of-moved").await;
    let topic = cluster.topic("orders").await;
    let node = cluster.node().await;
    let (api, hour, now) = (node.api(), 60 * MINUTE, now_ms());
    let task =
        |name: &str| json!({ "topic": topic, "name": name, "due_at": now + hour, "payload": 1 });
    let mut expiring = task("expiring");
    expiring["expires_at"] = (now + 3 * hour).into();
    let tasks = api.submit_all(&[expiring, task("other")]).await;
    let due_at = async |index: usize| millis(&api.task(tasks[index].id).await.shown, "due_at");
    let by_name = format!("/v1/topics/{topic}/tasks/expiring");
    for path in [format!("/v1/tasks/{}", tasks[0].id), by_name] {
        for (to, field) in
            [(json!({ "due_at": now + 3 * hour }), "due_at"), (json!({ "delay": "4h" }), "delay")]
        {
            let refused = api.send_with(Method::PATCH, &path, &[], Some(to)).await;
            let problem = refused.json();
            let shown = (refused.status, problem["type"].as_str(), problem["field"].as_str());
            let kind = "urn:punctual:problem:expires-too-early";
            assert_eq!(shown, (422, Some(kind), Some(field)), "{problem}");
        }
    }
    assert_eq!(cluster.count("select count(*) from task_follow").await, 0);
    let ids = [tasks[0].id, tasks[1].id].map(|id| id.to_string());
    let both = json!({ "topic": topic, "ids": ids, "to": now + 5 * hour }).to_string();
    let many = api.post("/v1/tasks/move", both).await;
    assert_eq!((many.status, &many.json()["moved"]), (200, &json!(1)), "{}", many.text);
    assert_eq!((due_at(0).await, due_at(1).await), (now + hour, now + 5 * hour));
    let after = moved(api, tasks[0].id, &json!({ "due_at": now + 3 * hour - 1 })).await;
    assert_eq!(millis(&after, "due_at"), now + 3 * hour - 1, "{after}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_task_that_expires_during_a_pause_ends_at_the_resume() {
    let cluster = Cluster::start("expiry-paused").await;
    let topic = cluster.topic("orders").await;
    let consumer = cluster.consumer(&topic);
    let node = cluster.node().await;
    let api = node.api();
    let paused = api.post(&format!("/v1/topics/{topic}/pause"), "{}").await;
    assert_eq!(paused.status, 200, "{}", paused.text);
    api.learn(&topic).await;
    let expires_at = now_ms() + 6_000;
    let tasks = api
        .submit_all(&[
            json!({ "topic": topic, "delay": 0, "payload": 1, "expires_at": expires_at }),
            json!({ "topic": topic, "delay": 0, "payload": 2 }),
        ])
        .await;
    until(expires_at + 500).await;
    assert_eq!(api.task(tasks[0].id).await.state, "scheduled");
    let resumed = api.post(&format!("/v1/topics/{topic}/resume"), "").await;
    assert_eq!(resumed.status, 200, "{}", resumed.text);
    reaches(api, tasks[0].id, "expired").await;
    reaches(api, tasks[1].id, "published").await;
    let records = consumer.wait_count(1, DEADLINE).await;
    assert_eq!(records.iter().map(Record::task_id).collect::<Vec<_>>(), [tasks[1].id]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_expired_task_of_a_dead_node_is_a_dead_letter_and_a_redrive_publishes_it() {
    // A wide window: the victim holds its tasks for seconds.
    let cluster =
        Cluster::with("expiry-adopted", Wishes { window: "10s", ..Wishes::default() }).await;
    let topic = cluster.topic("orders").await;
    let consumer = cluster.consumer(&topic);
    let (survivor, mut victim) = tokio::join!(cluster.node(), cluster.node());
    victim.api().learn(&topic).await;
    let now = now_ms();
    // They expire before another node can take them over.
    let task = json!({ "topic": topic, "due_at": now + 2_500, "expires_at": now + 2_600,
        "payload": 1 });
    let accepted = victim.api().submit_all(&[task.clone(), task]).await;
    victim.kill().await;
    assert!(now_ms() < now + 2_500, "the victim may have published them");
    assert!(accepted.iter().all(|task| task.state == "claimed"), "{accepted:?}");
    let api = survivor.api();
    for task in &accepted {
        let shown = reaches(api, task.id, "dead").await;
        let reason = shown["reason"].as_str().unwrap();
        assert!(reason.starts_with("the task expired at "), "{shown}");
        assert_eq!(lines(&cluster, task.id).await, ["dead"]);
    }
    let listed = api.look(&format!("/v1/dead?topic={topic}")).await.json();
    assert_eq!(millis(&listed["tasks"][0], "expires_at"), now + 2_600, "{listed}");
    throughout("nothing is published late", Duration::from_secs(1), async || {
        consumer.records().is_empty()
    })
    .await;
    let redriven = api.post(&format!("/v1/dead/{}/redrive", accepted[0].id), "").await;
    assert_eq!(redriven.status, 200, "{}", redriven.text);
    assert!(redriven.json().get("expires_at").is_none(), "{}", redriven.text);
    let many = json!({ "topic": topic }).to_string();
    let redriven = api.post("/v1/dead/redrive", many).await;
    assert_eq!(redriven.status, 200, "{}", redriven.text);
    let records = consumer.wait_count(2, DEADLINE).await;
    assert!(records.iter().all(|record| header(record, "punctual-expires-at").is_none()));
    for task in &accepted {
        reaches(api, task.id, "published").await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_attempt_is_made_after_the_expiry_and_the_task_is_a_dead_letter() {
    let cluster = Cluster::start("expiry-tracked").await;
    let topic = cluster.topic("orders").await;
    let consumer = cluster.consumer(&topic);
    let node = cluster.node().await;
    let api = node.api();
    api.learn(&topic).await;
    let task = json!({ "topic": topic, "delay": 0, "payload": 1, "ttr": "15s",
        "expires_at": now_ms() + 12_000 });
    let task = api.submit(&task).await;
    consumer.wait_count(1, DEADLINE).await;
    let shown = reaches(api, task.id, "dead").await;
    let reason = shown["reason"].as_str().unwrap();
    assert!(reason.contains("a record of it is or may be in the topic"), "{shown}");
    assert_eq!((&shown["attempt"], consumer.records().len()), (&json!(1), 1), "{shown}");
    assert_eq!(api.metric("punctual_tasks_expired_total").await as i64, 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_spread_makes_tasks_due_later_by_the_part_of_their_name_and_tells_what_was_requested() {
    let cluster = Cluster::start("spread").await;
    let topic = cluster.topic("orders").await;
    let consumer = cluster.consumer(&topic);
    let node = cluster.node().await;
    let (api, hour) = (node.api(), 60 * MINUTE);
    let policy = put_policy(api, &topic, &json!({ "spread": "1h" })).await;
    assert_eq!(policy.json()["policy"], json!({ "spread": "1h" }), "{}", policy.text);
    eventually("the node knows the policy", DEADLINE, async || {
        let task = api.submit(&json!({ "topic": topic, "delay": "1h", "payload": 1 })).await;
        api.task(task.id).await.shown.get("requested_due_at").is_some()
    })
    .await;
    let requested = now_ms() + 10 * hour;
    let tasks: Vec<Value> = (0..50)
        .map(|number| {
            json!({ "topic": topic, "due_at": requested, "payload": 1, "key": "k",
                "name": format!("n{number}") })
        })
        .collect();
    let accepted = api.submit_all(&tasks).await;
    let parts: Vec<i64> = accepted.iter().map(|task| task.due_at - requested).collect();
    assert!(parts.iter().all(|part| (0..hour).contains(part)), "{parts:?}");
    let halves = parts.iter().filter(|part| **part < hour / 2).count();
    assert!((10..40).contains(&halves), "they are spread: {parts:?}");
    let shown = api.task(accepted[7].id).await.shown;
    assert_eq!(millis(&shown, "requested_due_at"), requested, "{shown}");
    assert_eq!(millis(&shown, "due_at"), requested + parts[7], "{shown}");
    assert_eq!(shown["key"], "k", "{shown}");
    let path = format!("/v1/tasks?topic={topic}&due_from={requested}&limit=1");
    let listed = api.look(&path).await.json()["tasks"][0].clone();
    assert_eq!(millis(&listed, "requested_due_at"), requested, "{listed}");
    // A day later by a PUT: the same part.
    let path = format!("/v1/topics/{topic}/tasks/n7");
    let body = json!({ "due_at": requested + 24 * hour, "payload": 2, "key": "k" });
    let put = api.send_with(Method::PUT, &path, &[], Some(body)).await.json();
    assert_eq!(millis(&put, "due_at"), requested + 24 * hour + parts[7], "{put}");
    // A move is exact, and the record has no header of it.
    let id: Uuid = put["id"].as_str().unwrap().parse().unwrap();
    let after = moved(api, id, &json!({ "delay": 0 })).await;
    assert!(after.get("requested_due_at").is_none(), "{after}");
    let records = consumer.wait_count(1, DEADLINE).await;
    assert_eq!(records[0].task_id(), id);
    let ours = ["punctual-task-id", "punctual-due-at"];
    assert!(records[0].headers.iter().all(|(name, _)| ours.contains(&name.as_str())));
}

/// The policies are read before a node takes its first submit. Otherwise tasks would be stored
/// without the expiry of their topic, for as long as the read takes.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_starting_node_takes_no_submit_before_it_knows_the_policies() {
    let cluster = Cluster::start("expiry-at-start").await;
    let topic = cluster.topic("orders").await;
    let first = cluster.node().await;
    let policy = json!({ "expire_after": "1h" });
    assert!(put_policy(first.api(), &topic, &policy).await.status < 300);
    let mut lock = cluster.sql.begin().await.unwrap();
    sqlx::query("lock table topic_policy in access exclusive mode")
        .execute(&mut *lock)
        .await
        .unwrap();
    let second = cluster.spawn(&[]);
    let address = eventually_some("it listens", DEADLINE, async || second.address()).await;
    let api = Api::new(format!("http://{address}"));
    let task = json!({ "topic": topic, "delay": "2h", "payload": 1 });
    let submit = async || api.send_with(Method::POST, "/v1/tasks", &[], Some(task.clone())).await;
    let not_yet = "the policies of all topics";
    eventually("the node waits for the policies", DEADLINE, async || {
        let answer = submit().await;
        assert_eq!(answer.status, 503, "{}", answer.text);
        second.log_tail().contains(not_yet)
    })
    .await;
    lock.rollback().await.unwrap();
    let stored = eventually_some("the node takes the task", DEADLINE, async || {
        Some(submit().await).filter(|answer| answer.status == 201)
    })
    .await;
    let id: Uuid = stored.json()["id"].as_str().unwrap().parse().unwrap();
    let shown = api.task(id).await.shown;
    assert_eq!(millis(&shown, "expires_at") - millis(&shown, "due_at"), 60 * MINUTE, "{shown}");
}
