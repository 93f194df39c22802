//! HTTP/2 by prior knowledge, and its special ways to block a server.

use std::net::SocketAddr;
use std::time::Duration;

use h2::client::{Builder, ResponseFuture, SendRequest};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::time::timeout;

use super::sockets::{PATIENCE, served, wait_metric};
use super::*;
use crate::shutdown::Tasks;

const SOON: Duration = Duration::from_millis(50);

async fn connect(
    address: SocketAddr,
    tasks: &Tasks,
    builder: &Builder,
) -> SendRequest<bytes::Bytes> {
    let stream = TcpStream::connect(address).await.unwrap();
    let (caller, connection) = builder.handshake(stream).await.unwrap();
    tasks.spawn("caller", async move {
        connection.await.ok();
        Ok(())
    });
    caller
}

fn asked(method: &str, path: &str) -> Request<()> {
    let uri = format!("http://a{path}");
    Request::builder()
        .method(method)
        .uri(uri)
        .header("content-type", "application/json")
        .body(())
        .unwrap()
}

async fn ask(caller: &SendRequest<bytes::Bytes>, request: Request<()>) -> ResponseFuture {
    caller.clone().ready().await.unwrap().send_request(request, true).unwrap().0
}

async fn body_of(response: axum::http::Response<h2::RecvStream>) -> Result<String, h2::Error> {
    let mut body = response.into_body();
    let mut whole = Vec::new();
    while let Some(piece) = timeout(PATIENCE, body.data()).await.unwrap() {
        let piece = piece?;
        body.flow_control().release_capacity(piece.len()).unwrap();
        whole.extend_from_slice(&piece);
    }
    Ok(String::from_utf8(whole).unwrap())
}

