//! Reads requests: bodies, fields, queries, drafts of tasks, and the headers that identify a
//! request.

pub(super) mod body;
pub(super) mod body_memory;
pub mod draft;
pub(super) mod fields;
pub(super) mod given_headers;
pub(super) mod idempotency;
pub(super) mod preconditions;
pub(super) mod query;
pub(super) mod request_id;
pub(super) mod trace;
pub(super) mod tracking;
mod unpack;
