//! Writes log lines to stderr from a separate thread.
//!
//! The reader of stderr may stop reading. A full pipe then blocks each writing thread. So the
//! threads of a node put lines into a buffer, and one thread writes. Lines without room are lost
//! and counted: a node publishes whether the log is read or not.
//!
//! Written without `tracing-appender`: the lossy writer there counts dropped lines, but does not
//! mention missing lines in the log itself, and bounds the buffer in lines instead of bytes.

use std::backtrace::{Backtrace, BacktraceStatus};
use std::cell::Cell;
use std::fmt;
use std::io::{self, Write};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::Duration;

use az::SaturatingAs as _;
use parking_lot::{Condvar, Mutex, MutexGuard};
use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric};
use prometheus_client::metrics::counter::ConstCounter;

/// Maximum size of the buffer. A line has about 200 bytes.
const BYTES_MAX: usize = 1 << 20;
/// Maximum time that the end of the process waits for its last lines to be written.
const FLUSH_DEADLINE: Duration = Duration::from_secs(1);

/// The log of the process. There is one, because there is one stderr.
static LOG: Log = Log { state: Mutex::new(LogState::new()), changed: Condvar::new() };

thread_local! {
    /// True while the thread runs code whose panic is caught, and is no fault of the program.
    static IS_PANIC_EXPECTED: Cell<bool> = const { Cell::new(false) };
}

struct Log {
    state: Mutex<LogState>,
    changed: Condvar,
}

struct LogState {
    /// Whole lines, in the order in which they came.
    waiting: Vec<u8>,
    /// True when the writer thread exists. Without it, each thread writes its own lines.
    has_thread: bool,
    /// True when the writer thread has taken lines and has not written them yet.
    is_writing: bool,
    lost: u64,
}

impl LogState {
    const fn new() -> Self {
        Self { waiting: Vec::new(), has_thread: false, is_writing: false, lost: 0 }
    }

    fn put(&mut self, lines: &[u8]) {
        if self.waiting.len() + lines.len() <= BYTES_MAX {
            self.waiting.extend_from_slice(lines);
        } else {
            self.lose(lines);
        }
    }

    fn lose(&mut self, lines: &[u8]) {
        let count = lines.iter().filter(|byte| **byte == b'\n').count();
        self.lost = self.lost.saturating_add(count.saturating_as::<u64>());
    }
}

impl Log {
    fn state(&self) -> MutexGuard<'_, LogState> {
        self.state.lock()
    }

    /// Writes the buffered lines, for as long as the process lives.
    fn write_all(&self) {
        let mut lines = Vec::new();
        let mut said = 0;
        loop {
            let mut state = self.state();
            state.is_writing = false;
            self.changed.notify_all();
            self.changed.wait_while(&mut state, |state| state.waiting.is_empty());
            std::mem::swap(&mut state.waiting, &mut lines);
            state.is_writing = true;
            let lost = state.lost;
            drop(state);
            if io::stderr().write_all(&lines).is_err() {
                // The pipe has no reader. There may be one again later.
                self.state().lose(&lines);
            } else if lost > std::mem::replace(&mut said, lost) {
                tracing::warn!(
                    lines = lost,
                    "log lines were lost, because they came faster than they were read"
                );
            }
            lines.clear();
        }
    }
}

/// The output of the formatter. Each write is a whole line.
#[derive(Debug)]
pub(super) struct Writer;

impl Write for Writer {
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        let mut state = LOG.state();
        if !state.has_thread {
            drop(state);
            return io::stderr().write(line);
        }
        state.put(line);
        drop(state);
        LOG.changed.notify_all();
        Ok(line.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Starts the writer thread. From here on, no other thread of the process waits for the reader of
/// its log.
///
/// # Errors
/// When the writer thread cannot be started.
pub fn uncouple() -> io::Result<()> {
    std::thread::Builder::new().name("log".to_owned()).spawn(|| LOG.write_all())?;
    LOG.state().has_thread = true;
    // The default hook writes to stderr itself. It would block the panicking thread before the
    // panic is reported.
    std::panic::set_hook(Box::new(|panic| {
        if IS_PANIC_EXPECTED.get() {
            return;
        }
        let backtrace = Backtrace::capture();
        match backtrace.status() {
            BacktraceStatus::Captured => tracing::error!("{panic}\n{backtrace}"),
            _ => tracing::error!("{panic}"),
        }
    }));
    Ok(())
}

/// Runs code of a library that panics at some input. Returns `None` after a panic, which is not
/// logged: whoever sends the input could fill the log.
pub fn catch_panic<T>(run: impl FnOnce() -> T) -> Option<T> {
    let before = IS_PANIC_EXPECTED.replace(true);
    let outcome = catch_unwind(AssertUnwindSafe(run));
    IS_PANIC_EXPECTED.set(before);
    outcome.ok()
}

/// Waits until all logged lines are written, at most one second.
pub fn flush() {
    let is_busy = |state: &mut LogState| state.is_writing || !state.waiting.is_empty();
    LOG.changed.wait_while_for(&mut LOG.state(), is_busy, FLUSH_DEADLINE);
}

/// Exports the number of lost log lines.
#[derive(Debug)]
pub(in crate::telemetry) struct Lost;

impl Collector for Lost {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let metric = ConstCounter::new(LOG.state().lost);
        let help = "Log lines that were lost because they came faster than they were read";
        metric.encode(encoder.encode_descriptor(
            "punctual_log_lines_lost",
            help,
            None,
            metric.metric_type(),
        )?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_panic_is_expected_only_where_it_is_caught() {
        let inner = || IS_PANIC_EXPECTED.get();
        assert_eq!(catch_panic(inner), Some(true));
        assert_eq!(catch_panic(|| catch_panic(|| panic!("bad name")).is_none()), Some(true));
        assert!(!IS_PANIC_EXPECTED.get());
    }

    #[test]
    fn what_does_not_fit_is_counted() {
        let mut state = LogState::new();
        let half = [vec![b'x'; BYTES_MAX / 2 - 1], vec![b'\n']].concat();
        state.put(&half);
        state.put(&half);
        assert_eq!((state.waiting.len(), state.lost), (BYTES_MAX, 0));
        state.put(b"one\ntwo\n");
        assert_eq!((state.waiting.len(), state.lost), (BYTES_MAX, 2));
    }
}
