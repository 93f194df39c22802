//! The truth: all SQL, and all of sqlx. One file per verb, the text of a statement beside the function that runs it.

pub mod adopt;
mod arrays;
pub mod claim;
pub mod connection;
pub mod error;
pub mod settle;
mod span;
pub mod submit;

pub use connection::{Connection, Settings};
pub use error::Error;
