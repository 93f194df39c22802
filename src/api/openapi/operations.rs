//! The operations of all handlers, in the order of the routes.

pub mod cluster;
pub mod dead;
pub mod dev;
pub mod feedback;
pub mod lists;
pub mod names;
pub mod node;
mod parameters;
pub mod pops;
pub mod schedules;
pub mod tasks;
pub mod topics;
