//! Times as the API reads and writes them. Times are rounded up to whole milliseconds when read, so
//! that no task is ever early.

#[cfg(test)]
mod tests;

use std::fmt;
use std::time::Duration;

use az::SaturatingAs as _;
use jiff::civil::DateTime;
use serde::{Serialize, Serializer};
use serde_json::value::RawValue;

use super::values::{kind_of, shown, string_of, unlike};
use super::zones::{Zone, offset_of};
use crate::domain::Timestamp;

/// The last millisecond of the year 9999 in UTC, which is the last that RFC 3339 can write.
const MILLIS_MAX: i64 = 253_402_300_799_999;
const EPOCH: DateTime = DateTime::constant(1970, 1, 1, 0, 0, 0, 0);
/// The smallest integer that is accepted as a due time (March 1973). Smaller ones are seconds by
/// mistake, or a zero that nobody set, and would be published at once.
const MILLIS_MIN: i64 = 100_000_000_000;
/// The longest delay: 1000 years. A longer one is a mistake on any cluster. Below it, `--delay-max`
/// decides.
const DELAY_MILLIS_MAX: u64 = 1000 * 366 * 86_400_000;
/// The digits of the largest number that fits.
const DIGITS_MAX: usize = 20;
/// The longest text of a delay. No meaningful delay is longer, so the parser never sees more.
const DELAY_CHARS_MAX: usize = 200;
/// The longest text of a due time. No time with a zone is longer.
const DUE_AT_CHARS_MAX: usize = 200;

/// The characters of a date such as `2030-01-31`.
const DATE_CHARS: usize = 10;

const DUE_AT: &str = "RFC 3339 with a zone, such as \"2030-01-31T09:30:00Z\", \
                      \"2030-01-31T09:30:00.250+01:00\" or \"2030-01-31T09:30[Europe/Berlin]\", or \
                      whole milliseconds since the epoch";
const DELAY: &str = "\"30m\", \"1h 30m\", ISO 8601 such as \"PT30M\", or whole milliseconds";

/// Reads a due time. The error says why it is wrong.
pub fn due_at(value: &RawValue) -> Result<Timestamp, String> {
    let text = value.get();
    match kind_of(text) {
        "a string" => due_at_of_text(&string_of(value)?),
        "a number" => due_at_of_millis(text),
        _ => Err(unlike(text, DUE_AT)),
    }
}

/// Reads a due time from a query parameter. An unescaped plus in a query becomes a space. Except
/// between a date and its time, a space is therefore read as the plus of an offset.
pub fn due_at_of_parameter(text: &str) -> Result<Timestamp, String> {
    if is_digits(text) {
        return due_at_of_millis(text);
    }
    match text.split_at_checked(DATE_CHARS + 1) {
        Some((date, rest)) if rest.contains(' ') => {
            due_at_of_text(&format!("{date}{}", rest.replace(' ', "+")))
        }
        _ => due_at_of_text(text),
    }
}

/// Reads a delay. The error says why it is wrong.
pub fn delay(value: &RawValue) -> Result<Duration, String> {
    let text = value.get();
    match kind_of(text) {
        "a string" => delay_of_text(&string_of(value)?),
        "a number" => delay_of_millis(text),
        _ => Err(unlike(text, DELAY)),
    }
}

fn due_at_of_millis(text: &str) -> Result<Timestamp, String> {
    let millis = whole_number(text, DUE_AT)?;
    let millis = millis.saturating_as::<i64>();
    if millis < MILLIS_MIN {
        return Err(
            "as milliseconds since the epoch, this is before March 1973; are these seconds?"
                .to_owned(),
        );
    }
    if millis > MILLIS_MAX {
        return Err("as milliseconds since the epoch, this is after the year 9999 (UTC)".to_owned());
    }
    Ok(Timestamp::from_millis(millis))
}

fn delay_of_millis(text: &str) -> Result<Duration, String> {
    let millis = whole_number(text, DELAY)?;
    if millis > DELAY_MILLIS_MAX {
        return Err("as milliseconds, this is more than 1000 years".to_owned());
    }
    Ok(Duration::from_millis(millis))
}

