//! Postgres's clock, modelled as the machine's clock and the changes made to it: the offset over
//! time.
//!
//! Due times are by Postgres's clock, and so is the check that no record is early. Append times,
//! answers and operations are by the machine's clock, which is Kafka's. The oracle therefore
//! translates between the two. A change takes effect between the moments just before and just after
//! it was made. Within that interval either offset may count, and there is no uncertainty anywhere
//! else.

use az::SaturatingAs as _;

/// A change of Postgres's clock. Times are microseconds since the epoch by the machine's clock.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Change {
    /// The moment just before the change. The offset counts from here on.
    pub before_us: i64,
    /// The moment just after the change.
    pub after_us: i64,
    /// How far Postgres's clock was ahead at `before_us`.
    pub offset_us: i64,
    /// How much further ahead it gets, in microseconds per second.
    pub ppm: i64,
}

/// Postgres's answer when it was asked for the time.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Reading {
    pub asked_us: i64,
    pub shown_us: i64,
    pub answered_us: i64,
}

/// Postgres's clock over a run. Without changes it is the machine's clock.
#[derive(Clone, Default, Debug)]
pub struct PostgresClock {
    pub changes: Vec<Change>,
    /// Readings, which show that the changes took effect.
    pub readings: Vec<Reading>,
}

/// The last microsecond of a millisecond, for times truncated to whole milliseconds.
const LAST_US: i64 = 999;
/// The tolerance of readings, because microseconds are truncated.
const SLACK_US: i64 = 10;
/// A node notices a step of Postgres's clock within this time. Until then its due times are by the
/// clock as it was.
const STEP_UNNOTICED_MAX_MS: i64 = 60_000;
/// How far a slewed clock may get away from the node's within that time.
const SLEW_MAX_MS: i64 = 50;

impl Change {
    /// The machine's clock, untouched.
    const NONE: Self =
        Self { before_us: i64::MIN / 4, after_us: i64::MIN / 4, offset_us: 0, ppm: 0 };

    /// Returns how far Postgres's clock is ahead at a moment.
    pub fn offset_at(&self, machine_us: i64) -> i64 {
        self.offset_us + (machine_us - self.before_us).max(0) * self.ppm / 1_000_000
    }

    /// Returns the first moment from which on Postgres's clock shows this time, if there were no
    /// other change.
    fn first_shows(&self, shown_us: i64) -> i64 {
        let ahead = shown_us - self.before_us - self.offset_us;
        if self.ppm == 0 || ahead <= 0 {
            return self.before_us.max(shown_us - self.offset_us);
        }
        self.before_us
            + (i128::from(ahead) * 1_000_000 / i128::from(1_000_000 + self.ppm))
                .saturating_as::<i64>()
    }
}

impl PostgresClock {
    /// Returns each change with the last moment when it may have counted.
    fn lines(&self) -> impl Iterator<Item = (Change, i64)> {
        let ends = self.changes.iter().map(|next| next.after_us).chain([i64::MAX]);
        [Change::NONE].into_iter().chain(self.changes.iter().copied()).zip(ends)
    }

    /// Returns all changes that may have counted at some time between two moments.
    fn between(&self, from_us: i64, to_us: i64) -> impl Iterator<Item = Change> {
        self.lines()
            .filter(move |(change, end)| change.before_us <= to_us && *end >= from_us)
            .map(|(change, _)| change)
    }

    /// Returns the latest time that Postgres's clock may have shown within a millisecond of the
    /// machine's clock.
    pub fn latest(&self, machine_ms: i64) -> i64 {
        let (from, to) = (machine_ms * 1000, machine_ms * 1000 + LAST_US);
        let latest = self.between(from, to).map(|change| to + change.offset_at(to)).max();
        latest.unwrap_or(to).div_euclid(1000)
    }

    /// Returns the earliest time that Postgres's clock may have shown within a millisecond of the
    /// machine's clock.
    pub fn earliest(&self, machine_ms: i64) -> i64 {
        let (from, to) = (machine_ms * 1000, machine_ms * 1000 + LAST_US);
        let earliest = self.between(from, to).map(|change| from + change.offset_at(from)).min();
        earliest.unwrap_or(from).div_euclid(1000)
    }

    /// Returns the time of Postgres's clock as a node knew it, at the earliest: it may not have
    /// noticed the last steps.
    pub fn known_at(&self, machine_ms: i64) -> i64 {
        let before = self.earliest(machine_ms - STEP_UNNOTICED_MAX_MS) + STEP_UNNOTICED_MAX_MS;
        let shown = self.earliest(machine_ms);
        if self.changes.is_empty() { shown } else { shown.min(before) - SLEW_MAX_MS }
    }

    /// Returns the first millisecond of the machine's clock at which Postgres's clock may have
    /// shown this time.
    pub fn reached(&self, shown_ms: i64) -> i64 {
        let firsts = self.lines().map(|(change, end)| (change.first_shows(shown_ms * 1000), end));
        let first = firsts.filter(|(first, end)| first <= end).map(|(first, _)| first).min();
        first.unwrap_or(shown_ms * 1000).div_euclid(1000)
    }

    /// Returns a reading that the changes do not explain.
    pub fn wrong_reading(&self) -> Option<Reading> {
        let is_wrong = |reading: &&Reading| {
            let changes = || self.between(reading.asked_us, reading.answered_us);
            let low =
                changes().map(|change| reading.asked_us + change.offset_at(reading.asked_us)).min();
            let high = changes()
                .map(|change| reading.answered_us + change.offset_at(reading.answered_us))
                .max();
            low.is_none_or(|low| reading.shown_us < low - SLACK_US)
                || high.is_none_or(|high| reading.shown_us > high + SLACK_US)
        };
        self.readings.iter().find(is_wrong).copied()
    }
}
