//! Measures how evenly a topic with a spread publishes many tasks that ask for one instant.

use std::time::Duration;

use az::SaturatingAs as _;
use bytes::Bytes;
use hyper::Method;

use super::check_plain;
use crate::bench::load::rest::{RestTarget, json, told};
use crate::bench::results::report::BenchReport;
use crate::bench::results::{float, ratio};
use crate::bench::run::{BenchRun, Setup, millis, now, submit_all};
use crate::clock;
use crate::domain::TopicName;

/// All nodes use a policy within two seconds.
const POLICY_IN_USE: Duration = Duration::from_secs(3);
/// The number of parts of the spread whose records are counted.
const PARTS: u64 = 20;

#[derive(Clone, Debug)]
pub struct SpreadPlan {
    pub topic: TopicName,
    pub count: u64,
    /// Time from the first submit to the instant.
    pub lead: Duration,
    pub spread: Duration,
}

/// Gives the topic a policy with the spread, submits all tasks for one instant, and waits for the
/// last record. Takes the policy away again.
///
/// # Errors
/// Returns the reason as text when the topic has a policy or is paused, or the scenario cannot be
/// run.
pub async fn spread(
    setup: &Setup,
    plan: &SpreadPlan,
    rest: &RestTarget,
) -> Result<BenchReport, String> {
    let run = BenchRun::start(setup, "spread").await?;
    let policy = json(&serde_json::json!({ "spread": format!("{}ms", millis(plan.spread)) }))?;
    check_plain(rest, &plan.topic).await?;
    policy_call(plan, rest, Method::PUT, policy).await?;
    let measured = measure(&run, plan, rest).await;
    // Also after a failure: the policy must not stay.
    let removed = policy_call(plan, rest, Method::DELETE, Bytes::new()).await;
    let report = measured?;
    removed.map(|()| report)
}

async fn measure(
    run: &BenchRun,
    plan: &SpreadPlan,
    rest: &RestTarget,
) -> Result<BenchReport, String> {
    clock::sleep(POLICY_IN_USE).await;
    let instant = now() + millis(plan.lead);
    submit_all(rest, &run.ledger, plan.count, move || instant).await?;
    if now() > instant {
        return Err(format!(
            "not all tasks were stored before the instant: --lead must be longer than {:?}",
            plan.lead
        ));
    }
    let end = instant + millis(plan.spread);
    let (before, after) = run.marks(&(instant..end)).await;
    run.wait_arrived(end).await;
    let settings = [
        ("count", plan.count.to_string()),
        ("lead", format!("{:?}", plan.lead)),
        ("spread", format!("{:?}", plan.spread)),
    ];
    let mut report = run.report(&settings);
    report.series = run.ledger.appends(1_000);
    report.usage = run.usage(&before, &after, report.counts.arrived);
    report.rate = ratio(float(report.counts.arrived), plan.spread.as_secs_f64());
    let appends = run.ledger.appended_within(&(instant..end), PARTS.saturating_as());
    let mean = float(report.counts.arrived) / float(PARTS);
    let percent = |count: Option<&u64>| ratio(float(count.copied().unwrap_or(0)) * 100.0, mean);
    report.fact("fewest in a twentieth, % of mean", percent(appends.iter().min()));
    report.fact("most in a twentieth, % of mean", percent(appends.iter().max()));
    let last = run.ledger.snapshot().last_at.unwrap_or(end);
    report.fact("last after the spread, ms", float(u64::try_from(last - end).unwrap_or(0)));
    Ok(report)
}

async fn policy_call(
    plan: &SpreadPlan,
    rest: &RestTarget,
    method: Method,
    body: Bytes,
) -> Result<(), String> {
    let path = format!("/v1/topics/{}/policy", plan.topic);
    let answer = rest.connection(0)?.call(method, &path, body).await?;
    if (200..300).contains(&answer.status) { Ok(()) } else { Err(told(&answer)) }
}
