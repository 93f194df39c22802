//! Compares the submitted tasks with the records that arrived: early, lost or duplicate tasks, and
//! the lateness of each.
//!
//! A task is identified by the key of its record: sixteen hexadecimal digits. The first half
//! identifies the run, so records of other runs can be ignored.

use az::SaturatingAs as _;
use parking_lot::{Mutex, MutexGuard};

use super::results::quantiles::Spans;
use super::results::report::{GuaranteeCounts, SeriesPoint};
use super::results::{float, float_of, ratio};

/// A task to be submitted.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Planned {
    /// The key of its record, as a number.
    pub key: u64,
    /// Milliseconds since the epoch.
    pub due_at: i64,
}

/// The answer to the submit of a task.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[repr(u8)]
pub enum Reply {
    /// No answer yet, or the answer was lost: the task may be stored.
    #[default]
    Unknown,
    Accepted,
    Refused,
}

/// The state of a task. It takes twelve bytes, because a soak has millions of tasks.
#[derive(Clone, Copy, Debug, Default)]
struct LedgerEntry {
    /// Milliseconds after the ledger's start. An earlier due time is stored as the start.
    due_at: u32,
    appended_at: u32,
    record_count: u8,
    reply: Reply,
}

/// The record of one run.
#[derive(Debug)]
pub struct Ledger {
    run: u32,
    /// Milliseconds since the epoch.
    started_at: i64,
    pages: Mutex<Pages>,
}

#[derive(Debug, Default)]
struct Pages {
    entries: Vec<LedgerEntry>,
    accepted_count: usize,
    /// Number of tasks that arrived and were accepted, or may have been.
    arrived_count: usize,
    first_at: Option<i64>,
    last_at: Option<i64>,
    reason: Option<String>,
}

/// A range of due times in milliseconds since the epoch. The end is exclusive.
pub type Range = std::ops::Range<i64>;

/// The figures of a run in progress.
#[derive(Clone, Copy, Debug)]
pub struct LedgerFigures {
    pub planned_count: usize,
    pub accepted_count: usize,
    pub arrived_count: usize,
    /// Append times of the first and the last record so far, milliseconds since the epoch.
    pub first_at: Option<i64>,
    pub last_at: Option<i64>,
}

impl Ledger {
    /// Creates a ledger. `run` distinguishes its tasks from those of other runs. `started_at` is in
    /// milliseconds since the epoch.
    pub fn new(run: u32, started_at: i64) -> Self {
        Self { run, started_at, pages: Mutex::default() }
    }

    /// Records a task that is about to be submitted.
    pub fn plan(&self, due_at: i64) -> Planned {
        let mut pages = self.pages();
        let serial = pages.entries.len().saturating_as::<u64>() & u64::from(u32::MAX);
        pages
            .entries
            .push(LedgerEntry { due_at: self.since_start(due_at), ..LedgerEntry::default() });
        Planned { key: (u64::from(self.run) << 32) | serial, due_at }
    }

    /// Records the answer to a submit, task by task. `reason` belongs to the first task that was
    /// not accepted.
    pub fn answered(
        &self,
        tasks: &[Planned],
        reply: impl Fn(usize) -> Reply,
        reason: Option<&str>,
    ) {
        let mut pages = self.pages();
        for (index, task) in tasks.iter().enumerate() {
            let reply = reply(index);
            let Some(entry) =
                self.index_of(task.key).and_then(|index| pages.entries.get_mut(index))
            else {
                continue;
            };
            entry.reply = reply;
            pages.accepted_count += usize::from(reply == Reply::Accepted);
        }
        if let Some(reason) = reason {
            pages.reason.get_or_insert_with(|| reason.to_owned());
        }
    }

    /// Records why the answer to a submit was lost.
    pub fn unanswered(&self, reason: &str) {
        self.pages().reason.get_or_insert_with(|| format!("no answer: {reason}"));
    }

