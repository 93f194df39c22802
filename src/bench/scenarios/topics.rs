//! The scenarios with policies of topics, and with schedules.

pub mod resume;
pub mod schedules;
pub mod spread;
