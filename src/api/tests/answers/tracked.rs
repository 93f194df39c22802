//! Tracked tasks, and the calls of their consumers.

use super::*;

const TASK: &str = concat!(
    r#"{"topic":"tracked","name":"n","delay":0,"payload":1,"ttr":"90s","#,
    r#""retry":{"attempts_max":2,"dead_topic":"tracked.dead"}}"#
);

async fn call(api: &Api, path: &str, body: &str) -> (u16, Value) {
    let response = api.ask(post(path, body.to_owned())).await;
    (response.status().as_u16(), json_of(response).await)
}

fn of(answer: &Value) -> (&str, bool, bool, &str) {
    let flag = |name: &str| answer[name].as_bool().unwrap();
    let text = |value: &'_ Value| value.as_str().unwrap().to_owned();
    assert!(answer["task"]["id"].is_string() && !text(&answer["verdict"]).is_empty());
    (
        answer["verdict"].as_str().unwrap(),
        flag("in_flight"),
        flag("superseded"),
        answer["task"]["state"].as_str().unwrap(),
    )
}

#[tokio::test]
async fn a_tracked_task_is_submitted_with_its_policy_and_shows_it() {
    let api = api();
    let created = submit(&api, TASK).await;
    assert_eq!((&created["ttr"], &created["attempt"]), (&"1m 30s".into(), &0.into()));
    let retry = serde_json::json!({
        "attempts_max": 2,
        "backoff_min": "0s",
        "backoff_max": "1h",
        "backoff_factor": 2,
        "dead_topic": "tracked.dead",
    });
    assert_eq!((&created["retry"], &created["attempts_max"]), (&retry, &2.into()));
    let found = json_of(api.ask(bare("GET", "/v1/topics/tracked/tasks/n")).await).await;
    assert_eq!((&found["state"], &found["attempt"]), (&"awaiting".into(), &1.into()));
    assert_eq!((&found["retry"], &found["ttr"]), (&retry, &"1m 30s".into()));
    assert_eq!(found["finish_by"], "2026-01-01T00:01:30.000Z");
    let untracked = submit(&api, r#"{"topic":"t","delay":0,"payload":1}"#).await;
    assert!(untracked.get("ttr").is_none() && untracked["attempt"] == 1, "{untracked}");
}

#[tokio::test]
async fn a_task_is_finished_once_and_for_all() {
    let api = api();
    let id = submit(&api, TASK).await["id"].as_str().unwrap().to_owned();
    let finish = format!("/v1/tasks/{id}/finish");
    // The body may be left out, and a finish repeated.
    for request in [bare("POST", &finish), post(&finish, "null"), post(&finish, r#"{"attempt":1}"#)]
    {
        let response = api.ask(request).await;
        assert_eq!(response.status(), StatusCode::OK);
        assert_eq!(of(&json_of(response).await), ("finished", false, false, "finished"));
    }
    let (status, problem) = call(&api, &format!("/v1/tasks/{id}/fail"), r#"{"attempt":1}"#).await;
    assert_eq!((status, &problem["verdict"]), (409, &"already_finished".into()));
    assert_eq!(problem["task"]["finished_at"], "2026-01-01T00:00:00.000Z");
    let cancel = json_of(api.ask(bare("DELETE", &format!("/v1/tasks/{id}"))).await).await;
    assert_eq!(cancel["verdict"], "too_late");
}

#[tokio::test]
async fn a_task_is_failed_extended_and_given_up_by_its_name() {
    let api = api();
    submit(&api, TASK).await;
    let path = |call: &str| format!("/v1/topics/tracked/tasks/n/{call}");
    let (status, answer) = call(&api, &path("extend"), r#"{"attempt":1,"by":"5m"}"#).await;
    assert_eq!((status, of(&answer)), (200, ("extended", false, false, "awaiting")));
    let fail = r#"{"attempt":1,"reason":"no stock"}"#;
    for _ in 0..2 {
        let (status, answer) = call(&api, &path("fail"), fail).await;
        assert_eq!((status, of(&answer)), (200, ("retrying", false, false, "retrying")));
        assert_eq!(answer["task"]["retry_at"], "2026-01-01T00:00:01.000Z");
        assert_eq!(answer["task"]["attempts"][0]["reason"], "no stock");
    }
    let (status, problem) = call(&api, &path("extend"), r#"{"attempt":1}"#).await;
    assert_eq!((status, &problem["verdict"]), (409, &"already_failed".into()));
    let (status, problem) = call(&api, &path("finish"), r#"{"attempt":2}"#).await;
    assert_eq!((status, &problem["verdict"]), (409, &"attempt_too_high".into()));
    let final_fail = r#"{"attempt":1,"final":true}"#;
    submit(&api, &TASK.replace(r#""n""#, r#""m""#)).await;
    let (status, answer) = call(&api, "/v1/topics/tracked/tasks/m/fail", final_fail).await;
    assert_eq!((status, &answer["verdict"]), (200, &"dead".into()));
}

#[tokio::test]
async fn a_task_that_awaits_its_consumer_is_neither_cancelled_nor_replaced() {
    let api = api();
    submit(&api, TASK).await;
    let path = "/v1/topics/tracked/tasks/n";
    for request in [
        bare("DELETE", path),
        request("PUT", path, Some("application/json"), r#"{"delay":"1h","payload":2}"#),
    ] {
        let response = api.ask(request).await;
        assert_eq!(response.status(), StatusCode::CONFLICT);
        let problem = json_of(response).await;
        assert_eq!(problem["verdict"], "too_late");
        assert!(problem["detail"].as_str().unwrap().contains("/finish"), "{problem}");
    }
}

#[tokio::test]
async fn a_call_without_an_answer_says_whether_anything_was_done() {
    let api = api();
    for (topic, kind) in [("full", "busy"), ("away", "unavailable"), ("lost", "outcome-unknown")] {
        let (status, problem) =
            call(&api, &format!("/v1/topics/{topic}/tasks/n/finish"), "{}").await;
        let kind = format!("urn:punctual:problem:{kind}");
        assert_eq!((status, &problem["type"]), (503, &kind.into()), "{problem}");
    }
}

#[tokio::test]
async fn untracked_tasks_take_no_calls() {
    let api = api();
    let task = submit(&api, r#"{"topic":"t","delay":0,"payload":1}"#).await;
    let path = format!("/v1/tasks/{}", task["id"].as_str().unwrap());
    for (name, body) in
        [("finish", ""), ("fail", r#"{"attempt":1}"#), ("extend", r#"{"attempt":1}"#)]
    {
        let (status, problem) = call(&api, &format!("{path}/{name}"), body).await;
        assert_eq!((status, &problem["verdict"]), (409, &"not_tracked".into()), "{name}");
        assert_eq!(problem["type"], "urn:punctual:problem:not-tracked");
    }
}

#[tokio::test]
async fn a_refused_outcome_of_many_shows_its_task_without_the_payload() {
    let api = api();
    submit(&api, r#"{"topic":"t","name":"n","delay":"1h","payload":"large","key":"k"}"#).await;
    let outcome = r#"{"topic":"t","name":"n","outcome":"finish"}"#;
    let body = format!(r#"{{"outcomes":[{outcome},{outcome}]}}"#);
    let answer = json_of(api.ask(post("/v1/outcomes", body)).await).await;
    let task = &answer["results"][0]["problem"]["task"];
    assert_eq!((&task["name"], &task["key"]), (&"n".into(), &"k".into()), "{answer}");
    assert_eq!((task.get("payload"), task.get("tombstone")), (None, None), "{answer}");
}
