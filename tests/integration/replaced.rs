//! Tasks that a PUT by name has replaced, and changes by name under a precondition.

use std::collections::HashSet;
use std::time::{Duration, Instant};

use punctual::domain::{
    ClusterSettings, Headers, NewTask, Precondition, Record, Shard, ShardCount, TaskId, TaskName,
    TaskSet, TaskState, Timestamp, TopicName,
};
use punctual::postgres::PostgresSettings;
use punctual::postgres::lists::dead_letters::DeadLetters;
use punctual::postgres::tasks::look_up::LookUp;
use punctual::postgres::tasks::replace::withdraw::Withdrawal;
use punctual::postgres::tasks::replace::{Replacement, Replaces};
use reqwest::Method;
use serde_json::{Value, json};
use sqlx::AssertSqlSafe;
use uuid::Uuid;

use crate::support::api::Task;
use crate::support::{Answer, Api, Cluster, eventually, now_ms};

const DEADLINE: Duration = Duration::from_secs(120);

fn path_of(topic: &str, name: &str) -> String {
    format!("/v1/topics/{topic}/tasks/{name}")
}

/// Puts a task under a name; headers as `(name, value)`.
async fn put(api: &Api, path: &str, delay: &str, headers: &[(&str, &str)]) -> Answer {
    api.send_with(Method::PUT, path, headers, Some(json!({ "delay": delay, "payload_text": "x" })))
        .await
}

async fn put_id(api: &Api, path: &str, delay: &str, status: u16) -> Uuid {
    let answer = put(api, path, delay, &[]).await;
    assert_eq!(answer.status, status, "{}", answer.text);
    let task = Task::new(answer.json());
    assert_eq!(answer.header("etag"), Some(tag(task.id).as_str()));
    task.id
}

fn tag(id: Uuid) -> String {
    format!("\"{id}\"")
}

