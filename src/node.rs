//! The shell: loops that carry out what the engine decides.

pub mod adopter;
pub mod claimer;
mod exact_timer;
pub mod gate;
pub mod holdings;
mod mailbox;
pub mod membership;
pub mod messages;
pub mod metrics;
pub mod publisher;
pub mod requests;
pub mod settler;
pub mod shared;
pub mod topic_keeper;
pub mod upkeep;
pub mod wheel;
