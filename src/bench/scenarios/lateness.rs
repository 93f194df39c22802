//! Measures lateness at a steady rate, while tasks are submitted at the same rate and many others
//! are pending. The soak is the same scenario over hours.

use std::collections::BTreeMap;
use std::ops::Range;
use std::time::Duration;

use az::SaturatingAs as _;

use crate::bench::ledger;
use crate::bench::load::flow::{self, NextStep};
use crate::bench::load::intake::LoadTarget;
use crate::bench::results::report::BenchReport;
use crate::bench::results::{float, ratio};
use crate::bench::run::{BenchRun, Mark, Setup, fill, millis, now, submit_all};

/// The name of the scenario that runs for hours.
pub const SOAK: &str = "soak";

/// Number of records that each of many topics gets before the measurement, more than 4 KiB: the
/// broker stalls for seconds when many partitions get the first entry of their index.
const RECORDS_BEFORE: u64 = 24;
/// Interval at which memory is sampled.
const POLL_INTERVAL: Duration = Duration::from_secs(5);
/// How far ahead the background tasks are due.
pub(super) const BACKGROUND: Range<Duration> =
    Duration::from_secs(2 * 3600)..Duration::from_secs(26 * 3600);

#[derive(Clone, Debug)]
pub struct LatenessPlan {
    /// `lateness` or [`SOAK`].
    pub scenario: &'static str,
    /// Tasks per second, submitted and due.
    pub rate: u32,
    /// Duration of the measurement, after the warm-up.
    pub measured: Duration,
    /// Duration of the warm-up. Tasks are due at the full rate, but are not measured.
    pub warm_up: Duration,
    /// How far ahead tasks are submitted, at random in this range.
    pub ahead: Range<Duration>,
    /// Maximum number of tasks in one call.
    pub call_max: u32,
    pub connections: usize,
    /// Number of background tasks that are not due during the run.
    pub pending: u64,
}

/// Submits tasks at the rate. Measures the tasks due after the ramp and the warm-up.
///
/// # Errors
/// Returns the reason as text when the scenario cannot be run.
pub async fn lateness<I: LoadTarget>(
    setup: &Setup,
    plan: &LatenessPlan,
    intake: &I,
) -> Result<BenchReport, String> {
    fill(intake, plan.pending, BACKGROUND).await?;
    let run = BenchRun::start(setup, plan.scenario).await?;
    if setup.topics.len() > 1 {
        fill_topics(&run, setup.topics.len().saturating_as(), intake).await?;
    }
    let start = now();
    // The time until `ahead.end` is a ramp: the tasks due then are not all submitted yet.
    let from = start + millis(plan.ahead.end) + millis(plan.warm_up);
    let due = from..from + millis(plan.measured);
    let next = submitter(plan, &run, start..due.end);
    let submits = flow::open_loop(intake, plan.connections, &run.ledger, next);
    let (answers, looks) = tokio::join!(submits, watch(&run, &due));
    let answers = answers?;
    run.wait_arrived(due.end).await;
    let mut report = run.lateness_report(&settings_of(plan), &due);
    report.rate = ratio(
        float(report.spans.as_ref().map_or(0, |spans| spans.count)),
        plan.measured.as_secs_f64(),
    );
    if let [first, .., last] = looks.as_slice() {
        report.usage = run.usage(first, last, report.spans.as_ref().map_or(0, |spans| spans.count));
    }
    report.fact("answer p50, ms", answers.at(0.5));
    report.fact("answer p99, ms", answers.at(0.99));
    compare_spans(&mut report, &run, (plan.scenario, plan.measured), &due);
    if plan.scenario == SOAK {
        compare_memory(&mut report, &run, plan.measured, &looks);
    }
    Ok(report)
}

/// Publishes [`RECORDS_BEFORE`] records to each topic of a run, and waits for them.
async fn fill_topics<I: LoadTarget>(
    run: &BenchRun,
    topic_count: u64,
    intake: &I,
) -> Result<(), String> {
    submit_all(intake, &run.ledger, topic_count * RECORDS_BEFORE, now).await?;
    run.wait_arrived(now()).await;
    let arrived = run.ledger.snapshot().arrived_count.saturating_as::<u64>();
    if arrived < topic_count * RECORDS_BEFORE {
        let reason = run.ledger.reason().unwrap_or_default();
        return Err(format!("only {arrived} records have filled {topic_count} topics: {reason}"));
    }
    Ok(())
}

