//! The shell of a node: loops that carry out the decisions of the engine.
//!
//! A task passes `requests`, `claim`, `publish` and `settle`, in this order.
//!
//! - `requests`: the service of the API: submits in groups, replacements, cancels, answers of
//!   consumers, lists, bulk changes.
//! - `claim`: the claim loops.
//! - `in_flight`: the batches between their claim and their settle, and the limits on their memory.
//! - `publish`: the wheel, and the producers that it hands records to.
//! - `settle`: writes the outcomes of batches, and adopts batches of dead nodes.
//! - `fence`: what the node may do now.
//! - `membership`: heartbeats, the etcd session, liveness and the assignment of shards.
//! - `maintenance`: partitions, the mover from `task_far` to `task`, expired names, the runs of
//!   schedules, the counts for metrics.
//! - `topic_keeper`: the circuit breakers, the policies and the pauses of topics.
//! - `messages`: the types that pass between the API and the node.
//! - `shared`, `metrics`: the state and the metrics that the loops share.

pub mod claim;
pub mod fence;
pub mod in_flight;
pub mod maintenance;
pub mod membership;
pub mod messages;
pub mod metrics;
pub mod publish;
pub mod requests;
pub mod settle;
pub mod shared;
pub mod topic_keeper;
