//! What right requests get.

use super::*;

#[tokio::test]
async fn a_task_is_created_with_its_location_and_can_be_looked_up() {
    let api = api();
    let task = r#"{"topic":"orders","due_at":"2030-01-31T10:30:00.25+01:00","payload":{"a" : 1.0},"key":"k","headers":{"h":"1"},"name":"order-17"}"#;
    let response = api.ask(post("/v1/tasks", task)).await;
    assert_eq!(response.status(), StatusCode::CREATED);
    let location = header_of(&response, "location").unwrap().to_owned();
    let created = json_of(response).await;
    let id = created["id"].as_str().unwrap();
    assert_eq!(location, format!("/v1/tasks/{id}"));
    let wanted = format!(
        r#"{{"id":"{id}","topic":"orders","name":"order-17","key":"k","due_at":"2030-01-31T09:30:00.250Z","state":"scheduled","attempt":1}}"#
    );
    assert_eq!(created, serde_json::from_str::<Value>(&wanted).unwrap());
    let found = text_of(api.ask(bare("GET", &location)).await).await;
    assert_eq!(found, format!(r#"{},"headers":{{"h":"1"}},"payload":{{"a" : 1.0}}}}"#, wanted.trim_end_matches('}')));
}

#[tokio::test]
async fn a_known_name_gets_the_first_task() {
    let api = api();
    let first = submit(&api, r#"{"topic":"t","delay":"1h","payload":1,"key":"k","name":"n"}"#).await;
    let response = api.ask(post("/v1/tasks", r#"{"topic":"t","delay":"2h","payload":2,"name":"n"}"#)).await;
    assert_eq!(response.status(), StatusCode::OK);
    let again = json_of(response).await;
    assert_eq!(
        (&again["id"], &again["due_at"], &again["key"], &again["payload"]),
        (&first["id"], &first["due_at"], &Value::from("k"), &Value::from(1))
    );
    let batch = r#"{"tasks":[{"topic":"t","delay":"2h","payload":2,"name":"n","key":"other"}]}"#;
    let result = json_of(api.ask(post("/v1/tasks/batch", batch)).await).await["results"][0].clone();
    assert_eq!(
        (&result["status"], &result["task"]["id"], &result["task"]["key"]),
        (&Value::from(200), &first["id"], &Value::Null)
    );
}

/// `PUT` by name.
async fn put(api: &Api, path: &str, task: &str) -> Response {
    api.ask(request("PUT", path, Some("application/json"), task.to_owned())).await
}

#[tokio::test]
async fn a_task_is_created_replaced_looked_up_and_cancelled_by_its_name() {
    let api = api();
    let path = "/v1/topics/orders/tasks/a%2Fb%20%C3%A4";
    let response = put(&api, path, r#"{"delay":"1h","payload":1,"key":"k"}"#).await;
    assert_eq!(response.status(), StatusCode::CREATED);
    let location = header_of(&response, "location").unwrap().to_owned();
    let first = json_of(response).await;
    assert_eq!(location, format!("/v1/tasks/{}", first["id"].as_str().unwrap()));
    assert_eq!((&first["topic"], &first["name"], &first["key"]), (&"orders".into(), &"a/b ä".into(), &"k".into()));
    let response = put(&api, path, r#"{"delay":"2h","payload":2}"#).await;
    assert_eq!(response.status(), StatusCode::OK);
    let second = json_of(response).await;
    assert_ne!(second["id"], first["id"]);
    assert_eq!(json_of(api.ask(bare("GET", &location)).await).await["state"], Value::from("cancelled"));
    let found = json_of(api.ask(bare("GET", path)).await).await;
    assert_eq!((&found["id"], &found["payload"], &found["state"]), (&second["id"], &Value::from(2), &"scheduled".into()));
    for _ in 0..2 {
        let cancelled = json_of(api.ask(bare("DELETE", path)).await).await;
        assert_eq!((&cancelled["verdict"], &cancelled["task"]["id"]), (&"cancelled".into(), &second["id"]));
    }
    // What is final gives way.
    assert_eq!(put(&api, path, r#"{"delay":"3h","payload":3}"#).await.status(), StatusCode::CREATED);
}

#[tokio::test]
async fn a_replacement_that_is_too_late_shows_the_task_and_changes_nothing() {
    let api = api();
    let first = submit(&api, r#"{"topic":"claimed","delay":"1h","payload":1,"name":"n"}"#).await;
    let response = put(&api, "/v1/topics/claimed/tasks/n", r#"{"delay":"2h","payload":2}"#).await;
    assert_eq!(response.status(), StatusCode::CONFLICT);
    let problem = json_of(response).await;
    assert_eq!((&problem["type"], &problem["verdict"]), (&"urn:punctual:problem:too-late".into(), &"too_late".into()));
    assert_eq!((&problem["task"]["id"], &problem["task"]["payload"]), (&first["id"], &Value::from(1)));
}

#[tokio::test]
async fn a_replacement_whose_outcome_is_unknown_can_be_repeated() {
    let problem = json_of(put(&api(), "/v1/topics/lost/tasks/n", r#"{"delay":"2h","payload":2}"#).await).await;
    assert!(problem["detail"].as_str().unwrap().contains("Repeating is safe"), "{problem}");
}

#[tokio::test]
async fn content_types_of_json_in_utf_8_are_taken() {
    let api = api();
    for content_type in ["application/json", "Application/JSON; charset=UTF-8", "application/json;charset=\"utf-8\""] {
        let request = request("POST", "/v1/tasks", Some(content_type), r#"{"topic":"t","delay":0,"payload":null}"#);
        assert_eq!(api.ask(request).await.status(), StatusCode::CREATED, "{content_type}");
    }
}

#[tokio::test]
async fn a_batch_is_answered_in_order() {
    let api = api();
    let tasks: Vec<String> =
        (0..1000).map(|number| format!(r#"{{"topic":"t{}","delay":0,"payload":1,"key":"{number}"}}"#, number % 3)).collect();
    let answer = json_of(api.ask(post("/v1/tasks/batch", format!(r#"{{"tasks":[{}]}}"#, tasks.join(",")))).await).await;
    let results = answer["results"].as_array().unwrap();
    assert_eq!(results.len(), 1000);
    for (number, result) in results.iter().enumerate() {
        assert_eq!((&result["status"], &result["task"]["key"]), (&Value::from(201), &Value::from(number.to_string())));
        assert_eq!(result["task"]["topic"], Value::from(format!("t{}", number % 3)));
    }
    let empty = api.ask(post("/v1/tasks/batch", r#"{"tasks":[]}"#)).await;
    assert_eq!(text_of(empty).await, r#"{"results":[]}"#);
}

#[tokio::test]
async fn a_cancel_has_its_verdict_also_when_repeated() {
    let api = api();
    let task = submit(&api, r#"{"topic":"t","delay":"1h","payload":1}"#).await;
    let path = format!("/v1/tasks/{}", task["id"].as_str().unwrap());
    for _ in 0..2 {
        let response = api.ask(bare("DELETE", &path)).await;
        assert_eq!(response.status(), StatusCode::OK);
        let answer = json_of(response).await;
        assert_eq!((&answer["verdict"], &answer["task"]["state"]), (&Value::from("cancelled"), &Value::from("cancelled")));
    }
}

#[tokio::test]
async fn a_cancel_that_is_too_late_carries_the_receipt() {
    let api = api();
    let task = submit(&api, r#"{"topic":"published","delay":"1h","payload":1}"#).await;
    let response = api.ask(bare("DELETE", &format!("/v1/tasks/{}", task["id"].as_str().unwrap()))).await;
    assert_eq!(response.status(), StatusCode::CONFLICT);
    let problem = json_of(response).await;
    assert_eq!((&problem["verdict"], &problem["task"]["receipt"]["lateness_ms"]), (&Value::from("too_late"), &Value::from(3)));
}

#[tokio::test]
async fn a_cancel_of_nothing_says_so() {
    for id in ["17", "01b977ea-f4c0-8003-8000-000000000007"] {
        let problem = json_of(api().ask(bare("DELETE", &format!("/v1/tasks/{id}"))).await).await;
        assert_eq!(problem["verdict"], Value::from("not_found"));
    }
}

#[tokio::test]
async fn what_is_unknown_says_how_to_repeat_it() {
    let problem = json_of(api().ask(post("/v1/tasks", r#"{"topic":"lost","delay":0,"payload":1}"#)).await).await;
    let detail = problem["detail"].as_str().unwrap();
    assert!(detail.contains("may be stored") && detail.contains("with a name"), "{detail}");
}

#[tokio::test]
async fn the_cluster_is_shown() {
    let cluster = json_of(api().ask(bare("GET", "/v1/cluster")).await).await;
    assert_eq!(cluster["now"], Value::from("2026-01-01T00:00:00.000Z"));
    assert_eq!((&cluster["window_ms"], &cluster["nodes"][0]["heartbeat_age_ms"]), (&Value::from(200), &Value::from(250)));
    assert_eq!((&cluster["nodes"][0]["shards"], &cluster["missing"]), (&serde_json::json!([0, 1, 2, 3]), &serde_json::json!([])));
}

#[tokio::test]
async fn readiness_says_what_is_missing() {
    assert_eq!(api().ask(bare("GET", "/readyz")).await.status(), StatusCode::OK);
    let problem = json_of(draining_api().ask(bare("GET", "/readyz")).await).await;
    assert_eq!(problem["missing"][0]["what"], Value::from("draining"));
}

#[tokio::test]
async fn requests_are_counted_by_route_method_and_status() {
    let api = api();
    submit(&api, r#"{"topic":"t","delay":0,"payload":1}"#).await;
    api.ask(bare("GET", "/v1/tasks/17")).await;
    api.ask(bare("BREW", "/secret-name")).await;
    let response = api.ask(bare("GET", "/metrics")).await;
    assert_eq!(header_of(&response, "content-type"), Some("application/openmetrics-text; version=1.0.0; charset=utf-8"));
    let text = text_of(response).await;
    for line in [
        r#"punctual_api_requests_total{route="/v1/tasks",method="POST",status="201"} 1"#,
        r#"punctual_api_requests_total{route="/v1/tasks/{id}",method="GET",status="404"} 1"#,
        r#"punctual_api_requests_total{route="none",method="other",status="404"} 1"#,
        r#"punctual_api_request_duration_seconds_count{route="/v1/tasks"} 1"#,
        "punctual_api_requests_in_flight 1",
        "punctual_api_body_memory_bytes 0",
    ] {
        assert!(text.contains(line), "{line} in\n{text}");
    }
}
