//! Kafka's quota for producers, set over Kafka's own protocol, because librdkafka cannot set one.

use std::time::Duration;

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;

const ALTER_CLIENT_QUOTAS: i16 = 49;
/// The only version without compact strings.
const VERSION: i16 = 0;
const CORRELATION: i32 = 1;
const DEADLINE: Duration = Duration::from_secs(10);

/// Sets the bytes per second that the clients of this id may send.
pub async fn set(kafka: &str, client_id: &str, bytes_per_second: f64) {
    let request = request(client_id, bytes_per_second);
    let answer = tokio::time::timeout(DEADLINE, exchange(kafka, &request)).await;
    let answer = answer.expect("Kafka answers").expect("Kafka can be asked");
    // The answer holds the correlation id, the throttle time, the number of entities, and the error
    // of the first one.
    let well = [
        CORRELATION.to_be_bytes().as_slice(),
        &0_i32.to_be_bytes(),
        &1_i32.to_be_bytes(),
        &0_i16.to_be_bytes(),
    ]
    .concat();
    assert!(answer.starts_with(&well), "alter the quota: answered {answer:?}");
}

async fn exchange(kafka: &str, request: &[u8]) -> std::io::Result<Vec<u8>> {
    let mut stream = TcpStream::connect(kafka).await?;
    stream.write_i32(i32::try_from(request.len()).unwrap()).await?;
    stream.write_all(request).await?;
    let mut answer = vec![0; usize::try_from(stream.read_i32().await?).unwrap()];
    stream.read_exact(&mut answer).await?;
    Ok(answer)
}

fn request(client_id: &str, bytes_per_second: f64) -> Vec<u8> {
    let mut bytes = Vec::new();
    bytes.extend(ALTER_CLIENT_QUOTAS.to_be_bytes());
    bytes.extend(VERSION.to_be_bytes());
    bytes.extend(CORRELATION.to_be_bytes());
    put_text(&mut bytes, "tests");
    // One entity with one part.
    bytes.extend(1_i32.to_be_bytes());
    bytes.extend(1_i32.to_be_bytes());
    put_text(&mut bytes, "client-id");
    put_text(&mut bytes, client_id);
    // One change of the quota, which does not remove it.
    bytes.extend(1_i32.to_be_bytes());
    put_text(&mut bytes, "producer_byte_rate");
    bytes.extend(bytes_per_second.to_be_bytes());
    bytes.push(0);
    // `validate_only` is false.
    bytes.push(0);
    bytes
}

fn put_text(bytes: &mut Vec<u8>, text: &str) {
    bytes.extend(i16::try_from(text.len()).unwrap().to_be_bytes());
    bytes.extend(text.as_bytes());
}
