//! JSON as the API reads and writes it: single values, times, tasks.

pub(super) mod respond;
pub(super) mod task_json;
pub mod times;
pub(super) mod values;
