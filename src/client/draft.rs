//! Builds the JSON of a submit from a command line. The node validates it: this module checks only
//! mistakes that the node would not see.

pub mod outcome;

use std::path::Path;

use az::SaturatingAs as _;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde::ser::SerializeMap as _;
use serde::{Serialize, Serializer};
use serde_json::value::RawValue;
use tokio::io::{AsyncRead, AsyncReadExt as _};

use super::args::SubmitArgs;

/// No node accepts a larger body.
const FILE_BYTES_MAX: u64 = 1 << 30;
/// Editors of Windows put it before the text. JSON does not allow it.
const BYTE_ORDER_MARK: &[u8] = b"\xef\xbb\xbf";

#[derive(Serialize, Default)]
struct DraftBody<'a> {
    #[serde(skip_serializing_if = "Option::is_none")]
    topic: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    due_at: Option<NumberOrText<'a>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    delay: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    expires_at: Option<NumberOrText<'a>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    payload: Option<&'a RawValue>,
    #[serde(skip_serializing_if = "Option::is_none")]
    payload_text: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    payload_base64: Option<String>,
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    tombstone: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    key: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    key_base64: Option<&'a str>,
    #[serde(skip_serializing_if = "Vec::is_empty", serialize_with = "headers")]
    headers: Vec<(&'a str, DraftHeaderValue<'a>)>,
    #[serde(skip_serializing_if = "Option::is_none")]
    name: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    ttr: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    retry: Option<RetryBody<'a>>,
}

#[derive(Serialize)]
struct RetryBody<'a> {
    #[serde(skip_serializing_if = "Option::is_none")]
    attempts_max: Option<u16>,
    #[serde(skip_serializing_if = "Option::is_none")]
    backoff_min: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    backoff_max: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    backoff_factor: Option<u16>,
    #[serde(skip_serializing_if = "Option::is_none")]
    dead_topic: Option<&'a str>,
}

/// A due time. Digits become a number, as in the API. Other text is sent as it is, and the node
/// reports what is wrong with it.
#[derive(Clone, Copy, Debug)]
pub struct NumberOrText<'a>(pub &'a str);

impl Serialize for NumberOrText<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self.0.trim().parse::<i64>() {
            Ok(number) => serializer.serialize_i64(number),
            Err(_text) => serializer.serialize_str(self.0),
        }
    }
}

