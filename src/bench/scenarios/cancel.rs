//! Measures cancels: answers per second, and their latency.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use hyper::Method;
use parking_lot::Mutex;
use tokio::task::JoinSet;

use crate::bench::ledger::Reply;
use crate::bench::load::intake::LoadTarget as _;
use crate::bench::load::rest::RestTarget;
use crate::bench::results::quantiles::Spans;
use crate::bench::results::report::BenchReport;
use crate::bench::results::{float, ratio};
use crate::bench::run::{BenchRun, Setup, millis, now};
use crate::clock;

#[derive(Clone, Copy, Debug)]
pub struct CancelPlan {
    /// Number of tasks to cancel.
    pub count: usize,
    /// Number of tasks at the beginning that are not measured.
    pub warm_up: usize,
    pub connections: usize,
}

/// Time from the submit to the due time: far enough ahead that no task is claimed during the run.
const AHEAD: Duration = Duration::from_secs(2 * 3600);

#[derive(Debug, Default)]
struct Verdicts {
    cancelled: u64,
    others: u64,
    spans: Spans,
}

/// Submits tasks one by one. Then cancels each over several connections, as fast as possible.
///
/// # Errors
/// Returns the reason as text when the scenario cannot be run.
pub async fn cancel(
    setup: &Setup,
    plan: &CancelPlan,
    rest: &RestTarget,
) -> Result<BenchReport, String> {
    let run = BenchRun::start(setup, "cancel").await?;
    run.print_line(&format!("submitting {} tasks", plan.count));
    let mut ids = submit_all(&run, plan, rest).await?;
    run.print_line("cancelling them");
    let measured = ids.split_off(plan.warm_up.min(ids.len()));
    cancel_all(ids, plan.connections, rest).await?;
    let before = run.mark();
    let started_at = clock::monotonic();
    let verdicts = cancel_all(measured, plan.connections, rest).await?;
    let span = clock::monotonic().since(started_at);
    let after = run.mark();
    if verdicts.cancelled == 0 {
        return Err(format!("none of {} cancels got the answer \"cancelled\"", verdicts.others));
    }
    let mut report = run.report(&[
        ("count", plan.count.to_string()),
        ("connections", plan.connections.to_string()),
        ("warm-up", plan.warm_up.to_string()),
    ]);
    report.measured = "answer to a cancel".to_owned();
    report.rate = ratio(float(verdicts.cancelled), span.as_secs_f64());
    report.usage = run.usage(&before, &after, verdicts.cancelled);
    report.spans = verdicts.spans.quantiles();
    // A cancelled task is not lost.
    report.counts.lost = 0;
    report.fact("cancelled", float(verdicts.cancelled));
    report.fact("any other verdict", float(verdicts.others));
    Ok(report)
}

async fn submit_all(
    run: &BenchRun,
    plan: &CancelPlan,
    rest: &RestTarget,
) -> Result<Vec<String>, String> {
    let mut workers = JoinSet::new();
    let connections = plan.connections.max(1);
    for number in 0..connections {
        let (mut connection, ledger) = (rest.open(number).await?, Arc::clone(&run.ledger));
        let count = plan.count / connections + usize::from(number < plan.count % connections);
        workers.spawn(async move {
            let mut ids = Vec::with_capacity(count);
            for _ in 0..count {
                let task = ledger.plan(now() + millis(AHEAD));
                let outcome = connection.submit_one(&task).await;
                let reply = if outcome.is_ok() { Reply::Accepted } else { Reply::Refused };
                ledger.answered(&[task], |_| reply, outcome.as_ref().err().map(String::as_str));
                ids.extend(outcome);
            }
            ids
        });
    }
    Ok(workers.join_all().await.into_iter().flatten().collect())
}

async fn cancel_all(
    ids: Vec<String>,
    connections: usize,
    rest: &RestTarget,
) -> Result<Verdicts, String> {
    let ids = Arc::new(Mutex::new(ids));
    let mut workers = JoinSet::new();
    for number in 0..connections.max(1) {
        let (mut http, ids) = (rest.connection(number)?, Arc::clone(&ids));
        workers.spawn(async move {
            let mut verdicts = Verdicts::default();
            let next = || ids.lock().pop();
            while let Some(id) = next() {
                let sent_at = clock::monotonic();
                let answer =
                    http.call(Method::DELETE, &format!("/v1/tasks/{id}"), Bytes::new()).await;
                let took = clock::monotonic().since(sent_at);
                let is_cancelled = answer.is_ok_and(|answer| answer.status == 200);
                if is_cancelled {
                    verdicts.spans.record(took);
                }
                verdicts.cancelled += u64::from(is_cancelled);
                verdicts.others += u64::from(!is_cancelled);
            }
            verdicts
        });
    }
    let mut all = Verdicts::default();
    for verdicts in workers.join_all().await {
        all.cancelled += verdicts.cancelled;
        all.others += verdicts.others;
        all.spans.add(&verdicts.spans);
    }
    Ok(all)
}
