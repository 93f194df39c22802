//! The shell: loops that carry out what the engine decides.

pub mod keeper;
pub mod service;
