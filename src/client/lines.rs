//! Submits many tasks from lines of JSON. The input is read as a stream and sent in batches,
//! several at a time. A batch is retried until each of its lines has an answer.
//!
//! No task is created twice, because every line has a name: its own, or the run id and the line
//! number. Memory is limited by the chunks of the [`reader`] and the batches in flight.

mod delivery;
mod difference;
mod judge;
pub mod line;
mod reader;
mod screen;
mod tally;
#[cfg(test)]
mod tests;

use std::cell::Cell;
use std::fs::File;
use std::io::{self, Read};
use std::os::fd::AsFd as _;
use std::path::Path;
use std::process::ExitCode;
use std::sync::atomic::Ordering;
use std::time::Duration;

use az::SaturatingAs as _;
use futures_util::StreamExt as _;
use futures_util::stream::FuturesUnordered;
use serde::{Deserialize, Serialize};
use serde_json::json;
use serde_json::value::RawValue;
use tokio::sync::mpsc::error::TryRecvError;
use tokio::time::MissedTickBehavior;
use tokio_util::sync::CancellationToken;

use self::delivery::{Delivered, Delivery};
use self::difference::DifferingMember;
use self::judge::{LineOutcome, RefusedLine, SettledLine};
use self::line::{Naming, WrongKind, WrongLine};
use self::reader::{Input, LineChunk, Reading};
use self::screen::{Manner, RunProgress, Screen, TICK};
use self::tally::Tally;
use super::answer::{Ending, Exit};
use super::args::{self, SubmitArgs};
use super::caller::NodeCaller;
use super::output::print;
use super::task::printable;
use crate::clock;
use crate::domain::Monotonic;
use crate::signals::{self, Signals};

/// A batch above this size takes no further line. The size is well below a node's default limit on
/// a body.
const BATCH_BYTES_MAX: usize = 4 << 20;
const BATCH_CHUNKS_MAX: usize = 16;

/// Signals after which a run waits for its batches in flight.
const STOPPED_BY: [signals::EndSignal; 2] =
    [signals::EndSignal::Interrupt, signals::EndSignal::Terminate];

/// Submits the tasks of a file or of standard input.
pub async fn submit(args: &SubmitArgs, file: &Path) -> ExitCode {
    let is_json = args.node.is_json();
    let (plan, input, caller) = match prepare(args, file) {
        Ok(prepared) => prepared,
        Err(ending) => return ending.report(is_json),
    };
    let screen = Screen::new(plan.manner);
    if !(plan.manner.is_quiet && args.lines.run_id.is_some()) {
        screen.note(
            "run_id",
            &if is_json { plan.run_id.clone() } else { format!("run id {}", plan.run_id) },
        );
    }
    let stopping = CancellationToken::new();
    let last_through = Cell::new(None);
    let delivery = Delivery {
        caller: &caller,
        retry_for: plan.retry_for,
        stopping: &stopping,
        screen: &screen,
        last_through: &last_through,
    };
    let mut run = LinesRun::new(&plan);
    run.deliver_all(input, delivery).await;
    screen.wipe();
    run.report(file)
}

/// The parameters of a run.
#[derive(Debug)]
struct RunPlan {
    run_id: String,
    manner: Manner,
    batch_lines_max: usize,
    concurrency: usize,
    retry_for: Duration,
    bytes_total: Option<u64>,
    from_line: u64,
}

fn prepare(args: &SubmitArgs, file: &Path) -> Result<(RunPlan, Input, NodeCaller), Ending> {
    let lines = &args.lines;
    let caller = NodeCaller::new(&args.node)?;
    let run_id =
        lines.run_id.clone().unwrap_or_else(|| format!("run-{:016x}", rand::random::<u64>()));
    let (source, bytes_total) =
        open(file).map_err(|error| Ending::usage(format!("read {}: {error}", file.display())))?;
    let reading = Reading {
        naming: Naming::new(&run_id, args.topic.as_deref()),
        from_line: lines.from_line,
        // Several chunks make a batch, so a full batch need not wait for the last line of the
        // input's buffer.
        chunk_lines_max: lines.batch.div_ceil(4),
    };
    let input = Input::start(source, reading).map_err(|error| {
        Ending::new(Exit::NothingDone, format!("cannot start reading: {error}"))
    })?;
    let manner = Manner { is_json: args.node.is_json(), is_quiet: lines.quiet };
    let retry_for = args.retry_for.unwrap_or(args::RETRY_FOR_OF_LINES);
    let plan = RunPlan {
        run_id,
        manner,
        batch_lines_max: lines.batch,
        concurrency: lines.concurrency,
        retry_for,
        bytes_total,
        from_line: lines.from_line,
    };
    Ok((plan, input, caller))
}

