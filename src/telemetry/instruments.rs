//! Shared instruments: histograms with the same buckets for the same kind of quantity, so panels
//! are comparable, and a gauge of current amounts.

use super::{Gauge, Histogram};

/// Buckets for statements, requests and batches: 100 us to 10 s.
const DURATION_SECONDS: [f64; 16] = [
    0.0001, 0.0002, 0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0,
    10.0,
];

/// Buckets for lateness: 1 ms to 1 h, fine in the promised range and coarse in that of outages.
const LATENESS_SECONDS: [f64; 18] = [
    0.001, 0.002, 0.003, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 60.0, 300.0,
    900.0, 3600.0,
];

/// Creates a histogram of durations in seconds.
pub fn durations() -> Histogram {
    Histogram::new(DURATION_SECONDS)
}

/// Creates a histogram of lateness in seconds.
pub fn lateness() -> Histogram {
    Histogram::new(LATENESS_SECONDS)
}

/// Counts something for as long as the value lives, however the life ends: a reset HTTP/2 stream
/// drops its request at any point.
#[derive(Debug)]
pub struct CountGuard {
    gauge: Gauge,
    amount: i64,
}

impl CountGuard {
    pub fn new(gauge: &Gauge, amount: i64) -> Self {
        gauge.inc_by(amount);
        Self { gauge: gauge.clone(), amount }
    }

    pub fn add(&mut self, amount: i64) {
        self.gauge.inc_by(amount);
        self.amount = self.amount.saturating_add(amount);
    }
}

impl Drop for CountGuard {
    fn drop(&mut self) {
        self.gauge.dec_by(self.amount);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buckets_ascend_between_the_ends_that_they_name() {
        assert!(
            DURATION_SECONDS.is_sorted_by(|a, b| a < b)
                && LATENESS_SECONDS.is_sorted_by(|a, b| a < b)
        );
        assert_eq!(
            (DURATION_SECONDS.first(), DURATION_SECONDS.last()),
            (Some(&0.0001), Some(&10.0))
        );
        assert_eq!(
            (LATENESS_SECONDS.first(), LATENESS_SECONDS.last()),
            (Some(&0.001), Some(&3600.0))
        );
    }
}