#[tokio::test]
async fn many_requests_share_one_connection_within_what_it_may_have() {
    let (address, tasks, _) =
        served(ApiSettings { streams_max: 7, ..ApiSettings::default() }).await;
    let caller = connect(address, &tasks, &Builder::new()).await;
    // With the first answer, the caller has learned the limit on streams.
    assert_eq!(ask(&caller, asked("GET", "/livez")).await.await.unwrap().status(), StatusCode::OK);
    let mut answers = Vec::new();
    for _ in 0..20 {
        answers.push(ask(&caller, asked("GET", "/livez")).await);
    }
    for answer in answers {
        assert_eq!(body_of(answer.await.unwrap()).await.unwrap(), r#"{"status":"alive"}"#);
    }
    assert_eq!(caller.current_max_send_streams(), 7);
}

#[tokio::test]
async fn requests_of_one_connection_over_the_callers_limit_get_429() {
    let (address, tasks, _) =
        served(ApiSettings { caller_requests_max: 1, ..ApiSettings::default() }).await;
    let caller = connect(address, &tasks, &Builder::new()).await;
    let (slow, mut sender) = caller
        .clone()
        .ready()
        .await
        .unwrap()
        .send_request(asked("POST", "/v1/tasks"), false)
        .unwrap();
    let refused = ask(&caller, asked("GET", "/v1/cluster")).await.await.unwrap();
    assert_eq!(
        (refused.status().as_u16(), refused.headers()["retry-after"].as_bytes()),
        (429, b"1".as_slice())
    );
    sender.send_data(r#"{"topic":"t","delay":1,"payload":1}"#.into(), true).unwrap();
    assert_eq!(slow.await.unwrap().status(), StatusCode::CREATED);
}

#[tokio::test]
async fn a_stream_whose_window_stays_shut_is_reset_and_the_others_go_on() {
    let settings =
        ApiSettings { request_deadline: SOON, answer_timeout: SOON, ..ApiSettings::default() };
    let (address, tasks, api) = served(settings).await;
    let caller = connect(address, &tasks, Builder::new().initial_window_size(0)).await;
    let stalled = ask(&caller, asked("GET", "/v1/cluster")).await.await.unwrap();
    let error = body_of(stalled).await.unwrap_err();
    assert_eq!(error.reason(), Some(h2::Reason::CANCEL), "{error}");
    wait_metric(&api, r#"punctual_api_cut_off_total{deadline="answer"}"#, "1").await;
    // A request without a body needs no window.
    assert_eq!(ask(&caller, asked("HEAD", "/livez")).await.await.unwrap().status(), StatusCode::OK);
    wait_metric(&api, "punctual_api_requests_in_flight", "1").await;
}

#[tokio::test]
async fn half_a_body_is_answered_408() {
    let (address, tasks, api) =
        served(ApiSettings { request_deadline: SOON, ..ApiSettings::default() }).await;
    let caller = connect(address, &tasks, &Builder::new()).await;
    let (answer, mut sender) = caller
        .clone()
        .ready()
        .await
        .unwrap()
        .send_request(asked("POST", "/v1/tasks"), false)
        .unwrap();
    sender.send_data("{".into(), false).unwrap();
    let answer = timeout(PATIENCE, answer).await.unwrap().unwrap();
    assert_eq!(answer.status(), StatusCode::REQUEST_TIMEOUT);
    assert!(body_of(answer).await.unwrap().contains("request-timeout"));
    wait_metric(&api, "punctual_api_body_memory_bytes", "0").await;
    wait_metric(&api, "punctual_api_requests_in_flight", "1").await;
}

#[tokio::test]
async fn a_connection_without_requests_is_told_to_go() {
    let (address, tasks, api) =
        served(ApiSettings { idle_timeout: SOON, ..ApiSettings::default() }).await;
    let caller = connect(address, &tasks, &Builder::new()).await;
    assert_eq!(ask(&caller, asked("HEAD", "/livez")).await.await.unwrap().status(), StatusCode::OK);
    wait_metric(&api, r#"punctual_api_cut_off_total{deadline="idle"}"#, "1").await;
    wait_metric(&api, "punctual_api_connections", "0").await;
}

/// A frame of HTTP/2.
fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let length = u32::try_from(payload.len()).unwrap().to_be_bytes();
    [&length[1..], &[kind, flags], &stream.to_be_bytes(), payload].concat()
}

#[tokio::test]
async fn who_opens_and_resets_in_a_loop_is_cut_off() {
    let (address, _tasks, api) = served(ApiSettings::default()).await;
    let mut bytes = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".to_vec();
    bytes.extend(frame(4, 0, 0, b""));
    for stream in (1..400).step_by(2) {
        // POST /v1/tasks with a body to come, reset at once.
        bytes.extend(frame(1, 4, stream, b"\x83\x86\x04\x09/v1/tasks\x01\x01a"));
        bytes.extend(frame(3, 0, stream, &8_u32.to_be_bytes()));
    }
    let mut stream = TcpStream::connect(address).await.unwrap();
    stream.write_all(&bytes).await.unwrap();
    let mut answer = Vec::new();
    timeout(PATIENCE, stream.read_to_end(&mut answer)).await.unwrap().ok();
    // GOAWAY, with the code ENHANCE_YOUR_CALM after the last stream's number.
    let mut rest = answer.as_slice();
    let mut codes = Vec::new();
    while let Some(([a, b, c, kind, _, _, _, _, _], after)) = rest.split_first_chunk::<9>() {
        let (payload, next) =
            after.split_at(u32::from_be_bytes([0, *a, *b, *c]).try_into().unwrap());
        codes.extend((*kind == 7).then(|| payload[7]));
        rest = next;
    }
    assert!(codes.contains(&11), "{answer:?}");
    wait_metric(&api, "punctual_api_connections", "0").await;
    wait_metric(&api, "punctual_api_requests_in_flight", "1").await;
}

/// Its connection would otherwise outlive the certificate that was verified for it.
#[tokio::test]
async fn who_goes_on_after_the_end_was_announced_is_cut_off() {
    let settings =
        ApiSettings { request_deadline: SOON, answer_timeout: SOON, ..ApiSettings::default() };
    let (address, tasks, api) = served(settings).await;
    let mut bytes = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".to_vec();
    bytes.extend(frame(4, 0, 0, b""));
    bytes.extend(frame(1, 5, 1, b"\x82\x86\x04\x06/livez\x01\x01a"));
    let mut stream = TcpStream::connect(address).await.unwrap();
    stream.write_all(&bytes).await.unwrap();
    let answered = r#"punctual_api_requests_total{route="/livez",method="GET",status="200"}"#;
    wait_metric(&api, answered, "1").await;
    tasks.stopping.cancel();
    // The caller does not answer the ping after which the server takes no more streams.
    let mut rest = Vec::new();
    timeout(PATIENCE, stream.read_to_end(&mut rest)).await.unwrap().ok();
    wait_metric(&api, "punctual_api_connections", "0").await;
}

/// Wide open windows do not prove that the caller reads.
#[tokio::test]
async fn answers_that_nobody_reads_keep_their_places_however_wide_their_windows_are() {
    const ASKED: u32 = 60;
    let (address, _tasks, api) = served(ApiSettings::default()).await;
    let payload = "x".repeat(300 << 10);
    let created =
        submit(&api, &format!(r#"{{"topic":"t","delay":1,"payload_text":"{payload}"}}"#)).await;
    let path = format!("/v1/tasks/{}", created["id"].as_str().unwrap());
    let mut bytes = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".to_vec();
    // SETTINGS_INITIAL_WINDOW_SIZE, and a WINDOW_UPDATE of the connection.
    bytes.extend(frame(4, 0, 0, &[&[0, 4], i32::MAX.to_be_bytes().as_slice()].concat()));
    bytes.extend(frame(8, 0, 0, &(i32::MAX - 65_535).to_be_bytes()));
    for number in 0..ASKED {
        let header = [
            b"\x82\x86\x04",
            [u8::try_from(path.len()).unwrap()].as_slice(),
            path.as_bytes(),
            b"\x01\x01a",
        ]
        .concat();
        bytes.extend(frame(1, 5, 2 * number + 1, &header));
    }
    let mut stream = TcpStream::connect(address).await.unwrap();
    stream.write_all(&bytes).await.unwrap();
    wait_metric(
        &api,
        r#"punctual_api_requests_total{route="/v1/tasks/{id}",method="GET",status="200"}"#,
        "60",
    )
    .await;
    for _ in 0..50 {
        tokio::task::yield_now().await;
    }
    // Some are in the buffers of the sockets, a few megabytes.
    let in_flight: u32 =
        metric(&api, "punctual_api_requests_in_flight").await.unwrap().parse().unwrap();
    assert!(in_flight > ASKED / 2, "{in_flight}");
    drop(stream);
    wait_metric(&api, "punctual_api_body_memory_bytes", "0").await;
}

/// Some clients treat a reset of a stream during the upload as a failure, curl 7.88 among them.
#[tokio::test]
async fn a_body_that_nobody_reads_is_taken_to_its_end_beside_its_answer() {
    let (address, tasks, api) = served(ApiSettings::default()).await;
    let caller = connect(address, &tasks, &Builder::new()).await;
    for length in [1 << 10, 300 << 10, 4 << 20] {
        let mut request = asked("POST", "/v1/tasks");
        request.headers_mut().insert("content-type", "text/plain".parse().unwrap());
        let (answer, mut sender) =
            caller.clone().ready().await.unwrap().send_request(request, false).unwrap();
        let answer = timeout(PATIENCE, answer).await.unwrap().unwrap();
        assert_eq!(answer.status().as_u16(), 415, "{length}");
        assert!(body_of(answer).await.unwrap().contains("unsupported-media-type"));
        let mut left = length;
        while left > 0 {
            sender.reserve_capacity(left.min(64 << 10));
            let room = timeout(PATIENCE, std::future::poll_fn(|cx| sender.poll_capacity(cx)))
                .await
                .unwrap();
            let room = room.expect("the stream is not reset").unwrap().min(left);
            sender.send_data(vec![b'x'; room].into(), left == room).unwrap();
            left -= room;
        }
    }
    wait_metric(&api, "punctual_api_requests_in_flight", "1").await;
    wait_metric(&api, r#"punctual_api_cut_off_total{deadline="rest"}"#, "0").await;
}

#[tokio::test]
async fn a_header_over_the_limit_is_answered_431() {
    let (address, tasks, api) =
        served(ApiSettings { header_bytes_max: 4 << 10, ..ApiSettings::default() }).await;
    let caller = connect(address, &tasks, &Builder::new()).await;
    // Twice the limit and more is answered by the library.
    for (length, has_problem) in [(5 << 10, true), (10 << 10, false)] {
        let mut request = asked("GET", "/livez");
        request.headers_mut().insert("name", "x".repeat(length).parse().unwrap());
        let answer = ask(&caller, request).await.await.unwrap();
        assert_eq!(answer.status().as_u16(), 431, "{length}");
        assert_eq!(
            body_of(answer).await.unwrap().contains("header-too-large"),
            has_problem,
            "{length}"
        );
    }
    assert_eq!(
        metric(&api, r#"punctual_api_rejected_total{limit="header_bytes"}"#).await.as_deref(),
        Some("1")
    );
}

#[tokio::test]
async fn large_answers_come_whole() {
    let (address, tasks, api) = served(ApiSettings::default()).await;
    let payload = "x".repeat(3 << 20);
    let created =
        submit(&api, &format!(r#"{{"topic":"t","delay":1,"payload_text":"{payload}"}}"#)).await;
    let caller = connect(address, &tasks, &Builder::new()).await;
    let path = format!("/v1/tasks/{}", created["id"].as_str().unwrap());
    let answer = ask(&caller, asked("GET", &path)).await.await.unwrap();
    let found: Value = serde_json::from_str(&body_of(answer).await.unwrap()).unwrap();
    assert!(found["payload_text"] == payload);
}