/// Returns the settings of a steady rate, for the report.
pub(in crate::bench) fn settings_of(plan: &LatenessPlan) -> Vec<(&'static str, String)> {
    vec![
        ("rate", plan.rate.to_string()),
        ("measured", format!("{:?}", plan.measured)),
        ("warm-up", format!("{:?}", plan.warm_up)),
        ("ahead", format!("{:?} to {:?}", plan.ahead.start, plan.ahead.end)),
        ("pending", plan.pending.to_string()),
    ]
}

/// Splits the tasks into calls that are small enough to arrive evenly. They are submitted within a
/// range of time.
pub(in crate::bench) fn submitter<'a>(
    plan: &'a LatenessPlan,
    run: &'a BenchRun,
    range: Range<i64>,
) -> impl FnMut(Duration) -> NextStep + 'a {
    let size = (plan.rate / 20).clamp(1, plan.call_max.max(1));
    let interval = Duration::from_secs(u64::from(size)) / plan.rate.max(1);
    let (start, mut call) = (range.start, 0_u32);
    move |elapsed| {
        if start + millis(elapsed) >= range.end {
            return NextStep::Over;
        }
        if elapsed < interval * call {
            return NextStep::Wait;
        }
        call += 1;
        let ahead = plan.ahead.start.as_secs_f64()
            ..plan.ahead.end.as_secs_f64().max(plan.ahead.start.as_secs_f64() + 0.001);
        let due_at = |_| {
            start + millis(elapsed + Duration::from_secs_f64(rand::random_range(ahead.clone())))
        };
        NextStep::Call((0..size).map(due_at).map(|due_at| run.ledger.plan(due_at)).collect())
    }
}

/// Samples the processes at the start and the end of the measurement, and every few seconds in
/// between.
async fn watch(run: &BenchRun, due: &ledger::Range) -> Vec<Mark> {
    let mut looks = Vec::new();
    let mut at = due.start;
    while at < due.end {
        run.wait_until(at).await;
        looks.push(run.mark());
        at += millis(POLL_INTERVAL);
    }
    run.wait_until(due.end).await;
    looks.push(run.mark());
    looks
}

/// Returns the named parts of a measurement that the report compares, so growth is visible: the
/// first fifth and the last. A soak is compared by sixths: the first, the second (it has settled in
/// by then) and the last. For half an hour these are the minutes 0 to 5, 5 to 10 and 25 to 30.
pub fn spans(scenario: &str, measured: Duration) -> Vec<(&'static str, Range<Duration>)> {
    if scenario == SOAK {
        let sixth = measured / 6;
        let (first, second) = (Duration::ZERO..sixth, sixth..sixth * 2);
        return vec![
            ("first sixth", first),
            ("second sixth", second),
            ("last sixth", measured - sixth..measured),
        ];
    }
    let fifth = measured / 5;
    vec![("first fifth", Duration::ZERO..fifth), ("last fifth", measured - fifth..measured)]
}

/// Adds the lateness of the compared parts of a measurement to the report.
pub(in crate::bench) fn compare_spans(
    report: &mut BenchReport,
    run: &BenchRun,
    (scenario, measured): (&str, Duration),
    due: &ledger::Range,
) {
    for (name, range) in spans(scenario, measured) {
        let dues = due.start + millis(range.start)..due.start + millis(range.end);
        report.fact(&format!("p99 of the {name}, ms"), run.ledger.lateness(&dues).at(0.99));
    }
}

/// Adds the memory in the compared parts of a soak to the report.
fn compare_memory(report: &mut BenchReport, run: &BenchRun, measured: Duration, looks: &[Mark]) {
    for (name, range) in spans(SOAK, measured) {
        let times = (0_u32..).map(|number| POLL_INTERVAL * number);
        let within: Vec<&Mark> =
            times.zip(looks).filter(|(at, _)| range.contains(at)).map(|(_, look)| look).collect();
        remember_memory(report, run, name, &within);
    }
}

/// Adds the mean memory of the samples to the report.
fn remember_memory(report: &mut BenchReport, run: &BenchRun, when: &str, looks: &[&Mark]) {
    let mut sums: BTreeMap<String, (f64, f64)> = BTreeMap::new();
    for (name, bytes) in looks.iter().flat_map(|look| run.resident(look)) {
        let (sum, count) = sums.entry(name).or_default();
        (*sum, *count) = (*sum + float(bytes), *count + 1.0);
    }
    for (name, (sum, count)) in sums {
        report
            .fact(&format!("memory of {name} in the {when}, MiB"), ratio(sum, count) / 1_048_576.0);
    }
}
