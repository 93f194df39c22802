//! Encryption of records at rest: their keys, payloads and headers are sealed before they are
//! stored, and opened when they are read.
//!
//! `key_file` reads the file with the payload keys. [`KeySet`] is what a file says, an immutable
//! snapshot, and [`PayloadKeys`] holds the current one. `record` seals and opens a record under a
//! key of its own, which only its task has. Without a file nothing is sealed. See
//! docs/decisions/0034.

pub mod key_file;
pub mod keys;
pub mod record;

pub use keys::{KeySet, PayloadKeys};
pub use record::{Columns, OpenedRecord, OwnedColumns, RecordOwner, SealError};
