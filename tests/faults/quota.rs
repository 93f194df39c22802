//! Kafka's producer quota, set over Kafka's own protocol, because librdkafka cannot set one.

use std::time::Duration;

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;

const ALTER_CLIENT_QUOTAS: i16 = 49;
/// The only version without compact strings.
const VERSION: i16 = 0;
const CORRELATION: i32 = 1;
const DEADLINE: Duration = Duration::from_secs(10);
const ANSWER_BYTES_MAX: usize = 64 << 10;

/// Sets the bytes per second that each client may send, or removes the quota. Clients with a quota
/// of their own are not affected.
pub async fn set(kafka: &str, bytes_per_second: Option<i64>) -> Result<(), String> {
    match tokio::time::timeout(DEADLINE, exchange(kafka, &request(bytes_per_second))).await {
        Ok(Ok(answer)) => judge(&answer),
        Ok(Err(error)) => Err(format!("alter the quota: {error}")),
        Err(_elapsed) => Err(format!("alter the quota: no answer for {DEADLINE:?}")),
    }
}

async fn exchange(kafka: &str, request: &[u8]) -> std::io::Result<Vec<u8>> {
    let mut stream = TcpStream::connect(kafka).await?;
    stream.write_all(&i32::try_from(request.len()).unwrap().to_be_bytes()).await?;
    stream.write_all(request).await?;
    let length = usize::try_from(stream.read_i32().await?).unwrap_or(usize::MAX);
    if length > ANSWER_BYTES_MAX {
        return Err(std::io::Error::other(format!("an answer of {length} bytes")));
    }
    let mut answer = vec![0; length];
    stream.read_exact(&mut answer).await?;
    Ok(answer)
}

fn request(bytes_per_second: Option<i64>) -> Vec<u8> {
    let mut bytes = Vec::new();
    bytes.extend(ALTER_CLIENT_QUOTAS.to_be_bytes());
    bytes.extend(VERSION.to_be_bytes());
    bytes.extend(CORRELATION.to_be_bytes());
    put_text(&mut bytes, Some("faults"));
    // One entity with one part: the client id without a name is the default for all clients.
    bytes.extend(1_i32.to_be_bytes());
    bytes.extend(1_i32.to_be_bytes());
    put_text(&mut bytes, Some("client-id"));
    put_text(&mut bytes, None);
    // One change of the quota.
    bytes.extend(1_i32.to_be_bytes());
    put_text(&mut bytes, Some("producer_byte_rate"));
    bytes.extend((bytes_per_second.unwrap_or_default() as f64).to_be_bytes());
    bytes.push(u8::from(bytes_per_second.is_none()));
    // `validate_only` is false.
    bytes.push(0);
    bytes
}

fn put_text(bytes: &mut Vec<u8>, text: Option<&str>) {
    let length = text.map_or(-1, |text| i16::try_from(text.len()).unwrap());
    bytes.extend(length.to_be_bytes());
    bytes.extend(text.unwrap_or_default().as_bytes());
}

/// Reads the answer: the correlation id, the throttle time, the number of entities, and the error
/// of the first one.
fn judge(answer: &[u8]) -> Result<(), String> {
    let expected = [
        CORRELATION.to_be_bytes().as_slice(),
        &0_i32.to_be_bytes(),
        &1_i32.to_be_bytes(),
        &0_i16.to_be_bytes(),
    ]
    .concat();
    if answer.starts_with(&expected) {
        Ok(())
    } else {
        Err(format!("alter the quota: answered {answer:?}"))
    }
}
