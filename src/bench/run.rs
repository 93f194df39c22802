//! The parts that every scenario needs: a ledger, a reader of the topic, samples of the processes,
//! and progress messages.

use std::collections::BTreeMap;
use std::io::Write as _;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::Duration;

use az::SaturatingAs as _;
use tokio::task::JoinSet;

use super::cpu::{CpuSample, WatchedProcess};
use super::ledger::{Ledger, Range};
use super::load::flow;
use super::load::intake::LoadTarget;
use super::results::report::{BenchReport, Usage};
use crate::client::output::figures::grouped;
use crate::clock;
use crate::domain::{Monotonic, TopicName};
use crate::error_chain::chain;
use crate::kafka::{Appended, KafkaSettings, ReadMode, TopicReader};

/// Interval of progress messages.
const TELL_EVERY: Duration = Duration::from_secs(2);
/// Interval at which a condition is polled.
const POLL_INTERVAL: Duration = Duration::from_millis(20);
/// Missing tasks count as lost when no record has arrived for this long.
const PATIENCE: Duration = Duration::from_secs(15);
/// Number of tasks in one call of a bulk load, over [`BULK_LANES`] connections.
pub const BULK_CALL: usize = 1_000;
pub const BULK_LANES: usize = 4;

/// The servers and processes that a scenario uses.
#[derive(Clone, Debug)]
pub struct Setup {
    /// The topics to read.
    pub topics: Vec<TopicName>,
    pub kafka: KafkaSettings,
    pub watched: Vec<WatchedProcess>,
    /// Parameters of the tasks, for the report.
    pub settings: BTreeMap<String, String>,
}

/// A run in progress.
#[derive(Debug)]
pub struct BenchRun {
    pub ledger: Arc<Ledger>,
    /// Milliseconds since the epoch, by the machine's clock.
    pub started_at: i64,
    scenario: &'static str,
    setup: Setup,
    _reader: TopicReader,
    _teller: JoinSet<()>,
}

/// A sample of the processes with its time.
#[derive(Debug)]
pub struct Mark {
    sample: CpuSample,
    at: Monotonic,
}

/// Returns the time of the machine's clock in milliseconds since the epoch.
pub fn now() -> i64 {
    clock::wall().as_millis()
}

pub fn millis(span: Duration) -> i64 {
    span.as_millis().saturating_as::<i64>()
}

/// Prints a line of progress. A failed write is ignored, because a closed stderr has no reader.
pub fn print_line(line: &str) {
    writeln!(std::io::stderr(), "{line}").ok();
}

impl BenchRun {
    /// Starts to read the topics.
    ///
    /// # Errors
    /// Returns an error when a topic has no append times or cannot be read.
    pub async fn start(setup: &Setup, scenario: &'static str) -> Result<Self, String> {
        Self::reading(setup, scenario, ReadMode::Bulk, |ledger, record| {
            ledger.arrived(record.key, record.at)
        })
        .await
    }

