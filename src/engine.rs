//! The decisions of a node, as pure functions and values: an event and a moment in, actions or an
//! answer out. No I/O and no clock.
//!
//! - `placing`: where a new task goes: `task_far`, `task`, or straight into a batch.
//! - `claiming`: which ids to claim next; `sweeping`: when to search for late inserts.
//! - `batch_registry`, `look_back`: which batches Postgres and the node should know of.
//! - `cluster_clock`: a lower and an upper bound of Postgres's clock.
//! - `expiry`: whether a due task is published.
//! - `failure`: the consequence of a Kafka error; `topics`: the circuit breakers of topics.
//! - `liveness`: which nodes are alive; `assignment`: which node has which shards.

pub mod assignment;
pub mod batch_registry;
pub mod claiming;
pub mod cluster_clock;
pub mod expiry;
pub mod failure;
pub mod liveness;
pub mod look_back;
pub mod placing;
pub mod sweeping;
pub mod topics;
