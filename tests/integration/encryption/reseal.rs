//! Stored records are encrypted again, so that an old key can be removed.

use std::collections::BTreeMap;

use reqwest::Method;
use serde_json::json;
use sqlx::Connection as _;
use uuid::Uuid;
use xxhash_rust::xxh3::xxh3_64;

use super::{
    DEADLINE, HOUR, Keys, MARKER, is_shown_whole, is_whole, put, tables_with, task, text_of,
};
use crate::support::node::program;
use crate::support::{Api, Cluster, Node, eventually, now_ms};
use crate::tokens::AuthFile;

/// Runs the command. Returns its exit code, stdout and stderr.
pub async fn reseal(cluster: &Cluster, keys: &str, more: &[&str]) -> (i32, String, String) {
    let words = ["payload-keys", "reseal", "--database-url", &cluster.database.url];
    let words = [&words[..], &["--payload-key-file", keys], more].concat();
    let output = program(&words).output();
    let output = tokio::time::timeout(DEADLINE, output).await.expect("the command ends").unwrap();
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    (output.status.code().unwrap(), text(&output.stdout), text(&output.stderr))
}

/// Returns how many rows of each table have which key.
async fn marks(cluster: &Cluster) -> BTreeMap<(String, i64), i64> {
    let rows: Vec<(String, i64, i64)> = sqlx::query_as(
        "select place, coalesce(key, 0), count(*) from (
           select 'task' as place, punctual_sealed_by(headers) as key from task
           union all select 'task_far', punctual_sealed_by(headers) from task_far
           union all select 'dead_letter', punctual_sealed_by(headers) from dead_letter
           union all select 'schedule', punctual_sealed_by(headers) from schedule) x
         group by 1, 2",
    )
    .fetch_all(&cluster.sql)
    .await
    .unwrap();
    rows.into_iter().map(|(place, key, count)| ((place, key), count)).collect()
}

fn of(wanted: &[(&str, i64, i64)]) -> BTreeMap<(String, i64), i64> {
    wanted.iter().map(|(place, key, count)| (((*place).to_owned(), *key), *count)).collect()
}

/// The tasks of a test: those with the parts of [`task`], and larger ones.
struct Stored {
    ids: Vec<Uuid>,
    large: Vec<Uuid>,
    /// The due time of the far ones.
    far: i64,
}

/// Stores tasks and a schedule with payload key 1, and two tasks in the clear.
async fn store(cluster: &Cluster, node: &Node, keys: &Keys, topic: &str) -> Stored {
    let api = node.api();
    let (near, far) = (now_ms() + HOUR, now_ms() + 40 * 24 * HOUR);
    let mut ids: Vec<Uuid> = Vec::new();
    let mut add = async |due_at: &[i64]| {
        let tasks: Vec<_> = due_at.iter().map(|due_at| task(topic, *due_at)).collect();
        ids.extend(api.submit_all(&tasks).await.iter().map(|task| task.id));
    };
    add(&[near, far]).await;
    keys.write(Some(1), &[1], node).await;
    // More than one statement looks at, and more bytes than one replaces.
    add(&[far; 800]).await;
    add(&[near, near + HOUR / 4]).await;
    let mut large = task(topic, far);
    large["payload_text"] = json!("x".repeat(700_000));
    let large = api.submit_all(&[large.clone(), large.clone(), large]).await;
    let large = large.iter().map(|task| task.id).collect();
    let schedule = json!({ "cron": "0 0 1 1 *", "time_zone": "Europe/Berlin",
        "key": format!("key-{MARKER}"), "payload_text": format!("payload-{MARKER}"),
        "headers": { "own": format!("header-{MARKER}") } });
    put(api, &format!("/v1/schedules/{topic}/yearly"), &schedule).await;
    eventually("its run is made", DEADLINE, async || {
        cluster.count("select count(*) from schedule_run").await == 1
    })
    .await;
    // Moved, so that the id of its row is not its first one.
    let moved = json!({ "topic": topic, "ids": [ids[2].to_string()], "to": far + HOUR });
    assert_eq!(api.post("/v1/tasks/move", moved.to_string()).await.json()["moved"], 1);
    // A dead letter, as after a refusal.
    sqlx::query(
        "with d as (delete from task_far where id = $1 returning *)
         insert into dead_letter (id, row_id, topic, key, payload, headers, attempts, reason)
         select id, id, topic, key, payload, headers, 1, 'test' from d",
    )
    .bind(ids[3])
    .execute(&cluster.sql)
    .await
    .unwrap();
    Stored { ids, large, far }
}

