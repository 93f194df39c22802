//! What the metrics of all components are made of: histograms with the same buckets for the same kind of thing, so that panels can be laid side by
//! side, and a gauge of what is there just now.

use super::{Gauge, Histogram};

/// For what a statement, a request or a batch takes: 100 us to 10 s.
const DURATION_SECONDS: [f64; 16] =
    [0.0001, 0.0002, 0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0];

/// For lateness: 1 ms to 1 h, fine where the promise is and coarse where an outage is.
const LATENESS_SECONDS: [f64; 18] =
    [0.001, 0.002, 0.003, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 60.0, 300.0, 900.0, 3600.0];

/// A histogram of durations, in seconds.
pub fn durations() -> Histogram {
    Histogram::new(DURATION_SECONDS)
}

/// A histogram of lateness, in seconds.
pub fn lateness() -> Histogram {
    Histogram::new(LATENESS_SECONDS)
}

/// Counts something for as long as it lives, however it ends: a stream of HTTP/2 that is reset drops its request where it stands.
#[derive(Debug)]
pub struct Counted {
    gauge: Gauge,
    amount: i64,
}

impl Counted {
    pub fn new(gauge: &Gauge, amount: i64) -> Self {
        gauge.inc_by(amount);
        Self { gauge: gauge.clone(), amount }
    }

    pub fn add(&mut self, amount: i64) {
        self.gauge.inc_by(amount);
        self.amount = self.amount.saturating_add(amount);
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        self.gauge.dec_by(self.amount);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buckets_ascend_between_the_ends_that_they_name() {
        assert!(DURATION_SECONDS.is_sorted_by(|a, b| a < b) && LATENESS_SECONDS.is_sorted_by(|a, b| a < b));
        assert_eq!((DURATION_SECONDS.first(), DURATION_SECONDS.last()), (Some(&0.0001), Some(&10.0)));
        assert_eq!((LATENESS_SECONDS.first(), LATENESS_SECONDS.last()), (Some(&0.001), Some(&3600.0)));
    }
}
