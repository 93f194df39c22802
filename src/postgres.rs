//! The truth: all SQL, and all of sqlx. One file per verb, the text of a statement beside the function that runs it.

pub mod adopt;
pub mod arrays;
pub mod backlog;
pub mod cancel;
pub mod cancel_many;
pub mod claim;
mod cluster;
pub mod connection;
pub mod counts;
pub mod dead_letters;
pub mod error;
pub mod far;
pub mod heartbeat;
pub mod listing;
pub mod look_up;
pub mod names;
pub mod old_snapshot;
pub mod partitions;
pub mod pool;
pub mod recent_topics;
pub mod replace;
pub mod retire;
pub mod schema;
pub mod settle;
pub mod submit;
pub mod submit_named;

pub use connection::{Connection, Settings};
pub use error::{Cause, Error};
