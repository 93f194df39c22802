//! A gauge of what is there just now.

use super::Gauge;

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
