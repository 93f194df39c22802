//! Callbacks: nodes send the tracked tasks of a topic to a service over HTTP, and take its answers
//! as those of a consumer.
//!
//! ```text
//! keeper     reads the callbacks of the cluster once a second, and starts a runner for each
//! runner     pops tasks as the group `punctual.callback.<topic>`, sends them, and answers
//! sender     sends a request, and reads the answer of the service
//! limiter    limits the requests in flight, and those of a second
//! keys       signs a request
//! threads    make the requests, apart from the threads of the node
//! resolver   looks names up, and refuses addresses that may not be called
//! ```
//!
//! - A callback is a consumer like any other: the record is in its topic first, and a task whose
//!   service does not answer comes again by its time to run. No state is kept beside the offsets of
//!   the consumer group.
//! - Each callback has a client, connections and limits of its own, so a slow service makes no
//!   other one wait.

pub mod keeper;
mod keys;
mod limiter;
mod metrics;
mod resolver;
mod runner;
mod sender;
mod threads;

pub use keys::{SigningKeys, WrongKeys};
pub use metrics::CallbackMetrics;
