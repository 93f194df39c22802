//! Measures tracked tasks at a steady rate, with a consumer that finishes them. Some are left
//! unfinished, and come a second time: then the lateness of that attempt is measured.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::mpsc;
use tokio::task::JoinSet;

use super::lateness::{self, BACKGROUND, LatenessPlan, submitter};
use crate::bench::ledger::{Ledger, Planned, Reply, written};
use crate::bench::load::flow;
use crate::bench::load::http::Http;
use crate::bench::load::intake::CallResult;
use crate::bench::load::outcome::finish_one;
use crate::bench::load::rest::{RestTarget, TrackedLoad};
use crate::bench::results::quantiles::Spans;
use crate::bench::results::report::BenchReport;
use crate::bench::results::{float, float_of, ratio};
use crate::bench::run::{BenchRun, Setup, fill, millis, now};
use crate::clock;
use crate::domain::Monotonic;
use crate::kafka::{Appended, ReadMode};

/// A next attempt is due at least so long after the time to run: the window of a cluster, unless it
/// was changed.
const WINDOW: Duration = Duration::from_millis(200);
/// Records that wait for a connection of the consumer.
const QUEUE_MAX: usize = 100_000;
/// Time for the last answers of the consumer.
const PATIENCE: Duration = Duration::from_secs(15);
const POLL_INTERVAL: Duration = Duration::from_millis(20);

#[derive(Clone, Debug)]
pub struct TrackedPlan {
    pub steady: LatenessPlan,
    /// `None` for untracked tasks with the same reader, to compare with.
    pub tracking: Option<TrackedLoad>,
    /// Connections of the consumer.
    pub consumers: usize,
    /// Time from the arrival of a record to the finish.
    pub work: Duration,
    /// The number of tasks in a hundred that are not finished at their first attempt.
    pub unfinished_percent: u64,
}

/// The consumer, as the thread that reads the topic sees it.
struct Consumer {
    plan: TrackedPlan,
    queue: mpsc::Sender<Received>,
    second: Arc<SecondAttempts>,
    /// Records in the queue, or being answered.
    open: Arc<AtomicUsize>,
}

/// A record that the consumer is to finish.
#[derive(Debug)]
struct Received {
    path: String,
    attempt: u16,
    arrived_at: Monotonic,
}

/// The tasks whose first attempt was left unfinished. Both ledgers have the same plans.
#[derive(Debug)]
struct SecondAttempts {
    /// By the append times of the second attempts.
    appended: Ledger,
    /// By the times at which the consumer got them.
    consumed: Ledger,
    /// By the keys of the records.
    planned: Mutex<HashMap<Vec<u8>, Planned>>,
    /// Second attempts of tasks whose first one was to be finished.
    others: AtomicUsize,
}

/// The answers that the consumer got.
#[derive(Debug, Default)]
struct Finished {
    spans: Spans,
    refused: u64,
}

/// Submits tasks at the rate, and finishes them as they come. Measures the tasks due after the ramp
/// and the warm-up.
///
/// # Errors
/// Returns the reason as text when the scenario cannot be run.
pub async fn tracked(
    setup: &Setup,
    plan: &TrackedPlan,
    rest: &RestTarget,
) -> Result<BenchReport, String> {
    let steady = &plan.steady;
    fill(rest, steady.pending, BACKGROUND).await?;
    let (queue, received) = mpsc::channel(QUEUE_MAX);
    let second = Arc::new(SecondAttempts::new());
    let open = Arc::new(AtomicUsize::new(0));
    let consumer = Consumer {
        plan: plan.clone(),
        queue,
        second: Arc::clone(&second),
        open: Arc::clone(&open),
    };
    let workers = start_workers(plan, rest, received, &open)?;
    let run = BenchRun::reading(setup, steady.scenario, ReadMode::Prompt, move |ledger, record| {
        consumer.take(ledger, record);
    })
    .await?;
    let load = match plan.tracking {
        Some(tracking) => rest.clone().tracked(tracking),
        None => rest.clone(),
    };
    let from = run.started_at + millis(steady.ahead.end) + millis(steady.warm_up);
    let due = from..from + millis(steady.measured);
    let submits = flow::open_loop(
        &load,
        steady.connections,
        &run.ledger,
        submitter(steady, &run, run.started_at..due.end),
    );
    let (answers, (before, after)) = tokio::join!(submits, run.marks(&due));
    let answers = answers?;
    // The tasks that are due after the measurement are finished, too, so that none is left.
    run.wait_arrived(due.end + millis(steady.ahead.end)).await;
    run.wait_for(&second.appended, now() + silence(plan) + 1).await;
    let begun_at = clock::monotonic();
    while open.load(Ordering::Relaxed) > 0 && clock::monotonic().since(begun_at) < PATIENCE {
        clock::sleep(POLL_INTERVAL).await;
    }
    let mut report = run.lateness_report(&settings_of(plan), &due);
    let count = report.spans.as_ref().map_or(0, |spans| spans.count);
    report.rate = ratio(float(count), steady.measured.as_secs_f64());
    report.usage = run.usage(&before, &after, count);
    report.fact("answer to a submit, p99, ms", answers.at(0.99));
    report.fact("not answered", float_of(open.load(Ordering::Relaxed)));
    // The reader holds the queue, and the workers end with it.
    drop(run);
    let mut finished = Finished::default();
    for worker in workers.join_all().await {
        finished.spans.add(&worker.spans);
        finished.refused += worker.refused;
    }
    report.fact("record to finished, p50, ms", finished.spans.at(0.5));
    report.fact("record to finished, p99, ms", finished.spans.at(0.99));
    report.fact("any other answer", float(finished.refused));
    second.add_to(&mut report, plan, &due);
    Ok(report)
}

