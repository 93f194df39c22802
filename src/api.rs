//! The way in: the REST API. All of axum and hyper is here.
//!
//! ```text
//! serve   accepts connections, within a bound, and ends them
//! front   admits requests, within bounds; measures; catches panics; hands on to the router
//! tasks, names  submit, look up, cancel; by name: replace, look up, cancel       draft <- fields <- body       the words of node::service -> task_json
//! lists, bulk           pages of tasks and of dead letters, counts; many tasks at once, dead letters put back
//! cluster, health                       what an operator asks
//! problem every refusal, and with problem_type the one place where it gets its status
//! ```
//!
//! The API decides nothing about tasks and knows no server: it reads what is asked into the words of [`crate::node::service`] and writes the answers
//! down. Each request is held within bounds (see [`Settings`]); where one is reached the caller is told at once. Payloads, keys and headers are never
//! logged.

mod body;
mod bulk;
mod cluster;
pub mod draft;
mod fields;
mod front;
mod health;
mod lists;
mod metrics;
mod names;
mod problem;
mod problem_type;
mod query;
mod refusal;
mod respond;
mod serve;
mod settings;
mod shared;
mod task_json;
mod tasks;
#[cfg(test)]
mod tests;
pub mod times;
mod values;
mod verdict;

pub use front::Api;
pub use metrics::Metrics;
pub use problem_type::ProblemType;
pub use serve::serve;
pub use settings::Settings;
