//! Changes of schedules with runs that are far away, many, moved, held, or of older rules.

use std::time::Duration;

use punctual::domain::{IdRange, ScheduleName, ShardCount, Timestamp};
use punctual::postgres::PostgresSettings;
use punctual::postgres::topics::held::HeldTasks;
use reqwest::Method;
use serde_json::json;

use super::{DEADLINE, header, one_pending, pending, put, run_at};
use crate::support::{Api, Cluster, Record, eventually, eventually_some, now_ms};

const RUNS: &str = "select count(*) from schedule_run";

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_changed_timing_begins_now_although_a_far_run_was_cancelled() {
    let cluster = Cluster::start("schedule-far-run").await;
    let topic = cluster.topic("orders").await;
    let node = cluster.node().await;
    let (api, path) = (node.api(), format!("/v1/schedules/{topic}/report"));
    put(api, &path, &json!({ "cron": "0 0 1 1 *", "time_zone": "UTC", "payload": 1 })).await;
    let run = one_pending(&cluster).await;
    assert_eq!(api.cancel(run.1.parse().unwrap()).await.status, 200);
    let hourly = json!({ "cron": "0 * * * *", "time_zone": "UTC", "payload": 1 });
    let changed = put(api, &path, &hourly).await;
    let next = changed["next_run_at"].as_str().unwrap().parse::<jiff::Timestamp>().unwrap();
    let after = next.as_millisecond() - now_ms();
    assert!((0..=3_600_000).contains(&after), "{changed}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_schedule_with_many_runs_is_paused_and_deleted() {
    let cluster = Cluster::start("schedule-many-runs").await;
    let topic = cluster.topic("orders").await;
    let node = cluster.node().await;
    let (api, path) = (node.api(), format!("/v1/schedules/{topic}/report"));
    put(api, &path, &json!({ "cron": "0 0 1 1 *", "time_zone": "UTC", "payload": 1 })).await;
    one_pending(&cluster).await;
    let many = "insert into schedule_run (schedule_id, instant, first_id)
        select s.id, n, gen_random_uuid() from schedule s cross join generate_series(1, 30000) n";
    sqlx::query(many).execute(&cluster.sql).await.unwrap();
    assert_eq!(api.post(&format!("{path}/pause"), "").await.status, 200);
    assert_eq!(pending(&cluster).await, []);
    assert_eq!(api.send(Method::DELETE, &path, None).await.status, 200);
    assert_eq!(api.send(Method::GET, &path, None).await.status, 404);
    assert!(cluster.count(RUNS).await > 20_000, "most runs are deleted later");
    eventually("all runs are deleted", DEADLINE, async || cluster.count(RUNS).await == 0).await;
    eventually("the schedule is forgotten", DEADLINE, async || {
        cluster.count("select count(*) from schedule_deleted").await == 0
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_change_moves_the_runs_of_older_rules() {
    let cluster = Cluster::start("schedule-older-rules").await;
    let topic = cluster.topic("orders").await;
    let node = cluster.node().await;
    let (api, path) = (node.api(), format!("/v1/schedules/{topic}/report"));
    let body = |payload: u8| json!({ "cron": "0 0 1 1 *", "time_zone": "Europe/Berlin", "payload": payload });
    put(api, &path, &body(1)).await;
    one_pending(&cluster).await;
    // As if other rules had made the run an hour later.
    for text in [
        "delete from task_name",
        "update schedule_run set instant = instant + 3600000",
        "update schedule set next_run_at = next_run_at + 3600000, tzdata = '1999a'",
    ] {
        sqlx::query(text).execute(&cluster.sql).await.unwrap();
    }
    let changed = put(api, &path, &body(2)).await;
    assert!(
        changed["next_run_at"].as_str().unwrap().ends_with("-12-31T23:00:00.000Z"),
        "{changed}"
    );
    assert_ne!(changed["tzdata"], "1999a");
}

/// Moves a run by a thousand days. It is another row then.
async fn move_away(cluster: &Cluster, api: &Api, id: &str) {
    let due_at = json!({ "due_at": now_ms() + 1_000 * 86_400_000 }).to_string();
    let body = Some(("application/json", due_at.into_bytes()));
    let moved = api.send(Method::PATCH, &format!("/v1/tasks/{id}"), body).await;
    assert_eq!(moved.status, 200, "{}", moved.text);
    assert_eq!(cluster.count("select count(*) from task_follow").await, 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_change_withdraws_runs_that_a_caller_has_moved() {
    let cluster = Cluster::start("schedule-moved-run").await;
    let topic = cluster.topic("orders").await;
    let node = cluster.node().await;
    let (api, path) = (node.api(), format!("/v1/schedules/{topic}/report"));
    let body = |payload: u8| json!({ "cron": "0 0 1 1 *", "time_zone": "UTC", "payload": payload });
    put(api, &path, &body(1)).await;
    let first = one_pending(&cluster).await;
    move_away(&cluster, api, &first.1).await;
    put(api, &path, &body(2)).await;
    let renewed = eventually_some("the run is made anew", DEADLINE, async || {
        pending(&cluster).await.into_iter().find(|run| run.1 != first.1)
    })
    .await;
    assert_eq!((pending(&cluster).await.len(), &renewed.0), (1, &first.0));
    assert_eq!(api.look(&format!("/v1/tasks/{}", first.1)).await.json()["state"], "cancelled");
    assert_eq!(api.look(&format!("/v1/tasks/{}", renewed.1)).await.json()["payload"], 2);

    move_away(&cluster, api, &renewed.1).await;
    assert_eq!(api.post(&format!("{path}/pause"), "").await.status, 200);
    assert_eq!(pending(&cluster).await, []);
    assert_eq!(api.post(&format!("{path}/resume"), "").await.status, 200);
    let resumed = one_pending(&cluster).await;
    assert_eq!(resumed.0, first.0);

    move_away(&cluster, api, &resumed.1).await;
    assert_eq!(api.send(Method::DELETE, &path, None).await.status, 200);
    assert_eq!(pending(&cluster).await, []);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_deleted_schedule_leaves_no_run_that_a_paused_topic_holds() {
    let cluster = Cluster::start("schedule-held-runs").await;
    let topic = cluster.topic("orders").await;
    let consumer = cluster.consumer(&topic);
    let node = cluster.node().await;
    let (api, path) = (node.api(), format!("/v1/schedules/{topic}/report"));
    let topic_path = format!("/v1/topics/{topic}");
    assert_eq!(api.post(&format!("{topic_path}/pause"), "").await.status, 200);
    put(api, &path, &json!({ "every": "1s", "payload": 1 })).await;
    let settings = PostgresSettings::new(&cluster.database.url).unwrap();
    let mut held = HeldTasks::new(&settings);
    eventually("overdue runs are held", DEADLINE, async || {
        let now = Timestamp::from_millis(now_ms());
        let overdue = IdRange::of_times(now.minus(Duration::from_secs(3600)), now);
        for shard in ShardCount::DEFAULT.all() {
            held.hold(shard, overdue).await.unwrap();
        }
        cluster.count("select count(*) from task_far").await >= 3
    })
    .await;
    assert_eq!(api.send(Method::DELETE, &path, None).await.status, 200);
    assert_eq!(pending(&cluster).await, []);
    assert_eq!(api.post(&format!("{topic_path}/resume"), "").await.status, 200);
    let last = api.submit(&json!({ "topic": topic, "delay": 0, "payload": 2 })).await;
    let records = consumer.wait_count(1, DEADLINE).await;
    assert_eq!(records.iter().map(|record| record.task_id()).collect::<Vec<_>>(), [last.id]);
}

/// Half a day of a schedule of seconds.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_schedule_with_many_unclaimed_runs_is_paused() {
    let cluster = Cluster::start("schedule-unclaimed-runs").await;
    let topic = cluster.topic("orders").await;
    let node = cluster.node().await;
    let (api, path) = (node.api(), format!("/v1/schedules/{topic}/report"));
    put(api, &path, &json!({ "cron": "0 0 1 1 *", "time_zone": "UTC", "payload": 1 })).await;
    one_pending(&cluster).await;
    let many = "with base as (
        select r.*, s.topic, s.shard, s.name as schedule from schedule_run r
        join schedule s on s.id = r.schedule_id limit 1
      ), one as materialized (
        select b.*, b.instant - 1000 * n as at, to_char(to_timestamp((b.instant - 1000 * n) / 1000)
            at time zone 'UTC', 'YYYY-MM-DD\"T\"HH24:MI:SS\"Z\"') as text,
          punctual_due_again(b.first_id, b.instant - 1000 * n) as id
        from base b cross join generate_series(1, 43200) n
      ), run as (
        insert into schedule_run (schedule_id, instant, first_id)
        select schedule_id, at, id from one
      ), name as (
        insert into task_name (topic, name, id, row_id, expires_at)
        select topic, schedule || '@' || text, id, id, punctual_time(id) + interval '1 day' from one
      )
      insert into task_far (shard, id, topic, payload, name)
      select shard, id, topic, '1', schedule || '@' || text from one";
    sqlx::query(many).execute(&cluster.sql).await.unwrap();
    let paused = api.post(&format!("{path}/pause"), "").await;
    assert_eq!(paused.status, 200, "{}", paused.text);
    assert_eq!(pending(&cluster).await, []);
    assert_eq!(cluster.count(RUNS).await, 0);
    assert_eq!(cluster.count("select count(*) from task_name").await, 0);
}

/// The names of runs can be told in advance, and a caller may take them.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_triggered_run_whose_name_is_taken_comes_without_a_name() {
    const TAKEN_MS: i64 = 10_000;
    let cluster = Cluster::start("schedule-taken").await;
    let topic = cluster.topic("orders").await;
    let node = cluster.node().await;
    let api = node.api();
    let path = format!("/v1/schedules/{topic}/poll");
    put(api, &path, &json!({ "every": "30d", "payload": "own" })).await;
    let (schedule, now) = (ScheduleName::new("poll").unwrap(), now_ms());
    let taken = (now..now + TAKEN_MS).map(|at| {
        let name = schedule.of_run(Timestamp::from_millis(at)).unwrap();
        json!({ "topic": topic, "name": name.as_str(), "delay": "1h", "payload": "other" })
    });
    api.submit_all(&taken.collect::<Vec<_>>()).await;
    let triggered = api.post(&format!("{path}/trigger"), "").await;
    assert!(now_ms() < now + TAKEN_MS, "the names were taken too early");
    let task = triggered.json();
    assert_eq!((triggered.status, task.get("name")), (201, None), "{task}");
    let records = cluster.consumer(&topic).wait_count(1, DEADLINE).await;
    assert_eq!(records[0].payload.as_deref(), Some(br#""own""#.as_slice()));
    assert_eq!(header(&records[0], "punctual-task-id").as_deref(), task["id"].as_str());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_schedule_of_seconds_goes_on_at_once_after_three_days() {
    let cluster = Cluster::start("schedule-three-days").await;
    let topic = cluster.topic("orders").await;
    let consumer = cluster.consumer(&topic);
    let node = cluster.node().await;
    let (api, path) = (node.api(), format!("/v1/schedules/{topic}/tick"));
    let body = json!({ "every": "1s", "missed": { "policy": "none" }, "payload": 1 });
    put(api, &path, &body).await;
    assert_eq!(api.post(&format!("{path}/pause"), "").await.status, 200);
    sqlx::query("update schedule set next_run_at = next_run_at - 3 * 86400000::bigint")
        .execute(&cluster.sql)
        .await
        .unwrap();
    let began_at = now_ms();
    assert_eq!(api.post(&format!("{path}/resume"), "").await.status, 200);
    let is_new = |record: &Record| run_at(record) > began_at;
    eventually("there is a run", DEADLINE, async || {
        consumer.look(|records| records.iter().any(is_new))
    })
    .await;
    // A plan looks at 10,000 instants, and 26 plans at one a second would take 26 s.
    let first = consumer.look(|records| records.iter().filter(|one| is_new(one)).map(run_at).min());
    let passed = first.unwrap() - began_at;
    assert!(passed < 15_000, "{passed} ms");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_old_run_is_remembered_while_it_waits() {
    let cluster = Cluster::start("schedule-old-runs").await;
    let topic = cluster.topic("orders").await;
    let node = cluster.node().await;
    let (api, path) = (node.api(), format!("/v1/schedules/{topic}/report"));
    put(api, &path, &json!({ "cron": "0 0 1 1 *", "time_zone": "UTC", "payload": 1 })).await;
    let run = one_pending(&cluster).await;
    move_away(&cluster, api, &run.1).await;
    // As if the instant of the moved run, and those of two that are done, were ten years ago.
    for text in [
        "update schedule_run set instant = instant - 10 * 366 * 86400000::bigint",
        "insert into schedule_run (schedule_id, instant, first_id)
         select schedule_id, instant + n, gen_random_uuid()
         from schedule_run cross join generate_series(1, 2) n",
        "update schedule set look_at = 0",
    ] {
        sqlx::query(text).execute(&cluster.sql).await.unwrap();
    }
    let others = "select count(*) from schedule_run r
        where not exists (select from task_follow f where f.first_id = r.first_id)";
    eventually("the next run is made, and one that is done forgotten", DEADLINE, async || {
        cluster.count("select count(*) from task_far").await == 2
            && cluster.count(others).await == 2
    })
    .await;
    assert_eq!(api.send(Method::DELETE, &path, None).await.status, 200);
    assert_eq!(pending(&cluster).await, []);
}

/// The topic is paused, so an overdue run still waits when the rules of its zone change.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn newer_rules_of_a_zone_leave_an_overdue_run() {
    let cluster = Cluster::start("schedule-overdue-run").await;
    let topic = cluster.topic("orders").await;
    let node = cluster.node().await;
    let (api, path) = (node.api(), format!("/v1/schedules/{topic}/tick"));
    assert_eq!(api.post(&format!("/v1/topics/{topic}/pause"), "").await.status, 200);
    let body = json!({ "cron": "* * * * * *", "seconds": true, "time_zone": "Europe/Berlin",
        "missed": { "policy": "none" }, "payload": 1 });
    put(api, &path, &body).await;
    let overdue = async || {
        let all = pending(&cluster).await;
        let is_overdue = |run: &(String, String)| {
            let at = run.0.split_once('@').unwrap().1.parse::<jiff::Timestamp>().unwrap();
            at.as_millisecond() < now_ms() - 1_000
        };
        all.into_iter().filter(is_overdue).collect::<Vec<_>>()
    };
    let before =
        eventually_some("a run is overdue", DEADLINE, async || overdue().await.first().cloned())
            .await;
    // As if other rules had made the runs an hour later.
    let older = "update schedule set tzdata = '1999a', next_run_at = next_run_at + 3600000,
        revision = revision + 1";
    sqlx::query(older).execute(&cluster.sql).await.unwrap();
    let noted = "select count(*) from schedule where tzdata > '1999a'";
    eventually("the rules are noted", DEADLINE, async || cluster.count(noted).await == 1).await;
    assert!(pending(&cluster).await.contains(&before), "{before:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_schedule_of_a_newer_version_hides_no_other_one() {
    let cluster = Cluster::start("schedule-newer").await;
    let topic = cluster.topic("orders").await;
    let node = cluster.node().await;
    let api = node.api();
    for name in ["a", "b", "c"] {
        let body = json!({ "cron": "0 0 1 1 *", "time_zone": "Europe/Berlin", "payload": 1 });
        put(api, &format!("/v1/schedules/{topic}/{name}"), &body).await;
    }
    sqlx::query("update schedule set time_zone = 'Mars/Olympus' where name = 'a'")
        .execute(&cluster.sql)
        .await
        .unwrap();
    let (mut names, mut after) = (Vec::new(), String::new());
    loop {
        let page = api.look(&format!("/v1/schedules/{topic}?limit=1{after}")).await.json();
        let listed = page["schedules"].as_array().unwrap();
        names.extend(listed.iter().map(|one| one["name"].as_str().unwrap().to_owned()));
        let Some(next) = page["next_after"].as_str() else { break };
        after = format!("&after={next}");
    }
    assert_eq!(names, ["b", "c"]);
}
