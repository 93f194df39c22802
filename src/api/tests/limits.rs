//! The behaviour at the limits.

use std::time::Duration;

use axum::body::Bytes;
use futures_util::{StreamExt as _, poll, stream};

use super::*;

const TASK: &str = r#"{"topic":"t","delay":1,"payload":1}"#;
const SLOW_TASK: &str = r#"{"topic":"slow","delay":1,"payload":1}"#;

async fn type_of(response: Response) -> String {
    let status = response.status().as_u16();
    format!(
        "{status} {}",
        json_of(response).await["type"]
            .as_str()
            .unwrap()
            .trim_start_matches("urn:punctual:problem:")
    )
}

/// A body of unknown length in two pieces.
fn in_pieces(first: &'static str, second: &'static str) -> Body {
    Body::from_stream(stream::iter(
        [first, second].map(|piece| Ok::<_, std::io::Error>(Bytes::from(piece))),
    ))
}

#[tokio::test]
async fn a_body_over_the_limit_is_refused_whether_it_says_its_length_or_not() {
    let (api, _) = api_of(ApiSettings { body_bytes_max: TASK.len(), ..ApiSettings::default() });
    assert_eq!(api.ask(post("/v1/tasks", TASK)).await.status(), StatusCode::CREATED);
    assert_eq!(
        type_of(api.ask(post("/v1/tasks", format!("{TASK} "))).await).await,
        "413 body-too-large"
    );
    assert_eq!(
        type_of(api.ask(post("/v1/tasks", in_pieces(TASK, " "))).await).await,
        "413 body-too-large"
    );
}

#[tokio::test]
async fn a_body_in_pieces_is_put_together() {
    let (first, second) = TASK.split_at(10);
    assert_eq!(
        api().ask(post("/v1/tasks", in_pieces(first, second))).await.status(),
        StatusCode::CREATED
    );
}

#[tokio::test]
async fn bodies_over_the_limit_on_memory_are_refused_until_the_others_are_answered() {
    let (api, _) = api_of(ApiSettings {
        body_bytes_max: SLOW_TASK.len(),
        body_memory_max: SLOW_TASK.len() + TASK.len() - 1,
        ..ApiSettings::default()
    });
    let mut slow = Box::pin(api.ask(post("/v1/tasks", SLOW_TASK)));
    assert!(poll!(&mut slow).is_pending());
    assert_eq!(type_of(api.ask(post("/v1/tasks", TASK)).await).await, "503 busy");
    drop(slow);
    assert_eq!(api.ask(post("/v1/tasks", TASK)).await.status(), StatusCode::CREATED);
}

/// A body whose end never comes.
fn endless(bytes: usize) -> Body {
    let piece = stream::iter([Ok::<_, std::io::Error>(Bytes::from(vec![b' '; bytes]))]);
    Body::from_stream(piece.chain(stream::pending()))
}

async fn limit_of(response: Response) -> String {
    assert_eq!(response.status(), StatusCode::SERVICE_UNAVAILABLE);
    let problem = json_of(response).await;
    assert_eq!(problem["type"], "urn:punctual:problem:busy");
    let detail = problem["detail"].as_str().unwrap();
    let limit = detail.split("the limit ").nth(1).unwrap().split(' ').next().unwrap();
    limit.to_owned()
}

#[tokio::test]
async fn one_caller_holds_at_most_half_of_the_memory_of_bodies() {
    let bytes = 1000;
    let (api, _) = api_of(ApiSettings {
        body_bytes_max: 4 * bytes,
        body_memory_max: 4 * bytes,
        ..ApiSettings::default()
    });
    let (callers, others) = (Callers::default(), Callers::default());
    let ask = |bytes| Box::pin(api.ask_of(&callers, post("/v1/tasks", endless(bytes))));
    let (mut first, mut second) = (ask(bytes), ask(bytes));
    assert!(poll!(&mut first).is_pending() && poll!(&mut second).is_pending());
    let refused = api.ask_of(&callers, post("/v1/tasks", TASK)).await;
    assert_eq!(limit_of(refused).await, "body_memory_share");
    let line = r#"punctual_api_rejected_total{limit="body_memory_share"}"#;
    assert_eq!(metric(&api, line).await.as_deref(), Some("1"));
    let of_other = api.ask_of(&others, post("/v1/tasks", TASK)).await;
    assert_eq!(of_other.status(), StatusCode::CREATED);
    drop(first);
    assert_eq!(api.ask_of(&callers, post("/v1/tasks", TASK)).await.status(), StatusCode::CREATED);
    drop(second);
    // A larger body passes while its caller has no other.
    let mut large = ask(3 * bytes);
    assert!(poll!(&mut large).is_pending());
    let refused = api.ask_of(&callers, post("/v1/tasks", TASK)).await;
    assert_eq!(limit_of(refused).await, "body_memory_share");
    let mut of_other = Box::pin(api.ask_of(&others, post("/v1/tasks", endless(bytes))));
    assert!(poll!(&mut of_other).is_pending());
    // The memory of all is full, and the share of the third caller is not.
    let refused = api.ask_of(&Callers::default(), post("/v1/tasks", TASK)).await;
    assert_eq!(limit_of(refused).await, "body_memory");
    drop((large, of_other));
    assert_eq!(metric(&api, "punctual_api_body_memory_bytes").await.as_deref(), Some("0"));
    let mut again = ask(3 * bytes);
    assert!(poll!(&mut again).is_pending(), "the refused requests hold nothing");
}

