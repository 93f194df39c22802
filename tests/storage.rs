//! The storage against a real Postgres.
#[path = "integration/storage.rs"]
mod storage;
