//! Topics that operators pause: nothing is published, nothing is lost, and others stay on time.

use std::time::Duration;

use punctual::domain::{IdRange, ShardCount, Timestamp};
use punctual::postgres::PostgresSettings;
use punctual::postgres::topics::held::HeldTasks;
use reqwest::Method;
use serde_json::{Value, json};

use crate::support::api::Task;
use crate::support::node::program;
use crate::support::wait::throughout;
use crate::support::{Api, Cluster, Ledger, NONE, Record, Wishes, eventually, now_ms};

const DEADLINE: Duration = Duration::from_secs(120);

async fn pause(api: &Api, topic: &str) -> Value {
    let path = format!("/v1/topics/{topic}/pause");
    let answer = api.post(&path, json!({ "reason": "poison" }).to_string()).await;
    assert_eq!(answer.status, 200, "{}", answer.text);
    let paused = answer.json();
    assert_eq!(paused["paused"]["reason"], "poison", "{paused}");
    paused
}

async fn resume(api: &Api, topic: &str) {
    let answer = api.post(&format!("/v1/topics/{topic}/resume"), "").await;
    assert_eq!(answer.status, 200, "{}", answer.text);
    assert!(answer.json()["paused"].is_null(), "{}", answer.text);
}

/// Holds all due tasks of paused topics. Returns their number.
async fn hold_all(held: &mut HeldTasks) -> u64 {
    let now = Timestamp::from_millis(now_ms());
    let overdue = IdRange::of_times(now.minus(Duration::from_secs(60)), now.plus(DEADLINE));
    let mut count = 0;
    for shard in ShardCount::DEFAULT.all() {
        count += held.hold(shard, overdue).await.unwrap().task_count;
    }
    count
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_pause_survives_everything_and_its_backlog_holds_up_no_other_topic() {
    let cluster = Cluster::start("paused").await;
    let (held, other) = (cluster.topic("held").await, cluster.topic("other").await);
    let (of_held, of_other) = (cluster.consumer(&held), cluster.consumer(&other));
    let (mut first, mut second) = tokio::join!(cluster.node(), cluster.node());
    let ledger = Ledger::default();
    let paused = pause(first.api(), &held).await;
    assert_eq!((&paused["in_flight"], &paused["revision"]), (&json!(0), &json!(1)), "{paused}");
    // Repeated, it changes nothing.
    assert_eq!(pause(second.api(), &held).await["paused"]["since"], paused["paused"]["since"]);

    // The other node does not know of the pause yet, and would claim some of these by their insert.
    let begin = now_ms();
    let task = |topic: &str, after: i64| {
        let text = format!("{topic} {after}");
        json!({ "topic": topic, "due_at": begin + after, "payload_text": text })
    };
    for topic in [&held, &other] {
        let tasks: Vec<Value> = (0..60).map(|number| task(topic, number * 30)).collect();
        let accepted = second.api().submit_all(&tasks).await;
        let is_held = *topic == held;
        assert!(!is_held || accepted.iter().all(|task| task.state == "scheduled"));
        ledger.accept_all(&accepted, &tasks);
    }
    of_other.wait_count(60, DEADLINE).await;
    eventually("the metric shows it", DEADLINE, async || {
        second.api().metric("punctual_paused_topics").await as i64 == 1
    })
    .await;

    // kill -9 of everything.
    tokio::join!(first.kill(), second.kill());
    let node = cluster.node().await;
    let after: Vec<Value> = (0..20).map(|number| task(&other, 12_000 + number)).collect();
    ledger.accept_all(&node.api().submit_all(&after).await, &after);
    of_other.wait_count(80, DEADLINE).await;
    throughout("the paused topic gets nothing", Duration::from_secs(3), async || {
        of_held.records().is_empty()
    })
    .await;
    let shown = node.api().look(&format!("/v1/topics/{held}")).await.json();
    assert_eq!((&shown["pending"]["count"], &shown["in_flight"]), (&json!(60), &json!(0)));
    let listed = node.api().look("/v1/topics").await.json();
    let paused: Vec<&Value> = listed["topics"]
        .as_array()
        .unwrap()
        .iter()
        .filter(|one| !one["paused"].is_null())
        .collect();
    assert_eq!((paused.len(), &paused[0]["topic"]), (1, &json!(held)), "{listed}");
    eventually("no task of the backlog is left", DEADLINE, async || {
        node.api().cluster().await["backlog"]["count"] == 0
    })
    .await;

    // The backlog goes out beside a steady stream.
    let start = now_ms() + 5_000;
    let steady: Vec<Value> = (0..200)
        .map(|number| {
            let due_at = start + number * 20;
            json!({ "topic": other, "due_at": due_at, "payload_text": format!("steady {due_at}") })
        })
        .collect();
    ledger.accept_all(&node.api().submit_all(&steady).await, &steady);
    resume(node.api(), &held).await;
    of_held.wait_count(60, DEADLINE).await;
    let findings = ledger
        .settle_up(&cluster, || [of_held.records(), of_other.records()].concat(), DEADLINE)
        .await;
    assert_eq!((findings.published_count, &findings.dead), (340, &NONE.to_vec()));
    // A record of the other topic may have been without its settle when the nodes died.
    let of_held: Vec<_> = of_held.records().iter().map(Record::task_id).collect();
    assert!(findings.duplicates.iter().all(|id| !of_held.contains(id)), "{findings:?}");
    let late = cluster
        .execlog()
        .await
        .into_iter()
        .filter(|line| line.topic.as_deref() == Some(other.as_str()) && line.due_at >= start);
    let latest = late.filter_map(|line| line.lateness_ms).max();
    assert!(
        latest.is_some_and(|latest| latest < 10_000),
        "the other topic was late: {latest:?} ms"
    );
    // 60 tasks waited for more than 12 s each.
    let metrics = node.api();
    let (sum, count) = (
        metrics.metric("punctual_lateness_seconds_sum").await,
        metrics.metric("punctual_lateness_seconds_count").await,
    );
    assert!(count > 200.0 && sum < 600.0, "the pause counts as lateness: {sum} s of {count}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_claim_on_insert_asks_the_table_and_not_the_node() {
    let cluster = Cluster::start("paused-insert").await;
    let topic = cluster.topic("orders").await;
    let consumer = cluster.consumer(&topic);
    let node = cluster.node().await;
    node.api().learn(&topic).await;
    // Behind the node's back: it looks once a second.
    sqlx::query("insert into topic_policy (topic, is_paused, paused_at) values ($1, true, now())")
        .bind(&topic)
        .execute(&cluster.sql)
        .await
        .unwrap();
    let now = json!({ "topic": topic, "delay": 0, "payload": 1 });
    let named = json!({ "topic": topic, "delay": 0, "payload": 2, "name": "n" });
    for task in [now, named] {
        let task = node.api().submit(&task).await;
        assert_eq!(task.state, "scheduled", "{:?}", task.id);
    }
    assert_eq!(cluster.count("select count(*) from execlog_batch").await, 0);
    resume(node.api(), &topic).await;
    consumer.wait_count(2, DEADLINE).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn adopted_tasks_of_a_paused_topic_are_deferred_as_perhaps_sent() {
    // A wide window: the victim holds its tasks for seconds.
    let cluster =
        Cluster::with("paused-adopted", Wishes { window: "10s", ..Wishes::default() }).await;
    let (held, other) = (cluster.topic("held").await, cluster.topic("other").await);
    let (of_held, of_other) = (cluster.consumer(&held), cluster.consumer(&other));
    let (survivor, mut victim) = tokio::join!(cluster.node(), cluster.node());
    let tasks: Vec<Value> = (0..20)
        .map(|number| {
            let topic = if number % 2 == 0 { &held } else { &other };
            json!({ "topic": topic, "delay": 9_500, "payload_text": number.to_string() })
        })
        .collect();
    let accepted = victim.api().submit_all(&tasks).await;
    assert!(accepted.iter().all(|task| task.state == "claimed"));
    let paused = pause(survivor.api(), &held).await;
    assert_eq!(paused["in_flight"], 10, "these still go out, unless their node dies: {paused}");
    victim.kill().await;
    of_other.wait_count(10, DEADLINE).await;
    eventually("the tasks of the paused topic wait in their table", DEADLINE, async || {
        cluster.count("select count(*) from task where first_id is not null").await == 10
    })
    .await;
    assert_eq!(cluster.count("select count(*) from task_follow where maybe_sent").await, 10);
    assert_eq!(survivor.api().verdict(accepted[0].id).await, "too_late");
    throughout("they are not published", Duration::from_secs(3), async || {
        of_held.records().is_empty()
    })
    .await;
    resume(survivor.api(), &held).await;
    of_held.wait_count(10, DEADLINE).await;
    cluster.wait_final(20, DEADLINE).await;
}

const HELD: &str = "select count(*) from task_far where punctual_time(id) > '9000-01-01'";

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_long_pause_keeps_no_leaves_and_its_tasks_are_found_as_before() {
    let cluster =
        Cluster::with("paused-long", Wishes { leaf: "5s", horizon: "10s", ..Wishes::default() })
            .await;
    let topic = cluster.topic("orders").await;
    let consumer = cluster.consumer(&topic);
    let node = cluster.node().await;
    let api = node.api();
    pause(api, &topic).await;
    let begin = now_ms();
    // The last ones begin in the far table, and the mover brings them to their leaves.
    let tasks: Vec<Value> = (0..30)
        .map(|number| {
            let due_at = begin + 500 + number * 500;
            let payload = number.to_string();
            match number % 3 {
                0 => json!({ "topic": topic, "due_at": due_at, "payload_text": payload }),
                1 => json!({ "topic": topic, "due_at": due_at, "payload_text": payload,
                    "name": format!("n{number}") }),
                _ => json!({ "topic": topic, "due_at": due_at, "payload_text": payload,
                    "ttr": "1h" }),
            }
        })
        .collect();
    let accepted = api.submit_all(&tasks).await;
    eventually("all of them are held", DEADLINE, async || cluster.count(HELD).await == 30).await;
    assert_eq!(cluster.count("select count(*) from task").await, 0);
    assert_eq!(consumer.records().len(), 0);

    // They are where their callers look for them.
    for task in &accepted[..3] {
        let shown = api.look(&format!("/v1/tasks/{}", task.id)).await.json();
        assert_eq!(shown["state"], "scheduled", "{shown}");
        assert_eq!(shown["due_at"], task.shown["due_at"], "{shown}");
    }
    let named = api.look(&format!("/v1/topics/{topic}/tasks/n1")).await.json();
    assert_eq!(
        (&named["id"], &named["state"]),
        (&json!(accepted[1].id.to_string()), &json!("scheduled"))
    );
    let listed = api.look(&format!("/v1/tasks?topic={topic}")).await.json();
    assert_eq!(listed["tasks"].as_array().map(Vec::len), Some(30), "{listed}");
    let shown = api.look(&format!("/v1/topics/{topic}")).await.json();
    assert_eq!(shown["pending"], json!({ "count": 30, "exact": true }), "{shown}");
    // Ranges of due times meet them, page by page, and behind all other tasks.
    let later = json!({ "topic": topic, "due_at": begin + 86_400_000, "payload_text": "later" });
    let later = api.submit(&later).await.id;
    let (from, to) = (begin + 500, begin + 500 + 6 * 500);
    let range = async |limit: usize, ends: &str| {
        let (mut ids, mut cursor) = (Vec::new(), String::new());
        loop {
            let path = format!("/v1/tasks?topic={topic}&limit={limit}{ends}{cursor}");
            let page = api.look(&path).await.json();
            let tasks = page["tasks"].as_array().unwrap_or_else(|| panic!("{page}"));
            ids.extend(tasks.iter().map(|task| task["id"].as_str().unwrap().to_owned()));
            match page["cursor"].as_str() {
                Some(next) => cursor = format!("&cursor={next}"),
                None => return ids,
            }
        }
    };
    let ids = |tasks: &[Task]| tasks.iter().map(|task| task.id.to_string()).collect::<Vec<_>>();
    for limit in [1, 3, 100] {
        let ends = format!("&due_from={from}&due_to={to}");
        assert_eq!(range(limit, &ends).await, ids(&accepted[..6]));
        let ends = format!("&due_from={}", begin + 500 + 28 * 500);
        let wanted = [vec![later.to_string()], ids(&accepted[28..])].concat();
        assert_eq!(range(limit, &ends).await, wanted);
        assert_eq!(range(limit, "&name_prefix=n1&due_to=1893456000000").await.len(), 5);
    }
    assert_eq!(api.verdict(later).await, "cancelled");
    let first = json!({ "topic": topic, "due_to": begin + 500 + 3 * 500 });
    let cancelled = api.post("/v1/tasks/cancel", first.to_string()).await.json();
    assert_eq!((&cancelled["cancelled"], &cancelled["more"]), (&json!(3), &json!(false)));
    for task in &accepted[..3] {
        assert_eq!(api.task(task.id).await.state, "cancelled");
    }
    // A name keeps its meaning.
    let again = api.post("/v1/tasks", tasks[4].to_string()).await;
    let first = accepted[4].id.to_string();
    assert_eq!((again.status, &again.json()["id"]), (200, &json!(first)), "{}", again.text);

    resume(api, &topic).await;
    let records = consumer.wait_count(27, DEADLINE).await;
    let mut ids: Vec<_> = records.iter().map(Record::task_id).collect();
    ids.sort_unstable();
    let mut wanted: Vec<_> = accepted[3..].iter().map(|task| task.id).collect();
    wanted.sort_unstable();
    assert_eq!(ids, wanted, "each of them once");
    assert_eq!(cluster.count(HELD).await, 0);
    eventually("those without a consumer's answer are final", DEADLINE, async || {
        let done = "select count(*) from execlog where state = 'published'";
        cluster.count(done).await == 18
    })
    .await;
    assert_eq!(cluster.count("select count(*) from task_follow").await, 9, "the tracked ones");
    let finished = api.post(&format!("/v1/tasks/{}/finish", accepted[5].id), "").await;
    assert_eq!(finished.status, 200, "{}", finished.text);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn tasks_take_the_policy_at_their_submit() {
    let cluster = Cluster::start("policies").await;
    let topic = cluster.topic("orders").await;
    let node = cluster.node().await;
    let api = node.api();
    let path = format!("/v1/topics/{topic}/policy");
    let policy = json!({ "ttr": "30s", "retry": { "attempts_max": 3 }, "delay_max": "1h" });
    let put = async |headers: &[(&str, &str)], body: Value| {
        api.send_with(Method::PUT, &path, headers, Some(body)).await
    };
    let set = put(&[("if-none-match", "*")], policy.clone()).await;
    assert_eq!((set.status, set.header("etag")), (200, Some("\"1\"")), "{}", set.text);
    assert_eq!(set.json()["policy"]["ttr"], "30s", "{}", set.text);
    assert_eq!(put(&[], policy.clone()).await.header("etag"), Some("\"1\""), "nothing changed");
    assert_eq!(put(&[("if-none-match", "*")], policy.clone()).await.status, 412);
    assert_eq!(put(&[("if-match", "\"7\"")], json!({})).await.status, 412);

    let task = |more: Value| {
        let mut task = json!({ "topic": topic, "delay": "50m", "payload": 1 });
        task.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        task
    };
    let submit = async |more: Value| {
        let id = api.submit(&task(more)).await.id;
        api.look(&format!("/v1/tasks/{id}")).await.json()
    };
    let tracked = submit(json!({})).await;
    assert_eq!(tracked["ttr"], "30s", "the node that has taken the policy uses it at once");
    assert_eq!(tracked["retry"]["attempts_max"], 3, "{tracked}");
    let own = submit(json!({ "ttr": "5s" })).await;
    assert_eq!((&own["ttr"], &own["retry"]["attempts_max"]), (&json!("5s"), &json!(16)), "{own}");
    let far = api.post("/v1/tasks", task(json!({ "delay": "2h" })).to_string()).await;
    assert_eq!(far.status, 422, "{}", far.text);
    assert!(far.text.contains("too-far-ahead"), "{}", far.text);

    // A pause is apart from the policy, and stored tasks keep what they have.
    pause(api, &topic).await;
    let deleted = api.send_with(Method::DELETE, &path, &[("if-match", "\"2\"")], None).await;
    assert_eq!(deleted.status, 200, "{}", deleted.text);
    assert!(deleted.json()["policy"].is_null() && !deleted.json()["paused"].is_null());
    let id = tracked["id"].as_str().unwrap();
    assert_eq!(api.look(&format!("/v1/tasks/{id}")).await.json()["ttr"], "30s");
    assert!(submit(json!({})).await["ttr"].is_null(), "the policy is gone");
    resume(api, &topic).await;

    // Topics that are not there, and values that are wrong.
    let missing = format!("{}.missing", cluster.name);
    assert_eq!(api.get(&format!("/v1/topics/{missing}")).await.status, 404);
    assert_eq!(api.post(&format!("/v1/topics/{missing}/pause"), "").await.status, 422);
    assert_eq!(put(&[], json!({ "ttr": "1ms" })).await.status, 400);
    assert_eq!(put(&[], json!({ "pending_max": 0 })).await.status, 400);

    // The same by the command line.
    let run = async |arguments: &[&str]| {
        let output =
            program(&["topic"]).args(arguments).args(["--url", api.base()]).output().await.unwrap();
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        (output.status.code(), text, String::from_utf8_lossy(&output.stderr).into_owned())
    };
    let paused = run(&["pause", &topic, "--reason", "the consumer fails"]).await;
    assert_eq!(paused.0, Some(0), "{}", paused.2);
    assert!(paused.1.contains("the consumer fails"), "{}", paused.1);
    let listed = run(&["list"]).await.1;
    assert!(listed.contains(&topic) && listed.contains("paused since"), "{listed}");
    assert_eq!(run(&["resume", &topic]).await.0, Some(0));
    assert_eq!(run(&["show", &missing]).await.0, Some(4));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_held_task_that_cannot_be_released_stops_no_others() {
    let cluster = Cluster::start("paused-stuck").await;
    let topic = cluster.topic("orders").await;
    let consumer = cluster.consumer(&topic);
    let node = cluster.node().await;
    pause(node.api(), &topic).await;
    let tasks = vec![json!({ "topic": topic, "delay": 0, "payload": 1 }); 5];
    node.api().submit_all(&tasks).await;
    let settings = PostgresSettings::new(&cluster.database.url).unwrap();
    assert_eq!(hold_all(&mut HeldTasks::new(&settings)).await, 5);
    let first = "delete from task_follow where row_id = (select min(id::text)::uuid from task_far)";
    sqlx::query(first).execute(&cluster.sql).await.unwrap();
    resume(node.api(), &topic).await;
    consumer.wait_count(4, DEADLINE).await;
    assert_eq!(cluster.count("select count(*) from task_far").await, 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_resumed_task_is_found_behind_many_held_ones_of_a_paused_topic() {
    const OTHERS: i64 = 20_005;
    let cluster = Cluster::start("paused-behind").await;
    let (topic, paused) = (cluster.topic("orders").await, cluster.topic("paused").await);
    let consumer = cluster.consumer(&topic);
    let node = cluster.node().await;
    pause(node.api(), &topic).await;
    pause(node.api(), &paused).await;
    let others = "insert into task_far (shard, id, topic, first_id, attempt)
        select 0, (lpad(to_hex(251600000000000 + n), 12, '0') || repeat('8', 20))::uuid, $1,
            gen_random_uuid(), 1
        from generate_series(1, $2) n";
    sqlx::query(others).bind(&paused).bind(OTHERS).execute(&cluster.sql).await.unwrap();
    node.api().submit_all(&vec![json!({ "topic": topic, "delay": 0, "payload": 1 }); 3]).await;
    let settings = PostgresSettings::new(&cluster.database.url).unwrap();
    let mut held = HeldTasks::new(&settings);
    assert_eq!(hold_all(&mut held).await, 3);
    resume(node.api(), &topic).await;
    consumer.wait_count(3, DEADLINE).await;
    assert_eq!(cluster.count("select count(*) from task_far").await, OTHERS);
    let (mut after, mut statements) = (Some(IdRange::held().from), 0);
    while let Some(last) = after {
        let released = held.release(last).await.unwrap();
        assert_eq!(released.task_count, 0);
        (after, statements) = (released.last, statements + 1);
    }
    assert_eq!(statements, 3, "20,000 at a time, the others, and none");
}

/// A later version may have written it, or the value is damaged.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_policy_that_a_node_cannot_read_keeps_it_from_no_other_topic() {
    let cluster = Cluster::start("unread-policy").await;
    let (unread, paused) = (cluster.topic("unread").await, cluster.topic("paused").await);
    let mut first = cluster.node().await;
    let (path, policy) = (format!("/v1/topics/{unread}/policy"), json!({ "ttr": "30s" }));
    let answer = first.api().send_with(Method::PUT, &path, &[], Some(policy)).await;
    assert_eq!(answer.status, 200, "{}", answer.text);
    first.kill().await;
    let damage = "update topic_policy set tracking = '\\xff' where topic = $1";
    let damaged = sqlx::query(damage).bind(&unread).execute(&cluster.sql).await.unwrap();
    assert_eq!(damaged.rows_affected(), 1);
    let second = cluster.node().await;
    pause(second.api(), &paused).await;
    eventually("the node knows of the pause", DEADLINE, async || {
        second.api().metric("punctual_paused_topics").await as i64 == 1
    })
    .await;
}
