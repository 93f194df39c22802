//! Selections of tasks by ids, names, a prefix of names, and keys: lists, cancels and moves meet
//! the selected tasks and no others, in both tables.

use std::collections::BTreeSet;
use std::time::Duration;

use reqwest::Method;
use serde_json::{Value, json};
use uuid::Uuid;

use crate::names::ByName as _;
use crate::support::{Answer, Api, Cluster, Wishes, eventually, now_ms};

const DEADLINE: Duration = Duration::from_secs(120);
const HOUR_MS: i64 = 3_600_000;

/// Returns all ids of a list, page by page.
async fn listed(api: &Api, query: &str, limit: usize) -> Vec<Uuid> {
    let (mut ids, mut cursor) = (Vec::new(), String::new());
    loop {
        let answer = api.look(&format!("/v1/tasks?{query}&limit={limit}{cursor}")).await;
        assert_eq!(answer.status, 200, "{}", answer.text);
        let page = answer.json();
        let tasks = page["tasks"].as_array().unwrap();
        ids.extend(tasks.iter().map(|task| task["id"].as_str().unwrap().parse::<Uuid>().unwrap()));
        match page["cursor"].as_str() {
            Some(next) => cursor = format!("&cursor={next}"),
            None => return ids,
        }
    }
}

/// Calls a change of many tasks until it is done. Returns the number of changed tasks.
async fn change_many(api: &Api, path: &str, done: &str, mut body: Value) -> i64 {
    let mut count = 0;
    loop {
        let answer = api.post(path, body.to_string()).await;
        assert_eq!(answer.status, 200, "{}", answer.text);
        let answer = answer.json();
        count += answer[done].as_i64().unwrap();
        if answer["more"] == false {
            return count;
        }
        body["cursor"] = answer["cursor"].clone();
    }
}

async fn cancel_many(api: &Api, body: Value) -> i64 {
    change_many(api, "/v1/tasks/cancel", "cancelled", body).await
}

async fn move_many(api: &Api, body: Value) -> i64 {
    change_many(api, "/v1/tasks/move", "moved", body).await
}

fn set(ids: &[Uuid]) -> BTreeSet<Uuid> {
    ids.iter().copied().collect()
}

