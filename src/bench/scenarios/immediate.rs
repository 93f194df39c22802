//! Measures tasks without a delay, from the request to the append.

use std::time::Duration;

use crate::bench::load::flow::{self, NextStep};
use crate::bench::load::intake::LoadTarget;
use crate::bench::results::report::BenchReport;
use crate::bench::results::{float, ratio};
use crate::bench::run::{BenchRun, Setup, millis, now};
use crate::bench::scenarios::lateness::compare_spans;

#[derive(Clone, Copy, Debug)]
pub struct ImmediatePlan {
    /// `immediate`, or the name of another way in.
    pub scenario: &'static str,
    pub rate: u32,
    pub connections: usize,
    pub measured: Duration,
    pub warm_up: Duration,
}

/// Submits one task per request, due at once. The due time is the moment when the request is ready
/// to be sent, so the wait for a free connection counts.
///
/// # Errors
/// Returns the reason as text when the scenario cannot be run.
pub async fn immediate<I: LoadTarget>(
    setup: &Setup,
    plan: &ImmediatePlan,
    intake: &I,
) -> Result<BenchReport, String> {
    let run = BenchRun::start(setup, plan.scenario).await?;
    let from = run.started_at + millis(plan.warm_up);
    let due = from..from + millis(plan.measured);
    let interval = Duration::from_secs(1) / plan.rate.max(1);
    let mut count = 0_u32;
    let next = |elapsed: Duration| {
        let at = now();
        if at >= due.end {
            return NextStep::Over;
        }
        if elapsed < interval * count {
            return NextStep::Wait;
        }
        count += 1;
        NextStep::Call(vec![run.ledger.plan(at)])
    };
    let submits = flow::open_loop(intake, plan.connections, &run.ledger, next);
    let (answers, (before, after)) = tokio::join!(submits, run.marks(&due));
    let answers = answers?;
    run.wait_arrived(due.end).await;
    let settings = [
        ("rate", plan.rate.to_string()),
        ("connections", plan.connections.to_string()),
        ("measured", format!("{:?}", plan.measured)),
        ("warm-up", format!("{:?}", plan.warm_up)),
    ];
    let mut report = run.lateness_report(&settings, &due);
    report.measured = "append - request".to_owned();
    let count = report.spans.as_ref().map_or(0, |spans| spans.count);
    report.rate = ratio(float(count), plan.measured.as_secs_f64());
    report.usage = run.usage(&before, &after, count);
    report.fact("answer p50, ms", answers.at(0.5));
    report.fact("answer p99, ms", answers.at(0.99));
    compare_spans(&mut report, &run, (plan.scenario, plan.measured), &due);
    Ok(report)
}
