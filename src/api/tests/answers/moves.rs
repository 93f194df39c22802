//! Moves of tasks to another due time, as a caller sees them.

use super::*;

async fn submitted(api: &Api, body: &str) -> String {
    let answer = json_of(api.ask(post("/v1/tasks", body.to_owned())).await).await;
    answer["id"].as_str().unwrap().to_owned()
}

async fn moved(api: &Api, id: &str, body: &str) -> (StatusCode, Value) {
    let path = format!("/v1/tasks/{id}");
    let response =
        api.ask(request("PATCH", &path, Some("application/json"), body.to_owned())).await;
    (response.status(), json_of(response).await)
}

#[tokio::test]
async fn a_pending_task_gets_another_due_time_and_keeps_its_id() {
    let api = api();
    let id = submitted(&api, r#"{"topic":"t","name":"n","delay":"1h","payload":1}"#).await;
    let (status, answer) = moved(&api, &id, r#"{"due_at":"2030-01-31T09:30:00Z"}"#).await;
    assert_eq!((status, answer["verdict"].as_str()), (StatusCode::OK, Some("moved")));
    assert_eq!(answer["task"]["id"], id);
    assert_eq!(answer["task"]["due_at"], "2030-01-31T09:30:00.000Z");
    let shown = json_of(api.ask(bare("GET", "/v1/topics/t/tasks/n")).await).await;
    assert_eq!(
        (&shown["id"], &shown["due_at"]),
        (&answer["task"]["id"], &answer["task"]["due_at"])
    );
    let (_, answer) = moved(&api, &id, r#"{"delay":0}"#).await;
    assert_eq!(answer["task"]["state"], "scheduled");
}

#[tokio::test]
async fn the_task_of_a_name_is_moved_if_the_precondition_allows_it() {
    let api = api();
    let by_name = async |name: &str, tag: Option<&str>| {
        let path = format!("/v1/topics/t/tasks/{name}");
        let body = r#"{"due_at":"2030-01-31T09:30:00Z"}"#.to_owned();
        let mut request = request("PATCH", &path, Some("application/json"), body);
        if let Some(tag) = tag {
            request.headers_mut().insert("if-match", format!("\"{tag}\"").parse().unwrap());
        }
        let response = api.ask(request).await;
        (response.status(), json_of(response).await)
    };
    let (status, answer) = by_name("n", None).await;
    assert_eq!((status, &answer["verdict"]), (StatusCode::NOT_FOUND, &"not_found".into()));
    let id = submitted(&api, r#"{"topic":"t","name":"n","delay":"1h","payload":1}"#).await;
    let (status, answer) = by_name("n", Some("01b977ea-f4c0-8003-8000-000000000007")).await;
    assert_eq!(
        (status, &answer["current_id"]),
        (StatusCode::PRECONDITION_FAILED, &id.clone().into())
    );
    let (status, answer) = by_name("n", Some(&id)).await;
    assert_eq!((status, &answer["task"]["id"]), (StatusCode::OK, &id.into()));
    assert_eq!(answer["task"]["due_at"], "2030-01-31T09:30:00.000Z");
}

#[tokio::test]
async fn a_task_that_cannot_be_moved_has_its_verdict() {
    let api = api();
    for (topic, state) in [("published", "published"), ("claimed", "claimed"), ("dead", "dead")] {
        let task = format!(r#"{{"topic":"{topic}","delay":0,"payload":1}}"#);
        let (status, answer) = moved(&api, &submitted(&api, &task).await, r#"{"delay":1}"#).await;
        assert_eq!((status, &answer["verdict"]), (StatusCode::CONFLICT, &"too_late".into()));
        assert_eq!(answer["task"]["state"], state);
    }
    let id = submitted(&api, r#"{"topic":"t","delay":"1h","payload":1}"#).await;
    api.ask(bare("DELETE", &format!("/v1/tasks/{id}"))).await;
    let (status, answer) = moved(&api, &id, r#"{"delay":1}"#).await;
    assert_eq!((status, &answer["verdict"]), (StatusCode::CONFLICT, &"too_late".into()));
    assert_eq!(answer["task"]["state"], "cancelled");
    let (status, answer) =
        moved(&api, "01b977ea-f4c0-8003-8000-000000000007", r#"{"delay":1}"#).await;
    assert_eq!((status, &answer["verdict"]), (StatusCode::NOT_FOUND, &"not_found".into()));
    assert_eq!(moved(&api, "17", r#"{"delay":1}"#).await.0, StatusCode::NOT_FOUND);
}

#[tokio::test]
async fn a_wrong_time_and_a_lost_answer_are_problems() {
    let api = api();
    let id = submitted(&api, r#"{"topic":"t","delay":"1h","payload":1}"#).await;
    for (body, status, kind, field) in [
        ("{}", 400, "missing-field", "due_at"),
        (r#"{"delay":1,"due_at":1893456000000}"#, 400, "conflicting-fields", "delay"),
        (r#"{"delay":"soon"}"#, 400, "invalid-value", "delay"),
        (r#"{"delay":1,"payload":2}"#, 400, "unknown-field", "payload"),
        (r#"{"delay":"2000d"}"#, 422, "too-far-ahead", "delay"),
    ] {
        let (found, problem) = moved(&api, &id, body).await;
        assert_eq!(found.as_u16(), status, "{body}");
        assert_eq!(problem["type"], format!("urn:punctual:problem:{kind}"), "{body}");
        assert_eq!(problem["field"], field, "{body}");
    }
    let lost = submitted(&api, r#"{"topic":"unanswered","delay":"1h","payload":1}"#).await;
    let (status, problem) = moved(&api, &lost, r#"{"delay":1}"#).await;
    assert_eq!(status, StatusCode::SERVICE_UNAVAILABLE);
    assert_eq!(problem["type"], "urn:punctual:problem:outcome-unknown");
}
