//! Consumers without Kafka: [`pollers`] that call `pop`, and a [`service`] that callbacks call.

pub mod pollers;
pub mod service;

use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;

use super::ledger::{Ledger, Range};
use super::results::float;
use super::results::quantiles::Spans;
use super::results::report::BenchReport;

/// The deliveries of a run, with the time from the append of each record to its consumer.
#[derive(Debug)]
pub struct Deliveries {
    ledger: Arc<Ledger>,
    /// Records appended then are measured.
    appended: Range,
    seen: Mutex<Seen>,
}

#[derive(Debug, Default)]
struct Seen {
    /// By the number of the task: whether it was delivered.
    delivered: Vec<bool>,
    delivered_count: usize,
    /// Deliveries beyond the first of a task.
    repeated_count: u64,
    refused_count: u64,
    spans: Spans,
    finishes: Spans,
}

impl Deliveries {
    pub fn new(ledger: Arc<Ledger>, appended: Range) -> Self {
        Self { ledger, appended, seen: Mutex::default() }
    }

    /// Records a delivery at `at`. Both times are in milliseconds since the epoch. Tasks of other
    /// runs are ignored.
    pub fn delivered(&self, key: &[u8], appended_at: i64, at: i64) {
        let Some(number) = self.ledger.number_of(key) else { return };
        let mut seen = self.seen.lock();
        if seen.delivered.len() <= number {
            seen.delivered.resize(number + 1, false);
        }
        if std::mem::replace(&mut seen.delivered[number], true) {
            seen.repeated_count += 1;
            return;
        }
        seen.delivered_count += 1;
        if self.appended.contains(&appended_at) {
            seen.spans.record_millis(u64::try_from(at - appended_at).unwrap_or(0));
        }
    }

    /// Records the answer to a finish, and the time from the delivery to it.
    pub fn finished(&self, is_finished: bool, span: Duration) {
        let mut seen = self.seen.lock();
        seen.refused_count += u64::from(!is_finished);
        seen.finishes.record(span);
    }

    pub fn count(&self) -> usize {
        self.seen.lock().delivered_count
    }

    /// Adds the deliveries to the report. Their distribution takes the place of the lateness.
    pub fn add_to(&self, report: &mut BenchReport) {
        let seen = self.seen.lock();
        if let Some(late) = &report.spans {
            for (name, value) in [("p50", late.p50), ("p99", late.p99), ("max", late.max)] {
                report.facts.insert(format!("append - due, {name}, ms"), value);
            }
        }
        report.measured = "consumer - append".to_owned();
        report.spans = seen.spans.quantiles();
        report.series = Vec::new();
        let missing = report.counts.accepted.saturating_sub(seen.delivered_count as u64);
        report.fact("not delivered", float(missing));
        report.fact("delivered again", float(seen.repeated_count));
        if let Some(finishes) = seen.finishes.quantiles() {
            report.fact("delivery to finished, p50, ms", finishes.p50);
            report.fact("delivery to finished, p99, ms", finishes.p99);
            report.fact("any other answer", float(seen.refused_count));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bench::ledger::written;

    #[test]
    fn the_first_delivery_of_a_task_is_measured_and_others_are_counted() {
        let ledger = Arc::new(Ledger::new(7, 1_000));
        let keys = [0, 1, 2].map(|_| written(ledger.plan(1_000).key));
        let deliveries = Deliveries::new(Arc::clone(&ledger), 1_000..2_000);
        deliveries.delivered(&keys[1], 1_010, 1_015);
        deliveries.delivered(&keys[1], 1_500, 1_900);
        // Appended after the measurement.
        deliveries.delivered(&keys[0], 2_010, 2_999);
        deliveries.delivered(b"of another run", 1_010, 1_011);
        deliveries.finished(false, Duration::from_millis(3));
        let mut report = BenchReport::default();
        report.counts.accepted = 3;
        deliveries.add_to(&mut report);
        let spans = report.spans.as_ref().unwrap();
        assert_eq!((spans.count, spans.max), (1, 5.0));
        let facts = ["not delivered", "delivered again", "any other answer"];
        assert_eq!(facts.map(|name| report.facts[name]), [1.0, 1.0, 1.0]);
    }
}
