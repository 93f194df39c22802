//! Metrics of the membership.

use std::sync::atomic::AtomicU64;

use crate::clock::StepCounts;
use crate::telemetry::{Counter, Family, Gauge, Histogram, Registry, Unit};

type Seconds = Gauge<f64, AtomicU64>;

#[derive(Clone, Debug)]
pub struct MembershipMetrics {
    pub(super) members: Gauge,
    pub(super) suspected: Gauge,
    pub(super) shards_owned: Gauge,
    pub(super) cluster_shards: Gauge,
    pub(super) heartbeat_age: Seconds,
    pub(super) heartbeat_age_max: Seconds,
    pub(super) heartbeat_duration: Histogram,
    pub(super) heartbeat_failures: Counter,
    primary_changes: Counter,
    pub(super) clock_offset: Seconds,
    clock_steps: Family<[(&'static str, &'static str); 1], Counter>,
    pub(super) declared_dead: Counter,
    pub(super) fenced: Counter,
}

impl MembershipMetrics {
    pub fn register(registry: &mut Registry) -> Self {
        let metrics = Self {
            members: Gauge::default(),
            suspected: Gauge::default(),
            shards_owned: Gauge::default(),
            cluster_shards: Gauge::default(),
            heartbeat_age: Seconds::default(),
            heartbeat_age_max: Seconds::default(),
            // From 0.5 ms to 2 s.
            heartbeat_duration: Histogram::new(
                (0..13).map(|power| 0.0005 * f64::from(1_u32 << power)),
            ),
            heartbeat_failures: Counter::default(),
            primary_changes: Counter::default(),
            clock_offset: Seconds::default(),
            clock_steps: Family::default(),
            declared_dead: Counter::default(),
            fenced: Counter::default(),
        };
        metrics.register_counts(registry);
        metrics.register_times(registry);
        metrics.show_steps(StepCounts::default());
        metrics
    }

    pub(super) fn show_steps(&self, counts: StepCounts) {
        for (step, count) in
            [("followed", counts.followed), ("ahead", counts.ahead), ("back", counts.back)]
        {
            let shown = self.clock_steps.get_or_create(&[("step", step)]);
            shown.inc_by(count.saturating_sub(shown.get()));
        }
    }

    /// Shows how often another host of the URL became Postgres's primary.
    pub(super) fn show_primary_changes(&self, count: u64) {
        self.primary_changes.inc_by(count.saturating_sub(self.primary_changes.get()));
    }

    fn register_counts(&self, registry: &mut Registry) {
        registry.register(
            "punctual_members",
            "Nodes that share the shards, including this one",
            self.members.clone(),
        );
        registry.register(
            "punctual_members_suspected",
            "Other nodes whose heartbeat stands still, while their session is alive or etcd is \
             unavailable",
            self.suspected.clone(),
        );
        registry.register(
            "punctual_shards_owned",
            "Shards that this node owns",
            self.shards_owned.clone(),
        );
        registry.register(
            "punctual_cluster_shards",
            "Shards of the cluster",
            self.cluster_shards.clone(),
        );
        registry.register(
            "punctual_nodes_declared_dead",
            "Nodes that this node declared dead",
            self.declared_dead.clone(),
        );
        registry.register(
            "punctual_fenced",
            "Times that this node was declared dead, or was without a heartbeat for so long that \
             it may have been",
            self.fenced.clone(),
        );
        registry.register(
            "punctual_heartbeat_failures",
            "Heartbeats that Postgres refused or did not answer in time",
            self.heartbeat_failures.clone(),
        );
        registry.register(
            "punctual_postgres_primary_changes",
            "Times that another of several hosts in the database URL became the primary of this \
             node",
            self.primary_changes.clone(),
        );
        registry.register(
            "punctual_clock_steps",
            "Times that Postgres's clock was set by more than 500 ms; after a step back, or \
             forward by more than 10 s, claims pause",
            self.clock_steps.clone(),
        );
    }

    fn register_times(&self, registry: &mut Registry) {
        registry.register_with_unit(
            "punctual_heartbeat_age",
            "Time since this node sent its last successful heartbeat",
            Unit::Seconds,
            self.heartbeat_age.clone(),
        );
        registry.register_with_unit(
            "punctual_heartbeat_age_max",
            "Age of the last successful heartbeat at which this node stops publishing until the \
             next one: 5/6 of --session-ttl",
            Unit::Seconds,
            self.heartbeat_age_max.clone(),
        );
        registry.register_with_unit(
            "punctual_heartbeat_duration",
            "Time that Postgres took for a heartbeat, including the disk",
            Unit::Seconds,
            self.heartbeat_duration.clone(),
        );
        registry.register_with_unit(
            "punctual_clock_offset",
            "This machine's wall clock minus the cluster's clock; for the log, the audit trail and \
             the signatures of callbacks",
            Unit::Seconds,
            self.clock_offset.clone(),
        );
    }
}
