//! The batches in flight between a claim and its settle.

pub mod batches;
pub(super) mod inbox;
pub mod keeper;
