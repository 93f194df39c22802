//! Encrypted records in bulk: moves and cancels by key, and schedules without their key.

use std::collections::BTreeSet;
use std::time::Duration;

use punctual::postgres::PostgresSettings;
use punctual::postgres::schedules::make::RunMaker;
use punctual::sealing::KeySet;
use punctual::sealing::keys::MasterKey;
use serde_json::{Value, json};
use uuid::Uuid;

use super::{DEADLINE, HOUR, Keys, MARKER, is_whole, put, tables_with, task, text_of};
use crate::support::{Api, Cluster, Record, eventually, now_ms};

async fn bulk(api: &Api, path: &str, body: Value) -> Value {
    let answer = api.post(path, body.to_string()).await;
    assert_eq!(answer.status, 200, "{}", answer.text);
    let answer = answer.json();
    assert_eq!(answer["more"], false, "{answer}");
    answer
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn encrypted_tasks_are_moved_and_cancelled_by_their_key() {
    let cluster = Cluster::start("sealed-bulk").await;
    let topic = cluster.topic("orders").await;
    let consumer = cluster.consumer(&topic);
    let keys = Keys::new("sealed-bulk", None, &[1, 2]);
    let node = keys.node(&cluster, &[]).await;
    let api = node.api();
    let start = now_ms() + HOUR;
    let mut ids: Vec<Vec<Uuid>> = Vec::new();
    // In the clear, and by two keys. Each time one in a leaf and one in the far table.
    for current in [None, Some(1), Some(2)] {
        keys.write(current, &[1, 2], &node).await;
        let with_key = |key: &str, due_at: i64| {
            let mut task = task(&topic, due_at);
            task["key"] = json!(key);
            task
        };
        let far = start + 40 * 24 * HOUR;
        let tasks = [("a", start), ("a", far), ("b", start), ("b", far)];
        let tasks = api.submit_all(&tasks.map(|(key, due_at)| with_key(key, due_at))).await;
        ids.push(tasks.iter().map(|task| task.id).collect());
    }
    let of = |key: &str| json!({ "topic": topic, "key": key });
    let with = |mut body: Value, member: &str, value: Value| {
        body[member] = value;
        body
    };
    let dry = bulk(api, "/v1/tasks/cancel", with(of("a"), "dry_run", json!(true))).await;
    assert_eq!(dry["cancelled"], 6, "{dry}");
    let moved = bulk(api, "/v1/tasks/move", with(of("b"), "to", json!(start + 5000))).await;
    assert_eq!(moved["moved"], 6, "{moved}");
    let again = bulk(api, "/v1/tasks/move", with(of("b"), "to", json!(start + 5000))).await;
    assert_eq!(again["moved"], 0, "{again}");
    assert_eq!(bulk(api, "/v1/tasks/cancel", of("a")).await["cancelled"], 6);
    assert_eq!(bulk(api, "/v1/tasks/cancel", of("c")).await["cancelled"], 0);
    let soon = with(of("b"), "to", json!(now_ms() + 5000));
    assert_eq!(bulk(api, "/v1/tasks/move", soon).await["moved"], 6);
    let records = consumer.wait_count(6, DEADLINE).await;
    let published: BTreeSet<Uuid> = records.iter().map(Record::task_id).collect();
    let wanted = ids.iter().flat_map(|ids| [ids[2], ids[3]]).collect();
    assert_eq!(published, wanted);
    for record in &records {
        assert_eq!(record.key.as_deref(), Some(b"b".as_slice()));
        assert_eq!(record.payload.as_deref(), Some(format!("payload-{MARKER}").as_bytes()));
    }
}

/// The instants of the runs of a schedule, in order.
fn instants(records: &[Record], schedule: &str) -> Vec<i64> {
    let text = |record: &Record, name| {
        record.header(name).map(|value| String::from_utf8(value.to_vec()).unwrap())
    };
    let mut instants: Vec<i64> = records
        .iter()
        .filter(|record| text(record, "punctual-schedule").as_deref() == Some(schedule))
        .map(|record| text(record, "punctual-run-at").unwrap())
        .map(|at| at.parse::<jiff::Timestamp>().unwrap().as_millisecond())
        .collect();
    instants.sort_unstable();
    instants
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_runs_of_a_schedule_without_its_key_come_late_and_hold_up_no_other_schedule() {
    let cluster = Cluster::start("sealed-runs").await;
    let (topic, other) = (cluster.topic("orders").await, cluster.topic("other").await);
    let (consumer, others) = (cluster.consumer(&topic), cluster.consumer(&other));
    let keys = Keys::new("sealed-runs", Some(1), &[1, 2]);
    let mut node = keys.node(&cluster, &[]).await;
    let schedule = json!({ "every": "5s", "key": format!("key-{MARKER}"),
        "missed": { "policy": "all", "within": "1h", "count_max": 100 },
        "payload_text": format!("payload-{MARKER}"),
        "headers": { "own": format!("header-{MARKER}") } });
    put(node.api(), &format!("/v1/schedules/{topic}/first"), &schedule).await;
    let count = consumer.wait_count(1, DEADLINE).await.len();
    node.terminate();
    node.wait_exit(DEADLINE).await;

    // Its runs that were made, and its next ones, need key 1.
    std::fs::write(keys.path(), text_of(Some(2), &[2])).unwrap();
    let node = keys.node_without_key(&cluster).await;
    let api = node.api();
    // As if the runs that were made ahead had all been published.
    sqlx::query("update schedule set look_at = 0").execute(&cluster.sql).await.unwrap();
    put(api, &format!("/v1/schedules/{other}/second"), &schedule).await;
    eventually("a schedule fails", DEADLINE, async || {
        api.metric("punctual_schedule_failures_total").await > 0.0
    })
    .await;
    let refused = api.get(&format!("/v1/schedules/{topic}/first")).await;
    assert_eq!(refused.status, 503, "{}", refused.text);
    others.wait_count(3, DEADLINE).await.iter().for_each(is_whole);
    assert_eq!(api.metric("punctual_tasks_dead_total").await, 0.0);
    let late = consumer.records().len();
    assert!(late <= count + 2, "published before the node had lost the key: {count}, {late}");

    keys.write(Some(2), &[1, 2], &node).await;
    // All of them, without a gap, as the policy for missed runs says.
    let records = consumer.wait_count(late + 5, DEADLINE).await;
    records.iter().for_each(is_whole);
    let mut all = instants(&records, "first");
    let doubled = all.len();
    all.dedup();
    assert_eq!(all.len(), doubled, "each run once: {all:?}");
    eventually("each instant up to the last has its run", DEADLINE, async || {
        let all = instants(&consumer.records(), "first");
        let last = all.last().copied().unwrap();
        all.windows(2).all(|two| two[1] - two[0] == 5000) && last > now_ms() - 10_000
    })
    .await;
    assert_eq!(api.metric("punctual_tasks_dead_total").await, 0.0);
    assert_eq!(tables_with(&cluster, MARKER).await, Vec::<String>::new());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_records_of_many_large_schedules_are_not_read_at_once() {
    let cluster = Cluster::start("sealed-large").await;
    let topic = cluster.topic("orders").await;
    let keys = Keys::new("sealed-large", Some(1), &[1]);
    let mut node = keys.node(&cluster, &[]).await;
    let body = json!({ "cron": "0 0 1 1 *", "time_zone": "Europe/Berlin", "payload": 1 });
    put(node.api(), &format!("/v1/schedules/{topic}/small"), &body).await;
    let made = "select count(*) from schedule_run";
    eventually("its run is made", DEADLINE, async || cluster.count(made).await == 1).await;
    node.terminate();
    node.wait_exit(DEADLINE).await;
    // In the clear, as from before the encryption, with 1 MiB each. A tenth of them is read.
    sqlx::query(
        "insert into schedule (topic, name, shard, has_seconds, cron, time_zone, dst_gap,
           dst_overlap, exclude, missed_count_max, is_paused, next_run_at, look_at, tzdata, payload)
         select topic, 'large-' || n, shard, has_seconds, cron, time_zone, dst_gap, dst_overlap,
           exclude, missed_count_max, is_paused, next_run_at, 1, tzdata,
           decode(repeat('61', 1048576), 'hex')
         from schedule s cross join generate_series(1, 80) n where s.name = 'small'",
    )
    .execute(&cluster.sql)
    .await
    .unwrap();
    let set = KeySet::new(Some(1), [(1, MasterKey::new([1; 32]))].into()).unwrap();
    let settings = PostgresSettings::new(&cluster.database.url).unwrap();
    let mut plain = RunMaker::new(&settings, Duration::from_secs(60));
    let shards: Vec<i16> = (0..16).collect();
    let due = plain.due(&shards, 500, (None, &[])).await.unwrap();
    assert_eq!((due.schedules.len(), due.has_more), (80, false), "without keys none is read");
    settings.payload_keys().replace(set);
    let due =
        RunMaker::new(&settings, Duration::from_secs(60)).due(&shards, 500, (None, &[])).await;
    let due = due.unwrap();
    assert!((8..10).contains(&due.schedules.len()), "{}", due.schedules.len());
    assert!(due.has_more);

    let node = keys.node(&cluster, &[]).await;
    eventually("all of their runs are made", DEADLINE, async || cluster.count(made).await == 81)
        .await;
    assert_eq!(node.api().metric("punctual_schedule_failures_total").await, 0.0);
}

/// Without encryption, the runs of a schedule get a copy of its record, and only its key is read.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_keys_of_many_schedules_are_neither_read_at_once_nor_listed() {
    let cluster = Cluster::start("large-keys").await;
    let topic = cluster.topic("orders").await;
    let mut node = cluster.node().await;
    let body =
        json!({ "cron": "0 0 1 1 *", "time_zone": "Europe/Berlin", "key": "k", "payload": 1 });
    put(node.api(), &format!("/v1/schedules/{topic}/small"), &body).await;
    let made = "select count(*) from schedule_run";
    eventually("its run is made", DEADLINE, async || cluster.count(made).await == 1).await;
    // Keys of 1 MiB. The runs are to be made later.
    sqlx::query(
        "insert into schedule (topic, name, shard, has_seconds, cron, time_zone, dst_gap,
           dst_overlap, exclude, missed_count_max, is_paused, next_run_at, tzdata, key)
         select topic, 'large-' || n, shard, has_seconds, cron, time_zone, dst_gap, dst_overlap,
           exclude, missed_count_max, is_paused, next_run_at, tzdata,
           decode(repeat('61', 1048576), 'hex')
         from schedule s cross join generate_series(1, 40) n where s.name = 'small'",
    )
    .execute(&cluster.sql)
    .await
    .unwrap();
    let listed = node.api().look(&format!("/v1/schedules/{topic}?limit=100")).await.json();
    let listed = listed["schedules"].as_array().unwrap();
    let keys: Vec<&Value> = listed.iter().map(|one| &one["key"]).collect();
    assert_eq!((keys.len(), keys[40]), (41, &json!("k")), "the small one is the last");
    assert!(keys[..40].iter().all(|key| key.is_null()), "as in lists of tasks");
    node.terminate();
    node.wait_exit(DEADLINE).await;

    let due = "update schedule set look_at = 1 where name like 'large-%'";
    sqlx::query(due).execute(&cluster.sql).await.unwrap();
    let settings = PostgresSettings::new(&cluster.database.url).unwrap();
    let shards: Vec<i16> = (0..16).collect();
    let due =
        RunMaker::new(&settings, Duration::from_secs(60)).due(&shards, 500, (None, &[])).await;
    let due = due.unwrap();
    assert!((8..10).contains(&due.schedules.len()), "{}", due.schedules.len());
    assert!(due.has_more);

    let node = cluster.node().await;
    eventually("all of their runs are made", DEADLINE, async || cluster.count(made).await == 41)
        .await;
    assert_eq!(node.api().metric("punctual_schedule_failures_total").await, 0.0);
}
