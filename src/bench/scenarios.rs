//! The scenarios: what is submitted, and what is measured of it.

pub mod burst;
pub mod cancel;
pub mod drain;
pub mod immediate;
pub mod lateness;
pub mod submit;
