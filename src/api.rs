//! The way in: the REST API. All of axum and hyper is here.
//!
//! ```text
//! serve   accepts connections, within a bound
//! connection, watched, line   one connection: who is slow is cut off, who is silent is sent away
//! front, answer   admits requests, within bounds; measures; catches panics; hands on to the router; holds a place until the answer is written
//! tasks, names  submit, look up, cancel; by name: replace, look up, cancel       draft <- fields <- body <- unpack       the words of node::service -> task_json
//! lists, bulk           pages of tasks and of dead letters, counts; many tasks at once, dead letters put back
//! cluster, health                       what an operator asks
//! operation, operations, schemas -> document        what is asked and answered, beside the routes; written down as OpenAPI 3.1
//! interface                             the document, and the page of each type of problem
//! problem every refusal, and with problem_type the one place where it gets its status
//! ```
//!
//! The API decides nothing about tasks and knows no server: it reads what is asked into the words of [`crate::node::requests::service`] and writes the answers
//! down. Each request is held within bounds (see [`Settings`]); where one is reached the caller is told at once. Payloads, keys and headers are never
//! logged.

mod answer;
mod body;
mod bulk;
mod cluster;
mod connection;
mod document;
pub mod draft;
mod fields;
mod front;
mod health;
mod interface;
mod line;
mod lists;
mod metrics;
mod names;
mod operation;
mod operations;
mod problem;
mod problem_pages;
mod problem_type;
mod query;
mod refusal;
mod request_id;
mod respond;
mod route;
mod schemas;
mod serve;
mod settings;
mod share;
mod shared;
mod task_json;
mod tasks;
#[cfg(test)]
mod tests;
pub mod times;
mod trace;
mod unpack;
mod values;
mod verdict;
mod watched;

pub use front::Api;
pub use metrics::Metrics;
pub use problem_type::ProblemType;
pub use serve::serve;
pub use settings::Settings;
