//! A length of time as people write it and the settings read it.

use std::time::Duration;

use jiff::{SpanRound, Unit};

/// `15m`, `3d`, `1h 30m`, `200ms`; days are 24 hours.
pub fn spelled(duration: Duration) -> String {
    let in_days = SpanRound::new().largest(Unit::Day).smallest(Unit::Nanosecond).days_are_24_hours();
    match jiff::Span::try_from(duration).and_then(|span| span.round(in_days)) {
        Ok(span) => format!("{span:#}"),
        // Beyond what the library's spans hold: millennia.
        Err(_too_long) => format!("{}s", duration.as_secs()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_duration_is_told_in_the_largest_units_that_fit() {
        let told = [(0, "0s"), (200, "200ms"), (900_000, "15m"), (5_400_000, "1h 30m"), (3_600_000, "1h"), (259_200_000, "3d")];
        for (millis, text) in told {
            assert_eq!(spelled(Duration::from_millis(millis)), text);
        }
        assert_eq!(spelled(Duration::from_millis(1_500)), "1s 500ms");
        assert_eq!(spelled(Duration::MAX), "18446744073709551615s");
    }
}
