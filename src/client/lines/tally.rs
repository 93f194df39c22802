//! Counts the outcomes of the lines.

use std::collections::BTreeSet;
use std::time::Duration;

use serde::Serialize;

use super::judge::{LineOutcome, SettledLine};
use crate::client::answer::Exit;
use crate::client::output::figures::{grouped, rate, span};

/// Maximum number of line ranges that a message lists. It gives the others as a count.
const RANGES_MAX: usize = 8;

/// The outcomes of a run so far.
#[derive(Debug, Default)]
pub struct Tally {
    pub counts: LineCounts,
    /// The last line taken from the input.
    last_taken: u64,
    /// The first line of each batch in flight.
    on_their_way: BTreeSet<u64>,
    unsettled: Ranges,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize)]
pub struct LineCounts {
    pub accepted: u64,
    pub known: u64,
    pub differs: u64,
    pub refused: u64,
    pub unknown: u64,
    pub not_submitted: u64,
}

impl LineCounts {
    /// Returns the number of lines with an outcome.
    pub const fn total(self) -> u64 {
        self.accepted + self.known + self.differs + self.refused + self.unknown + self.not_submitted
    }
}

impl Tally {
    /// Starts at `line`: the lines before it were finished by an earlier run.
    pub fn from_line(line: u64) -> Self {
        Self { last_taken: line.saturating_sub(1), ..Self::default() }
    }

    /// Records that the lines from `first` to `last` are in flight.
    pub fn taken(&mut self, first: u64, last: u64) {
        self.last_taken = last;
        self.on_their_way.insert(first);
    }

    /// Records the outcomes of a batch, line by line.
    pub fn settled(&mut self, first: u64, lines: &[SettledLine]) {
        self.on_their_way.remove(&first);
        for line in lines {
            match line.outcome {
                LineOutcome::Accepted(_) => self.counts.accepted += 1,
                LineOutcome::Known(_) => self.counts.known += 1,
                LineOutcome::Differs(..) => self.counts.differs += 1,
                LineOutcome::Refused(_) => self.counts.refused += 1,
                LineOutcome::Unknown => self.counts.unknown += 1,
                LineOutcome::NotSubmitted => self.counts.not_submitted += 1,
            }
            if matches!(line.outcome, LineOutcome::Unknown | LineOutcome::NotSubmitted) {
                self.unsettled.insert(line.number);
            }
        }
    }

    /// Records that the lines up to `last` need no request: `refused` of them are invalid, the
    /// others are empty.
    pub const fn passed(&mut self, refused: u64, last: u64) {
        self.counts.refused += refused;
        self.last_taken = last;
    }

    /// Returns true while a batch is in flight.
    pub fn is_under_way(&self) -> bool {
        !self.on_their_way.is_empty()
    }

    /// Returns the line at which a later run should resume: all lines before it are settled.
    pub fn resume_line(&self) -> u64 {
        let firsts =
            [self.on_their_way.first().copied(), self.unsettled.first(), Some(self.last_taken + 1)];
        firsts.into_iter().flatten().min().unwrap_or(1)
    }

    /// Returns the exit code following from the outcomes of the lines. `None` means success.
    pub fn exit(&self) -> Option<Exit> {
        match self.counts {
            _ if self.is_under_way() => Some(Exit::Unknown),
            LineCounts { unknown: 1.., .. } => Some(Exit::Unknown),
            LineCounts { not_submitted: 1.., .. } => Some(Exit::NothingDone),
            LineCounts { refused: 1.., .. } | LineCounts { differs: 1.., .. } => {
                Some(Exit::Refused)
            }
            _ => None,
        }
    }