fn texts(ids: &[Uuid]) -> Vec<String> {
    ids.iter().map(Uuid::to_string).collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_choice_lists_and_cancels_its_own_tasks_and_no_others() {
    let cluster = Cluster::start("selections").await;
    let [topic, other] = [cluster.topic("orders").await, cluster.topic("other").await];
    let node = cluster.node().await;
    let api = node.api();
    let task = |topic: &str, name: &str, key: Option<&str>, delay: &str| {
        let mut task =
            json!({ "topic": topic, "name": name, "delay": delay, "payload_text": name });
        key.into_iter().for_each(|key| task["key"] = key.into());
        task
    };
    let tasks = api
        .submit_all(&[
            task(&topic, "a/1", Some("k"), "1h"),
            task(&topic, "a/2", Some("k"), "400d"),
            task(&topic, "a", None, "2h"),
            task(&topic, "a0", Some("kk"), "3h"),
            task(&topic, "b", None, "9000h"),
            task(&other, "a/1", Some("k"), "1h"),
        ])
        .await;
    let [first, far, short, next, last, foreign] = [0, 1, 2, 3, 4, 5].map(|at| tasks[at].id);
    // A moved task is another row than its id says, and in the other table.
    let moved = api.put(&topic, "b?when=earlier", json!({ "delay": "8h", "payload_text": "b" }));
    assert_eq!(moved.await.status, 200);
    let patched = json!({ "delay": "400d" }).to_string().into_bytes();
    let patched = ("application/json", patched);
    let patched = api.send(Method::PATCH, &format!("/v1/tasks/{short}"), Some(patched)).await;
    assert_eq!(patched.status, 200, "{}", patched.text);
    let ids = [first, far, short, next, last, foreign].map(|id| format!("ids={id}")).join("&");
    for limit in [1, 2, 100] {
        for (query, wanted) in [
            (ids.as_str(), &[first, far, short, next][..]),
            ("names=a/1&names=a&names=unknown", &[first, short][..]),
            ("name_prefix=a/", &[first, far][..]),
            ("name_prefix=a", &[first, far, short, next][..]),
            ("name_prefix=c", &[][..]),
            ("key=k", &[first, far][..]),
            ("key_base64=a2s%3D", &[next][..]),
            ("key=a/1", &[][..]),
        ] {
            let found = listed(api, &format!("topic={topic}&{query}"), limit).await;
            assert_eq!(found.len(), wanted.len(), "{query}: none twice");
            assert_eq!(set(&found), set(wanted), "{query}");
        }
        let due_to = now_ms() + 12 * HOUR_MS;
        let near = format!("topic={topic}&name_prefix=a&due_to={due_to}");
        assert_eq!(
            listed(api, &near, limit).await,
            [first, next],
            "in the order of their due times"
        );
    }
    for wrong in ["ids=a", "key=a&names=b", "name_prefix="] {
        assert_eq!(api.look(&format!("/v1/tasks?topic={topic}&{wrong}")).await.status, 400);
    }
    assert_eq!(api.look("/v1/tasks?key=k").await.status, 400, "a choice is of one topic");
    for (body, count, state) in [
        (json!({ "key": "k", "dry_run": true }), 2, "scheduled"),
        (json!({ "key": "k" }), 2, "cancelled"),
        (json!({ "key": "k" }), 0, "cancelled"),
    ] {
        let mut body = body;
        body["topic"] = topic.clone().into();
        assert_eq!(cancel_many(api, body).await, count);
        assert_eq!(api.task(far).await.state, state);
    }
    assert_eq!(api.task(foreign).await.state, "scheduled");
    let rest = json!({ "topic": topic, "ids": texts(&[short, next, foreign, short]) });
    assert_eq!(cancel_many(api, rest).await, 2);
    let all = json!({ "topic": topic, "name_prefix": "b" });
    assert_eq!(cancel_many(api, all).await, 1);
    let rest = json!({ "topic": other, "names": ["a/1", "a"] });
    assert_eq!(cancel_many(api, rest).await, 1);
    let left = "select (select count(*) from task) + (select count(*) from task_far)";
    assert_eq!(cluster.count(left).await, 0);
    let lines = "select count(distinct id) from execlog_cancelled where replaced_by is null";
    assert_eq!(cluster.count(lines).await, 6, "each cancelled task has its line");
}

/// Neither a prefix nor a key looks at other names and shards, however many there are.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_choice_costs_what_it_selects_and_a_prefix_of_too_many_names_is_refused() {
    let cluster = Cluster::start("many-names").await;
    let topic = cluster.topic("orders").await;
    let node = cluster.node().await;
    let api = node.api();
    let task = |name: String| {
        json!({
            "topic": topic, "name": name, "delay": "1h", "payload_text": "x", "key": name
        })
    };
    let names: Vec<Value> = (0..5000).map(|number| task(format!("n{number}"))).collect();
    let tasks = api.submit_all(&names).await;
    let names = "insert into task_name (topic, name, id, row_id, expires_at)
        select topic, 'full/' || i, id, row_id, expires_at
        from (select * from task_name limit 1) n, generate_series(1, 10001) i";
    sqlx::query(names).execute(&cluster.sql).await.unwrap();
    let looked = "punctual_listed_rows_total";
    let before = api.metric(looked).await;
    let found = listed(api, &format!("topic={topic}&key=n17"), 100).await;
    assert_eq!(found, [tasks[17].id]);
    let found = listed(api, &format!("topic={topic}&name_prefix=n170"), 100).await;
    assert_eq!(found.len(), 11);
    // A shard has a 64th of the tasks.
    let looked = api.metric(looked).await - before;
    assert!(looked < 500.0, "{looked} rows were read");
    for path in ["/v1/tasks/cancel", "/v1/tasks/move"] {
        let mut body = json!({ "topic": topic, "name_prefix": "full/" });
        if path.ends_with("move") {
            body["due_to"] = now_ms().into();
            body["to"] = (now_ms() + HOUR_MS).into();
        }
        let refused = api.post(path, body.to_string()).await;
        assert_eq!(
            (refused.status, &refused.json()["field"]),
            (400, &json!("name_prefix")),
            "{}",
            refused.text
        );
    }
    sqlx::query("delete from task_name where name = 'full/1'").execute(&cluster.sql).await.unwrap();
    let one = json!({ "topic": topic, "name_prefix": "full/" });
    assert_eq!(cancel_many(api, one).await, 1, "all of these names are of one task");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn many_tasks_are_moved_by_a_span_or_to_a_time_and_none_of_them_twice() {
    let cluster = Cluster::start("move-many").await;
    let topic = cluster.topic("orders").await;
    let node = cluster.node().await;
    let api = node.api();
    // In whole milliseconds.
    let start = now_ms() + 24 * HOUR_MS;
    let task = |number: i64| {
        json!({
            "topic": topic, "name": format!("n{number}"), "due_at": start + number * 1000,
            "payload_text": "x", "key": (number % 3).to_string(),
        })
    };
    let tasks = api.submit_all(&(0..600).map(task).collect::<Vec<_>>()).await;
    let due_of = async |number: usize| {
        let shown = api.task(tasks[number].id).await.shown;
        let due_at = shown["due_at"].as_str().unwrap();
        punctual::domain::Timestamp::of_rfc3339(due_at).unwrap().as_millis()
    };
    let range = |from: i64, to: i64| {
        let (from, to) = (start + from * 1000, start + to * 1000);
        json!({ "topic": topic, "due_from": from, "due_to": to })
    };
    let with = |mut body: Value, member: &str, value: Value| {
        body[member] = value;
        body
    };
    let later = with(range(0, 600), "by", "600s".into());
    assert_eq!(move_many(api, with(later.clone(), "dry_run", true.into())).await, 600);
    assert_eq!(due_of(0).await, start, "a dry run moves nothing");
    assert_eq!(move_many(api, later.clone()).await, 600);
    assert_eq!(move_many(api, later).await, 0, "a repetition meets none of them");
    assert_eq!([due_of(0).await, due_of(599).await], [start + 600_000, start + 1_199_000]);
    // Into the far table, and back.
    let away = with(range(600, 1200), "to", (start + 400 * 24 * HOUR_MS).into());
    assert_eq!(move_many(api, with(away.clone(), "key", "1".into())).await, 200);
    assert_eq!(move_many(api, with(away, "names", json!(["n0", "n1", "n3", "?"]))).await, 2);
    assert_eq!([due_of(1).await, due_of(2).await], [start + 400 * 24 * HOUR_MS, start + 602_000]);
    let ids: Vec<Uuid> = tasks.iter().map(|task| task.id).collect();
    let back = json!({ "topic": topic, "ids": texts(&ids), "to": start });
    assert_eq!(move_many(api, back.clone()).await, 600);
    let dry = with(back.clone(), "dry_run", true.into());
    assert_eq!(move_many(api, dry).await, 0, "a dry run counts what would be moved");
    assert_eq!(move_many(api, back).await, 0, "they are due then already");
    assert_eq!([due_of(0).await, due_of(599).await], [start, start]);
    let earlier = with(range(0, 1), "by", "-1h".into());
    assert_eq!(move_many(api, earlier).await, 600);
    assert_eq!(due_of(599).await, start - HOUR_MS);
    // Chosen tasks all move to one time, and a repetition finds them there.
    let all = json!({ "topic": topic, "name_prefix": "n", "to": start });
    assert_eq!(move_many(api, all.clone()).await, 600);
    assert_eq!(move_many(api, all).await, 0, "they are due then already");
    let third = json!({ "topic": topic, "key": "1", "to": start + 500 });
    assert_eq!(move_many(api, third).await, 200);
    assert_eq!([due_of(0).await, due_of(1).await], [start, start + 500]);
    assert_eq!(
        cluster.count("select count(*) from task where name is not null").await
            + cluster.count("select count(*) from task_far where name is not null").await,
        600
    );
    for (body, field) in [
        (with(range(0, 600), "by", "599s".into()), "by"),
        (with(range(0, 600), "to", (start + 1000).into()), "to"),
        (json!({ "topic": topic, "due_from": start, "by": "1h" }), "due_to"),
        (json!({ "topic": topic, "name_prefix": "n", "to": 1 }), "to"),
        (json!({ "topic": topic, "to": start + 1000 }), "to"),
        (with(range(0, 600), "by", "-300h".into()), "by"),
        (range(0, 600), "by"),
    ] {
        let refused = api.post("/v1/tasks/move", body.to_string()).await;
        assert_eq!((refused.status, &refused.json()["field"]), (400, &json!(field)), "{body}");
    }
    let consumer = cluster.consumer(&topic);
    let from = start - 2 * HOUR_MS;
    let now = json!({
        "topic": topic,
        "name_prefix": "n",
        "due_from": from,
        "to": 200_000_000_000_i64,
    });
    assert_eq!(move_many(api, now).await, 600);
    let published: BTreeSet<Uuid> =
        consumer.wait_count(600, DEADLINE).await.iter().map(|record| record.task_id()).collect();
    assert_eq!(published, set(&ids));
    cluster.wait_final(600, DEADLINE).await;
}

/// A move of many tasks takes several calls, and time passes between them.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_move_to_earlier_times_goes_on_when_the_first_of_them_have_passed() {
    let cluster = Cluster::start("move-on").await;
    let topic = cluster.topic("orders").await;
    let node = cluster.node().await;
    let api = node.api();
    let start = now_ms() + HOUR_MS;
    let task = |due_at: i64| json!({ "topic": topic, "due_at": due_at, "payload_text": "x" });
    let tasks = api.submit_all(&[task(start), task(start + 1)]).await;
    let mut body =
        json!({ "topic": topic, "due_from": start, "due_to": start + 1000, "by": "-61m" });
    let refused = api.post("/v1/tasks/move", body.to_string()).await;
    assert_eq!((refused.status, &refused.json()["field"]), (400, &json!("by")), "a first call");
    // As if an earlier call had moved the first task in time.
    let list = format!("/v1/tasks?topic={topic}&due_from={start}&due_to={}&limit=1", start + 1000);
    body["cursor"] = api.look(&list).await.json()["cursor"].clone();
    assert!(body["cursor"].is_string(), "{body}");
    assert_eq!(move_many(api, body).await, 1);
    eventually("it is published now", DEADLINE, async || {
        api.task(tasks[1].id).await.state == "published"
    })
    .await;
    assert_eq!(api.task(tasks[0].id).await.state, "scheduled");
}

