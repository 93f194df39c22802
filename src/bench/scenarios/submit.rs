//! How many submits a second are taken, and how long their answers take: as many as there can be,
//! or at a rate.

use std::sync::Arc;
use std::time::Duration;

use crate::bench::ledger::{Ledger, Planned};
use crate::bench::load::flow::{self, Next};
use crate::bench::load::intake::Intake;
use crate::bench::results::quantiles::Spans;
use crate::bench::results::report::Report;
use crate::bench::results::{float, ratio};
use crate::bench::run::{Run, Setup, millis, now};
use crate::clock;

/// Nothing of it is due during the run.
const AHEAD: std::ops::Range<Duration> = Duration::from_secs(2 * 3600)..Duration::from_secs(4 * 3600);

#[derive(Clone, Copy, Debug)]
pub struct Plan {
    /// Calls in progress at once.
    pub lanes: usize,
    /// Tasks in one call; one is submitted as one.
    pub call: usize,
    /// Tasks per second; `None`: as many as there can be.
    pub rate: Option<u32>,
    pub measured: Duration,
    pub warm_up: Duration,
}

/// Submits for the warm-up, then for as long as is measured.
///
/// # Errors
/// In words, when the scenario cannot be run.
pub async fn submit<I: Intake>(setup: &Setup, plan: &Plan, intake: &I) -> Result<Report, String> {
    let run = Run::start(setup, "submit").await?;
    for_a_while(&run, plan, plan.warm_up, intake).await?;
    let (before, from) = (run.mark(), run.ledger.counts());
    let started_at = clock::monotonic();
    let spans = for_a_while(&run, plan, plan.measured, intake).await?;
    let span = clock::monotonic().since(started_at);
    let after = run.mark();
    let mut report = run.report(&[
        ("connections", plan.lanes.to_string()),
        ("tasks in a call", plan.call.to_string()),
        ("rate", plan.rate.map_or_else(|| "as many as there can be".to_owned(), |rate| rate.to_string())),
        ("measured", format!("{:?}", plan.measured)),
        ("warm-up", format!("{:?}", plan.warm_up)),
    ]);
    let accepted = report.counts.accepted - from.accepted;
    report.measured = "answer to a call".to_owned();
    report.spans = spans.quantiles();
    report.rate = ratio(float(accepted), span.as_secs_f64());
    report.usage = run.usage(&before, &after, accepted);
    // None of it was due: it is neither lost nor there.
    report.counts.lost = 0;
    Ok(report)
}

async fn for_a_while<I: Intake>(run: &Run, plan: &Plan, span: Duration, intake: &I) -> Result<Spans, String> {
    let (start, ledger, call) = (clock::monotonic(), Arc::clone(&run.ledger), plan.call.max(1));
    let Some(rate) = plan.rate else {
        let next = move || (clock::monotonic().since(start) < span).then(|| tasks(&ledger, call));
        return flow::closed_loop(intake, plan.lanes, &run.ledger, next).await;
    };
    let interval = Duration::from_secs(u64::try_from(call).unwrap_or(1)) / rate.max(1);
    let mut count = 0_u32;
    let next = move |elapsed: Duration| {
        if elapsed >= span {
            return Next::Over;
        }
        if elapsed < interval * count {
            return Next::Wait;
        }
        count += 1;
        Next::Call(tasks(&ledger, call))
    };
    flow::open_loop(intake, plan.lanes, &run.ledger, next).await
}

fn tasks(ledger: &Ledger, count: usize) -> Vec<Planned> {
    let now = now();
    (0..count).map(|_| ledger.plan(now + rand::random_range(millis(AHEAD.start)..millis(AHEAD.end)))).collect()
}