    /// Returns the summary for people.
    pub fn lines(&self, run_id: &str, took: Duration) -> String {
        let counts = self.counts;
        let speed = rate(counts.total(), took)
            .map(|rate| format!(", {} a second", grouped(rate)))
            .unwrap_or_default();
        let mut text = format!("{:<14}{run_id}\n{:<14}{}\n", "run id", "took", span(took) + &speed);
        let rows = [
            ("accepted", counts.accepted, ""),
            ("already known", counts.known, ""),
            ("differing", counts.differs, "not stored: their names stand for different tasks"),
            ("refused", counts.refused, ""),
            ("unknown", counts.unknown, "may be stored, or not"),
            ("not submitted", counts.not_submitted, ""),
        ];
        let width = rows.iter().map(|(_, count, _)| grouped(*count).len()).max().unwrap_or(1);
        for (name, count, why) in rows {
            // Other counts are shown only when they are not zero.
            if count > 0 || matches!(name, "accepted" | "already known" | "refused") {
                let row = format!("{name:<14}{:>width$}  {why}", grouped(count));
                text.push_str(row.trim_end());
                text.push('\n');
            }
        }
        if let Some(ranges) = self.unsettled.text() {
            text.push_str(&format!("{:<14}{ranges}\n", "to repeat"));
        }
        text
    }
}

/// Line numbers as ranges. The numbers arrive nearly in order.
#[derive(Debug, Default)]
struct Ranges(std::collections::BTreeMap<u64, u64>);

impl Ranges {
    fn insert(&mut self, number: u64) {
        let (mut first, mut last) = (number, number);
        if let Some((&before, &end)) = self.0.range(..=number).next_back()
            && end + 1 >= number
        {
            (first, last) = (before, end.max(number));
        }
        if let Some(end) = self.0.remove(&(last + 1)) {
            last = end;
        }
        self.0.insert(first, last);
    }

    fn first(&self) -> Option<u64> {
        self.0.keys().next().copied()
    }

    fn text(&self) -> Option<String> {
        let named: Vec<String> =
            self.0.iter().take(RANGES_MAX).map(|(first, last)| range_text(*first, *last)).collect();
        let more = self.0.len().saturating_sub(RANGES_MAX);
        let more = if more > 0 { format!(" and {more} more ranges") } else { String::new() };
        (!named.is_empty()).then(|| format!("lines {}{more}", named.join(", ")))
    }
}

fn range_text(first: u64, last: u64) -> String {
    if first == last { first.to_string() } else { format!("{first}-{last}") }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn settled(number: u64, outcome: LineOutcome) -> SettledLine {
        SettledLine { number, outcome }
    }

    #[test]
    fn a_run_goes_on_before_the_first_line_that_is_not_settled() {
        let mut tally = Tally::default();
        assert_eq!(tally.resume_line(), 1);
        assert_eq!(Tally::from_line(17).resume_line(), 17);
        tally.taken(1, 10);
        tally.taken(11, 20);
        tally.taken(21, 30);
        tally.settled(11, &[]);
        assert_eq!((tally.resume_line(), tally.exit()), (1, Some(Exit::Unknown)));
        tally.settled(1, &[]);
        assert_eq!(tally.resume_line(), 21);
        tally.settled(
            21,
            &[settled(25, LineOutcome::NotSubmitted), settled(26, LineOutcome::Unknown)],
        );
        assert_eq!((tally.resume_line(), tally.exit()), (25, Some(Exit::Unknown)));
        let mut tally = Tally::default();
        tally.taken(1, 10);
        tally.settled(1, &[settled(10, LineOutcome::NotSubmitted)]);
        assert_eq!((tally.resume_line(), tally.exit()), (10, Some(Exit::NothingDone)));
        let mut tally = Tally::default();
        tally.passed(1, 3);
        assert_eq!((tally.resume_line(), tally.exit()), (4, Some(Exit::Refused)));
    }

    #[test]
    fn ranges_of_lines_join() {
        let mut ranges = Ranges::default();
        for number in [5, 6, 9, 7, 1, 8, 20, 5] {
            ranges.insert(number);
        }
        assert_eq!(ranges.text().unwrap(), "lines 1, 5-9, 20");
        for number in (100..200).step_by(2) {
            ranges.insert(number);
        }
        assert!(ranges.text().unwrap().ends_with(" and 45 more ranges"), "{:?}", ranges.text());
    }

    #[test]
    fn a_summary_is_aligned_and_leaves_out_what_did_not_happen() {
        let counts = LineCounts { accepted: 9_998, refused: 2, ..LineCounts::default() };
        let text = Tally { counts, ..Tally::default() }.lines("r", Duration::from_millis(4_130));
        assert_eq!(
            text,
            "run id        r\n\
             took          4.1 s, 2,421 a second\n\
             accepted      9,998\n\
             already known     0\n\
             refused           2\n"
        );
    }
}
