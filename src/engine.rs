//! The decisions of a node, as pure functions and values: an event and a moment in, actions or an
//! answer out. No I/O and no clock.

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
