//! Formats figures for people.

use std::time::Duration;

use az::SaturatingAs as _;

pub use crate::domain::text::grouped;

/// Formats a count with its noun: `1,234 tasks`, `1 task`.
pub fn counted(number: u64, what: &str) -> String {
    let plural = if number == 1 { "" } else { "s" };
    format!("{} {what}{plural}", grouped(number))
}

/// Formats a length of time. Below a minute the precision is a tenth of a second.
pub fn span(span: Duration) -> String {
    let seconds = span.as_secs();
    match seconds {
        0..60 => format!("{}.{} s", seconds, span.subsec_millis() / 100),
        60..3600 => format!("{} min {} s", seconds / 60, seconds % 60),
        _ => format!("{} h {} min", seconds / 3600, seconds % 3600 / 60),
    }
}

/// Returns the rate per second, or `None` while it cannot be told.
pub fn rate(count: u64, span: Duration) -> Option<u64> {
    let millis = span.as_millis().saturating_as::<u64>();
    (millis >= 100 && count > 0).then(|| count.saturating_mul(1000) / millis)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_are_grouped_and_have_units() {
        assert_eq!([counted(1, "task"), counted(2000, "task")], ["1 task", "2,000 tasks"]);
        assert_eq!(
            [4_130, 61_000, 7_260_000].map(|ms| span(Duration::from_millis(ms))),
            ["4.1 s", "1 min 1 s", "2 h 1 min"]
        );
        assert_eq!(rate(500, Duration::from_secs(2)), Some(250));
        assert_eq!(rate(500, Duration::from_millis(1)), None);
    }
}
