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

#[tokio::test]
async fn many_tasks_are_moved_by_a_span_or_to_a_time() {
    let api = api();
    let mut ids = Vec::new();
    for delay in ["1h", "2h", "3h"] {
        let task = format!(r#"{{"topic":"t","name":"n{delay}","delay":"{delay}","payload":1}}"#);
        ids.push(submitted(&api, &task).await);
    }
    let change = async |body: &str| {
        let response = api.ask(post("/v1/tasks/move", body.to_owned())).await;
        (response.status().as_u16(), json_of(response).await)
    };
    let due_at = async |id: &str| {
        json_of(api.ask(bare("GET", &format!("/v1/tasks/{id}"))).await).await["due_at"].clone()
    };
    let range = r#""due_from":"2026-01-01T01:00:00Z","due_to":"2026-01-01T03:00:00Z""#;
    let (status, answer) =
        change(&format!(r#"{{"topic":"t",{range},"by":"2h","dry_run":true}}"#)).await;
    assert_eq!((status, &answer["moved"], &answer["dry_run"]), (200, &2.into(), &true.into()));
    assert_eq!(due_at(&ids[0]).await, "2026-01-01T01:00:00.000Z");
    let (status, answer) = change(&format!(r#"{{"topic":"t",{range},"by":"2h"}}"#)).await;
    assert_eq!((status, &answer["moved"], &answer["more"]), (200, &2.into(), &false.into()));
    assert_eq!(due_at(&ids[0]).await, "2026-01-01T03:00:00.000Z");
    let names = r#"{"topic":"t","names":["n3h"],"to":"2026-02-01T00:00:00Z"}"#;
    assert_eq!(change(names).await.1["moved"], 1);
    assert_eq!(due_at(&ids[2]).await, "2026-02-01T00:00:00.000Z");
    for (body, status, kind, field) in [
        ("{}".to_owned(), 400, "missing-field", "topic"),
        (r#"{"topic":"t"}"#.to_owned(), 400, "missing-field", "by"),
        (format!(r#"{{"topic":"t",{range},"by":"1h"}}"#), 400, "invalid-value", "by"),
        (format!(r#"{{"topic":"t",{range},"by":"2h","to":1}}"#), 400, "conflicting-fields", "to"),
        (format!(r#"{{"topic":"t",{range},"by":"2000d"}}"#), 422, "too-far-ahead", "by"),
        (r#"{"topic":"t","submitted_by":"a"}"#.to_owned(), 400, "unknown-field", "submitted_by"),
        (r#"{"topic":"t","ids":[],"to":1}"#.to_owned(), 400, "invalid-value", "ids"),
    ] {
        let (found, problem) = change(&body).await;
        assert_eq!(found, status, "{body}");
        assert_eq!(problem["type"], format!("urn:punctual:problem:{kind}"), "{body}");
        assert_eq!(problem["field"], field, "{body}");
    }
}

#[tokio::test]
async fn a_choice_selects_among_the_tasks_of_a_topic() {
    let api = api();
    for (name, key) in [("a/1", "k"), ("a/2", "l"), ("b", "k")] {
        let task =
            format!(r#"{{"topic":"t","name":"{name}","key":"{key}","delay":"1h","payload":1}}"#);
        submitted(&api, &task).await;
    }
    let other = r#"{"topic":"u","name":"a/1","key":"k","delay":"1h","payload":1}"#;
    let foreign = submitted(&api, other).await;
    let list = async |query: &str| {
        let page = json_of(api.ask(bare("GET", &format!("/v1/tasks?topic=t&{query}"))).await).await;
        let names = page["tasks"].as_array().unwrap().iter().map(|task| task["name"].to_string());
        let mut names = names.collect::<Vec<_>>();
        names.sort();
        names.join(" ")
    };
    assert_eq!(list("name_prefix=a/").await, r#""a/1" "a/2""#);
    assert_eq!(list("key=k").await, r#""a/1" "b""#);
    assert_eq!(list("key_base64=aw%3D%3D").await, r#""a/1" "b""#);
    assert_eq!(list("names=b&names=a/2").await, r#""a/2" "b""#);
    assert_eq!(list(&format!("ids={foreign}")).await, "");
    let cancel = r#"{"topic":"t","name_prefix":"a/"}"#;
    let answer = json_of(api.ask(post("/v1/tasks/cancel", cancel)).await).await;
    assert_eq!(answer["cancelled"], 2);
    assert_eq!(list("key=k").await, r#""b""#);
    // A cursor is bound to its choice.
    submitted(&api, r#"{"topic":"t","key":"k","delay":"2h","payload":1}"#).await;
    let page = json_of(api.ask(bare("GET", "/v1/tasks?topic=t&key=k&limit=1")).await).await;
    let cursor = page["cursor"].as_str().unwrap();
    for (query, status) in [("key=k", 200), ("key=l", 400), ("name_prefix=k", 400)] {
        let path = format!("/v1/tasks?topic=t&{query}&cursor={cursor}");
        assert_eq!(api.ask(bare("GET", &path)).await.status().as_u16(), status, "{query}");
    }
}

#[tokio::test]
async fn a_put_may_ask_for_an_earlier_or_a_later_due_time() {
    let api = api();
    let put = async |query: &str, delay: &str| {
        let path = format!("/v1/topics/t/tasks/n?{query}");
        let body = format!(r#"{{"delay":"{delay}","payload":1}}"#);
        let response = api.ask(request("PUT", &path, Some("application/json"), body)).await;
        (response.status().as_u16(), json_of(response).await)
    };
    let (status, first) = put("when=absent", "2h").await;
    assert_eq!(status, 201);
    for (query, delay, status) in [
        ("when=absent", "1h", 412),
        ("when=earlier", "2h", 412),
        ("when=later", "2h", 412),
        ("when=later", "3h", 200),
        ("when=earlier", "1h", 200),
    ] {
        let (found, answer) = put(query, delay).await;
        assert_eq!(found, status, "{query} {delay}");
        if status == 412 {
            assert_eq!(answer["current_id"], first["id"]);
            assert!(answer["detail"].as_str().unwrap().contains("`when`"), "{answer}");
        }
    }
    let (status, capped) = put("when=later&not_after=2026-01-01T05:00:00Z", "9h").await;
    assert_eq!((status, &capped["due_at"]), (200, &"2026-01-01T05:00:00.000Z".into()));
    assert_eq!(put("when=never", "9h").await.0, 400);
    assert_eq!(put("not_after=2026-01-01T05:00:00Z", "9h").await.0, 400);
}