    /// As [`Self::start`]. `on_record` gets each record, and decides what the ledger learns of it.
    pub async fn reading(
        setup: &Setup,
        scenario: &'static str,
        mode: ReadMode,
        mut on_record: impl FnMut(&Ledger, Appended<'_>) + Send + 'static,
    ) -> Result<Self, String> {
        let started_at = now();
        let ledger = Arc::new(Ledger::new(rand::random(), started_at));
        let book = Arc::clone(&ledger);
        let reader = TopicReader::start(&setup.kafka, &setup.topics, mode, move |record| {
            on_record(&book, record)
        })
        .await;
        let reader = reader.map_err(|error| chain(&error))?;
        for watched in setup.watched.iter().filter(|watched| !watched.is_there()) {
            print_line(&format!("{scenario}: there is no process {} now", watched.name));
        }
        let mut teller = JoinSet::new();
        teller.spawn(tell(scenario, Arc::clone(&ledger)));
        Ok(Self {
            ledger,
            started_at,
            scenario,
            setup: setup.clone(),
            _reader: reader,
            _teller: teller,
        })
    }

    pub fn print_line(&self, what: &str) {
        print_line(&format!("{}: {what}", self.scenario));
    }

    /// Samples the processes.
    pub fn mark(&self) -> Mark {
        Mark { sample: CpuSample::take(&self.setup.watched), at: clock::monotonic() }
    }

    /// Samples the processes at both ends of a range of time.
    pub async fn marks(&self, range: &Range) -> (Mark, Mark) {
        self.wait_until(range.start).await;
        let before = self.mark();
        self.wait_until(range.end).await;
        (before, self.mark())
    }

    /// Returns the resources that the processes used between two samples, for `task_count` tasks.
    pub fn usage(&self, from: &Mark, to: &Mark, task_count: u64) -> Vec<Usage> {
        to.sample.since(&from.sample, &self.setup.watched, task_count, to.at.since(from.at))
    }

    /// Returns the memory of the watched processes at a sample, by name.
    pub fn resident(&self, mark: &Mark) -> Vec<(String, u64)> {
        mark.sample.resident(&self.setup.watched)
    }

    /// Waits until `at`, in milliseconds since the epoch.
    pub async fn wait_until(&self, at: i64) {
        while let Ok(left) = u64::try_from(at.saturating_sub(now()))
            && left > 0
        {
            clock::sleep(Duration::from_millis(left)).await;
        }
    }

    /// Waits until all accepted tasks due before `due` have arrived. Gives up when no record
    /// arrives for so long that the rest must be lost.
    pub async fn wait_arrived(&self, due: i64) {
        self.wait_for(&self.ledger, due).await;
    }

    /// As [`Self::wait_arrived`], by another ledger.
    pub async fn wait_for(&self, ledger: &Ledger, due: i64) {
        self.wait_until(due).await;
        let arrived = || ledger.snapshot().arrived_count;
        if self.wait_while("have not arrived", || ledger.missing_count(due), arrived).await {
            // Waits for duplicates, which arrive after the task. The reader's fetches take a
            // quarter of a second.
            clock::sleep(Duration::from_millis(600)).await;
        }
    }

    /// Waits while tasks are missing, and says how many when there was no progress for so long that
    /// the rest must be lost. Returns true if none is missing.
    pub async fn wait_while(
        &self,
        what: &str,
        missing: impl Fn() -> usize,
        progress: impl Fn() -> usize,
    ) -> bool {
        let (mut seen, mut seen_at) = (progress(), clock::monotonic());
        while missing() > 0 {
            clock::sleep(POLL_INTERVAL).await;
            let count = progress();
            if count != seen {
                (seen, seen_at) = (count, clock::monotonic());
            }
            if clock::monotonic().since(seen_at) > PATIENCE {
                self.print_line(&format!("{} tasks {what}", missing()));
                return false;
            }
        }
        true
    }

    /// Returns a report of the guarantees. The scenario adds its figures.
    pub fn report(&self, settings: &[(&str, String)]) -> BenchReport {
        let mut all = self.setup.settings.clone();
        all.extend(settings.iter().map(|(name, value)| ((*name).to_owned(), value.clone())));
        BenchReport {
            scenario: self.scenario.to_owned(),
            taken_at: taken_at(self.started_at),
            version: env!("CARGO_PKG_VERSION").to_owned(),
            settings: all,
            counts: self.ledger.counts(),
            reason: self.ledger.reason(),
            ..BenchReport::default()
        }
    }

    /// Returns a report of the lateness of the tasks due within `due`. The guarantees are counted
    /// over all tasks due before its end.
    pub fn lateness_report(&self, settings: &[(&str, String)], due: &Range) -> BenchReport {
        let mut report = self.report(settings);
        report.counts = self.ledger.counts_before(due.end);
        report.measured = "append - due".to_owned();
        report.spans = self.ledger.lateness(due).quantiles();
        let span = due.end.saturating_sub(due.start);
        // One second, or more so the series has at most 600 points.
        let step = (span / 600).max(1000).saturating_as::<u32>();
        report.series = self.ledger.series(due, step);
        report
    }
}

/// Submits many tasks far ahead, as a background for the measured ones.
///
/// # Errors
/// Returns an error when not all tasks were accepted.
pub async fn fill<I: LoadTarget>(
    intake: &I,
    count: u64,
    due: std::ops::Range<Duration>,
) -> Result<(), String> {
    if count == 0 {
        return Ok(());
    }
    print_line(&format!("background: {} tasks", grouped(count)));
    let start = now();
    let ledger = Arc::new(Ledger::new(rand::random(), start));
    let (from, to) = (start + millis(due.start), start + millis(due.end));
    submit_all(intake, &ledger, count, move || rand::random_range(from..to)).await?;
    let accepted = ledger.snapshot().accepted_count;
    if u64::try_from(accepted).unwrap_or(0) == count {
        return Ok(());
    }
    let reason = ledger.reason().unwrap_or_default();
    Err(format!("only {accepted} of {count} background tasks were accepted: {reason}"))
}

/// Submits many tasks as fast as possible, and records them in `ledger`. `due_at` is asked for
/// each.
///
/// # Errors
/// Returns an error when a connection cannot be opened. Refused tasks are recorded.
pub async fn submit_all<I: LoadTarget>(
    intake: &I,
    ledger: &Arc<Ledger>,
    count: u64,
    due_at: impl Fn() -> i64 + Send + Sync + 'static,
) -> Result<(), String> {
    let (book, left) = (Arc::clone(ledger), AtomicU64::new(count));
    let next = move || {
        let taken = take(&left, BULK_CALL);
        (taken > 0).then(|| (0..taken).map(|_| book.plan(due_at())).collect())
    };
    flow::closed_loop(intake, BULK_LANES, ledger, next).await.map(|_answers| ())
}

/// Takes up to `most` from the remaining count.
pub fn take(left: &AtomicU64, most: usize) -> usize {
    use std::sync::atomic::Ordering::Relaxed;
    let most = most.saturating_as::<u64>();
    let before =
        left.fetch_update(Relaxed, Relaxed, |left| Some(left.saturating_sub(most))).unwrap_or(0);
    usize::try_from(before.min(most)).unwrap_or(0)
}

async fn tell(scenario: &'static str, ledger: Arc<Ledger>) {
    let started_at = clock::monotonic();
    loop {
        clock::sleep(TELL_EVERY).await;
        let snapshot = ledger.snapshot();
        let count = |count: usize| grouped(count.saturating_as::<u64>());
        let seconds = clock::monotonic().since(started_at).as_secs();
        let (accepted, arrived) = (count(snapshot.accepted_count), count(snapshot.arrived_count));
        print_line(&format!(
            "{scenario}: {seconds} s, submitted {}, accepted {accepted}, arrived {arrived}",
            count(snapshot.planned_count)
        ));
    }
}

fn taken_at(at: i64) -> String {
    jiff::Timestamp::from_millisecond(at).map(|at| at.to_string()).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_left_is_taken_in_portions() {
        let left = AtomicU64::new(2500);
        assert_eq!(
            [take(&left, 1000), take(&left, 1000), take(&left, 1000), take(&left, 1000)],
            [1000, 1000, 500, 0]
        );
    }
}
