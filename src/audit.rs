//! The audit trail: one line of JSON per change and per denied request, in a file of its own.
//!
//! - `stream`: the queue of lines, and the writing thread. A request takes a place in the queue
//!   before it is carried out, so nothing is done without room for the line.
//! - `file`: the file, which is opened again when it was renamed.
//!
//! The lines do not go through the log, which loses lines when the reader is slow. The API makes
//! the lines (`api::access::trail`).

mod file;
mod metrics;
mod stream;

#[cfg(test)]
pub use file::tests::Folder;
pub use metrics::Metrics;
pub use stream::{AuditStream, NoPlace, Place, StreamSettings};
