//! Schedules: runs are tasks, each instant has one, and a change withdraws unclaimed runs.

mod again;
mod changes;
mod command_line;
mod guesses;
mod limits;
mod owners;
mod policies;

use std::collections::{BTreeMap, HashSet};
use std::time::Duration;

use reqwest::Method;
use serde_json::{Value, json};

use crate::support::{Api, Cluster, Record, eventually, eventually_some, now_ms};

const DEADLINE: Duration = Duration::from_secs(120);

async fn put(api: &Api, path: &str, body: &Value) -> Value {
    let answer = api.send_tasks(Method::PUT, path, &body.to_string()).await;
    assert!(matches!(answer.status, 200 | 201), "{path}: {} {}", answer.status, answer.text);
    let answer = answer.json();
    assert!(answer["revision"].as_u64().is_some(), "{answer}");
    answer
}

fn header(record: &Record, name: &str) -> Option<String> {
    record.header(name).map(|value| String::from_utf8(value.to_vec()).unwrap())
}

/// The header `punctual-run-at` as milliseconds.
fn run_at(record: &Record) -> i64 {
    millis(&header(record, "punctual-run-at").unwrap())
}

fn millis(text: &str) -> i64 {
    text.parse::<jiff::Timestamp>().unwrap().as_millisecond()
}

/// The member `next_run_at` as milliseconds.
fn next_run_at(schedule: &Value) -> i64 {
    millis(schedule["next_run_at"].as_str().unwrap())
}

/// The instant in the name of a run, as milliseconds.
fn instant_of(run: &(String, String)) -> i64 {
    millis(run.0.split_once('@').unwrap().1)
}

/// Returns the one pending run of a schedule that has one: its name and its id.
async fn pending(cluster: &Cluster) -> Vec<(String, String)> {
    sqlx::query_as::<_, (String, String)>(
        "select name, id::text from task union all select name, id::text from task_far order by 1",
    )
    .fetch_all(&cluster.sql)
    .await
    .unwrap()
}

