//! ETags, preconditions, idempotency keys, and the answers for replaced tasks.

use super::*;

const PATH: &str = "/v1/topics/t/tasks/n";
const TASK: &str = r#"{"delay":"1h","payload":1}"#;
const FOREIGN: &str = "\"01b977ea-f4c0-8003-8000-000000000007\"";

/// Makes a request with headers, written `name: value`.
fn with(method: &str, path: &str, headers: &[&str], body: &str) -> Request<Body> {
    let content_type = (!body.is_empty()).then_some("application/json");
    let mut request = request(method, path, content_type, body.to_owned());
    for header in headers {
        let (name, value) = header.split_once(": ").unwrap();
        let name = axum::http::HeaderName::try_from(name).unwrap();
        request.headers_mut().append(name, value.parse().unwrap());
    }
    request
}

async fn put(api: &Api, headers: &[&str]) -> Response {
    api.ask(with("PUT", PATH, headers, TASK)).await
}

async fn delete(api: &Api, path: &str, headers: &[&str]) -> Response {
    api.ask(with("DELETE", path, headers, "")).await
}

/// Returns the ETag of the task in an answer.
async fn tag_of(response: Response) -> String {
    let tag = header_of(&response, "etag").expect("a task has a tag").to_owned();
    assert_eq!(tag, format!("\"{}\"", json_of(response).await["id"].as_str().unwrap()));
    tag
}

/// Checks the problem of an unmet precondition, and returns its current id.
async fn unmet(response: Response) -> Option<String> {
    assert_eq!(response.status(), StatusCode::PRECONDITION_FAILED);
    assert_eq!(header_of(&response, "etag"), None);
    let problem = json_of(response).await;
    assert_eq!(problem["type"], "urn:punctual:problem:precondition-failed");
    problem["current_id"].as_str().map(|id| format!("\"{id}\""))
}

#[tokio::test]
async fn a_task_that_is_answered_has_its_id_as_its_tag() {
    let api = api();
    let posted = r#"{"topic":"t","name":"n","delay":"1h","payload":1}"#;
    let tag = tag_of(api.ask(post("/v1/tasks", posted)).await).await;
    assert_eq!(tag_of(api.ask(post("/v1/tasks", posted)).await).await, tag, "of a known name");
    assert_eq!(tag_of(api.ask(bare("GET", PATH)).await).await, tag);
    assert_eq!(
        tag_of(api.ask(bare("GET", &format!("/v1/tasks/{}", tag.trim_matches('"')))).await).await,
        tag
    );
    let replaced = tag_of(put(&api, &[]).await).await;
    assert_ne!(replaced, tag);
    // The ETag says nothing about the content of a GET, so there is no 304 and no 412.
    let found = api
        .ask(with("GET", PATH, &[&format!("if-none-match: {replaced}"), "if-match: \"x\""], ""))
        .await;
    assert_eq!(found.status(), StatusCode::OK);
    let head = api.ask(bare("HEAD", PATH)).await;
    assert_eq!(header_of(&head, "etag"), Some(replaced.as_str()));
    assert_eq!(tag_of(put(&api, &[]).await).await.len(), 38);
}

#[tokio::test]
async fn a_put_that_may_only_create_replaces_nothing() {
    let api = api();
    let first = put(&api, &["if-none-match: *"]).await;
    assert_eq!(first.status(), StatusCode::CREATED);
    let first = tag_of(first).await;
    assert_eq!(unmet(put(&api, &["if-none-match: *"]).await).await, Some(first.clone()));
    assert_eq!(tag_of(api.ask(bare("GET", PATH)).await).await, first);
    assert_eq!(delete(&api, PATH, &[]).await.status(), StatusCode::OK);
    assert_eq!(
        unmet(put(&api, &["if-none-match: *"]).await).await,
        Some(first),
        "the name is taken by what has ended"
    );
}

