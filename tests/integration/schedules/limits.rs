//! The limit on the number of schedules, and the turns of principals at calls about them.

use std::iter::repeat_n;

use futures_util::future::join_all;
use reqwest::Method;
use serde_json::{Value, json};
use sqlx::Connection as _;

use super::{DEADLINE, put};
use crate::support::{Answer, Api, Cluster, eventually};
use crate::tokens::{AuthFile, run, text};

const BUSY: &str = "urn:punctual:problem:busy";
/// Counts the calls about schedules that wait for a lock.
const WAITING: &str = "select count(*) from pg_stat_activity where datname = current_database()
    and application_name = 'punctual schedules' and wait_event_type = 'Lock'";

fn yearly(payload: &str) -> Value {
    json!({ "every": "300d", "payload": payload })
}

async fn try_put(api: &Api, path: &str, headers: &[(&str, &str)], body: Value) -> Answer {
    api.send_with(Method::PUT, path, headers, Some(body)).await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn beyond_the_limit_new_schedules_are_refused_and_others_can_be_changed() {
    let cluster = Cluster::start("schedule-limit").await;
    let topic = cluster.topic("orders").await;
    let node = cluster.node_with(&["--schedules-max", "3"]).await;
    let api = node.api();
    let path = |name: &str| format!("/v1/schedules/{topic}/{name}");
    for name in ["a", "b", "c"] {
        put(api, &path(name), &yearly("first")).await;
    }
    for path in [path("d"), format!("{}?dry_run=true", path("d"))] {
        let refused = try_put(api, &path, &[], yearly("first")).await;
        let problem = refused.json();
        assert_eq!(refused.status, 422, "{problem}");
        assert_eq!(problem["type"], "urn:punctual:problem:too-many-schedules", "{problem}");
        assert!(problem["detail"].as_str().unwrap().contains("3 schedules"), "{problem}");
    }
    let limit = r#"punctual_api_rejected_total{limit="schedules_max"}"#;
    assert!(api.metric(limit).await >= 2.0);
    assert_eq!(put(api, &path("a"), &yearly("second")).await["revision"], 2);
    let schedules = "select count(*) from schedule";
    assert_eq!(cluster.count(schedules).await, 3);

    // Deleted ones make room at once, also on a node that has counted them.
    for name in ["a", "b"] {
        assert_eq!(api.send(Method::DELETE, &path(name), None).await.status, 200);
    }
    put(api, &path("d"), &yearly("first")).await;

    // Requests that are made at the same moment pass the limit by no more than their number: the
    // node stores two schedules at a time.
    let names: Vec<String> = (0..20).map(|number| path(&format!("n{number}"))).collect();
    let all = names.iter().map(|path| try_put(api, path, &[], yearly("first")));
    let answers = join_all(all).await;
    assert!(answers.iter().all(|answer| matches!(answer.status, 201 | 422)), "{answers:?}");
    let created = answers.iter().filter(|answer| answer.status == 201).count();
    assert!((1..=2).contains(&created), "{created}");
    assert!((3..=4).contains(&cluster.count(schedules).await));
    assert_eq!(try_put(api, &path("e"), &[], yearly("first")).await.status, 422);
}

/// Each call of ann waits for a locked schedule. Without turns, they would hold both connections
/// for calls about schedules, and fill the queue for them.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_calls_of_one_principal_do_not_make_those_of_others_wait() {
    const CALLS: usize = 60;
    let cluster = Cluster::start("schedule-turns").await;
    let topic = cluster.topic("orders").await;
    let mut file = "version = 1\n".to_owned();
    let mut tokens = Vec::new();
    for name in ["ann", "bob"] {
        let made = run(&["token", "new", "--principal", name], "").await;
        tokens.push(format!("Bearer {}", text(&made.stdout).trim()));
        let principal = text(&made.stderr);
        file.push_str(&format!("{principal}\nallow = [ {{ actions = ['*'], topics = ['*'] }} ]\n"));
    }
    file.push_str("[anonymous]\noperate = true\n");
    let file = AuthFile::new("schedule-turns", &file);
    let node = cluster.node_with(&["--auth-file", file.path()]).await;
    let api = node.api();
    let (locked, other) =
        (format!("/v1/schedules/{topic}/locked"), format!("/v1/schedules/{topic}/other"));
    let (ann, bob) =
        ([("authorization", tokens[0].as_str())], [("authorization", tokens[1].as_str())]);
    assert_eq!(try_put(api, &locked, &ann, yearly("first")).await.status, 201);

    let runs = async || cluster.count("select count(*) from schedule_run").await;
    eventually("its run is made", DEADLINE, async || runs().await == 1).await;
    let mut holder = cluster.database.connect().await;
    let lock = "begin; select from schedule where name = 'locked' for update";
    sqlx::raw_sql(lock).execute(&mut holder).await.unwrap();
    let of_ann = repeat_n(yearly("second"), CALLS);
    let of_ann = join_all(of_ann.map(|body| try_put(api, &locked, &ann, body)));
    let of_bob = async {
        let refused = async || {
            api.metric(r#"punctual_api_rejected_total{limit="schedules_share"}"#).await > 0.0
        };
        eventually("one call waits for the lock, and many for their turns", DEADLINE, async || {
            let in_flight = api.metric("punctual_api_requests_in_flight").await;
            in_flight >= 30.0 && cluster.count(WAITING).await > 0 || refused().await
        })
        .await;
        let answer = try_put(api, &other, &bob, yearly("first")).await;
        assert_eq!(answer.status, 201, "{}", answer.text);
        let listed = format!("/v1/schedules/{topic}");
        assert_eq!(api.send_with(Method::GET, &listed, &bob, None).await.status, 200);
        assert!(cluster.count(WAITING).await <= 1, "one call of ann has a connection");
        eventually("calls of ann are refused", DEADLINE, refused).await;
        holder.close().await.unwrap();
    };
    let (answers, ()) = tokio::join!(of_ann, of_bob);
    for answer in &answers {
        assert!(matches!(answer.status, 200 | 503), "{}: {}", answer.status, answer.text);
        assert_eq!(answer.header("retry-after").is_some(), answer.status == 503);
    }
    let busy = |answer: &&Answer| answer.text.contains("schedules_share");
    assert!(answers.iter().filter(busy).all(|answer| answer.json()["type"] == BUSY));
    assert!(answers.iter().any(|answer| busy(&answer)));
    assert_eq!(try_put(api, &locked, &ann, yearly("third")).await.status, 200, "it is free again");
}
