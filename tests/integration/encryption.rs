//! Payloads at rest: records are encrypted in every table, and plain where they are published and
//! shown.

mod at_rest;
mod callbacks;
mod in_bulk;
mod reseal;

use std::time::Duration;

use reqwest::Method;
use serde_json::{Value, json};
use sqlx::AssertSqlSafe;
use uuid::Uuid;

use crate::intake_topics::Intake;
use crate::outbox::Shop;
use crate::support::{
    Answer, Api, Cluster, Node, Record, Stack, eventually, eventually_some, now_ms,
};
use crate::tokens::AuthFile;

const DEADLINE: Duration = Duration::from_secs(60);
const MARKER: &str = "marker-7c1f-of-a-secret";
const HOUR: i64 = 3_600_000;

/// The text of a file with these keys. Each is 32 times its id, in base64.
fn text_of(current: Option<u32>, ids: &[u32]) -> String {
    use base64::Engine as _;
    let line = |id: &u32| {
        let key = [u8::try_from(*id).unwrap(); 32];
        format!("{id} = \"{}\"\n", base64::engine::general_purpose::STANDARD.encode(key))
    };
    let current = current.map(|id| format!("current = {id}\n")).unwrap_or_default();
    format!("{current}[keys]\n{}", ids.iter().map(line).collect::<String>())
}

/// A file with payload keys, deleted with the test.
struct Keys(AuthFile);

impl Keys {
    fn new(name: &str, current: Option<u32>, ids: &[u32]) -> Self {
        Self(AuthFile::new(name, &text_of(current, ids)))
    }

    fn path(&self) -> &str {
        self.0.path()
    }

    /// Writes other keys, and waits until the node uses them.
    async fn write(&self, current: Option<u32>, ids: &[u32], node: &Node) {
        std::fs::write(self.path(), text_of(current, ids)).unwrap();
        let wanted = f64::from(current.unwrap_or(0));
        eventually("the node uses the keys", DEADLINE, async || {
            node.api().metric("punctual_payload_key_current").await == wanted
        })
        .await;
    }

    async fn node(&self, cluster: &Cluster, more: &[&str]) -> Node {
        cluster.node_with(&[&["--payload-key-file", self.path()], more].concat()).await
    }

    /// Starts a node that lacks a key, and so is not ready.
    async fn node_without_key(&self, cluster: &Cluster) -> Node {
        let mut node = cluster.spawn(&["--payload-key-file", self.path()]);
        node.wait_listening().await;
        eventually("the node says that it lacks a key", DEADLINE, async || {
            node.api().metric("punctual_missing{what=\"keys\"}").await == 1.0
        })
        .await;
        node
    }
}

/// Returns the tables in which a text stands, as a dump of the database would have it: as text, in
/// hexadecimal digits, and in the base64 of a consumer.
async fn tables_with(cluster: &Cluster, text: &str) -> Vec<String> {
    let tables: Vec<String> = sqlx::query_scalar(
        "select table_name::text from information_schema.tables
         where table_schema = 'public' and table_type = 'BASE TABLE' order by 1",
    )
    .fetch_all(&cluster.sql)
    .await
    .unwrap();
    assert!(tables.iter().any(|table| table == "task_far"), "{tables:?}");
    let mut found = Vec::new();
    for table in tables {
        let query = format!(
            "select count(*) from \"{table}\" t where strpos(t::text, $1) > 0
               or strpos(t::text, encode(convert_to($1, 'UTF8'), 'hex')) > 0"
        );
        let count: i64 = sqlx::query_scalar(AssertSqlSafe(query))
            .bind(text)
            .fetch_one(&cluster.sql)
            .await
            .unwrap();
        if count > 0 {
            found.push(table);
        }
    }
    found
}

fn task(topic: &str, due_at: i64) -> Value {
    json!({
        "topic": topic, "due_at": due_at, "key": format!("key-{MARKER}"),
        "payload_text": format!("payload-{MARKER}"), "headers": { "own": format!("header-{MARKER}") },
    })
}

fn with_name(mut task: Value, name: &str) -> Value {
    task["name"] = json!(name);
    task
}

async fn put(api: &Api, path: &str, body: &Value) -> Answer {
    let answer = api
        .send(Method::PUT, path, Some(("application/json", body.to_string().into_bytes())))
        .await;
    assert!(matches!(answer.status, 200 | 201), "{path}: {} {}", answer.status, answer.text);
    answer
}

