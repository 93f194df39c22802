//! Metrics of the intake topics.

use std::sync::atomic::AtomicU64;

use crate::telemetry::{Counter, Family, Gauge, Registry, Unit};

type Label = [(&'static str, String); 1];
type Seconds = Gauge<f64, AtomicU64>;

/// The metrics of all intake topics of a node, by their names. The gauges are about the partitions
/// that the node reads.
#[derive(Clone, Debug, Default)]
pub struct IntakeMetrics {
    stored: Family<Label, Counter>,
    rejected: Family<Label, Counter>,
    failures: Family<Label, Counter>,
    resets: Family<Label, Counter>,
    lost: Family<Label, Counter>,
    partitions: Family<Label, Gauge>,
    lag: Family<Label, Gauge>,
    waits: Family<Label, Seconds>,
    rejected_topic_missing: Family<Label, Gauge>,
}

/// The metrics of one intake topic.
#[derive(Clone, Debug)]
pub struct OneIntake {
    /// Records that were carried out.
    pub stored: Counter,
    pub rejected: Counter,
    pub failures: Counter,
    pub resets: Counter,
    pub lost: Counter,
    pub partitions: Gauge,
    pub lag: Gauge,
    pub waits: Seconds,
    pub rejected_topic_missing: Gauge,
}

impl IntakeMetrics {
    pub fn register(registry: &mut Registry) -> Self {
        let metrics = Self::default();
        let counters = [
            (
                "punctual_intake_records_stored",
                "Records of an intake topic that were carried out",
                &metrics.stored,
            ),
            (
                "punctual_intake_records_rejected",
                "Records of an intake topic that were refused for good",
                &metrics.rejected,
            ),
            (
                "punctual_intake_turn_failures",
                "Turns at a partition of an intake topic that failed and are repeated",
                &metrics.failures,
            ),
            (
                "punctual_intake_resets",
                "Partitions whose log did not have the next record, and that go on elsewhere in it",
                &metrics.resets,
            ),
            (
                "punctual_intake_records_lost",
                "Offsets of an intake topic that were gone before they were read",
                &metrics.lost,
            ),
        ];
        for (name, help, counter) in counters {
            registry.register(name, help, counter.clone());
        }
        let gauges = [
            (
                "punctual_intake_partitions",
                "Partitions of an intake topic that the node reads",
                &metrics.partitions,
            ),
            (
                "punctual_intake_lag_records",
                "Offsets of an intake topic before the end of their partitions, and not stored",
                &metrics.lag,
            ),
            (
                "punctual_intake_rejected_topic_missing",
                "1 while a record waits because there is no rejected topic",
                &metrics.rejected_topic_missing,
            ),
        ];
        for (name, help, gauge) in gauges {
            registry.register(name, help, gauge.clone());
        }
        registry.register_with_unit(
            "punctual_intake_waits",
            "For how long a partition of an intake topic could not go on, or Kafka has not \
             answered; the longest",
            Unit::Seconds,
            metrics.waits.clone(),
        );
        metrics
    }

    /// Returns the metrics of an intake topic.
    pub fn of(&self, topic: &str) -> OneIntake {
        let label = [("intake", topic.to_owned())];
        OneIntake {
            stored: self.stored.get_or_create(&label).clone(),
            rejected: self.rejected.get_or_create(&label).clone(),
            failures: self.failures.get_or_create(&label).clone(),
            resets: self.resets.get_or_create(&label).clone(),
            lost: self.lost.get_or_create(&label).clone(),
            partitions: self.partitions.get_or_create(&label).clone(),
            lag: self.lag.get_or_create(&label).clone(),
            waits: self.waits.get_or_create(&label).clone(),
            rejected_topic_missing: self.rejected_topic_missing.get_or_create(&label).clone(),
        }
    }
}