#[derive(Serialize, Clone, Copy, Debug)]
#[serde(untagged)]
enum DraftHeaderValue<'a> {
    Text(&'a str),
    Binary { base64: &'a str },
    Null,
}

/// A name that occurs several times gets a list of its values.
fn headers<S: Serializer>(
    headers: &[(&str, DraftHeaderValue<'_>)],
    serializer: S,
) -> Result<S::Ok, S::Error> {
    let mut map = serializer.serialize_map(None)?;
    for (index, (name, value)) in headers.iter().enumerate() {
        if headers[..index].iter().any(|(known, _)| known == name) {
            continue;
        }
        let values: Vec<DraftHeaderValue<'_>> = headers[index..]
            .iter()
            .filter(|(other, _)| other == name)
            .map(|(_, value)| *value)
            .collect();
        match values.len() {
            1 => map.serialize_entry(name, value)?,
            _ => map.serialize_entry(name, &values)?,
        }
    }
    map.end()
}

fn headers_of(args: &SubmitArgs) -> Vec<(&str, DraftHeaderValue<'_>)> {
    let texts =
        args.headers.iter().map(|(name, value)| (name.as_str(), DraftHeaderValue::Text(value)));
    let binaries = args
        .header_base64
        .iter()
        .map(|(name, base64)| (name.as_str(), DraftHeaderValue::Binary { base64 }));
    let nulls = args.header_null.iter().map(|name| (name.as_str(), DraftHeaderValue::Null));
    texts.chain(binaries).chain(nulls).collect()
}

/// Returns the body of a move to another due time.
pub fn body_of_move(due_at: &Option<String>, delay: &Option<String>) -> Result<Vec<u8>, String> {
    let draft = DraftBody {
        due_at: due_at.as_deref().map(NumberOrText),
        delay: delay.as_deref(),
        ..DraftBody::default()
    };
    serde_json::to_vec(&draft).map_err(|error| format!("cannot write the time as JSON: {error}"))
}

/// Returns the body of the submit, or an error of the command line. The body of a replacement has
/// no topic and no name, because the path holds them.
pub async fn body_of(args: &SubmitArgs) -> Result<Vec<u8>, String> {
    let file = match &args.payload.payload_file {
        Some(path) => {
            let bytes = bytes_of(path).await;
            Some(bytes.map_err(|error| format!("{error} (--payload-file)"))?)
        }
        None => None,
    };
    let json = args.payload.payload.as_deref().map(checked_json).transpose()?;
    let text_of_file = file.as_deref().and_then(|bytes| std::str::from_utf8(bytes).ok());
    let draft = DraftBody {
        topic: args.topic.as_deref().filter(|_| !args.replace),
        due_at: args.due.due_at.as_deref().map(NumberOrText),
        delay: args.due.delay.as_deref(),
        expires_at: args.expires_at.as_deref().map(NumberOrText),
        payload: json,
        payload_text: args.payload.payload_text.as_deref().or(text_of_file),
        payload_base64: file
            .as_deref()
            .filter(|_| text_of_file.is_none())
            .map(|bytes| STANDARD.encode(bytes)),
        tombstone: args.payload.tombstone,
        key: args.key.as_deref(),
        key_base64: args.key_base64.as_deref(),
        headers: headers_of(args),
        name: args.name.as_deref().filter(|_| !args.replace),
        ttr: args.tracking.ttr.as_deref(),
        retry: args.tracking.ttr.as_ref().map(|_ttr| RetryBody {
            attempts_max: args.tracking.attempts_max,
            backoff_min: args.tracking.backoff_min.as_deref(),
            backoff_max: args.tracking.backoff_max.as_deref(),
            backoff_factor: args.tracking.backoff_factor,
            dead_topic: args.tracking.dead_topic.as_deref(),
        }),
    };
    serde_json::to_vec(&draft).map_err(|error| format!("cannot write the task as JSON: {error}"))
}

fn checked_json(text: &str) -> Result<&RawValue, String> {
    serde_json::from_str(text).map_err(|error| {
        format!("--payload is not JSON: {error}; for plain text, use --payload-text")
    })
}

/// Reads a file with JSON as [`bytes_of`] does, without a byte order mark.
pub async fn json_of(path: &Path) -> Result<Vec<u8>, String> {
    let mut bytes = bytes_of(path).await?;
    if bytes.starts_with(BYTE_ORDER_MARK) {
        bytes.drain(..BYTE_ORDER_MARK.len());
    }
    Ok(bytes)
}

/// Reads a file, or standard input for `-`.
pub async fn bytes_of(path: &Path) -> Result<Vec<u8>, String> {
    let read = if path.as_os_str() == "-" {
        read_all(tokio::io::stdin()).await
    } else {
        match tokio::fs::File::open(path).await {
            Ok(file) => read_all(file).await,
            Err(error) => Err(error),
        }
    };
    let bytes = read.map_err(|error| format!("read {}: {error}", path.display()))?;
    if bytes.len().saturating_as::<u64>() > FILE_BYTES_MAX {
        return Err(format!("{} is larger than 1 GiB, and no node accepts that", path.display()));
    }
    Ok(bytes)
}

async fn read_all(source: impl AsyncRead + Unpin) -> std::io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    source.take(FILE_BYTES_MAX + 1).read_to_end(&mut bytes).await?;
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn json_is_sent_without_a_byte_order_mark_and_other_files_as_they_are() {
        let name = format!("punctual-draft-{:032x}", rand::random::<u128>());
        let path = std::env::temp_dir().join(name);
        for (bytes, json) in [
            (b"\xef\xbb\xbf{}".as_slice(), b"{}".as_slice()),
            (b"{}", b"{}"),
            (b"\xef\xbb", b"\xef\xbb"),
            (b"", b""),
        ] {
            std::fs::write(&path, bytes).unwrap();
            assert_eq!(json_of(&path).await.unwrap(), json);
            assert_eq!(bytes_of(&path).await.unwrap(), bytes);
        }
        std::fs::remove_file(&path).unwrap();
    }
}
