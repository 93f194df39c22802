//! Settle: writes outcomes and receipts, for batches of this node and of dead nodes.

pub mod adopter;
pub mod settler;
