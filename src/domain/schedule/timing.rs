//! When the runs of a schedule are due: a pure function from one instant to the next.
//!
//! A cron expression matches local times. The rules of its zone are cut into pieces with one offset
//! from UTC each. Within a piece, a local time is an instant. At the border of two pieces the
//! clocks change:
//!
//! ```text
//! forward: local times of the gap do not exist     skip: no run   shift: a run after the gap
//! back:    local times of the overlap occur twice  first: the earlier   both: each of them
//! ```

use std::collections::BTreeSet;
use std::time::Duration;

use az::SaturatingAs as _;
use jiff::civil::{Date, DateTime};
use jiff::tz::Offset;
use thiserror::Error;

use super::cron::Cron;
use super::zone::Zone;
use crate::domain::Timestamp;
use crate::domain::time::duration::spelled;

/// The shortest and the longest period of a schedule.
const PERIOD_MIN: Duration = Duration::from_secs(1);
const PERIOD_MAX: Duration = Duration::from_secs(366 * 86_400);
/// The most excluded days.
pub const EXCLUDED_MAX: usize = 366;
/// The search ends after this many changes of the clocks: at two a year, beyond the 41 years of
/// [`Cron::next`].
const CHANGES_MAX: usize = 200;

/// The reason why a specification is refused.
#[derive(Clone, PartialEq, Eq, Debug, Error)]
#[error("{field}: {reason}")]
pub struct SpecificationError {
    pub field: &'static str,
    pub reason: String,
}

impl SpecificationError {
    pub fn new(field: &'static str, reason: impl Into<String>) -> Self {
        Self { field, reason: reason.into() }
    }
}

/// The rule for a local time that does not exist, because the clocks skip it.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Gap {
    Skip,
    /// Runs at the first moment after the gap.
    #[default]
    Shift,
}

/// The rule for a local time that occurs twice, because the clocks are set back.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Overlap {
    #[default]
    First,
    Both,
}

/// How runs follow each other.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Recurrence {
    Cron {
        cron: Cron,
        zone: Zone,
        gap: Gap,
        overlap: Overlap,
    },
    /// At the epoch + `phase` + n * `period`, in whole milliseconds.
    Every {
        period: Duration,
        phase: Duration,
    },
}

/// The instants of a schedule.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Timing {
    recurrence: Recurrence,
    starts_at: Option<Timestamp>,
    ends_at: Option<Timestamp>,
    excluded: BTreeSet<Date>,
}

impl Gap {
    pub const ALL: [Self; 2] = [Self::Skip, Self::Shift];

    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Skip => "skip",
            Self::Shift => "shift",
        }
    }

    pub fn named(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|gap| gap.as_str() == name)
    }
}

impl Overlap {
    pub const ALL: [Self; 2] = [Self::First, Self::Both];

    pub const fn as_str(self) -> &'static str {
        match self {
            Self::First => "first",
            Self::Both => "both",
        }
    }

    pub fn named(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|overlap| overlap.as_str() == name)
    }
}

impl Recurrence {
    /// Checks a period and its phase.
    ///
    /// # Errors
    /// Names the field that is wrong.
    pub fn every(period: Duration, phase: Duration) -> Result<Self, SpecificationError> {
        if !(PERIOD_MIN..=PERIOD_MAX).contains(&period) {
            let reason = format!(
                "the period is {}; expected {} to {}",
                spelled(period),
                spelled(PERIOD_MIN),
                spelled(PERIOD_MAX)
            );
            return Err(SpecificationError::new("every", reason));
        }
        if phase >= period {
            let reason = format!(
                "the phase is {}; expected less than the period, {}",
                spelled(phase),
                spelled(period)
            );
            return Err(SpecificationError::new("phase", reason));
        }
        for (field, span) in [("every", period), ("phase", phase)] {
            if span.subsec_nanos() % 1_000_000 != 0 {
                return Err(SpecificationError::new(field, "expected whole milliseconds"));
            }
        }
        Ok(Self::Every { period, phase })
    }

    /// Returns the first instant after `after`.
    fn next_after(&self, after: Timestamp) -> Option<Timestamp> {
        match self {
            Self::Every { period, phase } => next_of_period(*period, *phase, after),
            Self::Cron { cron, zone, gap, overlap } => {
                LocalTimes { cron, zone, gap: *gap, overlap: *overlap }.next_after(after)
            }
        }
    }

    fn zone(&self) -> Option<&Zone> {
        match self {
            Self::Cron { zone, .. } => Some(zone),
            Self::Every { .. } => None,
        }
    }
}

impl Timing {
    /// Limits a recurrence to the time from `starts_at` (inclusive) to `ends_at` (exclusive), and
    /// to days that are not excluded. Days are local to the zone, and without one those of UTC.
    ///
    /// # Errors
    /// Names the field that is wrong.
    pub fn new(
        recurrence: Recurrence,
        starts_at: Option<Timestamp>,
        ends_at: Option<Timestamp>,
        excluded: BTreeSet<Date>,
    ) -> Result<Self, SpecificationError> {
        if let (Some(starts_at), Some(ends_at)) = (starts_at, ends_at)
            && ends_at <= starts_at
        {
            let reason = format!("the end, {ends_at}, is not after starts_at, {starts_at}");
            return Err(SpecificationError::new("ends_at", reason));
        }
        if excluded.len() > EXCLUDED_MAX {
            let reason =
                format!("{} days are excluded; expected {EXCLUDED_MAX} at most", excluded.len());
            return Err(SpecificationError::new("exclude", reason));
        }
        Ok(Self { recurrence, starts_at, ends_at, excluded })
    }

