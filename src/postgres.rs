//! The source of truth: all SQL, and all uses of sqlx. Each file holds one verb: the statements
//! beside the functions that run them.
//!
//! - `tasks`: the life of a task: submit, claim, settle, adopt, cancel, replace, and the answers of
//!   consumers.
//! - `lists`: pages, counts and bulk changes, also of dead letters.
//! - `schedules`, `topics`: recurring schedules; policies, pauses and held tasks.
//! - `outbox`: outboxes in the databases of applications.
//! - `inbound`: Punctual's own side of outboxes and intake topics.
//! - `partitions`: makes partitions ahead, and retires old ones.
//! - `cluster`: the schema, the settings of the cluster, heartbeats.
//! - `connection`: a connection with one owner, its deadlines and errors.
//! - `unsettled`: where the search for unsettled batches begins.

pub mod cluster;
pub mod connection;
pub mod inbound;
pub mod lists;
pub mod outbox;
pub mod partitions;
pub mod schedules;
pub mod tasks;
pub mod topics;
pub mod unsettled;

pub use connection::error::PostgresError;
pub use connection::{Connection, PostgresSettings};
