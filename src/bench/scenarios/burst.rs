//! Measures a burst: many tasks due at one instant. The results are the times of the first and the
//! last append.

use std::time::Duration;

use crate::bench::load::intake::LoadTarget;
use crate::bench::results::report::BenchReport;
use crate::bench::results::{float, ratio};
use crate::bench::run::{BenchRun, Setup, millis, now, submit_all};

/// Minimum time from the last submit to the instant: the claims must find all tasks.
const MARGIN: Duration = Duration::from_millis(1500);

#[derive(Clone, Copy, Debug)]
pub struct BurstPlan {
    pub count: u64,
    /// Time from the first submit to the instant.
    pub lead: Duration,
}

/// Submits all tasks, waits for the instant, and waits for the last record.
///
/// # Errors
/// Returns the reason as text when the scenario cannot be run, or when the tasks were not stored in
/// time.
pub async fn burst<I: LoadTarget>(
    setup: &Setup,
    plan: &BurstPlan,
    intake: &I,
) -> Result<BenchReport, String> {
    let run = BenchRun::start(setup, "burst").await?;
    let instant = now() + millis(plan.lead);
    submit_all(intake, &run.ledger, plan.count, move || instant).await?;
    if now() > instant - millis(MARGIN) {
        return Err(format!(
            "not all tasks were stored {MARGIN:?} before the instant: --lead must be longer than \
             {:?}",
            plan.lead
        ));
    }
    run.wait_until(instant - 300).await;
    let before = run.mark();
    run.wait_arrived(instant + 1).await;
    let after = run.mark();
    let mut report = run.lateness_report(
        &[("count", plan.count.to_string()), ("lead", format!("{:?}", plan.lead))],
        &(instant..instant + 1),
    );
    report.series = run.ledger.appends(100);
    report.usage = run.usage(&before, &after, report.counts.arrived);
    let snapshot = run.ledger.snapshot();
    if let (Some(first), Some(last)) = (snapshot.first_at, snapshot.last_at) {
        let since = |at: i64| float(u64::try_from(at - instant).unwrap_or(0));
        report.fact("first out, ms", since(first));
        report.fact("last out, ms", since(last));
        // The rate counts from the instant, so a late start does not look faster.
        report.rate = ratio(float(report.counts.arrived) * 1000.0, since(last).max(1.0));
    }
    Ok(report)
}