    /// Records the arrival of a record. Records of other runs are ignored.
    pub fn arrived(&self, key: &[u8], appended_at: i64) {
        let Some(index) = self.number_of(key) else { return };
        let since_start = self.since_start(appended_at);
        let mut pages = self.pages();
        let Some(entry) = pages.entries.get_mut(index) else { return };
        entry.record_count = entry.record_count.saturating_add(1);
        if entry.record_count == 1 {
            entry.appended_at = since_start;
            pages.arrived_count += 1;
        }
        pages.first_at = Some(pages.first_at.map_or(appended_at, |at| at.min(appended_at)));
        pages.last_at = Some(pages.last_at.map_or(appended_at, |at| at.max(appended_at)));
    }

    /// Returns the number of the task of this run whose record has this key.
    pub fn number_of(&self, key: &[u8]) -> Option<usize> {
        parse(key).and_then(|key| self.index_of(key))
    }

    /// Returns the key of the task with this number, if there is one.
    pub fn key_of(&self, number: usize) -> Option<u64> {
        let is_there = number < self.pages().entries.len();
        is_there.then(|| (u64::from(self.run) << 32) | number.saturating_as::<u64>())
    }

    /// Returns the numbers of the tasks due within `due`. With `is_accepted`, only those of the
    /// accepted ones.
    pub fn numbers(&self, due: &Range, is_accepted: bool) -> Vec<usize> {
        let due = self.since_start(due.start)..self.since_start(due.end);
        let is_wanted = |entry: &LedgerEntry| {
            due.contains(&entry.due_at) && (!is_accepted || entry.reply == Reply::Accepted)
        };
        let pages = self.pages();
        let wanted = pages.entries.iter().enumerate().filter(|(_, entry)| is_wanted(entry));
        wanted.map(|(number, _)| number).collect()
    }

    pub fn snapshot(&self) -> LedgerFigures {
        let pages = self.pages();
        LedgerFigures {
            planned_count: pages.entries.len(),
            accepted_count: pages.accepted_count,
            arrived_count: pages.arrived_count,
            first_at: pages.first_at,
            last_at: pages.last_at,
        }
    }

    /// Returns the number of accepted tasks due before `before` with no record yet.
    pub fn missing_count(&self, before: i64) -> usize {
        let before = self.since_start(before);
        let is_missing = |entry: &&LedgerEntry| {
            entry.reply == Reply::Accepted && entry.record_count == 0 && entry.due_at < before
        };
        self.pages().entries.iter().filter(is_missing).count()
    }

    /// Returns why the first submit failed that was refused or got no answer.
    pub fn reason(&self) -> Option<String> {
        self.pages().reason.clone()
    }

    /// Returns how well the guarantees were kept over the whole run.
    pub fn counts(&self) -> GuaranteeCounts {
        self.counts_before(i64::MAX)
    }

    /// Returns how well the guarantees were kept for the tasks due before `due`.
    pub fn counts_before(&self, due: i64) -> GuaranteeCounts {
        let due = self.since_start(due);
        let mut counts = GuaranteeCounts::default();
        for entry in self.pages().entries.iter().filter(|entry| entry.due_at < due) {
            counts.submitted += 1;
            let has_arrived = entry.record_count > 0;
            match entry.reply {
                Reply::Accepted => counts.accepted += 1,
                Reply::Refused => counts.refused += 1,
                Reply::Unknown => counts.unknown += 1,
            }
            counts.arrived += u64::from(has_arrived);
            counts.early += u64::from(has_arrived && entry.appended_at < entry.due_at);
            counts.lost += u64::from(!has_arrived && entry.reply == Reply::Accepted);
            counts.duplicates += u64::from(entry.record_count.saturating_sub(1));
            counts.refused_but_published += u64::from(has_arrived && entry.reply == Reply::Refused);
        }
        counts
    }

    /// Returns the lateness (append time minus due time) of the tasks due within `due`.
    pub fn lateness(&self, due: &Range) -> Spans {
        let due = self.since_start(due.start)..self.since_start(due.end);
        let mut spans = Spans::default();
        let pages = self.pages();
        let measured = pages
            .entries
            .iter()
            .filter(|entry| entry.record_count > 0 && due.contains(&entry.due_at));
        measured.for_each(|entry| {
            spans.record_millis(u64::from(entry.appended_at.saturating_sub(entry.due_at)))
        });
        spans
    }