    pub fn recurrence(&self) -> &Recurrence {
        &self.recurrence
    }

    pub fn starts_at(&self) -> Option<Timestamp> {
        self.starts_at
    }

    pub fn ends_at(&self) -> Option<Timestamp> {
        self.ends_at
    }

    pub fn excluded(&self) -> &BTreeSet<Date> {
        &self.excluded
    }

    /// Returns the first instant after `after`, or `None` when the schedule has ended.
    pub fn next_after(&self, after: Timestamp) -> Option<Timestamp> {
        let before_start = self.starts_at.map(|starts_at| starts_at.minus(MILLISECOND));
        let mut after = before_start.map_or(after, |before| before.max(after));
        // Each turn of the loop leaves an excluded day behind. A day that the clocks come back to
        // takes two turns.
        for _day in 0..=2 * EXCLUDED_MAX {
            let next = self.recurrence.next_after(after)?;
            if self.ends_at.is_some_and(|ends_at| next >= ends_at) {
                return None;
            }
            let day = self.day_of(next)?;
            if !self.excluded.contains(&day) {
                return Some(next);
            }
            after = self.end_of(day)?.minus(MILLISECOND).max(next);
        }
        None
    }

    /// Returns the instants after `after`, in order. Each is computed when it is asked for, because
    /// the search for a rare one takes long.
    pub fn instants_after(&self, after: Timestamp) -> impl Iterator<Item = Timestamp> {
        let mut last = after;
        std::iter::from_fn(move || {
            last = self.next_after(last)?;
            Some(last)
        })
    }

    fn day_of(&self, at: Timestamp) -> Option<Date> {
        let at = jiff::Timestamp::from_millisecond(at.as_millis()).ok()?;
        let offset = self.recurrence.zone().map_or(Offset::UTC, |zone| zone.rules().to_offset(at));
        Some(offset.to_datetime(at).date())
    }

    /// Returns the first moment after a day.
    fn end_of(&self, day: Date) -> Option<Timestamp> {
        let midnight = day.tomorrow().ok()?.to_datetime(jiff::civil::Time::midnight());
        let at = match self.recurrence.zone() {
            Some(zone) => zone.rules().to_timestamp(midnight).ok()?,
            None => Offset::UTC.to_timestamp(midnight).ok()?,
        };
        Some(Timestamp::from_millis(at.as_millisecond()))
    }
}

const MILLISECOND: Duration = Duration::from_millis(1);

fn next_of_period(period: Duration, phase: Duration, after: Timestamp) -> Option<Timestamp> {
    let millis = |span: Duration| span.as_millis().saturating_as::<i64>();
    let (period, phase) = (millis(period).max(1), millis(phase));
    let passed = after.as_millis().saturating_sub(phase).div_euclid(period);
    let next = passed.checked_add(1)?.checked_mul(period)?.checked_add(phase)?;
    (next <= Timestamp::MAX.as_millis()).then(|| Timestamp::from_millis(next))
}

/// The instants at which the local time of a zone matches a cron expression.
struct LocalTimes<'a> {
    cron: &'a Cron,
    zone: &'a Zone,
    gap: Gap,
    overlap: Overlap,
}

/// A stretch of time during which a zone has one offset.
struct Piece {
    offset: Offset,
    /// The change of the clocks at its beginning, with the offset before.
    begins: Option<(jiff::Timestamp, Offset)>,
    ends_at: Option<jiff::Timestamp>,
}

impl LocalTimes<'_> {
    fn next_after(&self, after: Timestamp) -> Option<Timestamp> {
        let mut from =
            jiff::Timestamp::from_second(after.as_millis().div_euclid(1000).checked_add(1)?)
                .ok()?;
        for _change in 0..CHANGES_MAX {
            let piece = self.piece_at(from);
            if let Some(found) = self.first_in(&piece, from) {
                return Some(Timestamp::from_millis(found.as_millisecond()));
            }
            from = piece.ends_at?;
        }
        None
    }

    fn piece_at(&self, at: jiff::Timestamp) -> Piece {
        let rules = self.zone.rules();
        let moment = jiff::SignedDuration::from_nanos(1);
        let begins = at
            .checked_add(moment)
            .ok()
            .and_then(|later| rules.preceding(later).next())
            .map(|change| change.timestamp())
            .and_then(|change| Some((change, rules.to_offset(change.checked_sub(moment).ok()?))));
        let ends_at = rules.following(at).next().map(|change| change.timestamp());
        Piece { offset: rules.to_offset(at), begins, ends_at }
    }

    /// Returns the first instant of a piece that is not before `from`.
    fn first_in(&self, piece: &Piece, from: jiff::Timestamp) -> Option<jiff::Timestamp> {
        let mut local = piece.offset.to_datetime(from);
        if let Some((change, before)) = piece.begins {
            let (old, new) = (before.to_datetime(change), piece.offset.to_datetime(change));
            let is_at_gap = change == from && old < new;
            if is_at_gap && self.gap == Gap::Shift && self.cron.next(old, new).is_some() {
                return Some(change);
            }
            if new < old && self.overlap == Overlap::First {
                local = local.max(old);
            }
        }
        let end = piece.ends_at.map_or(DateTime::MAX, |end| piece.offset.to_datetime(end));
        piece.offset.to_timestamp(self.cron.next(local, end)?).ok()
    }
}

#[cfg(test)]
mod tests;
