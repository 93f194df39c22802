//! Serves the API: stores, replaces, cancels, looks up and lists tasks.

pub mod answers;
pub mod bulk;
pub mod canceller;
pub mod connections;
pub mod group_commit;
pub mod lists;
pub mod moving;
mod pieces;
pub mod placing;
pub mod postgres_failures;
pub mod replacer;
pub mod service;