#[tokio::test]
async fn the_large_answers_of_one_caller_hold_at_most_half_of_the_memory() {
    let bytes = 100_000;
    let (api, _) = api_of(ApiSettings {
        body_bytes_max: 2 * bytes,
        body_memory_max: 5 * bytes,
        ..ApiSettings::default()
    });
    let path = format!(
        "/v1/tasks/{}",
        submit(&api, &large_task("t", bytes)).await["id"].as_str().unwrap()
    );
    let callers = Callers::default();
    let mut unread = Vec::new();
    for _ in 0..2 {
        unread.push(api.ask_of(&callers, bare("GET", &path)).await);
    }
    let refused = api.ask_of(&callers, bare("GET", &path)).await;
    assert_eq!(limit_of(refused).await, "body_memory_share");
    assert_eq!(api.ask(bare("GET", &path)).await.status(), StatusCode::OK);
    // The result of a change is answered as soon as the caller has read another answer.
    let mut cancel = Box::pin(api.ask_of(&callers, bare("DELETE", &path)));
    assert!(poll!(&mut cancel).is_pending());
    drop(unread.pop());
    assert_eq!(json_of(cancel.await).await["verdict"], "cancelled");
    drop(unread);
    assert_eq!(metric(&api, "punctual_api_body_memory_bytes").await.as_deref(), Some("0"));
}

/// The limits of callers are set this way behind a proxy, which limits its own callers.
#[tokio::test]
async fn a_caller_that_may_have_all_requests_may_have_all_of_the_memory() {
    let bytes = 1000;
    let (api, _) = api_of(ApiSettings {
        body_bytes_max: bytes,
        body_memory_max: 2 * bytes,
        caller_requests_max: 8,
        requests_in_flight_max: 8,
        ..ApiSettings::default()
    });
    let callers = Callers::default();
    let ask = || Box::pin(api.ask_of(&callers, post("/v1/tasks", endless(bytes))));
    let (mut first, mut second) = (ask(), ask());
    assert!(poll!(&mut first).is_pending() && poll!(&mut second).is_pending());
}

#[tokio::test]
async fn requests_over_the_limit_in_flight_are_refused_and_probes_are_not() {
    let (api, _) = api_of(ApiSettings { requests_in_flight_max: 1, ..ApiSettings::default() });
    let mut slow = Box::pin(api.ask(post("/v1/tasks", SLOW_TASK)));
    assert!(poll!(&mut slow).is_pending());
    assert_eq!(type_of(api.ask(bare("GET", "/v1/cluster")).await).await, "503 busy");
    for probe in ["/livez", "/readyz", "/metrics"] {
        assert_eq!(api.ask(bare("GET", probe)).await.status(), StatusCode::OK);
    }
    drop(slow);
    assert_eq!(api.ask(bare("GET", "/v1/cluster")).await.status(), StatusCode::OK);
}