    /// Returns the lateness over time: one point for each `step_ms` of due time.
    pub fn series(&self, due: &Range, step_ms: u32) -> Vec<SeriesPoint> {
        let step_ms = step_ms.max(1);
        let due = self.since_start(due.start)..self.since_start(due.end);
        let length =
            usize::try_from((due.end.saturating_sub(due.start)).div_ceil(step_ms)).unwrap_or(0);
        let mut steps: Vec<Vec<u32>> = vec![Vec::new(); length];
        for entry in self
            .pages()
            .entries
            .iter()
            .filter(|entry| entry.record_count > 0 && due.contains(&entry.due_at))
        {
            let step = ((entry.due_at - due.start) / step_ms).saturating_as::<usize>();
            if let Some(step) = steps.get_mut(step) {
                step.push(entry.appended_at.saturating_sub(entry.due_at));
            }
        }
        let at = |step: usize| float_of(step) * f64::from(step_ms) / 1000.0;
        let spans = |step: &[u32]| {
            let mut spans = Spans::default();
            step.iter().for_each(|millis| spans.record_millis(u64::from(*millis)));
            spans
        };
        steps
            .iter()
            .enumerate()
            .map(|(number, step)| {
                SeriesPoint::of(at(number), &spans(step), f64::from(step_ms) / 1000.0)
            })
            .collect()
    }

    /// Returns the number of appends in each `step_ms`, from the first append on.
    pub fn appends(&self, step_ms: u32) -> Vec<SeriesPoint> {
        let pages = self.pages();
        let (Some(first), Some(last)) = (pages.first_at, pages.last_at) else { return Vec::new() };
        let (first, last, step_ms) =
            (self.since_start(first), self.since_start(last), step_ms.max(1));
        let seconds = f64::from(step_ms) / 1000.0;
        let length = usize::try_from((last - first) / step_ms).unwrap_or(0) + 1;
        let mut moments: Vec<SeriesPoint> = vec![SeriesPoint::default(); length];
        for entry in pages.entries.iter().filter(|entry| entry.record_count > 0) {
            let step = (entry.appended_at.saturating_sub(first) / step_ms).saturating_as::<usize>();
            if let Some(moment) = moments.get_mut(step) {
                moment.count += 1;
            }
        }
        for (step, moment) in moments.iter_mut().enumerate() {
            moment.at = float_of(step) * seconds;
            moment.rate = ratio(float(moment.count), seconds);
        }
        moments
    }

    /// Returns the numbers of first appends in equal parts of a range of time.
    pub fn appended_within(&self, range: &Range, part_count: usize) -> Vec<u64> {
        let range = self.since_start(range.start)..self.since_start(range.end);
        let length = u64::from((range.end - range.start).max(1));
        let mut counts = vec![0; part_count];
        for entry in self.pages().entries.iter().filter(|entry| entry.record_count > 0) {
            if range.contains(&entry.appended_at) {
                let since = u64::from(entry.appended_at - range.start);
                let part = since * part_count.saturating_as::<u64>() / length;
                counts[part.saturating_as::<usize>()] += 1;
            }
        }
        counts
    }

    fn index_of(&self, key: u64) -> Option<usize> {
        (key >> 32 == u64::from(self.run))
            .then(|| usize::try_from(key & u64::from(u32::MAX)).ok())?
    }

    fn since_start(&self, at: i64) -> u32 {
        at.saturating_sub(self.started_at).max(0).saturating_as::<u32>()
    }

    fn pages(&self) -> MutexGuard<'_, Pages> {
        self.pages.lock()
    }
}

/// Returns the key as it is written in the record.
pub fn written(key: u64) -> [u8; 16] {
    const DIGITS: &[u8; 16] = b"0123456789abcdef";
    let mut text = [0; 16];
    for (index, byte) in text.iter_mut().enumerate() {
        let digit = usize::try_from((key >> (60 - 4 * index)) & 15).unwrap_or(0);
        *byte = DIGITS[digit];
    }
    text
}