/// The limit on delays of a topic's policy holds for moves as for submits, however the task is
/// named.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_move_keeps_to_the_longest_delay_of_its_topic() {
    let cluster = Cluster::start("move-limits").await;
    let [topic, other] = [cluster.topic("orders").await, cluster.topic("other").await];
    let node = cluster.node().await;
    let api = node.api();
    let task =
        |topic: &str| json!({ "topic": topic, "name": "n", "delay": "1h", "payload_text": "x" });
    let tasks = api.submit_all(&[task(&topic), task(&other)]).await;
    let policy = ("application/json", json!({ "delay_max": "2h" }).to_string().into_bytes());
    let policy = api.send(Method::PUT, &format!("/v1/topics/{topic}/policy"), Some(policy)).await;
    assert_eq!(policy.status, 200, "{}", policy.text);
    let is_refused = |answer: &Answer| {
        answer.status == 422 && answer.json()["type"] == "urn:punctual:problem:too-far-ahead"
    };
    let by_id = async |id: Uuid, delay: &str| {
        let body = ("application/json", json!({ "delay": delay }).to_string().into_bytes());
        api.send(Method::PATCH, &format!("/v1/tasks/{id}"), Some(body)).await
    };
    eventually("the node has read the policy", DEADLINE, async || {
        is_refused(&by_id(tasks[0].id, "3h").await)
    })
    .await;
    assert_eq!(by_id(tasks[1].id, "3h").await.status, 200, "of another topic");
    assert_eq!(by_id(tasks[0].id, "90m").await.status, 200);
    let body = json!({ "delay": "3h" });
    assert!(is_refused(&api.by_name(Method::PATCH, &topic, "n", Some(body)).await));
    let many = json!({ "topic": topic, "names": ["n"], "to": now_ms() + 3 * HOUR_MS });
    let many = api.post("/v1/tasks/move", many.to_string()).await;
    assert!(is_refused(&many) && many.json()["field"] == "to", "{}", many.text);
    let many = json!({ "topic": topic, "names": ["n"], "to": now_ms() + HOUR_MS });
    assert_eq!(move_many(api, many).await, 1);
}