async fn one_pending(cluster: &Cluster) -> (String, String) {
    eventually_some("the run is made", DEADLINE, async || {
        let pending = pending(cluster).await;
        assert!(pending.len() <= 1, "{pending:?}");
        pending.into_iter().next()
    })
    .await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn each_run_is_a_task_with_a_name_and_headers_until_the_schedule_ends() {
    let cluster = Cluster::start("schedule-runs").await;
    let topic = cluster.topic("orders").await;
    let consumer = cluster.consumer(&topic);
    let node = cluster.node().await;
    let path = format!("/v1/schedules/{topic}/poll");
    let body = json!({ "every": "1s", "runs_max": 3, "key": "k", "payload": { "a": 1 },
        "headers": { "source": "test" } });
    let made = put(node.api(), &path, &body).await;
    assert_eq!((&made["revision"], &made["every"]), (&json!(1), &json!("1s")), "{made}");
    let records = consumer.wait_count(3, DEADLINE).await;
    let mut by_run: BTreeMap<String, &Record> = BTreeMap::new();
    for record in &records {
        assert_eq!(header(record, "punctual-schedule").as_deref(), Some("poll"));
        assert_eq!(header(record, "source").as_deref(), Some("test"));
        assert_eq!(header(record, "punctual-missed"), None);
        assert_eq!(record.key.as_deref(), Some(b"k".as_slice()));
        assert_eq!(record.payload.as_deref(), Some(br#"{"a":1}"#.as_slice()));
        by_run.insert(header(record, "punctual-run").unwrap(), record);
    }
    assert_eq!(by_run.keys().collect::<Vec<_>>(), ["1", "2", "3"]);
    let times: Vec<i64> = by_run.values().map(|record| run_at(record)).collect();
    assert_eq!((times[1] - times[0], times[2] - times[1]), (1_000, 1_000));
    let at = header(by_run["2"], "punctual-run-at").unwrap();
    let task = node.api().look(&format!("/v1/topics/{topic}/tasks/poll@{at}")).await.json();
    assert_eq!(task["id"], by_run["2"].task_id().to_string(), "{task}");
    let ended = node.api().look(&format!("{path}?next=5")).await.json();
    assert_eq!((&ended["runs_made"], &ended["next"]), (&json!(3), &json!([])), "{ended}");
    assert!(ended["next_run_at"].is_null(), "{ended}");
    assert_eq!(node.api().metric("punctual_schedule_runs_total").await as i64, 3);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_change_withdraws_the_runs_that_are_not_claimed_and_makes_them_anew() {
    let cluster = Cluster::start("schedule-changes").await;
    let topic = cluster.topic("orders").await;
    let node = cluster.node().await;
    let api = node.api();
    let path = format!("/v1/schedules/{topic}/yearly");
    // Far ahead: one run lies in the far table.
    let body = |payload: &str| json!({ "cron": "0 0 1 1 *", "time_zone": "Europe/Berlin", "payload": payload });
    put(api, &path, &body("a")).await;
    let first = one_pending(&cluster).await;
    assert!(first.0.starts_with("yearly@") && first.0.ends_with("-12-31T23:00:00Z"), "{first:?}");

    // The same once more changes nothing.
    let same = put(api, &path, &body("a")).await;
    assert_eq!((&same["revision"], one_pending(&cluster).await), (&json!(1), first.clone()));

    // Another payload: the same instant, another task.
    put(api, &path, &body("b")).await;
    let second = eventually_some("the run is made anew", DEADLINE, async || {
        pending(&cluster).await.into_iter().find(|run| *run != first)
    })
    .await;
    assert_eq!((pending(&cluster).await.len(), &second.0), (1, &first.0));
    let look = async |id: &str| api.look(&format!("/v1/tasks/{id}")).await.json();
    assert_eq!(look(&first.1).await["state"], "cancelled");
    assert_eq!(look(&second.1).await["payload"], "b");
    let named = api.look(&format!("/v1/topics/{topic}/tasks/{}", second.0)).await.json();
    assert_eq!(named["id"], second.1.as_str());

    // A condition that does not hold, and one that does.
    let wrong = [("if-match", "\"1\"")];
    let answer = api.send_with(Method::PUT, &path, &wrong, Some(body("c"))).await;
    assert_eq!(answer.status, 412, "{}", answer.text);

    // Paused: nothing is pending. Resumed: the run is back.
    let paused = api.post(&format!("{path}/pause"), "").await;
    assert_eq!((paused.status, &paused.json()["paused"]), (200, &json!(true)), "{}", paused.text);
    assert_eq!(pending(&cluster).await, []);
    assert_eq!(api.post(&format!("{path}/resume"), "").await.status, 200);
    assert_eq!(one_pending(&cluster).await.0, first.0);

    // A run that a caller cancels stays cancelled.
    let run = one_pending(&cluster).await;
    assert_eq!(api.cancel(run.1.parse().unwrap()).await.status, 200);
    put(api, &path, &body("d")).await;
    let next = one_pending(&cluster).await;
    assert_ne!(next.0, first.0, "the year after");

    // A triggered run is due now, whatever the schedule says.
    let triggered = api.post(&format!("{path}/trigger"), "").await;
    assert_eq!(triggered.status, 201, "{}", triggered.text);
    let consumer = cluster.consumer(&topic);
    let records = consumer.wait_count(1, DEADLINE).await;
    assert_eq!(header(&records[0], "punctual-run"), None);
    assert_eq!(records[0].payload.as_deref(), Some(br#""d""#.as_slice()));

    // Deleted: nothing is left of it.
    assert_eq!(api.send(Method::DELETE, &path, None).await.status, 200);
    assert_eq!(pending(&cluster).await, []);
    assert_eq!(api.send(Method::DELETE, &path, None).await.status, 404);
    assert_eq!(cluster.count("select count(*) from schedule_run").await, 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_change_counts_no_run_twice_that_it_leaves_behind_earlier_ones() {
    let cluster = Cluster::start("schedule-moved-run").await;
    let topic = cluster.topic("orders").await;
    let consumer = cluster.consumer(&topic);
    let node = cluster.node().await;
    let api = node.api();
    let path = format!("/v1/schedules/{topic}/poll");
    let body = |payload: &str| json!({ "every": "4s", "runs_max": 6, "payload": payload });
    put(api, &path, &body("a")).await;
    let made = "select first_id::text from schedule_run order by instant";
    let made = eventually_some("six runs are made", DEADLINE, async || {
        let made = sqlx::query_scalar::<_, String>(made).fetch_all(&cluster.sql).await.unwrap();
        (made.len() == 6).then_some(made)
    })
    .await;
    // The fourth run is moved to now. A change leaves it, and goes back to the runs before.
    let id = &made[3];
    let moved = api
        .send_with(Method::PATCH, &format!("/v1/tasks/{id}"), &[], Some(json!({ "delay": "0s" })))
        .await;
    assert_eq!(moved.status, 200, "{}", moved.text);
    consumer.wait_count(1, DEADLINE).await;
    put(api, &path, &body("b")).await;
    let all = consumer.wait_count(6, DEADLINE).await;
    let ended = api.look(&path).await.json();
    assert_eq!(ended["runs_made"], json!(6), "{ended}");
    let instants: HashSet<i64> = all.iter().map(run_at).collect();
    let numbers: Vec<Option<String>> =
        all[1..].iter().map(|record| header(record, "punctual-run")).collect();
    assert_eq!((instants.len(), all.len()), (6, 6), "each instant has one run: {numbers:?}");
    assert!(all.iter().all(|record| header(record, "punctual-missed").is_none()), "none is missed");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_change_does_not_count_skipped_instants_twice() {
    let cluster = Cluster::start("schedule-skipped-twice").await;
    let topic = cluster.topic("orders").await;
    let consumer = cluster.consumer(&topic);
    let node = cluster.node().await;
    let api = node.api();
    let (path, topic_path) = (format!("/v1/schedules/{topic}/poll"), format!("/v1/topics/{topic}"));
    assert_eq!(api.post(&format!("{topic_path}/pause"), "").await.status, 200);
    let body = |key: &str| json!({ "every": "1s", "overlap": "skip", "ttr": "1h", "payload": 1, "key": key });
    put(api, &path, &body("a")).await;
    // The run waits with its topic, and the instants after it get none.
    let query = "select coalesce(max(skipped), 0)::bigint from schedule";
    eventually("instants are skipped", DEADLINE, async || cluster.count(query).await >= 2).await;
    let run = pending(&cluster).await;
    // Another key withdraws it.
    put(api, &path, &body("b")).await;
    eventually("the run is made again", DEADLINE, async || {
        let again = pending(&cluster).await;
        again.len() == 1 && again[0].1 != run[0].1
    })
    .await;
    assert_eq!(pending(&cluster).await[0].0, run[0].0, "of the same instant");
    assert_eq!(api.post(&format!("{topic_path}/resume"), "").await.status, 200);
    let records = consumer.wait_count(1, DEADLINE).await;
    assert_eq!(header(&records[0], "punctual-missed"), None, "none is missed before it");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_change_keeps_what_the_withdrawn_run_has_counted() {
    let cluster = Cluster::start("schedule-counts").await;
    let topic = cluster.topic("orders").await;
    let node = cluster.node().await;
    let path = format!("/v1/schedules/{topic}/report");
    // No instant falls into the test.
    let phase = (now_ms() + 300_000) % 600_000;
    let body = |payload: &str, is_paused: bool| {
        json!({ "every": "10m", "phase": phase, "missed": { "policy": "none" },
            "payload": payload, "paused": is_paused })
    };
    put(node.api(), &path, &body("a", true)).await;
    // As if nothing had run for an hour.
    sqlx::query("update schedule set next_run_at = next_run_at - 3600000")
        .execute(&cluster.sql)
        .await
        .unwrap();
    // Each change withdraws the run that lies ahead, and the next plan makes it again.
    let mut before = None;
    for payload in ["a", "b", "c"] {
        put(node.api(), &path, &body(payload, false)).await;
        eventually("the run is made", DEADLINE, async || {
            let runs = pending(&cluster).await;
            runs.len() == 1 && before.as_ref() != Some(&runs[0].1)
        })
        .await;
        let id = pending(&cluster).await.remove(0).1;
        let task = node.api().get(&format!("/v1/tasks/{id}")).await.json();
        assert_eq!(task["headers"]["punctual-missed"], "6", "{task}");
        before = Some(id);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn after_an_hour_without_runs_each_policy_makes_its_own() {
    let cluster = Cluster::start("schedule-missed").await;
    let topic = cluster.topic("orders").await;
    let consumer = cluster.consumer(&topic);
    let node = cluster.node().await;
    // No instant falls into the test.
    let phase = (now_ms() + 300_000) % 600_000;
    for (name, missed) in [
        ("none", json!({ "policy": "none" })),
        ("last", json!({ "policy": "last" })),
        ("all", json!({ "policy": "all", "within": "2h", "count_max": 3 })),
    ] {
        let path = format!("/v1/schedules/{topic}/{name}");
        let body = json!({ "every": "10m", "phase": phase, "missed": missed, "payload": name,
            "paused": true });
        put(node.api(), &path, &body).await;
    }
    // As if nothing had run for an hour.
    sqlx::query("update schedule set next_run_at = next_run_at - 3600000")
        .execute(&cluster.sql)
        .await
        .unwrap();
    for name in ["none", "last", "all"] {
        let path = format!("/v1/schedules/{topic}/{name}/resume");
        assert_eq!(node.api().post(&path, "").await.status, 200);
    }
    let records = consumer.wait_count(4, DEADLINE).await;
    let mut missed: Vec<(String, String)> = records
        .iter()
        .map(|record| {
            let missed = header(record, "punctual-missed").unwrap_or_default();
            (header(record, "punctual-schedule").unwrap(), missed)
        })
        .collect();
    missed.sort();
    let of = |name: &str, missed: &str| (name.to_owned(), missed.to_owned());
    // Six instants have passed.
    assert_eq!(missed, [of("all", ""), of("all", ""), of("all", "3"), of("last", "5")]);
    let latest = records.iter().map(run_at).max().unwrap();
    assert!(latest <= now_ms() && latest > now_ms() - 600_000 - 120_000, "{latest}");
    // One run of each lies ahead.
    eventually("the next runs are made", DEADLINE, async || pending(&cluster).await.len() == 3)
        .await;
}

/// The tracked runs of a topic, by their instants in seconds.
async fn instants(cluster: &Cluster) -> Vec<i64> {
    let text = "select instant / 1000 from schedule_run order by instant";
    sqlx::query_scalar(text).fetch_all(&cluster.sql).await.unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_schedule_that_skips_waits_for_the_consumer_of_the_run_before() {
    let cluster = Cluster::start("schedule-overlap").await;
    let topic = cluster.topic("orders").await;
    let consumer = cluster.consumer(&topic);
    let node = cluster.node().await;
    let path = format!("/v1/schedules/{topic}/poll");
    let body = json!({ "every": "3s", "overlap": "skip", "ttr": "1h", "payload": 1 });
    let made = put(node.api(), &path, &body).await;
    assert_eq!(made["overlap"], "skip", "{made}");
    let firsts = consumer.wait_count(1, DEADLINE).await;
    let first = &firsts[0];
    let skipped = "punctual_schedule_overlapping_total";
    eventually("two instants are skipped", DEADLINE, async || {
        node.api().metric(skipped).await >= 2.0
    })
    .await;
    assert_eq!(instants(&cluster).await.len(), 1, "the first run is not finished");
    let finish = format!("/v1/tasks/{}/finish", first.task_id());
    assert_eq!(node.api().post(&finish, "{}").await.status, 200);
    let records = consumer.wait_count(2, DEADLINE).await;
    let second = records.iter().max_by_key(|record| run_at(record)).unwrap();
    let between = (run_at(second) - run_at(first)) / 3_000;
    let missed = header(second, "punctual-missed").unwrap_or_default();
    assert!(between >= 3 && missed == (between - 1).to_string(), "{between} {missed}");
    assert_eq!(header(second, "punctual-run").as_deref(), Some("2"));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_runs_of_a_spread_schedule_are_due_later_and_keep_their_instants() {
    let cluster = Cluster::start("schedule-spread").await;
    let topic = cluster.topic("orders").await;
    let node = cluster.node().await;
    let path = format!("/v1/schedules/{topic}/yearly");
    let body = json!({ "cron": "0 0 1 1 *", "time_zone": "UTC", "spread": "1d", "payload": 1 });
    let made = put(node.api(), &path, &body).await;
    assert!(made["shift"].is_string() && made["tzdata"].is_string(), "{made}");
    let (name, id) = one_pending(&cluster).await;
    let task = node.api().look(&format!("/v1/tasks/{id}")).await.json();
    let at = |value: &Value| value.as_str().unwrap().parse::<jiff::Timestamp>().unwrap();
    let shift =
        at(&task["due_at"]).as_millisecond() - at(&task["requested_due_at"]).as_millisecond();
    assert!((1..86_400_000).contains(&shift), "{task}");
    let nominal = name.strip_prefix("yearly@").unwrap();
    assert_eq!(at(&task["requested_due_at"]), nominal.parse().unwrap(), "{task}");
    let shown = node.api().look(&path).await.json();
    assert_eq!(at(&shown["next_run_at"]), nominal.parse().unwrap(), "{shown}");
    // The same shift, whatever the revision.
    put(
        node.api(),
        &path,
        &json!({ "cron": "0 0 1 1 *", "time_zone": "UTC", "spread": "1d",
        "payload": 2 }),
    )
    .await;
    let (again, other) = one_pending(&cluster).await;
    let moved = node.api().look(&format!("/v1/tasks/{other}")).await.json();
    assert_eq!((&again, &moved["due_at"]), (&name, &task["due_at"]));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_backfill_makes_each_run_of_the_past_once() {
    let cluster = Cluster::start("schedule-backfill").await;
    let topic = cluster.topic("orders").await;
    let consumer = cluster.consumer(&topic);
    let node = cluster.node().await;
    let api = node.api();
    let path = format!("/v1/schedules/{topic}/hourly");
    put(api, &path, &json!({ "every": "1h", "payload": 1 })).await;
    let hour = 3_600_000;
    let to = now_ms() / hour * hour;
    let range = |from: i64, to: i64, dry_run: bool| {
        json!({ "from": from, "to": to, "dry_run": dry_run }).to_string()
    };
    let post = async |body: String| api.post(&format!("{path}/backfill"), body).await;
    let dry = post(range(to - 3 * hour, to, true)).await.json();
    let counts = |answer: &Value| (answer["made"].as_u64(), answer["already_made"].as_u64());
    assert_eq!((counts(&dry), dry["runs"].as_array().unwrap().len()), ((Some(3), Some(0)), 3));
    let past = "select count(*) from schedule_run where is_backfill";
    assert_eq!(cluster.count(past).await, 0, "a dry run makes nothing");
    let made = post(range(to - 3 * hour, to, false)).await.json();
    assert_eq!(counts(&made), (Some(3), Some(0)), "{made}");
    let records = consumer.wait_count(3, DEADLINE).await;
    let mut times: Vec<i64> = records.iter().map(run_at).collect();
    times.sort_unstable();
    assert_eq!(times, [to - 3 * hour, to - 2 * hour, to - hour]);
    assert_eq!(header(&records[0], "punctual-run"), None);
    // A longer range makes only the run that is not there. A change of the schedule forgets none.
    put(api, &path, &json!({ "every": "1h", "payload": 2 })).await;
    let more = post(range(to - 4 * hour, to, false)).await.json();
    assert_eq!(counts(&more), (Some(1), Some(3)), "{more}");
    assert_eq!(consumer.wait_count(4, DEADLINE).await.len(), 4);
    let again = post(range(to - 4 * hour, to, false)).await.json();
    assert_eq!(counts(&again), (Some(0), Some(4)), "{again}");
    // The schedule's own run still lies ahead, and none was replayed.
    assert_eq!(one_pending(&cluster).await.0.len(), "hourly@2026-12-01T01:00:00Z".len());
    assert_eq!(instants(&cluster).await.len(), 5);
    for (body, field) in [
        (range(to, to - hour, false), "to"),
        (range(to, now_ms() + 10 * hour, false), "to"),
        (range(to - 8 * 24 * hour, to, false), "from"),
        (json!({ "from": to }).to_string(), "to"),
        (json!({ "last": "8d" }).to_string(), "last"),
        (json!({ "last": "0s" }).to_string(), "last"),
        (json!({ "last": "1h", "from": to }).to_string(), "from"),
    ] {
        let refused = post(body).await;
        assert_eq!((refused.status, &refused.json()["field"]), (400, &json!(field)));
    }
    let days = post(json!({ "last": "7d", "dry_run": true }).to_string()).await;
    assert_eq!((days.status, days.json()["made"].as_u64()), (200, Some(7 * 24 - 4)));
    // As if an older version had made runs until then.
    let upgraded = format!("update schedule set runs_known_from = {}", to - 2 * hour);
    sqlx::query(sqlx::AssertSqlSafe(upgraded)).execute(&cluster.sql).await.unwrap();
    assert_eq!(post(range(to - 3 * hour, to, true)).await.json()["field"], json!("from"));
    assert_eq!(post(range(to - 2 * hour, to, true)).await.status, 200);
    let none = format!("/v1/schedules/{topic}/none/backfill");
    assert_eq!(api.post(&none, range(to - hour, to, false)).await.status, 404);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn schedules_that_cannot_be_read_hold_up_no_others() {
    let cluster = Cluster::start("schedule-unreadable").await;
    let topic = cluster.topic("orders").await;
    let node = cluster.node().await;
    let api = node.api();
    for name in ["due", "older"] {
        let body = json!({ "cron": "0 0 1 1 *", "time_zone": "Europe/Berlin", "payload": 1 });
        put(api, &format!("/v1/schedules/{topic}/{name}"), &body).await;
    }
    eventually("both runs are made", DEADLINE, async || pending(&cluster).await.len() == 2).await;
    // As if a newer version had stored schedules of an unknown zone. They come first everywhere.
    let texts = [
        "insert into schedule (topic, name, shard, has_seconds, cron, time_zone, dst_gap,
           dst_overlap, exclude, missed_count_max, is_paused, next_run_at, look_at, tzdata)
         select topic, 'unreadable-' || n, shard, has_seconds, cron, 'Nowhere/Else', dst_gap,
           dst_overlap, exclude, missed_count_max, is_paused, 1, 1, '1998a'
         from schedule s cross join generate_series(1, 1100) n where s.name = 'due'",
        // Runs of long ago are forgotten, a few at a time.
        "insert into schedule_run (schedule_id, instant, first_id)
         select s.id, n, gen_random_uuid() from schedule s cross join generate_series(1, 300) n
         where s.name = 'due'",
        "update schedule set look_at = 1000 where name = 'due'",
        "update schedule set tzdata = '1999a' where name = 'older'",
    ];
    for text in texts {
        sqlx::query(text).execute(&cluster.sql).await.unwrap();
    }
    let due = "select count(*) from schedule where name = 'due' and look_at > 1000";
    eventually("runs are looked for", DEADLINE, async || cluster.count(due).await == 1).await;
    assert_eq!(cluster.count("select count(*) from schedule_run where instant <= 300").await, 100);
    let noted = "select count(*) from schedule where name = 'older' and tzdata > '1999a'";
    eventually("the rules are noted", DEADLINE, async || cluster.count(noted).await == 1).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn newer_rules_of_a_zone_move_unclaimed_runs_and_older_ones_move_none() {
    let cluster = Cluster::start("schedule-zones").await;
    let topic = cluster.topic("orders").await;
    let node = cluster.node().await;
    let api = node.api();
    for name in ["behind", "ahead"] {
        let body = json!({ "cron": "0 0 1 1 *", "time_zone": "Europe/Berlin", "payload": 1 });
        put(api, &format!("/v1/schedules/{topic}/{name}"), &body).await;
    }
    eventually("both runs are made", DEADLINE, async || pending(&cluster).await.len() == 2).await;
    let before = pending(&cluster).await;
    // As if other rules had made both runs an hour later.
    let texts = [
        "delete from task_name",
        "update schedule_run set instant = instant + 3600000",
        "update schedule set next_run_at = next_run_at + 3600000, revision = revision + 1,
           tzdata = case name when 'behind' then '1999a' else '9999a' end",
    ];
    for text in texts {
        sqlx::query(text).execute(&cluster.sql).await.unwrap();
    }
    let of = async |name: &str| api.look(&format!("/v1/schedules/{topic}/{name}")).await.json();
    eventually("the run by older rules is made anew", DEADLINE, async || {
        let now = pending(&cluster).await;
        let moved = now.iter().find(|run| run.0.starts_with("behind@"));
        moved.is_some_and(|run| !before.contains(run))
    })
    .await;
    let behind = of("behind").await;
    assert!(behind["next_run_at"].as_str().unwrap().ends_with("-12-31T23:00:00.000Z"), "{behind}");
    assert_ne!(behind["tzdata"], "1999a");
    let ahead = of("ahead").await;
    assert_eq!((&ahead["tzdata"], &ahead["revision"]), (&json!("9999a"), &json!(2)), "{ahead}");
    let kept = pending(&cluster).await;
    assert!(before.iter().filter(|run| run.0.starts_with("ahead@")).all(|run| kept.contains(run)));
}