/// Reads a JSON number whose value is whole and not negative, in any notation. JSON Schema counts
/// `1.0` as an integer, and some languages write it.
pub fn whole_number(text: &str, right: &str) -> Result<u64, String> {
    let (mantissa, exponent) = text.split_once(['e', 'E']).unwrap_or((text, "0"));
    let (is_negative, mantissa) =
        mantissa.strip_prefix('-').map_or((false, mantissa), |rest| (true, rest));
    let (whole, fraction) = mantissa.split_once('.').unwrap_or((mantissa, ""));
    let mut digits = format!("{whole}{fraction}");
    if digits.bytes().all(|digit| digit == b'0') {
        return Ok(0);
    }
    if is_negative {
        return Err(format!("this is negative; expected {right}"));
    }
    let beyond = || format!("this is out of range; expected {right}");
    let exponent: i64 = exponent.parse().map_err(|_beyond| beyond())?;
    let decimals = fraction.len().saturating_as::<i64>().saturating_sub(exponent);
    if let Ok(zeros) = usize::try_from(decimals.saturating_neg()) {
        if zeros > DIGITS_MAX {
            return Err(beyond());
        }
        digits.push_str(&"0".repeat(zeros));
    } else {
        let decimals = decimals.saturating_as::<usize>();
        let end = digits.len().saturating_sub(decimals);
        if digits[end..].bytes().any(|digit| digit != b'0') {
            return Err(format!("this is not a whole number; expected {right}"));
        }
        digits.truncate(end);
    }
    let number = digits.parse::<u64>().ok().filter(|number| *number <= i64::MAX.unsigned_abs());
    number.ok_or_else(beyond)
}

fn due_at_of_text(text: &str) -> Result<Timestamp, String> {
    let wrong = |why: &str| format!("{:?} {why}; expected {DUE_AT}", shown(text));
    if text.len() > DUE_AT_CHARS_MAX {
        return Err(wrong("is too long for a time"));
    }
    let (given, suffix) = text.split_at(text.find('[').unwrap_or(text.len()));
    let shape = shape_of(given).ok_or_else(|| wrong(reason_against(given)))?;
    let zone = Zone::of_suffix(suffix).map_err(|why| wrong(&why))?;
    let at = shape.date_time().ok_or_else(|| wrong("is not a valid date and time"))?;
    let seconds = match (shape.offset().ok_or_else(|| wrong("is not a valid date and time"))?, zone)
    {
        // The moment is fixed. The zone only says how to show it.
        (GivenOffset::Utc, _) => 0,
        (GivenOffset::Offset(seconds), Some(zone)) => {
            zone.check(seconds, at).map(|()| seconds).map_err(|why| wrong(&why))?
        }
        (GivenOffset::Offset(seconds), None) => seconds,
        (GivenOffset::Nothing, Some(zone)) => zone.offset_at(at).map_err(|why| wrong(&why))?,
        (GivenOffset::Nothing, None) => {
            return Err(wrong("has no time zone"));
        }
    };
    let nanos = shape.nanos_since_epoch(at, seconds);
    match i64::try_from(nanos.saturating_add(999_999).div_euclid(1_000_000)) {
        Ok(millis) if (0..=MILLIS_MAX).contains(&millis) => Ok(Timestamp::from_millis(millis)),
        Ok(millis) if millis < 0 => Err(wrong("is before 1970")),
        _ => Err(wrong("is after the year 9999 (UTC)")),
    }
}

/// A text in the form of RFC 3339, with up to nine digits of a fraction. The seconds may be
/// missing, as in Java's output, and so may the offset. jiff alone accepts more forms, and its
/// timestamps end some hours before the year 9999 does.
struct TimeText<'a> {
    date_time: &'a str,
    offset: &'a [u8],
}

/// The offset that follows a time.
enum GivenOffset {
    Nothing,
    /// `Z` or `-00:00`: the moment is known, but not where it was written.
    Utc,
    /// An offset in seconds.
    Offset(i32),
}

fn shape_of(text: &str) -> Option<TimeText<'_>> {
    let (minutes, rest) = text.as_bytes().split_at_checked(16)?;
    let is_shaped = minutes.iter().enumerate().all(|(at, byte)| match at {
        4 | 7 => *byte == b'-',
        10 => matches!(byte, b'T' | b't' | b' '),
        13 => *byte == b':',
        _ => byte.is_ascii_digit(),
    });
    let rest = match rest {
        [b':', tens, ones, rest @ ..] if tens.is_ascii_digit() && ones.is_ascii_digit() => {
            after_fraction(rest)?
        }
        _ => rest,
    };
    let is_offset = match rest {
        b"" | b"Z" | b"z" => true,
        [b'+' | b'-', a, b, b':', c, d] => [a, b, c, d].iter().all(|byte| byte.is_ascii_digit()),
        _ => false,
    };
    (is_shaped && is_offset)
        .then(|| TimeText { date_time: &text[..text.len() - rest.len()], offset: rest })
}