/// Each state of the task of a name, with each condition and each order of due times.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_put_with_a_condition_has_the_verdict_of_the_state_and_of_the_due_times() {
    let cluster = Cluster::with("when", Wishes { window: "10s", ..Wishes::default() }).await;
    let topic = cluster.topic("orders").await;
    let node = cluster.node().await;
    let api = node.api();
    let start = now_ms() + 24 * HOUR_MS;
    let submit = async |name: &str, due: (&str, Value), ttr: Option<&str>| {
        let mut task = json!({ "topic": topic, "name": name, "payload_text": name });
        task[due.0] = due.1;
        ttr.into_iter().for_each(|ttr| task["ttr"] = ttr.into());
        api.submit(&task).await.id
    };
    let conditions = ["absent", "earlier", "later"];
    let put = async |name: &str, when: &str, due_at: i64| {
        let body = json!({ "due_at": due_at, "payload_text": "new" });
        api.put(&topic, &format!("{name}?when={when}"), body).await
    };
    // Tasks that can still be replaced: in a leaf, in the far table, and moved.
    let wanted = |when: &str, offset: i64| match (when, offset) {
        ("earlier", -1) | ("later", 1) => 200,
        _ => 412,
    };
    for when in conditions {
        for offset in [-1, 0, 1] {
            for (kind, due_at) in [("near", start), ("far", start + 400 * 24 * HOUR_MS)] {
                for is_moved in [false, true] {
                    let name = format!("{kind}-{when}-{offset}-{is_moved}");
                    let first = if is_moved { due_at + HOUR_MS } else { due_at };
                    let id = submit(&name, ("due_at", first.into()), None).await;
                    if is_moved {
                        let body = json!({ "due_at": due_at });
                        let moved = api.by_name(Method::PATCH, &topic, &name, Some(body)).await;
                        assert_eq!(moved.status, 200);
                    }
                    let answer = put(&name, when, due_at + offset).await;
                    assert_eq!(answer.status, wanted(when, offset), "{name}: {}", answer.text);
                    let current = api.by_name(Method::GET, &topic, &name, None).await.json();
                    let is_kept = current["id"] == id.to_string();
                    assert_eq!(is_kept, answer.status == 412, "{name}");
                    if is_kept {
                        assert_eq!(answer.json()["current_id"], id.to_string());
                    }
                }
            }
        }
    }
    for when in conditions {
        // All others have the verdict of a PUT without a condition.
        let name = |state: &str| format!("{state}-{when}");
        assert_eq!(put(&name("unknown"), when, start).await.status, 201);
        let now = || ("delay", json!("0s"));
        let published = submit(&name("published"), now(), None).await;
        let awaiting = submit(&name("awaiting"), now(), Some("1h")).await;
        let cancelled = submit(&name("cancelled"), ("due_at", start.into()), None).await;
        assert_eq!(api.cancel(cancelled).await.verdict(), "cancelled");
        for (id, state) in [(published, "published"), (awaiting, "awaiting")] {
            eventually("the record is in the topic", DEADLINE, async || {
                api.task(id).await.shown["state"] == state
            })
            .await;
        }
        let claimed = submit(&name("claimed"), ("delay", json!("9s")), None).await;
        for (state, status) in
            [("claimed", 409), ("published", 201), ("awaiting", 409), ("cancelled", 201)]
        {
            let answer = put(&name(state), when, start).await;
            assert_eq!(answer.status, status, "{}: {}", name(state), answer.text);
            if status == 409 {
                assert_eq!(answer.verdict(), "too_late");
            }
        }
        assert_eq!(api.task(claimed).await.state, "claimed");
    }
    // A debounce: each PUT puts the task off, and not beyond the limit.
    let limit = now_ms() + 2 * HOUR_MS;
    let debounce = async |delay: &str| {
        let body = json!({ "delay": delay, "payload_text": "x" });
        let answer = api.put(&topic, &format!("cart?when=later&not_after={limit}"), body).await;
        let due_at = answer.json()["due_at"].as_str().map(str::to_owned);
        let millis =
            |text: String| punctual::domain::Timestamp::of_rfc3339(&text).unwrap().as_millis();
        (answer.status, due_at.map(millis))
    };
    let (status, first) = debounce("1h").await;
    assert_eq!(status, 201);
    let (status, second) = debounce("90m").await;
    assert!(status == 200 && second > first, "{first:?} {second:?}");
    assert_eq!(debounce("3h").await, (200, Some(limit)));
    assert_eq!(debounce("4h").await, (412, None), "it is due at the limit already");
}

