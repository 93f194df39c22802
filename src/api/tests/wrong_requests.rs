//! Each wrong request with its exact status, problem type and field. No task is stored. Requests
//! that are wrong on any node are in `rows`; tests/integration/bad_input.rs sends them to a real
//! node, too.

use super::*;

mod quotas;
mod rights;
mod rows;

use rows::*;

const ID: &str = "01b977ea-f4c0-8003-8000-000000000007";

/// Topics of the model that refuse or fail.
const TASKS_OF_MODEL: &[WrongBody] = &[
    (r#"{"topic":"bad","delay":1,"payload":1}"#, 422, "refused-value", NO_FIELD),
    (r#"{"topic":"full","delay":1,"payload":1}"#, 503, "busy", NO_FIELD),
    (r#"{"topic":"away","delay":1,"payload":1}"#, 503, "unavailable", NO_FIELD),
    (r#"{"topic":"lost","delay":1,"payload":1}"#, 503, "outcome-unknown", NO_FIELD),
    (r#"{"topic":"leaving","delay":1,"payload":1}"#, 503, "draining", NO_FIELD),
    (r#"{"topic":"panic","delay":1,"payload":1}"#, 500, "internal", NO_FIELD),
];

const REQUESTS_OF_MODEL: &[RequestRow] = &[
    ("GET", "/v1/tasks?topic=away", None, (503, "unavailable", NO_FIELD)),
    ("GET", "/v1/tasks/counts?topic=away", None, (503, "unavailable", NO_FIELD)),
];

const BULKS_OF_MODEL: &[WrongBody] = &[
    (r#"{"topic":"away"}"#, 503, "unavailable", NO_FIELD),
    (r#"{"topic":"lost"}"#, 503, "outcome-unknown", NO_FIELD),
];

/// The same, of one of three tasks of a batch.
const ITEMS_OF_MODEL: &[WrongBody] = &[
    (r#"{"topic":"full","delay":1,"payload":1}"#, 503, "busy", NO_FIELD),
    (r#"{"topic":"lost","delay":1,"payload":1}"#, 503, "outcome-unknown", NO_FIELD),
];

/// Compares a problem with the expected one.
fn check(problem: &Value, wanted: (u16, &str, &str), what: &str) {
    let (status, kind, field) = wanted;
    let found = (
        problem["status"].as_u64(),
        problem["type"].as_str(),
        problem["field"].as_str().unwrap_or(NO_FIELD),
    );
    assert_eq!(
        found,
        (Some(u64::from(status)), Some(format!("urn:punctual:problem:{kind}").as_str()), field),
        "{what}: {problem}"
    );
    assert!(
        problem["detail"].as_str().is_some_and(|detail| detail.len() > 10),
        "{what}: {problem}"
    );
    assert!(problem["title"].is_string());
    assert_eq!(problem["retry_after"].is_u64(), matches!(status, 429 | 503), "{what}: {problem}");
}

async fn check_response(response: Response, wanted: (u16, &str, &str), what: &str) {
    assert_eq!(response.status().as_u16(), wanted.0, "{what}");
    assert_eq!(header_of(&response, "content-type"), Some("application/problem+json"), "{what}");
    assert_eq!(
        header_of(&response, "retry-after").is_some(),
        matches!(wanted.0, 429 | 503),
        "{what}"
    );
    let request_id = header_of(&response, "x-request-id").unwrap().to_owned();
    let problem = json_of(response).await;
    assert_eq!(problem["request_id"], Value::from(request_id), "{what}");
    check(&problem, wanted, what);
}

#[tokio::test]
async fn wrong_tasks_are_refused_with_the_field() {
    let api = api();
    for (body, status, kind, field) in TASKS.iter().chain(TASKS_OF_MODEL) {
        check_response(api.ask(post("/v1/tasks", *body)).await, (*status, kind, field), body).await;
    }
}

#[tokio::test]
async fn wrong_batches_are_refused_as_a_whole() {
    let api = api();
    for (body, status, kind, field) in BATCHES {
        check_response(api.ask(post("/v1/tasks/batch", *body)).await, (*status, kind, field), body)
            .await;
    }
}

#[tokio::test]
async fn a_wrong_task_of_a_batch_has_a_result_of_its_own_and_the_others_are_taken() {
    let api = api();
    for (item, status, kind, field) in ITEMS.iter().chain(ITEMS_OF_MODEL) {
        let response = api
            .ask(post("/v1/tasks/batch", format!(r#"{{"tasks":[{TASK},{item},{TASK}]}}"#)))
            .await;
        assert_eq!(response.status(), StatusCode::OK);
        let answer = json_of(response).await;
        let statuses: Vec<u64> = answer["results"]
            .as_array()
            .unwrap()
            .iter()
            .map(|result| result["status"].as_u64().unwrap())
            .collect();
        assert_eq!(statuses, [201, u64::from(*status), 201], "{item}");
        check(&answer["results"][1]["problem"], (*status, kind, field), item);
    }
}

#[tokio::test]
async fn a_wrong_outcome_has_a_result_of_its_own_and_the_others_are_taken() {
    let api = api();
    let of_model = [
        (r#"{"topic":"full","name":"n","outcome":"finish"}"#, 503, "busy", NO_FIELD),
        (r#"{"topic":"away","name":"n","outcome":"finish"}"#, 503, "unavailable", NO_FIELD),
        (r#"{"topic":"lost","name":"n","outcome":"finish"}"#, 503, "outcome-unknown", NO_FIELD),
    ];
    submit(&api, r#"{"topic":"tracked","name":"n","delay":0,"payload":1,"ttr":"1m"}"#).await;
    let right = r#"{"topic":"tracked","name":"n","outcome":"finish"}"#;
    for (item, status, kind, field) in OUTCOMES.iter().chain(&of_model) {
        let body = format!(r#"{{"outcomes":[{right},{item},{right}]}}"#);
        let response = api.ask(post("/v1/outcomes", body)).await;
        assert_eq!(response.status(), StatusCode::OK, "{item}");
        let answer = json_of(response).await;
        let statuses: Vec<u64> = answer["results"]
            .as_array()
            .unwrap()
            .iter()
            .map(|result| result["status"].as_u64().unwrap())
            .collect();
        assert_eq!(statuses, [200, u64::from(*status), 200], "{item}");
        check(&answer["results"][1]["problem"], (*status, kind, field), item);
    }
    let many = format!(r#"{{"outcomes":[{}0]}}"#, "0,".repeat(10_000));
    let response = api.ask(post("/v1/outcomes", many)).await;
    check_response(response, (413, "batch-too-large", "outcomes"), "too many").await;
    for (body, kind) in [("{}", "missing-field"), (r#"{"outcomes":{}}"#, "invalid-value")] {
        let response = api.ask(post("/v1/outcomes", body)).await;
        check_response(response, (400, kind, "outcomes"), body).await;
    }
    let refused = r#"punctual_api_rejected_total{limit="outcomes"}"#;
    assert_eq!(metric(&api, refused).await.as_deref(), Some("1"));
}

#[tokio::test]
async fn values_beyond_their_limits_are_refused() {
    let api = api();
    let with = |field: &str, value: String| {
        format!(r#"{{"topic":"t","delay":1,"payload":1,"{field}":{value}}}"#)
    };
    let headers: Vec<String> = (0..129).map(|number| format!(r#""h{number}":"""#)).collect();
    for (body, field) in [
        (with("name", format!("{:?}", "n".repeat(256))), "name"),
        (with("headers", format!("{{{}}}", headers.join(","))), "headers"),
        (with("headers", format!("{{\"h\":[{}null]}}", "null,".repeat(128))), "headers"),
        (with("headers", r#"{"h":[]}"#.to_owned()), "headers.h"),
        (with("name", r#"".""#.to_owned()), "name"),
        (with("name", r#""..""#.to_owned()), "name"),
        (format!(r#"{{"topic":{:?},"delay":1,"payload":1}}"#, "t".repeat(250)), "topic"),
    ] {
        check_response(
            api.ask(post("/v1/tasks", body)).await,
            (400, "invalid-value", field),
            field,
        )
        .await;
    }
    let long = format!(r#"{{"topic":"small","delay":1,"payload_text":{:?}}}"#, "x".repeat(1000));
    check_response(
        api.ask(post("/v1/tasks", long)).await,
        (422, "record-too-large", "payload_text"),
        "too large",
    )
    .await;
    let long =
        format!(r#"{{"topic":"small","delay":1,"tombstone":true,"key":{:?}}}"#, "x".repeat(1000));
    check_response(
        api.ask(post("/v1/tasks", long)).await,
        (422, "record-too-large", "key"),
        "too large",
    )
    .await;
    let keyless = r#"{"topic":"compacted","delay":1,"payload":1}"#;
    check_response(
        api.ask(post("/v1/tasks", keyless)).await,
        (422, "key-required", "key"),
        "no key",
    )
    .await;
    let batch = format!(r#"{{"tasks":[{}0]}}"#, "0,".repeat(10_000));
    check_response(
        api.ask(post("/v1/tasks/batch", batch)).await,
        (413, "batch-too-large", "tasks"),
        "batch",
    )
    .await;
    let unknown: Vec<String> = (0..1000).map(|number| format!(r#""f{number}":1"#)).collect();
    let body = format!("{{{}}}", unknown.join(","));
    check_response(
        api.ask(post("/v1/tasks", body)).await,
        (400, "unknown-field", "f0"),
        "many fields",
    )
    .await;
}

#[tokio::test]
async fn a_body_that_is_no_utf_8_is_refused_with_its_place() {
    let response = api().ask(post("/v1/tasks", b"{\n\"topic\":\"\xff\"}".as_slice())).await;
    let problem = json_of(response).await;
    check(&problem, (400, "malformed-json", NO_FIELD), "not UTF-8");
    assert!(problem["detail"].as_str().unwrap().starts_with("line 2, column 10"), "{problem}");
}

#[tokio::test]
async fn malformed_json_is_refused_with_its_place() {
    let problem =
        json_of(api().ask(post("/v1/tasks", "{\n  \"topic\": \"t\",\n  \"delay\" 1}")).await).await;
    assert!(
        problem["detail"].as_str().unwrap().starts_with("line 3, column 11: expected `:`"),
        "{problem}"
    );
}

#[tokio::test]
async fn wrong_paths_methods_and_content_types_are_refused() {
    let api = api();
    for (method, path, content_type, wanted) in REQUESTS.iter().chain(REQUESTS_OF_MODEL) {
        let what = format!("{method} {path} {content_type:?}");
        let body = content_type.map_or("", |_json| TASK);
        check_response(api.ask(request(method, path, *content_type, body)).await, *wanted, &what)
            .await;
    }
}

/// Topic of the model, body of a `PUT` by name, and the expected answer.
const REPLACEMENTS_OF_MODEL: &[WrongBodyOfTopic] = &[
    ("bad", r#"{"delay":1,"payload":1}"#, 422, "refused-value", NO_FIELD),
    ("full", r#"{"delay":1,"payload":1}"#, 503, "busy", NO_FIELD),
    ("away", r#"{"delay":1,"payload":1}"#, 503, "unavailable", NO_FIELD),
    ("lost", r#"{"delay":1,"payload":1}"#, 503, "outcome-unknown", NO_FIELD),
    ("leaving", r#"{"delay":1,"payload":1}"#, 503, "draining", NO_FIELD),
    ("panic", r#"{"delay":1,"payload":1}"#, 500, "internal", NO_FIELD),
];

#[tokio::test]
async fn wrong_calls_for_many_tasks_are_refused_with_the_field() {
    let api = api();
    for path in ["/v1/tasks/cancel", "/v1/dead/redrive", "/v1/dead/drop"] {
        for (body, status, kind, field) in BULKS.iter().chain(BULKS_OF_MODEL) {
            check_response(api.ask(post(path, *body)).await, (*status, kind, field), body).await;
        }
    }
}

#[tokio::test]
async fn a_call_that_takes_no_body_is_not_carried_out_when_it_has_one() {
    let api = api();
    let task = submit(&api, r#"{"topic":"dead","delay":1,"payload":1}"#).await;
    let path = format!("/v1/dead/{}", task["id"].as_str().unwrap());
    let delete = |body: String| request("DELETE", &path, Some("application/json"), body);
    let large = format!("{{\"a\":{:?}}}", "x".repeat(10_000));
    for (body, field) in [
        (r#"{"dry_run":true}"#, "dry_run"),
        (r#"{"dry_run":false,"topic":"t"}"#, "dry_run"),
        ("{", NO_FIELD),
        ("[]", NO_FIELD),
        ("nil", NO_FIELD),
        ("dry_run=true", NO_FIELD),
        (large.as_str(), NO_FIELD),
    ] {
        check_response(api.ask(delete(body.to_owned())).await, (400, "unknown-field", field), body)
            .await;
    }
    let not_utf_8 =
        api.ask(request("DELETE", &path, Some("application/json"), b"\xff".as_slice())).await;
    check_response(not_utf_8, (400, "unknown-field", NO_FIELD), "not UTF-8").await;
    // The task is still a dead letter: the first of these requests drops it.
    for (body, status) in [
        (" {} ", StatusCode::OK),
        ("null", StatusCode::NOT_FOUND),
        ("", StatusCode::NOT_FOUND),
        ("\n", StatusCode::NOT_FOUND),
    ] {
        assert_eq!(api.ask(delete(body.to_owned())).await.status(), status, "{body:?}");
    }
}

#[tokio::test]
async fn a_redrive_takes_the_name_of_another_topic_and_nothing_else() {
    let api = api();
    let task = submit(&api, r#"{"topic":"dead","delay":1,"payload":1}"#).await;
    let path = format!("/v1/dead/{}/redrive", task["id"].as_str().unwrap());
    for (body, refused) in [
        (r#"{"dry_run":true}"#, (400, "unknown-field", "dry_run")),
        (r#"{"to_topic":"a b"}"#, (400, "invalid-value", "to_topic")),
        (r#"{"to_topic":"no-such-topic"}"#, (422, "unknown-topic", "to_topic")),
    ] {
        check_response(api.ask(post(&path, body)).await, refused, body).await;
    }
    let redriven = json_of(api.ask(post(&path, r#"{"to_topic":"other"}"#)).await).await;
    assert_eq!((&redriven["topic"], &redriven["state"]), (&"other".into(), &"scheduled".into()));
}

#[tokio::test]
async fn wrong_replacements_are_refused_with_the_field() {
    let api = api();
    for (topic, body, status, kind, field) in REPLACEMENTS.iter().chain(REPLACEMENTS_OF_MODEL) {
        let path = format!("/v1/topics/{topic}/tasks/n");
        let response = api.ask(request("PUT", &path, Some("application/json"), *body)).await;
        check_response(response, (*status, kind, field), body).await;
        check_response(
            api.ask(bare("GET", &path)).await,
            (404, "task-not-found", "name"),
            "nothing of it is stored",
        )
        .await;
    }
}

#[tokio::test]
async fn a_name_that_clients_leave_out_of_a_path_is_refused_there_as_well() {
    let api = api();
    for name in ["%2e", "%2E%2e", ".", ".."] {
        let path = format!("/v1/topics/t/tasks/{name}");
        let response = api
            .ask(request("PUT", &path, Some("application/json"), r#"{"delay":1,"payload":1}"#))
            .await;
        check_response(response, (400, "invalid-value", "name"), name).await;
    }
}

#[tokio::test]
async fn a_wrong_method_is_told_the_right_ones() {
    let api = api();
    for (path, allow) in [
        ("/v1/tasks", "GET,HEAD,POST"),
        ("/v1/tasks/x", "GET,HEAD,PATCH,DELETE"),
        ("/v1/cluster", "GET,HEAD"),
    ] {
        let response = api.ask(bare("PUT", path)).await;
        assert_eq!(header_of(&response, "allow"), Some(allow), "{path}");
    }
}

#[tokio::test]
async fn a_node_that_drains_refuses_everything_but_probes() {
    let api = draining_api();
    let id_path = format!("/v1/tasks/{ID}");
    for (method, path) in [
        ("POST", "/v1/tasks"),
        ("POST", "/v1/tasks/batch"),
        ("GET", &id_path),
        ("DELETE", &id_path),
        ("GET", "/v1/cluster"),
    ] {
        let response = api.ask(request(method, path, Some("application/json"), TASK)).await;
        assert_eq!(header_of(&response, "connection"), Some("close"));
        check_response(response, (503, "draining", NO_FIELD), path).await;
    }
    check_response(api.ask(bare("GET", "/readyz")).await, (503, "not-ready", NO_FIELD), "/readyz")
        .await;
    assert_eq!(api.ask(bare("GET", "/livez")).await.status(), StatusCode::OK);
    assert_eq!(api.ask(bare("GET", "/metrics")).await.status(), StatusCode::OK);
}
