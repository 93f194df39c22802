//! Requests: what a node answers its API. Tasks are stored, replaced, cancelled, looked up and
//! listed here.

pub mod bulk;
pub mod canceller;
pub mod connections;
pub mod intake;
pub mod lists;
pub mod named_store;
pub mod placing;
pub mod replacer;
mod retry_policy;
pub mod service;
pub mod task_service;