/// Opens the input. Returns its size, too, if it is a file.
fn open(path: &Path) -> io::Result<(Box<dyn Read + Send>, Option<u64>)> {
    let is_stdin = path.as_os_str() == "-";
    let file = if is_stdin {
        File::from(io::stdin().as_fd().try_clone_to_owned()?)
    } else {
        File::open(path)?
    };
    let metadata = file.metadata()?;
    if metadata.is_dir() {
        return Err(io::Error::from(io::ErrorKind::IsADirectory));
    }
    let bytes_total = metadata.is_file().then_some(metadata.len());
    Ok((Box::new(file), bytes_total))
}

const fn words_for(signal: signals::EndSignal) -> &'static str {
    match signal {
        signals::EndSignal::Interrupt => "interrupted",
        signals::EndSignal::Hangup | signals::EndSignal::Terminate => "told to end",
    }
}

/// A run in progress.
#[derive(Debug)]
struct LinesRun<'a> {
    plan: &'a RunPlan,
    tally: Tally,
    /// The reason why the run ended before its input.
    ending: Option<Ending>,
    /// A chunk that did not fit into the last batch.
    left: Option<LineChunk>,
    /// The first error while writing results to stdout.
    unwritten: Option<io::Error>,
    started_at: Monotonic,
}

impl<'a> LinesRun<'a> {
    fn new(plan: &'a RunPlan) -> Self {
        Self {
            plan,
            tally: Tally::from_line(plan.from_line),
            ending: None,
            left: None,
            unwritten: None,
            started_at: clock::monotonic(),
        }
    }

    async fn deliver_all(&mut self, mut input: Input, delivery: Delivery<'_>) {
        let mut under_way = FuturesUnordered::new();
        let mut ticks = tokio::time::interval(TICK);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        // Outside a container a closed terminal ends the run, as it ends any program. The run id
        // allows to repeat the run.
        let endings =
            if signals::needs_handlers() { &signals::EndSignal::ALL[..] } else { &STOPPED_BY };
        // Without signal handlers the process ends at once, as is the default.
        let mut signals = Signals::listen(endings).unwrap_or_default();
        let mut has_more = true;
        while has_more || !under_way.is_empty() {
            let has_room = under_way.len() < self.plan.concurrency;
            tokio::select! {
                biased;
                interrupted = signals.next() => {
                    let is_second = delivery.stopping.is_cancelled();
                    self.interrupted(words_for(interrupted), &delivery);
                    if is_second {
                        return;
                    }
                }
                Some((first, delivered)) = under_way.next() => {
                    self.take_in(first, delivered, &delivery);
                }
                _ = ticks.tick() => self.show(&input, delivery.screen),
                () = delivery.stopping.cancelled(), if has_more => has_more = false,
                batch = self.next_batch(&mut input), if has_more && has_room => match batch {
                    None => has_more = false,
                    Some(Err(error)) => self.lost(&error),
                    Some(Ok(batch)) => {
                        self.report_wrong(&batch.wrong, delivery.screen);
                        let refused = batch.wrong.len().saturating_as::<u64>();
                        self.tally.passed(refused, batch.last_number);
                        if let Some(first) = batch.lines.first().map(|line| line.number) {
                            self.tally.taken(first, batch.last_number);
                            let lines = batch.lines;
                            under_way.push(async move { (first, delivery.deliver(lines).await) });
                        }
                    }
                },
            }
        }
    }

    /// Returns all chunks that are ready and fit into one batch. Waits when no chunk is ready.
    /// Cancel-safe: a cancelled wait has taken no chunk.
    async fn next_batch(&mut self, input: &mut Input) -> Option<io::Result<LineChunk>> {
        let mut batch = match self.left.take() {
            Some(left) => left,
            None => match input.chunks.recv().await? {
                Ok(chunk) => chunk,
                Err(error) => return Some(Err(error)),
            },
        };
        // The number of chunks is limited as well. A chunk may hold only empty lines, and an
        // endless input of those must not block the loop.
        for _ in 0..BATCH_CHUNKS_MAX {
            match input.chunks.try_recv() {
                Ok(Ok(next))
                    if batch.line_count() + next.line_count() <= self.plan.batch_lines_max
                        && batch.bytes + next.bytes <= BATCH_BYTES_MAX =>
                {
                    batch.append(next);
                }
                Ok(Ok(next)) => {
                    self.left = Some(next);
                    break;
                }
                Ok(Err(error)) => {
                    self.lost(&error);
                    break;
                }
                Err(TryRecvError::Empty | TryRecvError::Disconnected) => break,
            }
        }
        Some(Ok(batch))
    }

