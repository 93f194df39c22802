//! Each wrong request with its exact status, problem type and field. Nothing of them is stored.

use super::*;

const NO_FIELD: &str = "";

/// Body of a `POST /v1/tasks`, and what it gets.
const TASKS: &[(&str, u16, &str, &str)] = &[
    // Not JSON, or not an object.
    ("", 400, "malformed-json", NO_FIELD),
    ("{", 400, "malformed-json", NO_FIELD),
    ("{}x", 400, "malformed-json", NO_FIELD),
    ("{\"topic\":\"t\",}", 400, "malformed-json", NO_FIELD),
    ("{'topic':'t'}", 400, "malformed-json", NO_FIELD),
    ("{\"topic\":\"a\u{1}\"}", 400, "malformed-json", NO_FIELD),
    ("\u{feff}{}", 400, "malformed-json", NO_FIELD),
    ("{\"topic\":NaN}", 400, "malformed-json", NO_FIELD),
    ("[]", 400, "invalid-value", NO_FIELD),
    ("null", 400, "invalid-value", NO_FIELD),
    ("\"task\"", 400, "invalid-value", NO_FIELD),
    // Fields.
    ("{}", 400, "missing-field", "topic"),
    (r#"{"delay":1,"payload":1}"#, 400, "missing-field", "topic"),
    (r#"{"topic":"t","delay":1,"payload":1,"dely":2}"#, 400, "unknown-field", "dely"),
    (r#"{"topic":"t","delay":1,"payload":1,"Topic":"u"}"#, 400, "unknown-field", "Topic"),
    (r#"{"topic":"t","topic":"t","delay":1,"payload":1}"#, 400, "duplicate-field", "topic"),
    (r#"{"topic":"t","delay":1,"payload":1,"\u0064elay":1}"#, 400, "duplicate-field", "delay"),
    // Topics.
    (r#"{"topic":"","delay":1,"payload":1}"#, 400, "invalid-value", "topic"),
    (r#"{"topic":"a b","delay":1,"payload":1}"#, 400, "invalid-value", "topic"),
    (r#"{"topic":"..","delay":1,"payload":1}"#, 400, "invalid-value", "topic"),
    (r#"{"topic":"a\u0000","delay":1,"payload":1}"#, 400, "invalid-value", "topic"),
    (r#"{"topic":"\ud800","delay":1,"payload":1}"#, 400, "invalid-value", "topic"),
    (r#"{"topic":7,"delay":1,"payload":1}"#, 400, "invalid-value", "topic"),
    (r#"{"topic":null,"delay":1,"payload":1}"#, 400, "invalid-value", "topic"),
    (r#"{"topic":"no-such-topic","delay":1,"payload":1}"#, 422, "unknown-topic", "topic"),
    // Times.
    (r#"{"topic":"t","payload":1}"#, 400, "missing-field", "due_at"),
    (r#"{"topic":"t","due_at":"2030-01-01T00:00:00Z","delay":1,"payload":1}"#, 400, "conflicting-fields", "delay"),
    (r#"{"topic":"t","due_at":"2030-01-01T00:00:00","payload":1}"#, 400, "invalid-value", "due_at"),
    (r#"{"topic":"t","due_at":"soon","payload":1}"#, 400, "invalid-value", "due_at"),
    (r#"{"topic":"t","due_at":"1900-01-01T00:00:00Z","payload":1}"#, 400, "invalid-value", "due_at"),
    (r#"{"topic":"t","due_at":"2030-02-30T00:00:00Z","payload":1}"#, 400, "invalid-value", "due_at"),
    (r#"{"topic":"t","due_at":-1,"payload":1}"#, 400, "invalid-value", "due_at"),
    (r#"{"topic":"t","due_at":1893456000,"payload":1}"#, 400, "invalid-value", "due_at"),
    (r#"{"topic":"t","due_at":1893456000000.5,"payload":1}"#, 400, "invalid-value", "due_at"),
    (r#"{"topic":"t","due_at":1e300,"payload":1}"#, 400, "invalid-value", "due_at"),
    (r#"{"topic":"t","due_at":9223372036854775808,"payload":1}"#, 400, "invalid-value", "due_at"),
    (r#"{"topic":"t","due_at":{},"payload":1}"#, 400, "invalid-value", "due_at"),
    (r#"{"topic":"t","due_at":null,"payload":1}"#, 400, "invalid-value", "due_at"),
    (r#"{"topic":"t","due_at":"2040-01-01T00:00:00Z","payload":1}"#, 422, "too-far-ahead", "due_at"),
    (r#"{"topic":"t","delay":-1,"payload":1}"#, 400, "invalid-value", "delay"),
    (r#"{"topic":"t","delay":1.5,"payload":1}"#, 400, "invalid-value", "delay"),
    (r#"{"topic":"t","delay":"1 month","payload":1}"#, 400, "invalid-value", "delay"),
    (r#"{"topic":"t","delay":"P1Y","payload":1}"#, 400, "invalid-value", "delay"),
    (r#"{"topic":"t","delay":"-30m","payload":1}"#, 400, "invalid-value", "delay"),
    (r#"{"topic":"t","delay":"30","payload":1}"#, 400, "invalid-value", "delay"),
    (r#"{"topic":"t","delay":true,"payload":1}"#, 400, "invalid-value", "delay"),
    (r#"{"topic":"t","delay":99999999999999999999,"payload":1}"#, 400, "invalid-value", "delay"),
    (r#"{"topic":"t","delay":"2000d","payload":1}"#, 422, "too-far-ahead", "delay"),
    // Payloads.
    (r#"{"topic":"t","delay":1}"#, 400, "missing-field", "payload"),
    (r#"{"topic":"t","delay":1,"tombstone":false}"#, 400, "missing-field", "payload"),
    (r#"{"topic":"t","delay":1,"payload":null,"payload_text":"a"}"#, 400, "conflicting-fields", "payload_text"),
    (r#"{"topic":"t","delay":1,"payload_text":"a","payload_base64":"YQ=="}"#, 400, "conflicting-fields", "payload_base64"),
    (r#"{"topic":"t","delay":1,"payload_text":{"a":1}}"#, 400, "invalid-value", "payload_text"),
    (r#"{"topic":"t","delay":1,"payload_text":null}"#, 400, "invalid-value", "payload_text"),
    (r#"{"topic":"t","delay":1,"payload_base64":"a!=="}"#, 400, "invalid-value", "payload_base64"),
    (r#"{"topic":"t","delay":1,"payload_base64":"YQ"}"#, 400, "invalid-value", "payload_base64"),
    (r#"{"topic":"t","delay":1,"payload_base64":1}"#, 400, "invalid-value", "payload_base64"),
    (r#"{"topic":"t","delay":1,"tombstone":true}"#, 400, "missing-field", "key"),
    (r#"{"topic":"t","delay":1,"tombstone":true,"key":"k","payload":null}"#, 400, "conflicting-fields", "tombstone"),
    (r#"{"topic":"t","delay":1,"tombstone":"yes","key":"k"}"#, 400, "invalid-value", "tombstone"),
    // Keys, names, headers.
    (r#"{"topic":"t","delay":1,"payload":1,"key":"a","key_base64":"YQ=="}"#, 400, "conflicting-fields", "key_base64"),
    (r#"{"topic":"t","delay":1,"payload":1,"key":17}"#, 400, "invalid-value", "key"),
    (r#"{"topic":"t","delay":1,"payload":1,"key_base64":"*"}"#, 400, "invalid-value", "key_base64"),
    (r#"{"topic":"t","delay":1,"payload":1,"name":""}"#, 400, "invalid-value", "name"),
    (r#"{"topic":"t","delay":1,"payload":1,"name":"a\u0000"}"#, 400, "invalid-value", "name"),
    (r#"{"topic":"t","delay":1,"payload":1,"name":17}"#, 400, "invalid-value", "name"),
    (r#"{"topic":"t","delay":1,"payload":1,"headers":[]}"#, 400, "invalid-value", "headers"),
    (r#"{"topic":"t","delay":1,"payload":1,"headers":{"a":1}}"#, 400, "invalid-value", "headers.a"),
    (r#"{"topic":"t","delay":1,"payload":1,"headers":{"a":"1","a":"2"}}"#, 400, "duplicate-field", "headers.a"),
    (r#"{"topic":"t","delay":1,"payload":1,"headers":{"":"1"}}"#, 400, "invalid-value", "headers[\"\"]"),
    (r#"{"topic":"t","delay":1,"payload":1,"headers":{"ok":"1","Punctual-X":"1"}}"#, 400, "invalid-value", "headers.Punctual-X"),
    // What the service refuses, or cannot do.
    (r#"{"topic":"bad","delay":1,"payload":1}"#, 422, "refused-value", NO_FIELD),
    (r#"{"topic":"full","delay":1,"payload":1}"#, 503, "busy", NO_FIELD),
    (r#"{"topic":"away","delay":1,"payload":1}"#, 503, "unavailable", NO_FIELD),
    (r#"{"topic":"lost","delay":1,"payload":1}"#, 503, "outcome-unknown", NO_FIELD),
    (r#"{"topic":"leaving","delay":1,"payload":1}"#, 503, "draining", NO_FIELD),
    (r#"{"topic":"panic","delay":1,"payload":1}"#, 500, "internal", NO_FIELD),
];

/// Body of a `POST /v1/tasks/batch`, and what it gets as a whole.
const BATCHES: &[(&str, u16, &str, &str)] = &[
    ("[]", 400, "invalid-value", NO_FIELD),
    ("{}", 400, "missing-field", "tasks"),
    (r#"{"tasks":{}}"#, 400, "invalid-value", "tasks"),
    (r#"{"tasks":null}"#, 400, "invalid-value", "tasks"),
    (r#"{"tasks":[],"dry_run":true}"#, 400, "unknown-field", "dry_run"),
    (r#"{"tasks":[],"tasks":[]}"#, 400, "duplicate-field", "tasks"),
    (r#"{"tasks":[{]}"#, 400, "malformed-json", NO_FIELD),
];

/// One of three tasks of a batch, and what it gets.
const ITEMS: &[(&str, u16, &str, &str)] = &[
    ("7", 400, "invalid-value", "tasks[1]"),
    ("{}", 400, "missing-field", "tasks[1].topic"),
    (r#"{"topic":"t","due_at":"soon","payload":1}"#, 400, "invalid-value", "tasks[1].due_at"),
    (r#"{"topic":"t","delay":1,"payload":1,"headers":{"punctual-x":""}}"#, 400, "invalid-value", "tasks[1].headers.punctual-x"),
    (r#"{"topic":"no-such-topic","delay":1,"payload":1}"#, 422, "unknown-topic", "tasks[1].topic"),
    (r#"{"topic":"t","delay":"2000d","payload":1}"#, 422, "too-far-ahead", "tasks[1].delay"),
    (r#"{"topic":"full","delay":1,"payload":1}"#, 503, "busy", NO_FIELD),
    (r#"{"topic":"lost","delay":1,"payload":1}"#, 503, "outcome-unknown", NO_FIELD),
];

const ID: &str = "01b977ea-f4c0-8003-8000-000000000007";
const TASK: &str = r#"{"topic":"t","delay":1,"payload":1}"#;

/// Holds a problem against what is wanted of it.
fn check(problem: &Value, wanted: (u16, &str, &str), what: &str) {
    let (status, kind, field) = wanted;
    let found = (problem["status"].as_u64(), problem["type"].as_str(), problem["field"].as_str().unwrap_or(NO_FIELD));
    assert_eq!(
        found,
        (Some(u64::from(status)), Some(format!("urn:punctual:problem:{kind}").as_str()), field),
        "{what}: {problem}"
    );
    assert!(problem["detail"].as_str().is_some_and(|detail| detail.len() > 10), "{what}: {problem}");
    assert!(problem["title"].is_string());
    assert_eq!(problem["retry_after"].is_u64(), status == 503, "{what}: {problem}");
}

async fn check_response(response: Response, wanted: (u16, &str, &str), what: &str) {
    assert_eq!(response.status().as_u16(), wanted.0, "{what}");
    assert_eq!(header_of(&response, "content-type"), Some("application/problem+json"), "{what}");
    assert_eq!(header_of(&response, "retry-after").is_some(), wanted.0 == 503, "{what}");
    check(&json_of(response).await, wanted, what);
}

#[tokio::test]
async fn wrong_tasks_are_refused_with_the_field() {
    let api = api();
    for (body, status, kind, field) in TASKS {
        check_response(api.answer(post("/v1/tasks", *body)).await, (*status, kind, field), body).await;
    }
}

#[tokio::test]
async fn wrong_batches_are_refused_as_a_whole() {
    let api = api();
    for (body, status, kind, field) in BATCHES {
        check_response(api.answer(post("/v1/tasks/batch", *body)).await, (*status, kind, field), body).await;
    }
}

#[tokio::test]
async fn a_wrong_task_of_a_batch_has_a_result_of_its_own_and_the_others_are_taken() {
    let api = api();
    for (item, status, kind, field) in ITEMS {
        let response = api.answer(post("/v1/tasks/batch", format!(r#"{{"tasks":[{TASK},{item},{TASK}]}}"#))).await;
        assert_eq!(response.status(), StatusCode::OK);
        let answer = json_of(response).await;
        let statuses: Vec<u64> =
            answer["results"].as_array().unwrap().iter().map(|result| result["status"].as_u64().unwrap()).collect();
        assert_eq!(statuses, [201, u64::from(*status), 201], "{item}");
        check(&answer["results"][1]["problem"], (*status, kind, field), item);
    }
}

#[tokio::test]
async fn values_beyond_their_bounds_are_refused() {
    let api = api();
    let with = |field: &str, value: String| format!(r#"{{"topic":"t","delay":1,"payload":1,"{field}":{value}}}"#);
    let headers: Vec<String> = (0..129).map(|number| format!(r#""h{number}":"""#)).collect();
    for (body, field) in [
        (with("name", format!("{:?}", "n".repeat(256))), "name"),
        (with("headers", format!("{{{}}}", headers.join(","))), "headers"),
        (format!(r#"{{"topic":{:?},"delay":1,"payload":1}}"#, "t".repeat(250)), "topic"),
    ] {
        check_response(api.answer(post("/v1/tasks", body)).await, (400, "invalid-value", field), field).await;
    }
    let long = format!(r#"{{"topic":"small","delay":1,"payload_text":{:?}}}"#, "x".repeat(1000));
    check_response(api.answer(post("/v1/tasks", long)).await, (422, "record-too-large", "payload_text"), "too large").await;
    let long = format!(r#"{{"topic":"small","delay":1,"tombstone":true,"key":{:?}}}"#, "x".repeat(1000));
    check_response(api.answer(post("/v1/tasks", long)).await, (422, "record-too-large", "key"), "too large").await;
    let batch = format!(r#"{{"tasks":[{}0]}}"#, "0,".repeat(10_000));
    check_response(api.answer(post("/v1/tasks/batch", batch)).await, (413, "batch-too-large", "tasks"), "batch").await;
    let unknown: Vec<String> = (0..1000).map(|number| format!(r#""f{number}":1"#)).collect();
    let body = format!("{{{}}}", unknown.join(","));
    check_response(api.answer(post("/v1/tasks", body)).await, (400, "unknown-field", "f0"), "many fields").await;
}

#[tokio::test]
async fn a_body_that_is_no_utf_8_is_refused_with_its_place() {
    let response = api().answer(post("/v1/tasks", b"{\n\"topic\":\"\xff\"}".as_slice())).await;
    let problem = json_of(response).await;
    check(&problem, (400, "malformed-json", NO_FIELD), "not UTF-8");
    assert!(problem["detail"].as_str().unwrap().starts_with("line 2, column 10"), "{problem}");
}

#[tokio::test]
async fn malformed_json_is_refused_with_its_place() {
    let problem = json_of(api().answer(post("/v1/tasks", "{\n  \"topic\": \"t\",\n  \"delay\" 1}")).await).await;
    assert!(problem["detail"].as_str().unwrap().starts_with("line 3, column 11: expected `:`"), "{problem}");
}

#[tokio::test]
async fn wrong_paths_methods_and_content_types_are_refused() {
    let api = api();
    let id_path = format!("/v1/tasks/{ID}");
    let json = Some("application/json");
    let utf16 = Some("application/json; charset=utf-16");
    for (method, path, content_type, wanted) in [
        ("POST", "/v1/tasks", None, (415, "unsupported-media-type", "content-type")),
        ("POST", "/v1/tasks", Some("text/plain"), (415, "unsupported-media-type", "content-type")),
        ("POST", "/v1/tasks", Some("application/x-www-form-urlencoded"), (415, "unsupported-media-type", "content-type")),
        ("POST", "/v1/tasks", utf16, (415, "unsupported-media-type", "content-type")),
        ("POST", "/v1/tasks/batch", Some("application/jsonl"), (415, "unsupported-media-type", "content-type")),
        ("POST", "/v1/tasks?dry_run=true", json, (400, "unknown-field", "dry_run")),
        ("GET", "/", None, (404, "not-found", NO_FIELD)),
        ("GET", "/v1", None, (404, "not-found", NO_FIELD)),
        ("GET", "/v2/tasks", None, (404, "not-found", NO_FIELD)),
        ("POST", "/v1/tasks/", json, (404, "not-found", NO_FIELD)),
        ("DELETE", "/v1/tasks", None, (405, "method-not-allowed", NO_FIELD)),
        ("GET", "/v1/tasks?dry_run=true", None, (400, "unknown-field", "dry_run")),
        ("GET", "/v1/tasks?topic=a&topic=a", None, (400, "duplicate-field", "topic")),
        ("GET", "/v1/tasks?topic=a%20b", None, (400, "invalid-value", "topic")),
        ("GET", "/v1/tasks?limit=0", None, (400, "invalid-value", "limit")),
        ("GET", "/v1/tasks?limit=1001", None, (400, "invalid-value", "limit")),
        ("GET", "/v1/tasks?due_from=soon", None, (400, "invalid-value", "due_from")),
        ("GET", "/v1/tasks?due_to=2030-01-01T00:00:00", None, (400, "invalid-value", "due_to")),
        ("GET", "/v1/tasks?cursor=AAAA", None, (400, "invalid-value", "cursor")),
        ("GET", "/v1/tasks?topic=away", None, (503, "unavailable", NO_FIELD)),
        ("GET", "/v1/tasks/counts?due_to=1", None, (400, "unknown-field", "due_to")),
        ("GET", "/v1/tasks/counts?topic=away", None, (503, "unavailable", NO_FIELD)),
        ("POST", "/v1/tasks/cancel", None, (415, "unsupported-media-type", "content-type")),
        ("POST", "/v1/tasks/cancel?dry_run=true", json, (400, "unknown-field", "dry_run")),
        ("GET", "/v1/tasks/cancel", None, (405, "method-not-allowed", NO_FIELD)),
        ("GET", "/v1/dead?due_to=1", None, (400, "unknown-field", "due_to")),
        ("GET", "/v1/dead?cursor=", None, (400, "invalid-value", "cursor")),
        ("GET", "/v1/dead/17", None, (405, "method-not-allowed", NO_FIELD)),
        ("DELETE", "/v1/dead/17", None, (404, "task-not-found", "id")),
        ("DELETE", &format!("/v1/dead/{ID}"), None, (404, "task-not-found", "id")),
        ("DELETE", &format!("/v1/dead/{ID}?dry_run=true"), None, (400, "unknown-field", "dry_run")),
        ("POST", "/v1/dead/17/redrive", None, (404, "task-not-found", "id")),
        ("POST", &format!("/v1/dead/{ID}/redrive"), None, (404, "task-not-found", "id")),
        ("POST", &format!("/v1/dead/{ID}/redrive?dry_run=true"), None, (400, "unknown-field", "dry_run")),
        ("POST", "/v1/dead/redrive?dry_run=true", json, (400, "unknown-field", "dry_run")),
        ("PUT", "/v1/tasks", json, (405, "method-not-allowed", NO_FIELD)),
        ("GET", "/v1/tasks/batch", None, (405, "method-not-allowed", NO_FIELD)),
        ("PATCH", &id_path, json, (405, "method-not-allowed", NO_FIELD)),
        ("POST", "/v1/cluster", json, (405, "method-not-allowed", NO_FIELD)),
        ("DELETE", "/livez", None, (405, "method-not-allowed", NO_FIELD)),
        ("GET", "/v1/tasks/17", None, (404, "task-not-found", "id")),
        ("GET", "/v1/tasks/%ff", None, (404, "task-not-found", "id")),
        ("GET", "/v1/tasks/01934b2e-7d3c-4017-9f2b-6a1c0e4d5b7f", None, (404, "task-not-found", "id")),
        ("GET", &id_path, None, (404, "task-not-found", "id")),
        ("DELETE", "/v1/tasks/17", None, (404, "task-not-found", "id")),
        ("DELETE", &id_path, None, (404, "task-not-found", "id")),
        ("DELETE", &format!("{id_path}?dry_run=true"), None, (400, "unknown-field", "dry_run")),
        ("GET", "/v1/topics/t/tasks/n", None, (404, "task-not-found", "name")),
        ("DELETE", "/v1/topics/t/tasks/n", None, (404, "task-not-found", "name")),
        ("GET", "/v1/topics/a%20b/tasks/n", None, (400, "invalid-value", "topic")),
        ("GET", "/v1/topics/t/tasks/a%00", None, (400, "invalid-value", "name")),
        ("DELETE", "/v1/topics/t/tasks/%ff", None, (400, "invalid-value", "name")),
        ("DELETE", "/v1/topics/t/tasks/n?dry_run=true", None, (400, "unknown-field", "dry_run")),
        ("PUT", "/v1/topics/t/tasks/n", None, (415, "unsupported-media-type", "content-type")),
        ("PUT", "/v1/topics/t/tasks/n?dry_run=true", json, (400, "unknown-field", "dry_run")),
        ("PUT", "/v1/topics/a%20b/tasks/n", json, (400, "invalid-value", "topic")),
        ("PUT", "/v1/topics/t/tasks/n", json, (400, "unknown-field", "topic")),
        ("POST", "/v1/topics/t/tasks/n", json, (405, "method-not-allowed", NO_FIELD)),
        ("GET", "/v1/topics/t/tasks/", None, (404, "not-found", NO_FIELD)),
        ("GET", "/v1/topics/t/tasks/n/m", None, (404, "not-found", NO_FIELD)),
        ("GET", "/v1/cluster?all", None, (400, "unknown-field", "all")),
    ] {
        let what = format!("{method} {path} {content_type:?}");
        check_response(api.answer(request(method, path, content_type, TASK)).await, wanted, &what).await;
    }
}

/// Topic of a `PUT` by name, its body, and what it gets.
const REPLACEMENTS: &[(&str, &str, u16, &str, &str)] = &[
    ("t", "[]", 400, "invalid-value", NO_FIELD),
    ("t", "{}", 400, "missing-field", "due_at"),
    ("t", r#"{"delay":1,"payload":1,"name":"n"}"#, 400, "unknown-field", "name"),
    ("t", r#"{"delay":1}"#, 400, "missing-field", "payload"),
    ("t", r#"{"delay":"2000d","payload":1}"#, 422, "too-far-ahead", "delay"),
    ("no-such-topic", r#"{"delay":1,"payload":1}"#, 422, "unknown-topic", "topic"),
    ("bad", r#"{"delay":1,"payload":1}"#, 422, "refused-value", NO_FIELD),
    ("full", r#"{"delay":1,"payload":1}"#, 503, "busy", NO_FIELD),
    ("away", r#"{"delay":1,"payload":1}"#, 503, "unavailable", NO_FIELD),
    ("lost", r#"{"delay":1,"payload":1}"#, 503, "outcome-unknown", NO_FIELD),
    ("leaving", r#"{"delay":1,"payload":1}"#, 503, "draining", NO_FIELD),
    ("panic", r#"{"delay":1,"payload":1}"#, 500, "internal", NO_FIELD),
];

#[tokio::test]
async fn wrong_replacements_are_refused_with_the_field() {
    let api = api();
    for (topic, body, status, kind, field) in REPLACEMENTS {
        let path = format!("/v1/topics/{topic}/tasks/n");
        let response = api.answer(request("PUT", &path, Some("application/json"), *body)).await;
        check_response(response, (*status, kind, field), body).await;
        check_response(api.answer(bare("GET", &path)).await, (404, "task-not-found", "name"), "nothing of it is stored").await;
    }
}

/// What is wrong with a call for many tasks, and what it gets.
const BULKS: &[(&str, u16, &str, &str)] = &[
    ("[]", 400, "invalid-value", NO_FIELD),
    ("{", 400, "malformed-json", NO_FIELD),
    ("{}", 400, "missing-field", "topic"),
    (r#"{"topic":"a b"}"#, 400, "invalid-value", "topic"),
    (r#"{"topic":null}"#, 400, "invalid-value", "topic"),
    (r#"{"topic":"t","topic":"t"}"#, 400, "duplicate-field", "topic"),
    (r#"{"topic":"t","name":"n"}"#, 400, "unknown-field", "name"),
    (r#"{"topic":"t","dry_run":"yes"}"#, 400, "invalid-value", "dry_run"),
    (r#"{"topic":"t","dry_run":null}"#, 400, "invalid-value", "dry_run"),
    (r#"{"topic":"t","due_from":"soon"}"#, 400, "invalid-value", "due_from"),
    (r#"{"topic":"t","due_to":1893456000}"#, 400, "invalid-value", "due_to"),
    (r#"{"topic":"away"}"#, 503, "unavailable", NO_FIELD),
    (r#"{"topic":"lost"}"#, 503, "outcome-unknown", NO_FIELD),
];

#[tokio::test]
async fn wrong_calls_for_many_tasks_are_refused_with_the_field() {
    let api = api();
    for path in ["/v1/tasks/cancel", "/v1/dead/redrive"] {
        for (body, status, kind, field) in BULKS {
            check_response(api.answer(post(path, *body)).await, (*status, kind, field), body).await;
        }
    }
}

#[tokio::test]
async fn a_wrong_method_is_told_the_right_ones() {
    let api = api();
    for (path, allow) in [("/v1/tasks", "GET,HEAD,POST"), ("/v1/tasks/x", "GET,HEAD,DELETE"), ("/v1/cluster", "GET,HEAD")] {
        let response = api.answer(bare("PUT", path)).await;
        assert_eq!(header_of(&response, "allow"), Some(allow), "{path}");
    }
}

#[tokio::test]
async fn a_compressed_body_is_refused() {
    let mut compressed = post("/v1/tasks", TASK);
    compressed.headers_mut().insert("content-encoding", "gzip".parse().unwrap());
    check_response(api().answer(compressed).await, (415, "unsupported-media-type", "content-encoding"), "gzip").await;
}

#[tokio::test]
async fn a_node_that_drains_refuses_everything_but_probes() {
    let api = draining_api();
    let id_path = format!("/v1/tasks/{ID}");
    for (method, path) in
        [("POST", "/v1/tasks"), ("POST", "/v1/tasks/batch"), ("GET", &id_path), ("DELETE", &id_path), ("GET", "/v1/cluster")]
    {
        let response = api.answer(request(method, path, Some("application/json"), TASK)).await;
        assert_eq!(header_of(&response, "connection"), Some("close"));
        check_response(response, (503, "draining", NO_FIELD), path).await;
    }
    check_response(api.answer(bare("GET", "/readyz")).await, (503, "not-ready", NO_FIELD), "/readyz").await;
    assert_eq!(api.answer(bare("GET", "/livez")).await.status(), StatusCode::OK);
    assert_eq!(api.answer(bare("GET", "/metrics")).await.status(), StatusCode::OK);
}
