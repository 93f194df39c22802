//! Measures submits: tasks accepted per second, and the latency of answers. Runs at full speed, or
//! at a rate.

use std::sync::Arc;
use std::time::Duration;

use crate::bench::ledger::{Ledger, Planned};
use crate::bench::load::flow::{self, NextStep};
use crate::bench::load::intake::LoadTarget;
use crate::bench::results::quantiles::Spans;
use crate::bench::results::report::BenchReport;
use crate::bench::results::{float, ratio};
use crate::bench::run::{BenchRun, Setup, millis, now};
use crate::clock;

/// How far ahead tasks are due: none is due during the run.
const AHEAD: std::ops::Range<Duration> =
    Duration::from_secs(2 * 3600)..Duration::from_secs(4 * 3600);

#[derive(Clone, Copy, Debug)]
pub struct SubmitPlan {
    /// Number of concurrent calls.
    pub connections: usize,
    /// Tasks in one call. A call of one task uses the single submit.
    pub call: usize,
    /// Tasks per second. `None` means full speed.
    pub rate: Option<u32>,
    pub measured: Duration,
    pub warm_up: Duration,
}

/// Submits tasks during the warm-up and the measurement.
///
/// # Errors
/// Returns the reason as text when the scenario cannot be run.
pub async fn submit<I: LoadTarget>(
    setup: &Setup,
    plan: &SubmitPlan,
    intake: &I,
) -> Result<BenchReport, String> {
    let run = BenchRun::start(setup, "submit").await?;
    for_a_while(&run, plan, plan.warm_up, intake).await?;
    let (before, from) = (run.mark(), run.ledger.counts());
    let started_at = clock::monotonic();
    let spans = for_a_while(&run, plan, plan.measured, intake).await?;
    let span = clock::monotonic().since(started_at);
    let after = run.mark();
    let mut report = run.report(&[
        ("connections", plan.connections.to_string()),
        ("tasks in a call", plan.call.to_string()),
        (
            "rate",
            plan.rate.map_or_else(|| "as many as possible".to_owned(), |rate| rate.to_string()),
        ),
        ("measured", format!("{:?}", plan.measured)),
        ("warm-up", format!("{:?}", plan.warm_up)),
    ]);
    let accepted = report.counts.accepted - from.accepted;
    report.measured = "answer to a call".to_owned();
    report.spans = spans.quantiles();
    report.rate = ratio(float(accepted), span.as_secs_f64());
    report.usage = run.usage(&before, &after, accepted);
    // No task was due, so none is lost.
    report.counts.lost = 0;
    Ok(report)
}

async fn for_a_while<I: LoadTarget>(
    run: &BenchRun,
    plan: &SubmitPlan,
    span: Duration,
    intake: &I,
) -> Result<Spans, String> {
    let (start, ledger, call) = (clock::monotonic(), Arc::clone(&run.ledger), plan.call.max(1));
    let Some(rate) = plan.rate else {
        let next = move || (clock::monotonic().since(start) < span).then(|| tasks(&ledger, call));
        return flow::closed_loop(intake, plan.connections, &run.ledger, next).await;
    };
    let interval = Duration::from_secs(u64::try_from(call).unwrap_or(1)) / rate.max(1);
    let mut count = 0_u32;
    let next = move |elapsed: Duration| {
        if elapsed >= span {
            return NextStep::Over;
        }
        if elapsed < interval * count {
            return NextStep::Wait;
        }
        count += 1;
        NextStep::Call(tasks(&ledger, call))
    };
    flow::open_loop(intake, plan.connections, &run.ledger, next).await
}

fn tasks(ledger: &Ledger, count: usize) -> Vec<Planned> {
    let now = now();
    (0..count)
        .map(|_| ledger.plan(now + rand::random_range(millis(AHEAD.start)..millis(AHEAD.end))))
        .collect()
}
