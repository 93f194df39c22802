//! Measures how soon consumers without Kafka get tracked tasks at a steady rate: by `pop`, or by a
//! callback.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use super::lateness::{self, BACKGROUND, LatenessPlan, submitter};
use crate::bench::consumers::Deliveries;
use crate::bench::consumers::pollers::{self, PollersPlan};
use crate::bench::consumers::service::{CalledService, ServicePlan};
use crate::bench::ledger::Reply;
use crate::bench::load::flow;
use crate::bench::load::intake::LoadTarget as _;
use crate::bench::load::rest::{RestTarget, TrackedLoad};
use crate::bench::results::report::BenchReport;
use crate::bench::results::{float, ratio};
use crate::bench::run::{BenchRun, Setup, fill, millis, now};
use crate::clock;
use crate::kafka::ReadMode;

const POLL_INTERVAL: Duration = Duration::from_millis(20);
/// The first task is delivered within this time.
const READY_DEADLINE: Duration = Duration::from_secs(120);

#[derive(Clone, Debug)]
pub struct WithoutKafkaPlan {
    pub steady: LatenessPlan,
    pub ttr: Duration,
    pub consumers: ConsumersPlan,
}

#[derive(Clone, Debug)]
pub enum ConsumersPlan {
    Pop(PollersPlan),
    Callback(ServicePlan),
}

/// Consumers that take tasks until they are ended.
enum Consumers {
    Pollers(JoinSet<Option<String>>, CancellationToken),
    Service(CalledService),
}

/// Submits tasks at the rate, and takes them without Kafka. Measures the time from the append of a
/// record to its consumer, of the tasks due after the ramp and the warm-up.
///
/// # Errors
/// Returns the reason as text when the scenario cannot be run.
pub async fn without_kafka(
    setup: &Setup,
    plan: &WithoutKafkaPlan,
    rest: &RestTarget,
) -> Result<BenchReport, String> {
    fill(rest, plan.steady.pending, BACKGROUND).await?;
    let later_attempts = Arc::new(AtomicU64::new(0));
    let counted = Arc::clone(&later_attempts);
    let run = BenchRun::reading(
        setup,
        plan.steady.scenario,
        ReadMode::BulkWithHeaders,
        move |ledger, record| match record.attempt {
            Some(attempt) if attempt.number > 1 => _ = counted.fetch_add(1, Ordering::Relaxed),
            _ => ledger.arrived(record.key, record.at),
        },
    )
    .await?;
    let deliveries = Arc::new(Deliveries::new(Arc::clone(&run.ledger)));
    let consumers = Consumers::start(&plan.consumers, rest, &deliveries).await?;
    let load = rest.clone().tracked(TrackedLoad { ttr: plan.ttr, backoff: Duration::ZERO });
    let measured = measure(&run, plan, &load, &deliveries).await;
    // Also after a failure: a callback must not stay.
    let failure = consumers.end().await;
    let mut report = measured?;
    report.reason = report.reason.or(failure);
    report.fact("attempts after the first", float(later_attempts.load(Ordering::Relaxed)));
    Ok(report)
}

async fn measure(
    run: &BenchRun,
    plan: &WithoutKafkaPlan,
    load: &RestTarget,
    deliveries: &Deliveries,
) -> Result<BenchReport, String> {
    let steady = &plan.steady;
    wait_for_consumers(run, load, deliveries).await?;
    let start = now();
    let from = start + millis(steady.ahead.end) + millis(steady.warm_up);
    let due = from..from + millis(steady.measured);
    let next = submitter(steady, run, start..due.end);
    let submits = flow::open_loop(load, steady.connections, &run.ledger, next);
    let (answers, (before, after)) = tokio::join!(submits, run.marks(&due));
    let answers = answers?;
    run.wait_arrived(due.end + millis(steady.ahead.end)).await;
    let missing = || deliveries.missing_count(&(i64::MIN..i64::MAX));
    run.wait_while("have not been delivered", missing, || deliveries.count()).await;
    let mut report = run.lateness_report(&settings_of(plan), &due);
    deliveries.add_to(&mut report, &due);
    let count = report.spans.as_ref().map_or(0, |spans| spans.count);
    report.rate = ratio(float(count), steady.measured.as_secs_f64());
    report.usage = run.usage(&before, &after, count);
    report.fact("answer to a submit, p99, ms", answers.at(0.99));
    Ok(report)
}

/// Submits a task, and waits until it is delivered: a node has joined the consumer group, and has
/// read what the topic had before.
async fn wait_for_consumers(
    run: &BenchRun,
    load: &RestTarget,
    deliveries: &Deliveries,
) -> Result<(), String> {
    let task = run.ledger.plan(now());
    load.open(0).await?.submit_one(&task).await?;
    run.ledger.answered(&[task], |_| Reply::Accepted, None);
    run.print_line("waiting for the first delivery");
    let started_at = clock::monotonic();
    while deliveries.count() == 0 {
        if clock::monotonic().since(started_at) > READY_DEADLINE {
            return Err(format!("no consumer got a task within {READY_DEADLINE:?}"));
        }
        clock::sleep(POLL_INTERVAL).await;
    }
    Ok(())
}

fn settings_of(plan: &WithoutKafkaPlan) -> Vec<(&'static str, String)> {
    let mut settings = lateness::settings_of(&plan.steady);
    settings.push(("ttr", format!("{:?}", plan.ttr)));
    match &plan.consumers {
        ConsumersPlan::Pop(plan) => settings.extend([
            ("pollers", plan.pollers.to_string()),
            ("tasks in an answer, at most", plan.max.to_string()),
        ]),
        ConsumersPlan::Callback(plan) => {
            settings.push(("concurrency", plan.concurrency.to_string()));
        }
    }
    settings
}

impl Consumers {
    async fn start(
        plan: &ConsumersPlan,
        rest: &RestTarget,
        deliveries: &Arc<Deliveries>,
    ) -> Result<Self, String> {
        match plan {
            ConsumersPlan::Pop(plan) => {
                let ending = CancellationToken::new();
                let pollers = pollers::start(plan, rest, deliveries, &ending)?;
                Ok(Self::Pollers(pollers, ending))
            }
            ConsumersPlan::Callback(plan) => {
                CalledService::start(plan, rest, deliveries).await.map(Self::Service)
            }
        }
    }

    /// Ends the consumers. Returns the reason of the first failed call.
    async fn end(self) -> Option<String> {
        match self {
            Self::Pollers(pollers, ending) => {
                ending.cancel();
                let failed = pollers.join_all().await.into_iter().flatten().next();
                failed.map(|reason| format!("pop: {reason}"))
            }
            Self::Service(service) => {
                service.end().await.err().map(|reason| format!("end the callback: {reason}"))
            }
        }
    }
}
