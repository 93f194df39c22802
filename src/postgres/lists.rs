//! Many tasks at once: pages of them, how many there are, and what is done to those that a list has
//! found.

pub mod backlog;
pub mod cancel_many;
pub mod counts;
pub mod dead_letters;
pub mod listing;
