//! What happens when a report comes.

use std::fmt;

use super::Report;
use crate::domain::Timestamp;

/// What a producer calls. Both run on its polling thread, for each record: they must neither block nor panic.
pub struct Hooks {
    pub on_report: Box<dyn Fn(Report) + Send + Sync>,
    /// The cluster's time: when an acknowledgement came.
    pub now: Box<dyn Fn() -> Timestamp + Send + Sync>,
}

impl Hooks {
    pub fn new(on_report: impl Fn(Report) + Send + Sync + 'static, now: impl Fn() -> Timestamp + Send + Sync + 'static) -> Self {
        Self { on_report: Box::new(on_report), now: Box::new(now) }
    }
}

impl fmt::Debug for Hooks {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Hooks")
    }
}
