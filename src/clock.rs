//! The two clocks of a node: the clock of the machine, and this node's estimate of the cluster's
//! clock.

mod cluster;
mod machine;

pub use cluster::{ClusterClock, StepCounts};
pub use machine::{monotonic, sleep, wall};
