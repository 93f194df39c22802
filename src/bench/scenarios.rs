//! The scenarios: each defines a load and its measurement.

pub mod burst;
pub mod cancel;
pub mod drain;
pub mod finish;
pub mod immediate;
pub mod lateness;
pub mod submit;
pub mod take_in;
pub mod topics;
pub mod tracked;
pub mod without_kafka;
