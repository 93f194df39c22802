//! The figures of outboxes and intake topics, as the metrics of a node have them.
//!
//! A node has metrics of each outbox and intake topic in its settings from its start on. So the
//! metrics also name those that another node drains or reads.

use std::collections::BTreeMap;
use std::time::Duration;

use az::SaturatingAs as _;

/// The ways in beside the API.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum InboundKind {
    Outbox,
    Intake,
}

impl InboundKind {
    const ALL: [Self; 2] = [Self::Outbox, Self::Intake];

    /// Returns the label of the metrics. It is also the first word of their names.
    const fn label(self) -> &'static str {
        match self {
            Self::Outbox => "outbox",
            Self::Intake => "intake",
        }
    }

    /// Returns the counter of the rows or records that were carried out.
    pub const fn carried_out(self) -> &'static str {
        match self {
            Self::Outbox => "rows_stored_total",
            Self::Intake => "records_stored_total",
        }
    }
}

/// The metrics of one outbox or intake topic, by their names after `punctual_outbox_` or
/// `punctual_intake_`.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Figures(BTreeMap<String, String>);

impl Figures {
    /// Returns a counter, or a gauge of whole numbers. Returns zero when there is none.
    pub fn count(&self, metric: &str) -> u64 {
        self.0.get(metric).and_then(|value| value.parse().ok()).unwrap_or_default()
    }

    /// Returns a gauge of seconds in milliseconds, without its sign.
    pub fn millis(&self, metric: &str) -> u64 {
        let seconds = self.0.get(metric).and_then(|value| value.parse::<f64>().ok());
        let span = seconds.and_then(|seconds| Duration::try_from_secs_f64(seconds.abs()).ok());
        span.unwrap_or_default().as_millis().saturating_as::<u64>()
    }
}

/// The figures of all outboxes and intake topics of a node.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Inbound(BTreeMap<(InboundKind, String), Figures>);

impl Inbound {
    /// Takes a series of the metrics in, if it is one of an outbox or an intake topic.
    pub(super) fn take(&mut self, series: &str, value: &str) {
        let Some((metric, labels)) = series.split_once('{') else { return };
        let Some(metric) = metric.strip_prefix("punctual_") else { return };
        for kind in InboundKind::ALL {
            let after = |text| str::strip_prefix(text, kind.label());
            let metric = after(metric).and_then(|rest| rest.strip_prefix('_'));
            let name = after(labels).and_then(|rest| rest.strip_prefix("=\""));
            let name = name.and_then(|rest| rest.strip_suffix("\"}"));
            if let Some((metric, name)) = metric.zip(name) {
                let figures = self.0.entry((kind, name.to_owned())).or_default();
                figures.0.insert(metric.to_owned(), value.to_owned());
            }
        }
    }

    /// Returns the number of rows or records that each has carried out since an earlier sample.
    pub(super) fn carried_out_since(
        &self,
        earlier: &Self,
    ) -> impl Iterator<Item = ((InboundKind, String), u64)> {
        self.0.iter().map(move |(one, figures)| {
            let metric = one.0.carried_out();
            let before = earlier.0.get(one).map_or(0, |before| before.count(metric));
            (one.clone(), figures.count(metric).saturating_sub(before))
        })
    }

    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Returns the outboxes, or the intake topics, by name.
    pub fn of(&self, kind: InboundKind) -> impl Iterator<Item = (&str, &Figures)> {
        let of_kind = self.0.iter().filter(move |((other, _), _)| *other == kind);
        of_kind.map(|((_, name), figures)| (name.as_str(), figures))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_series_of_outboxes_and_intake_topics_are_taken() {
        let mut inbound = Inbound::default();
        for (series, value) in [
            ("punctual_outbox_rows_stored_total{outbox=\"shop\"}", "7"),
            ("punctual_outbox_clock_offset_seconds{outbox=\"shop\"}", "-1.5"),
            ("punctual_intake_partitions{intake=\"in.1\"}", "3"),
            ("punctual_intake_waits_seconds{outbox=\"other\"}", "1.0"),
            ("punctual_topic_published_total{topic=\"outbox\"}", "1"),
            ("punctual_in_flight_tasks", "1"),
        ] {
            inbound.take(series, value);
        }
        let [(name, shop)] = inbound.of(InboundKind::Outbox).collect::<Vec<_>>()[..] else {
            panic!("{inbound:?}");
        };
        assert_eq!((name, shop.count("rows_stored_total")), ("shop", 7));
        assert_eq!(shop.millis("clock_offset_seconds"), 1_500);
        assert_eq!((shop.count("waiting_rows"), shop.millis("oldest_row_seconds")), (0, 0));
        let intakes: Vec<&str> = inbound.of(InboundKind::Intake).map(|(name, _)| name).collect();
        assert_eq!(intakes, ["in.1"]);
    }
}
