//! The REST API: everything that touches axum and hyper.
//!
//! ```text
//! server     serve: accepts connections, within limits
//!            connection, watched: cut off slow callers, close idle connections
//!            tls: handshakes, and the certificate, which is replaced while the node runs
//!            unread_body, linger: bytes that a caller still sends after its answer. Up to a limit
//!                    they are read; beyond it they are thrown away, and the connection is closed
//!            console: the pages for people, each made of calls of this API
//!            router, answer: take places, within limits; measure; catch panics; route;
//!                    keep a place until the answer is written
//! access     hosts, guard: who may send a request, and the permits for what it does;
//!                    cursors: sealed positions in lists; trail, audit: what a request has done
//! handlers   tasks, names: submit, look up, cancel; by name: replace, look up, cancel
//!                    (draft <- fields <- body <- unpack)
//!            lists, bulk: pages of tasks and of dead letters, counts; change many tasks at once,
//!                    redrive dead letters
//!            cluster, node: state for operators, health, metrics; the OpenAPI document, and a page
//!                    for each type of problem
//!            feedback: answers of consumers: finish, fail, extend
//!            schedules, topics: recurring schedules; policies and pauses of topics
//!            who_am_i: the caller and its rights
//!            inbound: rows of outboxes, and records of intake topics, as requests
//!            dev: the clock and the records of a dev server, which it is asked for by dev_port
//! request    reads: bodies, fields, queries, drafts; preconditions, idempotency: the headers that
//!                    name a task, and say when a change is allowed
//! json       reads and writes values, times, tasks
//! openapi    operation, operations, schemas -> document: requests and answers, described beside
//!                    the routes and written as OpenAPI 3.1
//! problems   every refusal; problem_type is the only place that gives it a status
//! ```
//!
//! The API decides nothing about tasks and calls no other server. The API turns requests into the
//! types of [`crate::node::messages`] and writes the answers as JSON. Limits apply to each request
//! (see [`ApiSettings`]). A caller that reaches one is told at once. Payloads, keys and headers are
//! never logged.

pub mod access;
mod callers;
pub mod dev_port;
mod handlers;
pub mod json;
mod metrics;
mod openapi;
mod problems;
pub mod request;
mod server;
mod shared;
#[cfg(test)]
mod tests;

pub use access::audit::Audit;
pub use access::cursors::Cursors;
pub use access::hosts::Hosts;
pub use handlers::inbound;
pub use metrics::ApiMetrics;
pub use problems::problem_type::ProblemType;
pub use server::router::Api;
pub use server::serve::serve;
pub use server::tls;
pub use shared::{ApiSettings, Port};