#[tokio::test]
async fn a_caller_with_too_many_requests_is_told_so_and_others_are_not() {
    let (api, _) = api_of(ApiSettings {
        caller_requests_max: 1,
        requests_in_flight_max: 2,
        ..ApiSettings::default()
    });
    let (callers, others, third) = (Callers::default(), Callers::default(), Callers::default());
    let mut slow = Box::pin(api.ask_of(&callers, post("/v1/tasks", SLOW_TASK)));
    assert!(poll!(&mut slow).is_pending());
    let refused = api.ask_of(&callers, bare("GET", "/v1/cluster")).await;
    assert_eq!(header_of(&refused, "retry-after"), Some("1"));
    let problem = json_of(refused).await;
    assert_eq!(
        (&problem["type"], &problem["status"], &problem["retry_after"]),
        (&"urn:punctual:problem:too-many-requests".into(), &429.into(), &1.into())
    );
    let detail = problem["detail"].as_str().unwrap();
    assert!(detail.contains("(1: --caller-requests-max)"), "{detail}");
    let mut other = Box::pin(api.ask_of(&others, post("/v1/tasks", SLOW_TASK)));
    assert!(poll!(&mut other).is_pending());
    // The node's own limit, which is not the fault of the third caller.
    assert_eq!(type_of(api.ask_of(&third, bare("GET", "/v1/cluster")).await).await, "503 busy");
    assert_eq!(
        metric(&api, r#"punctual_api_rejected_total{limit="caller_requests"}"#).await.as_deref(),
        Some("1")
    );
    assert_eq!(
        metric(&api, r#"punctual_api_rejected_total{limit="requests_in_flight"}"#).await.as_deref(),
        Some("1")
    );
    drop((slow, other));
    assert_eq!(api.ask_of(&callers, bare("GET", "/v1/cluster")).await.status(), StatusCode::OK);
}

#[tokio::test]
async fn a_request_keeps_its_place_until_its_answer_is_written() {
    let (api, _) = api_of(ApiSettings { requests_in_flight_max: 1, ..ApiSettings::default() });
    let unread = api.ask(bare("GET", "/v1/cluster")).await;
    assert_eq!(type_of(api.ask(bare("GET", "/v1/cluster")).await).await, "503 busy");
    drop(unread);
    assert_eq!(api.ask(bare("GET", "/v1/cluster")).await.status(), StatusCode::OK);
}

#[tokio::test]
async fn large_answers_count_against_the_memory_until_they_are_written() {
    let bytes = 100_000;
    let (api, _) = api_of(ApiSettings {
        body_bytes_max: 2 * bytes,
        body_memory_max: 2 * bytes,
        ..ApiSettings::default()
    });
    let path = format!(
        "/v1/tasks/{}",
        submit(&api, &large_task("t", bytes)).await["id"].as_str().unwrap()
    );
    let unread = api.ask(bare("GET", &path)).await;
    assert_eq!(unread.status(), StatusCode::OK);
    assert_eq!(type_of(api.ask(bare("GET", &path)).await).await, "503 busy");
    // The result of a change is answered as soon as there is room.
    let cancel = api.ask(bare("DELETE", &path));
    let mut cancel = Box::pin(cancel);
    assert!(poll!(&mut cancel).is_pending());
    assert!(text_of(unread).await.len() > bytes);
    assert_eq!(json_of(cancel.await).await["verdict"], "cancelled");
    assert_eq!(metric(&api, "punctual_api_body_memory_bytes").await.as_deref(), Some("0"));
}

fn large_task(topic: &str, bytes: usize) -> String {
    format!(r#"{{"topic":"{topic}","delay":1,"payload_text":"{}"}}"#, "x".repeat(bytes))
}

#[tokio::test]
async fn a_problem_that_shows_a_large_task_counts_against_the_memory_until_it_is_written() {
    let bytes = 100_000;
    let (api, _) = api_of(ApiSettings {
        body_bytes_max: 2 * bytes,
        body_memory_max: 2 * bytes,
        ..ApiSettings::default()
    });
    let id = submit(&api, &large_task("published", bytes)).await["id"].as_str().unwrap().to_owned();
    let put = || {
        let task = format!(r#"{{"delay":1,"payload_text":"{}"}}"#, "x".repeat(bytes));
        request("PUT", "/v1/topics/claimed/tasks/n", Some("application/json"), task)
    };
    assert_eq!(api.ask(put()).await.status(), StatusCode::CREATED);
    let ask = async |is_put: bool| {
        api.ask(if is_put { put() } else { bare("DELETE", &format!("/v1/tasks/{id}")) }).await
    };
    for is_put in [false, true] {
        let unread = ask(is_put).await;
        assert_eq!(unread.status(), StatusCode::CONFLICT);
        // The request changed nothing, so the answer need not wait for room.
        assert_eq!(type_of(ask(false).await).await, "503 busy");
        let problem = json_of(unread).await;
        assert_eq!(
            (&problem["verdict"], problem["task"]["id"].is_string()),
            (&"too_late".into(), true)
        );
        assert_eq!(type_of(ask(is_put).await).await, "409 too-late");
    }
    assert_eq!(metric(&api, "punctual_api_body_memory_bytes").await.as_deref(), Some("0"));
}

#[tokio::test]
async fn a_caller_with_many_unread_metrics_is_told_so_and_can_ask_for_the_nodes_health() {
    let api = api();
    let (callers, others) = (Callers::default(), Callers::default());
    let mut unread = Vec::new();
    for _ in 0..16 {
        let answer = api.ask_of(&callers, bare("GET", "/metrics")).await;
        assert_eq!(answer.status(), StatusCode::OK);
        unread.push(answer);
    }
    let refused = api.ask_of(&callers, bare("GET", "/metrics")).await;
    assert_eq!(header_of(&refused, "retry-after"), Some("1"));
    assert_eq!(type_of(refused).await, "429 too-many-requests");
    for path in ["/livez", "/readyz", "/v1/cluster"] {
        assert_eq!(api.ask_of(&callers, bare("GET", path)).await.status(), StatusCode::OK);
    }
    assert_eq!(api.ask_of(&others, bare("GET", "/metrics")).await.status(), StatusCode::OK);
    assert_eq!(
        metric(&api, r#"punctual_api_rejected_total{limit="caller_probes"}"#).await.as_deref(),
        Some("1")
    );
    drop(unread);
    assert_eq!(api.ask_of(&callers, bare("GET", "/metrics")).await.status(), StatusCode::OK);
}

#[tokio::test]
async fn metrics_that_nobody_reads_are_bounded_for_all_callers_together() {
    let api = api();
    let mut unread = Vec::new();
    for _ in 0..128 {
        unread.push(api.ask(bare("GET", "/metrics")).await);
    }
    assert_eq!(type_of(api.ask(bare("GET", "/metrics")).await).await, "503 busy");
    drop(unread);
    assert_eq!(
        metric(&api, r#"punctual_api_rejected_total{limit="metrics_in_flight"}"#).await.as_deref(),
        Some("1")
    );
}

#[tokio::test]
async fn long_metrics_are_answered_when_the_memory_is_full() {
    let task = large_task("t", 100_000);
    let (api, _) = api_of(ApiSettings {
        body_bytes_max: task.len(),
        body_memory_max: task.len(),
        ..ApiSettings::default()
    });
    for number in 0..100 {
        let route = Box::leak(format!("{number:0>50}").into_boxed_str());
        api.metrics().answered(route, "GET", StatusCode::OK, Duration::ZERO);
    }
    let path = format!("/v1/tasks/{}", submit(&api, &task).await["id"].as_str().unwrap());
    let unread = api.ask(bare("GET", &path)).await;
    assert_eq!(unread.status(), StatusCode::OK);
    assert_eq!(type_of(api.ask(bare("GET", &path)).await).await, "503 busy");
    assert!(text_of(api.ask(bare("GET", "/metrics")).await).await.len() > 100_000);
    drop(unread);
}

#[tokio::test]
async fn answers_that_wait_for_memory_are_few() {
    let bytes = 100_000;
    let (api, _) = api_of(ApiSettings {
        body_bytes_max: 2 * bytes,
        body_memory_max: 2 * bytes,
        ..ApiSettings::default()
    });
    let path = format!(
        "/v1/tasks/{}",
        submit(&api, &large_task("t", bytes)).await["id"].as_str().unwrap()
    );
    let unread = api.ask(bare("DELETE", &path)).await;
    assert_eq!(unread.status(), StatusCode::OK);
    let mut waits = Box::pin(api.ask(bare("DELETE", &path)));
    assert!(poll!(&mut waits).is_pending());
    let std::task::Poll::Ready(lost) = poll!(&mut Box::pin(api.ask(bare("DELETE", &path)))) else {
        panic!("it waits, too")
    };
    assert_eq!(type_of(lost).await, "503 outcome-unknown");
    drop(unread);
    assert_eq!(json_of(waits.await).await["verdict"], "cancelled");
}

#[tokio::test]
async fn a_header_over_the_limit_is_refused_and_counted() {
    let (api, _) = api_of(ApiSettings { header_bytes_max: 1000, ..ApiSettings::default() });
    let with = |name: &'static str, length: usize| {
        let mut request = bare("GET", "/livez");
        request.headers_mut().insert(name, "x".repeat(length).parse().unwrap());
        request
    };
    // "/livez", the field's name, and 32.
    assert_eq!(api.ask(with("name", 1000 - 6 - 4 - 32)).await.status(), StatusCode::OK);
    assert_eq!(
        type_of(api.ask(with("name", 1000 - 6 - 4 - 31)).await).await,
        "431 header-too-large"
    );
    assert_eq!(
        metric(&api, r#"punctual_api_rejected_total{limit="header_bytes"}"#).await.as_deref(),
        Some("1")
    );
}

#[tokio::test]
async fn a_batch_over_its_setting_is_refused_and_counted() {
    let (api, _) = api_of(ApiSettings { batch_tasks_max: 2, ..ApiSettings::default() });
    let batch = |count| {
        post("/v1/tasks/batch", format!(r#"{{"tasks":[{}]}}"#, vec![TASK; count].join(",")))
    };
    assert_eq!(api.ask(batch(2)).await.status(), StatusCode::OK);
    assert_eq!(type_of(api.ask(batch(3)).await).await, "413 batch-too-large");
    assert_eq!(
        metric(&api, r#"punctual_api_rejected_total{limit="batch_tasks"}"#).await.as_deref(),
        Some("1")
    );
}

/// 15 bytes of a body become a task, with its memory until the answer.
#[tokio::test]
async fn the_tasks_of_a_batch_count_against_the_memory_for_more_than_their_bytes() {
    let batch = |count: usize| format!(r#"{{"tasks":[{}]}}"#, vec![SLOW_TASK; count].join(","));
    let bytes = batch(100).len();
    let (api, _) = api_of(ApiSettings {
        body_bytes_max: 4 * bytes,
        body_memory_max: 4 * bytes,
        ..ApiSettings::default()
    });
    let mut slow = Box::pin(api.ask(post("/v1/tasks/batch", batch(100))));
    assert!(poll!(&mut slow).is_pending());
    assert_eq!(type_of(api.ask(post("/v1/tasks/batch", batch(100))).await).await, "503 busy");
    drop(slow);
    // More than there is at all is not asked for.
    let mut larger = Box::pin(api.ask(post("/v1/tasks/batch", batch(200))));
    assert!(poll!(&mut larger).is_pending());
    drop(larger);
    assert_eq!(metric(&api, "punctual_api_body_memory_bytes").await.as_deref(), Some("0"));
}

#[tokio::test]
async fn a_full_queue_is_counted_by_its_limit_and_the_tasks_of_a_batch_by_their_status() {
    let api = api();
    let rejected = || metric(&api, r#"punctual_api_rejected_total{limit="submit_queue"}"#);
    let full = TASK.replace(r#""t""#, r#""full""#);
    assert_eq!(type_of(api.ask(post("/v1/tasks", full.clone())).await).await, "503 busy");
    assert_eq!(rejected().await.as_deref(), Some("1"));
    let batch = format!(r#"{{"tasks":[{TASK},{full},{TASK},{full},{full},{{}}]}}"#);
    assert_eq!(api.ask(post("/v1/tasks/batch", batch)).await.status(), StatusCode::OK);
    // Counted once for the bulk submit, however many of its tasks were refused.
    assert_eq!(rejected().await.as_deref(), Some("2"));
    for (status, count) in [("201", "2"), ("503", "3"), ("400", "1")] {
        let line = format!(r#"punctual_api_batch_tasks_total{{status="{status}"}}"#);
        assert_eq!(metric(&api, &line).await.as_deref(), Some(count), "{status}");
    }
}

#[tokio::test]
async fn a_submit_without_an_answer_within_the_deadline_has_an_unknown_outcome() {
    let (api, _) = api_of(ApiSettings {
        request_deadline: Duration::from_millis(10),
        ..ApiSettings::default()
    });
    assert_eq!(type_of(api.ask(post("/v1/tasks", SLOW_TASK)).await).await, "503 outcome-unknown");
}

#[tokio::test]
async fn a_body_that_does_not_arrive_within_the_deadline_is_given_up() {
    let (api, _) = api_of(ApiSettings {
        request_deadline: Duration::from_millis(10),
        ..ApiSettings::default()
    });
    let stalled = Body::from_stream(stream::pending::<Result<Bytes, std::io::Error>>());
    assert_eq!(type_of(api.ask(post("/v1/tasks", stalled)).await).await, "408 request-timeout");
}

#[tokio::test]
async fn a_large_body_is_read_as_a_small_one_is() {
    let api = api();
    for length in [1, (64 << 10) + 1] {
        for path in ["/v1/tasks", "/v1/tasks/batch", "/v1/tasks/cancel", "/v1/dead/drop"] {
            let response = api.ask(post(path, format!("{}{{", " ".repeat(length)))).await;
            assert_eq!(response.status(), 400);
            assert_eq!(json_of(response).await["type"], "urn:punctual:problem:malformed-json");
        }
        let body = format!(r#"{{"delay":"1h","payload":"{}"}}"#, "x".repeat(length));
        let path = format!("/v1/topics/t/tasks/n{length}");
        let named = request("PUT", &path, Some("application/json"), body);
        assert_eq!(api.ask(named).await.status(), 201);
    }
}