/// Whatever the order of concurrent PUTs: the earliest or the latest one stays, or the first.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn of_concurrent_puts_with_a_condition_the_right_one_stays() {
    let cluster = Cluster::start("when-race").await;
    let topic = cluster.topic("orders").await;
    let (one, other) = tokio::join!(cluster.node(), cluster.node());
    tokio::join!(one.api().learn(&topic), other.api().learn(&topic));
    let start = now_ms() + 24 * HOUR_MS;
    for round in 0..10 {
        for (when, wanted) in [("earlier", start), ("later", start + 15_000), ("absent", 0)] {
            let name = format!("{when}-{round}");
            let mut puts = tokio::task::JoinSet::new();
            for number in 0..16_i64 {
                let api = if number % 2 == 0 { one.api().clone() } else { other.api().clone() };
                let (topic, name) = (topic.clone(), format!("{name}?when={when}"));
                // In an order of their own in each round.
                let due_at = start + (number * 7 + round) % 16 * 1000;
                let body = json!({ "due_at": due_at, "payload_text": "x" });
                puts.spawn(async move { (due_at, api.put(&topic, &name, body).await.status) });
            }
            let puts = puts.join_all().await;
            let created: Vec<i64> = puts
                .iter()
                .filter(|(_, status)| *status == 201)
                .map(|(due_at, _)| *due_at)
                .collect();
            assert_eq!(created.len(), 1, "{name}: {puts:?}");
            let shown = one.api().by_name(Method::GET, &topic, &name, None).await.json();
            let due_at = shown["due_at"].as_str().unwrap();
            let due_at = punctual::domain::Timestamp::of_rfc3339(due_at).unwrap().as_millis();
            let wanted = if when == "absent" { created[0] } else { wanted };
            assert_eq!(due_at, wanted, "{name}: {puts:?}");
            let allowed = if when == "absent" { [201, 412] } else { [200, 412] };
            assert!(puts.iter().all(|(_, status)| *status == 201 || allowed.contains(status)));
        }
    }
    assert_eq!(
        cluster.count("select (select count(*) from task) + (select count(*) from task_far)").await,
        30,
        "one task of each name"
    );
}
