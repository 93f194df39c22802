//! Metrics of the outboxes.

use std::sync::atomic::AtomicU64;

use crate::telemetry::{Counter, Family, Gauge, Registry, Unit};

type Label = [(&'static str, String); 1];
type Seconds = Gauge<f64, AtomicU64>;

/// The metrics of all outboxes of a node, by their names. The gauges are zero on nodes that do not
/// drain the outbox.
#[derive(Clone, Debug, Default)]
pub struct OutboxMetrics {
    stored: Family<Label, Counter>,
    rejected: Family<Label, Counter>,
    failures: Family<Label, Counter>,
    waiting: Family<Label, Gauge>,
    rejected_waiting: Family<Label, Gauge>,
    oldest: Family<Label, Seconds>,
    clock_offset: Family<Label, Seconds>,
}

/// The metrics of one outbox.
#[derive(Clone, Debug)]
pub struct OneOutbox {
    /// Rows that were carried out.
    pub stored: Counter,
    pub rejected: Counter,
    pub failures: Counter,
    pub waiting: Gauge,
    pub rejected_waiting: Gauge,
    pub oldest: Seconds,
    pub clock_offset: Seconds,
}

impl OutboxMetrics {
    pub fn register(registry: &mut Registry) -> Self {
        let metrics = Self::default();
        registry.register(
            "punctual_outbox_rows_stored",
            "Rows of an outbox that were carried out",
            metrics.stored.clone(),
        );
        registry.register(
            "punctual_outbox_rows_rejected",
            "Rows of an outbox that were refused for good",
            metrics.rejected.clone(),
        );
        registry.register(
            "punctual_outbox_turn_failures",
            "Turns at an outbox that failed and are repeated; the log has the reasons",
            metrics.failures.clone(),
        );
        registry.register(
            "punctual_outbox_waiting_rows",
            "Rows in an outbox, counted up to 100,000; 0 on nodes that do not drain it",
            metrics.waiting.clone(),
        );
        registry.register(
            "punctual_outbox_rejected_rows",
            "Rows in outbox_rejected, counted up to 100,000; 0 on nodes that do not drain the \
             outbox",
            metrics.rejected_waiting.clone(),
        );
        registry.register_with_unit(
            "punctual_outbox_oldest_row",
            "Age of the first row of an outbox",
            Unit::Seconds,
            metrics.oldest.clone(),
        );
        registry.register_with_unit(
            "punctual_outbox_clock_offset",
            "How far the cluster's clock is ahead of the clock of the database of an outbox",
            Unit::Seconds,
            metrics.clock_offset.clone(),
        );
        metrics
    }

    /// Returns the metrics of the outbox with this name.
    pub fn of(&self, name: &str) -> OneOutbox {
        let label = [("outbox", name.to_owned())];
        OneOutbox {
            stored: self.stored.get_or_create(&label).clone(),
            rejected: self.rejected.get_or_create(&label).clone(),
            failures: self.failures.get_or_create(&label).clone(),
            waiting: self.waiting.get_or_create(&label).clone(),
            rejected_waiting: self.rejected_waiting.get_or_create(&label).clone(),
            oldest: self.oldest.get_or_create(&label).clone(),
            clock_offset: self.clock_offset.get_or_create(&label).clone(),
        }
    }
}

impl OneOutbox {
    /// Shows that another node drains the outbox.
    pub fn clear(&self) {
        for gauge in [&self.waiting, &self.rejected_waiting] {
            gauge.set(0);
        }
        for gauge in [&self.oldest, &self.clock_offset] {
            gauge.set(0.0);
        }
    }
}
