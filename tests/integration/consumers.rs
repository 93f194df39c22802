//! Tracked tasks from end to end: consumers read records from Kafka and answer over REST.

use std::collections::{HashMap, HashSet};
use std::time::Duration;

use reqwest::Method;
use serde_json::{Value, json};
use uuid::Uuid;

use crate::support::{Api, Cluster, Record, eventually, eventually_some};

const DEADLINE: Duration = Duration::from_secs(120);

fn number(record: &Record, header: &str) -> u64 {
    let value = record.header(header).unwrap_or_else(|| panic!("no header {header}"));
    String::from_utf8_lossy(value).parse().unwrap()
}

async fn say(api: &Api, id: Uuid, what: &str, body: &Value) -> (u16, Value) {
    let answer = api.post(&format!("/v1/tasks/{id}/{what}"), body.to_string()).await;
    (answer.status, answer.json())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_task_that_is_not_finished_in_time_comes_again_until_it_is() {
    let cluster = Cluster::start("finish").await;
    let topic = cluster.topic("orders").await;
    let node = cluster.node().await;
    let consumer = cluster.consumer(&topic);
    let retry = json!({ "attempts_max": 3 });
    let task = json!({
        "topic": topic, "delay": 0, "payload": { "order": 17 }, "name": "order-17", "ttr": "8s",
        "retry": retry
    });
    let id = node.api().submit(&task).await.id;
    let first = consumer.wait_count(1, DEADLINE).await.remove(0);
    assert_eq!((first.task_id(), number(&first, "punctual-attempt")), (id, 1));
    assert_eq!(number(&first, "punctual-attempts-max"), 3);
    assert_eq!(number(&first, "punctual-ttr-ms"), 8000);
    let second = consumer.wait_count(2, DEADLINE).await.remove(1);
    assert_eq!((second.task_id(), number(&second, "punctual-attempt")), (id, 2));
    assert_eq!((&second.key, &second.payload), (&first.key, &first.payload));
    assert!(second.timestamp - first.timestamp >= 8000, "not before its time to run is over");
    let (status, problem) = say(node.api(), id, "fail", &json!({ "attempt": 1 })).await;
    assert_eq!((status, &problem["verdict"]), (409, &json!("attempt_superseded")));
    let (status, done) = say(node.api(), id, "finish", &json!({ "attempt": 2 })).await;
    assert_eq!((status, &done["verdict"]), (200, &json!("finished")), "{done}");
    let (status, done) = say(node.api(), id, "finish", &json!({})).await;
    assert_eq!((status, &done["verdict"]), (200, &json!("finished")), "repeatable");
    let shown = node.api().task(id).await.shown;
    assert_eq!(shown["state"], "finished", "{shown}");
    let attempts = shown["attempts"].as_array().unwrap();
    let published = attempts.iter().filter(|line| line["receipt"].is_object());
    assert_eq!(published.count(), 2, "{shown}");
    // The name still stands for it, as after any other end.
    let known = node.api().post("/v1/tasks", task.to_string()).await;
    assert_eq!((known.status, &known.json()["state"]), (200, &json!("finished")));
    eventually("nothing is left to do", DEADLINE, async || {
        cluster.count("select count(*) from task_follow").await == 0
    })
    .await;
    assert_eq!(consumer.records().len(), 2);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_task_is_dead_after_its_last_attempt_and_its_record_is_in_the_dead_topic() {
    let cluster = Cluster::start("dead-topic").await;
    let (topic, dead_topic) = (cluster.topic("orders").await, cluster.topic("dead").await);
    let node = cluster.node().await;
    let (consumer, undertaker) = (cluster.consumer(&topic), cluster.consumer(&dead_topic));
    node.api().learn(&topic).await;
    let absent = json!({
        "topic": topic, "delay": 0, "payload": 1, "ttr": "1s",
        "retry": { "dead_topic": format!("{topic}-absent") }
    });
    let refused = node.api().post("/v1/tasks", absent.to_string()).await;
    assert_eq!((refused.status, &refused.json()["field"]), (422, &json!("retry.dead_topic")));
    let task = json!({
        "topic": topic, "delay": 0, "payload": 1,
        "key": "k", "headers": { "own": "x" }, "ttr": "8s",
        "retry": { "attempts_max": 2, "dead_topic": dead_topic }
    });
    let id = node.api().submit(&task).await.id;
    consumer.wait_count(1, DEADLINE).await;
    let failed = json!({ "attempt": 1, "retry_in": "0s", "reason": "out of stock" });
    eventually("the first attempt has failed", DEADLINE, async || {
        say(node.api(), id, "fail", &failed).await.0 == 200
    })
    .await;
    let last = consumer.wait_count(2, DEADLINE).await.remove(1);
    let buried = undertaker.wait_count(1, DEADLINE).await.remove(0);
    assert_eq!((buried.task_id(), buried.key.as_deref()), (id, Some(&b"k"[..])));
    assert_eq!(buried.header("own"), Some(&b"x"[..]));
    assert_eq!(buried.header("punctual-topic"), Some(topic.as_bytes()));
    let reason = "attempt 2 of 2 was not finished in its time to run";
    assert_eq!(buried.header("punctual-dead-reason"), Some(reason.as_bytes()));
    let place = format!("{}:{}", last.partition, last.offset);
    assert_eq!(buried.header("punctual-receipt"), Some(place.as_bytes()));
    let shown = eventually_some("it is dead", DEADLINE, async || {
        let shown = node.api().task(id).await.shown;
        (shown["state"] == "dead" && shown["died_at"].is_string()).then_some(shown)
    })
    .await;
    assert_eq!(shown["reason"], reason, "{shown}");
    let page = node.api().look(&format!("/v1/dead?topic={topic}")).await.json();
    let listed = &page["tasks"][0];
    assert_eq!((&listed["attempt"], &listed["ttr"]), (&json!(2), &json!("8s")), "{page}");
    assert_eq!(listed["attempts"], shown["attempts"], "{page}");
    let mut lines = listed["attempts"].as_array().unwrap().iter();
    assert!(lines.any(|line| line["reason"] == "out of stock"), "{page}");
    let (status, problem) = say(node.api(), id, "finish", &json!({})).await;
    assert_eq!((status, &problem["verdict"]), (409, &json!("dead")));
    assert_eq!(consumer.records().len(), 2, "exactly attempts_max");
    assert_eq!(node.api().metric("punctual_tasks_exhausted_total").await, 1.0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn lists_and_counts_know_the_state_of_a_task() {
    let cluster = Cluster::start("states").await;
    let topic = cluster.topic("orders").await;
    let node = cluster.node().await;
    let api = node.api();
    let task = |delay: &str| json!({ "topic": topic, "delay": delay, "payload": 1, "ttr": "1h" });
    let untracked = json!({ "topic": topic, "delay": "1h", "payload": 1 });
    let mut ids = Vec::new();
    for task in [task("1h"), task("0s"), task("0s"), untracked] {
        ids.push(api.submit(&task).await.id);
    }
    cluster.consumer(&topic).wait_count(2, DEADLINE).await;
    let failed = json!({ "attempt": 1, "retry_in": "1h" });
    eventually("the attempt has failed", DEADLINE, async || {
        api.task(ids[1]).await.state == "awaiting"
            && api.task(ids[2]).await.state == "awaiting"
            && say(api, ids[2], "fail", &failed).await.0 == 200
    })
    .await;
    for (state, wanted) in [
        ("&state=scheduled", vec![ids[0], ids[3]]),
        ("&state=awaiting", vec![ids[1]]),
        ("&state=retrying", vec![ids[2]]),
        ("", ids.clone()),
    ] {
        let page = api.look(&format!("/v1/tasks?topic={topic}{state}")).await.json();
        let listed = page["tasks"].as_array().unwrap().iter();
        let listed: HashSet<Uuid> =
            listed.map(|task| task["id"].as_str().unwrap().parse().unwrap()).collect();
        assert_eq!(listed, wanted.iter().copied().collect(), "{state}: {page}");
        let counts = api.look(&format!("/v1/tasks/counts?topic={topic}{state}")).await.json();
        let pending = json!({ "count": wanted.len(), "exact": true });
        assert_eq!(counts["pending"], pending, "{state}: {counts}");
        assert_eq!(counts["topics"][0]["count"], json!(wanted.len()), "{state}: {counts}");
    }
    let wrong = api.look("/v1/tasks?state=dead").await;
    assert_eq!((wrong.status, &wrong.json()["field"]), (400, &json!("state")));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn tracked_and_expiring_tasks_are_refused_while_a_node_lives_that_does_not_know_them() {
    let cluster = Cluster::start("old-node").await;
    let topic = cluster.topic("orders").await;
    let node = cluster.node().await;
    let submit = async |task: Value| {
        let answer = node.api().post("/v1/tasks", task.to_string()).await;
        (answer.status, answer.json())
    };
    let tracked = json!({ "topic": topic, "delay": "1h", "payload": 1, "ttr": "1s" });
    let untracked = json!({ "topic": topic, "delay": "1h", "payload": 1 });
    let expires_at = "2100-01-01T00:00:00Z";
    let expiring = json!({ "topic": topic, "delay": "1h", "payload": 1, "expires_at": expires_at });
    // A heartbeat as a node of an older version writes it.
    let run = async |statement: &'static str| {
        sqlx::query(statement).execute(&mut cluster.database.connect().await).await.unwrap();
    };
    run("insert into heartbeat (node, name, address, version, counter, started_at, beat_at,
           has_broker, can_publish)
         values (gen_random_uuid(), 'old', 'a', 'v', 1, now(), now(), true, false)")
    .await;
    let (_, problem) = eventually_some("the old node is seen", DEADLINE, async || {
        run("update heartbeat set counter = counter + 1, beat_at = now() where name = 'old'").await;
        let answer = submit(tracked.clone()).await;
        (answer.0 == 503).then_some(answer)
    })
    .await;
    assert!(problem["type"].as_str().unwrap().ends_with(":unavailable"), "{problem}");
    assert!(problem["detail"].as_str().unwrap().contains("1 node of the cluster is"), "{problem}");
    let (status, problem) = submit(expiring.clone()).await;
    assert!(problem["detail"].as_str().unwrap().contains("tasks that expire"), "{problem}");
    assert_eq!(status, 503);
    let path = format!("/v1/topics/{topic}/policy");
    for policy in [json!({ "expire_after": "1h" }), json!({ "spread": "1h" })] {
        let put = node.api().send_with(Method::PUT, &path, &[], Some(policy)).await;
        assert!(put.text.contains("`expire_after` and `spread`"), "{}", put.text);
        assert_eq!(put.status, 503);
    }
    let path = format!("/v1/schedules/{topic}/hourly");
    let schedule = async |path: &str, method: Method, body: Value| {
        let answer = node.api().send_with(method, path, &[], Some(body)).await;
        (answer.status, answer.text)
    };
    let hourly = json!({ "every": "1h", "payload": 1 });
    assert_eq!(schedule(&path, Method::PUT, hourly).await.0, 201);
    let spread = json!({ "every": "1h", "payload": 1, "spread": "1h" });
    let (backfill, range) = (format!("{path}/backfill"), json!({ "last": "2h" }));
    for (path, method, body) in
        [(&path, Method::PUT, spread.clone()), (&backfill, Method::POST, range.clone())]
    {
        let (status, text) = schedule(path, method, body).await;
        assert!(status == 503 && text.contains("`spread` and backfills"), "{path}: {text}");
    }
    assert_eq!(submit(untracked).await.0, 201);
    run("update heartbeat set has_left = true where name = 'old'").await;
    eventually("tracked tasks are taken", DEADLINE, async || {
        submit(tracked.clone()).await.0 == 201
    })
    .await;
    assert_eq!(submit(expiring).await.0, 201);
    assert_eq!(schedule(&path, Method::PUT, spread).await.0, 200);
    assert_eq!(schedule(&backfill, Method::POST, range).await.0, 200);
}

/// How a test's consumer treats an attempt.
fn mood(id: Uuid, attempt: u64) -> u64 {
    (id.as_u128() >> 8).wrapping_add(u128::from(attempt) * 7).rem_euclid(10) as u64
}

/// Consumers finish, fail and stay silent while a node is killed and another is frozen. Each
/// task has one final line, no attempt is claimed after `finished`, and none is forgotten.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_task_is_forgotten_and_none_is_attempted_after_its_finish_while_nodes_die() {
    const TASKS: usize = 400;
    let cluster = Cluster::start("answers-die").await;
    let topic = cluster.topic("orders").await;
    let (mut victim, zombie, stayer) = tokio::join!(cluster.node(), cluster.node(), cluster.node());
    let consumer = cluster.consumer(&topic);
    let tasks: Vec<Value> = (0..TASKS)
        .map(|n| {
            json!({
                "topic": topic, "delay": 500 + n * 5, "payload": n, "ttr": "1s",
                "retry": { "attempts_max": 4 }
            })
        })
        .collect();
    for some in tasks.chunks(100) {
        stayer.api().submit_all(some).await;
    }
    let mut handled = 0;
    let mut finished: HashMap<Uuid, u64> = HashMap::new();
    let mut has_killed = false;
    eventually("each task has ended", DEADLINE, async || {
        let records = consumer.records();
        for record in &records[handled..] {
            let (id, attempt) = (record.task_id(), number(record, "punctual-attempt"));
            match mood(id, attempt) {
                0..3 => {}
                3..6 => {
                    let body = json!({ "attempt": attempt, "retry_in": "0s" });
                    say(stayer.api(), id, "fail", &body).await;
                }
                _ => {
                    let (status, done) =
                        say(stayer.api(), id, "finish", &json!({ "attempt": attempt })).await;
                    if status == 200 {
                        assert_eq!(done["verdict"], "finished");
                        finished.insert(id, attempt);
                    }
                }
            }
        }
        handled = records.len();
        let ended = "select count(*) from execlog where state in ('finished', 'dead')";
        let ended = usize::try_from(cluster.count(ended).await).unwrap();
        // On a busy machine, tasks can end before the consumer sees their records.
        if !has_killed && handled.max(ended) > TASKS / 2 {
            has_killed = true;
            victim.kill().await;
            zombie.freeze();
        }
        has_killed && ended == TASKS
    })
    .await;
    // Its batches were taken over, and its own settles change nothing.
    zombie.thaw();
    let id = zombie.id().await;
    eventually("the zombie holds nothing", DEADLINE, async || {
        cluster.unsettled(id).await.is_empty()
    })
    .await;
    let twice = "select count(*) from (select id from execlog where state in ('finished', 'dead')
      group by id having count(*) > 1) x";
    assert_eq!(cluster.count(twice).await, 0, "one final line each");
    let later = "select count(*) from execlog_finished f join execlog_batch b
      on f.id = any(coalesce(b.first_ids, b.ids)) where b.claimed_at > f.finished_at";
    assert_eq!(cluster.count(later).await, 0, "claimed after the finish");
    let lines: i64 = cluster.count("select count(*) from execlog where state = 'finished'").await;
    assert!(finished.len() <= usize::try_from(lines).unwrap());
    let records = consumer.records();
    let seen: HashSet<Uuid> = records.iter().map(Record::task_id).collect();
    assert_eq!(seen.len(), TASKS);
    assert!(records.iter().all(|record| number(record, "punctual-attempt") <= 4));
    assert_eq!(cluster.count("select count(*) from task_follow").await, 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn many_outcomes_are_taken_at_once_each_with_its_result() {
    let cluster = Cluster::start("outcomes").await;
    let topic = cluster.topic("orders").await;
    let node = cluster.node().await;
    let consumer = cluster.consumer(&topic);
    let tasks: Vec<Value> = (0..50)
        .map(|n| {
            json!({
                "topic": topic, "delay": 0, "payload": n, "name": format!("n{n}"), "ttr": "1h"
            })
        })
        .collect();
    let ids: Vec<Uuid> = node.api().submit_all(&tasks).await.iter().map(|task| task.id).collect();
    consumer.wait_count(50, DEADLINE).await;
    let mut outcomes: Vec<Value> = ids[..25]
        .iter()
        .map(|id| json!({ "id": id.to_string(), "outcome": "finish" }))
        .chain((25..48).map(|n| {
            json!({ "topic": topic, "name": format!("n{n}"), "outcome": "finish", "attempt": 1 })
        }))
        .collect();
    outcomes
        .push(json!({ "id": ids[48].to_string(), "outcome": "fail", "attempt": 1, "final": true }));
    outcomes
        .push(json!({ "id": ids[49].to_string(), "outcome": "extend", "attempt": 1, "by": "2h" }));
    let absent = Uuid::from_u128(ids[0].as_u128() ^ 1);
    outcomes.push(json!({ "id": absent.to_string(), "outcome": "finish" }));
    let body = json!({ "outcomes": outcomes }).to_string();
    let answer = node.api().post("/v1/outcomes", body).await;
    assert_eq!(answer.status, 200, "{}", answer.json());
    let results = answer.json()["results"].as_array().unwrap().clone();
    assert_eq!(results.len(), 51);
    let statuses: Vec<u64> =
        results.iter().map(|result| result["status"].as_u64().unwrap()).collect();
    assert_eq!(statuses[..50], [200; 50]);
    assert_eq!(statuses[50], 404);
    assert!(results[..48].iter().all(|result| result["verdict"] == "finished"), "{results:?}");
    assert_eq!(node.api().metric("punctual_tasks_finished_total").await, 48.0);
}

/// An answer that was lost is repeated as a whole, and each outcome of it is looked up. They are
/// more than one group.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn many_outcomes_are_repeated_and_told_again() {
    const COUNT: usize = 1_200;
    let cluster = Cluster::start("outcomes-again").await;
    let topic = cluster.topic("orders").await;
    let node = cluster.node().await;
    let consumer = cluster.consumer(&topic);
    let task = json!({ "topic": topic, "delay": 0, "payload": 1, "ttr": "1h" });
    let tasks = vec![task; COUNT];
    let ids: Vec<Uuid> = node.api().submit_all(&tasks).await.iter().map(|task| task.id).collect();
    consumer.wait_count(COUNT, DEADLINE).await;
    let finish = |id: &Uuid| json!({ "id": id.to_string(), "outcome": "finish" });
    let outcomes: Vec<Value> = ids.iter().map(finish).collect();
    let body = json!({ "outcomes": outcomes }).to_string();
    for _time in 0..2 {
        let answer = node.api().post("/v1/outcomes", body.clone()).await;
        assert_eq!(answer.status, 200, "{}", answer.text);
        let results = answer.json()["results"].as_array().unwrap().clone();
        assert_eq!(results.len(), COUNT);
        assert!(results.iter().all(|result| result["verdict"] == "finished"), "{}", answer.text);
    }
    assert_eq!(node.api().metric("punctual_tasks_finished_total").await, COUNT as f64);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_answer_about_a_cancelled_or_a_dropped_task_is_told_its_state() {
    let cluster = Cluster::start("answers-too-late").await;
    let topic = cluster.topic("orders").await;
    let node = cluster.node().await;
    let api = node.api();
    let task = |delay: &str| json!({ "topic": topic, "delay": delay, "payload": 1, "ttr": "1h" });
    let cancelled = api.submit(&task("1h")).await.id;
    assert_eq!(api.verdict(cancelled).await, "cancelled");
    let dropped = api.submit(&task("0s")).await.id;
    eventually("it is with its consumer", DEADLINE, async || {
        say(api, dropped, "fail", &json!({ "attempt": 1, "final": true })).await.0 == 200
    })
    .await;
    eventually("it is dropped", DEADLINE, async || {
        api.send(Method::DELETE, &format!("/v1/dead/{dropped}"), None).await.status == 200
    })
    .await;
    for (id, verdict) in [(cancelled, "cancelled"), (dropped, "dead")] {
        for (what, body) in [("finish", json!({})), ("fail", json!({ "attempt": 1 }))] {
            let (status, problem) = say(api, id, what, &body).await;
            assert_eq!((status, &problem["verdict"]), (409, &json!(verdict)), "{problem}");
        }
    }
    let plain = json!({ "topic": topic, "delay": "1h", "payload": 1 });
    let untracked = api.submit(&plain).await.id;
    let (status, problem) = say(api, untracked, "finish", &json!({})).await;
    assert_eq!((status, &problem["verdict"]), (409, &json!("not_tracked")), "{problem}");
}

/// An attempt of hours is extended more often than lines are shown.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_task_that_is_extended_often_keeps_its_receipt() {
    let cluster = Cluster::start("extended-often").await;
    let topic = cluster.topic("orders").await;
    let node = cluster.node().await;
    let api = node.api();
    let task = json!({ "topic": topic, "delay": 0, "payload": 1, "ttr": "1h" });
    let id = api.submit(&task).await.id;
    let receipt = eventually_some("a receipt", DEADLINE, async || {
        let shown = api.task(id).await.shown;
        shown["receipt"].is_object().then(|| shown["receipt"].clone())
    })
    .await;
    let extended = "insert into execlog_attempt (id, row_id, event, attempt, at)
        select $1, $1, 4, 1, now() from generate_series(1, 250)";
    sqlx::query(extended).bind(id).execute(&cluster.sql).await.unwrap();
    let shown = api.task(id).await.shown;
    assert_eq!(shown["receipt"], receipt, "{}", shown["attempts"]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn many_calls_about_one_task_are_refused_and_keep_no_others_waiting() {
    let cluster = Cluster::start("outcomes-of-one").await;
    let topic = cluster.topic("orders").await;
    let node = cluster.node().await;
    let consumer = cluster.consumer(&topic);
    let task = json!({ "topic": topic, "delay": 0, "payload": 1, "ttr": "1h" });
    let tasks = [task.clone(), task];
    let ids: Vec<Uuid> = node.api().submit_all(&tasks).await.iter().map(|task| task.id).collect();
    consumer.wait_count(2, DEADLINE).await;
    let extend = json!({ "id": ids[0].to_string(), "outcome": "extend", "attempt": 1 });
    let mut outcomes = vec![extend; 5_000];
    outcomes.push(json!({ "id": ids[1].to_string(), "outcome": "finish" }));
    let body = json!({ "outcomes": outcomes }).to_string();
    let answer = node.api().post("/v1/outcomes", body).await;
    assert_eq!(answer.status, 200, "{}", answer.text);
    let results = answer.json()["results"].as_array().unwrap().clone();
    assert_eq!(results[5_000]["verdict"], "finished", "{}", results[5_000]);
    let count = |status: u64| results.iter().filter(|result| result["status"] == status).count();
    let (done, refused) = (count(200), count(503));
    assert_eq!((done + refused, done >= 17), (5_001, true), "{done} done");
    assert!(refused > 4_000, "{refused} refused");
    let limit = r#"punctual_api_rejected_total{limit="calls_of_task"}"#;
    assert_eq!(node.api().metric(limit).await, 1.0);
    assert_eq!(node.api().task(ids[0]).await.state, "awaiting");
}