#[tokio::test]
async fn a_change_by_name_is_made_only_if_the_name_stands_for_the_task_that_is_meant() {
    let api = api();
    for any in ["*", FOREIGN] {
        assert_eq!(
            unmet(put(&api, &[&format!("if-match: {any}")]).await).await,
            None,
            "the name stands for none"
        );
        let unknown = delete(&api, PATH, &[&format!("if-match: {any}")]).await;
        assert_eq!(
            (unknown.status(), json_of(unknown).await["verdict"].clone()),
            (StatusCode::NOT_FOUND, "not_found".into())
        );
    }
    let first = tag_of(put(&api, &[]).await).await;
    let weak = format!("if-match: W/{first}");
    for wrong in [
        format!("if-match: {FOREIGN}"),
        format!("if-match: \"{}\"", first.to_uppercase().trim_matches('"')),
        weak,
    ] {
        assert_eq!(unmet(put(&api, &[&wrong]).await).await, Some(first.clone()), "{wrong}");
        assert_eq!(
            unmet(delete(&api, PATH, &[&wrong]).await).await,
            Some(first.clone()),
            "{wrong}"
        );
    }
    let second = put(&api, &[&format!("if-match: {FOREIGN}"), &format!("if-match: {first}")]).await;
    assert_eq!(second.status(), StatusCode::OK, "headers that are repeated are one list");
    let second = tag_of(second).await;
    assert_eq!(
        unmet(put(&api, &[&format!("if-match: {first}")]).await).await,
        Some(second.clone()),
        "it was replaced"
    );
    assert_eq!(
        unmet(delete(&api, PATH, &[&format!("if-match: {first}")]).await).await,
        Some(second.clone())
    );
    for tag in [second.clone(), format!("W/{second}")] {
        assert_eq!(
            unmet(put(&api, &[&format!("if-none-match: {tag}")]).await).await,
            Some(second.clone()),
            "{tag}"
        );
    }
    let both = [&*format!("if-match: {second}"), "if-none-match: *"];
    assert_eq!(unmet(put(&api, &both).await).await, Some(second.clone()));
    let third = tag_of(put(&api, &["if-match: *", &format!("if-none-match: {first}")]).await).await;
    let cancelled = json_of(delete(&api, PATH, &[&format!("if-match: {third}")]).await).await;
    assert_eq!(
        (&cancelled["verdict"], &cancelled["task"]["id"]),
        (&"cancelled".into(), &third.trim_matches('"').into())
    );
}

