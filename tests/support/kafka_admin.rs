//! Kafka's quotas and rights, set over Kafka's own protocol, because librdkafka's client in Rust
//! cannot set them.

use std::time::Duration;

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;

/// A kind of request, in a version without compact strings.
struct Kind {
    name: &'static str,
    key: i16,
    version: i16,
}

const ALTER_CLIENT_QUOTAS: Kind = Kind { name: "alter a quota", key: 49, version: 0 };
const CREATE_ACLS: Kind = Kind { name: "create rights", key: 30, version: 1 };
const DELETE_ACLS: Kind = Kind { name: "delete rights", key: 31, version: 1 };

const CORRELATION: i32 = 1;
const DEADLINE: Duration = Duration::from_secs(10);

/// Codes of Kafka's protocol for rights.
const TOPIC: u8 = 2;
const LITERAL: u8 = 3;
const ANY_OPERATION: u8 = 1;
const ALL_OPERATIONS: u8 = 2;
const WRITE: u8 = 4;
const ANY_PERMISSION: u8 = 1;
const DENY: u8 = 2;
const ALLOW: u8 = 3;

/// Sets the bytes per second that the clients of this id may send.
pub async fn set_quota(kafka: &str, client_id: &str, bytes_per_second: f64) {
    let mut body = Vec::new();
    // One entity with one part.
    body.extend(1_i32.to_be_bytes());
    body.extend(1_i32.to_be_bytes());
    put_text(&mut body, "client-id");
    put_text(&mut body, client_id);
    // One change of the quota, which does not remove it.
    body.extend(1_i32.to_be_bytes());
    put_text(&mut body, "producer_byte_rate");
    body.extend(bytes_per_second.to_be_bytes());
    body.push(0);
    // `validate_only` is false.
    body.push(0);
    ask(kafka, &ALTER_CLIENT_QUOTAS, &body, 1).await;
}

/// Denies everybody the right to write to a topic. All other rights stay.
pub async fn deny_writes(kafka: &str, topic: &str) {
    let rights = [(ALL_OPERATIONS, ALLOW), (WRITE, DENY)];
    let mut body = Vec::new();
    body.extend(i32::try_from(rights.len()).unwrap().to_be_bytes());
    for (operation, permission) in rights {
        body.push(TOPIC);
        put_text(&mut body, topic);
        body.push(LITERAL);
        put_text(&mut body, "User:*");
        put_text(&mut body, "*");
        body.extend([operation, permission]);
    }
    ask(kafka, &CREATE_ACLS, &body, 2).await;
}

/// Removes all rules about a topic: everybody has all rights again.
pub async fn allow_all(kafka: &str, topic: &str) {
    let mut body = Vec::new();
    body.extend(1_i32.to_be_bytes());
    body.push(TOPIC);
    put_text(&mut body, topic);
    body.push(LITERAL);
    // Any principal and any host.
    body.extend((-1_i16).to_be_bytes());
    body.extend((-1_i16).to_be_bytes());
    body.extend([ANY_OPERATION, ANY_PERMISSION]);
    ask(kafka, &DELETE_ACLS, &body, 1).await;
}

/// Sends a request whose answer has `count` results, and requires that the first one has no error.
async fn ask(kafka: &str, kind: &Kind, body: &[u8], count: i32) {
    let mut request = Vec::new();
    request.extend(kind.key.to_be_bytes());
    request.extend(kind.version.to_be_bytes());
    request.extend(CORRELATION.to_be_bytes());
    put_text(&mut request, "tests");
    request.extend(body);
    let answer = tokio::time::timeout(DEADLINE, exchange(kafka, &request)).await;
    let answer = answer.expect("Kafka answers").expect("Kafka can be asked");
    // The answer holds the correlation id, the throttle time, the number of results, and the error
    // of the first one.
    let good = [
        CORRELATION.to_be_bytes().as_slice(),
        &0_i32.to_be_bytes(),
        &count.to_be_bytes(),
        &0_i16.to_be_bytes(),
    ]
    .concat();
    assert!(answer.starts_with(&good), "{}: answered {answer:?}", kind.name);
}

async fn exchange(kafka: &str, request: &[u8]) -> std::io::Result<Vec<u8>> {
    let mut stream = TcpStream::connect(kafka).await?;
    stream.write_i32(i32::try_from(request.len()).unwrap()).await?;
    stream.write_all(request).await?;
    let mut answer = vec![0; usize::try_from(stream.read_i32().await?).unwrap()];
    stream.read_exact(&mut answer).await?;
    Ok(answer)
}

fn put_text(bytes: &mut Vec<u8>, text: &str) {
    bytes.extend(i16::try_from(text.len()).unwrap().to_be_bytes());
    bytes.extend(text.as_bytes());
}