    fn take_in(&mut self, first: u64, delivered: Delivered, delivery: &Delivery<'_>) {
        self.tally.settled(first, &delivered.settled);
        for line in &delivered.settled {
            self.report_line(line, delivery.screen);
        }
        if let Some(trouble) = delivered.trouble {
            self.stop(trouble, delivery);
        }
    }

    /// Records a read error. The lines before it are still submitted.
    fn lost(&mut self, error: &io::Error) {
        self.ending.get_or_insert(Ending::new(
            Exit::NothingDone,
            format!("cannot read the input: {error}"),
        ));
    }

    /// Stops the run: no more input is read, and the batches in flight finish.
    fn stop(&mut self, why: Ending, delivery: &Delivery<'_>) {
        self.ending.get_or_insert(why);
        delivery.stopping.cancel();
    }

    fn interrupted(&mut self, signal: &str, delivery: &Delivery<'_>) {
        if !delivery.stopping.is_cancelled() && self.tally.is_under_way() {
            delivery.screen.note(
                "stopping",
                &format!(
                    "{signal}: waiting for the requests in flight; a second signal stops at once"
                ),
            );
        }
        // The user's signal takes precedence over an earlier error.
        self.ending = Some(Ending::new(Exit::Interrupted, signal));
        delivery.stopping.cancel();
    }

    fn show(&self, input: &Input, screen: &Screen) {
        let bytes_read = input.bytes_read.load(Ordering::Relaxed);
        let took = clock::monotonic().since(self.started_at);
        screen.show(RunProgress {
            counts: self.tally.counts,
            bytes_read,
            bytes_total: self.plan.bytes_total,
            took,
        });
    }

    fn report_wrong(&mut self, wrong: &[WrongLine], screen: &Screen) {
        for line in wrong {
            let (slug, status, title) = match line.kind {
                WrongKind::NotJson => ("malformed-json", 400, "The line is not JSON in UTF-8"),
                WrongKind::NotATask => ("invalid-value", 400, "The line is not a task"),
                WrongKind::TooLong => ("body-too-large", 413, "The line is too long"),
            };
            let kind = format!("urn:punctual:problem:{slug}");
            let problem =
                json!({ "type": kind, "title": title, "status": status, "detail": line.detail });
            self.report_refused(
                line.number,
                &RefusedLine { status, text: format!("{title}: {}", line.detail), problem },
                screen,
            );
        }
    }

    fn report_line(&mut self, line: &SettledLine, screen: &Screen) {
        let shown = match &line.outcome {
            LineOutcome::Refused(refused) => {
                return self.report_refused(line.number, refused, screen);
            }
            LineOutcome::Differs(task, members) => {
                return self.report_differing(line.number, task, members, screen);
            }
            LineOutcome::Accepted(task) => LineJson {
                status: Some(201),
                task: Some(task),
                ..LineJson::of(line.number, "accepted")
            },
            LineOutcome::Known(task) => LineJson {
                status: Some(200),
                task: Some(task),
                ..LineJson::of(line.number, "known")
            },
            LineOutcome::Unknown => LineJson::of(line.number, "unknown"),
            LineOutcome::NotSubmitted => LineJson::of(line.number, "not_submitted"),
        };
        // People get counts, and the ranges of unsettled lines, at the end.
        if self.plan.manner.is_json {
            self.print(&shown, screen);
        }
    }

    fn report_differing(
        &mut self,
        number: u64,
        task: &RawValue,
        members: &[DifferingMember],
        screen: &Screen,
    ) {
        if self.plan.manner.is_json {
            let (status, task, differs) = (Some(200), Some(task), Some(members));
            return self.print(
                &LineJson { status, task, differs, ..LineJson::of(number, "differs") },
                screen,
            );
        }
        let members = members.iter().map(DifferingMember::to_string).collect::<Vec<_>>().join(", ");
        let task: NamedTask = serde_json::from_str(task.get()).unwrap_or_default();
        let text = format!(
            "line {number}: not stored: its name `{}` stands for the task {}, which is different \
             ({members})",
            printable(&task.name),
            printable(&task.id)
        );
        screen.note("differs", &text);
    }