#[tokio::test]
async fn an_id_is_its_own_tag() {
    let api = api();
    let tag = tag_of(put(&api, &[]).await).await;
    let path = format!("/v1/tasks/{}", tag.trim_matches('"'));
    for wrong in [
        format!("if-match: {FOREIGN}"),
        format!("if-none-match: {tag}"),
        "if-none-match: *".to_owned(),
    ] {
        assert_eq!(unmet(delete(&api, &path, &[&wrong]).await).await, Some(tag.clone()), "{wrong}");
    }
    let cancelled =
        delete(&api, &path, &[&format!("if-match: {tag}"), &format!("if-none-match: {FOREIGN}")])
            .await;
    assert_eq!(cancelled.status(), StatusCode::OK);
    let dead = submit(&api, r#"{"topic":"dead","delay":0,"payload":1}"#).await;
    let dead = format!("/v1/dead/{}", dead["id"].as_str().unwrap());
    assert_eq!(
        delete(&api, &dead, &[&format!("if-match: {FOREIGN}")]).await.status(),
        StatusCode::PRECONDITION_FAILED
    );
    assert_eq!(delete(&api, &dead, &["if-match: *"]).await.status(), StatusCode::OK);
}

#[tokio::test]
async fn a_precondition_that_cannot_be_read_or_kept_is_refused() {
    let api = api();
    let tag = tag_of(put(&api, &[]).await).await;
    let id = tag.trim_matches('"');
    let by_id = format!("/v1/tasks/{id}");
    let requests = [
        ("PUT", PATH, TASK),
        ("DELETE", PATH, ""),
        ("DELETE", &by_id, ""),
        ("POST", "/v1/tasks", r#"{"topic":"t","name":"n","delay":"1h","payload":1}"#),
        ("POST", "/v1/tasks/batch", r#"{"tasks":[]}"#),
        ("POST", "/v1/tasks/cancel", r#"{"topic":"t"}"#),
        ("POST", "/v1/dead/redrive", r#"{"topic":"t"}"#),
    ];
    for (method, path, body) in requests {
        for name in ["if-match", "if-none-match"] {
            let problem =
                json_of(api.ask(with(method, path, &[&format!("{name}: {id}")], body)).await).await;
            let wanted = ("urn:punctual:problem:invalid-value", 400, name);
            let found = (
                problem["type"].as_str().unwrap(),
                problem["status"].as_u64().unwrap(),
                problem["field"].as_str().unwrap(),
            );
            assert_eq!(found, wanted, "{method} {path}: {problem}");
            if method == "POST" {
                let right = api.ask(with(method, path, &[&format!("{name}: {tag}")], body)).await;
                assert_eq!(right.status(), StatusCode::BAD_REQUEST, "a POST keeps none");
            }
        }
    }
    assert_eq!(tag_of(api.ask(bare("GET", PATH)).await).await, tag, "nothing was done");
}

#[tokio::test]
async fn a_key_of_idempotency_is_the_name_of_a_task_without_one() {
    let api = api();
    let task = r#"{"topic":"t","delay":"1h","payload":1}"#;
    let first = api.ask(with("POST", "/v1/tasks", &["idempotency-key: \"order 17\""], task)).await;
    assert_eq!(first.status(), StatusCode::CREATED);
    let first = json_of(first).await;
    assert_eq!(first["name"], "order 17");
    for (key, body) in [
        ("order 17", task),
        ("\"order 17\"", r#"{"topic":"t","name":"order 17","delay":"2h","payload":2}"#),
    ] {
        let again =
            api.ask(with("POST", "/v1/tasks", &[&format!("idempotency-key: {key}")], body)).await;
        assert_eq!(again.status(), StatusCode::OK);
        assert_eq!(json_of(again).await["id"], first["id"]);
    }
    let long = format!("idempotency-key: {}", "k".repeat(256));
    let named = r#"{"topic":"t","name":"other","delay":"1h","payload":1}"#;
    let refused: [(&str, &str, &[&str], &str, &str); 6] = [
        ("POST", "/v1/tasks", &["idempotency-key: order 17"], named, "conflicting-fields"),
        (
            "POST",
            "/v1/tasks",
            &["idempotency-key: a", "idempotency-key: a"],
            task,
            "duplicate-field",
        ),
        ("POST", "/v1/tasks", &["idempotency-key: \"a"], task, "invalid-value"),
        ("POST", "/v1/tasks", &[&long], task, "invalid-value"),
        ("POST", "/v1/tasks/batch", &["idempotency-key: a"], r#"{"tasks":[]}"#, "invalid-value"),
        ("PUT", PATH, &["idempotency-key: n"], TASK, "invalid-value"),
    ];
    for (method, path, headers, body, kind) in refused {
        let response = api.ask(with(method, path, headers, body)).await;
        assert_eq!(response.status(), StatusCode::BAD_REQUEST, "{method} {path} {headers:?}");
        let problem = json_of(response).await;
        assert_eq!(problem["type"], format!("urn:punctual:problem:{kind}"), "{problem}");
        assert_eq!(problem["field"], "idempotency-key");
    }
    assert_eq!(
        api.ask(bare("GET", "/v1/topics/t/tasks/other")).await.status(),
        StatusCode::NOT_FOUND
    );
    assert_eq!(
        delete(&api, "/v1/topics/t/tasks/order%2017", &["idempotency-key: a"]).await.status(),
        StatusCode::OK
    );
}

#[tokio::test]
async fn a_task_that_was_replaced_says_by_which_and_its_cancel_stops_nothing() {
    let api = api();
    let mut tags = Vec::new();
    for _ in 0..3 {
        tags.push(tag_of(put(&api, &[]).await).await.trim_matches('"').to_owned());
    }
    let (last, former) = tags.split_last().unwrap();
    for id in former {
        let path = format!("/v1/tasks/{id}");
        let found = json_of(api.ask(bare("GET", &path)).await).await;
        assert_eq!(
            (&found["state"], &found["replaced_by"]),
            (&"cancelled".into(), &last.as_str().into())
        );
        for _ in 0..2 {
            let response = delete(&api, &path, &[]).await;
            assert_eq!(response.status(), StatusCode::CONFLICT);
            let problem = json_of(response).await;
            let kind = ("urn:punctual:problem:replaced", "replaced");
            assert_eq!(
                (problem["type"].as_str().unwrap(), problem["verdict"].as_str().unwrap()),
                kind
            );
            assert_eq!(
                (&problem["replaced_by"], &problem["task"]["id"]),
                (&last.as_str().into(), &id.as_str().into())
            );
            assert_eq!(problem["task"]["replaced_by"], problem["replaced_by"]);
        }
    }
    let stands = json_of(api.ask(bare("GET", PATH)).await).await;
    assert_eq!((&stands["state"], &stands["id"]), (&"scheduled".into(), &last.as_str().into()));
    assert_eq!(stands.get("replaced_by"), None);
    assert_eq!(json_of(delete(&api, PATH, &[]).await).await["verdict"], "cancelled");
    let after = delete(&api, &format!("/v1/tasks/{}", former[0]), &[]).await;
    assert_eq!(
        json_of(after).await["replaced_by"],
        last.as_str(),
        "also when that one is cancelled"
    );
}
