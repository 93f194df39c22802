//! How late tasks are at a steady rate, while tasks are submitted at the same rate and many others wait; also the soak, which is the same for hours.

use std::time::Duration;

use super::flow::{self, Next};
use super::intake::Intake;
use super::ledger::Range;
use super::number::{float, ratio};
use super::report::Report;
use super::run::{Mark, Run, Setup, fill, millis};

/// The scenario that goes on for hours.
pub const SOAK: &str = "soak";

/// Memory is looked at so often.
const LOOK_EVERY: Duration = Duration::from_secs(10);
/// Where the tasks in the background are due.
const BACKGROUND: std::ops::Range<Duration> = Duration::from_secs(2 * 3600)..Duration::from_secs(26 * 3600);

#[derive(Clone, Debug)]
pub struct Plan {
    /// `lateness` or [`SOAK`].
    pub scenario: &'static str,
    /// Tasks per second, submitted and due.
    pub rate: u32,
    /// What is measured, after the warm-up.
    pub measured: Duration,
    /// Not measured, though tasks are due at the full rate.
    pub warm_up: Duration,
    /// How far ahead tasks are submitted: anything in this range.
    pub ahead: std::ops::Range<Duration>,
    /// At most so many tasks in one call.
    pub call_max: u32,
    pub lanes: usize,
    /// Tasks in the background that are not due during the run.
    pub pending: u64,
}

/// Submits at the rate; measures what is due once tasks are due at the full rate and the warm-up is over.
///
/// # Errors
/// In words, when the scenario cannot be run.
pub async fn lateness<I: Intake>(setup: &Setup, plan: &Plan, intake: &I) -> Result<Report, String> {
    fill(intake, plan.pending, BACKGROUND).await?;
    let run = Run::start(setup, plan.scenario).await?;
    // All submits before `ahead.end` has passed are a ramp: not yet everything that is due then was submitted.
    let from = run.started_at + millis(plan.ahead.end) + millis(plan.warm_up);
    let due = from..from + millis(plan.measured);
    let submits = flow::open_loop(intake, plan.lanes, &run.ledger, submitter(plan, &run, due.end));
    let (answers, looks) = tokio::join!(submits, watch(&run, &due));
    let answers = answers?;
    run.wait_arrived(due.end).await;
    let mut report = run.lateness_report(&settings_of(plan), &due);
    report.rate = ratio(float(report.spans.as_ref().map_or(0, |spans| spans.count)), plan.measured.as_secs_f64());
    if let [first, .., last] = looks.as_slice() {
        report.usage = run.usage(first, last, report.spans.as_ref().map_or(0, |spans| spans.count));
        if plan.scenario == SOAK {
            remember_memory(&mut report, &run, first, last);
        }
    }
    report.fact("answer p50, ms", answers.at(0.5));
    report.fact("answer p99, ms", answers.at(0.99));
    compare_ends(&mut report, &run, &due);
    Ok(report)
}

fn settings_of(plan: &Plan) -> Vec<(&'static str, String)> {
    vec![
        ("rate", plan.rate.to_string()),
        ("measured", format!("{:?}", plan.measured)),
        ("warm-up", format!("{:?}", plan.warm_up)),
        ("ahead", format!("{:?} to {:?}", plan.ahead.start, plan.ahead.end)),
        ("pending", plan.pending.to_string()),
    ]
}

/// Makes the calls: small enough that they come evenly.
fn submitter<'a>(plan: &'a Plan, run: &'a Run, end: i64) -> impl FnMut(Duration) -> Next + 'a {
    let size = (plan.rate / 20).clamp(1, plan.call_max.max(1));
    let interval = Duration::from_secs(u64::from(size)) / plan.rate.max(1);
    let (start, mut call) = (run.started_at, 0_u32);
    move |elapsed| {
        if start + millis(elapsed) >= end {
            return Next::Over;
        }
        if elapsed < interval * call {
            return Next::Wait;
        }
        call += 1;
        let ahead = plan.ahead.start.as_secs_f64()..plan.ahead.end.as_secs_f64().max(plan.ahead.start.as_secs_f64() + 0.001);
        let due_at = |_| start + millis(elapsed + Duration::from_secs_f64(rand::random_range(ahead.clone())));
        Next::Call((0..size).map(due_at).map(|due_at| run.ledger.plan(due_at)).collect())
    }
}

/// Looks at the processes at the beginning and the end of what is measured, and now and then in between.
async fn watch(run: &Run, due: &Range) -> Vec<Mark> {
    let mut looks = Vec::new();
    let mut at = due.start;
    while at < due.end {
        run.wait_until(at).await;
        looks.push(run.mark());
        at += millis(LOOK_EVERY);
    }
    run.wait_until(due.end).await;
    looks.push(run.mark());
    looks
}

fn remember_memory(report: &mut Report, run: &Run, first: &Mark, last: &Mark) {
    for (when, mark) in [("first", first), ("last", last)] {
        for (name, bytes) in run.resident(mark) {
            report.fact(&format!("memory of {name}, {when}, MiB"), float(bytes) / 1_048_576.0);
        }
    }
}

/// The first and the last fifth: what grows shows.
fn compare_ends(report: &mut Report, run: &Run, due: &Range) {
    let fifth = (due.end - due.start) / 5;
    for (name, range) in [("first", due.start..due.start + fifth), ("last", due.end - fifth..due.end)] {
        report.fact(&format!("p99 of the {name} fifth, ms"), run.ledger.lateness(&range).at(0.99));
    }
}
