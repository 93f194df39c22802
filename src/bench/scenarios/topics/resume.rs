//! Measures the resume of a paused topic: how fast its tasks are published, and how late the tasks
//! of another topic are meanwhile.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use az::SaturatingAs as _;
use bytes::Bytes;
use hyper::Method;

use super::check_plain;
use crate::bench::load::flow::{self, NextStep};
use crate::bench::load::rest::{RestTarget, json, told};
use crate::bench::results::report::BenchReport;
use crate::bench::results::{float, ratio};
use crate::bench::run::{BenchRun, Mark, Setup, millis, now, submit_all};
use crate::bench::scenarios::lateness::{self, LatenessPlan, submitter};
use crate::domain::TopicName;

#[derive(Clone, Debug)]
pub struct ResumePlan {
    pub paused_topic: TopicName,
    /// Number of tasks that wait in the paused topic.
    pub count: u64,
    /// Minimum duration of the pause.
    pub pause: Duration,
    /// The load of the other topic. It is measured for `steady.measured` before the resume, and
    /// until the paused topic has all its records.
    pub steady: LatenessPlan,
}

/// The time in which the tasks of the resumed topic were published.
struct Release {
    resumed_at: i64,
    marks: (Mark, Mark),
}

/// Pauses a topic, stores tasks that are due at once, and resumes the topic. `paused` submits to
/// it, and `rest` to the other topic.
///
/// # Errors
/// Returns the reason as text when the paused topic has a policy or is paused already, or the
/// scenario cannot be run.
pub async fn resume(
    setup: &Setup,
    plan: &ResumePlan,
    (rest, paused): (&RestTarget, &RestTarget),
) -> Result<BenchReport, String> {
    let of_paused = Setup { topics: vec![plan.paused_topic.clone()], ..setup.clone() };
    let held = BenchRun::start(&of_paused, "paused topic").await?;
    check_plain(rest, &plan.paused_topic).await?;
    set_paused(rest, plan, "pause").await?;
    let measured = measure(setup, plan, &held, (rest, paused)).await;
    // Also after a failure: the topic must not stay paused.
    if measured.is_err()
        && let Err(failure) = set_paused(rest, plan, "resume").await
    {
        held.print_line(&format!("{} stays paused: {failure}", plan.paused_topic));
    }
    measured
}

async fn measure(
    setup: &Setup,
    plan: &ResumePlan,
    held: &BenchRun,
    (rest, paused): (&RestTarget, &RestTarget),
) -> Result<BenchReport, String> {
    let paused_at = now();
    submit_all(paused, &held.ledger, plan.count, now).await?;
    held.print_line("all tasks are stored");
    held.wait_until(paused_at + millis(plan.pause)).await;
    let early = held.ledger.snapshot().arrived_count;
    let run = BenchRun::start(setup, plan.steady.scenario).await?;
    let start = now();
    let from = start + millis(plan.steady.ahead.end) + millis(plan.steady.warm_up);
    let before = from..from + millis(plan.steady.measured);
    let is_over = AtomicBool::new(false);
    let mut paced = submitter(&plan.steady, &run, start..i64::MAX);
    let next = |elapsed| match is_over.load(Ordering::Relaxed) {
        true => NextStep::Over,
        false => paced(elapsed),
    };
    let submits = flow::open_loop(rest, plan.steady.connections, &run.ledger, next);
    let releasing = async {
        run.wait_until(before.end).await;
        let released = release(held, plan, rest).await;
        is_over.store(true, Ordering::Relaxed);
        released
    };
    let (answers, released) = tokio::join!(submits, releasing);
    let (answers, Release { resumed_at, marks }) = (answers?, released?);
    run.wait_arrived(now() + millis(plan.steady.ahead.end)).await;
    let appends = held.ledger.snapshot();
    let (first, last) = appends.first_at.zip(appends.last_at).ok_or("no task was published")?;
    let mut report =
        run.lateness_report(&settings_of(plan), &(resumed_at..last.max(resumed_at) + 1));
    report.counts = run.ledger.counts().and(held.ledger.counts());
    let since = |at: i64| float(u64::try_from(at - resumed_at).unwrap_or(0));
    report.rate = ratio(float(plan.count) * 1000.0, since(last).max(1.0));
    report.usage = run.usage(&marks.0, &marks.1, plan.count);
    let quiet = run.ledger.lateness(&before);
    report.fact("p50 before the resume, ms", quiet.at(0.5));
    report.fact("p99 before the resume, ms", quiet.at(0.99));
    report.fact("resume to first append, ms", since(first));
    report.fact("resume to last append, ms", since(last));
    report.fact("published while paused", float(early.saturating_as::<u64>()));
    report.fact("answer to a submit, p99, ms", answers.at(0.99));
    Ok(report)
}

/// Resumes the topic, and waits until it has all its records.
async fn release(held: &BenchRun, plan: &ResumePlan, rest: &RestTarget) -> Result<Release, String> {
    let before = held.mark();
    let resumed_at = now();
    set_paused(rest, plan, "resume").await?;
    held.wait_arrived(resumed_at).await;
    Ok(Release { resumed_at, marks: (before, held.mark()) })
}

async fn set_paused(rest: &RestTarget, plan: &ResumePlan, call: &str) -> Result<(), String> {
    let path = format!("/v1/topics/{}/{call}", plan.paused_topic);
    let body: Bytes = json(&serde_json::json!({ "reason": "punctual bench resume" }))?;
    let answer = rest.connection(0)?.call(Method::POST, &path, body).await?;
    if answer.status == 200 { Ok(()) } else { Err(format!("{call}: {}", told(&answer))) }
}

fn settings_of(plan: &ResumePlan) -> Vec<(&'static str, String)> {
    let mut settings = lateness::settings_of(&plan.steady);
    settings.extend([
        ("tasks of the paused topic", plan.count.to_string()),
        ("pause at least", format!("{:?}", plan.pause)),
    ]);
    settings
}
