//! The two clocks of a node: this machine's, and the cluster's as this node knows it.

mod cluster;
mod machine;

pub use cluster::{ClusterClock, StepCounts};
pub use machine::{monotonic, sleep, wall};