fn parse(key: &[u8]) -> Option<u64> {
    let text = std::str::from_utf8(key).ok().filter(|text| text.len() == 16)?;
    u64::from_str_radix(text, 16).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    const START: i64 = 1_700_000_000_000;

    fn accept(ledger: &Ledger, due_at: i64) -> [u8; 16] {
        let task = ledger.plan(due_at);
        ledger.answered(&[task], |_| Reply::Accepted, None);
        written(task.key)
    }

    #[test]
    fn a_key_is_read_as_it_was_written() {
        for key in [0, 0x0123_4567_89ab_cdef, u64::MAX] {
            assert_eq!(parse(&written(key)), Some(key));
        }
        assert_eq!(parse(b"0123"), None);
        assert_eq!(parse(b"not-hexadecimal!"), None);
    }

    #[test]
    fn what_was_accepted_and_never_came_is_lost() {
        let ledger = Ledger::new(7, START);
        let (first, _second) = (accept(&ledger, START + 10), accept(&ledger, START + 20));
        ledger.arrived(&first, START + 12);
        let counts = ledger.counts();
        assert_eq!((counts.accepted, counts.arrived, counts.lost), (2, 1, 1));
        assert_eq!(ledger.missing_count(START + 20), 0, "the lost one was not due before that");
        assert_eq!(ledger.missing_count(START + 21), 1);
    }

    #[test]
    fn what_was_refused_or_not_answered_is_not_lost_when_it_does_not_come() {
        let ledger = Ledger::new(7, START);
        let (refused, _unanswered) = (ledger.plan(START), ledger.plan(START));
        ledger.answered(&[refused], |_| Reply::Refused, Some("no such topic"));
        let counts = ledger.counts();
        assert_eq!(
            (counts.refused, counts.unknown, counts.lost, counts.refused_but_published),
            (1, 1, 0, 0)
        );
        assert_eq!(ledger.reason().as_deref(), Some("no such topic"));
        ledger.arrived(&written(refused.key), START);
        assert_eq!(ledger.counts().refused_but_published, 1);
    }

    #[test]
    fn a_second_record_is_a_duplicate_and_the_first_one_tells_the_lateness() {
        let ledger = Ledger::new(7, START);
        let key = accept(&ledger, START + 10);
        ledger.arrived(&key, START + 13);
        ledger.arrived(&key, START + 500);
        let counts = ledger.counts();
        assert_eq!((counts.arrived, counts.duplicates), (1, 1));
        assert_eq!(ledger.lateness(&(START..START + 100)).at(1.0), 3.0);
    }

    #[test]
    fn a_record_before_its_due_time_is_early() {
        let ledger = Ledger::new(7, START);
        let (early, exact) = (accept(&ledger, START + 10), accept(&ledger, START + 10));
        ledger.arrived(&early, START + 9);
        ledger.arrived(&exact, START + 10);
        assert_eq!(ledger.counts().early, 1);
    }

    #[test]
    fn records_of_other_runs_are_passed_over() {
        let (ledger, other) = (Ledger::new(7, START), Ledger::new(8, START));
        accept(&ledger, START);
        ledger.arrived(&accept(&other, START), START);
        ledger.arrived(b"somebody else's", START);
        assert_eq!(ledger.snapshot().arrived_count, 0);
    }

    #[test]
    fn appends_are_counted_in_equal_parts_of_a_range() {
        let ledger = Ledger::new(7, START);
        for at in [99, 100, 149, 150, 199, 200] {
            let key = accept(&ledger, START);
            ledger.arrived(&key, START + at);
        }
        assert_eq!(ledger.appended_within(&(START + 100..START + 200), 2), [2, 2]);
    }

    #[test]
    fn only_what_is_due_in_the_range_is_measured() {
        let ledger = Ledger::new(7, START);
        for (due_at, late) in [(0, 99), (1000, 1), (1999, 3), (2000, 99)] {
            let key = accept(&ledger, START + due_at);
            ledger.arrived(&key, START + due_at + late);
        }
        let range = START + 1000..START + 2000;
        assert_eq!(ledger.lateness(&range).quantiles().unwrap().count, 2);
        let series = ledger.series(&range, 500);
        assert_eq!(
            series.iter().map(|moment| (moment.count, moment.max)).collect::<Vec<_>>(),
            [(1, 1.0), (1, 3.0)]
        );
        assert_eq!(series[1].at, 0.5);
    }
}
