//! Measures how soon consumers without Kafka get tracked tasks at a steady rate: by `pop`, or by a
//! callback.

use std::sync::Arc;
use std::time::Duration;

use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use super::lateness::{BACKGROUND, LatenessPlan, submitter};
use crate::bench::consumers::Deliveries;
use crate::bench::consumers::pollers::{self, PollersPlan};
use crate::bench::consumers::service::{CalledService, ServicePlan};
use crate::bench::load::flow;
use crate::bench::load::rest::{RestTarget, TrackedLoad};
use crate::bench::results::report::BenchReport;
use crate::bench::results::{float, ratio};
use crate::bench::run::{BenchRun, Setup, fill, millis};
use crate::clock;

/// Deliveries are waited for as long as there was one within this time.
const PATIENCE: Duration = Duration::from_secs(15);
const LOOK_EVERY: Duration = Duration::from_millis(20);
/// Consumers are there before the first task is due. A node joins the consumer group meanwhile.
const LEAD: Duration = Duration::from_secs(5);

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
/// record to its consumer.
///
/// # Errors
/// Returns the reason as text when the scenario cannot be run.
pub async fn without_kafka(
    setup: &Setup,
    plan: &WithoutKafkaPlan,
    rest: &RestTarget,
) -> Result<BenchReport, String> {
    let steady = &plan.steady;
    fill(rest, steady.pending, BACKGROUND).await?;
    let run = BenchRun::start(setup, steady.scenario).await?;
    let from = run.started_at + millis(steady.ahead.end) + millis(steady.warm_up + LEAD);
    let due = from..from + millis(steady.measured);
    let deliveries = Arc::new(Deliveries::new(Arc::clone(&run.ledger), due.clone()));
    let consumers = Consumers::start(&plan.consumers, rest, &deliveries).await?;
    run.wait_until(run.started_at + millis(LEAD)).await;
    let load = rest.clone().tracked(TrackedLoad { ttr: plan.ttr, backoff: Duration::ZERO });
    let submits =
        flow::open_loop(&load, steady.connections, &run.ledger, submitter(steady, &run, due.end));
    let looks = async {
        run.wait_until(due.start).await;
        let before = run.mark();
        run.wait_until(due.end).await;
        (before, run.mark())
    };
    let (answers, (before, after)) = tokio::join!(submits, looks);
    let answers = answers?;
    run.wait_arrived(due.end + millis(steady.ahead.end)).await;
    wait_delivered(&run, &deliveries).await;
    let failure = consumers.end().await?;
    let mut report = run.lateness_report(&settings_of(plan), &due);
    let count = report.spans.as_ref().map_or(0, |spans| spans.count);
    report.rate = ratio(float(count), steady.measured.as_secs_f64());
    report.usage = run.usage(&before, &after, count);
    report.fact("answer to a submit, p99, ms", answers.at(0.99));
    deliveries.add_to(&mut report);
    report.reason = report.reason.or(failure);
    Ok(report)
}

fn settings_of(plan: &WithoutKafkaPlan) -> Vec<(&'static str, String)> {
    let steady = &plan.steady;
    let mut settings = vec![
        ("rate", steady.rate.to_string()),
        ("measured", format!("{:?}", steady.measured)),
        ("warm-up", format!("{:?}", steady.warm_up)),
        ("ahead", format!("{:?} to {:?}", steady.ahead.start, steady.ahead.end)),
        ("pending", steady.pending.to_string()),
        ("ttr", format!("{:?}", plan.ttr)),
    ];
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

async fn wait_delivered(run: &BenchRun, deliveries: &Deliveries) {
    let (mut seen, mut seen_at) = (deliveries.count(), clock::monotonic());
    while seen < run.ledger.snapshot().accepted_count
        && clock::monotonic().since(seen_at) < PATIENCE
    {
        clock::sleep(LOOK_EVERY).await;
        let count = deliveries.count();
        if count != seen {
            (seen, seen_at) = (count, clock::monotonic());
        }
    }
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
    async fn end(self) -> Result<Option<String>, String> {
        match self {
            Self::Pollers(pollers, ending) => {
                ending.cancel();
                Ok(pollers.join_all().await.into_iter().flatten().next())
            }
            Self::Service(service) => service.end().await.map(|()| None),
        }
    }
}
