//! HTTP/1.1 callers that are slow, silent or endless: each is cut off, and its resources are free
//! again.

use std::time::Duration;

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpSocket, TcpStream};

use super::sockets::{LIVEZ, one_answer, rest_of, served, wait_metric};
use super::*;

const SOON: Duration = Duration::from_millis(50);

fn cut_off(deadline: &str) -> String {
    format!("punctual_api_cut_off_total{{deadline=\"{deadline}\"}}")
}

/// Waits until only the request for the metrics is left.
async fn check_all_is_free(api: &Api) {
    for (line, value) in [
        ("punctual_api_connections", "0"),
        ("punctual_api_body_memory_bytes", "0"),
        ("punctual_api_requests_in_flight", "1"),
    ] {
        wait_metric(api, line, value).await;
    }
}

#[tokio::test]
async fn half_a_header_is_not_waited_for_also_after_a_whole_request() {
    let (address, _tasks, api) =
        served(ApiSettings { header_timeout: SOON, ..ApiSettings::default() }).await;
    let mut stream = TcpStream::connect(address).await.unwrap();
    stream.write_all(LIVEZ).await.unwrap();
    assert!(one_answer(&mut stream).await.starts_with("HTTP/1.1 200 OK"));
    stream.write_all(&LIVEZ[..20]).await.unwrap();
    assert_eq!(rest_of(&mut stream).await, "");
    wait_metric(&api, &cut_off("header"), "1").await;
    check_all_is_free(&api).await;
}

#[tokio::test]
async fn a_header_that_trickles_in_is_not_waited_for() {
    let (address, _tasks, api) =
        served(ApiSettings { header_timeout: SOON, ..ApiSettings::default() }).await;
    let mut stream = TcpStream::connect(address).await.unwrap();
    stream.write_all(b"GET /livez HTTP/1.1\r\nname: ").await.unwrap();
    let (mut from, mut to) = stream.split();
    let mut rest = Vec::new();
    tokio::select! {
        _ = from.read_to_end(&mut rest) => {}
        _ = async {
            while to.write_all(b"x").await.is_ok() {
                tokio::time::timeout(SOON / 20, std::future::pending::<()>()).await.ok();
            }
        } => {}
    }
    assert_eq!(rest, b"");
    wait_metric(&api, &cut_off("header"), "1").await;
    check_all_is_free(&api).await;
}

#[tokio::test]
async fn a_header_that_comes_in_two_pieces_is_answered() {
    let (address, _tasks, _api) = served(ApiSettings::default()).await;
    let mut stream = TcpStream::connect(address).await.unwrap();
    for _ in 0..2 {
        stream.write_all(&LIVEZ[..20]).await.unwrap();
        tokio::task::yield_now().await;
        stream.write_all(&LIVEZ[20..]).await.unwrap();
        assert!(one_answer(&mut stream).await.starts_with("HTTP/1.1 200 OK"));
    }
}

#[tokio::test]
async fn a_connection_without_requests_is_closed_and_not_before_its_time() {
    let settings =
        ApiSettings { idle_timeout: 4 * SOON, header_timeout: SOON / 2, ..ApiSettings::default() };
    let (address, _tasks, api) = served(settings).await;
    let mut stream = TcpStream::connect(address).await.unwrap();
    let asked_at = crate::clock::monotonic();
    stream.write_all(LIVEZ).await.unwrap();
    assert!(one_answer(&mut stream).await.starts_with("HTTP/1.1 200 OK"));
    assert_eq!(rest_of(&mut stream).await, "");
    assert!(crate::clock::monotonic().since(asked_at) >= 4 * SOON);
    wait_metric(&api, &cut_off("idle"), "1").await;
    check_all_is_free(&api).await;
}