/// Checks the answers for a replaced task, and that a cancel by its id stops nothing.
async fn is_replaced_by(api: &Api, id: Uuid, last: Uuid) {
    let task = api.task(id).await;
    assert_eq!(
        (task.state.as_str(), &task.shown["replaced_by"]),
        ("cancelled", &json!(last.to_string()))
    );
    for _ in 0..2 {
        let answer = api.cancel(id).await;
        assert_eq!(answer.verdict(), "replaced", "{}", answer.text);
        let problem = answer.json();
        assert_eq!(problem["type"], "urn:punctual:problem:replaced");
        assert_eq!(
            (&problem["replaced_by"], &problem["task"]["id"]),
            (&json!(last.to_string()), &json!(id.to_string()))
        );
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_old_id_of_a_task_that_was_moved_says_so_and_names_the_one_that_stands_now() {
    let cluster = Cluster::start("replaced").await;
    let topic = cluster.topic("orders").await;
    let node = cluster.node().await;
    let (api, path) = (node.api(), path_of(&topic, "n"));
    let first = api
        .submit(&json!({ "topic": topic, "name": "n", "delay": "1h", "payload_text": "x" }))
        .await
        .id;
    let mut chain = vec![first];
    // From a leaf to the far table, within the far table, and back.
    for delay in ["8000h", "9000h", "2h", "3h"] {
        let last = put_id(api, &path, delay, 200).await;
        for id in &chain {
            is_replaced_by(api, *id, last).await;
        }
        chain.push(last);
    }
    let last = chain.pop().unwrap();
    let stands = api.task(last).await;
    assert_eq!((stands.state.as_str(), stands.shown.get("replaced_by")), ("scheduled", None));
    let view = "select id, state, replaced_by from execlog";
    let mut lines: Vec<(Uuid, String, Option<Uuid>)> =
        sqlx::query_as(view).fetch_all(&cluster.sql).await.unwrap();
    let place = |id: Uuid| chain.iter().position(|other| *other == id).unwrap();
    lines.sort_by_key(|(id, ..)| place(*id));
    let next = |id: Uuid| chain.get(place(id) + 1).copied().unwrap_or(last);
    let wanted: Vec<_> =
        chain.iter().map(|id| (*id, "cancelled".to_owned(), Some(next(*id)))).collect();
    assert_eq!(lines, wanted, "in the execlog each names its successor");
    // The name means the current task.
    let cancelled = api.send(Method::DELETE, &path, None).await;
    assert_eq!(
        (cancelled.verdict().as_str(), &cancelled.json()["task"]["id"]),
        ("cancelled", &json!(last.to_string()))
    );
    is_replaced_by(api, first, last).await;
    assert_eq!(api.cancel(last).await.verdict(), "cancelled");
    // A cancelled task makes way, and is not replaced.
    let another = put_id(api, &path, "1h", 201).await;
    is_replaced_by(api, first, last).await;
    assert_eq!(api.cancel(last).await.verdict(), "cancelled");
    // The lines go from the oldest on.
    sqlx::query("delete from execlog_cancelled where id = $1")
        .bind(first)
        .execute(&cluster.sql)
        .await
        .unwrap();
    assert_eq!(api.cancel(first).await.verdict(), "not_found");
    assert_eq!(api.get(&format!("/v1/tasks/{first}")).await.status, 404);
    is_replaced_by(api, chain[1], last).await;
    // A node of the release before writes no successor.
    let old = "update execlog_cancelled set replaced_by = null where id = $1";
    sqlx::query(old).bind(chain[1]).execute(&cluster.sql).await.unwrap();
    assert_eq!(api.cancel(chain[1]).await.verdict(), "cancelled");
    assert_eq!(api.cancel(another).await.verdict(), "cancelled");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_was_final_or_on_its_way_is_not_replaced() {
    let cluster = Cluster::start("not-replaced").await;
    let topic = cluster.topic("orders").await;
    let node = cluster.node().await;
    let (api, path) = (node.api(), path_of(&topic, "n"));
    let fired = api
        .submit(&json!({ "topic": topic, "name": "n", "delay": 0, "payload_text": "x" }))
        .await
        .id;
    cluster.wait_final(1, DEADLINE).await;
    let second = put_id(api, &path, "1h", 201).await;
    let answer = api.cancel(fired).await;
    assert_eq!((answer.verdict().as_str(), answer.json().get("replaced_by")), ("too_late", None));
    // Dead, then another task with the name, then redriven: both go on, each under its own id.
    let text = "x".repeat(100_000);
    api.learn(&topic).await;
    cluster.alter_topic(&topic, &[("max.message.bytes", "20000")]).await;
    let dying = json!({ "topic": topic, "name": "d", "delay": "2s", "payload_text": text });
    let dead = api.submit(&dying).await.id;
    eventually("it is a dead letter", DEADLINE, async || api.task(dead).await.state == "dead")
        .await;
    let other = put_id(api, &path_of(&topic, "d"), "1h", 201).await;
    cluster.alter_topic(&topic, &[("max.message.bytes", "1000000")]).await;
    let settings = PostgresSettings::new(&cluster.database.url).unwrap();
    assert!(
        DeadLetters::new(&settings, DEADLINE, 1)
            .redrive(TaskId::from_uuid(dead), None)
            .await
            .unwrap()
            .is_some()
    );
    let answer = api.cancel(dead).await;
    assert_eq!((answer.verdict().as_str(), answer.json().get("replaced_by")), ("too_late", None));
    eventually("it was published after all", DEADLINE, async || {
        api.task(dead).await.state == "published"
    })
    .await;
    for id in [second, other] {
        assert_eq!(api.task(id).await.state, "scheduled");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_long_chain_is_followed_to_its_end_and_an_endless_one_up_to_a_limit() {
    let cluster = Cluster::start("long-chain").await;
    let settings = PostgresSettings::new(&cluster.database.url).unwrap();
    let look_up = LookUp::new(&settings, &ClusterSettings::DEFAULT, 1);
    let id = |number: u64| {
        TaskId::new(Timestamp::from_millis(now_ms() + 3_600_000), Shard::new(0), number)
    };
    let chain: Vec<TaskId> = (0..10_011).map(id).collect();
    let uuids: Vec<Uuid> = chain.iter().map(|id| id.uuid()).collect();
    let insert = "insert into execlog_cancelled (id, row_id, topic, name, attempt, replaced_by)
        select id, id, 'orders', 'n', 1, next from unnest($1::uuid[], $2::uuid[]) as c (id, next)";
    let (ids, next) = (&uuids[..10_010], &uuids[1..]);
    sqlx::query(insert).bind(ids).bind(next).execute(&cluster.sql).await.unwrap();
    for (from, wanted) in [(10_009, 10_010), (9000, 10_010), (9, 10_010), (10, 10_010), (0, 10_001)]
    {
        let began = Instant::now();
        let view = look_up.task(chain[from]).await.unwrap().unwrap();
        eprintln!("{} replacements in {:.1?}", 10_010 - from, began.elapsed());
        assert_eq!(
            (view.state, view.replaced_by),
            (TaskState::Cancelled, Some(chain[wanted])),
            "from {from}"
        );
    }
}

/// Returns the answers by status, in ascending order.
async fn statuses(answers: impl IntoIterator<Item = impl Future<Output = Answer>>) -> Vec<u16> {
    let answers = futures_util::future::join_all(answers).await;
    let mut statuses: Vec<u16> = answers.iter().map(|answer| answer.status).collect();
    statuses.sort_unstable();
    statuses
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn of_many_changes_that_mean_the_same_task_one_takes_effect() {
    const CALLERS: usize = 8;
    let cluster = Cluster::start("preconditions").await;
    let topic = cluster.topic("orders").await;
    let (one, other) = tokio::join!(cluster.node(), cluster.node());
    let apis = [one.api(), other.api()];
    tokio::join!(apis[0].learn(&topic), apis[1].learn(&topic));
    let all_but_one = |status: u16| [vec![status], vec![412; CALLERS - 1]].concat();
    for round in 0..20 {
        let path = path_of(&topic, &format!("n{round}"));
        let delay = if round % 2 == 0 { "1h" } else { "8000h" };
        let only_new = [("if-none-match", "*")];
        let created = (0..CALLERS).map(|caller| put(apis[caller % 2], &path, delay, &only_new));
        assert_eq!(statuses(created).await, all_but_one(201));
        let first = Task::new(apis[0].get(&path).await.json()).id;
        let meant = tag(first);
        let meant = [("if-match", meant.as_str())];
        let replaced = (0..CALLERS).map(|caller| put(apis[caller % 2], &path, delay, &meant));
        assert_eq!(statuses(replaced).await, all_but_one(200));
        let second = Task::new(apis[0].get(&path).await.json()).id;
        is_replaced_by(apis[1], first, second).await;
        // Both requests withdraw the task, and one succeeds.
        let meant = tag(second);
        let meant = [("if-match", meant.as_str())];
        let cancels = apis.map(|api| api.send_with(Method::DELETE, &path, &meant, None));
        let (replaced, cancelled) = tokio::join!(
            put(apis[round % 2], &path, delay, &meant),
            futures_util::future::join_all(cancels)
        );
        let stands = Task::new(apis[0].get(&path).await.json());
        let cancelled: HashSet<u16> = cancelled.iter().map(|answer| answer.status).collect();
        match replaced.status {
            // After a cancel, the name still stands for the final task, which makes way.
            201 => assert!(cancelled.contains(&200), "{cancelled:?}"),
            200 => {
                assert_eq!(cancelled, HashSet::from([412]));
                is_replaced_by(apis[0], second, stands.id).await;
            }
            other => panic!("{other}: {}", replaced.text),
        }
        assert_eq!(stands.state, "scheduled");
        let problem = put(apis[0], &path, delay, &[("if-match", &tag(first))]).await;
        assert_eq!(
            (problem.status, &problem.json()["current_id"]),
            (412, &json!(stands.id.to_string()))
        );
    }
    let live =
        cluster.count("select (select count(*) from task) + (select count(*) from task_far)").await;
    assert_eq!(live, 20, "one of each name");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_cancel_under_a_precondition_has_the_verdicts_of_any_other() {
    let cluster = Cluster::with(
        "conditional-cancels",
        crate::support::Wishes { window: "10s", ..Default::default() },
    )
    .await;
    let topic = cluster.topic("orders").await;
    let node = cluster.node().await;
    let api = node.api();
    let cancel = async |name: &str, tag: &str| {
        let answer =
            api.send_with(Method::DELETE, &path_of(&topic, name), &[("if-match", tag)], None).await;
        (answer.status, answer.json())
    };
    assert_eq!(cancel("unknown", "*").await.0, 404);
    let submit = async |name: &str, delay: &str| {
        api.submit(&json!({ "topic": topic, "name": name, "delay": delay, "payload_text": "x" }))
            .await
            .id
    };
    for (name, delay) in [("near", "1h"), ("far", "8000h")] {
        let id = submit(name, delay).await;
        for _ in 0..2 {
            let (status, answer) = cancel(name, &tag(id)).await;
            assert_eq!(
                (status, &answer["verdict"], &answer["task"]["id"]),
                (200, &json!("cancelled"), &json!(id.to_string())),
                "{name}"
            );
        }
        assert_eq!(cancel(name, &tag(Uuid::from_u128(7))).await.0, 412);
    }
    let claimed = submit("claimed", "8s").await;
    assert_eq!(cancel("claimed", "\"\"").await.0, 412);
    let (status, answer) = cancel("claimed", &tag(claimed)).await;
    assert_eq!(
        (status, &answer["verdict"], &answer["task"]["state"]),
        (409, &json!("too_late"), &json!("claimed"))
    );
    let known = "select outcome::int4 from task_name where name = 'near'";
    let outcome: Option<i32> = sqlx::query_scalar(known).fetch_one(&cluster.sql).await.unwrap();
    assert_eq!(outcome, Some(4), "the entry knows that its task was cancelled");
    assert_eq!(
        cluster.count("select count(*) from execlog_cancelled").await,
        2,
        "each has its line"
    );
}

fn named_task(name: &str) -> NewTask {
    let record = Record {
        topic: TopicName::new("orders").unwrap(),
        key: None,
        payload: None,
        headers: Headers::default(),
    };
    let due_at = Timestamp::from_millis(now_ms() + 3_600_000);
    NewTask::new(
        record,
        Some(TaskName::new(name).unwrap()),
        due_at,
        ShardCount::DEFAULT,
        (0, rand::random()),
    )
}

/// An expired name stands for its task while the task is pending, and for no task afterwards.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_precondition_on_an_expired_name_is_about_its_task_only_while_that_is_pending() {
    let cluster = Cluster::start("expired-names").await;
    // The node creates partitions, and the next round is not soon.
    let _node = cluster.node().await;
    let settings = PostgresSettings::new(&cluster.database.url).unwrap();
    let replaces = Replaces::new(&settings, DEADLINE, 1);
    let sql = async |text: &str| {
        sqlx::query(AssertSqlSafe(text.to_owned())).execute(&cluster.sql).await.unwrap()
    };
    let (any, none) = (
        Precondition::default(),
        Precondition { must_not_be: Some(TaskSet::Any), ..Precondition::default() },
    );
    let is = |id: TaskId| Precondition {
        must_be: Some(TaskSet::These(vec![id])),
        ..Precondition::default()
    };
    let (topic, name) = (TopicName::new("orders").unwrap(), TaskName::new("n").unwrap());
    let expire = "update task_name set expires_at = clock_timestamp() - interval '1 second'";
    for is_far in [false, true] {
        let first = named_task("n");
        sql("delete from task_name").await;
        assert_eq!(
            replaces.replace(&first, is_far, None, &none).await.unwrap(),
            Replacement::Created
        );
        sql(expire).await;
        let next = named_task("n");
        assert_eq!(
            replaces.replace(&next, is_far, None, &none).await.unwrap(),
            Replacement::Unmet(Some(first.id)),
            "pending"
        );
        assert_eq!(
            replaces.replace(&next, is_far, None, &is(next.id)).await.unwrap(),
            Replacement::Unmet(Some(first.id))
        );
        assert!(matches!(
            replaces.withdraw(&topic, &name, &is(next.id), None).await.unwrap(),
            Withdrawal::Unmet(_)
        ));
        let withdrawn = replaces.withdraw(&topic, &name, &is(first.id), None).await.unwrap();
        assert!(
            matches!(&withdrawn, Withdrawal::Cancelled(view) if view.id == first.id),
            "{withdrawn:?}"
        );
        sql(expire).await;
        assert_eq!(
            replaces.withdraw(&topic, &name, &is(first.id), None).await.unwrap(),
            Withdrawal::NotFound,
            "final"
        );
        assert_eq!(
            replaces.replace(&next, is_far, None, &is(first.id)).await.unwrap(),
            Replacement::Unmet(None)
        );
        assert_eq!(
            replaces.replace(&next, is_far, None, &none).await.unwrap(),
            Replacement::Created
        );
        let last = named_task("n");
        assert_eq!(
            replaces.replace(&last, is_far, None, &any).await.unwrap(),
            Replacement::Replaced
        );
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_key_of_idempotency_makes_one_task_on_two_nodes() {
    let cluster = Cluster::start("keys").await;
    let topic = cluster.topic("orders").await;
    let (one, other) = tokio::join!(cluster.node(), cluster.node());
    let task: Value = json!({ "topic": topic, "delay": "1h", "payload_text": "x" });
    tokio::join!(one.api().learn(&topic), other.api().learn(&topic));
    let submits = (0..8).map(|number| {
        let api = if number % 2 == 0 { one.api() } else { other.api() };
        api.send_with(
            Method::POST,
            "/v1/tasks",
            &[("idempotency-key", "\"order 17\"")],
            Some(task.clone()),
        )
    });
    assert_eq!(statuses(submits).await, [vec![200; 7], vec![201]].concat());
    let found = one.api().get(&path_of(&topic, "order%2017")).await;
    assert_eq!((found.status, &found.json()["name"]), (200, &json!("order 17")));
    assert_eq!(cluster.count("select count(*) from task").await, 1);
}