/// Checks that a record has the parts of [`task`].
fn is_whole(record: &Record) {
    assert_eq!(record.payload.as_deref(), Some(format!("payload-{MARKER}").as_bytes()));
    assert_eq!(record.key.as_deref(), Some(format!("key-{MARKER}").as_bytes()));
    assert_eq!(record.header("own"), Some(format!("header-{MARKER}").as_bytes()));
    assert_eq!(record.header("punctual-sealed"), None);
}

fn is_shown_whole(shown: &Value) {
    assert_eq!(shown["payload_text"], format!("payload-{MARKER}"), "{shown}");
    assert_eq!(shown["key"], format!("key-{MARKER}"), "{shown}");
    assert_eq!(shown["headers"]["own"], format!("header-{MARKER}"), "{shown}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_dump_of_the_database_has_no_record_by_any_way_in() {
    let cluster = Cluster::start("sealed").await;
    let (topic, far) = (cluster.topic("orders").await, now_ms() + 40 * 24 * HOUR);
    let intake = Intake::open(&cluster).await;
    let mut shop = Shop::open(&Stack::shared()).await;
    let consumer = cluster.consumer(&topic);
    let keys = Keys::new("sealed", Some(1), &[1]);
    let more = ["--intake-topic", &intake.topic, "--outbox", &shop.flag()];
    let node = keys.node(&cluster, &more).await;
    let api = node.api();

    let near = api.submit(&task(&topic, now_ms() + HOUR)).await.id;
    let later = api.submit(&task(&topic, far)).await.id;
    let named = api.submit(&with_name(task(&topic, now_ms() + HOUR), "named")).await.id;
    put(api, &format!("/v1/topics/{topic}/tasks/put"), &{
        let mut body = task(&topic, now_ms() + HOUR);
        body.as_object_mut().unwrap().remove("topic");
        body
    })
    .await;
    api.submit_all(&[task(&topic, now_ms()), task(&topic, now_ms() + 1500)]).await;
    let schedule = json!({ "every": "1h", "key": format!("key-{MARKER}"),
        "payload_text": format!("payload-{MARKER}"), "headers": { "own": format!("header-{MARKER}") } });
    put(api, &format!("/v1/schedules/{topic}/hourly"), &schedule).await;
    let into = [("punctual-topic", topic.as_str()), ("punctual-delay", "1h"), ("own", MARKER)];
    intake.append(0, Some(MARKER), Some(MARKER), &into).await;
    intake.wait_read(1).await;
    shop.run(&format!(
        "select punctual.submit('{topic}', payload => '\"{MARKER}\"', key => '{MARKER}', delay => '1 hour')"
    ))
    .await;
    shop.wait_empty().await;

    // Two were due. Their batches keep the records for a while.
    consumer.wait_count(2, DEADLINE).await.iter().for_each(is_whole);
    eventually("the run of the schedule is there", DEADLINE, async || {
        cluster.count("select count(*) from schedule_run").await == 1
    })
    .await;
    let rows = "select (select count(*) from task) + (select count(*) from task_far)";
    assert_eq!(cluster.count(rows).await, 7, "near, far, named, put, run, intake and outbox");
    assert_eq!(tables_with(&cluster, MARKER).await, Vec::<String>::new());
    let with_names = tables_with(&cluster, "named").await;
    assert!(with_names.iter().any(|table| table == "task_name"), "{with_names:?}");

    // Whoever may read sees all of it.
    for id in [near, later, named] {
        is_shown_whole(&api.task(id).await.shown);
    }
    is_shown_whole(&api.get(&format!("/v1/schedules/{topic}/hourly")).await.json());
    let listed = api.get(&format!("/v1/schedules/{topic}")).await.json();
    assert_eq!(listed["schedules"][0]["key"], format!("key-{MARKER}"), "{listed}");
    let again = put(api, &format!("/v1/schedules/{topic}/hourly"), &schedule).await.json();
    assert_eq!(again["revision"], 1, "an equal schedule is no change: {again}");
    // Keys are compared when they are opened. The tasks of intake and outbox have another key.
    let (topic, key) = (&topic, format!("key-{MARKER}"));
    let listed = api.get(&format!("/v1/tasks?topic={topic}&key={key}")).await;
    assert_eq!(listed.status, 200, "{}", listed.text);
    let listed = listed.json();
    let tasks = listed["tasks"].as_array().unwrap();
    assert!(tasks.iter().all(|task| task["key"] == key), "{listed}");
    assert_eq!(tasks.len(), 5, "near, far, named, put and run: {listed}");
    let none = api.get(&format!("/v1/tasks?topic={topic}&key=other")).await.json();
    assert_eq!(none["tasks"], json!([]), "{none}");
}

async fn dead_letter(api: &Api, topic: &str) -> Value {
    let path = format!("/v1/dead?topic={topic}");
    eventually_some("there is a dead letter", DEADLINE, async || {
        api.get(&path).await.json()["tasks"].get(0).cloned()
    })
    .await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_sealed_dead_letter_is_redriven_to_its_topic_and_to_another_one() {
    let cluster = Cluster::start("sealed-dead").await;
    let strict = cluster.topic_with("strict", &[("max.message.bytes", "1000000")]).await;
    let other = cluster.topic("other").await;
    let keys = Keys::new("sealed-dead", Some(1), &[1]);
    let node = keys.node(&cluster, &[]).await;
    let api = node.api();
    api.learn(&strict).await;
    cluster.alter_topic(&strict, &[("max.message.bytes", "3000")]).await;
    let (to_own, to_other) = (cluster.consumer(&strict), cluster.consumer(&other));
    let large = |n: i64| {
        let mut task = task(&strict, now_ms() + 1000 + n);
        task["headers"]["large"] = json!("x".repeat(10_000));
        task
    };
    let ids: Vec<Uuid> =
        api.submit_all(&[0, 1, 2, 3].map(large)).await.iter().map(|task| task.id).collect();
    cluster.wait_final(4, DEADLINE).await;
    let shown = dead_letter(api, &strict).await;
    assert_eq!(shown["key"], format!("key-{MARKER}"), "{shown}");
    assert_eq!(tables_with(&cluster, MARKER).await, Vec::<String>::new());
    is_shown_whole(&api.task(ids[0]).await.shown);

    cluster.alter_topic(&strict, &[("max.message.bytes", "1000000")]).await;
    let body = json!({ "to_topic": other }).to_string();
    let moved = api.post(&format!("/v1/dead/{}/redrive", ids[0]), body).await;
    assert_eq!(moved.status, 200, "{}", moved.text);
    // A damaged record stays where it is, and does not hold up the others.
    let damage =
        "update dead_letter set payload = set_byte(payload, 20, 255 - get_byte(payload, 20))
        where id = $1";
    sqlx::query(damage).bind(ids[3]).execute(&cluster.sql).await.unwrap();
    let body = json!({ "to_topic": other }).to_string();
    let kept = api.post(&format!("/v1/dead/{}/redrive", ids[3]), body).await;
    assert_eq!(kept.status, 503, "{}", kept.text);
    assert!(kept.text.contains("cannot be decrypted"), "{}", kept.text);
    let many = json!({ "topic": strict, "to_topic": other, "due_to": now_ms() }).to_string();
    let answer = api.send(Method::POST, &format!("/v1/dead/{}/redrive", ids[1]), None).await;
    assert_eq!(answer.status, 200, "{}", answer.text);
    let answer = api.post("/v1/dead/redrive", many).await;
    assert_eq!(answer.status, 200, "{}", answer.text);
    let left: Vec<Uuid> =
        sqlx::query_scalar("select id from dead_letter").fetch_all(&cluster.sql).await.unwrap();
    assert_eq!(left, [ids[3]]);
    to_own.wait_count(1, DEADLINE).await.iter().for_each(is_whole);
    to_other.wait_count(2, DEADLINE).await.iter().for_each(is_whole);
    assert_eq!(tables_with(&cluster, MARKER).await, Vec::<String>::new());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn keys_are_rotated_and_plain_records_stay_readable() {
    let cluster = Cluster::start("rotated").await;
    let topic = cluster.topic("orders").await;
    let consumer = cluster.consumer(&topic);
    let keys = Keys::new("rotated", None, &[1]);
    let node = keys.node(&cluster, &[]).await;
    let api = node.api();
    let due_at = now_ms() + 20_000;
    let mut ids = vec![api.submit(&task(&topic, due_at)).await.id];
    assert!(!tables_with(&cluster, MARKER).await.is_empty(), "nothing is sealed yet");
    for (current, all) in [(Some(1), &[1][..]), (Some(2), &[1, 2]), (None, &[1, 2])] {
        keys.write(current, all, &node).await;
        ids.push(api.submit(&task(&topic, due_at)).await.id);
    }
    let used = "select count(*) from payload_key where first_used_at is not null";
    assert_eq!(cluster.count(used).await, 2);
    let marks = "select array_agg(punctual_sealed_by(headers) order by headers) from task";
    let marks: Vec<Option<i64>> = sqlx::query_scalar(marks).fetch_one(&cluster.sql).await.unwrap();
    for wanted in [(Some(1), 1), (Some(2), 1), (None, 2)] {
        let count = marks.iter().filter(|mark| **mark == wanted.0).count();
        assert_eq!(count, wanted.1, "{marks:?}");
    }
    for id in &ids {
        is_shown_whole(&api.task(*id).await.shown);
    }
    let records = consumer.wait_count(4, DEADLINE).await;
    records.iter().for_each(is_whole);
    assert!(ids.iter().all(|id| records.iter().any(|record| record.task_id() == *id)));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_task_waits_for_its_key_and_is_published_when_the_key_comes() {
    let cluster = Cluster::start("no-key").await;
    let topic = cluster.topic("orders").await;
    let consumer = cluster.consumer(&topic);
    let keys = Keys::new("no-key", Some(1), &[1, 2]);
    let mut node = keys.node(&cluster, &[]).await;
    let sealed = node.api().submit(&task(&topic, now_ms() + 15_000)).await.id;
    node.terminate();
    node.wait_exit(DEADLINE).await;

    std::fs::write(keys.path(), text_of(Some(2), &[2])).unwrap();
    let node = keys.node_without_key(&cluster).await;
    eventually("a record lacks its key", DEADLINE, async || {
        node.api().metric("punctual_records_without_key_total").await > 0.0
    })
    .await;
    assert_eq!(node.api().metric("punctual_tasks_dead_total").await, 0.0);
    assert_eq!(consumer.records().len(), 0);
    let lacks = [node.api().get("/readyz").await, node.api().get("/v1/cluster").await];
    assert_eq!((lacks[0].status, lacks[1].status), (503, 200));
    for answer in lacks {
        let answer = answer.json();
        let missing = answer["missing"].as_array().unwrap();
        assert_eq!((missing.len(), &missing[0]["what"]), (1, &json!("keys")), "{answer}");
        let why = missing[0]["why"].as_str().unwrap();
        assert!(why.contains("payload key 1,"), "{why}");
    }
    // A node without the flag says so as well.
    let mut bare = cluster.spawn(&[]);
    bare.wait_listening().await;
    eventually("the other node says so", DEADLINE, async || {
        bare.api().metric("punctual_missing{what=\"keys\"}").await == 1.0
    })
    .await;
    bare.terminate();
    bare.wait_exit(DEADLINE).await;
    let shown = node.api().task(sealed).await.shown;
    assert!(shown.get("payload_text").is_none_or(Value::is_null), "{shown}");
    // The topic waits for this task alone.
    let other = node.api().submit(&task(&topic, now_ms())).await.id;
    let records = consumer.wait_count(1, DEADLINE).await;
    assert_eq!(records[0].task_id(), other);

    keys.write(Some(1), &[1, 2], &node).await;
    eventually("the node is ready", DEADLINE, || node.api().is_ready()).await;
    let records = consumer.wait_count(2, DEADLINE).await;
    records.iter().for_each(is_whole);
    assert_eq!(records[1].task_id(), sealed);
    assert_eq!(tables_with(&cluster, MARKER).await, Vec::<String>::new());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_record_that_was_changed_or_moved_to_another_task_becomes_a_dead_letter() {
    let cluster = Cluster::start("damaged").await;
    let topic = cluster.topic("orders").await;
    let consumer = cluster.consumer(&topic);
    let keys = Keys::new("damaged", Some(1), &[1]);
    let node = keys.node(&cluster, &[]).await;
    let due_at = now_ms() + 20_000;
    let tasks: Vec<Value> = (0..3).map(|_| task(&topic, due_at)).collect();
    let ids: Vec<Uuid> = node.api().submit_all(&tasks).await.iter().map(|task| task.id).collect();
    let changed = sqlx::query(
        "update task set payload = set_byte(payload, octet_length(payload) - 1,
           get_byte(payload, octet_length(payload) - 1) # 1) where id = $1",
    )
    .bind(ids[0])
    .execute(&cluster.sql)
    .await
    .unwrap();
    let swapped = sqlx::query(
        "update task t set payload = o.payload from task o where t.id = $1 and o.id = $2",
    )
    .bind(ids[1])
    .bind(ids[2])
    .execute(&cluster.sql)
    .await
    .unwrap();
    assert_eq!((changed.rows_affected(), swapped.rows_affected()), (1, 1));
    cluster.wait_final(3, DEADLINE).await;
    let records = consumer.wait_count(1, DEADLINE).await;
    assert_eq!(records.iter().map(Record::task_id).collect::<Vec<_>>(), [ids[2]]);
    let dead = node.api().get(&format!("/v1/dead?topic={topic}")).await.json();
    let dead = dead["tasks"].as_array().unwrap();
    assert_eq!(dead.len(), 2, "{dead:?}");
    for one in dead {
        let reason = one["reason"].as_str().unwrap();
        assert!(reason.contains("cannot be decrypted"), "{one}");
    }
    assert_eq!(node.api().metric("punctual_records_damaged_total").await, 2.0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nothing_is_sealed_while_an_older_node_lives_and_none_comes_back() {
    let cluster = Cluster::start("older").await;
    let topic = cluster.topic("orders").await;
    let older = |counter: i64| {
        let query = sqlx::query(
            "insert into heartbeat (node, name, address, version, counter, started_at, beat_at,
               has_broker, can_publish, level)
             values ('01890000-0000-7000-8000-000000000001', 'old', 'http://o:1', '0', $1, now(),
               now(), true, true, 4)
             on conflict (node) do update set counter = excluded.counter",
        );
        query.bind(counter).execute(&cluster.sql)
    };
    older(1).await.unwrap();
    let keys = Keys::new("older", Some(1), &[1]);
    let node = keys.node(&cluster, &[]).await;
    let (api, body) = (node.api(), task(&topic, now_ms() + HOUR).to_string());
    let refused = api.post("/v1/tasks", body.clone()).await;
    assert_eq!(refused.status, 503, "{}", refused.text);
    assert!(refused.text.contains("older version"), "{}", refused.text);
    assert_eq!(api.metric("punctual_payload_key_held").await, 1.0);
    // Its counter stands still, so the node declares it dead.
    eventually("new records are sealed", DEADLINE, async || {
        api.post("/v1/tasks", body.clone()).await.status == 201
    })
    .await;
    assert_eq!(tables_with(&cluster, MARKER).await, Vec::<String>::new());
    let error = older(2).await.map(drop);
    sqlx::query("update heartbeat set dead = false where name = 'old'")
        .execute(&cluster.sql)
        .await
        .unwrap();
    for error in [error, older(3).await.map(drop)] {
        let told = error.expect_err("an older node gets no heartbeat").to_string();
        assert!(told.contains("cannot decrypt"), "{told}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_node_with_another_key_of_the_same_id_does_not_start() {
    let cluster = Cluster::start("same-id").await;
    let keys = Keys::new("same-id", Some(1), &[1]);
    let node = keys.node(&cluster, &[]).await;
    let wrong = AuthFile::new("same-id-wrong", &text_of(Some(1), &[2]).replace("2 =", "1 ="));
    let mut other = cluster.spawn(&["--payload-key-file", wrong.path()]);
    let status = other.wait_exit(DEADLINE).await;
    assert!(!status.success(), "{}", other.log_tail());
    assert!(other.log().contains("is another key on the other nodes"), "{}", other.log_tail());
    // A check of the settings says so, too, and registers no key.
    let check = async |file: &str| {
        let flags = cluster.arguments(&["--payload-key-file", file]);
        let words = [&["server", "check"], flags.as_slice()].concat();
        let output = crate::tokens::run(&words, "").await;
        (output.status.code(), crate::tokens::text(&output.stdout))
    };
    let (code, said) = check(wrong.path()).await;
    assert_eq!(code, Some(1), "{said}");
    assert!(said.contains("is another key on the other nodes"), "{said}");
    let next = Keys::new("same-id-next", Some(2), &[1, 2]);
    let (code, said) = check(next.path()).await;
    assert_eq!(code, Some(0), "{said}");
    assert_eq!(cluster.count("select count(*) from payload_key").await, 1);
    // The same by a reload: the keys from before stay.
    std::fs::write(keys.path(), text_of(Some(1), &[2]).replace("2 =", "1 =")).unwrap();
    eventually("the file is refused", DEADLINE, async || {
        node.api().metric("punctual_payload_key_reload_failures_total").await > 0.0
    })
    .await;
    let topic = cluster.topic("orders").await;
    let id = node.api().submit(&task(&topic, now_ms() + HOUR)).await.id;
    is_shown_whole(&node.api().task(id).await.shown);
}
