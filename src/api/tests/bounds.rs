//! What happens at the bounds.

use std::time::Duration;

use axum::body::Bytes;
use futures_util::stream;
use tokio::time::timeout;

use super::*;

const TASK: &str = r#"{"topic":"t","delay":1,"payload":1}"#;
const SLOW_TASK: &str = r#"{"topic":"slow","delay":1,"payload":1}"#;

async fn type_of(response: Response) -> String {
    let status = response.status().as_u16();
    format!("{status} {}", json_of(response).await["type"].as_str().unwrap().trim_start_matches("urn:punctual:problem:"))
}

/// A body of unknown length in two pieces.
fn in_pieces(first: &'static str, second: &'static str) -> Body {
    Body::from_stream(stream::iter([first, second].map(|piece| Ok::<_, std::io::Error>(Bytes::from(piece)))))
}

#[tokio::test]
async fn a_body_over_the_limit_is_refused_whether_it_says_its_length_or_not() {
    let (api, _) = api_of(Settings { body_bytes_max: TASK.len(), ..Settings::default() });
    assert_eq!(api.answer(post("/v1/tasks", TASK)).await.status(), StatusCode::CREATED);
    assert_eq!(type_of(api.answer(post("/v1/tasks", format!("{TASK} "))).await).await, "413 body-too-large");
    assert_eq!(type_of(api.answer(post("/v1/tasks", in_pieces(TASK, " "))).await).await, "413 body-too-large");
}

#[tokio::test]
async fn a_body_in_pieces_is_put_together() {
    let (first, second) = TASK.split_at(10);
    assert_eq!(api().answer(post("/v1/tasks", in_pieces(first, second))).await.status(), StatusCode::CREATED);
}

#[tokio::test]
async fn bodies_over_the_bound_on_memory_are_refused_until_the_others_are_answered() {
    let (api, _) = api_of(Settings {
        body_bytes_max: SLOW_TASK.len(),
        body_memory_max: SLOW_TASK.len() + TASK.len() - 1,
        ..Settings::default()
    });
    let mut slow = Box::pin(api.answer(post("/v1/tasks", SLOW_TASK)));
    assert!(timeout(Duration::from_millis(1), &mut slow).await.is_err());
    assert_eq!(type_of(api.answer(post("/v1/tasks", TASK)).await).await, "503 busy");
    drop(slow);
    assert_eq!(api.answer(post("/v1/tasks", TASK)).await.status(), StatusCode::CREATED);
}

#[tokio::test]
async fn requests_over_the_bound_in_flight_are_refused_and_probes_are_not() {
    let (api, _) = api_of(Settings { requests_in_flight_max: 1, ..Settings::default() });
    let mut slow = Box::pin(api.answer(post("/v1/tasks", SLOW_TASK)));
    assert!(timeout(Duration::from_millis(1), &mut slow).await.is_err());
    assert_eq!(type_of(api.answer(bare("GET", "/v1/cluster")).await).await, "503 busy");
    for probe in ["/livez", "/readyz", "/metrics"] {
        assert_eq!(api.answer(bare("GET", probe)).await.status(), StatusCode::OK);
    }
    drop(slow);
    assert_eq!(api.answer(bare("GET", "/v1/cluster")).await.status(), StatusCode::OK);
}

#[tokio::test]
async fn a_submit_without_an_answer_within_the_deadline_has_an_unknown_outcome() {
    let (api, _) = api_of(Settings { request_deadline: Duration::from_millis(10), ..Settings::default() });
    assert_eq!(type_of(api.answer(post("/v1/tasks", SLOW_TASK)).await).await, "503 outcome-unknown");
}

#[tokio::test]
async fn a_body_that_does_not_arrive_within_the_deadline_is_given_up() {
    let (api, _) = api_of(Settings { request_deadline: Duration::from_millis(10), ..Settings::default() });
    let stalled = Body::from_stream(stream::pending::<Result<Bytes, std::io::Error>>());
    assert_eq!(type_of(api.answer(post("/v1/tasks", stalled)).await).await, "408 request-timeout");
}
