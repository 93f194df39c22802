//! Operations on many tasks: pages, counts, and bulk changes of the tasks that a list has found.

pub mod backlog;
pub mod cancel_many;
pub mod counts;
pub mod dead_letters;
pub mod listing;
