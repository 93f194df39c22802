//! A moment of the cluster's clock.

use std::fmt;
use std::time::Duration;

use az::SaturatingAs as _;

/// Microseconds since the Unix epoch by the clock of the cluster (Postgres's `clock_timestamp()`).
///
/// Due times are whole milliseconds. They are compared with a clock of microseconds.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Timestamp(i64);

impl Timestamp {
    /// The last moment that fits the 48 bits of a task id: the year 10889.
    pub const MAX: Self = Self(((1_i64 << 48) - 1) * 1000);
    pub const EPOCH: Self = Self(0);

    pub const fn from_micros(micros: i64) -> Self {
        Self(micros)
    }

    /// Converts milliseconds since the epoch, clamped to the range of a task id: 0 to 2^48 - 1.
    pub fn from_millis(millis: i64) -> Self {
        Self(millis.clamp(0, Self::MAX.as_millis()).saturating_mul(1000))
    }

    /// Parses RFC 3339 with a zone, and rounds up to whole milliseconds, but not beyond the latest
    /// time that is read: what is answered can be read again. Returns `None` for other text, and
    /// for a moment outside the range of [`Self::from_millis`].
    pub fn of_rfc3339(text: &str) -> Option<Self> {
        let at: jiff::Timestamp = text.parse().ok()?;
        let millis =
            i64::try_from(at.as_nanosecond().saturating_add(999_999).div_euclid(1_000_000)).ok()?;
        let millis = millis.min(jiff::Timestamp::MAX.as_millisecond());
        let read = Self::from_millis(millis);
        (read.as_millis() == millis).then_some(read)
    }

    pub const fn as_micros(self) -> i64 {
        self.0
    }

    /// Returns whole milliseconds, rounded down: a moment within a millisecond belongs to that
    /// millisecond.
    pub const fn as_millis(self) -> i64 {
        self.0.div_euclid(1000)
    }

    /// Returns the start of this moment's millisecond.
    #[must_use]
    pub const fn floor_millis(self) -> Self {
        Self(self.as_millis().saturating_mul(1000))
    }

    /// Returns the first whole millisecond that is not before this moment.
    #[must_use]
    pub const fn ceil_millis(self) -> Self {
        Self(self.0.saturating_add(999)).floor_millis()
    }

    #[must_use]
    pub fn plus(self, span: Duration) -> Self {
        Self(self.0.saturating_add(micros_of(span)))
    }

    #[must_use]
    pub fn minus(self, span: Duration) -> Self {
        Self(self.0.saturating_sub(micros_of(span)))
    }

    /// Returns the time from `earlier` to this moment, or zero when `earlier` is later.
    pub fn since(self, earlier: Self) -> Duration {
        Duration::from_micros(u64::try_from(self.0.saturating_sub(earlier.0)).unwrap_or(0))
    }

    /// Returns this moment minus `other` in microseconds. The result is negative when `other` is
    /// later.
    pub const fn micros_after(self, other: Self) -> i64 {
        self.0.saturating_sub(other.0)
    }
}

impl fmt::Display for Timestamp {
    /// Writes RFC 3339 in UTC, or the microseconds when no calendar has the moment.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match jiff::Timestamp::from_microsecond(self.0) {
            Ok(at) => write!(f, "{at}"),
            Err(_beyond_the_calendar) => write!(f, "{} us", self.0),
        }
    }
}

impl fmt::Debug for Timestamp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{:03}ms", self.as_millis(), self.0.rem_euclid(1000))
    }
}

fn micros_of(span: Duration) -> i64 {
    span.as_micros().saturating_as::<i64>()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_moment_within_a_millisecond_belongs_to_it() {
        assert_eq!(Timestamp::from_micros(1_999).as_millis(), 1);
        assert_eq!(Timestamp::from_micros(-1).as_millis(), -1);
        assert_eq!(Timestamp::from_micros(1_999).floor_millis(), Timestamp::from_millis(1));
        assert_eq!(Timestamp::from_micros(1_001).ceil_millis(), Timestamp::from_millis(2));
        assert_eq!(Timestamp::from_micros(2_000).ceil_millis(), Timestamp::from_millis(2));
    }

    #[test]
    fn rfc_3339_is_read_up_to_the_next_millisecond() {
        for (text, millis) in [
            ("2030-01-31T09:30:00Z", Some(1_896_082_200_000)),
            ("2030-01-31T10:30:00.2500001+01:00", Some(1_896_082_200_251)),
            ("1969-12-31T23:59:59Z", None),
            ("2030-01-31T09:30:00", None),
            ("1896082200000", None),
            ("9999-12-30T22:00:00.9999999Z", Some(253_402_207_200_999)),
        ] {
            assert_eq!(Timestamp::of_rfc3339(text).map(Timestamp::as_millis), millis, "{text}");
        }
    }

    #[test]
    fn a_moment_is_written_as_rfc_3339() {
        let told = |millis| Timestamp::from_millis(millis).to_string();
        assert_eq!(told(1_896_082_200_000), "2030-01-31T09:30:00Z");
        assert_eq!(told(1_896_082_200_251), "2030-01-31T09:30:00.251Z");
        assert_eq!(Timestamp::from_micros(i64::MAX).to_string(), "9223372036854775807 us");
    }

    #[test]
    fn sums_stay_within_bounds() {
        assert_eq!(Timestamp::from_millis(i64::MAX), Timestamp::MAX);
        assert_eq!(
            Timestamp::from_micros(i64::MAX).plus(Duration::MAX),
            Timestamp::from_micros(i64::MAX)
        );
        assert_eq!(Timestamp::EPOCH.since(Timestamp::MAX), Duration::ZERO);
    }
}
