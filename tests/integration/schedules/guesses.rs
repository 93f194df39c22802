//! A caller who may change a schedule, may not see its payload, and guesses it.

use reqwest::Method;
use serde_json::{Value, json};

use super::{DEADLINE, put};
use crate::support::{Cluster, eventually};
use crate::tokens::{AuthFile, run, text};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_guess_is_told_only_by_the_change_that_it_makes() {
    let cluster = Cluster::start("schedule-guess").await;
    let topic = cluster.topic("orders").await;
    let made = run(&["token", "new", "--principal", "ann"], "").await;
    let token = format!("Bearer {}", text(&made.stdout).trim());
    let ann = text(&made.stderr);
    let file = AuthFile::new(
        "schedule-guess",
        &format!(
            "version = 1\n{ann}\nallow = [ {{ actions = ['schedule', 'read'], topics = ['*'] }} \
             ]\n[anonymous]\nallow = [ {{ actions = ['*'], topics = ['*'] }} ]\n"
        ),
    );
    let node = cluster.node_with(&["--auth-file", file.path()]).await;
    let api = node.api();
    let body = |payload: &str| json!({ "every": "1s", "runs_max": 2, "payload": payload });
    let (path, other) =
        (format!("/v1/schedules/{topic}/ended"), format!("/v1/schedules/{topic}/other"));
    for path in [&path, &other] {
        put(api, path, &body("right")).await;
        eventually("the schedule has ended", DEADLINE, async || {
            api.look(path).await.json()["next_run_at"].is_null()
        })
        .await;
    }
    let ask = async |path: &str, guess: &str| {
        let headers = [("authorization", token.as_str())];
        let answer = api.send_with(Method::PUT, path, &headers, Some(body(guess))).await;
        let json = answer.json();
        assert_eq!(json["payload"], Value::Null, "{json}");
        (answer.status, json["revision"].clone(), json["next_run_at"].clone())
    };
    let dry = format!("{path}?dry_run=true");
    let answers = [ask(&dry, "right").await, ask(&dry, "wrong").await];
    assert_eq!(answers, [(200, json!(2), Value::Null), (200, json!(2), Value::Null)]);
    // A wrong guess is stored, so the next one is of no use.
    assert_eq!(ask(&path, "wrong").await, (200, json!(2), Value::Null));
    assert_eq!(api.look(&path).await.json()["payload"], "wrong");
    assert_eq!(ask(&other, "right").await, (200, json!(1), Value::Null));
    // A caller who may see the payload gets the same answer to another one.
    let seen = api.send_with(Method::PUT, &other, &[], Some(body("another"))).await;
    let (revision, next) = (seen.json()["revision"].clone(), seen.json()["next_run_at"].clone());
    assert_eq!((seen.status, revision, next), (200, json!(2), Value::Null), "{}", seen.text);
}
