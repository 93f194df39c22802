//! The shell of a node: loops that carry out the decisions of the engine.

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
