//! Request ids and traces.

use super::*;

const TRACE: &str = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";
const OWN: &str = "00-aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa-bbbbbbbbbbbbbbbb-00";

fn with(mut request: Request<Body>, name: &'static str, value: &str) -> Request<Body> {
    request.headers_mut().append(name, value.parse().unwrap());
    request
}

#[tokio::test]
async fn every_answer_carries_the_id_of_its_request() {
    let (api, _) = api_of(ApiSettings { header_bytes_max: 400, ..ApiSettings::default() });
    for (request, status) in [
        (post("/v1/tasks", r#"{"topic":"t","delay":1,"payload":1}"#), 201),
        (post("/v1/tasks", "{"), 400),
        (post("/v1/tasks", r#"{"topic":"panic","delay":1,"payload":1}"#), 500),
        (bare("GET", "/livez"), 200),
        (bare("GET", "/metrics"), 200),
        (bare("GET", "/nothing"), 404),
        (bare("HEAD", "/v1/tasks/17"), 404),
        (bare("PATCH", "/v1/tasks"), 405),
        (with(bare("GET", "/livez"), "x-large", &"x".repeat(400)), 431),
    ] {
        let (method, path) = (request.method().clone(), request.uri().clone());
        let response = api.ask(with(request, "x-request-id", "a-7")).await;
        assert_eq!(
            (response.status().as_u16(), header_of(&response, "x-request-id")),
            (status, Some("a-7")),
            "{method} {path}"
        );
    }
    let draining =
        draining_api().ask(with(bare("GET", "/v1/cluster"), "x-request-id", "a-7")).await;
    assert_eq!(header_of(&draining, "x-request-id"), Some("a-7"));
}

#[tokio::test]
async fn a_request_without_a_right_id_gets_one() {
    let api = api();
    let ids =
        ["", "a b", &"x".repeat(129)].map(|id| with(bare("GET", "/livez"), "x-request-id", id));
    for request in ids.into_iter().chain([bare("GET", "/livez")]) {
        let response = api.ask(request).await;
        let id = header_of(&response, "x-request-id").unwrap();
        assert!(id.len() == 32 && id.bytes().all(|byte| byte.is_ascii_hexdigit()), "{id}");
    }
}

#[tokio::test]
async fn the_answer_to_a_head_is_without_a_body_and_says_its_length() {
    let api = api();
    let [head, get] = [bare("HEAD", "/v1/tasks/17"), bare("GET", "/v1/tasks/17")]
        .map(|request| with(request, "x-request-id", "a"));
    let head = api.ask(head).await;
    let length: usize = header_of(&head, "content-length").unwrap().parse().unwrap();
    assert_eq!(header_of(&head, "content-type"), Some("application/problem+json"));
    assert_eq!(text_of(head).await, "");
    assert_eq!(text_of(api.ask(get).await).await.len(), length);
}

/// Returns the headers of the created task.
async fn headers_of(api: &Api, created: &Value) -> Value {
    let found =
        api.ask(bare("GET", &format!("/v1/tasks/{}", created["id"].as_str().unwrap()))).await;
    json_of(found).await["headers"].clone()
}

async fn headers_after(api: &Api, request: Request<Body>) -> Value {
    let response = api.ask(request).await;
    assert_eq!(response.status(), StatusCode::CREATED);
    let created = json_of(response).await;
    headers_of(api, &created).await
}

#[tokio::test]
async fn the_trace_of_a_request_goes_on_in_its_task_unless_the_task_brings_one() {
    let api = api();
    let task = |headers: &str| format!(r#"{{"topic":"t","delay":1000,"payload":1{headers}}}"#);
    for (body, headers) in [
        (task(""), serde_json::json!({"traceparent": TRACE})),
        (task(r#","headers":{"a":"1"}"#), serde_json::json!({"a": "1", "traceparent": TRACE})),
        (
            task(&format!(r#","headers":{{"traceparent":"{OWN}"}}"#)),
            serde_json::json!({"traceparent": OWN}),
        ),
        (task(r#","headers":{"Traceparent":"mine"}"#), serde_json::json!({"Traceparent": "mine"})),
    ] {
        assert_eq!(
            headers_after(&api, with(post("/v1/tasks", body.clone()), "traceparent", TRACE)).await,
            headers,
            "{body}"
        );
    }
    let named = request(
        "PUT",
        "/v1/topics/t/tasks/n",
        Some("application/json"),
        r#"{"delay":1000,"payload":1}"#,
    );
    assert_eq!(
        headers_after(&api, with(named, "traceparent", TRACE)).await,
        serde_json::json!({"traceparent": TRACE})
    );
}

#[tokio::test]
async fn the_trace_of_a_batch_goes_on_in_each_task_that_brings_none() {
    let api = api();
    let task = |headers: &str| format!(r#"{{"topic":"t","delay":1000,"payload":1{headers}}}"#);
    let own = task(&format!(r#","headers":{{"traceparent":"{OWN}"}}"#));
    let batch = format!(r#"{{"tasks":[{},{own},{}]}}"#, task(""), task(""));
    let answer =
        json_of(api.ask(with(post("/v1/tasks/batch", batch), "traceparent", TRACE)).await).await;
    for (result, trace) in answer["results"].as_array().unwrap().iter().zip([TRACE, OWN, TRACE]) {
        assert_eq!(
            headers_of(&api, &result["task"]).await,
            serde_json::json!({"traceparent": trace})
        );
    }
}

#[tokio::test]
async fn a_state_goes_on_with_its_trace_while_there_is_room() {
    let api = api();
    let with_trace = |task: &str, state: &str| {
        let request = with(post("/v1/tasks", task.to_owned()), "traceparent", TRACE);
        with(request, "tracestate", state)
    };
    let task = r#"{"topic":"t","delay":1000,"payload":1}"#;
    assert_eq!(
        headers_after(&api, with_trace(task, "a=1,b=2")).await,
        serde_json::json!({"traceparent": TRACE, "tracestate": "a=1,b=2"})
    );
    let own =
        format!(r#"{{"topic":"t","delay":1000,"payload":1,"headers":{{"traceparent":"{OWN}"}}}}"#);
    let shown = headers_after(&api, with_trace(&own, "a=1")).await;
    assert_eq!(shown, serde_json::json!({"traceparent": OWN}));
    let alone = with(post("/v1/tasks", task), "tracestate", "a=1");
    assert_eq!(headers_after(&api, alone).await, Value::Null);
    let many: Vec<String> = (0..127).map(|number| format!(r#""h{number}":"""#)).collect();
    let many =
        format!(r#"{{"topic":"t","delay":1000,"payload":1,"headers":{{{}}}}}"#, many.join(","));
    let shown = headers_after(&api, with_trace(&many, "a=1")).await;
    assert_eq!((shown.as_object().unwrap().len(), shown.get("tracestate")), (128, None));
}

#[tokio::test]
async fn a_wrong_trace_is_ignored() {
    let api = api();
    for wrong in
        ["", "1", "ff-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01", &"0".repeat(300)]
    {
        let request = post("/v1/tasks", r#"{"topic":"t","delay":1000,"payload":1}"#);
        assert_eq!(
            headers_after(&api, with(request, "traceparent", wrong)).await,
            Value::Null,
            "{wrong}"
        );
    }
}

#[tokio::test]
async fn a_trace_counts_as_a_header_and_as_bytes_of_the_record() {
    let api = api();
    let many: Vec<String> = (0..128).map(|number| format!(r#""h{number}":"""#)).collect();
    let many = format!(r#"{{"topic":"t","delay":1,"payload":1,"headers":{{{}}}}}"#, many.join(","));
    // The topic `small` takes records of 1000 bytes.
    let large = (0..1000).rev().map(|length| {
        format!(r#"{{"topic":"small","delay":1,"payload_text":"{}"}}"#, "x".repeat(length))
    });
    let mut largest = None;
    for task in large {
        if api.ask(post("/v1/tasks", task.clone())).await.status() == StatusCode::CREATED {
            largest = Some(task);
            break;
        }
    }
    for (task, status) in [(many, 400), (largest.unwrap(), 422)] {
        assert_eq!(api.ask(post("/v1/tasks", task.clone())).await.status(), StatusCode::CREATED);
        assert_eq!(
            api.ask(with(post("/v1/tasks", task), "traceparent", TRACE)).await.status(),
            status
        );
    }
}
