//! The bytes at rest: the WAL and the files of tables, records that look encrypted, and whole
//! records that change places.

use serde_json::json;
use sqlx::{AssertSqlSafe, Connection as _, PgConnection};
use uuid::Uuid;

use super::{DEADLINE, HOUR, Keys, dead_letter, is_whole, put, task};
use crate::support::{Cluster, Record, eventually, now_ms};

/// Keeps the WAL from now on, until the session ends.
const KEEP_WAL: &str = "select slot_name::text from
  pg_create_physical_replication_slot($1, immediately_reserve => true, temporary => true)";

const IN_WAL: &str = "select name from pg_ls_waldir()
where name between pg_walfile_name($2::pg_lsn) and pg_walfile_name(pg_current_wal_lsn())
  and position(convert_to($1, 'UTF8')
    in pg_read_binary_file('pg_wal/' || name, 0, 1 << 26, true)) > 0";

/// Tables, their TOAST tables and indexes. None of a test is larger than the limit.
const IN_FILES: &str = "select relname::text from pg_class
where relkind in ('r', 't', 'i') and pg_relation_filepath(oid) is not null
  and position(convert_to($1, 'UTF8')
    in pg_read_binary_file(pg_relation_filepath(oid), 0, 1 << 28, true)) > 0";

/// Returns the WAL files since a position, and the tables and indexes, in whose bytes a text
/// stands.
async fn files_with(
    session: &mut PgConnection,
    from: &str,
    text: &str,
) -> (Vec<String>, Vec<String>) {
    let wal = sqlx::query_scalar(IN_WAL).bind(text).bind(from).fetch_all(&mut *session);
    let wal = wal.await.unwrap();
    sqlx::query("checkpoint").execute(&mut *session).await.unwrap();
    let files = sqlx::query_scalar(IN_FILES).bind(text).fetch_all(&mut *session).await.unwrap();
    (wal, files)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn neither_the_wal_nor_a_file_of_a_table_has_a_record_that_was_encrypted() {
    let cluster = Cluster::start("wal").await;
    let topic = cluster.topic("orders").await;
    let consumer = cluster.consumer(&topic);
    let mut session = cluster.database.connect().await;
    let slot = format!("punctual_test_{}", Uuid::from_u128(rand::random()).simple());
    sqlx::query(KEEP_WAL).bind(&slot).execute(&mut session).await.unwrap();
    let from: String = sqlx::query_scalar("select pg_current_wal_lsn()::text")
        .fetch_one(&mut session)
        .await
        .unwrap();
    // Other tests share the server, so the texts are those of this run.
    let [plain, secret] =
        ["plain", "secret"].map(|what| format!("{what}-{}", Uuid::from_u128(rand::random())));
    let of = |text: &str, due_at: i64| {
        json!({ "topic": topic, "due_at": due_at, "key": text, "payload_text": text,
            "headers": { "own": text } })
    };
    let keys = Keys::new("wal", None, &[1]);
    let node = keys.node(&cluster, &[]).await;
    let far = now_ms() + 40 * 24 * HOUR;
    node.api().submit(&of(&plain, far)).await;
    keys.write(Some(1), &[1], &node).await;
    let api = node.api();
    let due = [now_ms(), now_ms() + 2000, now_ms() + HOUR, far];
    let tasks = api.submit_all(&due.map(|due_at| of(&secret, due_at))).await;
    put(api, &format!("/v1/schedules/{topic}/hourly"), &{
        let mut body = of(&secret, 0);
        let members = body.as_object_mut().unwrap();
        members.remove("topic");
        members.remove("due_at");
        members.insert("every".to_owned(), json!("1h"));
        body
    })
    .await;
    // From the far table to a leaf, under its first id.
    let moved =
        json!({ "topic": topic, "ids": [tasks[3].id.to_string()], "to": now_ms() + 2 * HOUR });
    assert_eq!(api.post("/v1/tasks/move", moved.to_string()).await.json()["moved"], 1);
    assert_eq!(api.cancel(tasks[2].id).await.verdict(), "cancelled");
    cluster.wait_final(3, DEADLINE).await;
    for record in consumer.wait_count(2, DEADLINE).await {
        assert_eq!(record.payload.as_deref(), Some(secret.as_bytes()));
    }

    let (wal, files) = files_with(&mut session, &from, &plain).await;
    assert!(!wal.is_empty(), "the WAL has a record that is not encrypted");
    assert!(files.iter().any(|file| file == "task_far"), "so has its table: {files:?}");
    let found = files_with(&mut session, &from, &secret).await;
    assert_eq!(found, (Vec::new(), Vec::new()));
    session.close().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn records_that_look_encrypted_and_overdue_ones_are_published_as_they_were_submitted() {
    use base64::Engine as _;
    let cluster = Cluster::start("looks-sealed").await;
    let topic = cluster.topic("orders").await;
    let consumer = cluster.consumer(&topic);
    let keys = Keys::new("looks-sealed", Some(1), &[1]);
    let node = keys.node(&cluster, &[]).await;
    let api = node.api();
    let sealed = api.submit(&task(&topic, now_ms() + HOUR)).await.id;
    let bytes: (Vec<u8>, Vec<u8>) = sqlx::query_as("select key, payload from task where id = $1")
        .bind(sealed)
        .fetch_one(&cluster.sql)
        .await
        .unwrap();
    assert_eq!((bytes.0[0], bytes.1[0]), (0xE1, 0xE1));
    let text = |bytes: &[u8]| base64::engine::general_purpose::STANDARD.encode(bytes);
    let looks_sealed = json!({ "topic": topic, "due_at": now_ms() + 3000,
        "key_base64": text(&bytes.0), "payload_base64": text(&bytes.1) });
    // Due long ago: the store moves the due time in the id to the present.
    let mut wanted = Vec::new();
    for current in [None, Some(1)] {
        keys.write(current, &[1], &node).await;
        wanted.push((api.submit(&looks_sealed).await.id, true));
        wanted.push((api.submit(&task(&topic, now_ms() - 10 * HOUR)).await.id, false));
    }
    let marks = "select count(*) from task where punctual_sealed_by(headers) is null";
    assert!(cluster.count(marks).await <= 1, "one of the two lies in the clear");
    let records = consumer.wait_count(4, DEADLINE).await;
    for (id, looks_sealed) in wanted {
        let record = records.iter().find(|record| record.task_id() == id).unwrap();
        if looks_sealed {
            let found = (record.key.as_deref(), record.payload.as_deref());
            assert_eq!(found, (Some(bytes.0.as_slice()), Some(bytes.1.as_slice())));
        } else {
            is_whole(record);
        }
    }
    assert_eq!(api.metric("punctual_records_damaged_total").await, 0.0);
}

/// Key, payload and headers together, with the mark, as a writer in the database would swap them.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn whole_records_that_have_changed_places_are_refused() {
    let cluster = Cluster::start("swapped").await;
    let topic = cluster.topic("orders").await;
    let other = cluster.topic("other").await;
    let consumers = [cluster.consumer(&topic), cluster.consumer(&other)];
    let keys = Keys::new("swapped", Some(1), &[1]);
    let node = keys.node(&cluster, &[]).await;
    let (near, far) = (now_ms() + 20_000, now_ms() + 40 * 24 * HOUR);
    let api = node.api();
    let ids: Vec<Uuid> = api
        .submit_all(&[near, near, near, far].map(|due_at| task(&topic, due_at)))
        .await
        .iter()
        .map(|task| task.id)
        .collect();
    for (to, table, from) in [(0, "task", 1), (1, "task_far", 3)] {
        let text = format!(
            "update task t set key = o.key, payload = o.payload, headers = o.headers
             from {table} o where t.id = $1 and o.id = $2"
        );
        let swapped = sqlx::query(AssertSqlSafe(text)).bind(ids[to]).bind(ids[from]);
        assert_eq!(swapped.execute(&cluster.sql).await.unwrap().rows_affected(), 1);
    }
    let elsewhere = sqlx::query("update task set topic = $2 where id = $1").bind(ids[2]);
    let elsewhere = elsewhere.bind(&other).execute(&cluster.sql).await.unwrap();
    assert_eq!(elsewhere.rows_affected(), 1);
    eventually("they are dead letters", DEADLINE, async || {
        cluster.count("select count(*) from dead_letter").await == 3
    })
    .await;
    let records: Vec<Record> = consumers.iter().flat_map(|one| one.records()).collect();
    assert!(records.is_empty(), "{records:?}");
    let dead = dead_letter(api, &other).await;
    assert!(dead["reason"].as_str().unwrap().contains("cannot be decrypted"), "{dead}");
    assert_eq!(api.metric("punctual_records_damaged_total").await, 3.0);
}
