//! Answers as bytes.

use axum::body::Body;
use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use serde::Serialize;

/// Bytes to begin an answer with: most are one task.
const CAPACITY: usize = 512;

/// An answer of JSON.
pub fn json(status: StatusCode, value: &impl Serialize) -> Response {
    json_of(status, value, CAPACITY)
}

/// An answer of JSON that is about `capacity` bytes long.
pub fn json_of(status: StatusCode, value: &impl Serialize, capacity: usize) -> Response {
    let mut bytes = Vec::with_capacity(capacity);
    if let Err(error) = serde_json::to_writer(&mut bytes, value) {
        // None of our types has a map with keys that are no strings, which is all that JSON can refuse.
        tracing::error!(%error, "put an answer into JSON");
        return StatusCode::INTERNAL_SERVER_ERROR.into_response();
    }
    text(status, "application/json", bytes)
}

pub fn text(status: StatusCode, content_type: &'static str, bytes: impl Into<Body>) -> Response {
    let mut response = Response::new(bytes.into());
    *response.status_mut() = status;
    response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static(content_type));
    response
}
