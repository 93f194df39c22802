//! Measures how fast a cluster takes in what an application has written into an outbox or an intake
//! topic.
//!
//! Nobody answers when such a task is stored. So one task in [`MARK_EVERY`] is due at once: its
//! record tells that the tasks before it are stored, too. All others are due hours later.

use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use az::SaturatingAs as _;

use crate::bench::ledger::{Ledger, Planned};
use crate::bench::load::flow;
use crate::bench::load::intake::LoadTarget;
use crate::bench::results::quantiles::Spans;
use crate::bench::results::report::BenchReport;
use crate::bench::results::{float, ratio};
use crate::bench::run::{BenchRun, Setup, millis, now, take};

/// One task in this number is due at once.
const MARK_EVERY: u64 = 100;
/// How far ahead the other tasks are due.
const AHEAD: std::ops::Range<Duration> =
    Duration::from_secs(2 * 3600)..Duration::from_secs(4 * 3600);

/// The reason when no record arrives.
pub const NOT_TAKEN: &str =
    "no node takes the tasks: start one with --outbox or --intake-topic, and look at its log";

#[derive(Clone, Copy, Debug)]
pub struct TakeInPlan {
    /// `outbox` or `intake`.
    pub scenario: &'static str,
    /// Number of tasks to write. A tenth as many are written before, and not measured.
    pub count: u64,
    /// Number of tasks written together.
    pub call: usize,
    /// Number of concurrent writers.
    pub connections: usize,
}

/// Writes tasks as fast as possible, and waits until all are stored. The rate counts from the first
/// write to the append of the last task that is due at once.
///
/// # Errors
/// Returns the reason as text when the scenario cannot be run, or when no node takes the tasks.
pub async fn take_in<I: LoadTarget>(
    setup: &Setup,
    plan: &TakeInPlan,
    target: &I,
) -> Result<BenchReport, String> {
    let run = BenchRun::start(setup, plan.scenario).await?;
    write(&run, plan, plan.count.div_ceil(10), target).await?;
    run.wait_arrived(now()).await;
    let warm_up = run.ledger.snapshot();
    if warm_up.arrived_count == 0 {
        return Err(run.ledger.reason().unwrap_or_else(|| NOT_TAKEN.to_owned()));
    }
    let (before, started_at) = (run.mark(), now());
    let spans = write(&run, plan, plan.count, target).await?;
    let written_at = now();
    run.wait_arrived(written_at).await;
    let after = run.mark();
    let snapshot = run.ledger.snapshot();
    let stored = (snapshot.accepted_count - warm_up.accepted_count).saturating_as::<u64>();
    let seconds = |until: i64| float((until - started_at).max(1).unsigned_abs()) / 1000.0;
    let mut report = run.report(&[
        ("count", plan.count.to_string()),
        ("tasks in a call", plan.call.to_string()),
        ("connections", plan.connections.to_string()),
    ]);
    report.measured = "answer to a write".to_owned();
    report.spans = spans.quantiles();
    report.rate = ratio(float(stored), seconds(snapshot.last_at.unwrap_or(written_at)));
    report.fact("written per second", ratio(float(stored), seconds(written_at)));
    report.usage = run.usage(&before, &after, stored);
    // The tasks that are due later are not lost.
    report.counts.lost = run.ledger.counts_before(written_at).lost;
    Ok(report)
}

async fn write<I: LoadTarget>(
    run: &BenchRun,
    plan: &TakeInPlan,
    count: u64,
    target: &I,
) -> Result<Spans, String> {
    let (ledger, call) = (Arc::clone(&run.ledger), plan.call.max(1));
    let (left, begun) = (AtomicU64::new(count), AtomicU64::new(0));
    let next = move || {
        let taken = take(&left, call);
        let first = begun.fetch_add(taken.saturating_as(), Relaxed);
        (taken > 0).then(|| tasks(&ledger, first..first + taken.saturating_as::<u64>(), count))
    };
    flow::closed_loop(target, plan.connections, &run.ledger, next).await
}

/// Plans the tasks with these numbers. The last of all is due at once, too.
fn tasks(ledger: &Ledger, numbers: std::ops::Range<u64>, count: u64) -> Vec<Planned> {
    let now = now();
    let ahead = || now + rand::random_range(millis(AHEAD.start)..millis(AHEAD.end));
    let is_mark = |number: u64| number.is_multiple_of(MARK_EVERY) || number + 1 == count;
    numbers.map(|number| ledger.plan(if is_mark(number) { now } else { ahead() })).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_hundredth_task_and_the_last_are_due_at_once() {
        let ledger = Ledger::new(1, now());
        let planned = tasks(&ledger, 150..302, 302);
        let at_once: Vec<usize> =
            (0..152).filter(|index| planned[*index].due_at <= now()).collect();
        assert_eq!(at_once, [50, 150, 151]);
    }
}
