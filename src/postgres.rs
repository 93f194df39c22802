//! The truth: all SQL, and all of sqlx. One file per verb, the text of a statement beside the
//! function that runs it.

pub mod cluster;
pub mod connection;
pub mod lists;
pub mod partitions;
pub mod tasks;

pub use connection::error::Error;
pub use connection::{Connection, Settings};
