//! The shell: loops that carry out what the engine decides.

pub mod adopter;
pub mod bulk;
pub mod canceller;
pub mod claimer;
pub mod desk;
mod exact_timer;
pub mod gate;
pub mod holdings;
pub mod intake;
pub mod lists;
mod mailbox;
pub mod membership;
pub mod messages;
pub mod metrics;
pub mod named_store;
pub mod placing;
pub mod publisher;
pub mod replacer;
pub mod service;
mod setback;
pub mod settler;
pub mod shared;
pub mod topic_keeper;
pub mod upkeep;
pub mod wheel;
