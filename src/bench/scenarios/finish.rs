//! Measures answers of consumers: finishes per second, and their latency. Each is a request of its
//! own, or many share one. Runs at full speed, or at a rate.

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::Duration;

use az::SaturatingAs as _;
use tokio::task::JoinSet;

use crate::bench::ledger::{Ledger, Planned, Reply};
use crate::bench::load::flow::{self, NextStep};
use crate::bench::load::http::Http;
use crate::bench::load::intake::{CallResult, LoadConnection, LoadTarget};
use crate::bench::load::outcome::{Outcome, finish_all, finish_one};
use crate::bench::load::rest::{RestConnection, RestTarget, TrackedLoad};
use crate::bench::results::quantiles::Spans;
use crate::bench::results::report::BenchReport;
use crate::bench::results::{float_of, ratio};
use crate::bench::run::{BULK_CALL, BULK_LANES, BenchRun, Setup, millis, now, take};
use crate::clock;

/// Time from the submit of a task to its due time.
const LEAD: Duration = Duration::from_secs(1);
/// Time for the settles of the last records: then all tasks await their consumers.
const SETTLE: Duration = Duration::from_secs(3);
/// No time to run ends during the run.
const TRACKING: TrackedLoad =
    TrackedLoad { ttr: Duration::from_secs(4 * 3600), backoff: Duration::ZERO };

#[derive(Clone, Copy, Debug)]
pub struct FinishPlan {
    /// Number of tasks to finish.
    pub count: usize,
    /// Number of tasks at the beginning that are not measured.
    pub warm_up: usize,
    pub connections: usize,
    /// Tasks in one call. A call of one task uses `POST /v1/tasks/{id}/finish`.
    pub call: usize,
    /// Tasks per second. `None` means full speed.
    pub rate: Option<u32>,
}

/// Submits tasks and waits until all of them are published. Then finishes each.
///
/// # Errors
/// Returns the reason as text when the scenario cannot be run.
pub async fn finish(
    setup: &Setup,
    plan: &FinishPlan,
    rest: &RestTarget,
) -> Result<BenchReport, String> {
    let run = BenchRun::start(setup, "finish").await?;
    run.print_line(&format!("submitting {} tasks", plan.count));
    let ids = submit_all(&run, plan.count, &rest.clone().tracked(TRACKING)).await?;
    run.wait_arrived(now() + millis(LEAD)).await;
    clock::sleep(SETTLE).await;
    run.print_line("finishing them");
    let target = Finishes { rest: rest.clone(), ids: ids.into() };
    let finishes = Arc::new(Ledger::new(rand::random(), now()));
    let warm_up = plan.warm_up.min(target.ids.len());
    finish_some(&target, plan, &finishes, 0..warm_up).await?;
    let (before, from) = (run.mark(), finishes.snapshot().accepted_count);
    let started_at = clock::monotonic();
    let spans = finish_some(&target, plan, &finishes, warm_up..target.ids.len()).await?;
    let span = clock::monotonic().since(started_at);
    let after = run.mark();
    let finished = finishes.snapshot().accepted_count - from;
    if finished == 0 {
        return Err(format!("no task was finished: {}", finishes.reason().unwrap_or_default()));
    }
    let mut report = run.report(&[
        ("count", plan.count.to_string()),
        ("connections", plan.connections.to_string()),
        ("tasks in a call", plan.call.to_string()),
        (
            "rate",
            plan.rate.map_or_else(|| "as many as possible".to_owned(), |rate| rate.to_string()),
        ),
        ("warm-up", plan.warm_up.to_string()),
    ]);
    report.measured = "answer to a call".to_owned();
    report.rate = ratio(float_of(finished), span.as_secs_f64());
    report.usage = run.usage(&before, &after, finished.saturating_as());
    report.spans = spans.quantiles();
    report.fact("finished", float_of(finished));
    report.fact("any other answer", float_of(target.ids.len() - warm_up - finished));
    report.reason = report.reason.or_else(|| finishes.reason());
    Ok(report)
}