fn settings_of(plan: &TrackedPlan) -> Vec<(&'static str, String)> {
    let tracking = match plan.tracking {
        Some(TrackedLoad { ttr, backoff }) => format!("ttr {ttr:?}, back-off {backoff:?}"),
        None => "no".to_owned(),
    };
    let mut settings = lateness::settings_of(&plan.steady);
    settings.extend([
        ("tracked", tracking),
        ("work", format!("{:?}", plan.work)),
        ("unfinished", format!("{} %", plan.unfinished_percent)),
    ]);
    settings
}

/// Returns the milliseconds from the append of an unfinished attempt to the due time of the next.
fn silence(plan: &TrackedPlan) -> i64 {
    plan.tracking.map_or(0, |tracking| millis(tracking.ttr + tracking.backoff.max(WINDOW)))
}

impl Consumer {
    /// Takes in a record. The thread of the reader calls it, so it never waits.
    fn take(&self, ledger: &Ledger, record: Appended<'_>) {
        let Some(attempt) = record.attempt else {
            return ledger.arrived(record.key, record.at);
        };
        if attempt.number == 1 {
            ledger.arrived(record.key, record.at);
            if self.is_unfinished(record.key) {
                return self.second.foresee(record.key, record.at + silence(&self.plan));
            }
        } else {
            self.second.arrived(record.key, record.at, now());
        }
        let received = Received {
            path: format!("/v1/tasks/{}/finish", attempt.task_id),
            attempt: attempt.number,
            arrived_at: clock::monotonic(),
        };
        self.open.fetch_add(1, Ordering::Relaxed);
        // A record without room stays open, and the report says so.
        if self.queue.try_send(received).is_err() {
            tracing::debug!("the consumer has no room for a record");
        }
    }

    /// The key ends with the number of the task.
    fn is_unfinished(&self, key: &[u8]) -> bool {
        let number =
            key.len().checked_sub(8).and_then(|start| std::str::from_utf8(&key[start..]).ok());
        let number = number.and_then(|digits| u64::from_str_radix(digits, 16).ok());
        number.is_some_and(|number| number % 100 < self.plan.unfinished_percent)
    }
}

impl SecondAttempts {
    fn new() -> Self {
        let (run, started_at) = (rand::random(), now());
        Self {
            appended: Ledger::new(run, started_at),
            consumed: Ledger::new(run, started_at),
            planned: Mutex::default(),
            others: AtomicUsize::new(0),
        }
    }

    fn foresee(&self, key: &[u8], due_at: i64) {
        let mut planned = self.planned.lock();
        let second = [&self.appended, &self.consumed].map(|ledger| {
            let task = ledger.plan(due_at);
            ledger.answered(&[task], |_| Reply::Accepted, None);
            task
        });
        planned.insert(key.to_vec(), second[0]);
    }

    fn arrived(&self, key: &[u8], appended_at: i64, consumed_at: i64) {
        match self.planned.lock().get(key) {
            Some(task) => {
                self.appended.arrived(&written(task.key), appended_at);
                self.consumed.arrived(&written(task.key), consumed_at);
            }
            None => {
                self.others.fetch_add(1, Ordering::Relaxed);
            }
        }
    }

