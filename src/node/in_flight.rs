//! What is in flight between a claim and its settle.

pub mod batches;
pub mod inbox;
