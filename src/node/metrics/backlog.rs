//! Metrics of the tasks of the whole cluster. One node counts them, and the others show 0.

use az::SaturatingAs as _;

use crate::domain::Timestamp;
use crate::node::messages::Figure;
use crate::telemetry::{Family, Gauge, Registry, Unit};

type Of = [(&'static str, &'static str); 1];

/// The numbers of a count.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct BacklogFigures {
    pub counted_at: Timestamp,
    pub pending: Figure,
    pub overdue: Figure,
    /// When the oldest overdue task was due.
    pub oldest_due_at: Option<Timestamp>,
    pub awaiting: Figure,
    pub dead_letters: Figure,
}

/// The gauges of the last count. Cheap to clone.
#[derive(Clone, Debug, Default)]
pub struct BacklogMetrics {
    pending: Gauge,
    overdue: Gauge,
    oldest_overdue: Gauge,
    awaiting: Gauge,
    dead_letters: Gauge,
    exact: Family<Of, Gauge>,
    counted_at: Gauge,
}

impl BacklogMetrics {
    pub fn register(registry: &mut Registry) -> Self {
        let metrics = Self::default();
        registry.register(
            "punctual_pending_tasks",
            "Pending tasks of the cluster; of many an estimate. The owner of shard 0 counts them, \
             other nodes show 0",
            metrics.pending.clone(),
        );
        registry.register(
            "punctual_overdue_tasks",
            "Tasks of the cluster that are due and not claimed, without those of paused topics; of \
             many an estimate. Other nodes than the owner of shard 0 show 0",
            metrics.overdue.clone(),
        );
        registry.register_with_unit(
            "punctual_oldest_overdue",
            "For how long the oldest of the overdue tasks has been due; 0 without one",
            Unit::Seconds,
            metrics.oldest_overdue.clone(),
        );
        registry.register(
            "punctual_awaiting_tasks",
            "Tracked tasks whose consumer has not answered yet; of many an estimate. Other nodes \
             than the owner of shard 0 show 0",
            metrics.awaiting.clone(),
        );
        registry.register(
            "punctual_dead_letters",
            "Dead letters of the cluster that are neither redriven nor dropped; of many an \
             estimate. Other nodes than the owner of shard 0 show 0",
            metrics.dead_letters.clone(),
        );
        registry.register(
            "punctual_count_exact",
            "1 when the metric was counted as a whole, 0 for an estimate, and on nodes that do not \
             count",
            metrics.exact.clone(),
        );
        registry.register_with_unit(
            "punctual_counted",
            "When the tasks of the cluster were counted, since the epoch; 0 on nodes that do not \
             count",
            Unit::Seconds,
            metrics.counted_at.clone(),
        );
        metrics.clear();
        metrics
    }

    /// Shows a count of this node.
    pub fn show(&self, figures: &BacklogFigures) {
        for (of, gauge, figure) in [
            ("pending_tasks", &self.pending, figures.pending),
            ("overdue_tasks", &self.overdue, figures.overdue),
            ("awaiting_tasks", &self.awaiting, figures.awaiting),
            ("dead_letters", &self.dead_letters, figures.dead_letters),
        ] {
            gauge.set(figure.task_count.saturating_as());
            self.exact.get_or_create(&[("of", of)]).set(figure.is_exact.into());
        }
        let (now, oldest) = (figures.counted_at, figures.oldest_due_at);
        let overdue_for = oldest.map_or(0, |due_at| now.since(due_at).as_secs());
        self.oldest_overdue.set(overdue_for.saturating_as());
        self.counted_at.set(now.as_micros() / 1_000_000);
    }

    /// Shows zeros: another node counts.
    pub fn clear(&self) {
        let none = Figure { task_count: 0, is_exact: false };
        self.show(&BacklogFigures {
            counted_at: Timestamp::EPOCH,
            pending: none,
            overdue: none,
            oldest_due_at: None,
            awaiting: none,
            dead_letters: none,
        });
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn a_count_is_shown_until_another_node_counts() {
        let mut registry = Registry::default();
        let metrics = BacklogMetrics::register(&mut registry);
        let shown = || {
            let text = crate::telemetry::encode(&registry).unwrap();
            let lines = text.lines().filter(|line| !line.starts_with('#'));
            lines.map(str::to_owned).collect::<Vec<String>>()
        };
        let before = shown();
        let counted_at = Timestamp::from_millis(1_767_225_600_900);
        metrics.show(&BacklogFigures {
            counted_at,
            pending: Figure { task_count: 50_000, is_exact: false },
            overdue: Figure { task_count: 7, is_exact: true },
            oldest_due_at: Some(counted_at.minus(Duration::from_millis(61_900))),
            awaiting: Figure { task_count: 2, is_exact: true },
            dead_letters: Figure { task_count: 3, is_exact: true },
        });
        for line in [
            "punctual_pending_tasks 50000",
            "punctual_overdue_tasks 7",
            "punctual_oldest_overdue_seconds 61",
            "punctual_awaiting_tasks 2",
            "punctual_dead_letters 3",
            "punctual_count_exact{of=\"pending_tasks\"} 0",
            "punctual_count_exact{of=\"overdue_tasks\"} 1",
            "punctual_counted_seconds 1767225600",
        ] {
            assert!(shown().iter().any(|found| found == line), "{line}: {:?}", shown());
        }
        metrics.clear();
        let (mut before, mut after) = (before, shown());
        before.sort();
        after.sort();
        assert_eq!(before, after);
        assert!(after.iter().all(|line| line.ends_with(" 0")), "{after:?}");
    }
}
