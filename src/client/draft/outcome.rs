//! Builds the JSON of a consumer's call from a command line.

use serde::Serialize;

use super::NumberOrText;
use crate::client::args::{ExtendArgs, FailArgs, FinishArgs};
use crate::domain::time::duration::spelled;

/// The members of all calls. Each call sets its own.
#[derive(Serialize, Default)]
struct CallBody<'a> {
    #[serde(skip_serializing_if = "Option::is_none")]
    attempt: Option<u16>,
    #[serde(skip_serializing_if = "Option::is_none")]
    retry_in: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    retry_at: Option<NumberOrText<'a>>,
    #[serde(rename = "final", skip_serializing_if = "std::ops::Not::not")]
    is_final: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    reason: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    by: Option<String>,
}

impl CallBody<'_> {
    fn bytes(&self) -> Result<Vec<u8>, String> {
        serde_json::to_vec(self).map_err(|error| format!("cannot write the call as JSON: {error}"))
    }
}

pub fn of_finish(args: &FinishArgs) -> Result<Vec<u8>, String> {
    CallBody { attempt: args.attempt, ..CallBody::default() }.bytes()
}

pub fn of_fail(args: &FailArgs) -> Result<Vec<u8>, String> {
    let body = CallBody {
        attempt: Some(args.attempt),
        retry_in: args.retry_in.as_deref(),
        retry_at: args.retry_at.as_deref().map(NumberOrText),
        is_final: args.is_final,
        reason: args.reason.as_deref(),
        by: None,
    };
    body.bytes()
}

pub fn of_extend(args: &ExtendArgs) -> Result<Vec<u8>, String> {
    let (attempt, by) = (Some(args.attempt), args.by.map(spelled));
    CallBody { attempt, by, ..CallBody::default() }.bytes()
}