#[tokio::test]
async fn half_a_body_is_answered_408_and_frees_what_it_held() {
    let (address, _tasks, api) =
        served(ApiSettings { request_deadline: SOON, ..ApiSettings::default() }).await;
    let mut stream = TcpStream::connect(address).await.unwrap();
    let half = "POST /v1/tasks HTTP/1.1\r\n\
                host: a\r\n\
                content-type: application/json\r\n\
                content-length: 100\r\n\r\n\
                {\"topic\":";
    stream.write_all(half.as_bytes()).await.unwrap();
    let answer = rest_of(&mut stream).await;
    assert!(answer.starts_with("HTTP/1.1 408 ") && answer.contains("request-timeout"), "{answer}");
    wait_metric(&api, r#"punctual_api_rejected_total{limit="request_deadline"}"#, "1").await;
    check_all_is_free(&api).await;
}

#[tokio::test]
async fn who_does_not_read_a_large_answer_is_cut_off() {
    let (address, _tasks, api) =
        served(ApiSettings { answer_timeout: SOON, ..ApiSettings::default() }).await;
    let bytes = 14 << 20;
    let task = format!(r#"{{"topic":"t","delay":1,"payload_text":"{}"}}"#, "x".repeat(bytes));
    let path = format!("/v1/tasks/{}", submit(&api, &task).await["id"].as_str().unwrap());
    let socket = TcpSocket::new_v4().unwrap();
    socket.set_recv_buffer_size(4096).unwrap();
    let mut stream = socket.connect(address).await.unwrap();
    stream.write_all(format!("GET {path} HTTP/1.1\r\nhost: a\r\n\r\n").as_bytes()).await.unwrap();
    wait_metric(&api, &cut_off("answer"), "1").await;
    check_all_is_free(&api).await;
    let mut all = Vec::new();
    // Bytes in the buffers of the socket may still arrive, or be lost.
    stream.read_to_end(&mut all).await.ok();
    assert!(all.len() < bytes);
}

#[tokio::test]
async fn a_header_over_the_limit_is_answered_431() {
    let (address, _tasks, api) =
        served(ApiSettings { header_bytes_max: 32 << 10, ..ApiSettings::default() }).await;
    for (length, has_problem) in [(33 << 10, true), (80 << 10, false)] {
        let mut stream = TcpStream::connect(address).await.unwrap();
        let header = format!(
            "GET /livez HTTP/1.1\r\nhost: a\r\nconnection: close\r\nname: {}\r\n\r\n",
            "x".repeat(length)
        );
        // The library does not read a far too large header to its end.
        stream.write_all(header.as_bytes()).await.ok();
        let answer = rest_of(&mut stream).await;
        assert!(answer.starts_with("HTTP/1.1 431 "), "{length}: {answer}");
        assert_eq!(
            answer.contains("urn:punctual:problem:header-too-large"),
            has_problem,
            "{length}: {answer}"
        );
    }
    wait_metric(&api, r#"punctual_api_rejected_total{limit="header_bytes"}"#, "2").await;
    check_all_is_free(&api).await;
}

#[tokio::test]
async fn a_header_of_more_than_100_fields_is_answered_431() {
    let (address, _tasks, api) = served(ApiSettings::default()).await;
    // Two more fields are always there.
    for (count, status) in [(98, "200 OK"), (99, "431 "), (2000, "431 ")] {
        let fields: String = (0..count).map(|number| format!("f{number:03}: x\r\n")).collect();
        let mut stream = TcpStream::connect(address).await.unwrap();
        let header = format!("GET /livez HTTP/1.1\r\nhost: a\r\nconnection: close\r\n{fields}\r\n");
        stream.write_all(header.as_bytes()).await.unwrap();
        let answer = rest_of(&mut stream).await;
        assert!(answer.starts_with(&format!("HTTP/1.1 {status}")), "{count}: {answer}");
    }
    wait_metric(&api, r#"punctual_api_rejected_total{limit="header_bytes"}"#, "2").await;
}

#[tokio::test]
async fn connections_beyond_the_limit_are_counted() {
    let (address, _tasks, api) =
        served(ApiSettings { connections_max: 1, ..ApiSettings::default() }).await;
    let _first = TcpStream::connect(address).await.unwrap();
    wait_metric(&api, "punctual_api_connections", "1").await;
    assert!(
        rest_of(&mut TcpStream::connect(address).await.unwrap()).await.starts_with("HTTP/1.1 503 ")
    );
    wait_metric(&api, r#"punctual_api_rejected_total{limit="connections"}"#, "1").await;
}
