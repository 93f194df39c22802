//! Settle: outcomes and receipts are written down, for batches of this node and for those of a dead
//! one.

pub mod adopter;
pub mod settler;
