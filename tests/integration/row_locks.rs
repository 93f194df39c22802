//! A locked row, for example of an open transaction, delays no other tasks.

use std::time::Duration;

use futures_util::future::join_all;
use reqwest::Method;
use serde_json::{Value, json};
use sqlx::{Connection as _, PgConnection};
use uuid::Uuid;

use crate::support::api::Task;
use crate::support::{Cluster, Ledger, NONE, eventually, now_ms};

const DEADLINE: Duration = Duration::from_secs(120);

/// A transaction that locks the row of a task until dropped.
async fn lock(cluster: &Cluster, id: Uuid) -> PgConnection {
    let mut holder = cluster.database.connect().await;
    sqlx::raw_sql("begin").execute(&mut holder).await.unwrap();
    let locked = sqlx::query("select from task where id = $1 for update")
        .bind(id)
        .fetch_all(&mut holder)
        .await
        .unwrap();
    assert_eq!(locked.len(), 1, "the task is no longer there to be locked");
    holder
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_overdue_behind_a_locked_row_is_published_and_the_row_when_it_is_free() {
    let cluster = Cluster::start("locked-claim").await;
    let topic = cluster.topic("orders").await;
    let mut first = cluster.node().await;
    first.api().learn(&topic).await;
    let start = now_ms() + 15_000;
    let tasks: Vec<Value> = (0..50)
        .map(|number| {
            json!({
                "topic": topic,
                "due_at": start + number * 20,
                "payload_text": format!("task {number}"),
            })
        })
        .collect();
    let accepted = first.api().submit_all(&tasks).await;
    let ledger = Ledger::default();
    ledger.accept_all(&accepted, &tasks);
    let holder = lock(&cluster, accepted[10].id).await;
    first.terminate();
    assert!(first.wait_exit(DEADLINE).await.success());
    eventually("all are overdue", DEADLINE, async || now_ms() > start + 2000).await;

    let _second = cluster.node().await;
    let consumer = cluster.consumer(&topic);
    let records = consumer.wait_count(49, DEADLINE).await;
    assert!(records.iter().all(|record| record.task_id() != accepted[10].id), "its row is locked");
    holder.close().await.unwrap();
    let findings = ledger.settle_up(&cluster, || consumer.records(), DEADLINE).await;
    assert_eq!(findings.published_count, 50);
    assert_eq!(findings.duplicates, NONE);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn cancels_beside_a_locked_row_take_effect() {
    let cluster = Cluster::start("locked-cancel").await;
    let topic = cluster.topic("orders").await;
    let node = cluster.node().await;
    let tasks: Vec<Value> = (0..200)
        .map(|number| {
            json!({
                "topic": topic,
                "delay": "1h",
                "payload_text": format!("task {number}"),
            })
        })
        .collect();
    let accepted = node.api().submit_all(&tasks).await;
    let holder = lock(&cluster, accepted[100].id).await;
    let cancels = accepted.iter().map(|task| {
        let (api, id) = (node.api().clone(), task.id);
        tokio::spawn(async move { api.cancel(id).await })
    });
    let mut refused = Vec::new();
    for (cancel, task) in cancels.collect::<Vec<_>>().into_iter().zip(&accepted) {
        let answer = cancel.await.unwrap();
        match answer.status {
            200 => assert_eq!(answer.verdict(), "cancelled"),
            _ => refused.push((task.id, answer.status)),
        }
    }
    assert!(refused.contains(&(accepted[100].id, 503)), "it is locked");
    assert!(refused.iter().all(|(_, status)| *status == 503), "{refused:?}");
    // On a busy machine, the deadline may pass before the halves have come down to one row. The
    // other callers are asked to retry, and the lock does not delay the retry.
    for (id, _) in refused.iter().filter(|(id, _)| *id != accepted[100].id) {
        eventually("a cancel beside the lock takes effect", DEADLINE, async || {
            node.api().cancel(*id).await.status == 200
        })
        .await;
    }
    holder.close().await.unwrap();
    assert_eq!(node.api().cancel(accepted[100].id).await.verdict(), "cancelled");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn answers_of_consumers_beside_a_locked_task_take_effect() {
    const TASKS: usize = 100;
    let cluster = Cluster::start("locked-answer").await;
    let topic = cluster.topic("orders").await;
    let node = cluster.node().await;
    let task = |number| json!({ "topic": topic, "delay": 0, "payload": number, "ttr": "1h" });
    let tasks: Vec<Value> = (0..TASKS).map(task).collect();
    let accepted = node.api().submit_all(&tasks).await;
    eventually("consumers have all of them", DEADLINE, async || {
        cluster.count("select count(*) from task_follow").await == 100
    })
    .await;
    let locked = accepted[50].id;
    let mut holder = cluster.database.connect().await;
    sqlx::raw_sql("begin").execute(&mut holder).await.unwrap();
    let lock = sqlx::query("select from task_follow where first_id = $1 for update").bind(locked);
    assert_eq!(lock.fetch_all(&mut holder).await.unwrap().len(), 1);
    let finish = async |id: Uuid| node.api().post(&format!("/v1/tasks/{id}/finish"), "{}").await;
    let outcomes: Vec<Value> = accepted
        .iter()
        .map(|task| json!({ "id": task.id.to_string(), "outcome": "finish" }))
        .collect();
    let body = json!({ "outcomes": outcomes }).to_string();
    let answer = node.api().post("/v1/outcomes", body).await;
    let results = answer.json()["results"].as_array().cloned().unwrap();
    assert_eq!(results[50]["status"], 503, "it is locked: {}", answer.text);
    let finished = results.iter().filter(|result| result["verdict"] == "finished").count();
    assert!(finished >= TASKS / 2, "the half beside it: {}", answer.text);
    // As for cancels, on a busy machine some may be asked to retry.
    for task in accepted.iter().filter(|task| task.id != locked) {
        eventually("a finish beside the lock takes effect", DEADLINE, async || {
            finish(task.id).await.status == 200
        })
        .await;
    }
    holder.close().await.unwrap();
    assert_eq!(finish(locked).await.json()["verdict"], "finished");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn answers_of_consumers_beside_a_damaged_task_take_effect() {
    let cluster = Cluster::start("damaged-answer").await;
    let topic = cluster.topic("orders").await;
    let node = cluster.node().await;
    let task = |number| json!({ "topic": topic, "delay": 0, "payload": number, "ttr": "1h" });
    let tasks: Vec<Value> = (0..10).map(task).collect();
    let accepted = node.api().submit_all(&tasks).await;
    eventually("consumers have all of them", DEADLINE, async || {
        cluster.count("select count(*) from task_follow").await == 10
    })
    .await;
    let damage = "update task set tracking = '\\xff' where first_id = $1";
    let damaged = sqlx::query(damage).bind(accepted[5].id).execute(&cluster.sql).await.unwrap();
    assert_eq!(damaged.rows_affected(), 1);
    let outcome = |task: &Task| json!({ "id": task.id.to_string(), "outcome": "finish" });
    let outcomes: Vec<Value> = accepted.iter().map(outcome).collect();
    let body = json!({ "outcomes": outcomes }).to_string();
    let answer = node.api().post("/v1/outcomes", body).await;
    let results = answer.json()["results"].as_array().cloned().unwrap();
    assert_eq!(results[5]["status"], 503, "{}", answer.text);
    let finished = results.iter().filter(|result| result["verdict"] == "finished").count();
    // On a busy machine, the deadline may pass before the halves have come down to one row.
    assert!(finished >= 5, "the half beside it: {}", answer.text);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn cancels_beside_a_damaged_task_take_effect() {
    const DAMAGED: usize = 100;
    let cluster = Cluster::start("damaged-cancel").await;
    let topic = cluster.topic("orders").await;
    let node = cluster.node().await;
    let task = |number| json!({ "topic": topic, "delay": "1h", "payload": number });
    let tasks: Vec<Value> = (0..200).map(task).collect();
    let accepted = node.api().submit_all(&tasks).await;
    // Postgres finds damage only when it reads the row.
    let damage = "create function damaged() returns trigger language plpgsql as $$
        begin raise exception 'invalid page' using errcode = 'XX001'; end $$";
    sqlx::raw_sql(damage).execute(&cluster.sql).await.unwrap();
    let meet = format!(
        "create trigger damage before delete on task for each row when (old.id = '{}')
         execute function damaged()",
        accepted[DAMAGED].id
    );
    sqlx::raw_sql(sqlx::AssertSqlSafe(meet)).execute(&cluster.sql).await.unwrap();
    // While the first of them are committed, the others gather, and share statements.
    let cancels = accepted.iter().map(|task| {
        let (api, id) = (node.api().clone(), task.id);
        tokio::spawn(async move { api.cancel(id).await })
    });
    let answers = join_all(cancels.collect::<Vec<_>>()).await;
    for (number, answer) in answers.into_iter().map(Result::unwrap).enumerate() {
        let expected = if number == DAMAGED { 503 } else { 200 };
        assert_eq!(answer.status, expected, "{number}: {}", answer.text);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn submits_beside_a_locked_name_are_stored() {
    let cluster = Cluster::start("locked-name").await;
    let topic = cluster.topic("orders").await;
    let node = cluster.node().await;
    let task = |number: usize| {
        json!({
            "topic": topic,
            "name": format!("n{number}"),
            "delay": "1h",
            "payload": number,
        })
    };
    node.api().submit(&task(100)).await;
    // The transaction may delete the row and roll back, so the name is not known to be free.
    let mut holder = cluster.database.connect().await;
    sqlx::raw_sql("begin; delete from task_name where name = 'n100'")
        .execute(&mut holder)
        .await
        .unwrap();
    let body = json!({ "tasks": (0..200).map(task).collect::<Vec<_>>() }).to_string();
    let answer = node.api().post("/v1/tasks/batch", body).await;
    assert_eq!(answer.status, 200, "{}", answer.text);
    let results = answer.json()["results"].as_array().cloned().unwrap();
    assert_eq!(results[100]["status"], 503, "its name is locked");
    assert!(
        results[..100].iter().all(|result| result["status"] == 201),
        "the half beside it is stored: {}",
        answer.text
    );
    // As for cancels: on a busy machine the other callers may be asked to retry, and the lock does
    // not delay the retry.
    for number in (0..200).filter(|number| *number != 100) {
        let status = results[number]["status"].as_u64().unwrap();
        assert!([201, 503].contains(&status), "{number}: {status}");
        if status == 503 {
            eventually("a submit beside the lock is stored", DEADLINE, async || {
                [200, 201]
                    .contains(&node.api().post("/v1/tasks", task(number).to_string()).await.status)
            })
            .await;
        }
    }
    holder.close().await.unwrap();
    assert_eq!(node.api().post("/v1/tasks", task(100).to_string()).await.status, 200);
    assert_eq!(cluster.count("select count(*) from task").await, 200);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn replacements_beside_a_locked_name_take_effect() {
    const CALLERS: usize = 8;
    const WAITING: &str = "select count(*) from pg_stat_activity where wait_event_type = 'Lock' \
                           and datname = current_database()";
    let cluster = Cluster::start("locked-put").await;
    let topic = cluster.topic("orders").await;
    let node = cluster.node().await;
    let put = async |name: String| {
        let path = format!("/v1/topics/{topic}/tasks/{name}");
        let body = ("application/json", br#"{"delay": "1h", "payload": 1}"#.to_vec());
        node.api().send(Method::PUT, &path, Some(body)).await
    };
    node.api().learn(&topic).await;
    assert_eq!(put("hot".to_owned()).await.status, 201);
    let mut holder = cluster.database.connect().await;
    sqlx::raw_sql("begin; select from task_name where name = 'hot' for update")
        .execute(&mut holder)
        .await
        .unwrap();
    let hot = join_all((0..CALLERS).map(|_caller| put("hot".to_owned())));
    let others = async {
        eventually("a replacement waits for the lock", DEADLINE, async || {
            cluster.count(WAITING).await > 0
        })
        .await;
        for number in 0..20 {
            let answer = put(format!("cold-{number}")).await;
            assert_eq!(answer.status, 201, "{number}: {}", answer.text);
            // The other ones wait without a connection.
            assert!(cluster.count(WAITING).await <= 1);
        }
        holder.close().await.unwrap();
    };
    let (hot, ()) = tokio::join!(hot, others);
    for answer in hot {
        assert!([200, 503].contains(&answer.status), "{}: {}", answer.status, answer.text);
    }
    assert_eq!(put("hot".to_owned()).await.status, 200, "the name is free again");
}

/// A cancel does not wait for the entry of a name before it commits. A precondition that did not
/// hold has locked this one.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_entry_of_a_locked_name_knows_of_the_cancel_later() {
    let cluster = Cluster::start("locked-entry").await;
    let topic = cluster.topic("orders").await;
    let node = cluster.node().await;
    let task = json!({ "topic": topic, "name": "cart", "delay": "30d", "payload": 1 });
    let id = node.api().submit(&task).await.id;
    let mut holder = cluster.database.connect().await;
    sqlx::raw_sql("begin; select from task_name where name = 'cart' for update")
        .execute(&mut holder)
        .await
        .unwrap();
    let cancel = node.api().cancel(id);
    let release = async {
        eventually("the task is cancelled", DEADLINE, async || {
            cluster.count("select count(*) from execlog_cancelled").await == 1
        })
        .await;
        sqlx::raw_sql("rollback").execute(&mut holder).await.unwrap();
    };
    let (answer, ()) = tokio::join!(cancel, release);
    assert_eq!(answer.verdict(), "cancelled");
    // As after the retention of receipts.
    sqlx::raw_sql("delete from execlog_cancelled").execute(&cluster.sql).await.unwrap();
    let known = node.api().post("/v1/tasks", task.to_string()).await;
    assert_eq!((known.status, known.json()["state"].as_str()), (200, Some("cancelled")));
}

/// A group that cannot be claimed on insert goes to `task`.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn submits_beside_a_lock_on_the_execlog_are_stored() {
    let cluster = Cluster::start("locked-execlog").await;
    let topic = cluster.topic("orders").await;
    let node = cluster.node().await;
    let consumer = cluster.consumer(&topic);
    node.api().learn(&topic).await;
    let known = cluster.count("select count(*) from task").await;
    let mut holder = cluster.database.connect().await;
    sqlx::raw_sql("begin; lock table execlog_batch in share mode")
        .execute(&mut holder)
        .await
        .unwrap();
    let task = |number: usize| {
        let mut task = json!({
            "topic": topic,
            "delay": if number.is_multiple_of(10) { "0s" } else { "1h" },
            "payload": number,
        });
        if number >= 50 {
            task["name"] = json!(format!("n{number}"));
        }
        task
    };
    let body = json!({ "tasks": (0..100).map(task).collect::<Vec<_>>() }).to_string();
    let answer = node.api().post("/v1/tasks/batch", body).await;
    let statuses: Vec<u64> = answer.json()["results"]
        .as_array()
        .unwrap()
        .iter()
        .map(|result| result["status"].as_u64().unwrap())
        .collect();
    assert_eq!(statuses, [201; 100]);
    assert_eq!(cluster.count("select count(*) from task").await, known + 100);
    holder.close().await.unwrap();
    consumer.wait_count(10, DEADLINE).await;
}
