//! Time: moments of the two clocks, and lengths of time.

pub mod duration;
pub mod monotonic;
pub mod seldom;
pub mod timestamp;