async fn submit_all(
    run: &BenchRun,
    count: usize,
    rest: &RestTarget,
) -> Result<Vec<String>, String> {
    let left = Arc::new(AtomicU64::new(count.saturating_as()));
    let mut workers = JoinSet::new();
    for number in 0..BULK_LANES {
        let (connection, left, ledger) =
            (rest.open(number).await?, Arc::clone(&left), Arc::clone(&run.ledger));
        workers.spawn(submit_some(connection, left, ledger));
    }
    let mut ids = Vec::with_capacity(count);
    for submitted in workers.join_all().await {
        ids.extend(submitted?);
    }
    Ok(ids)
}

async fn submit_some(
    mut connection: RestConnection,
    left: Arc<AtomicU64>,
    ledger: Arc<Ledger>,
) -> Result<Vec<String>, String> {
    let mut ids = Vec::new();
    loop {
        let count = take(&left, BULK_CALL);
        if count == 0 {
            return Ok(ids);
        }
        let due_at = now() + millis(LEAD);
        let tasks: Vec<Planned> = (0..count).map(|_| ledger.plan(due_at)).collect();
        ids.extend(connection.submit_many(&tasks).await?);
        ledger.answered(&tasks, |_| Reply::Accepted, None);
    }
}

/// Finishes the tasks with these numbers, once each.
async fn finish_some(
    target: &Finishes,
    plan: &FinishPlan,
    ledger: &Arc<Ledger>,
    numbers: Range<usize>,
) -> Result<Spans, String> {
    let (book, call) = (Arc::clone(ledger), plan.call.max(1));
    let left = AtomicU64::new(numbers.len().saturating_as());
    // The tasks are finished in the order of the plan.
    let next = move || {
        let count = take(&left, call);
        (count > 0).then(|| (0..count).map(|_| book.plan(0)).collect::<Vec<Planned>>())
    };
    let Some(rate) = plan.rate else {
        return flow::closed_loop(target, plan.connections, ledger, next).await;
    };
    let interval = Duration::from_secs(call.saturating_as()) / rate.max(1);
    let mut made = 0_u32;
    let next = move |elapsed: Duration| {
        if elapsed < interval * made {
            return NextStep::Wait;
        }
        made += 1;
        next().map_or(NextStep::Over, NextStep::Call)
    };
    flow::open_loop(target, plan.connections, ledger, next).await
}

/// The tasks to finish. The number of a planned call is that of its task.
#[derive(Debug)]
struct Finishes {
    rest: RestTarget,
    ids: Arc<[String]>,
}

impl LoadTarget for Finishes {
    type Connection = FinishConnection;

    async fn open(&self, number: usize) -> Result<FinishConnection, String> {
        Ok(FinishConnection { http: self.rest.connection(number)?, ids: Arc::clone(&self.ids) })
    }
}

#[derive(Debug)]
struct FinishConnection {
    http: Http,
    ids: Arc<[String]>,
}

/// Returns the id of a planned task.
fn id_of<'a>(ids: &'a [String], task: &Planned) -> Result<&'a str, String> {
    let number = (task.key & u64::from(u32::MAX)).saturating_as::<usize>();
    ids.get(number).map(String::as_str).ok_or_else(|| format!("no task {number}"))
}

impl LoadConnection for FinishConnection {
    async fn submit(&mut self, tasks: &[Planned]) -> Result<CallResult, String> {
        if let [task] = tasks {
            let path = format!("/v1/tasks/{}/finish", id_of(&self.ids, task)?);
            return finish_one(&mut self.http, &path, 1).await;
        }
        let outcome = |task| Ok(Outcome::finish(id_of(&self.ids, task)?, 1));
        let outcomes = tasks.iter().map(outcome).collect::<Result<Vec<_>, String>>()?;
        finish_all(&mut self.http, outcomes).await
    }
}
