//! The way in: the REST API. All of axum and hyper is here.
//!
//! ```text
//! server     serve accepts connections, within a bound; connection, watched: who is slow is cut off, who is silent is sent away
//!            rest, linger: what a caller still sends when it is answered: read if it is small, else thrown away, and the connection closed
//!            router, answer: admits requests, within bounds; measures; catches panics; hands on; holds a place until the answer is written
//! handlers   tasks, names: submit, look up, cancel; by name: replace, look up, cancel       draft <- fields <- body <- unpack
//!            lists, bulk: pages of tasks and of dead letters, counts; many tasks at once, dead letters put back
//!            cluster, health: what an operator asks; interface: the OpenAPI document, and the page of each type of problem
//! request    reads: bodies, fields, queries, drafts; preconditions, idempotency: headers that say which task is meant, and when a change may be made
//! json       reads and writes values, times, tasks
//! openapi    operation, operations, schemas -> document: what is asked and answered, beside the routes; written down as OpenAPI 3.1
//! problems   every refusal; problem_type is the one place where it gets its status
//! ```
//!
//! The API decides nothing about tasks and knows no server: it reads what is asked into the words
//! of [`crate::node::messages`] and writes the answers down. Each request is held within bounds
//! (see [`Settings`]); where one is reached the caller is told at once. Payloads, keys and headers
//! are never logged.

mod handlers;
pub mod json;
mod line;
mod metrics;
mod openapi;
mod problems;
pub mod request;
mod server;
mod shared;
#[cfg(test)]
mod tests;

pub use metrics::Metrics;
pub use problems::problem_type::ProblemType;
pub use server::router::Api;
pub use server::serve::serve;
pub use shared::Settings;