    fn report_refused(&mut self, number: u64, refused: &RefusedLine, screen: &Screen) {
        if self.plan.manner.is_json {
            let (status, problem) = (Some(refused.status), Some(&refused.problem));
            self.print(&LineJson { status, problem, ..LineJson::of(number, "refused") }, screen);
        } else {
            screen.note("refused", &format!("line {number}: {}", refused.text));
        }
    }

    fn print(&mut self, line: &LineJson<'_>, screen: &Screen) {
        screen.wipe();
        let written = serde_json::to_string(line)
            .map_err(io::Error::from)
            .and_then(|line| print::to_stdout(&line));
        self.note_unwritten(written);
    }

    /// Records an error while writing a result. The run continues and reports the error at its end.
    fn note_unwritten(&mut self, written: io::Result<()>) {
        if let Err(error) = written {
            self.unwritten.get_or_insert(error);
        }
    }

    /// Returns the exit code, or `None` when each line is stored.
    fn exit(&self) -> Option<Exit> {
        match &self.ending {
            Some(Ending { exit: Exit::Interrupted, .. }) => Some(Exit::Interrupted),
            // The reader of stdout does not know the outcome of every line.
            _ if self.unwritten.is_some() => Some(Exit::Unknown),
            // 'Refused' would claim that all other lines are stored, so the reason for the early
            // end takes precedence.
            Some(ending) => self
                .tally
                .exit()
                .filter(|exit| matches!(exit, Exit::Unknown | Exit::NothingDone))
                .or(Some(ending.exit)),
            None => self.tally.exit(),
        }
    }

    /// Returns true when a resumed run would have no work.
    fn is_complete(&self) -> bool {
        self.ending.is_none() && matches!(self.tally.exit(), None | Some(Exit::Refused))
    }

    fn summary(&self) -> String {
        let took = clock::monotonic().since(self.started_at);
        if !self.plan.manner.is_json {
            return self.tally.lines(&self.plan.run_id, took);
        }
        let millis = took.as_millis().saturating_as::<u64>();
        let resume = (!self.is_complete()).then(|| self.tally.resume_line());
        let summary = json!({
            "run_id": self.plan.run_id,
            "counts": self.tally.counts,
            "took_ms": millis,
            "resume_line": resume,
        });
        json!({ "summary": summary }).to_string()
    }

    /// Prints the summary, the reason for an early end, and how to resume.
    fn report(mut self, file: &Path) -> ExitCode {
        self.note_unwritten(print::to_stdout(&self.summary()));
        let Some(exit) = self.exit() else { return ExitCode::SUCCESS };
        let input = if file.as_os_str() == "-" {
            "the same input".to_owned()
        } else {
            file.display().to_string()
        };
        let again = format!("repeat the command with {input} and --run-id {}", self.plan.run_id);
        let mut text = String::new();
        if let Some(error) = &self.unwritten {
            text = format!("cannot write all results: {error}\n");
        }
        match (self.is_complete(), &self.ending) {
            (true, _) if self.unwritten.is_none() => return exit.into(),
            (true, _) => {
                text.push_str(&format!("to get all results, {again}; no task is made twice"))
            }
            (false, ending) => {
                let why = ending
                    .as_ref()
                    .map_or("some lines have no answer", |ending| ending.text.as_str());
                let spared =
                    format!("(--from-line {} skips the finished lines)", self.tally.resume_line());
                text.push_str(&format!(
                    "{why}\nto resume, {again} {spared}; no task is made twice"
                ));
            }
        }
        Ending::new(exit, text).report(self.plan.manner.is_json)
    }
}

/// The members of a task that messages mention.
#[derive(Deserialize, Default)]
#[serde(default)]
struct NamedTask {
    id: String,
    name: String,
}

/// The outcome of a line, for scripts.
#[derive(Serialize)]
struct LineJson<'a> {
    line: u64,
    outcome: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    status: Option<u16>,
    #[serde(skip_serializing_if = "Option::is_none")]
    task: Option<&'a RawValue>,
    /// The members in which the line differs from `task`.
    #[serde(skip_serializing_if = "Option::is_none")]
    differs: Option<&'a [DifferingMember]>,
    #[serde(skip_serializing_if = "Option::is_none")]
    problem: Option<&'a serde_json::Value>,
}

impl LineJson<'_> {
    const fn of(line: u64, outcome: &'static str) -> Self {
        Self { line, outcome, status: None, task: None, differs: None, problem: None }
    }
}
