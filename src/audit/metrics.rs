//! Metrics of the audit trail.

use crate::telemetry::{Counter, Registry};

#[derive(Clone, Debug, Default)]
pub struct Metrics {
    pub(super) lines: Counter,
    pub(super) dropped: Counter,
    pub(super) failures: Counter,
}

impl Metrics {
    pub fn register(registry: &mut Registry) -> Self {
        let metrics = Self::default();
        registry.register(
            "punctual_audit_lines",
            "Lines of the audit trail that were written",
            metrics.lines.clone(),
        );
        registry.register(
            "punctual_audit_lines_dropped",
            "Lines of the audit trail that are lost, with --audit-lossy or at the end of the node",
            metrics.dropped.clone(),
        );
        registry.register(
            "punctual_audit_failures",
            "Failed writes of the audit trail; without --audit-lossy, changes are refused until \
             one succeeds",
            metrics.failures.clone(),
        );
        metrics
    }
}
