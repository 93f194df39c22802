//! Lists are correct whatever happens between two pages, and a bulk cancel takes each task once.

use std::collections::{BTreeSet, HashSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use punctual::domain::leaves::{Parent, Rules};
use punctual::domain::{ClusterSettings, IdRange, Timestamp};
use punctual::postgres::connection::ConnectionPurpose;
use punctual::postgres::partitions::mover::Mover;
use punctual::postgres::partitions::{create, take_census};
use punctual::postgres::{Connection, PostgresSettings};
use reqwest::Method;
use serde_json::{Value, json};
use uuid::Uuid;

use crate::support::partitions::move_far;
use crate::support::{Api, Cluster, eventually, eventually_some, now_ms};

const MINUTE_MS: i64 = 60_000;
/// Leaves end three hours ahead, for the horizon is two.
const LEAVES_END_MS: i64 = 180 * MINUTE_MS;

/// All pages of a list, `limit` tasks each.
async fn read_all(api: &Api, path: &str, limit: usize) -> Vec<Value> {
    let (mut tasks, mut cursor) = (Vec::new(), None::<String>);
    loop {
        let from = cursor.map_or_else(String::new, |cursor| format!("&cursor={cursor}"));
        let answer = api.look(&format!("{path}limit={limit}{from}")).await;
        assert_eq!(answer.status, 200, "{}", answer.text);
        let page = answer.json();
        let found = page["tasks"].as_array().unwrap();
        assert!(found.len() <= limit, "{} tasks in a page of {limit}", found.len());
        tasks.extend(found.iter().cloned());
        match page["cursor"].as_str() {
            Some(next) => cursor = Some(next.to_owned()),
            None => return tasks,
        }
    }
}

fn ids(tasks: &[Value]) -> Vec<Uuid> {
    tasks.iter().map(|task| task["id"].as_str().unwrap().parse().unwrap()).collect()
}

/// Tasks due at random between two minutes from now.
fn tasks_due(topic: &str, count: usize, minutes: std::ops::Range<i64>) -> Vec<Value> {
    let due = || now_ms() + rand::random_range(minutes.start * MINUTE_MS..minutes.end * MINUTE_MS);
    (0..count)
        .map(|number| {
            json!({
                "topic": topic,
                "due_at": due(),
                "payload_text": "x",
                "key": (number % 7).to_string(),
            })
        })
        .collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_list_misses_nothing_and_repeats_nothing_under_submits_cancels_and_moves() {
    let cluster = Cluster::start("lists").await;
    let topic = cluster.topic("orders").await;
    let node = cluster.node().await;
    let api = node.api().clone();
    // Half of the tasks are due after the last leaf, and one key has a seventh.
    let steady = api.submit_all(&tasks_due(&topic, 3000, 10..270)).await;
    let steady: BTreeSet<Uuid> = steady.iter().map(|task| task.id).collect();
    let is_done = Arc::new(AtomicBool::new(false));
    let (stirring, topic_of_others) = (Arc::clone(&is_done), topic.clone());
    let stirrer = tokio::spawn(async move {
        let mut count = 0;
        while !stirring.load(Ordering::Relaxed) {
            for task in
                api.submit_all(&tasks_due(&topic_of_others, 40, 10..270)).await.iter().step_by(2)
            {
                assert_eq!(api.cancel(task.id).await.verdict(), "cancelled");
                count += 1;
            }
        }
        count
    });
    let (moving, mover) =
        (Arc::clone(&is_done), tokio::spawn(move_far_tasks(cluster.database.url.clone())));
    let mut pages_read_while_moving = 0;
    while !mover.is_finished() || pages_read_while_moving < 2 {
        let listed = ids(&read_all(node.api(), &format!("/v1/tasks?topic={topic}&"), 101).await);
        assert!(
            listed.windows(2).all(|pair| pair[0] < pair[1]),
            "in the order of their due times, and none twice"
        );
        let listed: BTreeSet<Uuid> = listed.into_iter().collect();
        let missing: Vec<&Uuid> = steady.difference(&listed).collect();
        assert!(
            missing.is_empty(),
            "{} tasks that were there throughout are missing: {missing:?}",
            missing.len()
        );
        pages_read_while_moving += 1;
    }
    moving.store(true, Ordering::Relaxed);
    let (moved, cancelled) = (mover.await.unwrap(), stirrer.await.unwrap());
    eprintln!(
        "{pages_read_while_moving} times read; {moved} tasks moved and {cancelled} cancelled \
         meanwhile"
    );
    assert!(moved > 500 && cancelled > 20, "{moved} moved, {cancelled} cancelled");
}

/// Makes leaf after leaf beyond the last, and moves the far tasks there, as the maintenance does;
/// in small pieces.
async fn move_far_tasks(url: String) -> u64 {
    let settings = PostgresSettings::new(&url).unwrap();
    let rules = Rules::new(&ClusterSettings {
        horizon: Duration::from_secs(7200),
        ..ClusterSettings::DEFAULT
    });
    let purpose =
        ConnectionPurpose { name: "test", deadline: Duration::from_secs(10), settings: &[] };
    let (mut connection, mut mover, mut moved) =
        (Connection::new(&settings, purpose), Mover::new(&settings), 0);
    let end = Timestamp::from_millis(now_ms() + 280 * MINUTE_MS);
    loop {
        let (census, now) = take_census(&mut connection, Parent::Task).await.unwrap();
        let next = rules.end_of_run(Parent::Task, &census.attached, now);
        if next > end {
            return moved;
        }
        let leaf = rules.partition_of(Parent::Task, next);
        if create(&mut connection, &rules, &[leaf]).await.unwrap() {
            for minute in 0..15 {
                let from = leaf.start.plus(Duration::from_secs(60) * minute);
                let range = IdRange::of_times(from, from.plus(Duration::from_secs(60)));
                moved += move_far(&mut mover, range).await.unwrap().task_count;
            }
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_list_keeps_to_its_range_and_says_where_a_deferred_task_is_now() {
    let cluster = Cluster::start("ranges").await;
    let topic = cluster.topic("orders").await;
    let node = cluster.node().await;
    let api = node.api();
    let due = now_ms() / 1000 * 1000 + 40 * MINUTE_MS;
    let tasks: Vec<Value> = (0..5)
        .map(|n| {
            json!({
                "topic": topic,
                "due_at": due + n,
                "payload_text": "x",
                "name": format!("n{n}"),
            })
        })
        .collect();
    let accepted = api.submit_all(&tasks).await;
    let far = api.submit(&json!({ "topic": topic, "delay": "5000h", "payload_text": "x" })).await;
    let of_range = |from: i64, to: i64| format!("/v1/tasks?due_from={from}&due_to={to}&");
    let found = ids(&read_all(api, &of_range(due + 1, due + 4), 2).await);
    assert_eq!(
        found,
        accepted[1..4].iter().map(|task| task.id).collect::<Vec<_>>(),
        "from is inclusive, to is not"
    );
    assert_eq!(read_all(api, &of_range(due + 4, due + 4), 2).await.len(), 0);
    // A deferred task: another row with the first id, listed at the new due time.
    let first = accepted[0].id;
    sqlx::query(
        "with d as (delete from task where id = $1 returning *),
          f as (insert into task_follow values ($1, $2, false))
         insert into task (shard, id, topic, payload, name, first_id, attempt) select shard, $2,
           topic, payload, name, $1, 2 from d",
    )
    .bind(first)
    .bind(Uuid::from_u128(first.as_u128() + (10_u128 << 80)))
    .execute(&cluster.sql)
    .await
    .unwrap();
    let all = read_all(api, "/v1/tasks?", 1).await;
    let wanted: Vec<Uuid> =
        accepted[1..].iter().map(|task| task.id).chain([first, far.id]).collect();
    assert_eq!(ids(&all), wanted);
    assert_eq!((&all[4]["attempt"], &all[4]["name"]), (&json!(2), &json!("n0")));
    let counts = api.get("/v1/tasks/counts").await.json();
    assert_eq!(counts["pending"], json!({ "count": 6, "exact": true }));
    let in_the_hour: i64 = counts["minutes"]
        .as_array()
        .unwrap()
        .iter()
        .map(|minute| minute["count"].as_i64().unwrap())
        .sum();
    assert_eq!((in_the_hour, counts["minutes"].as_array().unwrap().len()), (5, 120));
}

/// Inserts tasks as submits do, `count` into leaves and as many into the far table.
async fn load(cluster: &Cluster, topic: &str, count: i64) {
    for (table, from) in [("task", 60 * MINUTE_MS), ("task_far", LEAVES_END_MS + 60 * MINUTE_MS)] {
        let query = format!(
            "insert into {table} (shard, id, topic, payload)
             select shard, (lpad(to_hex(due), 12, '0') || '8' ||
               lpad(to_hex(shard), 3, '0') || '8' || substr(md5(n::text || $2), 1, 15))::uuid,
                 $2, 'x'
             from (select n, n % 16 as shard, $3 + n as due from generate_series(1, $1) n) t"
        );
        let query =
            sqlx::query(sqlx::AssertSqlSafe(query)).bind(count).bind(topic).bind(now_ms() + from);
        assert_eq!(
            query.execute(&cluster.sql).await.unwrap().rows_affected(),
            u64::try_from(count).unwrap()
        );
    }
}

async fn cancel_many(api: &Api, body: &Value) -> (i64, bool) {
    // 503: somebody's locks were in the way for a second, and nothing was cancelled.
    let answer = eventually_some("there is an answer", Duration::from_secs(60), async || {
        let answer = api.post("/v1/tasks/cancel", body.to_string()).await;
        (answer.status != 503).then_some(answer)
    })
    .await;
    assert_eq!(answer.status, 200, "{}", answer.text);
    let answer = answer.json();
    assert_eq!(answer["dry_run"], json!(body["dry_run"] == true));
    (answer["cancelled"].as_i64().unwrap(), answer["more"].as_bool().unwrap())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_cancel_of_many_counts_each_task_once_and_writes_its_line() {
    let cluster = Cluster::start("many").await;
    let (topic, other) = (cluster.topic("orders").await, cluster.topic("other").await);
    let (first, second) = tokio::join!(cluster.node(), cluster.node());
    load(&cluster, &topic, 6_100).await;
    load(&cluster, &other, 300).await;
    let named = first
        .api()
        .submit(&json!({ "topic": topic, "delay": "1h", "payload_text": "x", "name": "order-17" }))
        .await;
    // Two deferred tasks, one of which may be in the topic.
    let [sent, unsent] = [true, false].map(|maybe_sent| {
        (Uuid::from_u128(0x8001_u128 << 64 | u128::from(maybe_sent) | 1 << 79), maybe_sent)
    });
    for (id, maybe_sent) in [sent, unsent] {
        sqlx::query(
            "with f as (insert into task_follow values ($1, $2, $3))
             insert into task (shard, id, topic, payload, first_id, attempt)
               values (1, $2, $4, 'x', $1, 2)",
        )
        .bind(id)
        .bind(Uuid::from_u128(
            id.as_u128() + (u128::try_from(now_ms() + 50 * MINUTE_MS).unwrap() << 80),
        ))
        .bind(maybe_sent)
        .bind(&topic)
        .execute(&cluster.sql)
        .await
        .unwrap();
    }
    let whole = json!({ "topic": topic });
    assert_eq!(
        cancel_many(first.api(), &json!({ "topic": topic, "dry_run": true })).await,
        (10_000, true)
    );
    assert_eq!(
        cluster.count("select count(*) from execlog_cancelled").await,
        0,
        "a dry run changes nothing"
    );
    let cancel_all = async |api: &Api| {
        let mut count = 0;
        loop {
            let (cancelled, has_more) = cancel_many(api, &whole).await;
            assert!(cancelled <= 10_000);
            count += cancelled;
            if !has_more {
                return count;
            }
        }
    };
    let (one, two) = tokio::join!(cancel_all(first.api()), cancel_all(second.api()));
    eprintln!("cancelled by one {one}, by the other {two}");
    // All of them, with the named task, and with the task that was certainly not sent.
    assert_eq!(one + two, 12_200 + 2);
    assert_eq!(cluster.count("select count(*) from execlog_cancelled").await, 12_202);
    assert_eq!(
        cluster.count("select count(distinct id) from execlog where state = 'cancelled'").await,
        12_202
    );
    assert_eq!(
        cluster.count("select count(*) from task where attempt = 2").await,
        1,
        "what was perhaps sent stays"
    );
    assert_eq!(cluster.count("select count(*) from task_follow where not maybe_sent").await, 0);
    assert_eq!(
        cluster.count("select (select count(*) from task) + (select count(*) from task_far)").await,
        601
    );
    assert_eq!(cancel_many(first.api(), &whole).await, (0, false));
    assert_eq!(first.api().task(named.id).await.state, "cancelled");
    let by_name = first.api().get(&format!("/v1/topics/{topic}/tasks/order-17")).await.json();
    assert_eq!(by_name["state"], "cancelled");
    let left: HashSet<String> = read_all(first.api(), "/v1/tasks?", 1000)
        .await
        .iter()
        .map(|task| task["topic"].as_str().unwrap().to_owned())
        .collect();
    assert_eq!(left, HashSet::from([topic, other.clone()]));
    // A range, with ends as in a list.
    let due = now_ms() + 30 * MINUTE_MS;
    let tasks: Vec<Value> =
        (0..5).map(|n| json!({ "topic": other, "due_at": due + n, "payload_text": "x" })).collect();
    let tasks = first.api().submit_all(&tasks).await;
    let range = json!({ "topic": other, "due_from": due + 1, "due_to": due + 4 });
    assert_eq!(cancel_many(first.api(), &range).await, (3, false));
    assert_eq!(
        (
            first.api().task(tasks[0].id).await.state.as_str(),
            first.api().task(tasks[4].id).await.state.as_str()
        ),
        ("scheduled", "scheduled")
    );
}

/// The search for tasks of a topic ends at 10,000 rows.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_misspelt_topic_is_refused_beside_many_pending_tasks() {
    const UNKNOWN: (u16, &str) = (422, "unknown-topic");
    const NOT_FOUND: (u16, &str) = (404, "topic-not-found");
    let cluster = Cluster::start("misspelt").await;
    let (topic, former) = (cluster.topic("orders").await, cluster.topic("former").await);
    let misspelt = format!("{}.ordres", cluster.name);
    let node = cluster.node().await;
    let api = node.api();
    load(&cluster, &topic, 6_000).await;
    let callback = json!({ "url": "https://jobs.example.com/" });
    for (method, rest, body, (status, kind)) in [
        (Method::POST, "/pause", Some(json!({})), UNKNOWN),
        (Method::PUT, "/policy", Some(json!({ "ttr": "1m" })), UNKNOWN),
        (Method::PUT, "/callback", Some(callback), UNKNOWN),
        (Method::POST, "/pop", Some(json!({ "group": "g", "wait": "0s" })), NOT_FOUND),
        (Method::POST, "/resume", Some(json!({})), NOT_FOUND),
        (Method::DELETE, "/policy", None, NOT_FOUND),
        (Method::GET, "", None, NOT_FOUND),
    ] {
        let path = format!("/v1/topics/{misspelt}{rest}");
        let answer = api.send_with(method, &path, &[], body).await;
        let (problem, wanted) = (answer.json(), json!(format!("urn:punctual:problem:{kind}")));
        assert_eq!((answer.status, &problem["type"]), (status, &wanted), "{rest}: {problem}");
    }
    let policy = json!({ "ttr": "1m", "retry": { "dead_topic": misspelt } });
    let path = format!("/v1/topics/{topic}/policy");
    let refused = api.send_with(Method::PUT, &path, &[], Some(policy)).await;
    let problem = refused.json();
    assert_eq!((refused.status, &problem["field"]), (422, &json!("retry.dead_topic")), "{problem}");

    // The list shows the revision of a topic that was paused, and does not list one for it alone.
    for topic in [&topic, &former] {
        for change in ["pause", "resume"] {
            let answer = api.post(&format!("/v1/topics/{topic}/{change}"), "{}").await;
            assert_eq!(answer.status, 200, "{}", answer.text);
        }
    }
    let list = api.look("/v1/topics").await.json();
    let listed: Vec<_> = list["topics"].as_array().unwrap().iter().collect();
    let [listed] = listed[..] else { panic!("{list}") };
    let shown = api.look(&format!("/v1/topics/{topic}")).await.json();
    assert_eq!((&listed["topic"], &listed["revision"]), (&json!(topic), &json!(2)), "{list}");
    assert_eq!(shown["revision"], listed["revision"], "{shown}");
}

/// Ids of one millisecond are ordered by shard. A merge over the shards would complete only a
/// sixteenth of each look.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_hotspot_of_one_millisecond_is_looked_through_once_and_left_behind() {
    const HOTSPOT: i64 = 30_000;
    let cluster = Cluster::start("hot").await;
    let (hotspot, beside) = (cluster.topic("hotspot").await, cluster.topic("beside").await);
    let node = cluster.node().await;
    let due = now_ms() / 1000 * 1000 + 40 * MINUTE_MS;
    // Most tasks are in a leaf, and some are still in the far table.
    for (table, topic, count, due) in [
        ("task", &hotspot, HOTSPOT, due),
        ("task_far", &hotspot, 500, due),
        ("task", &beside, 20, due),
        ("task", &beside, 3, due + 1),
    ] {
        let query = format!(
            "insert into {table} (shard, id, topic, payload)
             select shard, (lpad(to_hex($3::bigint), 12, '0') || '8' ||
               lpad(to_hex(shard), 3, '0') || '8'
                 || substr(md5(n::text || $2 || '{table}'), 1, 15))::uuid, $2, 'x'
             from (select n, n % 16 as shard from generate_series(1, $1) n) t"
        );
        let inserted = sqlx::query(sqlx::AssertSqlSafe(query))
            .bind(count)
            .bind(topic)
            .bind(due)
            .execute(&cluster.sql)
            .await;
        assert_eq!(inserted.unwrap().rows_affected(), u64::try_from(count).unwrap());
    }
    let looked = async || node.api().metric("punctual_listed_rows_total").await;
    let found = ids(&read_all(node.api(), &format!("/v1/tasks?topic={beside}&"), 100).await);
    assert!(found.len() == 23 && found.is_sorted(), "{found:?}");
    let of_few = looked().await;
    let all = ids(&read_all(node.api(), "/v1/tasks?", 1000).await);
    assert_eq!(all.len(), usize::try_from(HOTSPOT + 523).unwrap());
    assert!(all.is_sorted_by(|one, next| one < next), "in order, and none of them twice");
    let of_all = looked().await - of_few;
    eprintln!("looked at {of_few} rows for a few of {HOTSPOT}, at {of_all} for all");
    assert!(of_few < 3.0 * HOTSPOT as f64 && of_all < 4.0 * HOTSPOT as f64, "{of_few}, {of_all}");
    let counted = cancel_many(node.api(), &json!({ "topic": beside, "dry_run": true })).await;
    assert_eq!(counted, (23, false));
    assert_eq!(cancel_many(node.api(), &json!({ "topic": beside })).await, (23, false));
    // More than one call takes: the next call goes on within the millisecond.
    let (mut body, mut count) = (json!({ "topic": hotspot, "dry_run": true }), 0);
    loop {
        let answer = node.api().post("/v1/tasks/cancel", body.to_string()).await;
        assert_eq!(answer.status, 200, "{}", answer.text);
        let answer = answer.json();
        count += answer["cancelled"].as_i64().unwrap();
        if answer["more"] == false {
            break;
        }
        assert!(answer["searched_to"].is_string(), "{answer}");
        body["cursor"] = answer["cursor"].clone();
    }
    assert_eq!(count, HOTSPOT + 500, "each of them once");
    let foreign = json!({ "topic": beside, "cursor": body["cursor"] });
    assert_eq!(
        node.api().post("/v1/tasks/cancel", foreign.to_string()).await.status,
        400,
        "the cursor of other filters"
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_a_cancel_of_many_says_is_true_while_claims_run() {
    let cluster = Cluster::start("racing").await;
    let topic = cluster.topic("orders").await;
    let node = cluster.node().await;
    let consumer = cluster.consumer(&topic);
    let start = now_ms() + 1500;
    let tasks: Vec<Value> = (0..4000)
        .map(|n| json!({ "topic": topic, "due_at": start + 2 * n, "payload_text": "x" }))
        .collect();
    node.api().submit_all(&tasks).await;
    // Half of the tasks, while they are being claimed.
    crate::support::wait::until(start + 3000).await;
    let mut cancelled = 0;
    eventually("nothing is left to cancel", Duration::from_secs(60), async || {
        let (count, has_more) = cancel_many(node.api(), &json!({ "topic": topic })).await;
        cancelled += count;
        !has_more
    })
    .await;
    cluster.wait_final(4000, Duration::from_secs(30)).await;
    let published = 4000 - usize::try_from(cancelled).unwrap();
    let records = consumer.wait_count(published, Duration::from_secs(30)).await;
    let arrived: HashSet<Uuid> = records.iter().map(|record| record.task_id()).collect();
    assert!(cancelled > 0 && published > 0, "{cancelled} cancelled, {published} published");
    let lines = cluster.execlog().await;
    assert_eq!(lines.iter().filter(|line| line.is_final()).count(), 4000);
    let withdrawn: HashSet<Uuid> =
        lines.iter().filter(|line| line.state == "cancelled").map(|line| line.id).collect();
    assert_eq!((withdrawn.len(), arrived.len()), (usize::try_from(cancelled).unwrap(), published));
    assert!(withdrawn.is_disjoint(&arrived), "what was cancelled is not in Kafka");
}