    /// Adds the second attempts to the report. If there are any, their distribution takes the place
    /// of that of the first ones.
    fn add_to(&self, report: &mut BenchReport, plan: &TrackedPlan, first: &std::ops::Range<i64>) {
        report.fact("attempts after a finish", float_of(self.others.load(Ordering::Relaxed)));
        if plan.tracking.is_none() || plan.unfinished_percent == 0 {
            return;
        }
        let later = silence(plan);
        let due = first.start + later..first.end + later;
        let counts = self.appended.counts();
        report.counts.early += counts.early;
        report.counts.lost += counts.lost;
        report.counts.duplicates += counts.duplicates;
        if let Some(spans) = &report.spans {
            let facts = [("p50", spans.p50), ("p99", spans.p99), ("max", spans.max)];
            for (name, value) in facts {
                report
                    .facts
                    .insert(format!("append - due of the first attempt, {name}, ms"), value);
            }
        }
        let appended = self.appended.lateness(&due);
        for (name, share) in [("p50", 0.5), ("p99", 0.99), ("p99.9", 0.999), ("max", 1.0)] {
            let name = format!("append - due of the second attempt, {name}, ms");
            report.fact(&name, appended.at(share));
        }
        report.measured = "second attempt at its consumer - due".to_owned();
        report.spans = self.consumed.lateness(&due).quantiles();
        report.series = self.consumed.series(&due, 1000);
    }
}

fn start_workers(
    plan: &TrackedPlan,
    rest: &RestTarget,
    received: mpsc::Receiver<Received>,
    open: &Arc<AtomicUsize>,
) -> Result<JoinSet<Finished>, String> {
    let received = Arc::new(tokio::sync::Mutex::new(received));
    let mut workers = JoinSet::new();
    for number in 0..plan.consumers {
        let http = rest.connection(number)?;
        workers.spawn(finish_received(http, plan.work, Arc::clone(&received), Arc::clone(open)));
    }
    Ok(workers)
}

/// Finishes records until the reader has ended.
async fn finish_received(
    mut http: Http,
    work: Duration,
    received: Arc<tokio::sync::Mutex<mpsc::Receiver<Received>>>,
    open: Arc<AtomicUsize>,
) -> Finished {
    let mut finished = Finished::default();
    loop {
        let next = received.lock().await.recv().await;
        let Some(record) = next else { return finished };
        let waited = clock::monotonic().since(record.arrived_at);
        if waited < work {
            clock::sleep(work - waited).await;
        }
        let answer = finish_one(&mut http, &record.path, record.attempt).await;
        let is_finished = matches!(answer, Ok(CallResult::All));
        finished.refused += u64::from(!is_finished);
        finished.spans.record(clock::monotonic().since(record.arrived_at));
        open.fetch_sub(1, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kafka::AppendedAttempt;

    const PLAN: TrackedPlan = TrackedPlan {
        steady: LatenessPlan {
            scenario: "tracked",
            rate: 1,
            measured: Duration::from_secs(60),
            warm_up: Duration::ZERO,
            ahead: Duration::ZERO..Duration::ZERO,
            call_max: 1,
            connections: 1,
            pending: 0,
        },
        tracking: Some(TrackedLoad {
            ttr: Duration::from_secs(1),
            backoff: Duration::from_millis(50),
        }),
        consumers: 1,
        work: Duration::ZERO,
        unfinished_percent: 10,
    };

    #[test]
    fn an_unfinished_attempt_is_expected_again_after_its_time_to_run_and_the_window() {
        let (queue, mut received) = mpsc::channel(200);
        let (second, open) = (Arc::new(SecondAttempts::new()), Arc::new(AtomicUsize::new(0)));
        let consumer = Consumer { plan: PLAN, queue, second: Arc::clone(&second), open };
        let start = now();
        let ledger = Ledger::new(7, start);
        let tasks: Vec<Planned> = (0..100).map(|_| ledger.plan(start)).collect();
        ledger.answered(&tasks, |_| Reply::Accepted, None);
        let take = |task: &Planned, number, at| {
            let attempt = Some(AppendedAttempt { task_id: "id", number });
            consumer.take(&ledger, Appended { key: &written(task.key), at, attempt, run_at: None });
        };
        tasks.iter().for_each(|task| take(task, 1, start + 5));
        assert_eq!(received.len(), 90);
        assert_eq!(second.appended.missing_count(i64::MAX), 10);
        tasks.iter().take(10).for_each(|task| take(task, 2, start + 5 + 1200 + 3));
        take(&tasks[50], 2, start + 2000);
        assert_eq!((received.len(), second.others.load(Ordering::Relaxed)), (101, 1));
        let last = received.try_recv().unwrap();
        assert_eq!((last.path.as_str(), last.attempt), ("/v1/tasks/id/finish", 1));
        let mut report = BenchReport { counts: ledger.counts(), ..BenchReport::default() };
        second.add_to(&mut report, &PLAN, &(start..start + 10));
        assert_eq!(report.facts["append - due of the second attempt, max, ms"], 3.0);
        assert!(report.counts.are_clean(), "{:?}", report.counts);
    }
}
