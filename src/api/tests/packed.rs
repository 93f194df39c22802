//! Compressed bodies.

use std::io::Write as _;
use std::time::Duration;

use flate2::Compression;
use flate2::write::GzEncoder;

use super::*;

const TASK: &str = r#"{"topic":"t","delay":1,"payload":1}"#;
const MIB: usize = 1 << 20;

fn gzip(bytes: &[u8]) -> Vec<u8> {
    let mut encoder = GzEncoder::new(Vec::new(), Compression::default());
    encoder.write_all(bytes).unwrap();
    encoder.finish().unwrap()
}

fn zstd(bytes: &[u8]) -> Vec<u8> {
    zstd::encode_all(bytes, 0).unwrap()
}

fn packed(encodings: &[&str], body: Vec<u8>) -> Request<Body> {
    let mut request = post("/v1/tasks", body);
    for encoding in encodings {
        request.headers_mut().append("content-encoding", encoding.parse().unwrap());
    }
    request
}

async fn check(api: &Api, encodings: &[&str], body: Vec<u8>, wanted: &str) {
    let response = api.ask(packed(encodings, body)).await;
    let (status, accepted) =
        (response.status().as_u16(), header_of(&response, "accept-encoding").map(str::to_owned));
    let answer = json_of(response).await;
    let kind =
        answer["type"].as_str().unwrap_or_default().trim_start_matches("urn:punctual:problem:");
    assert_eq!(format!("{status} {kind}").trim_end(), wanted, "{encodings:?}: {answer}");
    assert_eq!(accepted.as_deref(), (status == 415).then_some("gzip, zstd"), "{encodings:?}");
}

#[tokio::test]
async fn bodies_in_gzip_and_zstd_are_unpacked() {
    let api = api();
    for (encoding, body) in [
        ("gzip", gzip(TASK.as_bytes())),
        ("X-GZip", gzip(TASK.as_bytes())),
        ("zstd", zstd(TASK.as_bytes())),
        ("ZSTD", zstd(TASK.as_bytes())),
        ("identity", TASK.into()),
        // Members and frames one after the other are one body.
        ("gzip", [gzip(&TASK.as_bytes()[..9]), gzip(&TASK.as_bytes()[9..])].concat()),
        ("zstd", [zstd(&TASK.as_bytes()[..9]), zstd(&TASK.as_bytes()[9..])].concat()),
    ] {
        check(&api, &[encoding], body, "201").await;
    }
}

