//! Logs whether etcd answers.

use std::time::Duration;

use super::client::EtcdError;
use crate::error_chain::chain;

/// Logs once that contact is lost, and once that contact is back.
#[derive(Debug)]
pub(super) struct EtcdContact {
    what: &'static str,
    is_lost: bool,
    tries: u32,
}

impl EtcdContact {
    pub(super) fn new(what: &'static str) -> Self {
        Self { what, is_lost: false, tries: 0 }
    }

    pub(super) fn lost(&mut self, error: &EtcdError) {
        self.tries = self.tries.saturating_add(1);
        if !self.is_lost {
            self.is_lost = true;
            tracing::warn!(error = %chain(error), "etcd: lost {}; shards keep their \
                owners", self.what);
        }
    }

    pub(super) fn back(&mut self) {
        self.tries = 0;
        if self.is_lost {
            self.is_lost = false;
            tracing::info!("etcd: {} is restored", self.what);
        }
    }

    /// Returns the pause before the next attempt: 100 ms after the first, doubled each time, up to
    /// 1 s.
    pub(super) fn pause(&self) -> Duration {
        Duration::from_millis(50 << self.tries.min(5)).min(Duration::from_secs(1))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_pause_between_tries_grows_to_a_second() {
        let mut contact = EtcdContact::new("x");
        let pauses: Vec<_> = (0..7)
            .map(|_| {
                contact.lost(&EtcdError::Ended { what: "x" });
                contact.pause().as_millis()
            })
            .collect();
        assert_eq!(pauses, [100, 200, 400, 800, 1000, 1000, 1000]);
    }
}
