//! The source of truth: all SQL, and all uses of sqlx. Each file holds one verb: the statements
//! beside the functions that run them.

pub mod cluster;
pub mod connection;
pub mod inbound;
pub mod lists;
pub mod outbox;
pub mod partitions;
pub mod schedules;
pub mod tasks;
pub mod topics;

pub use connection::error::PostgresError;
pub use connection::{Connection, PostgresSettings};
