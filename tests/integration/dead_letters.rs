//! Dead letters over REST: listed, redriven once, dropped, and complete in their history.

use std::collections::HashSet;
use std::time::Duration;

use reqwest::Method;
use serde_json::{Value, json};
use uuid::Uuid;

use crate::support::{Answer, Api, BLOCKED, Cluster, Record, eventually, now_ms};

const DEADLINE: Duration = Duration::from_secs(120);

async fn drop_dead(api: &Api, id: Uuid) -> Answer {
    api.send(Method::DELETE, &format!("/v1/dead/{id}"), None).await
}

async fn redrive(api: &Api, id: Uuid) -> Answer {
    api.send(Method::POST, &format!("/v1/dead/{id}/redrive"), None).await
}

async fn states(cluster: &Cluster, id: Uuid) -> Vec<String> {
    let mut lines: Vec<String> = cluster
        .execlog()
        .await
        .into_iter()
        .filter(|line| line.id == id)
        .map(|line| line.state)
        .collect();
    lines.sort();
    lines
}

/// Headers of every kind that Kafka allows.
fn headers() -> Value {
    json!({ "h": "1", "null": null, "tag": ["a", { "base64": "/w==" }, null] })
}

/// Checks that the record is that of the task, with the headers of [`headers`] before Punctual's.
fn is_whole(record: &Record, id: Uuid) {
    assert_eq!(record.task_id(), id);
    let values: Vec<(&str, Option<&[u8]>)> =
        record.headers.iter().map(|(name, value)| (name.as_str(), value.as_deref())).collect();
    let wanted: [(&str, Option<&[u8]>); 5] = [
        ("h", Some(b"1")),
        ("null", None),
        ("tag", Some(b"a")),
        ("tag", Some(b"\xff")),
        ("tag", None),
    ];
    assert_eq!(values[..5], wanted);
}

