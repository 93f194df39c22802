//! Summarises many latencies: an HdrHistogram, and a few figures for people.

use std::time::Duration;

use hdrhistogram::Histogram;
use serde::{Deserialize, Serialize};

use super::float;

/// One hour. A longer time counts as one hour.
const MICROS_MAX: u64 = 3_600_000_000;
/// Significant digits: a figure is exact to one part in a thousand.
const DIGITS: u8 = 3;
/// Shares of the tasks at which the curve of a distribution is drawn, ever closer to all of them.
const CURVE: [f64; 16] = [
    0.0, 0.1, 0.25, 0.5, 0.6, 0.75, 0.8, 0.9, 0.95, 0.975, 0.99, 0.995, 0.999, 0.9995, 0.9999, 1.0,
];

/// A histogram of times.
#[derive(Clone, Debug)]
pub struct Spans {
    histogram: Histogram<u64>,
}

/// A distribution, in milliseconds.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Quantiles {
    pub count: u64,
    pub mean: f64,
    pub p50: f64,
    pub p90: f64,
    pub p99: f64,
    pub p999: f64,
    pub max: f64,
    /// Points of the curve: a share of the tasks, and the milliseconds that this share does not
    /// exceed.
    pub curve: Vec<(f64, f64)>,
}

impl Default for Spans {
    fn default() -> Self {
        let Ok(histogram) = Histogram::new_with_bounds(1, MICROS_MAX, DIGITS) else {
            unreachable!("the bounds are constants that the library takes")
        };
        Self { histogram }
    }
}

impl Spans {
    /// Counts a time. A time below a microsecond counts as zero.
    pub fn record(&mut self, span: Duration) {
        self.histogram.saturating_record(u64::try_from(span.as_micros()).unwrap_or(MICROS_MAX));
    }

    pub fn record_millis(&mut self, millis: u64) {
        self.histogram.saturating_record(millis.saturating_mul(1000));
    }

    pub fn add(&mut self, others: &Self) {
        let added = self.histogram.add(&others.histogram);
        debug_assert!(added.is_ok(), "both have the same bounds");
    }

    pub fn is_empty(&self) -> bool {
        self.histogram.is_empty()
    }

    /// Returns the milliseconds that a share of the times does not exceed (0.5: half of them).
    pub fn at(&self, share: f64) -> f64 {
        let micros = self.histogram.value_at_quantile(share);
        float(self.histogram.lowest_equivalent(micros)) / 1000.0
    }

    pub fn quantiles(&self) -> Option<Quantiles> {
        (!self.is_empty()).then(|| Quantiles {
            count: self.histogram.len(),
            mean: self.histogram.mean() / 1000.0,
            p50: self.at(0.5),
            p90: self.at(0.9),
            p99: self.at(0.99),
            p999: self.at(0.999),
            max: self.at(1.0),
            curve: CURVE.iter().map(|share| (*share, self.at(*share))).collect(),
        })
    }
}

impl Quantiles {
    /// Formats p50, p90, p99, p99.9 and the maximum as `1 / 2 / 4 / 9 / 17`.
    pub fn short(&self) -> String {
        [self.p50, self.p90, self.p99, self.p999, self.max].map(shown).join(" / ")
    }
}

/// Formats milliseconds with the significant digits.
pub fn shown(millis: f64) -> String {
    if millis >= 20.0 || (millis - millis.round()).abs() < 0.05 {
        format!("{millis:.0}")
    } else {
        format!("{millis:.1}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn spans(millis: impl IntoIterator<Item = u64>) -> Spans {
        let mut spans = Spans::default();
        millis.into_iter().for_each(|millis| spans.record_millis(millis));
        spans
    }

    #[test]
    fn quantiles_are_those_of_the_sorted_list() {
        let quantiles = spans(1..=1000).quantiles().unwrap();
        let near = |found: f64, wanted: f64| {
            assert!((found - wanted).abs() <= wanted / 500.0, "{found} is not {wanted}")
        };
        near(quantiles.p50, 500.0);
        near(quantiles.p90, 900.0);
        near(quantiles.p99, 990.0);
        near(quantiles.p999, 999.0);
        near(quantiles.max, 1000.0);
        near(quantiles.mean, 500.5);
        assert_eq!(quantiles.count, 1000);
    }

    #[test]
    fn nothing_counted_has_no_quantiles() {
        assert_eq!(spans([]).quantiles(), None);
    }

    #[test]
    fn on_time_is_zero_and_an_hour_is_the_most() {
        assert_eq!(spans([0]).quantiles().unwrap().max, 0.0);
        let mut long = Spans::default();
        long.record(Duration::from_secs(100_000));
        assert!(long.at(1.0) >= 3_590_000.0);
    }

    #[test]
    fn counted_apart_is_counted_together() {
        let mut sum = spans(1..=500);
        sum.add(&spans(501..=1000));
        assert_eq!(sum.quantiles(), spans(1..=1000).quantiles());
    }

    #[test]
    fn figures_are_as_short_as_they_may_be() {
        assert_eq!(
            [0.0, 1.0, 1.26, 17.003, 74.9, 250.4].map(shown),
            ["0", "1", "1.3", "17", "75", "250"]
        );
    }
}
