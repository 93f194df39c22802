//! The handlers, one file per resource.

pub mod bulk;
pub mod cluster;
pub mod dev;
pub mod feedback;
pub mod inbound;
pub mod lists;
pub mod names;
pub mod node;
pub mod schedules;
pub mod tasks;
pub mod topics;
pub mod who_am_i;
