//! Measures how fast nodes work through a backlog: all tasks are overdue when the nodes start.

use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::atomic::{AtomicU64, AtomicUsize};
use std::time::Duration;

use az::SaturatingAs as _;

use crate::bench::load::flow;
use crate::bench::load::intake::LoadTarget;
use crate::bench::results::report::BenchReport;
use crate::bench::results::{float, ratio};
use crate::bench::run::{BULK_CALL, BULK_LANES, BenchRun, Setup, millis, now, take};

#[derive(Clone, Copy, Debug)]
pub struct DrainPlan {
    pub count: u64,
    /// Time from the first submit to the first due time. All tasks must be stored by then.
    pub lead: Duration,
    /// The range of due times.
    pub spread: Duration,
    pub order: Order,
}

/// The order in which tasks are submitted.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Order {
    Random,
    /// By due time. Tasks that are claimed together then lie together in the table, which makes
    /// claims cheaper.
    Due,
}

/// Stops and starts the publishing programs.
pub trait Publishers {
    /// Returns when all publishing programs have stopped.
    fn stop(&mut self) -> impl Future<Output = Result<(), String>>;
    /// Starts the programs and returns at once. Publishing may begin later.
    fn start(&mut self) -> impl Future<Output = Result<(), String>>;
}

/// Submits all tasks and waits for the last record. The publishers are stopped before the first due
/// time, and started when all tasks are overdue.
///
/// # Errors
/// Returns the reason as text when the scenario cannot be run, or when the tasks were not stored in
/// time.
pub async fn drain<I: LoadTarget>(
    setup: &Setup,
    plan: &DrainPlan,
    intake: &I,
    publishers: &mut impl Publishers,
) -> Result<BenchReport, String> {
    let run = BenchRun::start(setup, "drain").await?;
    let from = now() + millis(plan.lead);
    let to = from + millis(plan.spread).max(1);
    let (book, left, turn, plan) =
        (Arc::clone(&run.ledger), AtomicU64::new(plan.count), AtomicUsize::new(0), *plan);
    let next = move || {
        let taken = take(&left, BULK_CALL);
        (taken > 0).then(|| {
            let done = turn.fetch_add(1, Relaxed).saturating_mul(BULK_CALL);
            let due_at = |index| match plan.order {
                Order::Random => rand::random_range(from..to),
                Order::Due => from + portion(done + index, plan.count, to - from),
            };
            (0..taken).map(|index| book.plan(due_at(index))).collect()
        })
    };
    flow::closed_loop(intake, BULK_LANES, &run.ledger, next).await?;
    publishers.stop().await?;
    if now() >= from - 300 {
        return Err(format!(
            "the publishers were not stopped before the first task was due: --lead must be longer \
             than {:?}",
            plan.lead
        ));
    }
    run.print_line("waiting until all tasks are overdue");
    run.wait_until(to + 100).await;
    let before = run.mark();
    let started_at = now();
    publishers.start().await?;
    run.wait_arrived(to).await;
    let after = run.mark();
    let mut report = run.report(&[
        ("count", plan.count.to_string()),
        ("spread", format!("{:?}", plan.spread)),
        ("lead", format!("{:?}", plan.lead)),
    ]);
    report.series = run.ledger.appends(200);
    report.usage = run.usage(&before, &after, report.counts.arrived);
    let snapshot = run.ledger.snapshot();
    if let (Some(first), Some(last)) = (snapshot.first_at, snapshot.last_at) {
        let span = float(u64::try_from(last - first).unwrap_or(0));
        report.fact(
            "start to first append, ms",
            float(u64::try_from(first - started_at).unwrap_or(0)),
        );
        report.fact("first to last append, ms", span);
        report.rate = ratio(float(report.counts.arrived) * 1000.0, span.max(1.0));
    }
    Ok(report)
}

/// Returns the position in `span` at which the task with this number is due, when the tasks are due
/// in order.
fn portion(number: usize, count: u64, span: i64) -> i64 {
    let number = number.saturating_as::<i64>();
    number.saturating_mul(span) / count.saturating_as::<i64>().max(1)
}