fn large_task(topic: &str, start: i64, n: i64, text: &str) -> Value {
    json!({
        "topic": topic,
        "due_at": start + n,
        "payload_text": text,
        "name": format!("n{n}"),
        "headers": headers(),
    })
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_dead_letter_is_listed_put_back_and_published_and_its_history_is_right() {
    let cluster = Cluster::start("redriven").await;
    let topic = cluster.topic_with("strict", &[("max.message.bytes", "1000000")]).await;
    let node = cluster.node().await;
    let api = node.api();
    let consumer = cluster.consumer(&topic);
    api.learn(&topic).await;
    cluster.alter_topic(&topic, &[("max.message.bytes", "20000")]).await;
    let start = now_ms() + 3000;
    let text = "x".repeat(100_000);
    let doomed = api
        .submit_all(&(0..4).map(|n| large_task(&topic, start, n, &text)).collect::<Vec<_>>())
        .await;
    cluster.wait_final(4, DEADLINE).await;
    // Seen, page by page.
    let page = api.get(&format!("/v1/dead?topic={topic}&limit=2")).await.json();
    let cursor = page["cursor"].as_str().unwrap();
    let rest = api.get(&format!("/v1/dead?topic={topic}&limit=2&cursor={cursor}")).await.json();
    let listed: Vec<&Value> =
        page["tasks"].as_array().unwrap().iter().chain(rest["tasks"].as_array().unwrap()).collect();
    let ids: Vec<Uuid> =
        listed.iter().map(|task| task["id"].as_str().unwrap().parse().unwrap()).collect();
    assert_eq!(ids, doomed.iter().map(|task| task.id).collect::<Vec<_>>());
    assert_eq!(rest["cursor"], Value::Null);
    let second = api
        .get(&format!("/v1/dead?topic={topic}&due_from={}&due_to={}", start + 1, start + 2))
        .await
        .json();
    assert_eq!(second["tasks"], json!([listed[1]]), "of a range of due times");
    assert!(
        listed.iter().all(|task| task["state"] == "dead"
            && task["reason"].is_string()
            && task["died_at"].is_string()),
        "{listed:?}"
    );
    assert_eq!(api.get("/v1/dead?topic=other").await.json()["tasks"], json!([]));
    let topics = api.look("/v1/topics").await.json();
    assert_eq!(topics["topics"], json!([{ "topic": topic, "revision": 0 }]), "dead letters alone");
    let behind = api.look(&format!("/v1/topics?after={topic}")).await.json();
    assert_eq!(behind["topics"], json!([]));
    assert_eq!(api.task(ids[0]).await.shown["died_at"], listed[0]["died_at"]);
    // A redrive while the reason lasts makes another dead letter. After the reason is gone, the
    // record arrives.
    assert_eq!(redrive(api, ids[0]).await.status, 200);
    eventually("it is dead again", DEADLINE, async || {
        api.task(ids[0]).await.shown["attempt"] == 2 && api.task(ids[0]).await.state == "dead"
    })
    .await;
    assert_eq!(states(&cluster, ids[0]).await, ["dead", "redriven"]);
    cluster.alter_topic(&topic, &[("max.message.bytes", "1000000")]).await;
    let answer = redrive(api, ids[0]).await;
    assert_eq!(answer.status, 200, "{}", answer.text);
    let task = &answer.json();
    assert_eq!(
        (&task["id"], &task["state"], &task["attempt"]),
        (&json!(ids[0].to_string()), &json!("scheduled"), &json!(3))
    );
    assert_eq!(
        (&task["payload_text"], &task["name"], &task["headers"]),
        (&json!(text), &json!("n0"), &headers())
    );
    assert_eq!(redrive(api, ids[0]).await.status, 404, "there is no such dead letter any more");
    let record = consumer.wait_count(1, DEADLINE).await[0].clone();
    is_whole(&record, ids[0]);
    cluster.wait_final(4, DEADLINE).await;
    eventually("its receipt is there", DEADLINE, async || {
        api.task(ids[0]).await.state == "published"
    })
    .await;
    let found = api.task(ids[0]).await;
    assert_eq!(
        (found.position(), &found.shown["attempt"]),
        (Some((record.partition, record.offset)), &json!(3))
    );
    let by_name = api.get(&format!("/v1/topics/{topic}/tasks/n0")).await.json();
    assert_eq!(
        (&by_name["id"], &by_name["state"]),
        (&json!(ids[0].to_string()), &json!("published"))
    );
    assert_eq!(states(&cluster, ids[0]).await, ["published", "redriven", "redriven"]);
    // The name now belongs to another task, and stays with that task.
    let answer = api
        .send(
            Method::PUT,
            &format!("/v1/topics/{topic}/tasks/n1"),
            Some(("application/json", br#"{"delay":"1h","payload":1}"#.to_vec())),
        )
        .await;
    assert_eq!(answer.status, 201, "{}", answer.text);
    assert_eq!(redrive(api, ids[1]).await.status, 200);
    consumer.wait_count(2, DEADLINE).await;
    assert_eq!(
        api.get(&format!("/v1/topics/{topic}/tasks/n1")).await.json()["id"],
        answer.json()["id"]
    );
    drops_leave_dead_tasks(&cluster, api, &topic, [ids[2], ids[3]]).await;
    assert_eq!(
        cluster.count("select count(*) from dead_letter").await
            + cluster.count("select count(*) from task_follow").await,
        0
    );
}

/// Drops one dead letter of a topic, then all others. The tasks stay dead.
async fn drops_leave_dead_tasks(cluster: &Cluster, api: &Api, topic: &str, [id, last]: [Uuid; 2]) {
    let dropped = drop_dead(api, id).await;
    assert_eq!((dropped.status, &dropped.json()["id"]), (200, &json!(id.to_string())));
    assert_eq!((drop_dead(api, id).await.status, redrive(api, id).await.status), (404, 404));
    assert_eq!(change_many(api, ("drop", "dropped"), &json!({ "topic": topic })).await, (1, false));
    for id in [id, last] {
        assert_eq!(
            (api.task(id).await.state.as_str(), states(cluster, id).await),
            ("dead", vec!["dropped".to_owned()])
        );
    }
}

/// A dead letter is kept for ever, but the receipts of the first attempts are not.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_dead_letter_that_is_older_than_the_receipts_is_put_back_and_its_end_is_known() {
    let cluster = Cluster::start("redriven-late").await;
    let topic = cluster.topic("orders").await;
    let node = cluster.node().await;
    let api = node.api();
    let days = 30 * 86_400_000;
    let id: Uuid =
        format!("{:012x}80018{:015x}", now_ms() - days, rand::random::<u32>()).parse().unwrap();
    let query = "insert into dead_letter (id, row_id, topic, payload, attempts, reason) values \
                 ($1, $1, $2, 'x', 1, 'tried')";
    sqlx::query(query).bind(id).bind(&topic).execute(&cluster.sql).await.unwrap();
    assert_eq!(redrive(api, id).await.status, 200);
    cluster.wait_final(1, DEADLINE).await;
    let record = cluster.consumer(&topic).wait_count(1, DEADLINE).await[0].clone();
    let found = api.task(id).await;
    assert_eq!(
        (found.state.as_str(), found.position()),
        ("published", Some((record.partition, record.offset)))
    );
    let answer = api.cancel(id).await;
    assert_eq!((answer.status, answer.verdict().as_str()), (409, "too_late"));
}

/// Dead letters as a settle writes them, due within the last hours. Every second one has the same
/// name.
async fn load(cluster: &Cluster, topic: &str, count: i64) {
    let query = "insert into dead_letter (id, row_id, topic, payload, name, attempts, reason)
        select id, id, $2, 'x', case when n % 2 = 0 then 'name' end, 1, 'tried'
        from (select n, (lpad(to_hex($3 - n), 12, '0') || '8' ||
          lpad(to_hex(n % 16), 3, '0') || '8' || substr(md5(n::text), 1, 15))::uuid as id
              from generate_series(1, $1) n) t";
    let query = sqlx::query(query).bind(count).bind(topic).bind(now_ms());
    assert_eq!(
        query.execute(&cluster.sql).await.unwrap().rows_affected(),
        u64::try_from(count).unwrap()
    );
}

async fn redrive_many(api: &Api, body: &Value) -> (i64, bool) {
    change_many(api, ("redrive", "redriven"), body).await
}

async fn change_many(api: &Api, (verb, counted): (&str, &str), body: &Value) -> (i64, bool) {
    let answer = api.post(&format!("/v1/dead/{verb}"), body.to_string()).await;
    assert_eq!(answer.status, 200, "{}", answer.text);
    let answer = answer.json();
    (answer[counted].as_i64().unwrap(), answer["more"].as_bool().unwrap())
}

/// Repeats the call with the cursor until none is left. Returns the total.
async fn change_all(api: &Api, (verb, counted): (&str, &str), mut body: Value) -> i64 {
    let mut count = 0;
    loop {
        let answer = api.post(&format!("/v1/dead/{verb}"), body.to_string()).await;
        assert_eq!(answer.status, 200, "{}", answer.text);
        let answer = answer.json();
        let changed = answer[counted].as_i64().unwrap();
        assert!(changed <= 10_000);
        count += changed;
        if answer["more"] == false {
            assert_eq!(answer["cursor"], Value::Null, "{answer}");
            return count;
        }
        body["cursor"] = answer["cursor"].clone();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn redrives_at_the_same_time_put_each_task_back_once() {
    let cluster = Cluster::start("redrives").await;
    let topic = cluster.topic("orders").await;
    let (first, second) = tokio::join!(cluster.node(), cluster.node());
    let consumer = cluster.consumer(&topic);
    load(&cluster, &topic, 12_000).await;
    assert_eq!(
        redrive_many(first.api(), &json!({ "topic": topic, "dry_run": true })).await,
        (10_000, true)
    );
    assert_eq!(redrive_many(first.api(), &json!({ "topic": "other" })).await, (0, false));
    let recent = json!({ "topic": topic, "due_from": now_ms() + 60_000 });
    assert_eq!(redrive_many(first.api(), &recent).await, (0, false));
    assert_eq!(cluster.count("select count(*) from dead_letter").await, 12_000);
    // One by one: of two callers, one redrives the dead letter.
    let ids: Vec<Uuid> = sqlx::query_scalar("select id from dead_letter order by id limit 50")
        .fetch_all(&cluster.sql)
        .await
        .unwrap();
    let mut singles = 0;
    for id in &ids {
        let (one, two) = tokio::join!(redrive(first.api(), *id), redrive(second.api(), *id));
        let mut both = [one.status, two.status];
        both.sort_unstable();
        assert_eq!(both, [200, 404]);
        singles += 1;
    }
    // Many at once, from both sides.
    let redrives = ("redrive", "redriven");
    let (one, two) = tokio::join!(
        change_all(first.api(), redrives, json!({ "topic": topic })),
        change_all(second.api(), redrives, json!({ "topic": topic }))
    );
    eprintln!("redriven by one {one}, by the other {two}, singly {singles}");
    assert_eq!(one + two + singles, 12_000);
    assert_eq!(cluster.count("select count(*) from dead_letter").await, 0);
    cluster.wait_final(12_000, DEADLINE).await;
    let records = consumer.wait_count(12_000, DEADLINE).await;
    let arrived: HashSet<Uuid> = records.iter().map(|record| record.task_id()).collect();
    assert_eq!((records.len(), arrived.len()), (12_000, 12_000));
    assert_eq!(
        cluster.count("select count(distinct id) from execlog where state = 'published' ").await,
        12_000
    );
    assert_eq!(
        cluster.count("select count(*) from execlog where state = 'published'").await,
        12_000
    );
    assert_eq!(cluster.count("select count(*) from task_follow").await, 0);
}

/// Each one of many dead letters is redriven or dropped by one of two simultaneous callers.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn many_that_are_dropped_and_put_back_at_the_same_time_have_one_end_each() {
    const DROP: (&str, &str) = ("drop", "dropped");
    let cluster = Cluster::start("drops").await;
    let topic = cluster.topic("orders").await;
    let (first, second) = tokio::join!(cluster.node(), cluster.node());
    load(&cluster, &topic, 11_000).await;
    load(&cluster, "other", 3).await;
    // Large ones end a transaction by the limit on bytes.
    let large = "update dead_letter set payload = repeat('x', 3 << 20)::bytea where id in (select \
                 id from dead_letter where topic = $1 order by id limit 5)";
    assert_eq!(
        sqlx::query(large).bind(&topic).execute(&cluster.sql).await.unwrap().rows_affected(),
        5
    );
    assert_eq!(
        change_all(first.api(), DROP, json!({ "topic": topic, "dry_run": true })).await,
        11_000,
        "each once"
    );
    assert_eq!(
        change_many(first.api(), DROP, &json!({ "topic": topic, "due_from": now_ms() + 60_000 }))
            .await,
        (0, false)
    );
    assert_eq!(cluster.count("select count(*) from dead_letter").await, 11_003);
    let (dropped, more) = change_many(first.api(), DROP, &json!({ "topic": topic })).await;
    assert!(dropped <= 10_000 && more, "the limit of a call: {dropped}");
    let rest = change_all(second.api(), DROP, json!({ "topic": topic })).await;
    assert_eq!(dropped + rest, 11_000);
    load(&cluster, &topic, 11_000).await;
    // Both calls begin at the same instant. Otherwise one could finish before the other begins.
    let mut holder = cluster.sql.begin().await.unwrap();
    sqlx::query("lock table dead_letter in share mode").execute(&mut *holder).await.unwrap();
    let let_go = async {
        eventually("both wait", DEADLINE, async || cluster.count(BLOCKED).await >= 2).await;
        holder.commit().await.unwrap();
    };
    let (dropped, redriven, ()) = tokio::join!(
        change_all(first.api(), DROP, json!({ "topic": topic })),
        change_all(second.api(), ("redrive", "redriven"), json!({ "topic": topic })),
        let_go
    );
    eprintln!("dropped {dropped}, redriven {redriven}");
    assert_eq!(dropped + redriven, 11_000);
    assert!(dropped > 0 && redriven > 0, "each had its share: {dropped}, {redriven}");
    assert_eq!(
        cluster.count("select count(*) from dead_letter").await,
        3,
        "those of another topic"
    );
    // The first 11,000 were dropped as well.
    cluster.wait_final(usize::try_from(11_000 + dropped + redriven).unwrap(), DEADLINE).await;
    assert_eq!(
        cluster.count("select count(*) from execlog where state = 'published'").await,
        redriven
    );
    let name = "punctual_dead_letters_dropped_total";
    let counted = first.api().metric(name).await + second.api().metric(name).await;
    assert_eq!(format!("{counted}"), format!("{}", 11_000 + dropped));
}

const DAY_MS: i64 = 86_400_000;

/// Dead letters of tasks that were first due in the seconds behind `due_at`, and perhaps moved.
async fn load_moved(cluster: &Cluster, topic: &str, (count, due_at): (i64, i64), to: Option<i64>) {
    let query = "insert into dead_letter (id, row_id, topic, payload, attempts, reason, moved_to)
        select id, id, $2, 'x', 1, 'tried', $4 + n
        from (select n, (lpad(to_hex($3 + n), 12, '0') || '8' || lpad(to_hex(n % 16), 3, '0') ||
          '8' || substr(md5(random()::text), 1, 15))::uuid as id
              from generate_series(1, $1) n) t";
    let query = sqlx::query(query).bind(count).bind(topic).bind(due_at).bind(to);
    query.execute(&cluster.sql).await.unwrap();
}

/// Returns the ids of all pages of dead letters.
async fn list_dead(api: &Api, query: &str) -> Vec<String> {
    let (mut ids, mut cursor) = (Vec::new(), String::new());
    loop {
        let page = api.look(&format!("/v1/dead?{query}{cursor}")).await.json();
        let tasks = page["tasks"].as_array().unwrap();
        ids.extend(tasks.iter().map(|task| task["id"].as_str().unwrap().to_owned()));
        match page["cursor"].as_str() {
            Some(next) => cursor = format!("&cursor={next}"),
            None => return ids,
        }
    }
}

/// A moved task is due at its new time, and so is its dead letter.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn moved_dead_letters_are_selected_by_the_due_times_that_they_show() {
    const DROP: (&str, &str) = ("drop", "dropped");
    let cluster = Cluster::start("moved-dead").await;
    let [topic, other] = [cluster.topic("orders").await, cluster.topic("other").await];
    let (first, second) = tokio::join!(cluster.node(), cluster.node());
    let api = first.api();
    let (earlier, later) = (now_ms() - 90 * DAY_MS, now_ms() - 30 * DAY_MS);
    let range = |from: i64| json!({ "topic": topic, "due_from": from, "due_to": from + DAY_MS });
    load_moved(&cluster, &topic, (3, earlier), None).await;
    load_moved(&cluster, &topic, (1500, earlier), Some(later)).await;
    load_moved(&cluster, &topic, (2, later), Some(earlier)).await;
    load_moved(&cluster, &other, (1, earlier), Some(later)).await;
    for (from, count, all) in [(earlier, 5, 5), (later, 1500, 1501), (later + DAY_MS, 0, 0)] {
        let due = format!("due_from={from}&due_to={}", from + DAY_MS);
        for limit in [2, 1000] {
            let listed = list_dead(api, &format!("topic={topic}&{due}&limit={limit}")).await;
            assert_eq!(listed.len(), count, "each once: {due}");
            assert!(listed.is_sorted(), "in the order of their first due times");
        }
        assert_eq!(list_dead(api, &format!("{due}&limit=1000")).await.len(), all);
        let mut dry = range(from);
        dry["dry_run"] = json!(true);
        assert_eq!(change_many(api, DROP, &dry).await, (i64::try_from(count).unwrap(), false));
    }
    // All that show a time before, and no others.
    let old = json!({ "topic": topic, "due_to": earlier + DAY_MS });
    assert_eq!(change_many(api, DROP, &old).await, (5, false));
    assert_eq!(cluster.count("select count(*) from dead_letter").await, 1501);
    assert_eq!(redrive_many(api, &range(earlier)).await, (0, false));
    let consumer = cluster.consumer(&other);
    let mut to_other = range(later);
    to_other["due_to"] = json!(later + 3);
    to_other["to_topic"] = json!(other);
    assert_eq!(redrive_many(api, &to_other).await, (2, false));
    consumer.wait_count(2, DEADLINE).await;
    // Large ones end a transaction by the limit on bytes.
    let large = "update dead_letter set payload = repeat('x', 3 << 20)::bytea where id in (select \
                 id from dead_letter where topic = $1 order by id limit 5)";
    sqlx::query(large).bind(&topic).execute(&cluster.sql).await.unwrap();
    assert_eq!(change_all(api, DROP, range(later)).await, 1498);
    load_moved(&cluster, &topic, (3000, earlier), Some(later)).await;
    let (dropped, redriven) = tokio::join!(
        change_all(api, DROP, range(later)),
        change_all(second.api(), ("redrive", "redriven"), range(later))
    );
    assert_eq!(dropped + redriven, 3000, "each has one end: {dropped}, {redriven}");
    assert_eq!(cluster.count("select count(*) from dead_letter").await, 1, "of the other topic");
    cluster.wait_final(5 + 1500 + 3000, DEADLINE).await;
    let published = "select count(*) from execlog where state = 'published'";
    assert_eq!(cluster.count(published).await, 2 + redriven);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn dead_letters_are_redriven_to_another_topic_and_have_no_names_there() {
    let cluster = Cluster::start("redriven-elsewhere").await;
    let topic = cluster.topic("orders").await;
    let other = cluster.topic("orders-v2").await;
    let consumer = cluster.consumer(&other);
    let node = cluster.node().await;
    let api = node.api();
    load(&cluster, &topic, 5).await;
    // The entry of the name of one of them.
    let named = "insert into task_name (topic, name, id, row_id, expires_at)
        select topic, name, id, row_id, now() + interval '1 day' from dead_letter
        where name is not null order by id limit 1";
    sqlx::query(named).execute(&cluster.sql).await.unwrap();
    let one: Uuid =
        sqlx::query_scalar("select id from task_name").fetch_one(&cluster.sql).await.unwrap();
    let unknown = json!({ "to_topic": "no-such-topic" });
    let refused = api.post(&format!("/v1/dead/{one}/redrive"), unknown.to_string()).await;
    assert_eq!(
        (refused.status, &refused.json()["field"]),
        (422, &json!("to_topic")),
        "{}",
        refused.text
    );
    // Topics that do not take the record, which is random and cannot be compressed.
    let record = "update dead_letter set payload = (
        select string_agg(md5(random()::text), '') from generate_series(1, 500))::bytea
        where id = $1";
    sqlx::query(record).bind(one).execute(&cluster.sql).await.unwrap();
    for (setting, value, problem) in [
        ("max.message.bytes", "2000", "record-too-large"),
        ("cleanup.policy", "compact", "key-required"),
    ] {
        let unfit = cluster.topic_with(problem, &[(setting, value)]).await;
        let unfit = json!({ "to_topic": unfit });
        let refused = api.post(&format!("/v1/dead/{one}/redrive"), unfit.to_string()).await;
        assert_eq!(
            (refused.status, &refused.json()["type"], &refused.json()["field"]),
            (422, &json!(format!("urn:punctual:problem:{problem}")), &json!("to_topic")),
            "{}",
            refused.text
        );
    }
    assert_eq!(cluster.count("select count(*) from dead_letter").await, 5);
    let to = json!({ "to_topic": other });
    let redriven = api.post(&format!("/v1/dead/{one}/redrive"), to.to_string()).await;
    assert_eq!(redriven.status, 200, "{}", redriven.text);
    let shown = redriven.json();
    assert_eq!((&shown["topic"], &shown["name"]), (&json!(other), &Value::Null), "{shown}");
    let all = json!({ "topic": topic, "to_topic": other });
    assert_eq!(redrive_many(api, &all).await, (4, false));
    let records = consumer.wait_count(5, DEADLINE).await;
    assert!(records.iter().any(|record| record.task_id() == one));
    eventually("all are published", DEADLINE, async || {
        api.look(&format!("/v1/tasks/{one}")).await.json()["state"] == "published"
    })
    .await;
    let published = api.look(&format!("/v1/tasks/{one}")).await.json();
    assert_eq!(published["topic"], json!(other), "{published}");
    assert_eq!(cluster.count("select count(*) from task_name").await, 0, "the name is free");
    let by_name = api.get(&format!("/v1/topics/{topic}/tasks/name")).await;
    assert_eq!(by_name.status, 404, "{}", by_name.text);
}

#[tokio::test]
async fn a_redriven_task_does_not_show_a_name_that_another_task_has_by_now() {
    let cluster = Cluster::start("redriven-name").await;
    let topic = cluster.topic("orders").await;
    let node = cluster.node().await;
    let api = node.api();
    load(&cluster, &topic, 4).await;
    let others = "insert into task_name (topic, name, id, row_id, expires_at)
        select topic, name, gen_random_uuid(), gen_random_uuid(), now() + interval '1 day'
        from dead_letter where name is not null limit 1";
    sqlx::query(others).execute(&cluster.sql).await.unwrap();
    let named = "select id from dead_letter where name is not null order by id";
    let named: Vec<Uuid> = sqlx::query_scalar(named).fetch_all(&cluster.sql).await.unwrap();
    let redriven = redrive(api, named[0]).await;
    assert_eq!((redriven.status, &redriven.json()["name"]), (200, &Value::Null));
    sqlx::query("delete from task_name").execute(&cluster.sql).await.unwrap();
    assert_eq!(redrive(api, named[1]).await.json()["name"], "name");
    let holder = "select id from task_name";
    let holder: Vec<Uuid> = sqlx::query_scalar(holder).fetch_all(&cluster.sql).await.unwrap();
    assert_eq!(holder, [named[1]]);
}

#[tokio::test]
async fn no_topic_is_left_out_of_the_pages_of_topics() {
    let cluster = Cluster::start("many-topics-listed").await;
    let node = cluster.node().await;
    let fill = "insert into task_far (shard, id, topic)
        select 0, (lpad(to_hex($1 + n), 12, '0') || substr(md5(n::text), 1, 20))::uuid,
          'topic-' || n
        from generate_series(1, 1500) n";
    let in_a_year = now_ms() + 365 * 86_400_000;
    sqlx::query(fill).bind(in_a_year).execute(&cluster.sql).await.unwrap();
    let mut listed = 0;
    let mut page = node.api().look("/v1/topics?limit=1000").await.json();
    loop {
        listed += page["topics"].as_array().unwrap().len();
        let Some(after) = page["next_after"].as_str().map(str::to_owned) else { break };
        page = node.api().look(&format!("/v1/topics?limit=1000&after={after}")).await.json();
    }
    assert_eq!(listed, 1500);
}
