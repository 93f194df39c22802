//! Connections over real sockets.

use std::time::Duration;

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::time::timeout;

use super::sockets::{LIVEZ, PATIENCE, one_answer, rest_of, served, wait_metric};
use super::*;

#[tokio::test]
async fn a_connection_is_kept_for_the_next_request_and_ends_with_the_node() {
    let (address, tasks, _) = served(ApiSettings::default()).await;
    let mut stream = TcpStream::connect(address).await.unwrap();
    for _ in 0..2 {
        stream.write_all(LIVEZ).await.unwrap();
        assert!(one_answer(&mut stream).await.starts_with("HTTP/1.1 200 OK"));
    }
    assert!(tasks.stop(PATIENCE).await);
    assert_eq!(rest_of(&mut stream).await, "");
    assert_eq!(tasks.failure(), None);
}

#[tokio::test]
async fn connections_beyond_the_limit_are_told_so() {
    let (address, _tasks, _) =
        served(ApiSettings { connections_max: 1, ..ApiSettings::default() }).await;
    let mut first = TcpStream::connect(address).await.unwrap();
    first.write_all(LIVEZ).await.unwrap();
    assert!(one_answer(&mut first).await.starts_with("HTTP/1.1 200 OK"));
    let answer = rest_of(&mut TcpStream::connect(address).await.unwrap()).await;
    check_turned_away(&answer, "HTTP/1.1 503 Service Unavailable", "busy");
}

/// Checks the parts that every problem has.
fn check_turned_away(answer: &str, status: &str, kind: &str) {
    let (head, body) = answer.split_once("\r\n\r\n").unwrap();
    let problem: Value = serde_json::from_str(body).unwrap();
    assert_eq!(problem["type"], format!("urn:punctual:problem:{kind}"));
    assert_eq!(head.lines().next(), Some(status));
    for field in [
        "connection: close".to_owned(),
        "content-type: application/problem+json".to_owned(),
        format!("content-length: {}", body.len()),
        format!("link: </problems/{kind}>; rel=\"help\""),
        format!("retry-after: {}", problem["retry_after"]),
        format!("x-request-id: {}", problem["request_id"].as_str().unwrap()),
    ] {
        assert!(head.lines().any(|line| line == field), "{field}: {answer}");
    }
}

#[tokio::test]
async fn a_caller_with_too_many_connections_is_told_so_and_others_are_not() {
    let (address, _tasks, api) =
        served(ApiSettings { caller_connections_max: 1, ..ApiSettings::default() }).await;
    let mut first = TcpStream::connect(address).await.unwrap();
    first.write_all(LIVEZ).await.unwrap();
    assert!(one_answer(&mut first).await.starts_with("HTTP/1.1 200 OK"));
    let answer = rest_of(&mut TcpStream::connect(address).await.unwrap()).await;
    check_turned_away(&answer, "HTTP/1.1 429 Too Many Requests", "too-many-requests");
    assert_eq!(
        metric(&api, r#"punctual_api_rejected_total{limit="caller_connections"}"#).await.as_deref(),
        Some("1")
    );
    // Another address of the machine.
    let socket = tokio::net::TcpSocket::new_v4().unwrap();
    socket.bind("127.0.0.2:0".parse().unwrap()).unwrap();
    let mut other = socket.connect(address).await.unwrap();
    other.write_all(LIVEZ).await.unwrap();
    assert!(one_answer(&mut other).await.starts_with("HTTP/1.1 200 OK"));
}

/// Sends a submit that the model never answers, so the API answers at its deadline.
async fn ask_slowly(address: std::net::SocketAddr) -> TcpStream {
    let mut stream = TcpStream::connect(address).await.unwrap();
    let body = r#"{"topic":"slow","delay":1,"payload":1}"#;
    let request = format!(
        "POST /v1/tasks HTTP/1.1\r\n\
         host: a\r\n\
         content-type: application/json\r\n\
         content-length: {}\r\n\r\n\
         {body}",
        body.len()
    );
    stream.write_all(request.as_bytes()).await.unwrap();
    stream
}

#[tokio::test]
async fn a_caller_that_has_said_all_and_closed_its_side_is_answered() {
    let settings =
        ApiSettings { request_deadline: Duration::from_millis(100), ..ApiSettings::default() };
    let (address, _tasks, api) = served(settings).await;
    let mut stream = ask_slowly(address).await;
    stream.shutdown().await.unwrap();
    let answer = rest_of(&mut stream).await;
    assert!(answer.starts_with("HTTP/1.1 503 ") && answer.contains("outcome-unknown"), "{answer}");
    wait_metric(&api, "punctual_api_connections", "0").await;
}

#[tokio::test]
async fn a_caller_that_is_gone_is_let_go_at_the_deadline_of_its_request() {
    let settings =
        ApiSettings { request_deadline: Duration::from_secs(2), ..ApiSettings::default() };
    let (address, _tasks, api) = served(settings).await;
    let stream = ask_slowly(address).await;
    wait_metric(&api, "punctual_api_requests_in_flight", "2").await;
    drop(stream);
    wait_metric(&api, "punctual_api_connections", "0").await;
    wait_metric(&api, "punctual_api_requests_in_flight", "1").await;
}

#[tokio::test]
async fn who_is_slow_to_ask_is_cut_off() {
    let (address, _tasks, _) =
        served(ApiSettings { header_timeout: Duration::from_millis(50), ..ApiSettings::default() })
            .await;
    for beginning in ["", "P", "PRI * HTTP/2.0\r\n\r\n", "GET /livez HTTP/1.1\r\nhost:"] {
        let mut stream = TcpStream::connect(address).await.unwrap();
        stream.write_all(beginning.as_bytes()).await.unwrap();
        let rest = rest_of(&mut stream).await;
        assert!(!rest.contains("200 OK"), "{beginning:?}: {rest}");
    }
}

#[tokio::test]
async fn http_2_is_spoken_by_prior_knowledge() {
    let (address, _tasks, _) = served(ApiSettings::default()).await;
    let mut stream = TcpStream::connect(address).await.unwrap();
    // The preface and an empty SETTINGS frame. The server answers with SETTINGS of its own.
    stream.write_all(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0").await.unwrap();
    let mut frame = [0; 9];
    timeout(PATIENCE, stream.read_exact(&mut frame)).await.unwrap().unwrap();
    assert_eq!(frame[3], 4, "the first frame is SETTINGS");
}

#[tokio::test]
async fn a_request_in_flight_is_answered_when_the_node_ends() {
    let settings =
        ApiSettings { request_deadline: Duration::from_millis(200), ..ApiSettings::default() };
    let (address, tasks, _) = served(settings).await;
    let mut stream = TcpStream::connect(address).await.unwrap();
    let body = r#"{"topic":"slow","delay":1,"payload":1}"#;
    let request = format!(
        "POST /v1/tasks HTTP/1.1\r\n\
         host: a\r\n\
         content-type: application/json\r\n\
         content-length: {}\r\n\
         expect: 100-continue\r\n\r\n",
        body.len()
    );
    stream.write_all(request.as_bytes()).await.unwrap();
    // The node asks for the body: so the request is in flight.
    assert!(one_answer(&mut stream).await.starts_with("HTTP/1.1 100"));
    tasks.stopping.cancel();
    stream.write_all(body.as_bytes()).await.unwrap();
    assert!(rest_of(&mut stream).await.contains("outcome-unknown"));
    assert!(tasks.stop(PATIENCE).await);
}
