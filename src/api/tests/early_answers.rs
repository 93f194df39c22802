//! Answers before the body was read: the caller reads the answer, and knows whether the connection
//! continues.

use std::net::SocketAddr;
use std::time::Duration;

use tokio::io::AsyncWriteExt as _;
use tokio::net::TcpStream;

use super::sockets::{LIVEZ, one_answer, rest_of, served, wait_metric};
use super::*;

const MIB: usize = 1 << 20;

fn header(path: &str, content_type: &str, length: usize) -> String {
    format!(
        "POST {path} HTTP/1.1\r\n\
         host: a\r\n\
         content-type: {content_type}\r\n\
         content-length: {length}\r\n\r\n"
    )
}

/// Sends the whole body before reading, as most clients do. Returns the response.
async fn send_all(address: SocketAddr, header: &str, length: usize) -> String {
    let mut stream = TcpStream::connect(address).await.unwrap();
    stream.write_all(header.as_bytes()).await.unwrap();
    for _ in 0..length / MIB {
        stream.write_all(&vec![b'x'; MIB]).await.expect("no broken pipe");
    }
    stream.write_all(&vec![b'x'; length % MIB]).await.expect("no broken pipe");
    rest_of(&mut stream).await
}

#[tokio::test]
async fn an_answer_that_does_not_wait_for_its_body_says_that_it_is_the_last() {
    let (address, _tasks, api) =
        served(ApiSettings { body_bytes_max: MIB, ..ApiSettings::default() }).await;
    for (path, content_type, status) in [
        ("/v1/tasks", "text/plain", "415 "),
        ("/v1/tasks", "application/json", "413 "),
        ("/v1/none", "application/json", "404 "),
        ("/v1/cluster", "application/json", "405 "),
        ("/v1/schedules/a/b/trigger", "application/json", "400 "),
    ] {
        let length = 40 * MIB;
        let answer = send_all(address, &header(path, content_type, length), length).await;
        assert!(answer.starts_with(&format!("HTTP/1.1 {status}")), "{path}: {answer}");
        assert_eq!(answer.matches("connection: close\r\n").count(), 1, "{path}: {answer}");
        assert!(answer.contains("urn:punctual:problem:"), "{path}: {answer}");
    }
    wait_metric(&api, "punctual_api_connections", "0").await;
    wait_metric(&api, r#"punctual_api_cut_off_total{deadline="rest"}"#, "0").await;
}

#[tokio::test]
async fn chunks_over_the_limit_are_read_on() {
    let (address, _tasks, _api) =
        served(ApiSettings { body_bytes_max: MIB, ..ApiSettings::default() }).await;
    let mut stream = TcpStream::connect(address).await.unwrap();
    let header = "POST /v1/tasks HTTP/1.1\r\n\
                  host: a\r\n\
                  content-type: application/json\r\n\
                  transfer-encoding: chunked\r\n\r\n";
    stream.write_all(header.as_bytes()).await.unwrap();
    for _ in 0..40 {
        let chunk = [b"100000\r\n".as_slice(), &vec![b' '; MIB], b"\r\n"].concat();
        stream.write_all(&chunk).await.expect("no broken pipe");
    }
    stream.write_all(b"0\r\n\r\n").await.unwrap();
    let answer = rest_of(&mut stream).await;
    assert!(
        answer.starts_with("HTTP/1.1 413 ") && answer.contains("connection: close\r\n"),
        "{answer}"
    );
}

/// As Python's `http.client`: the header in one packet, the body in the next.
#[tokio::test]
async fn a_small_body_in_a_packet_of_its_own_is_read_and_the_connection_kept() {
    let (address, _tasks, _api) = served(ApiSettings::default()).await;
    let mut stream = TcpStream::connect(address).await.unwrap();
    for length in [1 << 10, 60 << 10] {
        stream.write_all(header("/v1/tasks", "text/plain", length).as_bytes()).await.unwrap();
        for _ in 0..10 {
            tokio::task::yield_now().await;
        }
        stream.write_all(&vec![b'x'; length]).await.unwrap();
        let answer = one_answer(&mut stream).await;
        assert!(
            answer.starts_with("HTTP/1.1 415 ") && !answer.contains("connection: close"),
            "{answer}"
        );
    }
    stream.write_all(LIVEZ).await.unwrap();
    assert!(one_answer(&mut stream).await.starts_with("HTTP/1.1 200 OK"));
}

#[tokio::test]
async fn a_small_body_that_does_not_come_is_not_waited_for() {
    let (address, _tasks, api) = served(ApiSettings::default()).await;
    let mut stream = TcpStream::connect(address).await.unwrap();
    stream.write_all(header("/v1/tasks", "text/plain", 10).as_bytes()).await.unwrap();
    let answer = rest_of(&mut stream).await;
    assert!(
        answer.starts_with("HTTP/1.1 415 ") && answer.contains("connection: close\r\n"),
        "{answer}"
    );
    wait_metric(&api, "punctual_api_connections", "0").await;
}

/// A caller that asks before sending the body gets the answer instead.
#[tokio::test]
async fn a_caller_that_expects_a_go_ahead_gets_its_answer_instead() {
    let (address, _tasks, _api) = served(ApiSettings::default()).await;
    let mut stream = TcpStream::connect(address).await.unwrap();
    let header = header("/v1/tasks", "text/plain", 1000)
        .replace("\r\n\r\n", "\r\nexpect: 100-continue\r\n\r\n");
    stream.write_all(header.as_bytes()).await.unwrap();
    let answer = rest_of(&mut stream).await;
    assert!(
        answer.starts_with("HTTP/1.1 415 ") && answer.contains("connection: close\r\n"),
        "{answer}"
    );
}

#[tokio::test]
async fn who_goes_on_sending_is_cut_off_in_its_time_and_holds_no_place() {
    let settings =
        ApiSettings { answer_timeout: Duration::from_millis(300), ..ApiSettings::default() };
    let (address, _tasks, api) = served(settings).await;
    let mut stream = TcpStream::connect(address).await.unwrap();
    stream.write_all(header("/v1/tasks", "text/plain", 100 * MIB).as_bytes()).await.unwrap();
    assert!(one_answer(&mut stream).await.starts_with("HTTP/1.1 415 "));
    wait_metric(&api, "punctual_api_requests_in_flight", "1").await;
    assert_eq!(metric(&api, "punctual_api_connections").await.as_deref(), Some("1"));
    wait_metric(&api, r#"punctual_api_cut_off_total{deadline="rest"}"#, "1").await;
    wait_metric(&api, "punctual_api_connections", "0").await;
}

#[tokio::test]
async fn a_connection_that_lingers_does_not_hold_up_the_end_of_the_node() {
    let (address, tasks, api) = served(ApiSettings::default()).await;
    let mut stream = TcpStream::connect(address).await.unwrap();
    stream.write_all(header("/v1/tasks", "text/plain", 100 * MIB).as_bytes()).await.unwrap();
    assert!(one_answer(&mut stream).await.starts_with("HTTP/1.1 415 "));
    wait_metric(&api, "punctual_api_requests_in_flight", "1").await;
    assert!(tasks.stop(Duration::from_secs(3)).await);
}

#[tokio::test]
async fn who_is_over_a_limit_reads_it_after_all_of_its_body() {
    for settings in [
        ApiSettings { requests_in_flight_max: 0, ..ApiSettings::default() },
        ApiSettings { caller_requests_max: 0, ..ApiSettings::default() },
        ApiSettings { header_bytes_max: 10, ..ApiSettings::default() },
    ] {
        let (address, _tasks, _api) = served(settings).await;
        let length = 40 * MIB;
        let answer =
            send_all(address, &header("/v1/tasks", "application/json", length), length).await;
        let is_refused = ["503 ", "429 ", "431 "]
            .iter()
            .any(|status| answer.starts_with(&format!("HTTP/1.1 {status}")));
        assert!(is_refused && answer.contains("connection: close\r\n"), "{answer}");
    }
}

#[tokio::test]
async fn a_connection_beyond_the_limit_reads_it_after_all_of_its_body() {
    let (address, _tasks, api) =
        served(ApiSettings { connections_max: 1, ..ApiSettings::default() }).await;
    let _first = TcpStream::connect(address).await.unwrap();
    wait_metric(&api, "punctual_api_connections", "1").await;
    let length = 40 * MIB;
    let answer = send_all(address, &header("/v1/tasks", "application/json", length), length).await;
    assert!(
        answer.starts_with("HTTP/1.1 503 ") && answer.contains("connection: close\r\n"),
        "{answer}"
    );
}

/// The HTTP library itself answers bytes that are not a request.
#[tokio::test]
async fn what_is_no_request_is_answered_after_all_of_it() {
    let (address, _tasks, _api) = served(ApiSettings::default()).await;
    let answer = send_all(address, "this is no request\r\n\r\n", 40 * MIB).await;
    assert!(
        answer.starts_with("HTTP/1.1 400 ") && answer.contains("connection: close\r\n"),
        "{answer}"
    );
}
