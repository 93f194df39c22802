//! JSON as the API reads and writes it: single values, times, tasks.

pub(super) mod answers;
pub mod pops;
pub mod schedules;
pub mod times;
pub mod topics;
mod tracked;
pub(super) mod values;
mod zones;
