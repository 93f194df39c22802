//! Metrics of single topics, chosen by `--metrics-topics`, up to a limit.
//!
//! A topic has series from the moment in which this node finds the topic in Kafka for a submit,
//! sends a record to the topic, or counts its tasks. The name in a request is not enough, so
//! callers with invented names cannot use up the limit.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use az::SaturatingAs as _;
use parking_lot::RwLock;

use crate::access::pattern::Pattern;
use crate::domain::TopicName;
use crate::telemetry::{Counter, Family, Gauge, Registry};

/// The maximum number of topics with series. The first ones have them.
pub const TOPICS_MAX: usize = 200;
/// A record with a longer lateness is late, as in docs/alerts.yml.
const LATE: Duration = Duration::from_secs(1);

type OfTopic = [(&'static str, String); 1];

/// The metrics of the chosen topics. Cheap to clone, and empty by default.
#[derive(Clone, Debug, Default)]
pub struct TopicMetrics(Option<Arc<ChosenTopics>>);

#[derive(Debug)]
struct ChosenTopics {
    patterns: Vec<Pattern>,
    topics: RwLock<HashMap<TopicName, Arc<TopicSeries>>>,
    families: Families,
    topic_count: Gauge,
    left_out: Gauge,
}

#[derive(Debug, Default)]
struct Families {
    published: Family<OfTopic, Counter>,
    late: Family<OfTopic, Counter>,
    deferred: Family<OfTopic, Counter>,
    dead: Family<OfTopic, Counter>,
    refused: Family<OfTopic, Counter>,
    pending: Family<OfTopic, Gauge>,
    overdue: Family<OfTopic, Gauge>,
    dead_letters: Family<OfTopic, Gauge>,
}

/// The series of one topic.
#[derive(Debug)]
struct TopicSeries {
    published: Counter,
    late: Counter,
    deferred: Counter,
    dead: Counter,
    refused: Counter,
    pending: Gauge,
    overdue: Gauge,
    dead_letters: Gauge,
}

/// The numbers of tasks of topics, as the counting node has found them.
#[derive(Clone, Copy, Debug, Default)]
pub struct TopicCounts<'a> {
    pub pending: &'a [(TopicName, u64)],
    pub overdue: &'a [(TopicName, u64)],
    pub dead_letters: &'a [(TopicName, u64)],
}

impl TopicMetrics {
    /// Registers the metrics, unless `patterns` is empty.
    pub fn register(registry: &mut Registry, patterns: &[Pattern]) -> Self {
        if patterns.is_empty() {
            return Self::default();
        }
        let families = Families::register(registry);
        let (topic_count, left_out) = (Gauge::default(), Gauge::default());
        registry.register(
            "punctual_metrics_topics",
            "Topics that have metrics of their own on this node",
            topic_count.clone(),
        );
        registry.register(
            "punctual_metrics_topics_left_out",
            "1 when a topic of --metrics-topics has no metrics of its own, because 200 others have",
            left_out.clone(),
        );
        let (patterns, topics) = (patterns.to_vec(), RwLock::default());
        Self(Some(Arc::new(ChosenTopics { patterns, topics, families, topic_count, left_out })))
    }

    pub fn is_on(&self) -> bool {
        self.0.is_some()
    }

    /// Gives a topic that exists its series, if it is chosen.
    pub fn found(&self, topic: &TopicName) {
        drop(self.of(topic));
    }

    /// Counts an acknowledged record. A record without a lateness was held back by a pause.
    pub fn published(&self, topic: &TopicName, lateness: Option<Duration>) {
        let Some(series) = self.of(topic) else { return };
        series.published.inc();
        if lateness.is_some_and(|lateness| lateness > LATE) {
            series.late.inc();
        }
    }

    pub fn deferred(&self, topic: &TopicName) {
        if let Some(series) = self.of(topic) {
            series.deferred.inc();
        }
    }

    pub fn dead(&self, topic: &TopicName) {
        if let Some(series) = self.of(topic) {
            series.dead.inc();
        }
    }

    /// Counts a refused submit, if the topic has series.
    pub fn refused(&self, topic: &TopicName) {
        let Some(chosen) = &self.0 else { return };
        if let Some(series) = chosen.topics.read().get(topic) {
            series.refused.inc();
        }
    }

    /// Shows a count of this node. Topics without a number have no tasks.
    pub fn show(&self, counts: TopicCounts<'_>) {
        let Some(chosen) = &self.0 else { return };
        for (topic, _count) in counts.pending.iter().chain(counts.dead_letters) {
            self.found(topic);
        }
        let by_topic = |counts: &[(TopicName, u64)]| -> HashMap<TopicName, u64> {
            counts.iter().cloned().collect()
        };
        let (pending, overdue, dead_letters) =
            (by_topic(counts.pending), by_topic(counts.overdue), by_topic(counts.dead_letters));
        for (topic, series) in chosen.topics.read().iter() {
            for (gauge, counts) in [
                (&series.pending, &pending),
                (&series.overdue, &overdue),
                (&series.dead_letters, &dead_letters),
            ] {
                gauge.set(counts.get(topic).copied().unwrap_or(0).saturating_as());
            }
        }
    }

    /// Returns the series of a topic that exists, and makes them if there is room.
    fn of(&self, topic: &TopicName) -> Option<Arc<TopicSeries>> {
        let chosen = self.0.as_deref()?;
        let (known, is_full) = {
            let topics = chosen.topics.read();
            (topics.get(topic).cloned(), topics.len() >= TOPICS_MAX)
        };
        if known.is_some() || !chosen.patterns.iter().any(|pattern| pattern.allows(topic)) {
            return known;
        }
        if is_full {
            chosen.left_out.set(1);
            return None;
        }
        chosen.add(topic)
    }
}

impl ChosenTopics {
    fn add(&self, topic: &TopicName) -> Option<Arc<TopicSeries>> {
        let mut topics = self.topics.write();
        if topics.len() >= TOPICS_MAX && !topics.contains_key(topic) {
            return None;
        }
        let series =
            topics.entry(topic.clone()).or_insert_with(|| Arc::new(self.families.series_of(topic)));
        let series = Arc::clone(series);
        self.topic_count.set(topics.len().saturating_as());
        Some(series)
    }
}

impl Families {
    fn register(registry: &mut Registry) -> Self {
        let families = Self::default();
        let Self { published, late, deferred, dead, refused, .. } = &families;
        for (name, help, family) in [
            ("published", "Tasks of the topic whose record was acknowledged", published),
            ("late", "Of these: over a second after they were due", late),
            ("deferred", "Attempts of the topic without an acknowledgement", deferred),
            ("dead", "Tasks of the topic that became dead letters", dead),
            ("refused", "Well-formed tasks for the topic that were refused", refused),
        ] {
            registry.register(format!("punctual_topic_tasks_{name}"), help, family.clone());
        }
        let Self { pending, overdue, dead_letters, .. } = &families;
        for (name, help, family) in [
            (
                "pending_tasks",
                "Pending tasks of the topic; of many an estimate. The owner of shard 0 counts \
                 them, other nodes show 0",
                pending,
            ),
            (
                "overdue_tasks",
                "Tasks of the topic that are due and not claimed; counted as the pending ones",
                overdue,
            ),
            (
                "dead_letters",
                "Dead letters of the topic that are neither redriven nor dropped; counted as the \
                 pending tasks",
                dead_letters,
            ),
        ] {
            registry.register(format!("punctual_topic_{name}"), help, family.clone());
        }
        families
    }

    fn series_of(&self, topic: &TopicName) -> TopicSeries {
        let of: OfTopic = [("topic", topic.as_str().to_owned())];
        let counter =
            |family: &Family<OfTopic, Counter>| Counter::clone(&family.get_or_create(&of));
        let gauge = |family: &Family<OfTopic, Gauge>| Gauge::clone(&family.get_or_create(&of));
        TopicSeries {
            published: counter(&self.published),
            late: counter(&self.late),
            deferred: counter(&self.deferred),
            dead: counter(&self.dead),
            refused: counter(&self.refused),
            pending: gauge(&self.pending),
            overdue: gauge(&self.overdue),
            dead_letters: gauge(&self.dead_letters),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn topic(name: &str) -> TopicName {
        TopicName::new(name).unwrap()
    }

    fn metrics(patterns: &[&str]) -> (TopicMetrics, Registry) {
        let patterns: Vec<Pattern> =
            patterns.iter().map(|pattern| Pattern::new(pattern).unwrap()).collect();
        let mut registry = Registry::default();
        (TopicMetrics::register(&mut registry, &patterns), registry)
    }

    /// The series, without their comments.
    fn shown(registry: &Registry) -> Vec<String> {
        let text = crate::telemetry::encode(registry).unwrap();
        text.lines().filter(|line| !line.starts_with('#')).map(str::to_owned).collect()
    }

    #[test]
    fn without_a_pattern_there_are_no_metrics_of_topics() {
        let (metrics, registry) = metrics(&[]);
        metrics.published(&topic("orders"), None);
        assert!(!metrics.is_on());
        assert_eq!(shown(&registry), [""; 0]);
    }

    #[test]
    fn what_becomes_of_the_tasks_of_a_chosen_topic_is_counted() {
        let (metrics, registry) = metrics(&["orders.*", "bills"]);
        let orders = topic("orders.new");
        for lateness in [None, Some(LATE), Some(LATE + Duration::from_millis(1))] {
            metrics.published(&orders, lateness);
        }
        metrics.deferred(&orders);
        metrics.dead(&orders);
        metrics.refused(&orders);
        for other in ["orders", "bill", "_bills"] {
            metrics.published(&topic(other), None);
        }
        metrics.show(TopicCounts {
            pending: &[(orders.clone(), 7), (topic("other"), 1)],
            overdue: &[(orders.clone(), 2)],
            dead_letters: &[(topic("bills"), 3)],
        });
        let series = shown(&registry);
        for line in [
            "punctual_topic_tasks_published_total{topic=\"orders.new\"} 3",
            "punctual_topic_tasks_late_total{topic=\"orders.new\"} 1",
            "punctual_topic_tasks_deferred_total{topic=\"orders.new\"} 1",
            "punctual_topic_tasks_dead_total{topic=\"orders.new\"} 1",
            "punctual_topic_tasks_refused_total{topic=\"orders.new\"} 1",
            "punctual_topic_pending_tasks{topic=\"orders.new\"} 7",
            "punctual_topic_overdue_tasks{topic=\"orders.new\"} 2",
            "punctual_topic_dead_letters{topic=\"bills\"} 3",
            "punctual_metrics_topics 2",
            "punctual_metrics_topics_left_out 0",
        ] {
            assert!(series.iter().any(|found| found == line), "{line}: {series:?}");
        }
        assert_eq!(series.len(), 8 * 2 + 2, "{series:?}");
        metrics.show(TopicCounts::default());
        let series = shown(&registry);
        let is_zero =
            |line: &&String| line.starts_with("punctual_topic_pending") && line.ends_with(" 0");
        assert_eq!(series.iter().filter(is_zero).count(), 2, "{series:?}");
    }

    #[test]
    fn the_number_of_topics_is_limited_and_refused_submits_use_none_up() {
        let (metrics, registry) = metrics(&["*"]);
        for number in 0..TOPICS_MAX + 50 {
            metrics.refused(&topic(&format!("invented-{number}")));
        }
        assert_eq!(shown(&registry).len(), 2);
        for number in 0..TOPICS_MAX + 1 {
            metrics.found(&topic(&format!("topic-{number}")));
        }
        metrics.published(&topic("topic-0"), None);
        let series = shown(&registry);
        assert_eq!(series.len(), 8 * TOPICS_MAX + 2);
        for line in [
            "punctual_topic_tasks_published_total{topic=\"topic-0\"} 1",
            "punctual_metrics_topics 200",
            "punctual_metrics_topics_left_out 1",
        ] {
            assert!(series.iter().any(|found| found == line), "{line}");
        }
    }
}
