//! Times as the API reads and writes them. Times are rounded up to whole milliseconds when read, so
//! that no task is ever early.

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

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn raw(json: &str) -> &RawValue {
        serde_json::from_str(json).unwrap()
    }

    fn millis_of(json: &str) -> Result<i64, String> {
        due_at(raw(json)).map(Timestamp::as_millis)
    }

    #[test]
    fn due_times_are_read_in_every_form_of_rfc_3339() {
        for text in [
            "2030-01-31T09:30:00Z",
            "2030-01-31t09:30:00z",
            "2030-01-31 09:30:00Z",
            "2030-01-31T09:30:00.000Z",
            "2030-01-31T10:30:00+01:00",
            "2030-01-31T09:30:00-00:00",
            // Java prints whole minutes like this.
            "2030-01-31T09:30Z",
            "2030-01-31T10:30+01:00",
        ] {
            assert_eq!(millis_of(&format!("{text:?}")), Ok(1_896_082_200_000), "{text}");
        }
        assert_eq!(millis_of("1896082200000"), Ok(1_896_082_200_000));
        assert_eq!(millis_of(r#""1970-01-01T00:00:00Z""#), Ok(0));
        for whole in [
            "1896082200000.0",
            "1.8960822e12",
            "1.8960822E+12",
            "1896082200000000e-3",
            "18960822.00e5",
        ] {
            assert_eq!(millis_of(whole), Ok(1_896_082_200_000), "{whole}");
        }
    }

    #[test]
    fn what_is_finer_than_a_millisecond_is_rounded_up() {
        assert_eq!(millis_of(r#""2030-01-31T09:30:00.000000001Z""#), Ok(1_896_082_200_001));
        assert_eq!(millis_of(r#""2030-01-31T09:30:00.001Z""#), Ok(1_896_082_200_001));
        assert_eq!(millis_of(r#""2030-01-31T09:29:59.999999999Z""#), Ok(1_896_082_200_000));
        assert_eq!(delay(raw(r#""1us""#)), Ok(Duration::from_millis(1)));
        assert_eq!(delay(raw(r#""PT0.0015S""#)), Ok(Duration::from_millis(2)));
    }

    #[test]
    fn a_leap_second_is_not_early() {
        assert_eq!(millis_of(r#""2016-12-31T23:59:60Z""#), millis_of(r#""2017-01-01T00:00:00Z""#));
    }

    #[test]
    fn the_year_9999_is_read_and_written_to_its_end() {
        for (text, millis) in [
            ("9999-12-30T22:00:01Z", 253_402_207_201_000),
            ("9999-12-31T23:59:59Z", 253_402_300_799_000),
            ("9999-12-31T23:59:59.999Z", MILLIS_MAX),
            ("9999-12-31T23:59:59+23:59", MILLIS_MAX - 999 - 1439 * 60_000),
            ("9999-12-31T20:59:59.999-03:00", MILLIS_MAX),
        ] {
            assert_eq!(millis_of(&format!("{text:?}")), Ok(millis), "{text}");
        }
        assert_eq!(
            Rfc3339(Timestamp::from_millis(MILLIS_MAX)).to_string(),
            "9999-12-31T23:59:59.999Z"
        );
        assert_eq!(millis_of(&MILLIS_MAX.to_string()), Ok(MILLIS_MAX));
    }

    proptest! {
        #[test]
        fn times_are_read_as_jiff_reads_them(
            text in concat!(
                "[12][0-9]{3}-[01][0-9]-[0-3][0-9][Tt ][0-2][0-9]:[0-5][0-9]:[0-5][0-9]",
                "([.][0-9]{1,9})?(Z|z|[-+][01][0-9]:[0-5][0-9])",
            ),
        ) {
            let by_jiff = text.parse::<jiff::Timestamp>().ok().map(jiff::Timestamp::as_nanosecond);
            let shape = shape_of(&text).unwrap();
            let seconds = |given| match given {
                GivenOffset::Offset(seconds) => seconds,
                GivenOffset::Nothing | GivenOffset::Utc => 0,
            };
            let nanos = shape
                .date_time()
                .zip(shape.offset())
                .map(|(at, given)| shape.nanos_since_epoch(at, seconds(given)));
            prop_assert_eq!(nanos, by_jiff);
        }
    }

    #[test]
    fn due_times_that_are_none_are_refused_with_the_reason() {
        for (json, reason) in [
            (r#""2030-01-31T09:30:00""#, "zone"),
            (r#""2030-01-31T09:30""#, "zone"),
            (r#""2030-01-31""#, "no time of day"),
            (r#""2030-01-31[Europe/Berlin]""#, "no time of day"),
            (r#""2030-01-31T09Z""#, "RFC 3339"),
            (r#""2030-01-31T09:30:Z""#, "RFC 3339"),
            (r#""2030-01-31T09:30.5Z""#, "RFC 3339"),
            (r#""2030-02-30T09:30:00Z""#, "not a valid date"),
            (r#""2030-01-31T25:30:00Z""#, "not a valid date"),
            (r#""2030-01-31T09:30:00.1234567890Z""#, "RFC 3339"),
            (r#""1969-12-31T23:59:59Z""#, "1970"),
            (r#""9999-12-31T23:59:59.9991Z""#, "after the year 9999"),
            (r#""9999-12-31T23:59:59-00:01""#, "after the year 9999"),
            (r#""9999-12-31T24:00:00Z""#, "not a valid date"),
            (r#""2030-01-31T09:30:00+24:00""#, "not a valid date"),
            (r#""2030-01-31T09:30:00+01:60""#, "not a valid date"),
            (r#""tomorrow""#, "RFC 3339"),
            (r#""1896082200000""#, "number in quotes"),
            (r#""2030-01-31T09:30:00+0100""#, "+01:00"),
            ("1896082200000.5", "whole"),
            ("1896082200000.00000000000000000000001", "whole"),
            ("1e-3", "whole"),
            ("1e99", "out of range"),
            ("1e99999999999999999999", "out of range"),
            ("0.0", "seconds"),
            ("-1", "negative"),
            ("0", "seconds"),
            ("1896082200", "seconds"),
            ("253402300800000", "after the year 9999"),
            ("9999999999999999", "after the year 9999"),
            ("99999999999999999999999999", "out of range"),
            ("null", "null"),
            ("true", "boolean"),
        ] {
            let wrong = due_at(raw(json)).unwrap_err();
            // The reason follows a quotation of the input.
            let said = wrong.strip_prefix(json).unwrap_or(&wrong);
            assert!(said.contains(reason), "{json}: {wrong}");
        }
    }

    #[test]
    fn times_with_the_name_of_a_zone_are_read_by_its_rules() {
        for (text, in_utc) in [
            ("2030-01-31T10:30:00+01:00[Europe/Berlin]", "2030-01-31T09:30:00Z"),
            ("2030-01-31T10:30+01:00[!Europe/Berlin]", "2030-01-31T09:30:00Z"),
            ("2030-01-31T10:30[Europe/Berlin]", "2030-01-31T09:30:00Z"),
            ("2030-01-31 10:30[europe/berlin]", "2030-01-31T09:30:00Z"),
            ("2030-07-31T11:30:00.5[Europe/Berlin]", "2030-07-31T09:30:00.5Z"),
            ("2030-01-31T09:30Z[Europe/Berlin]", "2030-01-31T09:30:00Z"),
            ("2030-01-31T09:30-00:00[Europe/Berlin]", "2030-01-31T09:30:00Z"),
            ("2030-01-31T09:30[UTC]", "2030-01-31T09:30:00Z"),
            ("2030-01-31T09:30Z[Etc/UTC]", "2030-01-31T09:30:00Z"),
            ("2030-01-31T10:30[+01:00]", "2030-01-31T09:30:00Z"),
            ("2030-01-31T10:30+01:00[Europe/Berlin][u-ca=hebrew]", "2030-01-31T09:30:00Z"),
            ("2030-01-31T10:30+01:00[_x=y]", "2030-01-31T09:30:00Z"),
            // This local time exists twice, and the offset says which one is meant.
            ("2030-10-27T02:30+02:00[Europe/Berlin]", "2030-10-27T00:30:00Z"),
            ("2030-10-27T02:30+01:00[Europe/Berlin]", "2030-10-27T01:30:00Z"),
            ("9999-12-31T23:59[Europe/Berlin]", "9999-12-31T22:59:00Z"),
        ] {
            assert_eq!(
                millis_of(&format!("{text:?}")),
                millis_of(&format!("{in_utc:?}")),
                "{text}"
            );
            assert!(millis_of(&format!("{text:?}")).is_ok(), "{text}");
        }
    }

    #[test]
    fn times_that_contradict_the_rules_of_their_zone_are_refused() {
        for (text, reason) in [
            (
                "2030-01-31T10:30+02:00[Europe/Berlin]",
                "its offset is +02:00, but Europe/Berlin has +01:00 then",
            ),
            ("2030-01-31T10:30+02:00[!Europe/Berlin]", "its offset is +02:00"),
            ("2030-01-31T10:30+02:00[-03:30]", "-03:30 has -03:30 then"),
            ("2030-03-31T02:30[Europe/Berlin]", "skip it when they change from +01:00 to +02:00"),
            ("2030-03-31T02:30+01:00[Europe/Berlin]", "skip it"),
            (
                "2030-10-27T02:30[Europe/Berlin]",
                "twice in Europe/Berlin, with +02:00 and with +01:00",
            ),
            ("2030-10-27T02:30+03:00[Europe/Berlin]", "its offset is +03:00"),
            ("2030-01-31T10:30[Europe/Munich]", "unknown time zone, \"Europe/Munich\""),
            ("2030-01-31T10:30[CET-1CEST]", "unknown time zone"),
            ("2030-01-31T10:30[]", "unknown time zone"),
            ("2030-01-31T10:30[../../etc/passwd]", "unknown time zone"),
            ("2030-01-31T10:30[+25:00]", "unknown time zone"),
            ("2030-01-31T10:30[Europe/Berlin", "not a zone in brackets"),
            ("2030-01-31T10:30[Europe/Berlin]Z", "not a zone in brackets"),
            ("2030-01-31T10:30[Europe/Berlin][Europe/Paris]", "not the first"),
            ("2030-01-31T10:30Z[!u-ca=hebrew]", "critical"),
            ("2030-01-31T10:30[u-ca=hebrew]", "no time zone"),
        ] {
            let wrong = millis_of(&format!("{text:?}")).unwrap_err();
            assert!(wrong.contains(reason), "{text}: {wrong}");
        }
    }

    #[test]
    fn a_plus_that_became_a_blank_is_a_plus() {
        let moment = due_at(raw(r#""2030-01-31T09:30:00Z""#)).unwrap();
        for text in [
            "2030-01-31T10:30:00 01:00",
            "2030-01-31 10:30 01:00",
            "2030-01-31T10:30+01:00[Europe/Berlin]",
            "2030-01-31T04:30[Etc/GMT 5]",
        ] {
            assert_eq!(due_at_of_parameter(text), Ok(moment), "{text}");
        }
    }

    #[test]
    fn delays_are_read_in_words_in_iso_8601_and_in_milliseconds() {
        for (json, seconds) in [
            (r#""30m""#, 1800),
            (r#""1h 30m""#, 5400),
            (r#""1 hour 30 minutes""#, 5400),
            (r#""PT30M""#, 1800),
            (r#""pt30m""#, 1800),
            (r#""P1DT1H""#, 90_000),
            (r#""1d""#, 86_400),
            (r#""2 weeks""#, 1_209_600),
            (r#""PT0S""#, 0),
            ("0", 0),
            ("-0.0", 0),
            ("0e-9", 0),
            ("1800000", 1800),
        ] {
            assert_eq!(delay(raw(json)), Ok(Duration::from_secs(seconds)), "{json}");
        }
        assert_eq!(delay(raw(r#""250ms""#)), Ok(Duration::from_millis(250)));
    }

    #[test]
    fn delays_that_are_none_are_refused_with_the_reason() {
        for (json, reason) in [
            (r#""1 month""#, "months"),
            (r#""P1Y""#, "months"),
            (r#""1mo""#, "months"),
            (r#""-30m""#, "negative"),
            (r#""30m ago""#, "negative"),
            (r#""30""#, "quotes"),
            (r#""1800000""#, "unit"),
            (r#""""#, "not a delay"),
            ("-1", "negative"),
            ("1.5", "whole"),
            (r#""200000000h""#, "1000 years"),
            ("99999999999999", "1000 years"),
            ("18446744073709551615", "out of range"),
            ("[]", "array"),
        ] {
            let wrong = delay(raw(json)).unwrap_err();
            assert!(wrong.contains(reason), "{json}: {wrong}");
        }
        assert!(delay(raw(&format!("{:?}", "1h ".repeat(100)))).is_err());
    }

    proptest! {
        #[test]
        fn no_text_makes_the_parsers_panic(text in ".{0,60}") {
            let json = serde_json::to_string(&text).unwrap();
            prop_assert!(delay(raw(&json)).is_err() || !text.is_empty());
            prop_assert!(due_at(raw(&json)).is_err() || !text.is_empty());
        }

        #[test]
        fn no_zone_makes_the_parser_panic(
            text in concat!(
                "2030-0[1-9]-[0-3][0-9]T[0-2][0-9]:30(:[0-5][0-9])?(Z|[-+]0[0-9]:[03]0)?",
                "([\\[]!?(Europe/Berlin|Africa/Monrovia|[-+]?[0-9:]{1,6}|.{0,10})[\\]]?){0,3}",
            ),
        ) {
            let json = serde_json::to_string(&text).unwrap();
            if let Ok(at) = due_at(raw(&json)) {
                prop_assert!(at.as_millis() > 0);
            }
        }

        #[test]
        fn no_delay_of_units_makes_the_parser_panic(
            text in concat!(
                "[-+]?(P|PT)?([0-9]{1,12}([.][0-9]{1,9})? ?",
                "(y|mo|w|d|h|m|s|ms|us|ns|H|M|S|D|W|Y),? ?){1,5}",
            ),
        ) {
            let json = serde_json::to_string(&text).unwrap();
            if let Ok(span) = delay(raw(&json)) {
                prop_assert!(span <= Duration::from_millis(DELAY_MILLIS_MAX));
            }
        }

        #[test]
        fn no_number_makes_the_parser_panic(
            number in "-?(0|[1-9][0-9]{0,30})([.][0-9]{1,30})?([eE][-+]?[0-9]{1,25})?",
        ) {
            if let Ok(span) = delay(raw(&number)) {
                let value: f64 = number.parse().unwrap();
                prop_assert!(
                    (value - span.as_secs_f64() * 1000.0).abs() < 1.0,
                    "{number}: {span:?}"
                );
            }
        }

        #[test]
        fn what_is_written_is_read_back(millis in MILLIS_MIN..=MILLIS_MAX) {
            let at = Timestamp::from_millis(millis);
            prop_assert_eq!(due_at(raw(&format!("\"{}\"", Rfc3339(at)))), Ok(at));
            prop_assert_eq!(due_at(raw(&millis.to_string())), Ok(at));
        }
    }
}
