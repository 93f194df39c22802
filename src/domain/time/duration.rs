//! Durations as people write them, in settings, flags and messages.

use std::time::Duration;

use jiff::{Span, SpanRelativeTo};

/// Units in nanoseconds. A day has 24 hours.
const UNITS: [(u128, &str); 7] = [
    (86_400_000_000_000, "d"),
    (3_600_000_000_000, "h"),
    (60_000_000_000, "m"),
    (1_000_000_000, "s"),
    (1_000_000, "ms"),
    (1_000, "us"),
    (1, "ns"),
];

/// Parses `200ms`, `1h 30m`, `7d` or ISO 8601 (`PT30M`). A day has 24 hours. The error says what
/// would be right.
pub fn parse(text: &str) -> Result<Duration, String> {
    let wrong =
        || format!("`{text}` is not a span of time; write it like 200ms, 30s, 1h 30m or 7d");
    let span: Span = text.trim().parse().map_err(|_says_less_than_we_do| wrong())?;
    // Months and years are refused because they have no fixed length.
    let signed = span
        .to_duration(SpanRelativeTo::days_are_24_hours())
        .map_err(|_has_months_or_years| wrong())?;
    Duration::try_from(signed).map_err(|_is_negative| wrong())
}

/// `15m`, `3d`, `1h 30m`, `200ms`.
pub fn spelled(duration: Duration) -> String {
    let mut left = duration.as_nanos();
    let mut parts = Vec::new();
    for (nanos, unit) in UNITS {
        let count = left / nanos;
        left %= nanos;
        if count > 0 {
            parts.push(format!("{count}{unit}"));
        }
    }
    if parts.is_empty() { "0s".to_owned() } else { parts.join(" ") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spans_are_read_as_people_write_them() {
        for (text, millis) in [
            ("200ms", 200),
            ("1h 30m", 5_400_000),
            ("7d", 604_800_000),
            ("PT30M", 1_800_000),
            ("0s", 0),
        ] {
            assert_eq!(parse(text), Ok(Duration::from_millis(millis)), "{text}");
        }
        assert_eq!(parse("500us"), Ok(Duration::from_micros(500)));
    }

    #[test]
    fn spans_without_a_unit_or_a_fixed_length_or_below_zero_are_refused() {
        for text in ["", "5", "-5s", "1y", "2mo", "soon", "5s ago"] {
            assert!(parse(text).is_err(), "{text}");
        }
    }

    #[test]
    fn a_duration_is_told_in_the_largest_units_that_fit() {
        let told = [
            (0, "0s"),
            (200, "200ms"),
            (900_000, "15m"),
            (5_400_000, "1h 30m"),
            (3_600_000, "1h"),
            (259_200_000, "3d"),
        ];
        for (millis, text) in told {
            assert_eq!(spelled(Duration::from_millis(millis)), text);
        }
        assert_eq!(spelled(Duration::from_nanos(1_500_002_001)), "1s 500ms 2us 1ns");
    }
}
