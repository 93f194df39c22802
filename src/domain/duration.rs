//! A length of time as people write it and the settings read it.

use std::time::Duration;

/// Nanoseconds, and what they are called; days are 24 hours.
const UNITS: [(u128, &str); 7] = [
    (86_400_000_000_000, "d"),
    (3_600_000_000_000, "h"),
    (60_000_000_000, "m"),
    (1_000_000_000, "s"),
    (1_000_000, "ms"),
    (1_000, "us"),
    (1, "ns"),
];

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
    fn a_duration_is_told_in_the_largest_units_that_fit() {
        let told = [(0, "0s"), (200, "200ms"), (900_000, "15m"), (5_400_000, "1h 30m"), (3_600_000, "1h"), (259_200_000, "3d")];
        for (millis, text) in told {
            assert_eq!(spelled(Duration::from_millis(millis)), text);
        }
        assert_eq!(spelled(Duration::from_nanos(1_500_002_001)), "1s 500ms 2us 1ns");
    }
}
