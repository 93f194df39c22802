//! Changes of schedules with runs that are far away, many, moved, held, or of older rules.

use std::time::Duration;

use punctual::domain::time::duration;
use punctual::domain::{IdRange, ScheduleName, ShardCount, Timestamp};
use punctual::postgres::PostgresSettings;
use punctual::postgres::topics::held::HeldTasks;
use reqwest::Method;
use serde_json::{Value, json};

use super::{DEADLINE, header, instant_of, millis, next_run_at, one_pending, pending, put, run_at};
use crate::support::{Api, Cluster, Record, eventually, eventually_some, now_ms};

const RUNS: &str = "select count(*) from schedule_run";
const HOUR_MS: i64 = 3_600_000;

/// Returns the pending runs whose instants passed this many milliseconds ago, or earlier.
async fn overdue(cluster: &Cluster, age: i64) -> Vec<(String, String)> {
    let mut runs = pending(cluster).await;
    runs.retain(|run| instant_of(run) < now_ms() - age);
    runs
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_changed_timing_begins_now_although_a_far_run_was_cancelled() {
    let cluster = Cluster::start("schedule-far-run").await;
    let topic = cluster.topic("orders").await;
    let node = cluster.node().await;
    let (api, path) = (node.api(), format!("/v1/schedules/{topic}/report"));
    put(api, &path, &json!({ "cron": "0 0 1 1 *", "time_zone": "UTC", "payload": 1 })).await;
    let run = one_pending(&cluster).await;
    assert_eq!(next_run_at(&api.look(&path).await.json()), instant_of(&run));
    assert_eq!(api.cancel(run.1.parse().unwrap()).await.status, 200);
    // The cancelled run is not shown.
    let yearly = json!({ "cron": "0 0 1 1 *", "time_zone": "UTC", "payload": 1 });
    for shown in [api.look(&path).await.json(), put(api, &path, &yearly).await] {
        assert!(next_run_at(&shown) > instant_of(&run), "{shown}");
    }
    let hourly = json!({ "cron": "0 * * * *", "time_zone": "UTC", "payload": 1 });
    let changed = put(api, &path, &hourly).await;
    let after = next_run_at(&changed) - now_ms();
    assert!((0..=HOUR_MS).contains(&after), "{changed}");
}

/// Starts a schedule of seconds whose topic is paused. The first runs have waited for longer than
/// an instant may before it counts as missed. Returns those that are due.
async fn waiting(cluster: &Cluster, api: &Api, topic: &str, body: &Value) -> Vec<(String, String)> {
    assert_eq!(api.post(&format!("/v1/topics/{topic}/pause"), "").await.status, 200);
    put(api, &format!("/v1/schedules/{topic}/tick"), body).await;
    let has_old = async || !overdue(cluster, 11_000).await.is_empty();
    eventually("a run has waited for 11 s", DEADLINE, has_old).await;
    overdue(cluster, 0).await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_change_leaves_the_runs_that_are_due_and_loses_none() {
    let cluster = Cluster::start("schedule-due-runs").await;
    let topic = cluster.topic("orders").await;
    let consumer = cluster.consumer(&topic);
    let node = cluster.node().await;
    let (api, path) = (node.api(), format!("/v1/schedules/{topic}/tick"));
    let body = |payload: &str, note: &str| {
        json!({ "every": "1s", "missed": { "policy": "none" }, "payload": payload,
            "note": note })
    };
    let due = waiting(&cluster, api, &topic, &body("a", "")).await;
    let (first, last) = (instant_of(&due[0]), instant_of(&due[due.len() - 1]));
    for (payload, note) in [("a", "noted"), ("b", "noted")] {
        let changed = put(api, &path, &body(payload, note)).await;
        assert!(next_run_at(&changed) > last, "no run that is due is made again: {changed}");
        let left = pending(&cluster).await;
        assert!(due.iter().all(|run| left.contains(run)), "{due:?}, and then {left:?}");
    }
    assert_eq!(api.post(&format!("/v1/topics/{topic}/resume"), "").await.status, 200);
    let changed_at = now_ms();
    let records = consumer
        .wait_for("each instant has a run", DEADLINE, |records| {
            let made: Vec<i64> = records.iter().map(run_at).collect();
            (first..changed_at + 3_000).step_by(1_000).all(|at| made.contains(&at))
        })
        .await;
    for record in records.iter().filter(|record| run_at(record) < changed_at + 3_000) {
        assert_eq!(header(record, "punctual-missed"), None, "{}", run_at(record));
        let was_due = due.iter().any(|run| run.1 == record.task_id().to_string());
        assert!(!was_due || record.payload.as_deref() == Some(br#""a""#.as_slice()));
    }
    assert!(records.iter().any(|record| record.payload.as_deref() == Some(br#""b""#.as_slice())));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn another_key_makes_the_runs_that_are_due_anew() {
    let cluster = Cluster::start("schedule-other-key").await;
    let topic = cluster.topic("orders").await;
    let consumer = cluster.consumer(&topic);
    let node = cluster.node().await;
    let (api, path) = (node.api(), format!("/v1/schedules/{topic}/tick"));
    let body = |key: &str| {
        json!({ "every": "1s", "missed": { "policy": "none" }, "payload": 1,
            "key": key })
    };
    let due = waiting(&cluster, api, &topic, &body("a")).await;
    put(api, &path, &body("b")).await;
    eventually("the runs are made anew", DEADLINE, async || {
        let runs = pending(&cluster).await;
        due.iter().all(|(name, id)| runs.iter().any(|run| run.0 == *name && run.1 != *id))
    })
    .await;
    assert_eq!(api.post(&format!("/v1/topics/{topic}/resume"), "").await.status, 200);
    let records = consumer.wait_count(due.len(), DEADLINE).await;
    for record in &records {
        assert_eq!(record.key.as_deref(), Some(b"b".as_slice()), "{}", run_at(record));
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_smaller_spread_makes_the_runs_of_all_instants_that_were_not_due() {
    let cluster = Cluster::start("schedule-less-spread").await;
    let topic = cluster.topic("orders").await;
    let consumer = cluster.consumer(&topic);
    let node = cluster.node().await;
    let api = node.api();
    // No instant falls into the test.
    let phase = (now_ms() + HOUR_MS / 2) % HOUR_MS;
    let spread = json!({ "every": "1h", "phase": phase, "payload": 1, "spread": "1d" });
    let mut number = 0;
    let path = loop {
        let path = format!("/v1/schedules/{topic}/report-{number}");
        let made = put(api, &format!("{path}?dry_run=true"), &spread).await;
        let shift = duration::parse(made["shift"].as_str().unwrap()).unwrap();
        if shift > Duration::from_secs(5 * 3600) {
            break path;
        }
        number += 1;
    };
    put(api, &path, &spread).await;
    let run = one_pending(&cluster).await;
    // As if the schedule were older: the runs of five instants are not due yet.
    let older = "update schedule set next_run_at = next_run_at - 6 * 3600000::bigint";
    sqlx::query(older).execute(&cluster.sql).await.unwrap();
    let exact = json!({ "every": "1h", "phase": phase, "payload": 2 });
    let changed = put(api, &format!("{path}?next=6"), &exact).await;
    let instants: Vec<i64> = (-5..=0).map(|hour| instant_of(&run) + hour * HOUR_MS).collect();
    let shown = changed["next"].as_array().unwrap().iter().map(|at| millis(at.as_str().unwrap()));
    assert_eq!(shown.collect::<Vec<_>>(), instants, "{changed}");
    let records = consumer.wait_count(5, DEADLINE).await;
    let mut made: Vec<i64> = records.iter().map(run_at).collect();
    made.sort_unstable();
    assert_eq!(made, instants[..5]);
    assert!(records.iter().all(|record| header(record, "punctual-missed").is_none()));
    let again = one_pending(&cluster).await;
    assert!(again.0 == run.0 && again.1 != run.1, "{run:?} {again:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_answer_shows_only_instants_that_get_a_run() {
    let cluster = Cluster::start("schedule-upcoming").await;
    let topic = cluster.topic("orders").await;
    let node = cluster.node().await;
    let api = node.api();
    // No instant falls into the test.
    let phase = (now_ms() + 300_000) % 600_000;
    for (name, missed, passed_count) in [
        ("none", json!({ "policy": "none" }), 0),
        ("last", json!({ "policy": "last" }), 1),
        ("all", json!({ "policy": "all", "within": "2h", "count_max": 3 }), 3),
    ] {
        let path = format!("/v1/schedules/{topic}/{name}");
        let body = |is_paused: bool| {
            json!({ "every": "10m", "phase": phase, "missed": missed, "payload": 1,
                "paused": is_paused })
        };
        put(api, &path, &body(true)).await;
        // As if it had been paused for a week.
        let earlier = "update schedule set next_run_at = next_run_at - 7 * 86400000::bigint
            where is_paused";
        sqlx::query(earlier).execute(&cluster.sql).await.unwrap();
        let resumed = put(api, &format!("{path}?next=5"), &body(false)).await;
        let next = resumed["next"].as_array().unwrap().iter();
        let next: Vec<i64> = next.map(|at| millis(at.as_str().unwrap())).collect();
        let passed = next.iter().filter(|at| **at < now_ms()).count();
        assert_eq!((passed, next.len(), next[0]), (passed_count, 5, next_run_at(&resumed)));
        assert!(next.windows(2).all(|pair| pair[1] - pair[0] == 600_000), "{resumed}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_finished_schedule_can_be_changed_and_goes_on_with_more_runs() {
    let cluster = Cluster::start("schedule-finished").await;
    let topic = cluster.topic("orders").await;
    let consumer = cluster.consumer(&topic);
    let node = cluster.node().await;
    let (api, path) = (node.api(), format!("/v1/schedules/{topic}/tick"));
    let body = |every: &str, payload: &str, runs_max: u8| {
        json!({ "every": every, "payload": payload,
            "runs_max": runs_max })
    };
    put(api, &path, &body("1s", "a", 2)).await;
    consumer.wait_count(2, DEADLINE).await;
    for (revision, every) in [(2, "1s"), (3, "2s")] {
        let changed = put(api, &path, &body(every, "b", 2)).await;
        let shown = (&changed["revision"], &changed["runs_made"], &changed["next_run_at"]);
        assert_eq!(shown, (&json!(revision), &json!(2), &Value::Null));
    }
    let mut ended = body("1s", "b", 3);
    ended["ends_at"] = "2020-01-01T00:00:00Z".into();
    let refused = api.send_with(Method::PUT, &path, &[], Some(ended)).await;
    assert_eq!((refused.status, &refused.json()["field"]), (400, &json!("ends_at")));
    let more = put(api, &path, &body("2s", "b", 3)).await;
    assert!(next_run_at(&more) > now_ms() - 10_000, "{more}");
    let records = consumer.wait_count(3, DEADLINE).await;
    let third = records.iter().max_by_key(|record| run_at(record)).unwrap();
    assert_eq!(third.payload.as_deref(), Some(br#""b""#.as_slice()));
    assert_eq!(header(third, "punctual-run").as_deref(), Some("3"));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_policy_about_delays_refuses_no_schedule() {
    let cluster = Cluster::start("schedule-delay-max").await;
    let topic = cluster.topic("orders").await;
    let node = cluster.node().await;
    let (api, path) = (node.api(), format!("/v1/schedules/{topic}/report"));
    let policy = Some(json!({ "delay_max": "1h" }));
    let set = api.send_with(Method::PUT, &format!("/v1/topics/{topic}/policy"), &[], policy).await;
    assert_eq!(set.status, 200, "{}", set.text);
    for (payload, revision) in [(1, 1), (1, 1), (2, 2)] {
        let yearly = json!({ "cron": "0 0 1 1 *", "time_zone": "UTC", "payload": payload });
        assert_eq!(put(api, &path, &yearly).await["revision"], json!(revision));
        one_pending(&cluster).await;
    }
    let task = json!({ "topic": topic, "delay": "2h", "payload": 1 }).to_string();
    assert_eq!(api.post("/v1/tasks", task).await.status, 422);
    let never = json!({ "every": "1h", "starts_at": "9999-01-01T00:00:00Z", "payload": 1 });
    let refused = api.send_with(Method::PUT, &path, &[], Some(never)).await;
    let problem = refused.json();
    let what = [&problem["type"], &problem["field"], &problem["detail"]];
    let detail = "the first run may be at most 36500d ahead";
    assert_eq!(what, ["urn:punctual:problem:too-far-ahead", "starts_at", detail]);
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
        from base b cross join generate_series(1, 20000) n
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
    eventually("the schedule is paused", DEADLINE, async || {
        api.post(&format!("{path}/pause"), "").await.status == 200
    })
    .await;
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
    assert!(passed < 20_000, "{passed} ms");
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
    let before = eventually_some("a run is overdue", DEADLINE, async || {
        overdue(&cluster, 1_000).await.first().cloned()
    })
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