/// Moves all pending tasks of a topic to the present.
async fn publish_all(api: &Api, topic: &str, far: i64) {
    let (from, to) = (now_ms() + HOUR / 6, far + 300 * 24 * HOUR);
    let mut body = json!({ "topic": topic, "due_from": from, "due_to": to, "to": now_ms() });
    loop {
        let answer = api.post("/v1/tasks/move", body.to_string()).await;
        assert_eq!(answer.status, 200, "{}", answer.text);
        let answer = answer.json();
        if answer["more"] == false {
            break;
        }
        body["cursor"] = answer["cursor"].clone();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn after_a_rotation_all_records_get_the_new_key_and_the_old_one_is_removed() {
    let cluster = Cluster::start("reseal").await;
    let topic = cluster.topic("orders").await;
    let consumer = cluster.consumer(&topic);
    let keys = Keys::new("reseal", None, &[1]);
    let mut node = keys.node(&cluster, &[]).await;
    let Stored { ids, large, far } = store(&cluster, &node, &keys, &topic).await;
    let before = of(&[
        ("task", 0, 1),
        ("task", 1, 2),
        ("task_far", 0, 1),
        ("task_far", 1, 803),
        ("dead_letter", 1, 1),
        ("schedule", 1, 1),
    ]);
    assert_eq!(marks(&cluster).await, before);

    // Not before a node encrypts with the new key.
    let new = AuthFile::new("reseal-new", &text_of(Some(2), &[1, 2]));
    let (code, _, said) = reseal(&cluster, new.path(), &[]).await;
    assert!(code == 1 && said.contains("payload key 2"), "{code} {said}");
    keys.write(Some(2), &[1, 2], &node).await;
    let (code, counted, said) = reseal(&cluster, keys.path(), &["--dry-run"]).await;
    assert_eq!((code, said.as_str()), (0, ""), "{counted}");
    assert!(counted.contains("payload key 1: 807 records, still needed"), "{counted}");
    assert!(counted.contains("in the clear: 2 records"), "{counted}");
    assert_eq!(marks(&cluster).await, before, "a dry run changes nothing");

    // A row that another transaction holds is passed, and stays whole.
    let mut other = cluster.database.connect().await;
    let mut holding = other.begin().await.unwrap();
    sqlx::query("select from task_far where id = $1 for update")
        .bind(ids[10])
        .execute(&mut *holding)
        .await
        .unwrap();
    let (code, counted, said) = reseal(&cluster, keys.path(), &[]).await;
    assert_eq!(code, 0, "{said}");
    assert!(said.contains("1 in use by others"), "{said}");
    assert!(counted.contains("payload key 1: 1 records, still needed"), "{counted}");
    holding.rollback().await.unwrap();
    let (code, counted, said) = reseal(&cluster, keys.path(), &[]).await;
    assert_eq!(code, 0, "{said}");
    assert!(counted.contains("no record has payload key 1: remove it"), "{counted}");
    let after =
        of(&[("task", 2, 3), ("task_far", 2, 804), ("dead_letter", 2, 1), ("schedule", 2, 1)]);
    assert_eq!(marks(&cluster).await, after);
    let (code, counted, said) = reseal(&cluster, keys.path(), &[]).await;
    assert_eq!(code, 0, "{counted}");
    assert!(said.contains("task_far: 804 rows read, 0 stored again"), "{said}");
    assert_eq!(tables_with(&cluster, MARKER).await, Vec::<String>::new());

    // Without the old key, a node is ready, and all are read and published.
    node.terminate();
    node.wait_exit(DEADLINE).await;
    std::fs::write(keys.path(), text_of(Some(2), &[2])).unwrap();
    let node = keys.node(&cluster, &[]).await;
    let api = node.api();
    is_shown_whole(&api.get(&format!("/v1/schedules/{topic}/yearly")).await.json());
    for id in &ids[..5] {
        is_shown_whole(&api.task(*id).await.shown);
    }
    let redrive = format!("/v1/dead/{}/redrive", ids[3]);
    let redriven = api.send(Method::POST, &redrive, None).await;
    assert_eq!(redriven.status, 200, "{}", redriven.text);
    publish_all(api, &topic, far).await;
    // And the run of the schedule.
    let records = consumer.wait_count(ids.len() + large.len() + 1, DEADLINE * 2).await;
    for id in &ids {
        assert!(records.iter().any(|record| record.task_id() == *id), "{id}");
    }
    for record in records.iter().filter(|record| record.header("punctual-run").is_none()) {
        if large.contains(&record.task_id()) {
            assert_eq!(record.payload_hash, Some(xxh3_64("x".repeat(700_000).as_bytes())));
        } else {
            is_whole(record);
        }
    }
    assert_eq!(api.metric("punctual_records_without_key_total").await, 0.0);
    assert_eq!(api.metric("punctual_records_damaged_total").await, 0.0);
}

/// Claims, moves and cancels go on while records are encrypted again, again and again.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn tasks_are_published_once_while_their_records_are_encrypted_again() {
    let cluster = Cluster::start("reseal-beside").await;
    let topic = cluster.topic("orders").await;
    let consumer = cluster.consumer(&topic);
    let keys = Keys::new("reseal-beside", Some(1), &[1, 2]);
    let node = keys.node(&cluster, &[]).await;
    let api = node.api();
    keys.write(Some(2), &[1, 2], &node).await;
    let files = [1, 2].map(|current| {
        AuthFile::new(&format!("reseal-beside-{current}"), &text_of(Some(current), &[1, 2]))
    });
    // In leaves, and in the far table.
    let due = [now_ms() + HOUR, now_ms() + 40 * 24 * HOUR];
    let tasks: Vec<_> = (0..1000).map(|n| task(&topic, due[n % 2])).collect();
    let ids: Vec<Uuid> = api.submit_all(&tasks).await.iter().map(|task| task.id).collect();
    let cancelled = ids[1];
    let changes = async {
        assert_eq!(api.cancel(cancelled).await.verdict(), "cancelled");
        for some in ids.chunks(50) {
            let texts: Vec<String> = some.iter().map(Uuid::to_string).collect();
            let body = json!({ "topic": topic, "ids": texts, "to": now_ms() }).to_string();
            // A row that is being replaced is passed by a move, too.
            eventually("they are moved", DEADLINE, async || {
                let answer = api.post("/v1/tasks/move", body.clone()).await;
                assert_eq!(answer.status, 200, "{}", answer.text);
                answer.json()["moved"] == 0
            })
            .await;
        }
    };
    let again = async {
        for round in 0..8 {
            // A round that leaves no record with the other key notes so.
            sqlx::query("update payload_key set first_used_at = now()")
                .execute(&cluster.sql)
                .await
                .unwrap();
            let (code, _, said) = reseal(&cluster, files[round % 2].path(), &[]).await;
            assert_eq!(code, 0, "{said}");
        }
    };
    tokio::join!(changes, again);
    let records = consumer.wait_count(999, DEADLINE * 2).await;
    records.iter().for_each(is_whole);
    cluster.wait_final(1000, DEADLINE).await;
    let mut published: Vec<Uuid> = consumer.records().iter().map(|one| one.task_id()).collect();
    published.sort_unstable();
    published.dedup();
    assert_eq!((published.len(), published.contains(&cancelled)), (999, false));
    assert_eq!(api.metric("punctual_tasks_dead_total").await, 0.0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn records_are_stored_in_the_clear_again_and_unreadable_ones_are_counted() {
    let cluster = Cluster::start("reseal-decrypt").await;
    let topic = cluster.topic("orders").await;
    let keys = Keys::new("reseal-decrypt", Some(1), &[1, 2]);
    let node = keys.node(&cluster, &[]).await;
    let api = node.api();
    let far = now_ms() + 40 * 24 * HOUR;
    let tasks = api.submit_all(&[task(&topic, far), task(&topic, far), task(&topic, far)]).await;
    keys.write(Some(2), &[1, 2], &node).await;
    api.submit(&task(&topic, far)).await;
    let damage = "update task_far set payload = set_byte(payload, 20, 255 - get_byte(payload, 20))
        where id = $1";
    sqlx::query(damage).bind(tasks[0].id).execute(&cluster.sql).await.unwrap();

    let without = AuthFile::new("reseal-decrypt-without", &text_of(None, &[1]));
    let (code, _, said) = reseal(&cluster, without.path(), &[]).await;
    assert!(code == 1 && said.contains("--decrypt"), "{code} {said}");
    let (code, _, said) = reseal(&cluster, keys.path(), &["--decrypt"]).await;
    assert!(code == 1 && said.contains("without `current`"), "{code} {said}");
    let wrong = text_of(None, &[2]).replace("2 =", "1 =");
    let wrong = AuthFile::new("reseal-decrypt-wrong", &wrong);
    let (code, _, said) = reseal(&cluster, wrong.path(), &["--decrypt"]).await;
    assert!(code == 1 && said.contains("is another key"), "{code} {said}");
    let (code, counted, said) = reseal(&cluster, without.path(), &["--decrypt"]).await;
    assert_eq!(code, 1, "{said}");
    assert!(said.contains("2 stored again, 1 with a key that the file lacks, 1 damaged"), "{said}");
    assert!(counted.contains("in the clear: 2 records"), "{counted}");
    assert!(counted.contains("payload key 2: 1 records, still needed"), "{counted}");
    assert_eq!(tables_with(&cluster, MARKER).await, ["task_far"]);
    is_shown_whole(&api.task(tasks[1].id).await.shown);
}
