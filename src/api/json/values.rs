//! Single JSON values, as slices of the body.

use std::borrow::Cow;

use serde_json::value::RawValue;

/// The most characters of a caller's input that an answer repeats.
const SHOWN_CHARS_MAX: usize = 100;

/// Reads a string. The error says why the value is none.
pub fn string_of(value: &RawValue) -> Result<Cow<'_, str>, String> {
    let text = value.get();
    let Some(inner) = text.strip_prefix('"').and_then(|rest| rest.strip_suffix('"')) else {
        return Err(unlike(text, "a string"));
    };
    if !inner.contains('\\') {
        // Control characters were refused when the whole text was read.
        return Ok(Cow::Borrowed(inner));
    }
    serde_json::from_str(text)
        .map(Cow::Owned)
        .map_err(|error| format!("this is not a valid string: {}", reason_of(&error)))
}

/// Returns the error for a value of another kind than `right`.
pub fn unlike(text: &str, right: &str) -> String {
    let kind = kind_of(text);
    // Serialisers write null for a field that nobody has set.
    let leave_out = if kind == "null" { "; leave out the field if it has no value" } else { "" };
    format!("this is {kind}; expected {right}{leave_out}")
}

/// Returns the kind of a JSON value, by its first byte.
pub fn kind_of(text: &str) -> &'static str {
    match text.as_bytes().first() {
        Some(b'"') => "a string",
        Some(b'{') => "an object",
        Some(b'[') => "an array",
        Some(b't' | b'f') => "a boolean",
        Some(b'n') => "null",
        _ => "a number",
    }
}

/// Returns a caller's input, cut to a length that fits into a detail.
pub fn shown(text: &str) -> String {
    text.chars().take(SHOWN_CHARS_MAX).collect()
}

/// Returns serde_json's message without its position, which would be relative to a part of the
/// body.
pub fn reason_of(error: &serde_json::Error) -> String {
    let message = error.to_string();
    let end = message.rfind(" at line ").unwrap_or(message.len());
    message[..end].to_owned()
}
