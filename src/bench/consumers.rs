//! Consumers without Kafka: [`pollers`] that call `pop`, and a [`service`] that callbacks call.

pub mod pollers;
pub mod service;

use std::sync::Arc;
use std::time::Duration;

use az::SaturatingAs as _;
use parking_lot::Mutex;

use super::ledger::{Ledger, Range};
use super::results::quantiles::Spans;
use super::results::report::BenchReport;
use super::results::{float, float_of};

/// The deliveries of a run, with the times from the appends of the records to their consumers.
#[derive(Debug)]
pub struct Deliveries {
    ledger: Arc<Ledger>,
    seen: Mutex<Seen>,
}

#[derive(Debug, Default)]
struct Seen {
    /// By the number of the task: milliseconds from the append to the first delivery.
    delays: Vec<Option<i64>>,
    delivered_count: usize,
    /// Deliveries beyond the first of a task.
    repeated_count: u64,
    finishes: Spans,
    /// Calls whose finishes were not all accepted.
    refused_count: u64,
}

impl Deliveries {
    pub fn new(ledger: Arc<Ledger>) -> Self {
        Self { ledger, seen: Mutex::default() }
    }

    /// Records a delivery at `at`. Both times are in milliseconds since the epoch. Tasks of other
    /// runs are ignored.
    pub fn delivered(&self, key: &[u8], appended_at: i64, at: i64) {
        let Some(number) = self.ledger.number_of(key) else { return };
        let mut seen = self.seen.lock();
        if seen.delays.len() <= number {
            seen.delays.resize(number + 1, None);
        }
        if seen.delays[number].is_some() {
            seen.repeated_count += 1;
            return;
        }
        seen.delays[number] = Some(at - appended_at);
        seen.delivered_count += 1;
    }

    /// Records the answer to a call that finishes, and the time from the delivery to it.
    pub fn finished(&self, are_all: bool, span: Duration) {
        let mut seen = self.seen.lock();
        seen.refused_count += u64::from(!are_all);
        seen.finishes.record(span);
    }

    /// Returns the number of delivered tasks.
    pub fn count(&self) -> usize {
        self.seen.lock().delivered_count
    }

    /// Returns the number of accepted tasks due within `due` that were not delivered.
    pub fn missing_count(&self, due: &Range) -> usize {
        let accepted = self.ledger.numbers(due, true);
        let seen = self.seen.lock();
        let is_missing = |number: &&usize| seen.delays.get(**number).is_none_or(Option::is_none);
        accepted.iter().filter(is_missing).count()
    }

    /// Adds the deliveries to the report: the distribution of those due within `due` takes the
    /// place of the lateness. A task that is not delivered is lost.
    pub fn add_to(&self, report: &mut BenchReport, due: &Range) {
        if let Some(late) = &report.spans {
            for (name, value) in [("p50", late.p50), ("p99", late.p99), ("max", late.max)] {
                report.facts.insert(format!("append - due, {name}, ms"), value);
            }
        }
        let missing = self.missing_count(&(i64::MIN..due.end));
        report.counts.lost += missing.saturating_as::<u64>();
        report.fact("not delivered", float_of(missing));
        let (mut spans, mut negative) = (Spans::default(), 0_u64);
        let measured = self.ledger.numbers(due, false);
        let seen = self.seen.lock();
        for delay in measured.iter().filter_map(|number| seen.delays.get(*number).copied()?) {
            match u64::try_from(delay) {
                Ok(millis) => spans.record_millis(millis),
                Err(_negative) => negative += 1,
            }
        }
        report.measured = "consumer - append".to_owned();
        report.spans = spans.quantiles();
        report.series = Vec::new();
        report.fact("delivered again", float(seen.repeated_count));
        report.fact("before the append, by other clocks", float(negative));
        if let Some(finishes) = seen.finishes.quantiles() {
            report.fact("delivery to finished, p50, ms", finishes.p50);
            report.fact("delivery to finished, p99, ms", finishes.p99);
            report.fact("calls with finishes not accepted", float(seen.refused_count));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bench::ledger::{Reply, written};

    #[test]
    fn the_first_delivery_of_a_task_is_measured_and_a_missing_one_is_lost() {
        let ledger = Arc::new(Ledger::new(7, 1_000));
        let tasks = [1_000, 1_100, 1_200, 5_000].map(|due_at| ledger.plan(due_at));
        ledger.answered(&tasks, |_| Reply::Accepted, None);
        let keys = tasks.map(|task| written(task.key));
        let (deliveries, due) = (Deliveries::new(Arc::clone(&ledger)), 1_100..2_000);
        deliveries.delivered(&keys[0], 1_001, 1_999);
        deliveries.delivered(&keys[1], 1_110, 1_115);
        deliveries.delivered(&keys[1], 1_110, 1_900);
        deliveries.delivered(b"of another run", 1_010, 1_011);
        deliveries.finished(false, Duration::from_millis(3));
        assert_eq!((deliveries.count(), deliveries.missing_count(&due)), (2, 1));
        let mut report = BenchReport::default();
        deliveries.add_to(&mut report, &due);
        let spans = report.spans.as_ref().unwrap();
        assert_eq!((spans.count, spans.max), (1, 5.0));
        let facts = ["not delivered", "delivered again", "calls with finishes not accepted"];
        assert_eq!(facts.map(|name| report.facts[name]), [1.0, 1.0, 1.0]);
        assert!(!report.counts.are_clean());
    }
}
