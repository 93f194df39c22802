//! JSON as the API reads and writes it: single values, times, tasks.

pub(super) mod answers;
pub mod times;
pub(super) mod values;
mod zones;
