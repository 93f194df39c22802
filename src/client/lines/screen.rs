//! Shows the progress of a run on stderr: a bar on a terminal, otherwise a line every few seconds.
//!
//! Drawn without `indicatif`: the library would replace only the 20 lines of the bar, and brings
//! five crates.

use std::io::{self, IsTerminal as _, Write as _};
use std::time::Duration;

use az::SaturatingAs as _;
use parking_lot::Mutex;
use serde_json::json;

use super::tally::LineCounts;
use crate::client::output::figures::{grouped, rate, span};
use crate::client::task::printable;
use crate::clock;
use crate::domain::Monotonic;

/// The interval at which [`Screen::show`] should be called.
pub const TICK: Duration = Duration::from_millis(200);
/// Interval of progress lines without a terminal.
const LINE_INTERVAL: Duration = Duration::from_secs(5);
/// Minimum time between two error lines: a node that is away for long does not deserve a line for
/// each attempt.
const TROUBLE_INTERVAL: Duration = Duration::from_secs(10);
const BAR_CHARS: usize = 20;
/// Width in columns when the terminal does not report its own.
const WIDTH: usize = 80;

/// How a run reports its progress.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Manner {
    pub is_json: bool,
    /// Show errors only.
    pub is_quiet: bool,
}

/// The progress of a run.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct RunProgress {
    pub counts: LineCounts,
    pub bytes_read: u64,
    /// `None` for a pipe.
    pub bytes_total: Option<u64>,
    pub took: Duration,
}

#[derive(Debug)]
pub struct Screen {
    manner: Manner,
    has_bar: bool,
    state: Mutex<ScreenState>,
}

#[derive(Debug, Default)]
struct ScreenState {
    is_drawn: bool,
    last_line_at: Option<Monotonic>,
    last_trouble_at: Option<Monotonic>,
}

impl Screen {
    pub fn new(manner: Manner) -> Self {
        let has_bar = !manner.is_quiet && io::stderr().is_terminal();
        Self { manner, has_bar, state: Mutex::default() }
    }

    /// Shows the progress, if an update is due.
    pub fn show(&self, snapshot: RunProgress) {
        if self.manner.is_quiet {
            return;
        }
        let now = clock::monotonic();
        let mut state = self.state.lock();
        if self.has_bar {
            let mut line = bar(snapshot);
            if let Some((end, _)) = line.char_indices().nth(width().saturating_sub(1)) {
                line.truncate(end);
            }
            state.is_drawn = true;
            // A failed write is ignored: stderr is closed, and nobody reads the progress.
            write!(io::stderr(), "\r\x1b[2K{line}").ok();
        } else if now.since(*state.last_line_at.get_or_insert(now)) >= LINE_INTERVAL {
            state.last_line_at = Some(now);
            let line = if self.manner.is_json {
                json!({ "progress": snapshot.counts }).to_string()
            } else {
                figures(snapshot)
            };
            writeln!(io::stderr(), "{line}").ok();
        }
    }

    /// Prints a message that stays on the screen.
    pub fn note(&self, kind: &str, text: &str) {
        self.wipe();
        if self.manner.is_json {
            writeln!(io::stderr(), "{}", json!({ kind: text })).ok();
        } else {
            // Parts of it may be foreign: of a node, a proxy or a file.
            writeln!(io::stderr(), "{}", printable(text)).ok();
        }
    }

    /// Reports why requests fail, with a throttle.
    pub fn trouble(&self, why: &str) {
        let now = clock::monotonic();
        let mut state = self.state.lock();
        let is_due = state.last_trouble_at.is_none_or(|last| now.since(last) >= TROUBLE_INTERVAL);
        if is_due {
            state.last_trouble_at = Some(now);
        }
        drop(state);
        if is_due {
            let first = why.lines().next().unwrap_or_default();
            self.note("retry", &format!("{first}; retrying"));
        }
    }

    /// Removes the bar, so other output can be written.
    pub fn wipe(&self) {
        let mut state = self.state.lock();
        if std::mem::take(&mut state.is_drawn) {
            write!(io::stderr(), "\r\x1b[2K").ok();
        }
    }
}

fn width() -> usize {
    rustix::termios::tcgetwinsize(io::stderr())
        .map(|size| usize::from(size.ws_col))
        .ok()
        .filter(|width| *width > 0)
        .unwrap_or(WIDTH)
}

/// Returns the figures, with a bar when the size of the input is known.
fn bar(snapshot: RunProgress) -> String {
    let (read, Some(total)) =
        (snapshot.bytes_read, snapshot.bytes_total.filter(|total| *total > 0))
    else {
        return figures(snapshot);
    };
    let percent = usize::try_from(read.saturating_mul(100) / total).unwrap_or(100).min(100);
    let full = percent * BAR_CHARS / 100;
    let millis = snapshot.took.as_millis().saturating_as::<u64>();
    let left =
        Duration::from_millis(millis.saturating_mul(total.saturating_sub(read)) / read.max(1));
    let left = if percent < 100 && millis > 2000 {
        format!(", {} left", span(left))
    } else {
        String::new()
    };
    let (done, open) = ("#".repeat(full), "-".repeat(BAR_CHARS - full));
    format!("[{done}{open}] {percent:>3} %  {}{left}", figures(snapshot))
}

fn figures(snapshot: RunProgress) -> String {
    let counts = snapshot.counts;
    let speed = rate(counts.total(), snapshot.took)
        .map(|rate| format!(" ({}/s)", grouped(rate)))
        .unwrap_or_default();
    format!(
        "{} done{speed}: {} accepted, {} known, {} refused",
        grouped(counts.total()),
        grouped(counts.accepted),
        grouped(counts.known),
        grouped(counts.refused)
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bar_says_how_far_it_is_and_how_long_it_takes() {
        let counts = LineCounts { accepted: 4_800, refused: 200, ..LineCounts::default() };
        let mut snapshot = RunProgress {
            counts,
            bytes_read: 50,
            bytes_total: Some(200),
            took: Duration::from_secs(5),
        };
        assert_eq!(
            bar(snapshot),
            "[#####---------------]  25 %  5,000 done (1,000/s): 4,800 accepted, 0 known, 200 \
             refused, 15.0 s left"
        );
        snapshot.bytes_total = None;
        assert_eq!(bar(snapshot), "5,000 done (1,000/s): 4,800 accepted, 0 known, 200 refused");
        snapshot.bytes_total = Some(0);
        assert_eq!(bar(snapshot), figures(snapshot));
    }
}
