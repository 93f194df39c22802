//! The audit trail: one line of JSON per change and per denied request, in a file of its own.
//!
//! - `stream`: the queue of lines, and the thread that writes them. A request takes a place in it
//!   before it is carried out, so that nothing is done whose line has no room.
//! - `file`: the file, which is opened again when it was renamed.
//!
//! The lines do not go through the log, which loses lines when its reader is slow. The API makes
//! them (`api::access::trail`).

mod file;
mod metrics;
mod stream;

#[cfg(test)]
pub use file::tests::Folder;
pub use metrics::Metrics;
pub use stream::{AuditStream, NoPlace, Place, StreamSettings};