#[tokio::test]
async fn a_large_batch_in_either_is_the_same_batch() {
    let api = api();
    let tasks: Vec<String> = (0..10_000)
        .map(|number| format!(r#"{{"topic":"t","delay":1,"payload":"{number:0>100}"}}"#))
        .collect();
    let batch = format!(r#"{{"tasks":[{}]}}"#, tasks.join(","));
    for (encoding, body) in [("gzip", gzip(batch.as_bytes())), ("zstd", zstd(batch.as_bytes()))] {
        let mut request = post("/v1/tasks/batch", body);
        request.headers_mut().insert("content-encoding", encoding.parse().unwrap());
        let answer = json_of(api.ask(request).await).await;
        let results = answer["results"].as_array().unwrap();
        assert_eq!(results.len(), 10_000);
        assert!(results.iter().all(|result| result["status"] == 201));
    }
}

#[tokio::test]
async fn other_encodings_are_refused_and_the_right_ones_named() {
    let api = api();
    for encodings in [
        &["deflate"][..],
        &["br"],
        &["gzip, gzip"],
        &["gzip", "gzip"],
        &["identity", "gzip"],
        &[""],
    ] {
        check(&api, encodings, TASK.into(), "415 unsupported-encoding").await;
    }
}

#[tokio::test]
async fn what_is_not_what_it_says_is_refused() {
    let api = api();
    for (encoding, right) in [("gzip", gzip(TASK.as_bytes())), ("zstd", zstd(TASK.as_bytes()))] {
        for length in [1, 9, right.len() - 1] {
            check(&api, &[encoding], right[..length].to_vec(), "400 malformed-encoding").await;
        }
        check(&api, &[encoding], TASK.into(), "400 malformed-encoding").await;
        check(&api, &[encoding], [right, b"more".to_vec()].concat(), "400 malformed-encoding")
            .await;
    }
    let mut wrong = gzip(TASK.as_bytes());
    let checksum = wrong.len() - 8;
    wrong[checksum] ^= 1;
    check(&api, &["gzip"], wrong, "400 malformed-encoding").await;
}

#[tokio::test]
async fn a_bomb_is_refused_at_the_limit_on_a_body() {
    let (api, _) = api_of(ApiSettings {
        body_bytes_max: MIB,
        body_memory_max: 2 * MIB,
        ..ApiSettings::default()
    });
    let bomb = vec![b' '; 256 * MIB];
    for (encoding, body) in [("gzip", gzip(&bomb)), ("zstd", zstd(&bomb))] {
        assert!(body.len() < MIB, "{} bytes of {encoding}", body.len());
        check(&api, &[encoding], body, "413 body-too-large").await;
    }
    let fits = format!("{TASK}{}", " ".repeat(MIB - TASK.len()));
    check(&api, &["gzip"], gzip(fits.as_bytes()), "201").await;
    check(&api, &["gzip"], gzip(format!("{fits} ").as_bytes()), "413 body-too-large").await;
}

#[tokio::test]
async fn unpacking_lets_others_have_their_turn_also_when_nothing_comes_out() {
    let api = api();
    for (encoding, empty, task) in
        [("gzip", gzip(b""), gzip(TASK.as_bytes())), ("zstd", zstd(b""), zstd(TASK.as_bytes()))]
    {
        let body = [empty.repeat(MIB / empty.len()), task].concat();
        let mut answer = Box::pin(api.ask(packed(&[encoding], body)));
        let mut turns = 0;
        let answer = loop {
            match futures_util::poll!(&mut answer) {
                std::task::Poll::Ready(answer) => break answer,
                std::task::Poll::Pending => turns += 1,
            }
            tokio::task::yield_now().await;
        };
        assert_eq!(answer.status(), StatusCode::CREATED, "{encoding}");
        assert!(turns >= 16, "{turns} turns for 1 MiB of {encoding}");
    }
}

#[tokio::test]
async fn a_body_that_came_and_could_not_be_unpacked_in_time_is_no_fault_of_its_caller() {
    let (api, _) = api_of(ApiSettings {
        request_deadline: Duration::from_millis(50),
        ..ApiSettings::default()
    });
    let empty = gzip(b"");
    let long = [empty.repeat(MIB / empty.len()), gzip(TASK.as_bytes())].concat();
    // Each body is unpacked for a moment, and then not read any more, so the others wait.
    let mut unpacked: Vec<_> =
        (0..8).map(|_| Box::pin(api.ask(packed(&["gzip"], long.clone())))).collect();
    for answer in &mut unpacked {
        assert!(futures_util::poll!(answer).is_pending());
    }
    let response = api.ask(packed(&["gzip"], gzip(TASK.as_bytes()))).await;
    assert_eq!(header_of(&response, "retry-after"), Some("1"));
    assert_eq!(json_of(response).await["type"], "urn:punctual:problem:busy");
    let line = r#"punctual_api_rejected_total{limit="bodies_unpacked_at_once"}"#;
    assert_eq!(metric(&api, line).await.as_deref(), Some("1"));
    drop(unpacked);
    check(&api, &["gzip"], gzip(TASK.as_bytes()), "201").await;
}

#[tokio::test]
async fn what_is_unpacked_counts_against_the_memory_for_bodies() {
    let slow = r#"{"topic":"slow","delay":1,"payload":1}"#;
    let large = gzip(format!("{slow}{}", " ".repeat(MIB - slow.len())).as_bytes());
    let (api, _) = api_of(ApiSettings {
        body_bytes_max: MIB,
        body_memory_max: MIB + 2000,
        ..ApiSettings::default()
    });
    let mut first = Box::pin(api.ask(packed(&["gzip"], large.clone())));
    assert!(futures_util::poll!(&mut first).is_pending());
    while !text_of(api.ask(bare("GET", "/metrics")).await)
        .await
        .contains("punctual_api_body_memory_bytes 1048576")
    {
        assert!(futures_util::poll!(&mut first).is_pending());
    }
    check(&api, &["gzip"], gzip(format!("{TASK}{}", " ".repeat(2000)).as_bytes()), "503 busy")
        .await;
    drop(first);
    check(&api, &["gzip"], gzip(format!("{TASK}{}", " ".repeat(2000)).as_bytes()), "201").await;
}

/// A zstd frame whose header requires a window of 128 MiB.
#[tokio::test]
async fn a_window_that_no_content_encoding_may_have_is_refused() {
    let mut encoder = zstd::stream::write::Encoder::new(Vec::new(), 1).unwrap();
    encoder.window_log(27).unwrap();
    encoder.write_all(TASK.as_bytes()).unwrap();
    check(&api(), &["zstd"], encoder.finish().unwrap(), "400 malformed-encoding").await;
}