fn after_fraction(text: &[u8]) -> Option<&[u8]> {
    let Some(fraction) = text.strip_prefix(b".") else { return Some(text) };
    let digits = fraction.iter().take_while(|byte| byte.is_ascii_digit()).count();
    (1..=9).contains(&digits).then(|| &fraction[digits..])
}

impl TimeText<'_> {
    /// Returns `None` if there is no such date or time.
    fn date_time(&self) -> Option<DateTime> {
        self.date_time.parse().ok()
    }

    /// Returns `None` if there is no such offset.
    fn offset(&self) -> Option<GivenOffset> {
        match self.offset {
            b"" => Some(GivenOffset::Nothing),
            b"Z" | b"z" | b"-00:00" => Some(GivenOffset::Utc),
            offset => offset_of(offset).map(GivenOffset::Offset),
        }
    }

    fn nanos_since_epoch(&self, at: DateTime, offset_seconds: i32) -> i128 {
        // jiff reads a leap second as the second before it, which would be early.
        let leap_seconds = if self.date_time.as_bytes().get(17..19) == Some(b"60") { 1 } else { 0 };
        at.duration_since(EPOCH).as_nanos()
            + (leap_seconds - i128::from(offset_seconds)) * 1_000_000_000
    }
}

/// Returns the reason why a text is wrong. The most common mistakes have their own.
fn reason_against(text: &str) -> &'static str {
    if is_digits(text) {
        "is a number in quotes; write milliseconds without quotes"
    } else if let Some((_, [b'+' | b'-', zone @ ..])) = text.as_bytes().split_last_chunk::<5>()
        && zone.iter().all(u8::is_ascii_digit)
        && text.contains(':')
    {
        "has a zone without a colon (write +01:00, not +0100)"
    } else if text.len() == DATE_CHARS && text.parse::<jiff::civil::Date>().is_ok() {
        "is a date with no time of day"
    } else if text.parse::<DateTime>().is_ok() && text.parse::<jiff::Timestamp>().is_err() {
        "has no time zone"
    } else {
        "is not RFC 3339"
    }
}

fn is_digits(text: &str) -> bool {
    !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit())
}

fn delay_of_text(text: &str) -> Result<Duration, String> {
    let wrong = |why: &str| format!("{:?} {why}; expected {DELAY}", shown(text));
    if text.len() > DELAY_CHARS_MAX {
        return Err(wrong("is too long for a delay"));
    }
    if is_digits(text) {
        return Err(wrong(
            "is a number without a unit; add one, or write milliseconds without quotes",
        ));
    }
    let span: jiff::Span = text.parse().map_err(|_no_span: jiff::Error| wrong("is not a delay"))?;
    if span.get_years() != 0 || span.get_months() != 0 {
        return Err(wrong(
            "has months or years, whose length varies; use days (24 h) or weeks (168 h)",
        ));
    }
    let span = span
        .to_duration(jiff::SpanRelativeTo::days_are_24_hours())
        .map_err(|_too_long| wrong("is too long"))?;
    let nanos = span.as_nanos();
    if nanos < 0 {
        return Err(wrong("is negative"));
    }
    match u64::try_from(nanos.saturating_add(999_999) / 1_000_000) {
        Ok(millis) if millis <= DELAY_MILLIS_MAX => Ok(Duration::from_millis(millis)),
        _ => Err(wrong("is more than 1000 years")),
    }
}

/// A time as the API writes it: RFC 3339 in UTC with milliseconds.
#[derive(Clone, Copy, Debug)]
pub struct Rfc3339(pub Timestamp);

impl fmt::Display for Rfc3339 {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Times that RFC 3339 cannot write were refused on arrival.
        let since_epoch = jiff::SignedDuration::from_millis(self.0.as_millis());
        let at = EPOCH.checked_add(since_epoch).unwrap_or(DateTime::MAX);
        write!(f, "{at:.3}Z")
    }
}

impl Serialize for Rfc3339 {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}
