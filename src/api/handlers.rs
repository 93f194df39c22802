//! The handlers, one file per resource.

pub mod bulk;
pub mod cluster;
pub mod health;
pub mod interface;
pub mod lists;
pub mod names;
pub mod tasks;
mod verdict;
